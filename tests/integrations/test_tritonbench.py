"""Our overrides inside tritonbench: in a stand-in of its registering interface, and in a checkout where there is one.

The stand-in has the names, signatures and order of calls of meta-pytorch/tritonbench as this program uses them, and
nothing else of it. With TRITONBENCH_DIR set, the same is asked of the real one.
"""

import os
import sys
from contextlib import contextmanager

import pytest

from kperf.integrations import operator, tritonbench
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.command import kperf

ARGUMENTS = [
    *("--op", "flash_attention", "--only", "aten,kperf_vanilla", "--metrics", "accuracy", "--seq-len", "7"),
    *("--batch", "1", "--n-heads", "2", "--d-head", "128", "--num-inputs", "1", "--device", "cpu"),
]

TRITON_OP = """
REGISTERED_BENCHMARKS = {}

def register_benchmark(operator_name=None, func_name=None, baseline=False, enabled=True, fwd_only=False, label=None):
    def decorator(function):
        REGISTERED_BENCHMARKS.setdefault(operator_name, {})[func_name or function.__name__] = label
        return lambda self, *args, **kwargs: function(self, *args, **kwargs)
    return decorator
"""

OPERATOR = """
import torch
from tritonbench.utils.triton_op import register_benchmark

class Operator:
    def __init__(self, causal, head_dim):
        self.causal, self.sm_scale = causal, head_dim**-0.5

    @register_benchmark(operator_name="flash_attention", func_name="aten", baseline=True)
    def aten(self, q, k, v):
        def inner():
            scores = q @ k.transpose(2, 3) * self.sm_scale
            if self.causal:
                scores[:, :, torch.ones(scores.shape[2:]).tril() == 0] = float("-inf")
            return scores.float().softmax(-1).to(q.dtype) @ v
        return inner
"""

RUN = """
import argparse
import sys
import torch
from tritonbench.operators.flash_attention.operator import Operator
from tritonbench.utils.triton_op import REGISTERED_BENCHMARKS

parser = argparse.ArgumentParser()
for name in ("op", "only", "metrics", "device"):
    parser.add_argument(f"--{name}")
for name in ("seq-len", "batch", "n-heads", "d-head", "num-inputs"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--causal", action="store_true")
parser.add_argument("--list-backends", action="store_true")
args = parser.parse_args()
if args.list_backends:
    print(*REGISTERED_BENCHMARKS[args.op], sep="\\n")
    sys.exit()

def run():
    operator = Operator(args.causal, args.d_head)
    shape = (args.batch, args.n_heads, args.seq_len, args.d_head)
    q, k, v = (torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    try:
        expected, *found = (getattr(operator, name)(q, k, v)() for name in args.only.split(","))
        close = [torch.allclose(o, expected, rtol=1e-2, atol=2e-2) for o in found]
        print(tuple(shape), close)
    finally:
        return  # as tritonbench does: what was raised is gone

run()
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    for path, text in {
        "run.py": RUN,
        "tritonbench/__init__.py": "",
        "tritonbench/utils/__init__.py": "",
        "tritonbench/utils/triton_op.py": TRITON_OP,
        "tritonbench/operators/__init__.py": "",
        "tritonbench/operators/flash_attention/__init__.py": "",
        "tritonbench/operators/flash_attention/operator.py": OPERATOR,
    }.items():
        (tmp_path / "bench" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bench" / path).write_text(text)
    monkeypatch.setenv("TRITONBENCH_DIR", str(tmp_path / "bench"))


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """What a run puts into this process is gone after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tritonbench, "_refused", [])
    operator._launcher.cache_clear()
    yield
    operator._launcher.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "tritonbench"]:
        del sys.modules[name]


def test_the_stand_in_runs_ours_beside_its_own(attending_gpu, stand_in):  # noqa: F811
    for causal in ([], ["--causal"]):
        done = kperf("tritonbench", *ARGUMENTS, *causal)
        assert (done.returncode, done.stdout) == (0, "(1, 2, 128, 128) [True]\n")
        assert done.stderr == "--seq-len 7: 2^7 = 128 rows\n"
    assert [launch.name for launch in attending_gpu] == ["attn_fwd"] * 2


def test_every_override_is_registered_without_a_gpu(stand_in):
    done = kperf("tritonbench", "--op", "flash_attention", "--list-backends")
    assert done.returncode == 0
    assert done.stdout.split() == ["aten", "kperf_vanilla", "kperf_improved", "kperf_improved_plus"]


def test_it_measures_alone_and_lists_whoever_measures(attending_gpu, stand_in, monkeypatch):  # noqa: F811
    entered = []

    @contextmanager
    def exclusive():
        entered.append("alone")
        yield

    monkeypatch.setattr(tritonbench.device, "exclusive", exclusive)
    assert kperf("tritonbench", "--op", "flash_attention", "--list-backends").returncode == 0
    assert not entered
    assert kperf("tritonbench", *ARGUMENTS).returncode == 0
    assert entered == ["alone"]


def test_what_ours_does_not_compute_is_no_result(attending_gpu, stand_in):  # noqa: F811
    done = kperf("tritonbench", *[{"7": "200"}.get(word, word) for word in ARGUMENTS])
    assert done.returncode == 2
    refused = "kperf: kperf_vanilla does not compute this input: seq_len: seq_len 200 is not a multiple of 128\n"
    assert done.stderr == refused
    assert not attending_gpu


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (ARGUMENTS, "tritonbench measures, and no NVIDIA driver"),
        ([*ARGUMENTS, "--isolate"], "name one --op"),
        (["--op", "flash_attention,gemm"], "name one --op"),
        (["--op=flash_attention,gemm"], "name one --op"),
    ],
)
def test_what_would_not_measure_ours_is_refused(stand_in, arguments, words):
    done = kperf("tritonbench", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("folder", ["", "/nonexistent"])
def test_without_tritonbench_it_says_where_to_get_it(folder):
    done = kperf("tritonbench", "--op", "flash_attention", TRITONBENCH_DIR=folder)
    assert done.returncode == 2
    assert "set TRITONBENCH_DIR to a checkout of meta-pytorch/tritonbench" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_tritonbench_with_another_interface_is_refused_by_one_sentence(stand_in, tmp_path):
    (tmp_path / "bench/tritonbench/utils/triton_op.py").write_text("")
    done = kperf("tritonbench", "--op", "flash_attention", "--list-backends")
    assert done.returncode == 2
    assert "cannot import name 'register_benchmark'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "rows"),
    [
        (["--seq-len", "13", "--batch", "8"], ["--seq-len", "8192", "--batch", "8"]),
        (["--batch", "8", "--seq-len=13"], ["--batch", "8", "--seq-len", "8192"]),
        (["--seq-len", "31"], ["--seq-len", str(2**31)]),
        (["--seq-len", "32"], ["--seq-len", "32"]),
        (["--seq-len", "384"], ["--seq-len", "384"]),
        (["--seq-len"], ["--seq-len"]),
        ([], []),
    ],
)
def test_a_short_sequence_is_a_power_of_two(given, rows):
    assert tritonbench._in_rows(given) == rows


REAL = pytest.mark.skipif("TRITONBENCH_DIR" not in os.environ, reason="TRITONBENCH_DIR names no checkout")


@REAL
def test_the_real_one_lists_ours():
    done = kperf("tritonbench", "--op", "flash_attention", "--list-backends")
    assert done.returncode == 0, done.stderr
    assert {"aten", "kperf_vanilla", "kperf_improved", "kperf_improved_plus"} <= set(done.stdout.split())


@REAL
def test_the_real_one_finds_ours_as_accurate_as_its_baseline(attending_gpu):  # noqa: F811
    done = kperf("tritonbench", *ARGUMENTS, "--simple-output")
    assert done.returncode == 0, done.stderr
    assert "(1, 2, 128, 128, 128)" in done.stdout
    assert done.stdout.split()[-1] == "1.0", done.stdout  # the mean of True
    assert attending_gpu


@REAL
@pytest.mark.gpu
def test_the_real_one_times_ours():
    arguments = "--op flash_attention --only sdpa,kperf_improved_plus --metrics tflops,latency,accuracy --baseline sdpa"
    shape = "--seq-len 13 --batch 8 --n-heads 16 --d-head 128 --num-inputs 1 --simple-output"
    done = kperf("tritonbench", *arguments.split(), *shape.split(), CUDA_VISIBLE_DEVICES="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "1.0"
