"""The example scripts know nothing of this package, and are right: here on Triton's interpreter, and on a GPU."""

import importlib
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]

ON_THE_INTERPRETER = """
import json, runpy
import torch
from torch.nn.functional import layer_norm, scaled_dot_product_attention

def script(name):
    return runpy.run_path(f"examples/{name}.py")

def error(found, exact):
    return float(((found.float() - exact).norm() / exact.norm()).detach())

torch.manual_seed(0)
errors = {}
x, y = torch.randn(2, 3000)
errors["vector_add"] = error(script("vector_add")["vector_add"](x, y), x + y)
x = torch.randn(3, 700)
errors["softmax"] = error(script("softmax")["softmax"](x), x.softmax(1))
x, weight, bias = torch.randn(3, 5000), *torch.randn(2, 5000)
errors["layer_norm"] = error(script("layer_norm")["layer_norm"](x, weight, bias), layer_norm(x, (5000,), weight, bias))
a, b = torch.randn(2, 256, 256).half()
exact = a.float() @ b.float()
errors["gemm"] = error(script("gemm")["gemm"](a, b, 3), exact)
errors["gemm_tma"] = error(script("gemm_tma")["gemm"](a, b), exact)
errors["gemm_persistent_ws"] = error(script("gemm_persistent_ws")["gemm"](a, b.T.contiguous(), 3), exact)
errors["split_k"] = error(script("split_k")["gemm"](a, b, 2), exact)
moe = script("moe")
x, w, chosen = torch.randn(600, 128).half(), torch.randn(8, 128, 128).half(), moe["hot_choice"](600, 8)
errors["moe"] = error(moe["experts"](x, w, chosen), torch.einsum("tk,tkn->tn", x.float(), w[chosen].float()))
q, (k, v) = torch.randn(1, 2, 16, 64).half(), torch.randn(2, 1, 2, 512, 64).half()
exact = scaled_dot_product_attention(q.float(), k.float(), v.float())
errors["flash_decoding"] = error(script("flash_decoding")["decode"](q.view(1, 32, 64), k, v, 2).view(q.shape), exact)
for causal in (False, True):
    q, k, v, do = torch.randn(4, 1, 2, 256, 64).half()
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    o = script("attention")["Attention"].apply(*leaves, causal)
    exact = [tensor.float().requires_grad_() for tensor in (q, k, v)]
    expected = scaled_dot_product_attention(*exact, is_causal=causal)
    found = [o, *torch.autograd.grad(o, leaves, do)]
    wanted = [expected, *torch.autograd.grad(expected, exact, do.float())]
    for name, one, other in zip(("o", "dq", "dk", "dv"), found, wanted):
        errors[f"attention {'causal ' if causal else ''}{name}"] = error(one, other)
print(json.dumps(errors))
"""


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    """Example -> relative error of its kernels, float16 or float32, on Triton's interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", ON_THE_INTERPRETER],
        cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


ATTENTION = [f"attention {mask}{name}" for mask in ("", "causal ") for name in ("o", "dq", "dk", "dv")]


@pytest.mark.parametrize(
    "name",
    [
        "vector_add", "softmax", "layer_norm", "gemm", "gemm_tma", "gemm_persistent_ws", "split_k", "moe",
        "flash_decoding", *ATTENTION,
    ],
)  # fmt: skip
def test_the_kernels_of_an_example_are_right(name: str, errors: dict[str, float]):
    assert errors[name] < 1e-3


OF_THE_OPERATOR = ROOT / "examples" / "llama_block.py"
"""Shows kperf's operator in a program; all others are traced, and know nothing of it."""


@pytest.mark.gpu
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_as_it_is_and_finds_itself_right(path: Path):
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert (" ms" in done.stdout) == (path != OF_THE_OPERATOR)


def run(path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    path_of_modules = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path_of_modules} | settings
    command = [sys.executable, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_example_knows_nothing_of_kperf(path: Path):
    assert ("kperf" in path.read_text()) == (path == OF_THE_OPERATOR)


def test_the_block_with_our_attention_is_one_graph(monkeypatch):
    monkeypatch.syspath_prepend(OF_THE_OPERATOR.parent)
    llama_block = importlib.import_module("llama_block")
    block = llama_block.Llama(heads=4, kv_heads=2, head_dim=64, hidden=512)
    x, angles = torch.randn(1, 128, 256), llama_block.angles(128, 64, "cpu", torch.float32)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        found, expected = (run(x, *angles, llama_block.ours) for run in (compiled, block))
    assert torch.allclose(found, expected, atol=1e-6)


def test_the_block_with_our_attention_is_the_same_block_whatever_computes_it(monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(sys, "argv", [str(OF_THE_OPERATOR)])
    monkeypatch.syspath_prepend(OF_THE_OPERATOR.parent)
    runpy.run_path(str(OF_THE_OPERATOR), run_name="__main__")
    equal, by_whom = capsys.readouterr().out.splitlines()
    assert all(float(error.rstrip(",")) < 1e-5 for error in equal.split() if "e-" in error)
    assert equal.count("e-") == 2
    assert by_whom.startswith("no kernel of kperf's computed it here: ")
