"""The decoder of raw profile buffers."""

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.errors import UsageError
from kperf.trace.analyze import decode as decoding
from kperf.trace.analyze.decode import decode
from kperf.trace.instrument.session import Recording

from .synthetic import encode

SMALL = Recording((0, 4, 10), 12, bytes_per_warp=64)


def steps(first: int, n: int, step: int = 60, scope: int = 3) -> list[tuple[int, bool, int]]:
    return [(scope + i // 2 % 5, i % 2 == 0, first + step * i) for i in range(n)]


def test_every_record_comes_back_in_order():
    ctas = [[steps(1000 * b, 6), steps(1000 * b + 7, 4), steps(1000 * b + 90, 8)] for b in range(5)]
    records = decode(encode(ctas, SMALL), SMALL)
    assert records.n_ctas == 5
    assert (records.written, records.lost) == (5 * 18, 0)
    at = 0
    for number, warps in enumerate(ctas):
        for warp, expected in enumerate(warps):
            for scope, is_start, clock in expected:
                found = records.cta[at], records.warp[at], records.scope[at], records.is_start[at], records.cycle[at]
                assert found == (number, warp, scope, is_start, clock - 1000 * number)
                at += 1
    assert at == len(records.cycle)


def test_overwritten_records_are_counted_and_the_last_ones_kept():
    records = decode(encode([[steps(0, 11), steps(0, 8), steps(0, 2)]], SMALL), SMALL)
    assert (records.written, records.lost) == (21, 3)
    first_warp = records.cycle[records.warp == 0]
    assert np.diff(first_warp).tolist() == [60] * 7
    assert len(first_warp) == 8


@pytest.mark.parametrize("bits", [32, 64])
def test_clocks_may_wrap(bits):
    recording = Recording((0, 4, 10), 12, bytes_per_warp=64, clock_bits=bits)
    first = 2 ** (32 if bits == 32 else 43) - 100
    records = decode(encode([[steps(first, 6), steps(first - 50, 4), steps(first + 200, 4)]], recording), recording)
    assert records.cycle[records.warp == 0].tolist() == [0, 60, 120, 180, 240, 300]
    assert records.cycle[records.warp == 1].tolist() == [-50, 10, 70, 130]
    assert records.cycle[records.warp == 2][0] == 200


def test_a_clock_of_64_bits_counts_beyond_32():
    recording = Recording((0, 4, 10), 12, bytes_per_warp=64, clock_bits=64)
    far = [(3, True, 5), (3, False, 5 + 2**33), (4, True, 5 + 2**41)]
    records = decode(encode([[far, steps(7, 2), steps(2**34, 2)]], recording), recording)
    assert records.cycle[records.warp == 0].tolist() == [0, 2**33, 2**41]
    assert records.cycle[records.warp == 2][0] == 2**34 - 5
    assert records.clock.tolist() == [5]


def test_each_word_of_a_header_is_read_where_it_stands():
    words = GOOD.copy().view(np.uint32).reshape(2, -1)
    words[1, 1:3] = 77, 33
    words[1, 4:10] = 5, 1, 6, 2, 7, 3  # low and high word of the start, the end of the work and of the copy-out
    records = decode(words.reshape(-1).view(np.uint8), SMALL)
    assert (records.program_id[1], records.sm[1]) == (77, 33)
    assert (records.start_ns[1], records.end_ns[1]) == (5 + 2**32, 6 + 2**33)


def test_launches_are_decoded_in_pieces_that_join(monkeypatch):
    """1500 CTAs in pieces of 400, of which each writes its number as its clock's step."""
    monkeypatch.setattr(decoding, "_CHUNK_BYTES", 400 * SMALL.block_bytes)
    ctas = [[steps(0, 2, step=number + 1), [], steps(9, 2)] for number in range(1500)]
    records = decode(encode(ctas, SMALL), SMALL)
    assert records.n_ctas == 1500
    assert (records.written, records.lost) == (6000, 0)
    assert records.cta.tolist() == [number for number in range(1500) for _ in range(4)]
    second = (records.warp == 0) & ~records.is_start
    assert records.cycle[second].tolist() == [number + 1 for number in range(1500)]


def test_a_warp_without_records_is_no_fault_of_the_buffer():
    records = decode(encode([[[], steps(5, 2), []]], SMALL), SMALL)
    assert records.cycle.tolist() == [0, 60]


GOOD = encode([[steps(0, 4), steps(9, 4), steps(5, 2)], [steps(0, 4), steps(9, 4), steps(5, 2)]], SMALL)


def damaged(word: int, value: int, cta: int = 1) -> np.ndarray:
    words = GOOD.copy().view(np.uint32).reshape(2, -1)
    words[cta, word] = value
    return words.reshape(-1).view(np.uint8)


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        (np.zeros(0, np.uint8), "is empty"),
        (GOOD[:-4], "is truncated"),
        (np.zeros_like(GOOD), "another version"),
        (damaged(0, 0), "CTA 1 .* has no header"),
        (damaged(3, 128, cta=0), "other settings"),
        (damaged(10, 2**31 + 2), "wrapped"),
        (damaged(10, 3), "not a number of events"),
    ],
    ids=["empty", "truncated", "no header", "one block", "size", "wrapped", "odd"],
)
def test_what_is_not_a_recording_is_refused(buffer, said):
    with pytest.raises(UsageError, match=said) as error:
        decode(buffer, SMALL)
    assert "\n" not in str(error.value)


@given(st.binary(max_size=4 * SMALL.block_bytes))
@settings(max_examples=100)
def test_any_bytes_are_decoded_or_refused(data):
    with suppress(UsageError):
        decode(np.frombuffer(data, dtype=np.uint8), SMALL)


@given(st.lists(st.tuples(st.integers(0, GOOD.size - 1), st.integers(0, 255)), max_size=8))
@settings(max_examples=150)
def test_flipped_bytes_are_decoded_or_refused(changes):
    buffer = GOOD.copy()
    for place, value in changes:
        buffer[place] = value
    try:
        records = decode(buffer, SMALL)
    except UsageError:
        return
    assert len(records.cycle) == records.written - records.lost


warp = st.lists(st.tuples(st.integers(0, 255), st.booleans(), st.integers(1, 2**31)), max_size=20)


@given(st.lists(st.tuples(warp, warp, warp), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_round_trip(launch, first):
    ctas = []
    for warps in launch:
        ctas.append([])
        for records in warps:
            clocks = first + np.cumsum([step % 10**6 for _, _, step in records], dtype=np.int64)
            ctas[-1].append([(s, b, int(clock)) for (s, b, _), clock in zip(records, clocks, strict=True)])
    decoded = decode(encode(ctas, SMALL), SMALL)
    at = 0
    for warps in ctas:
        for records in warps:
            kept = records[-SMALL.events_per_warp :]
            found = slice(at, at + len(kept))
            assert decoded.scope[found].tolist() == [scope for scope, _, _ in kept]
            assert decoded.is_start[found].tolist() == [is_start for _, is_start, _ in kept]
            assert np.diff(decoded.cycle[found]).tolist() == np.diff([clock for _, _, clock in kept]).tolist()
            at += len(kept)
