"""`make disturbance`: scripts traced both ways on a GPU that is not there, and the sentences on the rows."""

import statistics
import sys
from pathlib import Path

import pytest

from kperf.errors import UsageError
from kperf.paper import disturbance, examples
from kperf.paper.disturbance import ROWS, Work
from kperf.record.store import RecordStore
from tests.conftest import kept

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"run": "r", "environment": "e", "recorded_at": "2026-11-23T00:00:00Z"}

SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def plus(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

x = torch.zeros(1 << 20)
for _ in range(14): plus[(1024,)](x, x, x, 1 << 20, 1024)
"""


def made(**changed):
    resources = {"registers": 40, "spilled_bytes": 0, "shared_bytes": 0, "occupancy": 6}
    fields = {"kernel": "norm", "origin": "example", "way": "all", "original_ms": 2.0, "same_order": False}
    fields |= {"instrumented_ms": 2.4, "ratio": 1.2, "ctas": 1024, "recorded": 1024, "why_all": "", "confidence": "low"}
    fields |= {"original": resources, "instrumented": resources | {"registers": 32, "occupancy": 8}}
    fields |= {"original_samples_ms": [2.0, 1.0, 4.0], "instrumented_samples_ms": [3.0, 2.4, 1.0]}
    return ROWS.validate_python(COMMON | fields | changed)


def test_a_script_is_traced_both_ways_and_a_row_kept_of_each(tmp_path, monkeypatch, console, in_a_fork, h200):
    monkeypatch.setattr(examples, "KPERF", (*in_a_fork, "-m", "tests.trace.capture.fake_gpu"))
    monkeypatch.setattr(disturbance, "EXAMPLES", ())
    (tmp_path / "package.py").write_text(SCRIPT)
    disturbance.run(console, tmp_path / "results", [tmp_path / "package.py"], require_gpu=True)
    rows = RecordStore(tmp_path / "results" / "h200", "disturbance", ROWS).points()
    assert [(row.kernel, row.origin, row.way) for row in rows] == [
        ("plus", "package", "all"), ("plus", "package", "sampled")
    ]  # fmt: skip
    assert [(row.recorded, row.ctas) for row in rows] == [(1024, 1024), (60, 1024)]
    for row in rows:
        assert len(row.original_samples_ms) == len(row.instrumented_samples_ms) == 5
        assert row.original_ms == statistics.median(row.original_samples_ms)
        assert row.instrumented_ms == statistics.median(row.instrumented_samples_ms)
        assert row.ratio == row.instrumented_ms / row.original_ms
    assert all(row.same_order and row.original.occupancy == row.instrumented.occupancy == 16 for row in rows)
    assert "60 of 1024" in console.export_text()


def test_a_script_that_fails_or_hangs_is_said_to_and_the_others_go_on(tmp_path, monkeypatch, console):
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(examples, "KPERF", (sys.executable, "-c", "import sys; sys.exit('no such thing')"))
    assert not list(disturbance.measure(console, [Work("package", tmp_path / "broken.py")], COMMON))
    monkeypatch.setattr(examples, "KPERF", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(disturbance, "_LIMIT_S", 0.1)
    assert not list(disturbance.measure(console, [Work("package", tmp_path / "broken.py")], COMMON))
    said = console.export_text()
    for way in ("all", "sampled"):
        assert f"broken.py, {way} CTAs: exit status 1: no such thing" in said
        assert f"broken.py, {way} CTAs: it took more than 0.1 s" in said


def test_the_next_processes_start_while_one_has_the_gpu_and_none_is_left(tmp_path, monkeypatch, console):
    program = tmp_path / "kperf.py"
    program.write_text(
        "import os, sys, time\n"
        "open(f'{os.getpid()}', 'x')\n"
        "while sum(map(str.isdigit, os.listdir())) < 3: time.sleep(0.01)\n"
        "if 'all' in sys.argv and sys.argv[-1].endswith('a.py'): sys.exit('all three are there')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(examples, "KPERF", (sys.executable, str(program)))
    monkeypatch.setattr(disturbance.child.os, "cpu_count", lambda: 8)
    works = [Work("package", tmp_path / f"{name}.py") for name in "abc"]
    with pytest.raises(KeyboardInterrupt):
        list(disturbance.measure(Interrupted(), works, COMMON))
    begun = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(begun) == 3
    assert not [process for process in begun if Path(f"/proc/{process}").exists()]


class Interrupted:
    """A console on which somebody presses Ctrl-C at the first line."""

    def print(self, line):
        assert line == "a.py, all CTAs: exit status 1: all three are there"
        raise KeyboardInterrupt


def test_costs_are_of_medians_and_held_against_the_goals(console):
    rows = [
        made(),
        made(kernel="gemm", instrumented_ms=1.9, ratio=0.95),
        made(way="sampled", instrumented_ms=2.06, ratio=1.03, recorded=60),
        made(kernel="gemm", way="sampled", instrumented_ms=2.0, ratio=1.0, why_all="its CTAs come in clusters"),
        made(kernel="sum", instrumented_ms=2.06, ratio=1.03),
        made(kernel="sum", way="sampled", instrumented_ms=2.0, ratio=1.0, recorded=60),
    ]
    assert [row.cost for row in rows] == pytest.approx([0.2, -0.05, 0.03, 0.0, 0.03, 0.0])
    assert disturbance.sentences(rows) == [
        "By the measured times, --ctas auto would choose events in only some CTAs for 2 of 3 kernels, and events in "
        "all CTAs for the other 1. With the events that --ctas auto would choose, the time of a launch changes by 2.7% "
        "on average over the 3 kernels, by 3.0% in the median and by 5.0% at worst (gemm).",
        "With events in all CTAs, the time of a launch changes by 9.3% on average over 3 kernels, 5.0% in the median "
        "and 20.0% at worst (norm). Our goals with events in all CTAs, 5% on average and 15% at worst, are not met.",
        "With events in only some CTAs (or in all CTAs, where only some CTAs are not possible), the time of a launch "
        "changes by 1.0% on average over 3 kernels, 0.0% in the median and 3.0% at worst (norm). Our goals with "
        "events in only some CTAs, 5% on average and 15% at worst, are met.",
        "Without norm, the time of a launch changes by 4.0% on average with events in all CTAs and by 0.0% on average "
        "with events in only some CTAs. With events norm has 32 registers and spills 0 bytes; without events norm has "
        "40 registers and spills 0 bytes.",
        "In the 2 kernels of which kperf can let only some CTAs write events, the time of a launch changes by 11.5% on "
        "average and by 20.0% at worst with events in all CTAs, and by 1.5% on average and by 3.0% at worst with "
        "events in only some CTAs.",
        "Each change of a launch's time compares the median time of 3 launches with events to the median time of as "
        "many launches without events.",
        "kperf measured 1 kernel in two runs with events in all CTAs. The time of a launch with events, divided by the "
        "time without events, differs between the two runs of a kernel by 5.3% in the median and 5.3% at most.",
        "Some kernels are faster with events, because the compiler gives a kernel with events other registers: gemm "
        "(-5.0% with events in all CTAs, 32 registers instead of 40).",
    ]
    console.print(disturbance.table(rows, "measured"))
    line = next(line for line in console.export_text().splitlines() if "60 of 1024" in line)
    assert [part.strip() for part in line.strip("│ ").split("│")] == [
        "norm", "60 of 1024", "2.0000", "+3.0%", "40 -> 32", "0 -> 0", "6 -> 8", "another"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("every", "of_sample", "reads"),
    [
        ({"instrumented_ms": 2.4, "ratio": 1.2}, {}, 1),
        ({"instrumented_ms": 2.1, "ratio": 1.05}, {}, 0),
        ({"instrumented_ms": 2.102, "ratio": 1.051}, {}, 1),
        ({"instrumented_ms": 2.1, "ratio": 1.05, "same_order": False}, {}, 1),
        ({"instrumented_ms": 2.1, "ratio": 1.05, "instrumented": {"occupancy": 5}}, {}, 1),
        ({"instrumented_ms": 2.4, "ratio": 1.2}, {"why_all": "its CTAs come in clusters"}, 0),
        ({"instrumented_ms": 2.4, "ratio": 1.2}, {"instrumented_ms": 2.6, "ratio": 1.3}, 0),
    ],
)
def test_what_auto_reads_follows_from_both_rows(every, of_sample, reads):
    used = {"registers": 40, "spilled_bytes": 0, "shared_bytes": 0, "occupancy": 6}
    changed = {"same_order": True} | every | {"instrumented": used | every.get("instrumented", {})}
    sample = {"way": "sampled", "instrumented_ms": 2.02, "ratio": 1.01, "recorded": 60} | of_sample
    (line,) = [line for line in disturbance.sentences([made(**changed), made(**sample)]) if "--ctas auto" in line]
    assert f"would choose events in only some CTAs for {reads} of 1 kernels" in line
    assert f"and by {(0.01 if reads else changed['ratio'] - 1):.1%} at worst" in line


def test_kernels_of_one_name_from_two_scripts_are_two(console):
    rows = [made(origin="liger"), made(origin="unsloth", instrumented_ms=1.7, ratio=0.85)]
    assert disturbance.sentences(rows) == [
        "With events in all CTAs, the time of a launch changes by 17.5% on average over 2 kernels, 17.5% in the median "
        "and 20.0% at worst (norm). Our goals with events in all CTAs, 5% on average and 15% at worst, are not met.",
        "Each change of a launch's time compares the median time of 3 launches with events to the median time of as "
        "many launches without events.",
        "Some kernels are faster with events, because the compiler gives a kernel with events other registers: norm "
        "(-15.0% with events in all CTAs, 32 registers instead of 40).",
    ]


def test_the_page_has_a_row_a_kernel_with_both_ways(tmp_path):
    rows = [
        made(origin="liger", kernel="rope"),
        made(kernel="gemm", instrumented_ms=1.9, ratio=0.95, confidence="high"),
        made(kernel="gemm", way="sampled", instrumented_ms=2.02, ratio=1.01, recorded=60, confidence="medium"),
        made(origin="liger", kernel="rope", way="sampled", why_all="its CTAs come in clusters", confidence="low"),
    ]
    kept(RecordStore(tmp_path / "h200", "disturbance", disturbance.ROWS), rows)
    table, _, others = (
        disturbance.markdown(tmp_path / "h200").split("|---|---|---|---|---|---|---|\n")[1].partition("\n\n")
    )
    changed = "8 CTAs fit on an SM instead of 6, the order of instructions"
    assert table.splitlines() == [
        f"| `gemm` | 2.0000 | -5.0% | {changed} | +1.0% | high | medium |",
        f"| `rope` (liger) | 2.0000 | +20.0% | {changed} | not possible | low | low |",
    ]
    assert others == "- Events in only some CTAs of rope are not possible, because its CTAs come in clusters."


@pytest.mark.parametrize(
    ("occupancy", "spilled", "same_order", "ratio", "changes"),
    [
        (6, 16, True, 1.051, "nothing"),  # 16 bytes are the events' counter
        (5, 17, True, 1.2, "5 CTAs fit on an SM instead of 6, a thread spills 17 bytes more"),
        (6, 0, False, 0.9, "the order of instructions"),
    ],
)
def test_what_events_change_is_said_of_each_kernel(occupancy, spilled, same_order, ratio, changes):
    resources = {"registers": 40, "spilled_bytes": spilled, "shared_bytes": 0, "occupancy": occupancy}
    assert disturbance._changes(made(instrumented=resources, same_order=same_order, ratio=ratio)) == changes
    assert disturbance._changes(None) == "not measured"


def test_of_each_kernel_the_newest_run_counts_that_traced_it_both_ways(tmp_path):
    runs = [
        ("first", "2026-11-22", {("gemm", "all"): 1.1, ("gemm", "sampled"): 1.2, ("norm", "all"): 1.3}),
        ("second", "2026-11-23", {("gemm", "all"): 1.01, ("gemm", "sampled"): 1.02, ("rope", "sampled"): 1.4}),
        ("cut off", "2026-11-24", {("gemm", "sampled"): 1.5, ("norm", "all"): 1.25}),
    ]
    rows = [
        made(run=run, recorded_at=f"{day}T00:00:00Z", kernel=kernel, way=way, ratio=ratio)
        for run, day, found in runs
        for (kernel, way), ratio in found.items()
    ]
    newest = disturbance.newest_of_each([*rows, made(run="first", origin="other", kernel="gemm", ratio=1.9)])
    assert {(one.kernel, one.way, one.ratio) for one in newest if one.origin == "example"} == {
        ("gemm", "all", 1.01), ("gemm", "sampled", 1.02), ("norm", "all", 1.25), ("rope", "sampled", 1.4)
    }  # fmt: skip
    assert [one.ratio for one in newest if one.origin == "other"] == [1.9]
    kept(RecordStore(tmp_path / "h200", "disturbance", disturbance.ROWS), rows)
    assert disturbance.markdown(tmp_path / "h200").startswith("Recorded on NVIDIA H200, 2026-11-23 to 2026-11-24.")


def test_of_kernels_that_fit_a_pattern_the_slowest_is_the_examples(tmp_path):
    from types import SimpleNamespace as Some

    def timeline(name, ms):
        return Some(kernel=name, overhead=Some(launch_ms=ms))

    timelines = [timeline("gemm_a", 1.0), timeline("gemm_b", 3.0), timeline("norm", 9.0)]
    named = disturbance._named(Work("example", tmp_path, (), (("gemm", "gemm_*"), ("other", "o*"))), timelines)
    assert [(name, one.kernel) for name, one in named] == [("gemm", "gemm_b")]
    assert [name for name, _ in disturbance._named(Work("package", tmp_path), timelines)] == [
        "gemm_a",
        "gemm_b",
        "norm",
    ]


def test_without_a_gpu_and_a_record_one_sentence_says_so(tmp_path, no_gpu, console):
    with pytest.raises(UsageError, match="nothing is recorded of `make disturbance`"):
        disturbance.run(console, tmp_path, [], require_gpu=False)
    with pytest.raises(UsageError, match=r"there is no script .*missing\.py"):
        disturbance.run(console, tmp_path, [tmp_path / "missing.py"], require_gpu=False)
