"""The image as it was built: small enough, labelled, clean, and fit for a hostile host."""

import re
from pathlib import Path
from typing import Any

import pytest

from kperf import __version__
from kperf.container import BuiltImage
from kperf.record.commit import git_commit
from kperf.record.store import RECORDED, recorded_folder

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
PINNED = {
    name: re.search(rf"^{name}==(\S+)", (ROOT / "requirements/lock.txt").read_text(), re.MULTILINE)[1]
    for name in ("torch", "triton", "fa3-fwd")
}


def test_is_of_a_reasonable_size(built: BuiltImage) -> None:
    assert built.bytes < 7e9
    assert built.layers <= 10


def test_labels_say_what_is_inside(built: BuiltImage, engine: Any) -> None:
    labels = engine.images.get(built.tag).labels
    assert labels["org.opencontainers.image.revision"] == git_commit()
    assert labels["org.opencontainers.image.version"] == __version__
    assert {name: labels[f"kperf.{name}"] for name in PINNED} == PINNED


def test_holds_the_locked_packages_and_nothing_broken(inside: Any) -> None:
    check = inside("python", "-m", "pip", "check")
    assert check.status == 0, check.out
    versions = inside(
        "python",
        "-c",
        "import importlib.metadata as m; print(*(m.version(n).split('+')[0] for n in ('torch', 'triton', 'fa3-fwd')))",
    )
    assert versions.out.split() == list(PINNED.values())


def test_nothing_is_world_writable_or_belongs_to_the_user(inside: Any) -> None:
    """But for what has the sticky bit, as /tmp has, and the results."""
    writable = "find / -xdev -perm -0002 ! -type l ! -perm -1000; find / -xdev -user 1000 ! -path '/results*'"
    found = inside("bash", "-c", writable, user="0:0", cap_drop=[])
    assert found.out == ""


def test_no_index_address_and_no_secret_in_any_layer(built: BuiltImage, engine: Any, inside: Any) -> None:
    history = "\n".join(str(layer["CreatedBy"]) for layer in engine.images.get(built.tag).history())
    assert "COPY" in history
    assert not re.search(r"https?://|index-url|token|password", history)
    listed = inside("ls", "-A", "/opt/kperf").out.split()
    assert {"kperf", "ttgir", "Makefile", "requirements"} <= set(listed)
    assert not {".git", ".venv", ".lab", ".whl"} & set(listed)


def test_checkout_modes_do_not_leak(inside: Any) -> None:
    unreadable = inside("bash", "-c", "find /opt/kperf ! -type l ! -perm -0004; find /opt/kperf -perm /0022 ! -type l")
    assert unreadable.out == ""


def test_doctor_says_static_and_why_in_two_seconds(inside: Any) -> None:
    told = inside("bash", "-c", "time kperf doctor")
    assert told.status == 0, told.out
    assert (
        "`kperf diagnose`: no GPU in this container: on a host with a Hopper GPU, start it with --gpus all" in told.out
    )
    minutes, seconds = re.search(r"real\s+(\d+)m([\d.]+)s", told.out).groups()
    assert int(minutes) == 0
    assert float(seconds) < 2


def test_doctor_names_a_cache_that_forbids_execution(inside: Any) -> None:
    program = "from kperf.record.machine import probe; print(probe().why_no_launcher)"
    told = inside("python", "-c", program, tmpfs={"/tmp": "rw,noexec", "/out": "rw,mode=1777"})
    assert "forbids execution: mount it without noexec (--tmpfs /tmp:exec)" in told.out


def test_doctor_says_no_where_triton_cannot_write_and_a_figure_says_why(inside: Any) -> None:
    environment = {"KPERF_RESULTS": "/out", "TRITON_CACHE_DIR": "/opt/cache"}
    told = inside("kperf", "doctor", environment=environment)
    assert told.status == 1
    said = "Triton's cache /opt/cache cannot be written (Read-only file system): set TRITON_CACHE_DIR to another folder"
    assert f"`kperf ir`: {said}" in told.out
    assert "no   ttgir, the overrides compiled and checked: for the same reason" in told.out
    told = inside("kperf", "fig12", environment=environment)
    assert told.status == 1
    assert (
        told.out == "kperf: /opt/cache cannot be used (Read-only file system): set TRITON_CACHE_DIR to another folder\n"
    )


def test_triton_can_compile_and_load_a_launcher(inside: Any) -> None:
    """gcc, Python.h and a cache that may be executed: what the first launch on a GPU needs."""
    program = (
        "from triton.runtime.build import compile_module_from_src as compile\n"
        "source = '''#include <Python.h>\n"
        "static PyObject *f(PyObject *s, PyObject *a) { return PyLong_FromLong(42); }\n"
        'static PyMethodDef m[] = {{"f", f, METH_NOARGS, ""}, {0}};\n'
        'static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "launcher", 0, -1, m};\n'
        "PyMODINIT_FUNC PyInit_launcher(void) { return PyModule_Create(&d); }'''\n"
        "print(compile(source, 'launcher').f())\n"
    )
    built = inside("python", "-c", program)
    assert built.out.strip() == "42"


@pytest.mark.parametrize("user", ["1000:1000", "12345:54321", "0:0"])
def test_runs_as_any_user(inside: Any, user: str) -> None:
    done = inside("bash", "-c", "python -c 'import torch, triton, kperf.cli' && touch /out/mine && id -u", user=user)
    assert (done.status, done.out.strip()) == (0, user.partition(":")[0]), done.out


def test_overrides_compile_as_a_stranger(inside: Any) -> None:
    """Those of one variant; all of them are compiled before the figures are drawn."""
    program = (
        "from kperf.attention.variants import variant_named as named; from kperf.console import of_standard_output\n"
        "from kperf.paper.fig12 import verify_overrides; verify_overrides(of_standard_output(), [named('vanilla')])"
    )
    done = inside("python", "-c", program, user="12345:54321")
    assert done.status == 0, done.out
    assert "override vanilla/d128_bf16_full.ttgir compiles to sm_90a in place of attn_fwd" in done.out


def test_a_results_folder_that_is_not_writable_is_one_sentence(inside: Any) -> None:
    told = inside("make", "fig12", environment={}, user="12345")
    assert told.status == 2
    assert told.out.startswith("kperf: /results is not writable by user 12345: mount a folder you own")
    assert len(told.out.strip().splitlines()) == 1


def test_a_container_without_a_folder_for_what_is_temporary_is_one_sentence(inside: Any) -> None:
    told = inside("make", "fig12", tmpfs={"/out": "rw,mode=1777"})
    assert told.status == 2
    assert re.fullmatch(r"kperf: /tmp cannot be written, .*: start the container with --tmpfs /tmp:exec\n", told.out)


def test_a_volume_that_is_too_small_is_a_sentence_and_stays_empty(inside: Any) -> None:
    """Of 200 KB; what is then put into a larger one that holds cut files is whole."""
    small = {"/tmp": "rw,exec,mode=1777", "/out": "rw,mode=1777,size=200k"}
    told = inside("make", "fig12", tmpfs=small)
    assert told.status == 2
    assert re.fullmatch(r"kperf: the recorded runs \([\d.]+ MB\) cannot be put into /out .*larger volume.*\n", told.out)
    script = "docker/entrypoint.sh true; find /out -type f; df /out | tail -1 | tr -s ' ' | cut -d ' ' -f 3"
    left = inside("-c", script, tmpfs=small, entrypoint="bash")
    assert left.out.splitlines()[1:] == ["0"]
    script = "mkdir /out/h200; touch /out/h200/fig12.jsonl; docker/entrypoint.sh kperf doctor; kperf restore"
    said = inside("-c", f"{script}; kperf doctor", entrypoint="bash").out
    assert "kperf: /out/h200/fig12.jsonl is empty or cut short: `python -m kperf restore --results /out`" in said
    assert "no   fig11 and fig12, drawn from recorded runs: /out/h200/fig12.jsonl is empty or cut short" in said
    assert "restored /out/h200/fig12.jsonl" in said
    gpus = ", ".join(sorted(path.parent.name for path in RECORDED.glob("*/fig12.jsonl")))
    assert f"yes  fig11 and fig12, drawn from recorded runs: recorded on {gpus}" in said


def test_the_originals_script_prints_the_recorded_panel(inside: Any) -> None:
    printed = inside("./bench_fa.sh", "vanilla", "seq_len")
    assert printed.status == 0
    newest = recorded_folder(RECORDED, "fig12.jsonl", gpu=None).name
    assert printed.out.startswith(f"static: recorded in {newest}; no GPU in this container")
    assert "vanilla-tflops" in printed.out
    printed = inside("./bench_fa.sh")
    assert (printed.status, printed.out) == (
        2, "usage: bench_fa.sh <improved|improved_plus|vanilla> <seq_len|batch_size> [options]\n"
    )  # fmt: skip


def test_make_check_passes(inside: Any) -> None:
    told = inside("make", "check")
    assert told.status == 0, told.out
    assert "Success: no issues found in" in told.out


def test_make_test_passes(inside: Any) -> None:
    chosen = [
        "tests/attention/test_workload.py",
        "tests/bench/test_points.py",
        "tests/test_container.py",
        "tests/record",
    ]
    ran = inside("make", "test", f"OPTIONS=-q {' '.join(chosen)}")
    assert ran.status == 0, ran.out
    assert " passed" in ran.out
