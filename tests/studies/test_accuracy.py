import io
import re
import subprocess
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kperf.compat.triton.tools import binary_tool
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.ir.compile import compile_kernel, sass
from kperf.plots import accuracy as plot
from kperf.record import device
from kperf.record.store import RECORDED, RecordStore
from kperf.studies import accuracy, cupti, kernels, known, models
from kperf.studies.accuracy import RULES, LaunchRow, RegionRow
from kperf.studies.records import measured_or_recorded, newest
from kperf.trace.capture.instrumented import make_instrumented
from tests.conftest import COMMON, environment
from tests.pages import PAGES
from tests.trace.capture import fake_gpu

EX2 = {"x_ptr": "*fp32", "out_ptr": "*fp32", "iterations": "i32", "WORK": "constexpr"}
FMA = {"x_ptr": "*fp32", "a_ptr": "*fp32", "b_ptr": "*fp32"} | EX2
SPIN = EX2 | {"x_ptr": "*i32", "out_ptr": "*i32"}
PRODUCTS = {"a_ptr": "*bf16", "b_ptr": "*bf16", "out_ptr": "*fp32", "iterations": "i32", "CALLS": "constexpr"}


def region(instruction, known_cycles, measured, steps=1):
    return RegionRow(
        **COMMON, instruction=instruction, steps=steps, known_cycles=known_cycles, measured_cycles=measured,
        p5=measured, p95=measured, samples=9,
    )  # fmt: skip


def instrumented(kernel, signature, constexprs):
    compiled = compile_kernel(kernel, signature, constexprs)
    return make_instrumented(compiled, 132, fake_gpu.INSTRUMENTED, memory=1 << 30, regions=("*",), rules=RULES)


def instructions(kernel, tmp_path):
    """(opcode, cycles to stall) of each instruction; the assembler's control field says how long the next one waits."""
    path = tmp_path / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    dump = subprocess.run([binary_tool("cuobjdump"), "-sass", path], capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]+);[^\n]*\n\s+/\* (0x[0-9a-f]+) \*/", dump)
    return [(re.sub(r"^@!?U?P\w+ ", "", text).split()[0], int(high, 16) >> 41 & 0xF) for text, high in lines]


def between_clocks(found):
    """The stretches of code between two readings of the clock."""
    marks = [place for place, (opcode, _) in enumerate(found) if opcode == "CS2R.32"]
    return [found[a + 1 : b] for a, b in pairwise(marks)]


@pytest.mark.kernels
@pytest.mark.parametrize("steps", [16, 1024])
def test_the_region_holds_every_multiply_add_and_the_assembler_lets_each_wait_4_cycles(steps, tmp_path):
    made = instrumented(kernels.fma_chain, FMA, {"WORK": known.fma_ptx(steps)})
    stretches = [s for s in between_clocks(instructions(made.kernel, tmp_path)) if any(op == "FFMA" for op, _ in s)]
    assert stretches
    for stretch in stretches:
        assert sum(op == "FFMA" for op, _ in stretch) == steps
        cycles = sum(stall for _, stall in stretch)
        assert 4 * steps <= cycles + 4 <= 4 * steps + 20  # the last need not be waited for


@pytest.mark.kernels
def test_the_region_holds_every_exponential_and_nothing_else_that_computes(tmp_path):
    made = instrumented(kernels.ex2_chains, EX2, {"WORK": known.ex2_ptx(128)})
    stretches = [s for s in between_clocks(instructions(made.kernel, tmp_path)) if any(op == "MUFU.EX2" for op, _ in s)]
    assert stretches
    for stretch in stretches:
        assert sum(op == "MUFU.EX2" for op, _ in stretch) == 128
        assert not any(op.startswith(("FADD", "FMUL", "FFMA")) for op, _ in stretch)


@pytest.mark.kernels
def test_an_iteration_of_mmas_holds_them_all_and_spin_reads_the_clock():
    made = instrumented(kernels.products, PRODUCTS, {"CALLS": 2})
    assert sass(made.kernel).count("HGMMA") == 8
    assert made.resource_usage.occupancy == made.original_usage.occupancy
    spin = instrumented(kernels.spin, SPIN, {"WORK": known.spin_ptx(1000)})
    assert "known work" in [scope.name for scope in spin.program.scopes]


def rightly(_traced, arguments):
    """What each known kernel writes, for the GPU that is not there."""
    if len(arguments) == 6:
        arguments[3].fill_(2.0)
    elif isinstance(arguments[3], str):
        floats = arguments[1].dtype is torch.float32
        arguments[1].fill_(0.6411857 if floats else 1100 * accuracy.ITERATIONS)
    else:
        arguments[2].fill_(0.25 * 16 * 4 * arguments[4] * arguments[3])


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    fake_gpu.install(tmp_path, monkeypatch)
    monkeypatch.setattr(device, "sm_count", lambda: 2)
    monkeypatch.setattr(fake_gpu, "WRITES", [rightly])
    monkeypatch.setattr(
        accuracy, "KNOWN",
        [replace(k, steps={"fma": (16,), "ex2": (64,), "wgmma": (4,), "spin": (1024,)}[k.instruction])
         for k in known.KNOWN],
    )  # fmt: skip
    names = [k.kernel for k in known.KNOWN]
    monkeypatch.setattr(
        cupti, "kernel_times", lambda call: call() or [(name, 12.5) for name in [*names, "spin_kernel"]]
    )


def test_each_kernel_is_traced_and_its_region_read(gpu):
    rows = list(accuracy.measure(COMMON, fake_gpu.FakeGpu()))
    regions = {row.instruction: row for row in rows if isinstance(row, RegionRow)}
    assert {k: (r.steps, r.known_cycles) for k, r in regions.items()} == {
        "fma": (16, 64), "ex2": (64, 512), "wgmma": (4, 512), "spin": (1024, 1100),
    }  # fmt: skip
    assert regions["fma"].measured_cycles == fake_gpu.STEP  # a pair of records lies a step apart there
    assert regions["wgmma"].measured_cycles == 2 * fake_gpu.STEP
    assert [row.cupti_us for row in rows if isinstance(row, LaunchRow)] == [12.5] * 4


def test_a_kernel_that_computes_something_else_has_no_row(gpu, monkeypatch):
    monkeypatch.setattr(fake_gpu, "WRITES", [lambda traced, arguments: arguments[3].fill_(2.1)])
    with pytest.raises(MeasurementError, match="known fma is off by"):
        list(accuracy.measure(COMMON, fake_gpu.FakeGpu()))


def test_a_launch_that_cupti_missed_is_an_error(gpu, monkeypatch):
    monkeypatch.setattr(cupti, "kernel_times", lambda call: call() or [])
    with pytest.raises(MeasurementError, match="CUPTI saw 0 launches of fma_chain"):
        list(accuracy.measure(COMMON, fake_gpu.FakeGpu()))


@given(st.floats(0.5, 2), st.floats(-50, 100))
def test_the_line_through_regions_is_found(slope, offset):
    rows = [region("fma", known, slope * known + offset) for known in (256.0, 1024.0, 4096.0)]
    (line,) = accuracy.lines(rows)
    assert line.slope == pytest.approx(slope, abs=1e-9)
    assert line.offset == pytest.approx(offset, abs=1e-6)


def test_the_page_has_the_slopes_and_offsets_of_the_record():
    rows = RecordStore(RECORDED / "h200", "accuracy", accuracy.ROWS).points()
    rows = [row for row in rows if row.run == rows[-1].run]
    page = PAGES["docs/accuracy.md"]
    names = {"ex2": "exponentials", "wgmma": "wgmma", "spin": "a spin", "fma": "dependent multiply-adds"}
    for line in accuracy.lines(rows):
        begin = f"| {names[line.instruction]}"
        (cells,) = [shown.split(" | ") for shown in page.splitlines() if shown.startswith(begin)]
        assert cells[2].startswith(f"{100 * abs(line.error):.1f} %")
        assert cells[3] == f"{line.offset:+.0f} |"
    (short,) = [row for row in rows if isinstance(row, RegionRow) and (row.instruction, row.steps) == ("wgmma", 4)]
    assert f"{short.known_cycles:.0f} cycles of wgmma are measured as {short.measured_cycles:.0f} cycles." in page


def test_what_misses_its_goal_is_named():
    rows = [region("fma", known, 1.02 * known + 30) for known in (256.0, 1024.0)]
    rows += [region("spin", known, known + 30) for known in (256.0, 1024.0)]
    rows += [LaunchRow(**COMMON, instruction="fma", regions_us=99.5, span_us=99.6, cupti_us=100)]
    slopes, launches = accuracy.sentences(rows, [])
    assert "all but fma within 1%" in slopes
    assert "-0.5% at worst (fma): all of them within 1%" in launches


def test_models_are_held_against_iteration_times_that_they_were_not_given():
    found = {(p.kernel, p.model): p for p in models.predictions(RECORDED / "h200")}
    stages = found["improved", "stages"]
    assert stages.source == "stage times of vanilla"
    assert abs(stages.error) < 0.03
    assert found["improved", "bound"].predicted == 2048
    assert found["gemm_1_stage", "graph"].predicted != found["gemm_1_stage", "graph"].measured
    assert len([p for p in found.values() if p.model == "graph"]) >= 12


def run(results):
    console = WholeConsole(width=160, file=io.StringIO(), record=True)
    accuracy.run(console, results, plot.draw, require_gpu=False)
    return console.export_text()


def test_without_a_record_the_models_are_shown_and_what_is_missing_is_said(tmp_path, no_gpu):
    (tmp_path / "h200").mkdir()
    for folder in ("fig11", "examples"):
        (tmp_path / "h200" / folder).symlink_to(RECORDED / "h200" / folder)
    text = run(tmp_path)
    assert "nothing is recorded of `make accuracy`" in text
    assert "stage times of vanilla" in text
    assert "199,381" in text
    assert "recorded on NVIDIA H200" in text
    assert (tmp_path / "h200/accuracy.png").stat().st_size > 10_000
    (tmp_path / "h200/accuracy.jsonl").write_text('{"schema_version": 1}\n')
    with pytest.raises(UsageError, match="not a recorded point"):
        run(tmp_path)


def test_a_recorded_run_is_shown_with_where_it_comes_from(tmp_path, monkeypatch, unrendered):
    monkeypatch.setattr(device, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(device, "why_static", lambda: None)
    monkeypatch.setattr(device, "environment", environment)
    monkeypatch.setattr(device, "locked", lambda *_: pytest.fail("one lock a GPU"), raising=True)
    monkeypatch.setattr(device, "exclusive", lambda: open(tmp_path / "lock", "w"))  # noqa: SIM115, PTH123
    monkeypatch.setattr(device, "now", lambda: COMMON["recorded_at"])
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200/fig11").symlink_to(RECORDED / "h200/fig11")

    def measured(common):
        for cycles in (256.0, 1024.0):
            yield region("fma", cycles, cycles + 30).model_copy(update=common)
        yield LaunchRow(**common, instruction="fma", regions_us=99.5, span_us=99.6, cupti_us=100)

    monkeypatch.setattr(accuracy, "measure", measured)
    assert "measured on NVIDIA H200, 2026-01-02" in run(tmp_path)
    monkeypatch.setattr(device, "why_static", lambda: "there is no GPU")
    text = run(tmp_path)
    assert "recorded on NVIDIA H200, 2026-01-02" in text
    assert "30.0" in text


def title(figure):
    return " ".join(figure.legends[0].get_title().get_text().split())


def test_the_picture_says_how_far_off_regions_and_replays_are():
    rows = [region("fma", known, 1.02 * known + 30) for known in (256.0, 1024.0)]
    rows += [region("spin", known, known + 30) for known in (256.0, 1024.0)]
    replays = [models.Prediction(str(cycles), "graph", "", cycles, 100) for cycles in (101, 96, 98)]
    of_regions = "Regions grow as their known cycles do, within 2.0% (fma)"
    of_replays = "Replays give the iteration time of 2 of 3 kernels within 3%"
    assert title(plot.figure(rows, replays, "recorded")) == f"{of_regions} {of_replays} recorded"
    assert title(plot.figure([], replays, "recorded")) == f"{of_replays} recorded"


def test_each_region_is_drawn_at_its_known_cycles_as_far_off_as_it_was_measured():
    rows = [
        row for row in RecordStore(RECORDED / "h200", "accuracy", accuracy.ROWS).points() if isinstance(row, RegionRow)
    ]
    made = plot.figure(rows, [models.Prediction("gemm", "graph", "", 101, 100)], "recorded")
    wanted = sorted((row.known_cycles, row.measured_cycles - row.known_cycles) for row in rows)
    drawn = [tuple(place) for bars in made.axes[0].containers for place in bars.lines[0].get_xydata()]
    assert np.array(sorted(drawn)) == pytest.approx(np.array(wanted))


def test_a_killed_run_hides_no_whole_one():
    whole = [region("fma", 1.0, 1.0), region("ex2", 1.0, 1.0)]
    cut = [region("fma", 2.0, 2.0).model_copy(update={"run": "cut"})]
    assert newest([*whole, *cut]) == whole
    assert newest([]) == []


@given(st.binary(max_size=200))
def test_no_file_of_any_bytes_is_taken_for_a_record(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "h200")
        path.mkdir()
        (path / "accuracy.jsonl").write_bytes(data)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(device, "why_static", lambda: "there is no GPU")
            console = WholeConsole(file=io.StringIO())
            with pytest.raises(UsageError):
                measured_or_recorded(console, Path(folder), "accuracy", accuracy.ROWS, lambda _: iter(()))


def test_the_first_iteration_of_a_cta_is_left_out_and_lost_events_are_refused():
    class Events:
        scope = np.array([1, 1] * 6)
        is_start = np.array([True, False] * 6)
        warp = np.zeros(12, int)
        cta = np.repeat([0, 1], 6)
        cycle = np.array([0, 900, 1000, 1100, 1200, 1310, 0, 800, 1000, 1100, 1200, 1330])
        lost = 0

    class Launch:
        events = Events

        class program:  # noqa: N801
            kernel_name = "k"
            scopes = [type("Scope", (), {"name": "known work", "number": 1})]  # noqa: RUF012

    regions, iterations = accuracy.region_cycles(Launch, "known work")
    assert regions.tolist() == [100, 110, 100, 130]
    assert iterations.tolist() == [200, 210, 300, 230]
    Events.lost = 1
    with pytest.raises(UsageError, match="has not every known work"):
        accuracy.region_cycles(Launch, "known work")
