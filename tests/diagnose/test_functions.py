"""`file.py:function` and `package.module:function`, as packages have their kernels."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.command import kperf

KERNELS = '''
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .helpers.arithmetic import twice

@dataclass
class Options:
    rows: int

SMS = torch.cuda.get_device_properties("cuda").multi_processor_count


class Entry(triton.runtime.jit.KernelInterface):
    """As packages wrap what they launch."""

    def __init__(self, fn):
        self.fn = fn

    def run(self, *arguments, **options):
        return self.fn.run(*arguments, **options)


@Entry
@triton.heuristics({
    "BIASED": lambda given: given["bias_ptr"] is not None,
    "WIDE": lambda given: given["x_ptr"].dtype.itemsize == 4,
    "EVEN": lambda given: given["n"] % given["BLOCK"] == 0,
})
@triton.autotune([triton.Config({"BLOCK": 2048}, num_warps=8), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def scaled(x_ptr, bias_ptr, y_ptr, n, ACT: tl.constexpr, KIND: tl.constexpr, SHAPE: tl.constexpr,
           BLOCK: tl.constexpr, BIASED: tl.constexpr, WIDE: tl.constexpr, EVEN: tl.constexpr, num_warps: tl.constexpr):
    tl.static_assert(SHAPE[1] == num_warps)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = ACT(tl.load(x_ptr + i, mask=i < n)).to(KIND)
    if BIASED:
        x += tl.load(bias_ptr + i, mask=i < n)
    if WIDE:
        x = tl.exp(x)
    tl.store(y_ptr + i, x, mask=i < n)


@triton.jit
def pair(xs, y_desc, n: tl.constexpr):
    x = tl.load(xs[0] + tl.arange(0, n)) + tl.load(xs[1] + tl.arange(0, n))
    y_desc.store([0], x)
'''

HEURISTICS = """
import types
import triton, triton.language as tl

BLOCK = 32
settings = types.SimpleNamespace(tile=types.SimpleNamespace(BLOCK=256))


@triton.autotune([triton.Config({"BLOCK": 512, "EVEN": False})], key=["n"])
@triton.heuristics({
    "EVEN": lambda given: given["BLOCK"] % 16 == 0,
    "num_warps": lambda given: given["BLOCK"] // 64,
})
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.exp(tl.load(x + i)) if EVEN else tl.load(x + i))


@triton.heuristics({"EVEN": lambda given: given["BLOCK"] % 16 == 0})
@triton.jit
def plain(x, n, BLOCK: tl.constexpr = 64, EVEN: tl.constexpr = False):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.exp(tl.load(x + i)) if EVEN else tl.load(x + i))


@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def unknown(x, n, BLOCK: tl.constexpr = 64, EVEN: tl.constexpr = False):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.exp(tl.load(x + i)) if EVEN else tl.load(x + i))
"""
GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def copied(x_ptr, y_ptr, n: gl.constexpr):
    i = gl.arange(0, n, gl.BlockedLayout([4], [32], [4], [0]))
    gl.store(y_ptr + i, gl.load(x_ptr + i))
"""
SCALED = ("--constexpr", "ACT=:twice", "--constexpr", "KIND=tl.float32", "--constexpr", "EVEN=False")
TYPES = "*_ptr=*float32,bias_ptr=None,n=i32:16"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose kernels import what is beside them; `helpers` has no `__init__.py`."""
    root = tmp_path / "ours"
    (root / "helpers").mkdir(parents=True)
    (root / "__init__.py").write_text("GLOBAL = 1\n")
    (root / "kernels.py").write_text(KERNELS)
    (root / "gluon.py").write_text(GLUON)
    (root / "heuristics.py").write_text(HEURISTICS)
    (root / "helpers/arithmetic.py").write_text(
        "import triton\nfrom .. import GLOBAL\n\n@triton.jit\ndef twice(x):\n    return 2 * x\n"
    )
    monkeypatch.chdir(tmp_path)
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == "ours"]:
        del sys.modules[name]


def ttgir(*arguments):
    done = kperf("ir", *arguments, "--level", "ttgir")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["ours.kernels", "ours/kernels.py"])
def test_a_kernel_of_a_package_with_all_its_decorators(package, name):
    made = ttgir(f"{name}:scaled", "--signature", TYPES, *SCALED, "--constexpr", "SHAPE=(1, 8)")
    assert "2048x" in made  # of the autotuner's configuration that has eight warps, as SHAPE says
    assert "math.exp" in made  # WIDE, of a float32
    assert made.count("tt.load") == 1  # not BIASED, of None


def test_a_package_that_needs_what_is_not_here_is_left_out(package):
    (package / "__init__.py").write_text("import an_extension_for_a_gpu\nGLOBAL = 1\n")
    helpers = package / "helpers/arithmetic.py"
    helpers.write_text(helpers.read_text().replace("from .. import GLOBAL\n", ""))
    arguments = ("--signature", TYPES, *SCALED, "--constexpr", "SHAPE=(1, 8)")
    done = kperf("ir", f"{package}/kernels.py:scaled", *arguments)
    assert "2048x" in done.stdout
    assert "ours cannot be imported (ModuleNotFoundError: No module named 'an_extension_for_a_gpu')" in done.stderr


def test_each_file_of_a_package_that_is_left_out_is_said(package):
    (package / "__init__.py").write_text("from . import gluon\nimport an_extension_for_a_gpu\n")
    said = "ours cannot be imported (ModuleNotFoundError: No module named 'an_extension_for_a_gpu')"
    types = ("--signature", "*fp32,*fp32", "--constexpr", "n=512")
    for file in ("gluon", "other"):
        (package / f"{file}.py").write_text(GLUON)
        done = kperf("ir", f"{package}/{file}.py:copied", *types)
        assert done.returncode == 0, done.stderr
        assert f"{said}: {package}/{file}.py is, without its __init__.py" in done.stderr, file
        assert "ours" not in sys.modules


def test_a_file_of_a_package_that_is_left_out_is_read_alike_each_time(package):
    (package / "__init__.py").write_text("from .helpers import arithmetic\nimport an_extension_for_a_gpu\n")
    (package / "helpers/__init__.py").write_text("")
    (package / "helpers/arithmetic.py").write_text("import ours.helpers\nours.helpers\n" + GLUON)
    types = ("--signature", "*fp32,*fp32", "--constexpr", "n=512")
    for file in ("helpers/__init__", "helpers/arithmetic", "helpers/arithmetic", "gluon", "gluon"):
        done = kperf("ir", f"{package}/{file}.py:copied", *types)
        assert "cannot be imported (ModuleNotFoundError: No module named 'an_extension_for_a_gpu')" in done.stderr, file
        assert done.stdout.startswith("copied") or file == "helpers/__init__", done.stderr
        assert not [name for name in sys.modules if name.partition(".")[0] == "ours"]


def test_a_module_that_ends_early_is_said_to_each_time(package):
    (package / "kernels.py").write_text(f"{KERNELS}\nimport what_is_not_here\n@triton.jit\ndef last(x):\n    pass\n")
    for _ in range(2):
        done = kperf("ir", "ours.kernels:last", "--signature", "*fp32")
        assert "no kernel last (it ended with ModuleNotFoundError: No module named 'what_is_not_here')" in done.stderr


def test_a_wrong_value_is_said_with_the_line_of_the_kernel(package):
    done = kperf("ir", "ours.kernels:scaled", "--signature", TYPES, *SCALED, "--constexpr", "SHAPE=(1, 3)")
    line = KERNELS.splitlines().index("    tl.static_assert(SHAPE[1] == num_warps)") + 1
    assert done.returncode == 2
    assert f"does not compile for sm_90a: kernels.py:{line}: " in done.stderr


@pytest.mark.parametrize("word", ["{[]: 1}", "-" * 20_000 + "1"], ids=["unhashable", "deep"])
def test_a_value_that_is_no_literal_is_a_string(package, word):
    constants = ("--constexpr", f"BLOCK={word}", "--constexpr", "EVEN=False")
    done = kperf("ir", "ours.heuristics:plain", "--signature", "*fp32,i32", *constants)
    assert done.returncode == 2
    assert re.fullmatch(r"kperf: it does not compile for sm_90a: heuristics\.py:\d+: arange's .*\n", done.stderr)


def test_what_no_heuristic_can_say_is_asked_for(package):
    few = [*SCALED[:4], "--constexpr", "SHAPE=(1, 8)"]
    done = kperf("ir", "ours.kernels:scaled", "--signature", TYPES, *few)
    assert done.stderr.endswith("has constants of no value: give --constexpr EVEN=...\n")
    done = kperf("ir", "ours.kernels:scaled")
    assert "give the types of x_ptr, bias_ptr, y_ptr, n with --signature" in done.stderr
    assert "--constexpr NAME=value for ACT, KIND, SHAPE, BIASED, WIDE, EVEN\n" in done.stderr


def test_a_heuristic_counts_more_than_a_default_and_a_configuration_and_less_than_what_is_given(package):
    few = ("--signature", "*fp32,i32")
    assert "math.exp" in ttgir("ours.heuristics:plain", *few)
    assert "math.exp" not in ttgir("ours.heuristics:plain", *few, "--constexpr", "EVEN=False")
    made = ttgir("ours.heuristics:tuned", *few)
    assert "math.exp" in made
    assert '"ttg.num-warps" = 8' in made  # of 512 elements, as the heuristic says
    assert '"ttg.num-warps" = 2' in ttgir("ours.heuristics:tuned", *few, "--num-warps", "2")


def test_what_a_heuristic_computes_is_not_asked_for_and_a_default_never_stands_for_what_it_cannot(package):
    asked = kperf("ir", "ours.heuristics:tuned").stderr
    assert "give the types of x, n with --signature" in asked
    assert "--constexpr" not in asked
    done = kperf("ir", "ours.heuristics:unknown", "--signature", "*fp32,i32")
    assert done.stderr.endswith("unknown has constants of no value: give --constexpr EVEN=...\n")


def test_a_name_of_the_module_may_have_attributes(package):
    few = ("ours.heuristics:plain", "--signature", "*fp32,i32")
    assert "tensor<256x" in ttgir(*few, "--constexpr", "BLOCK=:settings.tile.BLOCK")
    assert "tensor<32x" in ttgir(*few, "--constexpr", "BLOCK=:BLOCK")
    for word in (":settings.BLOCK", ":settings.tile.LOCK", ":tile", "tl.tile", "tl.math.tile"):
        done = kperf("ir", *few, "--constexpr", f"BLOCK={word}")
        assert (done.returncode, f"there is no {word.removeprefix(':')}\n" in done.stderr) == (2, True)


def test_tuples_and_descriptors_are_arguments(package):
    types = "(*fp32,*fp32),tensordesc<fp32[256]>"
    made = ttgir("ours.kernels:pair", "--signature", types, "--constexpr", "n=256")
    assert made.count("tt.load") == 2
    assert "tma_copy_local_to_global" in made
    assert made.count("tt.divisibility = 16") == 2


def test_a_gluon_function_is_compiled_as_one(package):
    made = ttgir(f"{package / 'gluon.py'}:copied", "--signature", "*fp32,*fp32", "--constexpr", "n=512")
    assert "tensor<512x!tt.ptr<f32>, #blocked>" in made
    done = kperf(
        "diagnose", "--static", "ours.gluon:copied", "--signature", "*fp32,*fp32", "--constexpr", "n=512", "--json"
    )
    assert json.loads(done.stdout)["kernels"][0]["kernel"] == "copied"


def test_a_file_that_is_not_the_module_that_is_imported_is_refused(package, tmp_path):
    other = tmp_path / "elsewhere/ours"
    other.mkdir(parents=True)
    (other / "__init__.py").touch()
    (other / "kernels.py").write_text(KERNELS)
    ttgir(f"{package}/gluon.py:copied", "--signature", "*fp32,*fp32", "--constexpr", "n=512")
    done = kperf("ir", f"{Path('elsewhere/ours/kernels.py')}:pair", "--signature", "*fp32,*fp32")
    assert done.returncode == 2
    assert f"and here ours.kernels is {package / 'kernels.py'}: name the kernel there" in done.stderr


def test_what_ptxas_refuses_is_said_in_its_words(package):
    (package / "assembly.py").write_text(
        "import triton, triton.language as tl\n\n@triton.jit\ndef kernel(x):\n    i = tl.arange(0, 128)\n"
        "    v = tl.inline_asm_elementwise('nonsense.f32 $0, $1;', '=r,r', [tl.load(x + i)], tl.int32, True, 1)\n"
        "    tl.store(x + i, v)\n"
    )
    done = kperf("ir", "ours.assembly:kernel", "--signature", "*i32")
    assert done.returncode == 2
    assert "does not compile for sm_90a: ptxas " in done.stderr
    assert "'nonsense'" in done.stderr
    assert "--gpu-name" not in done.stderr


def test_a_file_may_have_a_point_in_its_name(tmp_path):
    source = "import triton, triton.language as tl\n@triton.jit\ndef twice(x):\n    tl.store(x, 2 * tl.load(x))\n"
    (tmp_path / "scale.v2.py").write_text(source)
    done = kperf("diagnose", "--static", f"{tmp_path}/scale.v2.py:twice", "--signature", "*fp32", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["kernel"] for one in json.loads(done.stdout)["kernels"]] == ["twice"]
