"""`make llama-block` on a GPU whose times are known: what is checked, timed in turn, recorded and told."""

import io
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.integrations import operator
from kperf.paper import llama_block
from kperf.paper.llama_block import COMPARED, OURS, TORCH, BlockRow
from kperf.record.store import DeviceStates, RecordStore
from kperf.studies.inductor_program import blocks
from kperf.studies.interleaved import WrongError, speedup
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.bench.fake_gpu import COLD_MS, interleaving
from tests.command import kperf
from tests.conftest import COMMON, STATE, kept

SIZES = {"batch": 1, "seq_len": 128, "heads": 2, "kv_heads": 1, "head_dim": 128, "hidden": 64}
FORWARD_MS = {TORCH: 5.0, "fa3": 4.5, OURS: 4.0}
BACKWARD_MS = 10.0


@pytest.fixture
def block(monkeypatch, attending_gpu):  # noqa: F811
    """A small block on the CPU, whose calls take `FORWARD_MS` of a fake GPU, with a backward pass 10 ms more.

    What is asked of torch.compile is in `compiled`; it compiles where `compiles` is set, which takes a second a block.
    """
    gpu = interleaving(monkeypatch)
    compile_it, gpu.compiled, gpu.compiles = torch.compile, [], False

    def compiled(module, **options):
        gpu.compiled.append(options)
        return compile_it(module, backend="aot_eager", **options) if gpu.compiles else module

    monkeypatch.setattr(torch, "compile", compiled)
    real = blocks()
    on_the_cpu = SimpleNamespace(
        SIZES={"llama": SIZES}, sdpa=real.sdpa, make=lambda name, _, dtype: real.make(name, "cpu", dtype, **SIZES)
    )
    monkeypatch.setattr(llama_block, "blocks", lambda: on_the_cpu)
    monkeypatch.setattr(llama_block, "COMPARED", (TORCH, OURS))
    plain, keys = llama_block._call, iter([None, TORCH, OURS] * 2)

    def timed(compiled, inputs, attend, d_output=None):
        call, key = plain(compiled, inputs, attend, d_output), next(keys)
        made = call()
        if key is None:  # the reference
            return lambda: made
        out = tuple(tensor.clone() for tensor in made)

        def write():
            for to, tensor in zip(out, made, strict=True):
                to.copy_(tensor)

        launch = gpu.kernel(key, FORWARD_MS[key] + (BACKWARD_MS if d_output is not None else 0.0), write)
        return lambda: launch() or out

    monkeypatch.setattr(llama_block, "_call", timed)
    operator._launcher.cache_clear()
    yield gpu
    operator._launcher.cache_clear()
    torch._dynamo.reset()


def test_both_passes_are_checked_and_timed_in_turn(block, attending_gpu):  # noqa: F811
    block.compiles = True
    rows = list(llama_block.measure(COMMON, rounds=16))
    assert [(row.implementation, row.backward, row.status) for row in rows] == [
        (key, backward, "ok") for backward in (False, True) for key in (TORCH, OURS)
    ]
    assert {launch.name for launch in attending_gpu} == {"attn_fwd_views"}
    assert block.compiled == [{"fullgraph": True}] * 4
    for row in rows:
        milliseconds = FORWARD_MS[row.implementation] + BACKWARD_MS * row.backward + COLD_MS
        assert row.samples_ms == pytest.approx([milliseconds] * len(row.samples_ms))
        assert len(row.samples_ms) == (32 if row.backward else 16)
        assert 0 < row.error < 5e-3
        assert (row.gradient_error is not None) == row.backward
        assert row.settling.settled
        assert row.idle_share == pytest.approx(0.0, abs=0.01)
        assert row.sizes == SIZES
    ours, theirs = rows[1], rows[0]
    assert all({a, b} == {0, 1} for a, b in zip(ours.places, theirs.places, strict=True))
    ratio, low, high = speedup(ours, theirs)
    assert ratio == pytest.approx((5 + COLD_MS) / (4 + COLD_MS))
    assert low < ratio < high < 1.01 * ratio


SPOILT = {"the output": lambda o: o * 1.5, "a gradient": lambda o: o.detach() + 0.97 * (o - o.detach())}


@pytest.mark.parametrize("what", SPOILT)
def test_a_block_that_is_wrong_has_no_time_and_fails_the_command(block, h200, monkeypatch, tmp_path, what):
    attend_with = llama_block.attend_with

    def spoilt(key):
        attend = attend_with(key)
        return attend if key == TORCH else lambda q, k, v: SPOILT[what](attend(q, k, v))

    monkeypatch.setattr(llama_block, "attend_with", spoilt)
    found = {(row.implementation, row.backward): row for row in measured(tmp_path)}
    assert found[OURS, True].status == "wrong"
    assert found[OURS, True].message.startswith(f"{what} is off by ")
    assert found[TORCH, True].status == "ok"
    assert (found[OURS, False].status == "ok") == (what == "a gradient")


def measured(folder):
    """The rows that the command records, which it then refuses."""
    with pytest.raises(MeasurementError, match="the block with improved_plus"):
        llama_block.run(WholeConsole(file=io.StringIO()), folder, rounds=16, require_gpu=True)
    return RecordStore(folder / "h200", "llama-block", llama_block.ROWS).points()


def test_what_raises_or_falls_back_is_a_row_that_says_so(block, monkeypatch):
    monkeypatch.setattr(llama_block, "_falls_back", lambda key, _: "no wheel")
    first, ours = list(llama_block.measure(COMMON, rounds=16))[:2]
    assert (first.status, ours.status, ours.message) == ("ok", "unsupported", "no wheel")


def test_what_a_graph_does_not_write_is_wrong(block, monkeypatch):
    plain = llama_block._call

    def once(*given):
        call = plain(*given)
        first = call()
        return lambda: first

    monkeypatch.setattr(llama_block, "_call", once)
    assert {row.status for row in llama_block.measure(COMMON, rounds=16)} == {"wrong"}


def row(**changes):
    fields = {
        "sizes": SIZES, "implementation": OURS, "backward": False, "status": "ok", "error": 2e-3,
        "samples_ms": [4.0, 4.1, 3.9, 4.0], "places": [0, 1, 2, 0], "ceiling_ms": [1.5] * 4,
        "device_states": DeviceStates.of([STATE] * 4).model_dump(),
        "settling": {"seconds": 1.0, "shift": 0.001, "settled": False},
    }  # fmt: skip
    return {"schema_version": 2} | COMMON | fields | changes


NO_TIME = {"samples_ms": [], "places": [], "ceiling_ms": [], "device_states": None, "settling": None}


@pytest.mark.parametrize(
    "changes",
    [
        {"samples_ms": []},
        {"message": "why"},
        {"status": "failed"},
        {"status": "failed", **NO_TIME},
        {"error": None},
        {"error": -1.0},
        {"backward": True},
        {"gradient_error": 1e-3},
        {"places": [0]},
        {"samples_ms": [4.0, 4.1, 3.9, 0.0]},
        {"nosuch": 1},
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changes):
    with pytest.raises(ValidationError):
        BlockRow(**row(**changes))


def test_a_recorded_run_is_told(tmp_path):
    rows = [
        row(implementation=TORCH, samples_ms=[5.0, 5.1, 4.9, 5.0]),
        row(),
        row(implementation="fa3", status="unsupported", error=None, message="no wheel", **NO_TIME),
    ]
    kept(RecordStore(tmp_path / "h200", "llama-block", llama_block.ROWS), [BlockRow(**one) for one in rows])
    done = kperf("llama-block", "--results", tmp_path, COLUMNS="160")
    assert done.returncode == 0, done.stderr
    assert "recorded on NVIDIA H200, 2026-01-02" in done.stdout
    assert "1.250 x" in done.stdout
    assert "FA3, forward, has no time: no wheel" in done.stdout
    assert "the clock had not settled" in done.stdout


def test_without_a_record_it_says_what_records_it(tmp_path):
    done = kperf("llama-block", "--results", tmp_path)
    assert done.returncode == 2
    assert f"nothing is recorded of `make llama-block` in {tmp_path} yet" in done.stderr
    with pytest.raises(UsageError):
        llama_block.run(WholeConsole(file=io.StringIO()), tmp_path, rounds=16, require_gpu=True)


@pytest.mark.gpu
def test_on_a_gpu_every_block_is_right_and_timed(tmp_path):
    done = kperf("llama-block", "--results", tmp_path, "--rounds", 10, CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*/llama-block.jsonl")
    rows = RecordStore(path.parent, "llama-block", llama_block.ROWS).points()
    assert [row.status for row in rows] == ["ok"] * 2 * len(COMPARED)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_gradient_that_is_not_a_number_is_wrong_wherever_it_stands(place):
    exact = [torch.full((4,), 2.0) for _ in range(4)]
    output = [one * factor for one, factor in zip(exact, (1.001, 1.002, 1.004, 1.003), strict=True)]
    assert llama_block.checked(output, exact) == {
        "error": pytest.approx(0.001, rel=1e-3),
        "gradient_error": pytest.approx(0.004, rel=1e-3),
    }
    output[place] = torch.full((4,), float("nan"))
    with pytest.raises(WrongError, match="a gradient is off by nan"):
        llama_block.checked(output, exact)
