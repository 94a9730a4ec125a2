"""Kernels that Triton's cache knows from an earlier state of their file, or of another: lines are those of now."""

import importlib.util
import sys

import pytest

from kperf.compat.triton.cache import own_cache
from kperf.ir import compile as compiler
from kperf.ir.kept import levels_of_compiled
from kperf.ir.locations import STAYED
from kperf.trace.capture.instrumented import make_instrumented
from kperf.trace.instrument.events import read_rules

HELPERS = """
import triton
import triton.language as tl
#above
@triton.jit
#between
def squashed(x):
    return tl.sigmoid(x)
"""

KERNELS = """
import triton
import triton.language as tl
from helpers_that_move import squashed

@triton.jit
def doubled(x):
    return x + x
#above
@triton.jit
#between
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, squashed(doubled(x)), mask=i < n)
"""

SIGNATURE = {"x_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}


@pytest.fixture
def compiled(monkeypatch):
    """Compile the kernel of the files in a folder, as a process that has just imported them does."""

    def module(folder, name):
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        monkeypatch.setitem(sys.modules, name, made := importlib.util.module_from_spec(spec))
        spec.loader.exec_module(made)
        return made

    def compile_there(folder, cache):
        module(folder, "helpers_that_move")
        kernel = module(folder, "kernels_that_move").kernel
        with own_cache(cache):
            return compiler.compile_kernel(kernel, SIGNATURE, {"BLOCK": 256})

    return compile_there


def write(folder, kernels, helpers):
    """The first lines of the decorators stay where they are: another text and another line are another key."""
    folder.mkdir(exist_ok=True)
    for name, text, (above, between) in (("kernels", KERNELS, kernels), ("helpers", HELPERS, helpers)):
        lines = text.replace("#above\n", "#\n" * above).replace("#between\n", "#\n" * between)
        (folder / f"{name}_that_move.py").write_text(lines)


@pytest.mark.parametrize(
    ("folder", "kernels", "helpers"),
    [
        ("one", (1, 3), (1, 0)),
        ("one", (1, 0), (1, 2)),
        ("one", (1, 3), (1, 2)),
        ("other", (1, 0), (1, 0)),
        ("other", (1, 3), (1, 2)),
    ],
)
def test_lines_of_each_level_are_those_of_the_files_as_they_are(compiled, tmp_path, folder, kernels, helpers):
    write(tmp_path / "one", (1, 0), (1, 0))
    before = compiled(tmp_path / "one", tmp_path / "cache")
    write(tmp_path / folder, kernels, helpers)
    now = compiled(tmp_path / folder, tmp_path / "cache")
    assert now.asm["source"] == before.asm["source"]  # of the cache
    with own_cache(tmp_path / "cache"):
        levels, found = levels_of_compiled(now), compiler.read_compiled(now)
    anew = compiled(tmp_path / folder, tmp_path / "empty")
    with own_cache(tmp_path / "empty"):
        assert levels == levels_of_compiled(anew)
        assert found.code == compiler.read_compiled(anew).code
    assert set(levels) == {"ttir", "ttgir", "llir", "ptx", "sass"}
    assert found.ttgir == anew.asm["ttgir"]
    assert found.ttgir != found.texts["ttgir"]


def test_regions_of_a_trace_are_at_lines_of_the_files_as_they_are(compiled, tmp_path):
    write(tmp_path / "one", (3, 0), (1, 0))
    compiled(tmp_path / "one", tmp_path / "cache")
    write(tmp_path / "one", (3, 2), (1, 0))
    now = compiled(tmp_path / "one", tmp_path / "cache")
    made = make_instrumented(now, 4, tmp_path, memory=1 << 20, regions=("*",), rules=read_rules())
    lines = (tmp_path / "one/kernels_that_move.py").read_text().splitlines()
    places = {one.name: one.source[1] for one in made.program.intervals.values() if one.source}
    loaded, stored = (next(n for n, line in enumerate(lines, 1) if word in line) for word in ("tl.load", "tl.store"))
    assert (places["load x"], places["store x"]) == (loaded, stored)


def test_of_a_kernel_that_compiles_no_longer_the_lines_are_those_that_were_compiled(compiled, tmp_path, monkeypatch):
    write(tmp_path / "one", (1, 0), (1, 0))
    compiled(tmp_path / "one", tmp_path / "cache")
    write(tmp_path / "other", (1, 2), (1, 0))
    kernel = compiled(tmp_path / "other", tmp_path / "cache")
    monkeypatch.delattr(sys.modules["kernels_that_move"], "doubled")
    found = compiler.read_compiled(kernel)
    assert found.moved is STAYED
    assert found.ttgir == kernel.asm["ttgir"]
