"""`%%kperf` in IPython, where that is installed; `_repr_html_` and the registration everywhere."""

import sys
from types import SimpleNamespace

import pytest

import kperf
from tests.test_api import kernels
from tests.trace.capture import fake_gpu

__all__ = ["kernels"]


def shell_of_its_own(kernels):
    InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    shell = InteractiveShell(user_ns={"step": kernels})
    shell.run_line_magic("load_ext", "kperf")
    return shell


def test_a_cell_is_traced_and_its_report_shown(kernels, capsys):
    shell = shell_of_its_own(kernels)
    done = shell.run_cell("%%kperf gemm plus --passes 1\nx = 3\nstep.run(x)\n")
    assert done.success
    found = shell.user_ns["_"]  # what was shown
    assert list(found.kernels) == ["gemm"]
    assert shell.user_ns["x"] == 3
    data, _ = shell.display_formatter.format(found)
    assert data["text/html"].startswith("<iframe srcdoc=")
    assert [launch.traced for launch in fake_gpu.LAUNCHES] == [True, False, True]


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("%%kperf nothing\nstep.run(1)", "UsageError: no Triton kernel is called nothing, but gemm"),
        ("%%kperf --launch x\nstep.run(1)", "UsageError: %%kperf: argument --launch: invalid int value: 'x'"),
        ("%%kperf gem'm\nstep.run(1)", "UsageError: %%kperf: No closing quotation"),
        ("%%kperf --launch 0\nstep.run(1)", "UsageError: launch=0 is no launch: the first is 1"),
        ("%%kperf\n1 / 0", "ZeroDivisionError"),
    ],
)
def test_what_goes_wrong_is_said_once(kernels, capsys, cell, said):
    shell = shell_of_its_own(kernels)
    shell.run_cell(cell)
    out, err = capsys.readouterr()
    assert (out + err).count(said) == 1 if "Zero" not in said else said in out + err
    assert "Traceback" not in err
    shell.run_cell("step.run(1)")
    assert not fake_gpu.LAUNCHES[-1].traced


def test_without_the_packages_of_the_report_its_sentence_is_shown(kernels, monkeypatch):
    with kperf.trace("gemm", passes="1") as t:
        kernels.run(1)
    monkeypatch.setitem(sys.modules, "kperf.report.html", None)
    monkeypatch.delattr("kperf.report.html", raising=False)
    shown = t._repr_html_()
    assert shown.startswith("<pre>gemm: ")
    assert "iframe" not in shown


def test_the_extension_registers_one_magic(monkeypatch):
    pytest.importorskip("IPython")
    registered = []
    shell = SimpleNamespace(register_magic_function=lambda function, kind, name: registered.append((kind, name)))
    kperf.load_ipython_extension(shell)
    assert registered == [("cell", "kperf")]
