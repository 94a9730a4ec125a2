"""`make varlen` on a GPU whose times are known: what is checked, timed interleaved, recorded and printed."""

import io
from functools import partial

import pytest
import torch
from pydantic import ValidationError

from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.integrations.varlen import attention_varlen
from kperf.paper import varlen
from kperf.paper.varlen import CASES, DENSE, FA3, OURS, TORCH, TOTAL, VarlenRow
from kperf.record.store import DeviceStates, RecordStore
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.attention.handed_in import SCALE, exact_ragged, ragged_operands
from tests.bench.fake_gpu import COLD_MS, interleaving
from tests.command import kperf
from tests.conftest import COMMON, STATE, kept

SEQ_LENS, EQUAL = (5, 130, 121), (64, 64, 64, 64)
MS = {(OURS, False): 4.0, (OURS, True): 2.0, (DENSE, True): 1.5}
"""Of one call: on `SEQ_LENS`, and on equal lengths."""


@pytest.fixture
def gpu(monkeypatch, attending_gpu):  # noqa: F811
    """256 tokens on the CPU, computed by the operators, whose calls take `MS` of a fake GPU. `spoil` acts on o."""
    gpu = interleaving(monkeypatch)
    gpu.spoil = lambda o: o
    monkeypatch.setattr(varlen, "TOTAL", 256)
    monkeypatch.setattr(varlen, "HEADS", 4)
    monkeypatch.setattr(varlen, "KV_HEADS", 2)
    monkeypatch.setattr(varlen, "CASES", {"few": (5, 130, 119, 2)})
    monkeypatch.setattr(varlen, "COMPARED", (OURS,))
    draw = varlen.draw
    monkeypatch.setattr(varlen, "draw", lambda *given: draw(*given[:4], "cpu", given[5]))

    def timed(key, operands, seq_lens, causal):
        call = calls[key](operands, seq_lens, causal)
        (made,) = call()
        out = torch.empty_like(made)
        launch = gpu.kernel(key, MS[key, len(set(seq_lens)) == 1], lambda: out.copy_(gpu.spoil(made)))
        return lambda: launch() or (out,)

    calls = dict(varlen._CALLS)
    monkeypatch.setattr(varlen, "_CALLS", {key: partial(timed, key) for key in calls})
    return gpu


def test_every_set_of_lengths_and_its_counterpart_are_checked_and_timed_together(gpu, attending_gpu):  # noqa: F811
    rows = list(varlen.measure(COMMON, rounds=16))
    assert [(row.implementation, row.seq_lens, row.causal) for row in rows] == [
        one
        for causal in (False, True)
        for one in ((OURS, (5, 130, 119, 2), causal), (OURS, EQUAL, causal), (DENSE, EQUAL, causal))
    ]
    assert {launch.name for launch in attending_gpu} == {"fill_table", "attn_fwd_ragged", "attn_fwd_views"}
    for row in rows:
        assert row.status == "ok"
        milliseconds = MS[row.implementation, row.equal] + COLD_MS
        assert row.samples_ms == pytest.approx([milliseconds] * 16)
        assert 0 < row.error < 4e-3
        squares = 4 * 64**2 if row.equal else 5**2 + 130**2 + 119**2 + 2**2
        assert row.flops == 4 * 4 * 128 * squares // (2 if row.causal else 1)
        assert row.tflops == pytest.approx(row.flops / milliseconds / 1e9)
    mixed, equal, _ = rows[:3]
    assert all(sorted(places) == [0, 1, 2] for places in zip(*(row.places for row in rows[:3]), strict=True))
    ratio, low, high = varlen.over_equal(mixed, equal)
    assert ratio == pytest.approx(mixed.flops / equal.flops * (2 + COLD_MS) / (4 + COLD_MS))
    assert low < ratio < high


def test_the_reference_is_that_of_each_sequence():
    q, k, v = ragged_operands(SEQ_LENS, SEQ_LENS, head_dim=128)
    operands = varlen.Operands(q, k, v, torch.tensor([0, 5, 135, 256], dtype=torch.int32))
    for causal in (False, True):
        o, _ = exact_ragged(q.float() / (SCALE * 128**0.5), k, v, SEQ_LENS, SEQ_LENS, causal)
        assert torch.allclose(varlen.exact(operands, SEQ_LENS, causal), o, atol=1e-5)


@pytest.mark.parametrize(("key", "equal"), [(OURS, False), (OURS, True), (DENSE, True)])
def test_every_call_computes_the_sequences(attending_gpu, key, equal):  # noqa: F811
    seq_lens = EQUAL if equal else SEQ_LENS
    q, k, v = ragged_operands(seq_lens, seq_lens, head_dim=128)
    begins = torch.tensor([0, *torch.tensor(seq_lens).cumsum(0)], dtype=torch.int32)
    operands = varlen.Operands(q, k, v, begins)
    (o,) = varlen._CALLS[key](operands, seq_lens, True)()
    expected = attention_varlen(q.float(), k.float(), v.float(), begins, begins, 130, 130, causal=True)
    assert varlen.checked((o,), expected)["error"] < 4e-3


def test_lengths_are_of_one_sum_and_have_a_counterpart():
    for seq_lens in CASES.values():
        assert sum(seq_lens) == TOTAL
        assert TOTAL % len(seq_lens) == 0
        assert min(seq_lens) >= 1
        assert len(set(seq_lens)) > 1


def test_what_is_wrong_has_no_time_and_fails_the_command(gpu, h200, tmp_path):
    gpu.spoil = lambda o: o * 1.01
    with pytest.raises(MeasurementError, match=r"Improved\+ has no time for few: 4 of 2 to 130 \(full\)"):
        varlen.run(WholeConsole(file=io.StringIO()), tmp_path, rounds=16, require_gpu=True)
    rows = RecordStore(tmp_path / "h200", "varlen", varlen.ROWS).points()
    assert {row.status for row in rows} == {"wrong"}
    assert rows[0].message == "the output is off by 1.01e-02 from float32, more than 0.004"
    assert rows[0].error == pytest.approx(1.01e-2, rel=0.01)


def test_where_the_kernel_does_not_apply_the_row_says_why(gpu, monkeypatch):
    monkeypatch.setattr(varlen.varlen, "why_not", lambda *_: "no Hopper GPU")
    first, *_ = list(varlen.measure(COMMON, rounds=16))
    assert (first.implementation, first.status) == (DENSE, "ok")
    reasons = {row.message for row in varlen.measure(COMMON, rounds=16) if row.implementation == OURS}
    assert reasons == {"no Hopper GPU"}


def row(**changes):
    fields = {
        "case": "few", "seq_lens": SEQ_LENS, "heads": 4, "kv_heads": 2, "head_dim": 128, "causal": False,
        "dtype": "bfloat16", "implementation": OURS, "status": "ok", "error": 2e-3,
        "samples_ms": [4.0, 4.1, 3.9, 4.0], "places": [0, 1, 2, 0], "ceiling_ms": [1.5] * 4,
        "device_states": DeviceStates.of([STATE] * 4).model_dump(),
        "settling": {"seconds": 1.0, "shift": 0.001, "settled": True},
    }  # fmt: skip
    return {"schema_version": 1} | COMMON | fields | changes


NO_TIME = {"samples_ms": [], "places": [], "ceiling_ms": [], "device_states": None, "settling": None, "error": None}


@pytest.mark.parametrize(
    "changes",
    [{"seq_lens": []}, {"seq_lens": [0, 4]}, {"heads": 0}, {"dtype": "int8"}, {"error": None}, {"message": "why"}],
)
def test_a_row_that_contradicts_itself_is_refused(changes):
    with pytest.raises(ValidationError):
        VarlenRow(**row(**changes))


def test_a_recorded_run_is_printed(tmp_path):
    rows = [
        row(),
        row(implementation=FA3, samples_ms=[5.0, 5.1, 4.9, 5.0]),
        row(implementation=TORCH, status="unsupported", message="no wheel", **NO_TIME),
        row(seq_lens=EQUAL, samples_ms=[2.0] * 4, settling={"seconds": 6.0, "shift": 0.1, "settled": False}),
    ]
    kept(RecordStore(tmp_path / "h200", "varlen", varlen.ROWS), [VarlenRow(**one) for one in rows])
    done = kperf("varlen", "--results", tmp_path, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "256 tokens, 4 heads of q and 2 of k and v, bfloat16; recorded on NVIDIA H200, 2026-01-02" in done.stdout
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    work = (5**2 + 130**2 + 121**2) / (4 * 64**2)
    assert cells[0][:6] == ["few: 3 of 5 to 130", "full", "Improved+", "4.000", "0", "1.250 x"]
    assert cells[0][7:] == [f"{work * 2 / 4:.3f}", "2.0e-03"]
    assert cells[1][2:6] == ["FA3", "5.000", "0", "-"]
    assert cells[3][0] == "4 x 64"
    assert "torch's varlen_attn has no time for few: 3 of 5 to 130 (full): no wheel" in done.stdout
    assert "4 x 64 (full): the clock had not settled when the rounds began" in done.stdout


def test_without_a_record_it_says_what_records_it(tmp_path):
    done = kperf("varlen", "--results", tmp_path)
    assert done.returncode == 2
    assert f"nothing is recorded of `make varlen` in {tmp_path} yet" in done.stderr
    with pytest.raises(UsageError):
        varlen.run(WholeConsole(file=io.StringIO()), tmp_path, rounds=16, require_gpu=True)


@pytest.mark.gpu
def test_on_a_gpu_every_implementation_is_right_and_timed(tmp_path):
    done = kperf("varlen", "--results", tmp_path, "--rounds", 10, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*/varlen.jsonl")
    rows = RecordStore(path.parent, "varlen", varlen.ROWS).points()
    assert [row.status for row in rows] == ["ok"] * len(CASES) * 2 * 7
