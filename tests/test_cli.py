"""The front door: what a person types, what they see, and how it ends."""

import errno
import functools
import io
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kperf import __version__
from kperf.arch import KNOWN
from kperf.attention.overrides import TTGIR_DIR, find
from kperf.cli.ending import end_refused, failure_of_the_gpu
from kperf.errors import MeasurementError
from kperf.paper import fig12
from kperf.record.files import write_atomically
from kperf.record.store import RECORDED
from tests.command import kperf

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "KPERF_IN_CONTAINER" not in os.environ


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig12", "--device", "cuda"], "on a machine with a Hopper GPU" if OUTSIDE else "start it with --gpus all"),
        (["fig11", "--override", "/nonexistent.ttgir"], "/nonexistent.ttgir is no file: name one"),
        (["fig12", "--results", "/nonexistent"], "holds no recorded fig12.jsonl"),
        (["bench", "--seq-len", "200"], "seq_len 200 is not a multiple of 128"),
        (["bench", "--d-head", "96"], "head_dim 96 is not one of"),
        (["bench", "--only", "fa9"], "unknown implementation 'fa9'"),
        (["bench", "--metrics", "speed"], "unknown metric 'speed'"),
        (["bench", "--seq-len", "13"], "bench measures, and no"),
        (["sweep", "seq_len", "--only", "fa9"], "unknown implementation 'fa9'"),
        (["override", "stage", "fast", "--to", "/tmp"], "unknown variant 'fast'"),
        (["bench", "--batch", "99999999999"], "more than the kernels' 32-bit row numbers"),
        (["power", "--only", "fa9"], "unknown implementation 'fa9'"),
        (["fig12", "--causal", "--paper-mix"], "name one"),
        (["fig12", "--head-dim", "96"], "head_dim 96 is not one of"),
        (["fig12", "--dtype", "float8"], "dtype"),
        (["fig12", "--gpus", "some"], "--gpus 'some' says nothing: it is all, how many (2), which"),
        (["fig12", "--gpus", "0,0"], "GPU 0 is named twice"),
        (["timers", "--ncu", "/nosuch"], "/nosuch is no program: name Nsight Compute's ncu with --ncu"),
        (["lines", "--ncu", "/tmp"], "/tmp is no program"),
        (["inductor", "--ncu", "/nosuch"], "/nosuch is no program"),
        (["worker", "host:8786"], "'host:8786' is no address of a scheduler: tcp://host:8786 is one"),
        (["worker", "tcp://[::1]:8786", "--gpus", "-2"], "--gpus '-2' says nothing"),
        (
            ["worker", "tcp://[::1:8786"],
            "kperf: 'tcp://[::1:8786' is no address of a scheduler",
        ),
        (["worker", "tcp://host:8786", "--gpus", "-2"], "--gpus '-2' says nothing"),
        (["sweep", "seq_len", "--only", "fa3,fa3_views", "--head-dim", "64"], "no run of fa3, fa3_views"),
        (["examples", "--write", "/nonexistent.md"], "cannot be read"),
        (["override", "stage", "vanilla", "--to", "/etc/passwd"], "cannot be made"),
        *(
            (name.split(), "says whose records --write takes: give --write FILE too")
            for name in (
                "inputs --gpu h200",
                "proof --gpu h200",
                "proof --beside-ncu --gpu h200",
                "public --gpu h200",
                "disturbance --gpu nosuch",
                "examples --gpu h200",
            )
        ),
        (["claims", "--results", "/nonexistent"], "holds no recorded fig12.jsonl"),
    ],
)
def test_a_mistake_is_one_sentence_and_status_2(arguments, words):
    done = kperf(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sweep", "sideways", "--only", "fa3"], "'sideways' is not one of 'seq_len', 'batch_size'"),
        (["fig13"], "no such command 'fig13'"),
        (["bench", "--batch", "x"], "invalid value for '--batch'"),
        (["fig12", "--nosuch"], "no such option: --nosuch (Possible options: --no-fresh) (`"),
        (["diagnose", "--static", "train.py", "--steps", "3"], "; options of the script come after -- (`"),
        (["sweep", "seq_len"], "missing option '--only' (`"),
        (["override", "stage", "--to", "/tmp"], "missing argument 'improved|improved_plus|vanilla' (`"),
        (["sweep", "seq_len", "--only", "fa3", "--only", "fa2"], "--only is given twice"),
        (["fig12", "--causal", "--no-causal"], "--causal is given twice"),
        (["restore", "--results", ""], "--results is empty: give a path"),
        (["override", "stage", "vanilla", "--to", ""], "--to is empty: give a path"),
        (["instrument", ""], "file is empty: give a path"),
        (["power", "--seconds", "inf"], "invalid value for '--seconds'"),
        (["sweep", "seq_len", "--only", ""], "'' names nothing"),
        (["power", "--only", " , "], "names nothing"),
        (["bench", "--metrics", ""], "names nothing"),
        (["instrument", TTGIR_DIR / "vanilla/d128_bf16_full.ttgir", "--regions", "*,nosuch"], "no region named nosuch"),
    ],
)
def test_an_unknown_or_missing_word_is_one_sentence(arguments, words):
    done = kperf(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


READING = ["fig12", "fig11", "inputs", "claims", "goals", "repeatability", "power", "choose", "tune", "attention",
           "proton", "overhead", "disturbance", "proof", "lines", "timers", "accuracy", "inductor", "public",
           "operators", "restore"]  # fmt: skip


@pytest.mark.parametrize("inside", ["", "/inside"])
def test_a_file_in_the_place_of_the_folder_of_recorded_runs_is_said_to_be_one(tmp_path, inside):
    """By every command that takes it, before anything else is looked at."""
    (tmp_path / "h200").write_text("")
    given = f"{tmp_path}/h200{inside}"
    commands = [*([name] for name in READING), ["export", "fig12"], ["bench"]]
    done = {tuple(command): kperf(*command, "--results", given) for command in commands}
    done["repeatability", "--other"] = kperf("repeatability", "--other", given)
    done["KPERF_RESULTS"] = kperf("fig12", KPERF_RESULTS=given)
    refused = f"kperf: {tmp_path}/h200 is a file, and recorded runs are in a folder: name a folder\n"
    for command, ended in done.items():
        assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", refused), command


@pytest.mark.parametrize("command", [["fig12"], ["claims"], ["power"], ["lines"], ["proton"], ["export", "fig12"]])
def test_the_folder_of_one_gpu_is_not_that_of_all(command):
    folder = RECORDED / ("h100-80gb-hbm3" if command == ["power"] else "h200")
    done = kperf(*command, "--results", folder)
    words = f"{folder} is the folder of one GPU: name the one around it, {RECORDED}\n"
    assert (done.returncode, done.stderr.endswith(words)) == (2, True)


def test_what_it_is_for_and_which_it_is():
    for option in ("-h", "--help"):
        done = kperf(option)
        assert done.returncode == 0
        assert "See where a Triton kernel's warp groups wait" in done.stdout.split("Options")[0]
        assert done.stdout.index("Kernels of yours") < done.stdout.index(" diagnose ") < done.stdout.index("Attention")
    assert kperf("fig12", "-h").returncode == 0
    assert kperf("--version").stdout.startswith(f"kperf {__version__}, commit ")
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


def make(*arguments, **settings):
    """`make` with a Python that prints the arguments it gets, one a line."""
    environment = {name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL"}}
    environment |= {"KPERF_IN_CONTAINER": "1"} | settings
    command = ["make", "--no-print-directory", r"PYTHON=printf '%s\n'", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig12", "CAUSAL=no"], "CAUSAL is 0 or 1, not no"),
        (["fig12", "HEADDIM=64"], "takes no HEADDIM: it takes CAUSAL"),
        (["power", "HEAD_DIM=64"], "`make power` takes no HEAD_DIM"),
        (["power", "GPUS=all"], "`make power` takes no GPUS"),
        (["fig11", "CAUSAL=1"], "`make fig11` takes no CAUSAL"),
        (["fig11", "fig12", "CAUSAL=1"], "`make fig11` takes no CAUSAL"),
        (["figures", "CAUSAL=1"], "it takes no settings"),
        (["docker-fig12", "COSTS=1"], "takes no COSTS"),
        (["CAUSAL=1"], "`make help` takes no CAUSAL"),
    ],
)
def test_make_refuses_settings_that_it_would_ignore(arguments, words):
    done = make(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_a_setting_reaches_the_command_as_it_is(tmp_path):
    nasty = f"64; touch {tmp_path}/x 'y' $(shell touch {tmp_path}/z) `touch {tmp_path}/w`"
    assert make("fig12", f"HEAD_DIM={nasty}", "CAUSAL=1", "FRESH=0").stdout.splitlines() == [
        "-m", "kperf", "fig12", "--causal", "--head-dim", nasty,
    ]  # fmt: skip
    assert make("fig12", f"INPUTS={nasty}").stdout.splitlines() == ["-m", "kperf", "fig12", "--inputs", nasty]
    assert make("fig12", f"GPUS={nasty}").stdout.splitlines() == ["-m", "kperf", "fig12", "--gpus", nasty]
    assert make("fig11", OVERRIDE=nasty).stdout.splitlines() == ["-m", "kperf", "fig11", "--override", nasty]
    assert make("power", f"OPTIONS=--only {nasty}").stdout.split() == ["-m", "kperf", "power", "--only", *nasty.split()]
    inside = make("docker-fig12", f"HEAD_DIM={nasty}").stdout.splitlines()
    assert inside == ["-m", "kperf", "image", "run", "make", "fig12", f"HEAD_DIM={nasty}"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "words"), [("{}\n", "line 1 is not a recorded point"), ('{"a', "ends in the middle of line 1: ")]
)
def test_a_broken_results_file_is_one_sentence(tmp_path, content, words):
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200/fig12.jsonl").write_text(content)
    done = kperf("fig12", "--results", tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert (tmp_path / "h200/fig12.jsonl").read_text() == content


def test_an_empty_results_file_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("kperf.paper.fig12.verify_overrides", lambda *_, **__: None)  # it compiles all of them
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200/fig12.jsonl").write_text("")
    done = kperf("fig12", "--results", tmp_path)
    assert done.returncode == 2
    assert "has no run of fig12" in done.stderr


def _closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("output", [None, io.StringIO(), _closed()])
def test_a_full_disk_is_one_sentence_where_standard_output_is_no_file(monkeypatch, capsys, output):
    monkeypatch.setattr(sys, "stdout", output)
    with pytest.raises(SystemExit) as ended:
        end_refused(OSError(errno.ENOSPC, "No space left on device"))
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "kperf: standard output cannot be written (No space left on device): send it elsewhere, or free some space "
        "there\n"
    )


@pytest.mark.parametrize(
    ("output", "status", "said"),
    [
        (">/dev/full", 1, "standard output cannot be written (No space left on device): send it elsewhere, or free"),
        (">&-", 2, "standard output is closed: send it to a file, or to /dev/null"),
        ("| true", 1, ""),
    ],
)
def test_an_output_that_takes_nothing_is_one_sentence_and_one_that_is_not_read_none(output, status, said):
    """With more to print than a pipe or a buffer holds, by a command that imports nothing heavy."""
    imports = "from kperf.cli import main; from kperf.cli.app import app"
    program = f"{imports}; app.command('say')(lambda: print('line\\n' * (1 << 16))); main()"
    script = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} say {output}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    assert done.stderr.startswith(f"kperf: {said}" if said else "")
    assert done.stderr.count("\n") == (1 if said else 0)


@pytest.mark.parametrize("error", ["2>&-", "2>/dev/full"])
def test_where_standard_error_takes_nothing_the_status_says_it(error):
    """And standard output, which another program may read, has nothing of it."""
    script = f"{shlex.quote(sys.executable)} -m kperf instrument '' {error}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


def test_a_console_without_a_letter_gets_another():
    imports = "from kperf.cli import main; from kperf.cli.app import app"
    program = f"{imports}; app.command('say')(lambda: print('16 × 4096')); main()"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", program, "say"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "16 ? 4096\n", "")


@contextmanager
def largest_file(size):
    """Writing more into one file than `size` bytes fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("arguments", "setting", "mend"),
    [
        (["override", "verify"], "TMPDIR", "free some space there, or set TMPDIR to another folder"),
        (["fig12"], "TRITON_CACHE_DIR", "free some space there, or set TRITON_CACHE_DIR to another folder"),
    ],
)
def test_a_full_disk_names_the_file_and_the_mend(tmp_path, monkeypatch, arguments, setting, mend):
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = tmp_path / "small"
    folder.mkdir()
    with largest_file(60_000):  # TTGIR has room, LLVM's IR has none
        done = kperf(*arguments, **{setting: str(folder)})
    assert done.returncode == 1
    assert re.fullmatch(rf"kperf: {folder}/\S+ cannot be used \(File too large\): {mend}\n", done.stderr)


def test_a_full_disk_leaves_what_a_file_held(tmp_path):
    path = tmp_path / "out.ttgir"
    path.write_text("before")
    said = r"out\.ttgir cannot be written \(File too large\): free some space there; what it held is intact"
    with largest_file(1000), pytest.raises(MeasurementError, match=said):
        write_atomically(path, "1" * 2000)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path):
    """As /dev/stdout and /dev/null, of which root could make files."""
    plain = TTGIR_DIR / "vanilla/d128_bf16_full.ttgir"
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    assert kperf("instrument", plain, "--strip", "--out", pipe).returncode == 0
    assert reader.communicate(timeout=240)[0] == plain.read_text()
    assert pipe.is_fifo()
    (tmp_path / "file").touch()
    link.symlink_to("file")
    assert kperf("instrument", plain, "--strip", "--out", link).returncode == 0
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == plain.read_text()


@pytest.mark.parametrize("command", ["fig11", "fig12", "ttgir", "examples"])
def test_a_cache_that_cannot_be_written_is_said_with_the_mend(tmp_path, command):
    (tmp_path / "file").touch()
    cache = tmp_path / "file/cache"
    done = kperf(command, TRITON_CACHE_DIR=str(cache))
    assert done.returncode == 1
    mend = "set TRITON_CACHE_DIR to another folder"
    assert re.fullmatch(rf"kperf: {cache}\S* cannot be used \(Not a directory\): {mend}\n", done.stderr)


@pytest.mark.parametrize("command", ["fig11", "fig12", "examples"])
def test_results_that_cannot_be_written_are_said_before_anything_is_compiled(tmp_path, monkeypatch, command):
    """As in a read-only checkout; whoever runs this may be root, who may write everywhere else."""

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("kperf.record.files.tempfile.TemporaryFile", refuse)
    done = kperf(command)
    assert done.returncode == 2
    assert re.match(rf"kperf: {ROOT}/results/(h200|h100-80gb-hbm3)(/\S+)? cannot be written", done.stderr)
    assert (
        "cannot be written (Read-only file system): name another folder with --results; `python -m kperf restore"
        in done.stderr
    )
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["fig11", "fig12", "power", "sweep", "claims", "goals", "repeatability"])
def test_a_folder_without_records_is_said_before_anything_is_compiled(tmp_path, command):
    panel = ["seq_len", "--only", "fa3"] if command == "sweep" else []
    done = kperf(command, *panel, "--results", tmp_path / "nowhere", TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert f"{tmp_path}/nowhere holds no recorded" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rules", "words"),
    [("/nonexistent.toml", "cannot be read"), ("/etc", "cannot be read"), ("/bin/sh", "cannot be read"),
     ("README.md", "is not a set of region rules"), ("/dev/null", "cannot be read: it is no regular file")],
)  # fmt: skip
def test_a_file_of_rules_that_is_none_is_said(rules, words):
    done = kperf("instrument", TTGIR_DIR / "vanilla/d128_bf16_full.ttgir", "--rules", ROOT / rules)
    assert done.returncode == 2
    assert f"{ROOT / rules} {words}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_originals_scripts_check_their_words():
    done = subprocess.run(["./bench_fa.sh", "fast", "seq_len"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage: bench_fa.sh" in done.stderr
    done = subprocess.run(
        [sys.executable, "benchmark_attn.py", "sideways"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "sideways" in done.stderr


def test_staging_prints_the_environment_line(tmp_path):
    done = kperf("override", "stage", "improved", "--to", tmp_path, TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0
    assert f"TRITON_KERNEL_OVERRIDE=1 TRITON_OVERRIDE_DIR={tmp_path}" in done.stdout
    assert len(list(tmp_path.glob("*/attn_fwd.ttgir"))) == 1


def test_a_figure_of_which_nothing_is_recorded_is_refused_before_anything_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(fig12, "verify_overrides", lambda *_, **__: pytest.fail("it compiles"))
    shutil.copytree(RECORDED / "h200", tmp_path / "h200", ignore=lambda _, names: {*names} - {"fig12.jsonl"})
    done = kperf("fig12", "--results", tmp_path, "--dtype", "float16", "--head-dim", "64", "--causal")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no run of fig12_d64_fp16_causal" in done.stderr


def test_files_that_help_names_are_there():
    done = [kperf(command, "--help", COLUMNS="400").stdout for command in ("instrument", "trace", "ttgir", "tune")]
    named = {word for text in done for word in re.findall(r"\b(?:kperf|plots|docs|results)/[\w/]+\.\w+", text)}
    assert named
    assert [word for word in named if not (ROOT / word).is_file()] == []


def test_help_lists_every_target():
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    phony = (ROOT / "Makefile").read_text().split(".PHONY:")[1].split("\n\n")[0].replace("\\", " ").split()
    assert sorted(phony) == sorted(line.split()[1] for line in listed.splitlines())


@pytest.mark.kernels
def test_an_edited_override_stops_fig12_before_anything_is_drawn(tmp_path, monkeypatch):
    root, results = tmp_path / "ttgir", tmp_path / "results"
    shutil.copytree(TTGIR_DIR, root)
    monkeypatch.setattr("kperf.attention.overrides.find", functools.partial(find, root=root))
    (results / "h200").mkdir(parents=True)
    for name in ("fig12.jsonl", "environment.json"):
        shutil.copy(RECORDED / "h200" / name, results / "h200")
    path = next((root / "improved").glob("*.ttgir"))
    path.write_text(path.read_text() + "\n")
    done = kperf("fig12", "--results", results)
    assert done.returncode == 2
    assert "was edited" in done.stderr
    assert "vanilla/d128_bf16_full.ttgir compiles to sm_90a in place of attn_fwd: in_order (no MMA is" in done.stdout
    assert {path.name for path in (results / "h200").iterdir()} == {"fig12.jsonl", "environment.json"}


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("", "OutOfMemoryError: OutOfMemoryError"),
        ("\n CUDA out of memory.\nsee", "OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_what_the_gpu_refuses_in_no_words_or_several_lines_is_one_sentence(said, sentence):
    assert failure_of_the_gpu(torch.OutOfMemoryError(said)) == sentence


def test_help_names_every_architecture():
    said = kperf("instrument", "--help", COLUMNS="400").stdout
    assert [one.name for one in KNOWN if one.name not in said] == []


def test_help_swallows_nothing_in_square_brackets():
    """Rich would take them for markup."""
    assert "# kperf: ignore[id] reason" in " ".join(kperf("diagnose", "--help").stdout.split())
