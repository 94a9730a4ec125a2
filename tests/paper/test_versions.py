"""What each Triton makes of the examples: rows of what was tried, aborts of a compiler too, and the page's tables."""

import json
import os
import re
from pathlib import Path

import pytest

from kperf.arch import SM_90A, SM_100A
from kperf.compat.triton import VERSION
from kperf.errors import UsageError
from kperf.paper import versions
from kperf.paper.examples import EXAMPLES, Script
from kperf.paper.readings import Reading
from kperf.paper.versions import Row, append, attempts, read, record, tables
from kperf.trace.capture.selfcheck import Attempt

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "results" / "versions.jsonl"
ADD = next(script for script in EXAMPLES if script.name == "vector_add.py")


def row(triton="3.6.0", target="sm_90a", kernel="gemm", stage="machine code", ok=True, message="8 events"):
    return Row(triton=triton, torch="2.11.0", target=target, kernel=kernel, stage=stage, ok=ok, message=message)


def test_a_kernel_compiles_with_its_events_for_another_target(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "EXAMPLES", [ADD])
    path = tmp_path / "versions.jsonl"
    record(path, [SM_100A])
    (made,) = read(path)
    assert (made.triton, made.target, made.kernel) == (VERSION, "sm_100a", "vector_add")
    assert (made.stage, made.ok) == ("machine code", True)
    assert made.message.startswith("8 events in machine code, 8 in the TTGIR")
    record(path, [SM_100A])  # is not tried again
    assert read(path) == [made]


def made(folder, source, *kernels):
    """A script of the examples' kind that does what a compiler would do to its process."""
    script = folder / "made.py"
    script.write_text(f"import os, time\n{source}\n")
    return Script(str(script), {name: name for name in kernels})


def test_a_compiler_that_ends_the_process_is_a_row_a_kernel(tmp_path):
    script = made(tmp_path, "os.write(2, b'LLVM ERROR: Cannot select: wgmma\\n'); os.abort()", "gemm", "norm")
    lost = Attempt("lowered", False, "LLVM ERROR: Cannot select: wgmma")
    assert attempts(script, SM_90A) == {"gemm": lost, "norm": lost}
    script = made(tmp_path, "os._exit(7)", "gemm")
    ended = Attempt("lowered", False, "the compiler's process ended with status 7")
    assert attempts(script, SM_90A) == {"gemm": ended}


def test_a_compiler_that_hangs_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(versions, "LIMIT_S", 0.2)
    tried = attempts(made(tmp_path, "time.sleep(60)", "gemm"), SM_90A)
    assert tried == {"gemm": Attempt("lowered", False, "it took more than 0.2 s")}


def test_each_kernel_is_tried_once():
    names = [name for script in versions.different(EXAMPLES) for name in script.kernels]
    assert {"gemm_1_stage", "gemm_tma", "attention_backward_kv", "flash_decoding_combine"} < set(names)
    assert {"gemm_133_tiles", "attention_causal", "mlp_norm"} & set(names) == set()


def test_what_a_compiler_raises_names_no_folder_of_the_machine(tmp_path, monkeypatch):
    refused = "raise RuntimeError('/home/somebody/triton/lib/Pass.cpp:12: cannot lower\\nmore')"
    monkeypatch.setattr(versions, "EXAMPLES", [made(tmp_path, refused, "gemm")])
    record(tmp_path / "v.jsonl", [SM_90A])
    (row,) = read(tmp_path / "v.jsonl")
    assert (row.stage, row.ok) == ("instrumented", False)
    assert row.message == "the kernel itself does not compile: RuntimeError: Pass.cpp:12: cannot lower"


def test_the_tables_say_run_only_for_what_ran():
    rows = [
        row(),
        row(stage="run", message="NVIDIA H200, 2026-01-02"),
        row(kernel="add"),
        row(target="sm_100a"),
        row(target="sm_100a", kernel="add", stage="lowered", ok=False, message="no | way"),
        row(triton="3.10.0", target="sm_80", ok=False, message="no"),
    ]
    lines = tables(rows).splitlines()
    assert lines[0] == "| target | Triton 3.6.0 | Triton 3.10.0 |"
    assert "| sm_90a | 1 kernel ran; 1 of 1 other kernels compile | not tried |" in lines
    assert "| sm_100a | 1 of 2 kernels compile | not tried |" in lines
    assert "| sm_80 | not tried | 0 of 1 kernels compile |" in lines
    assert r"| add | 3.6.0: sm_100a | no \| way |" in lines
    assert not any("8 events" in line for line in lines)


def test_a_page_keeps_what_stands_around_its_tables(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- versions -->\nold\n<!-- /versions -->\nafter\n")
    versions.main(["--page", str(page)])
    assert page.read_text() == f"before\n<!-- versions -->\n{tables(read(RECORDED))}\n<!-- /versions -->\nafter\n"


def test_a_page_without_the_marks_is_refused_and_left_alone(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n")
    with pytest.raises(SystemExit, match=r"^2$"):
        versions.main(["--page", str(page)])
    assert "has no pair of marks <!-- versions -->" in capsys.readouterr().err
    assert page.read_text() == "before\n"


@pytest.mark.parametrize("line", ["", "{}", '{"triton": 3}', json.dumps(row().model_dump() | {"more": 1})])
def test_a_line_that_is_no_row_is_one_sentence(tmp_path, line):
    path = tmp_path / "v.jsonl"
    path.write_text(row().model_dump_json() + "\n" + line + "\n")
    with pytest.raises(UsageError, match=r"v\.jsonl, line 2 is no row \(.+\): remove it"):
        read(path)


@pytest.mark.parametrize("words", [["{}"], ["--runs", "{}", "{}.results"], ["{}", "sm_90a"]])
@pytest.mark.parametrize("damage", ["torn", "bytes", "folder", "pipe", "link"])
def test_a_damaged_file_ends_each_request_in_a_sentence(words, damage, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(versions, "EXAMPLES", [ADD])
    path = tmp_path / "v.jsonl"
    if damage == "folder":
        path.mkdir()
    elif damage == "pipe":
        os.mkfifo(path)
    elif damage == "link":
        path.symlink_to("nowhere/at/all")
    else:
        path.write_bytes(b"\xff\xfe\n" if damage == "bytes" else row().model_dump_json().encode()[:-9])
    with pytest.raises(SystemExit, match=r"^2$"):
        versions.main([word.format(path) for word in words])
    assert re.fullmatch(rf"kperf: {path}(, line 1 is no row .*: remove it| cannot be .*)\n", capsys.readouterr().err)


def test_a_last_line_without_its_end_and_a_triton_from_source_are_read(tmp_path):
    path = tmp_path / "v.jsonl"
    path.write_text(row().model_dump_json())
    append(path, [row(triton="3.7.0+git1f2e3d4c"), row(triton="3.10.0")])
    assert [found.triton for found in read(path)] == ["3.6.0", "3.7.0+git1f2e3d4c", "3.10.0"]
    head, *_ = tables(read(path)).splitlines()
    assert head == "| target | Triton 3.6.0 | Triton 3.7.0+git1f2e3d4c | Triton 3.10.0 |"


def traced_with(triton, folder):
    """A folder of results that holds two recorded examples, as if this Triton had compiled them."""
    for name in ("gemm_tma", "split_k"):
        record = json.loads((ROOT / "results" / "h200" / "examples" / f"{name}.timeline.json").read_text())
        record["environment"]["triton"] = triton
        path = folder / "h200" / "examples" / f"{name}.timeline.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))


def test_help_says_how_it_is_called_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(versions, "EXAMPLES", [])
    with pytest.raises(SystemExit, match=r"^0$"):
        versions.main(["--help"])
    assert "versions --runs FILE [RESULTS]\n" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ([], "the following arguments are required: FILE"),
        (["--pages", "f"], "unrecognized arguments: --pages"),
        (["--page", "--runs", "f"], "argument --runs: not allowed with argument --page"),
        (["--page", "f", "sm_90a"], "sm_90a is one too many"),
        (["--runs", "f", "results", "more"], "more is one too many"),
        (["f", "sm_90a", "sm_90"], "unknown target sm_90: choose from sm_80, "),
    ],
)
def test_words_that_are_no_request_are_refused(words, refusal, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(versions, "EXAMPLES", [])
    with pytest.raises(SystemExit, match=r"^2$"):
        versions.main(words)
    assert f"error: {refusal}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_traces_of_another_triton_become_rows_once(tmp_path):
    traced_with("3.10.0", tmp_path / "results")
    path = tmp_path / "versions.jsonl"
    for _ in range(2):
        versions.main(["--runs", str(path), str(tmp_path / "results")])
    gemm, split_k = read(path)
    assert (gemm.triton, gemm.target, gemm.kernel, gemm.stage) == ("3.10.0", "sm_90a", "gemm_tma", "run")
    said = gemm.reading
    assert (said.gpu, said.view, said.at_bound, said.findings, said.confidence) == (
        "NVIDIA H200", "pipeline", True, {}, "high",
    )  # fmt: skip
    assert (said.unit, said.cycles, said.registers, said.spilled_bytes) == ("iteration", 1024, 154, 0)
    assert said.launch_ms == pytest.approx(1.4594, abs=1e-4)
    assert said.verdict[0].endswith("need 1024 cycles on the tensor cores (wgmma): it is at its bound.")
    assert len(said.verdict) == 3
    assert split_k.reading.findings == {"exposed-loads": "medium"}
    assert "null" not in path.read_text()


def test_the_page_counts_readings_that_agree_and_names_those_that_do_not():
    def ran(triton, kernel, gpu="NVIDIA H200", **more):
        facts = {"findings": {"exposed-loads": "high"}, "launch_ms": 2.0, "cycles": 1237.4} | more
        said = Reading(
            gpu=gpu,
            confidence="high",
            unit="iteration",
            verdict=[],
            **({"at_bound": False, "view": "pipeline"} | facts),
        )
        return row(triton, kernel=kernel, stage="run").model_copy(update={"reading": said})

    rows = [
        ran("3.6.0", "gemm", launch_ms=9.0),  # an older run
        ran("3.6.0", "gemm"),
        ran("3.10.0", "gemm", launch_ms=3.0, cycles=2000.0),  # other numbers
        ran("3.6.0", "tma", findings={}, at_bound=True),
        ran("3.10.0", "tma", findings={}),
        ran("3.6.0", "norm"),
        ran("3.10.0", "norm", findings={"exposed-loads": "medium"}),
        ran("3.6.0", "add"),
        ran("3.7.1", "add"),
        ran("3.6.0", "sum"),
        ran("3.7.1", "sum", view="memory"),
        ran("3.10.0", "moe"),  # with no other Triton
        ran("3.6.0", "gemm", gpu="NVIDIA H100"),  # nothing to compare it with
        row(triton="3.8.0"),
    ]
    lines = tables(rows).splitlines()
    start = lines.index(
        "| example on NVIDIA H200 | findings with Triton 3.6.0 | findings with newer Triton "
        "| ms of a launch without timestamps (Triton version) | cycles with timestamps (Triton version) |"
    )
    high = "exposed-loads (high)"
    both = "2.000 (3.6.0), 2.000 (3.10.0) | iteration: 1237 (3.6.0), 1237 (3.10.0)"
    others = "2.000 (3.6.0), 2.000 (3.7.1) | iteration: 1237 (3.6.0), 1237 (3.7.1)"
    assert lines[start + 2 :] == [
        f"| gemm | {high} | the same | 2.000 (3.6.0), 3.000 (3.10.0) | iteration: 1237 (3.6.0), 2000 (3.10.0) |",
        f"| tma | no finding; MMAs fill the iteration | 3.10.0: no finding | {both} |",
        f"| norm | {high} | 3.10.0: exposed-loads (medium) | {both} |",
        f"| add | {high} | the same | {others} |",
        f"| sum | {high} | 3.7.1: {high}, view memory instead of pipeline | {others} |",
        "",
        "On NVIDIA H200, kperf reports the same with Triton 3.7.1 as with Triton 3.6.0 for 1 of 2 examples, but "
        "not for sum.",
        "",
        "On NVIDIA H200, kperf reports the same with Triton 3.10.0 as with Triton 3.6.0 for 1 of 3 examples, but "
        "not for norm, tma.",
    ]
    assert "H100" not in tables(rows)


def test_the_recorded_rows_are_of_runs_that_are_recorded_and_the_page_is_made_of_them(tmp_path):
    rows = read(RECORDED)
    ran = {(one.triton, one.target, one.kernel): one.reading for one in rows if one.stage == "run"}
    traced = {(one.triton, one.target, one.kernel) for one in versions.runs(ROOT / "results")}
    assert traced <= set(ran)
    assert all(ran[place] is not None for place in set(ran) - traced)  # of a run whose timelines are not kept
    page = tmp_path / "support.md"
    page.write_text((ROOT / "docs" / "support.md").read_text())
    versions.main(["--page", str(page)])
    assert page.read_text() == (ROOT / "docs" / "support.md").read_text()
