"""`kperf diff`: the numbers of both timelines, what changed, Markdown, and the exit status for CI."""

import pytest

from kperf.record.store import RECORDED
from kperf.report.diff import rows
from kperf.trace.analyze.recorded import read_timeline
from tests.command import kperf

GEMM, SOFTMAX = (RECORDED / "h200" / "examples" / f"{name}.timeline.json" for name in ("gemm_tma", "softmax"))


@pytest.fixture
def slower(tmp_path):
    """The recorded GEMM, 25 % slower and with 8 registers fewer."""
    before = read_timeline(GEMM)
    overhead = before.overhead.model_copy(update={"original_ms": before.overhead.launch_ms * 1.25})
    original = before.resources.original.model_copy(update={"registers": before.resources.original.registers - 8})
    resources = before.resources.model_copy(update={"original": original})
    use = before.mma_use.model_copy(update={"sm": 0.5})
    path = tmp_path / "slower.timeline.json"
    changed = {"overhead": overhead, "resources": resources, "mma_use": use, "label": "a|b"}
    path.write_text(before.model_copy(update=changed).model_dump_json())
    return path


def test_facts_stand_side_by_side_with_what_changed(slower):
    before, after = read_timeline(GEMM), read_timeline(slower)
    found = {name: values for name, *values in rows([before, after], change=True)}
    one = before.overhead.launch_ms
    assert found["time of a launch, ms"] == [f"{one:.4f}", f"{1.25 * one:.4f}", "+25.0%"]
    registers = before.resources.original.registers
    assert found["registers a thread"] == [str(registers), str(registers - 8), f"{-8 / registers:+.1%}"]
    points = 100 * (0.5 - before.mma_use.sm)
    assert found["tensor cores of an SM busy"] == [f"{before.mma_use.sm:.1%}", "50.0%", f"{points:+.1f} points"]
    assert found["SM clock, MHz"][2] == ""
    assert "cycles of a CTA" not in found
    idle = [region for region in before.regions if region.per_iteration is not None and region.per_iteration < 0.5]
    assert idle
    assert not any(f"{one.warp_group}: {one.name}, cycles of an iteration" in found for one in idle)
    region = next(region for region in before.regions if region.per_iteration)
    cycles = f"{region.per_iteration:,.0f}"
    assert found[f"{region.warp_group}: {region.name}, cycles of an iteration"] == [cycles, cycles, ""]


def test_what_one_kernel_lacks_is_a_dash():
    found = {name: values for name, *values in rows([read_timeline(GEMM), read_timeline(SOFTMAX)], change=True)}
    assert found["kernel"][:2] == [read_timeline(GEMM).label, read_timeline(SOFTMAX).label]
    assert found["tensor cores of an SM busy"][1:] == ["-", ""]
    assert not {"FMA units of an SM busy", "findings"} & set(found)


def test_markdown_is_a_table_whatever_a_kernel_is_called(slower):
    done = kperf("diff", GEMM, slower, "--markdown")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:2] == ["| fact | before | after | change |", "| --- | ---: | ---: | ---: |"]
    assert all(line.replace(r"\|", "").count("|") == 5 for line in lines)
    assert r"a\|b" in lines[2]


def test_the_exit_status_is_for_ci(slower, tmp_path):
    assert kperf("diff", GEMM, slower).returncode == 0
    assert "+25.0%" in kperf("diff", GEMM, slower).stdout
    assert kperf("diff", GEMM, slower, "--fail-if-slower", 26).returncode == 0
    done = kperf("diff", GEMM, slower, "--fail-if-slower", 24)
    assert done.returncode == 1
    assert "25.0% longer, and 24 % are allowed" in done.stderr
    assert kperf("diff", slower, GEMM, "--fail-if-slower", 0).returncode == 0
    done = kperf("diff", GEMM, tmp_path / "none.json")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "none.json is missing" in done.stderr


def test_of_three_kernels_each_has_a_column_and_nothing_is_called_a_change(slower):
    timelines = [read_timeline(path) for path in (GEMM, SOFTMAX, slower)]
    found = {name: values for name, *values in rows(timelines, change=False)}
    assert found["time of a launch, ms"] == [f"{one.overhead.launch_ms:.4f}" for one in timelines]
    assert found["tensor cores of an SM busy"] == [f"{timelines[0].mma_use.sm:.1%}", "-", "50.0%"]
    assert {len(values) for values in found.values()} == {3}
