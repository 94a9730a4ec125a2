"""docs/howto.md's way to step through a kernel without a GPU: its script and its commands, as they stand there."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch

SECTION = (Path(__file__).resolve().parents[1] / "docs/howto.md").read_text()
SECTION = SECTION.partition("## Step through a kernel without a GPU")[2].partition("\n## ")[0]
(SCRIPT,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
RUN, DEBUG = re.findall(r"^    (TRITON_INTERPRET=1 python .*)$", SECTION, re.MULTILINE)


def run(line, folder, *more):
    """A command of the page, with further arguments before the script's name."""
    variable, python, *arguments = shlex.split(line)
    assert (variable, python, arguments[-1]) == ("TRITON_INTERPRET=1", "python", "matmul.py")
    command = [sys.executable, *arguments[:-1], *more, arguments[-1]]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def test_the_script_is_right_on_the_interpreter(tmp_path):
    (tmp_path / "matmul.py").write_text(SCRIPT)
    done = run(RUN, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


SEVERAL = """
import runpy, sys
for script in sys.argv[1:]:
    try:
        runpy.run_path(script, run_name="__main__")
    except AssertionError as error:
        print(script, str(error).strip().splitlines()[0])
    else:
        print(script, "right")
"""
"""Runs scripts in one process: to import torch and Triton takes seconds."""


def test_native_bfloat16_dots_are_wrong_there_and_others_are_not(tmp_path):
    native = SCRIPT.replace("if INTERPRETED:", "if False:")
    other = native.replace("torch.bfloat16", "torch.float16")
    assert len({SCRIPT, native, other}) == 3
    for name, text in (("native.py", native), ("matmul.py", other)):
        (tmp_path / name).write_text(text)
    done = run(RUN, tmp_path, "-c", SEVERAL, "native.py")
    # When the first is right, Triton has fixed it: say so on the page.
    assert done.stdout == "native.py Tensor-likes are not close!\nmatmul.py right\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_pdb_stops_in_the_kernel_and_shows_a_tile(tmp_path):
    (tmp_path / "matmul.py").write_text(SCRIPT)
    stop = int(re.search(r"b matmul\.py:(\d+)", DEBUG)[1])
    assert "tl.dot(" in SCRIPT.splitlines()[stop - 1]
    done = run(DEBUG, tmp_path, "-c", "p start", "-c", "p tl.max(x)", "-c", "clear 1", "-c", "c", "-c", "q")
    torch.manual_seed(0)
    largest = torch.randn(32, 128, dtype=torch.bfloat16)[:, :64].max().item()
    assert "shape=(32, 64), dtype=float32)\n0\n" in done.stdout
    assert f"[{largest}]" in done.stdout
    assert "The program finished and will be restarted" in done.stdout
    assert done.stderr == ""
