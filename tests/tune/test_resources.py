"""Every plain Triton kernel here compiles for gfx942, and its row says what it needs there and on sm_90a."""

import pytest

from kperf.arch import GFX942
from kperf.attention.kernels import stock
from kperf.attention.workload import HEAD_DIMS
from kperf.ir.amd import amd_resources
from kperf.ir.compile import compile_for
from kperf.paper.examples import EXAMPLES
from kperf.tune import resources
from kperf.tune.resources import needs, plain_kernels, stock_kernel
from tests.command import kperf

pytestmark = pytest.mark.kernels

SCRIPTS = [*{script.path: script.small for script in EXAMPLES if script.small is not None}.items()]
"""Each once; the command has all their stages and masks."""


@pytest.mark.long
def test_every_plain_kernel_compiles_for_gfx942():
    every = list(plain_kernels(SCRIPTS))
    assert len([kernel for kernel in every if kernel.origin == "stock"]) == 2 * len(HEAD_DIMS) * len(
        stock.PLAIN_CONFIGS
    )
    largest, *_, smallest = stock.PLAIN_CONFIGS
    kernels = [stock_kernel(largest, 128, causal=False), stock_kernel(smallest, 128, causal=True)]
    _, masked = [kernel for kernel in every if kernel.origin == "attn_fwd"]
    kernels += [masked, *(kernel for kernel in every if kernel.origin not in ("stock", "attn_fwd"))]
    assert masked.source.constants[(masked.source.fn.arg_names.index("CAUSAL"),)]
    origins = {kernel.origin for kernel in kernels}
    assert origins == {"stock", "attn_fwd"} | {path.stem for path, _ in SCRIPTS} - {"gemm_gluon_ws"}
    for kernel in kernels:
        compiled = compile_for(GFX942, kernel.source, num_warps=kernel.num_warps, num_stages=kernel.num_stages)
        found = amd_resources(compiled)
        assert found.vgprs > 0
        has_products = "tt.dot" in compiled.asm["ttgir"]
        assert (found.mfma > 0) == has_products, kernel


def test_the_command_prints_a_row_a_kernel_and_marks_what_does_not_fit(monkeypatch):
    made = [
        stock_kernel(stock._config(64, 32, 4, 1), 256, False),
        stock_kernel(stock._config(16, 128, 16, 2), 512, False),
    ]
    monkeypatch.setattr(resources, "plain_kernels", lambda _: made)
    done = kperf("resources", COLUMNS="300")
    assert done.returncode == 0, done.stderr
    fitting, too_large = [line for line in done.stdout.splitlines() if line.startswith("│ attention")]
    assert "*" not in fitting
    nvidia, amd = needs(made[0]).nvidia, needs(made[0]).amd
    wanted = (nvidia.registers, nvidia.spilled_bytes, nvidia.shared_bytes)
    assert [cell.strip() for cell in fitting.split("│")[4:7]] == [str(one) for one in wanted]
    assert fitting.split("│")[-2].strip() == str(amd.mfma) != "0"
    assert too_large.count("*") == 2
    assert "nothing ran" in done.stdout


def test_a_kernel_that_does_not_compile_fails_the_command_after_the_others(monkeypatch):
    bad = stock_kernel(stock._config(64, 64, 4, 1), 48, causal=False)  # no power of two
    good = stock_kernel(stock._config(64, 64, 4, 1), 64, causal=False)
    monkeypatch.setattr(resources, "plain_kernels", lambda _: [bad, good])
    done = kperf("resources", COLUMNS="300")
    assert done.returncode == 1
    assert done.stderr.startswith("kperf: stock: attention does not compile for ")
    assert done.stderr.count("\n") == 1
    assert "HEAD_DIM=64" in done.stdout


@pytest.mark.parametrize("word", ["sm_90a", "gfx942"])
def test_its_help_says_for_what(word):
    assert word in kperf("resources", "--help").stdout
