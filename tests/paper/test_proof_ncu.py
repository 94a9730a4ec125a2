"""`kperf proof --beside-ncu` on a GPU that is not there, with an ncu that prints as the real one does."""

import sys
from pathlib import Path

import pytest

from kperf.errors import UsageError
from kperf.paper import proof, proof_ncu
from kperf.paper.ncu_causes import CAUSES, WITHOUT_RULE, names
from kperf.paper.proof_ncu import ROWS, Answer
from kperf.record import device
from kperf.record.store import RecordStore
from kperf.studies.ncu import Rule
from tests.command import kperf
from tests.conftest import environment, kept
from tests.paper.test_proof import COMMON, PLUS, ROOT, ROWS_MADE, written

KERNELS = ROOT / "tests/diagnose/kernels"


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "ncu"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("fake_ncu.py")} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def on_a_fake_gpu(monkeypatch, in_a_fork, tmp_path, h200):
    monkeypatch.setattr(proof_ncu, "SESSION", (*in_a_fork, "-m", "tests.paper.proof_ncu_session_on_a_fake_gpu"))
    monkeypatch.setenv("KPERF_FAKE_NCU", str(tmp_path / "marked"))


def script(name, fault="", more=""):
    return (
        f"{PLUS.replace('plus', name)}{more}  # planted: {fault}\n" if fault else f"{PLUS.replace('plus', name)}{more}"
    )


def rows_in(folder):
    return {row.name: row for row in RecordStore(folder / "h200", "ncu_rules", ROWS).points()}


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_each_kernel_has_its_rules_or_says_why_not(tmp_path, console, program):
    kernels = written(
        tmp_path / "set",
        planted__strided=script("strided", "uncoalesced-access"),
        planted__tiny=script("tiny", "tma-unused", more="tiny[(2,)](x, x, x, 1 << 20, 1024)"),
        planted__sudden=script("dies"),
        planted__wide=script("wide", "loads-not-pipelined"),
        drafts__breaks=script("breaks"),
        drafts__fails="raise SystemExit('no such thing')",
        clean__good=script("good"),
    )
    proof_ncu.run(console, tmp_path / "results", kernels, [], ncu_path=program, require_gpu=True)
    rows = rows_in(tmp_path / "results")
    assert set(rows) == {"strided", "tiny", "sudden", "wide", "breaks", "fails", "good"}
    assert {name for name, row in rows.items() if row.rules} == {"strided", "tiny", "wide", "good"}
    assert {len(row.rules) for row in rows.values() if row.rules} == {5}
    assert {row.ncu for row in rows.values()} == {"2025.3.1.0"}
    assert rows["sudden"].why == "the process ended meanwhile: ncu printed nothing of it"
    assert rows["breaks"].why == "the GPU failed: CUDA error: an illegal memory access was encountered"
    assert rows["fails"].why == "the script failed: no such thing"
    assert (rows["strided"].fault, rows["good"].fault) == ("uncoalesced-access", "")
    assert [(one.rule, one.scope, one.percent) for one in rows["strided"].first] == [
        ("HighPipeUtilization", "local", 95.12), ("CPIStall", "global", 61.5),
    ]  # fmt: skip
    assert (rows["strided"].names_cause, rows["strided"].names_cause_anywhere) == (False, True)
    assert (rows["wide"].names_cause, rows["tiny"].names_cause_anywhere) == (True, False)
    said = console.export_text()
    assert "planted/wide: HighPipeUtilization 95 % local, CPIStall 62 % global (" in said
    assert (
        "ncu profiled 3 faulty kernels. For 1 of the 3, one of the 2 rules with the largest estimated speedups names "
        "the fault. For 2 of the 3, at least one rule of ncu names the fault." in said
    )
    assert "ncu estimates that 1 of 1 clean kernels could take at least 20 % less time: good." in said
    assert "The text of ncu's rules names a line of Python for none of the 4 kernels." in said
    assert "ncu could not profile sudden (the process ended meanwhile: " in said


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_an_ncu_that_prints_no_ranges_has_the_kernels_in_the_order_of_launches(tmp_path, console, program, monkeypatch):
    monkeypatch.setenv("KPERF_FAKE_NCU", str(tmp_path / "unnamed"))
    kernels = written(
        tmp_path / "set", planted__a=script("first"), clean__b=script("second"), clean__c="raise SystemExit(2)"
    )
    proof_ncu.run(console, tmp_path / "results", kernels, [], ncu_path=program, require_gpu=True)
    assert {name: len(row.rules) for name, row in rows_in(tmp_path / "results").items()} == {"a": 5, "b": 5, "c": 0}


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_script_that_never_ends_costs_no_other_its_rules(tmp_path, console, program, monkeypatch):
    run, calls = proof_ncu.ncu.run, []

    def run_out_of_time(program, options, command, *rest, **more):
        calls.append(command)
        if len(calls) > 1:
            return run(program, options, command, *rest, **more)
        answers = [Answer(name=name, is_over=is_over) for name, is_over in (("a", True), ("b", True), ("c", False))]
        command[-4].write_text("".join(f"{answer.model_dump_json()}\n" for answer in answers))
        raise UsageError("ncu took more than 400 s")

    monkeypatch.setattr(proof_ncu.ncu, "run", run_out_of_time)
    kernels = written(
        tmp_path / "set", planted__a=script("first"), planted__b=script("second"), planted__c="while True: pass"
    )
    proof_ncu.run(console, tmp_path / "results", kernels, [], ncu_path=program, require_gpu=True)
    rows = rows_in(tmp_path / "results")
    assert {name: len(row.rules) for name, row in rows.items()} == {"a": 5, "b": 5, "c": 0}
    assert rows["c"].why == "the process ended meanwhile: ncu took more than 400 s"


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_process_begins_no_script_after_its_time_and_another_goes_on(tmp_path, console, program, monkeypatch):
    monkeypatch.setattr(proof_ncu, "_BEGIN_WITHIN_S", 0.0)
    kernels = written(tmp_path / "set", planted__a=script("first"), planted__b=script("second"), clean__c=script("it"))
    calls = []
    run = proof_ncu.ncu.run
    monkeypatch.setattr(proof_ncu.ncu, "run", lambda *words, **more: calls.append(words) or run(*words, **more))
    proof_ncu.run(console, tmp_path / "results", kernels, [], ncu_path=program, require_gpu=True)
    assert {name: len(row.rules) for name, row in rows_in(tmp_path / "results").items()} == {"a": 5, "b": 5, "c": 5}
    assert len(calls) == 3


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_run_goes_on_where_an_earlier_one_ended(tmp_path, console, program, monkeypatch):
    """Of the same GPU, software and commit: what ncu has profiled is left out unless it is named."""
    kernels = written(
        tmp_path / "set", planted__a=script("first") + "# planted: tail-wave", planted__b="raise SystemExit(2)"
    )

    def run(*names):
        before = len(RecordStore(tmp_path / "results/h200", "ncu_rules", ROWS).points())
        proof_ncu.run(console, tmp_path / "results", kernels, names, ncu_path=program, require_gpu=True)
        return [row.name for row in RecordStore(tmp_path / "results/h200", "ncu_rules", ROWS).points()[before:]]

    assert run() == ["a", "b"]
    assert run() == ["b"]
    assert "1 of 2 kernels are recorded: name those to be profiled again" in console.export_text()
    assert run("a") == ["a"]
    (kernels / "planted/b.py").unlink()
    assert run() == []
    assert "ncu profiled 1 faulty kernel." in console.export_text()
    monkeypatch.setattr(device, "environment", lambda: environment().model_copy(update={"git_commit": "later"}))
    assert run() == ["a"]


RULE = {
    "rule": "CPIStall",
    "kind": "OPT",
    "text": "waiting for L1TEX",
    "names_line": False,
    "scope": "",
    "percent": None,
}


def made(name, *found, fault="too-few-stages", kind="planted", why=""):
    fields = {"kind": kind, "name": name, "fault": fault, "ncu": "2025.3.1.0", "took_s": 2.0}
    return ROWS.validate_python(COMMON | fields | {"rules": [RULE | one for one in found], "why": why})


def test_the_first_rules_are_those_with_the_largest_estimates():
    row = made("k", {"percent": 3.0}, {}, {"rule": "A", "percent": 70.5, "scope": "local"}, {"percent": 0.0},
               {"rule": "B", "percent": 12.0, "scope": "global", "text": "b"})  # fmt: skip
    assert [proof_ncu.in_words(rule) for rule in row.first] == ["A 70 % local", "B 12 % global"]
    assert (row.names_cause, row.names_cause_anywhere, row.largest_global) == (False, True, 12.0)
    assert made("none", {}).largest_global == 0


def test_of_each_kernel_the_last_that_was_profiled_is_shown():
    rows = [made("b", {"percent": 1.0}), made("a", why="lost"), made("b", {"percent": 2.0}), made("b", why="lost"),
            made("a", why="lost again"), made("c", {}, kind="clean")]  # fmt: skip
    found = proof_ncu.newest(rows)
    assert [(row.name, row.why, [rule.percent for rule in row.rules]) for row in found] == [
        ("a", "lost", []), ("b", "", [2.0]), ("c", "", [None]),
    ]  # fmt: skip


@pytest.mark.parametrize("gpu", ["h200", "h100-80gb-hbm3"])
def test_the_page_shows_ncu_beside_what_was_found(tmp_path, gpu):
    page = proof_ncu.sections(tmp_path / "h200")["ncu"]
    assert page.startswith("Nothing is recorded yet: `kperf proof --beside-ncu` records it")
    rows = [
        made("first", {"percent": 61.5, "scope": "global"}, fault="spills"),
        made("second", {"percent": 61.5, "scope": "global"}, {"rule": "A", "percent": 9.0, "scope": "local"}),
        made("third", why="the script failed: x"),
        made("good", {"percent": 25.0, "scope": "global"}, fault="", kind="clean"),
    ]
    newer = [made("first", fault="spills", why="newer").model_copy(update={"recorded_at": "2026-11-30T00:00:00Z"})]
    written = [(gpu, "ncu_rules", ROWS, rows), ("h200", "diagnose", proof.ROWS, ROWS_MADE)]
    if gpu == "h200":  # another GPU's record is not asked then, however new
        written.append(("h100", "ncu_rules", ROWS, newer))
    for folder, name, adapter, found in written:
        with RecordStore(tmp_path / folder, name, adapter).writer() as writer:
            where = environment().model_copy(update={"gpu": f"NVIDIA {folder.upper()}"})
            about = {"environment": writer.record_environment(where)}
            writer.append([row.model_copy(update=about) for row in found])
    sections = proof_ncu.sections(tmp_path / "h200")
    lines = sections["ncu"].splitlines()
    assert lines[0] == (
        f"Recorded on NVIDIA {gpu.upper()}, 2026-11-23, ncu 2025.3.1.0. What kperf found is recorded on "
        "NVIDIA H200, 2026-11-23."
    )
    assert lines[2:6] == [f"- {line}" for line in proof_ncu.sentences(rows)]
    assert lines[-3:] == [
        "| first<br>spills | 1 | no | CPIStall 62 % global |",
        "| second<br>too-few-stages | 2 | yes | CPIStall 62 % global<br>A 9 % local |",
        "| third<br>too-few-stages | 3 |  | the script failed |",
    ]
    causes = sections["ncu-causes"].splitlines()
    atomics = "atomics fill the queue of memory instructions"
    assert rf"| atomic-contention | CPIStall `\bLG\b\|local and global` | {atomics} |" in causes
    assert "| recompiled-often | ncu profiles launches, not compilation |" in causes


def test_each_fault_of_the_set_has_its_rules_or_the_reason_why_there_is_none():
    faults = {proof.planted(path)[0] for path in proof.scripts(KERNELS, [])} - {""}
    assert set(CAUSES) | set(WITHOUT_RULE) == faults
    assert not set(CAUSES) & set(WITHOUT_RULE)


@pytest.mark.parametrize(
    ("fault", "rule", "text", "is_named"),
    [
        ("loads-not-pipelined", "CPIStall", "waiting for a scoreboard dependency on a L1TEX operation", True),
        ("loads-not-pipelined", "CPIStall", "waiting for the MIO (memory input/output) instruction queue", False),
        ("loads-not-pipelined", "HighPipeUtilization", "All compute pipelines are under-utilized", False),
        ("narrow-access", "CPIStall", "waiting for the L1 instruction queue for local and global (LG) memory", True),
        ("narrow-access", "CPIStall", "waiting for a scoreboard dependency on an algorithm", False),
        ("register-spills", "MemoryCacheAccessPattern", "The memory access pattern for local loads from L1TEX", True),
        ("register-spills", "MemoryCacheAccessPattern", "The memory access pattern for global loads from L1TEX", False),
        ("uncoalesced-access", "MemoryCacheAccessPattern", "The memory access pattern for global loads", True),
        ("launch-too-small", "LaunchConfiguration", "The grid for this launch executes only 4 blocks", True),
        ("launch-too-small", "LaunchConfiguration", "A wave of thread blocks is defined as the maximum", False),
        ("tma-unused", "CPIStall", "waiting for a scoreboard dependency on a L1TEX operation", False),
    ],
)  # fmt: skip
def test_a_rule_names_a_fault_where_it_says_so(fault, rule, text, is_named):
    assert names(fault, [Rule(**RULE | {"rule": rule, "text": text})]) is is_named


@pytest.mark.usefixtures("on_a_fake_gpu")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("case $* in *--version*) echo Version 1.2;; *) echo '==ERROR== ERR_NVGPUCTRPERM';; esac", "NVreg_Restrict"),
        ("echo nothing", "does not say its version"),
        ("case $* in *--version*) echo Version 1.2;; *) echo '==ERROR== no set full'; exit 1;; esac", "no set full"),
    ],
)
def test_an_ncu_that_does_not_work_is_a_sentence(tmp_path, console, text, words):
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    kernels = written(tmp_path / "set", planted__a=script("a"))
    with pytest.raises(UsageError, match=words):
        proof_ncu.run(console, tmp_path / "results", kernels, [], ncu_path=program, require_gpu=True)
    assert rows_in(tmp_path / "results") == {}


def test_without_a_gpu_the_record_is_shown(tmp_path):
    done = kperf("proof", "--beside-ncu", "--results", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing is recorded of `make proof OPTIONS=--beside-ncu` in " in done.stderr
    kept(RecordStore(tmp_path / "h200", "ncu_rules", ROWS), [made("k", {"percent": 61.5, "scope": "global"})])
    done = kperf("proof", "--beside-ncu", "--results", tmp_path)
    assert "ncu profiled 1 faulty kernel. For 1 of the 1, one of the 2 rules" in done.stdout


@pytest.mark.gpu
def test_on_a_gpu_ncu_says_what_a_strided_copy_does(tmp_path, console):
    try:
        proof_ncu.run(console, tmp_path, KERNELS, ["strided_copy", "vector_add"], ncu_path=None, require_gpu=True)
    except UsageError as error:
        pytest.skip(str(error))
    rows = {row.name: row for path in tmp_path.glob("*") for row in RecordStore(path, "ncu_rules", ROWS).points()}
    assert set(rows) == {"strided_copy", "vector_add"}
    assert all(row.rules and row.first and row.took_s > 0 for row in rows.values()), rows
    assert rows["strided_copy"].names_cause_anywhere
