"""What improved_plus promises: its order in SASS, the right result however scores grow, one file for every shape."""

import importlib.util
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import triton

from kperf.attention import overrides as override
from kperf.attention.implementations import IMPLEMENTATIONS, bind_attn_fwd
from kperf.attention.variants import VARIANTS, Specialization
from kperf.attention.workload import Workload
from kperf.bench.measure import MAX_REL_ERROR, Inputs, errors, reference
from kperf.ir import compile as compiler
from kperf.ir.ttgir import Module

VARIANT = VARIANTS["improved_plus"]
PTXAS = Path(triton.__file__).parent / "backends/nvidia/bin/ptxas"
FA3 = importlib.util.find_spec("fa3_fwd_interface") is not None
SCALE = 128**-0.5


@pytest.fixture(params=[False, True], ids=["full", "causal"])
def causal(request):
    return request.param


@pytest.mark.parametrize(("head_dim", "dtype"), [(128, "bfloat16"), (64, "bfloat16"), (128, "float16")])
def test_ptxas_neither_serialises_wgmma_nor_spills(head_dim, dtype, causal, tmp_path):
    kernel = override.find("improved_plus", Specialization(head_dim, dtype, causal)).compile()
    source = tmp_path / "kernel.ptx"
    source.write_text(kernel.asm["ptx"])
    command = [PTXAS, "--verbose", "--gpu-name=sm_90a", source, "--output-file", tmp_path / "kernel.cubin"]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "wgmma" not in report  # C7510 to C7514 all name it: "wgmma.mma_async instructions are serialized ..."
    assert "0 bytes spill stores, 0 bytes spill loads" in report


class Loop(NamedTuple):
    """SASS of the main loop of a consumer, from the end of the wait for QK on."""

    under_pv: str
    after_pv: str  # to the vote
    voted: str  # to the branch on it
    move: str  # of the reference, which the branch skips, and the rest of the loop


def main_loops(head_dim, causal):
    """Those of both consumers, in the pass whose reference lags."""
    kernel = override.find("improved_plus", Specialization(head_dim=head_dim, causal=causal)).compile()
    loops = []
    for part in compiler.sass(kernel).split("DEPBAR.LE gsb0, 0x1")[1:]:
        under_pv, _, rest = part.partition("DEPBAR.LE gsb0, 0x0")
        after_pv, vote, rest = rest.partition("VOTE.ANY")
        if vote and "HGMMA" not in after_pv:
            loops.append(Loop(under_pv, after_pv, *rest.split(" BRA ")[:2]))
    assert len(loops) == 2
    return loops


HALF = 64 * 128 // 128 // 2  # of a consumer's s, 64 rows of 128 columns over 128 threads


def test_half_of_the_softmax_stands_under_pv_and_half_beside_the_rounding(causal):
    """In the main loop ptxas leaves the left half before PV's wait, and mixes the right one with the conversions."""
    for loop in main_loops(128, causal):
        assert loop.under_pv.count("MUFU.EX2") == HALF
        assert len(re.findall(r"\bFADD\b", loop.under_pv)) >= HALF - 6
        assert len(re.findall(r"\bVIMNMX3\b", loop.under_pv)) >= HALF // 2 - 4  # two of p a step
        assert loop.after_pv.count("MUFU.EX2") == HALF
        # Not one after the other: half of the conversions are issued before the last quarter of the exponentials.
        issued = re.findall(r"MUFU\.EX2|F2FP", loop.after_pv)
        last_quarter = [place for place, name in enumerate(issued) if name == "MUFU.EX2"][-HALF // 4]
        assert issued[:last_quarter].count("F2FP") >= HALF // 2


def test_with_head_dim_64_all_exponentials_stand_before_the_wait_for_pv(causal):
    for loop in main_loops(64, causal):
        assert loop.under_pv.count("MUFU.EX2") == 2 * HALF


@pytest.mark.parametrize("head_dim", [64, 128])
def test_only_a_record_that_counts_makes_a_warp_scale_what_it_has_summed(head_dim, causal):
    """acc and p are multiplied in the move alone, and the move, which only some warps make, waits for no other."""
    for loop in main_loops(head_dim, causal):
        usual = loop.under_pv + loop.after_pv + loop.voted
        assert usual.count("FMUL") <= 4  # a share of the sums of two rows
        assert loop.move.count("FMUL") >= 64 * (head_dim + 128) // 128
        assert not re.search(r"\bBAR\b|SYNCS|STS|LDS|HGMMA|WARPGROUP", loop.move)


def test_every_tile_has_a_number_of_blocks_of_its_own():
    """Triton's loop-aware CSE can take a number that the tile loop carries for the first tile's."""
    module = Module(override.find("improved_plus", Specialization(causal=True)).text)
    block_loops = 0
    for tiles in module.walk():
        if tiles.name != "scf.for":
            continue
        computed = {name for op in tiles.walk() for name in op.results} | set(carried_names(tiles))
        for blocks in tiles.walk():
            if blocks is not tiles and blocks.name == "scf.for":
                block_loops += 1
                upper_bound = blocks.operands[2]
                assert upper_bound in computed, f"line {blocks.line + 1}"
    assert block_loops == 6  # two passes of two consumers and the producer


def carried_names(loop):
    """The names under which a loop's body sees what it carries."""
    return re.findall(r"(%[\w.-]+) = ", loop.rest.partition("iter_args(")[2].partition(") ->")[0])


def hard_inputs(causal):
    """(name, q, k, v, sm_scale) that overflow, underflow or degenerate where a softmax is not careful."""
    generator = torch.Generator(device="cuda").manual_seed(11)

    def normal(batch, seq_len):
        shape = batch, 4, seq_len, 128
        return [torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16) for _ in range(3)]

    growing = torch.linspace(0.3, 2, 1152, device="cuda").to(torch.bfloat16)[:, None]
    q, k, v = normal(2, 1152)
    yield "late maxima", q * 3, k * growing, v, SCALE
    yield "early maxima", q * 3, k * growing.flip(0), v, SCALE
    yield "large logits", q, k, v, 1.0
    yield "peaked", q * 5, k, v, SCALE
    for name, keys in (("last", slice(-128, None)), ("first", slice(0, 128)), ("middle", slice(600, 603))):
        q, k, v = normal(2, 1152)
        k[:, :, keys] *= 300
        yield f"jump beyond 2^127 in the {name} keys", q, k, v, SCALE
    yield "jumps of 2^100 to 2^140, of which some are not infinite and their inverse is flushed to 0", *jumps(causal)
    q, k, v = normal(40, 1152)
    k[7, 1, 500:] *= 300
    yield "jump in one head of many: a block's other tiles are computed again", q, k, v, SCALE
    q, k, v = normal(1, 512)
    yield "constant rows", q, k[:, :, :1].expand_as(k).contiguous(), v, SCALE
    yield "all scores 0", torch.zeros_like(q), k, v, SCALE
    for name, tensor, value in (("q", q, 1e4), ("k", k, 3e4), ("v", v, 1e30)):
        before = tensor[0, 0, 5, 3].clone()
        tensor[0, 0, 5, 3] = value
        yield f"one huge element in {name}", q.clone(), k.clone(), v.clone(), SCALE
        tensor[0, 0, 5, 3] = before
    yield (
        "large v under a jump",
        q,
        k * torch.where(torch.arange(512, device="cuda") < 200, 8, 1)[:, None],
        v * 1e28,
        1.0,
    )


def jumps(causal):
    """(q, k, v, sm_scale): in head h one key is 2^(100 + h / 2) above all others, mostly not in the first block."""
    heads, seq_len = 81, 384
    q = torch.zeros(1, heads, seq_len, 128, device="cuda", dtype=torch.bfloat16)
    k, v = torch.zeros_like(q), torch.randn(q.shape, device="cuda").to(torch.bfloat16)
    q[..., 0] = 1
    k[..., 0] = -(100 + torch.arange(heads, device="cuda") / 2).to(torch.bfloat16)[:, None]
    k[:, :, 100 if causal else 150, 0] = 0  # causal tiles go from the diagonal backwards
    return q, k, v, math.log(2)  # one unit of q k^T is a factor of 2


@pytest.mark.gpu
def test_hard_inputs_are_as_right_as_with_fa3(causal):
    for name, q, k, v, sm_scale in hard_inputs(causal):
        exact = Inputs(q, k, v, *reference(q, k, v, causal, sm_scale))
        o, lse = IMPLEMENTATIONS["improved_plus"].bind(q, k, v, causal, sm_scale)()
        rel_error, _ = errors((o, None), exact)
        assert float(((lse - exact.lse) / exact.lse.abs().clamp(min=1)).abs().max()) < 1e-4, name
        assert rel_error < MAX_REL_ERROR["bfloat16"], name
        if FA3:
            fa3_error, _ = errors((IMPLEMENTATIONS["fa3"].bind(q, k, v, causal, sm_scale)()[0], None), exact)
            assert rel_error <= 1.1 * fa3_error, name


@pytest.mark.gpu
@pytest.mark.skipif(not FA3, reason="fa3-fwd is not installed")
@pytest.mark.parametrize("seq_len", [128, 256, 512, 2048, 8192])
@pytest.mark.parametrize("size", [0.25, 1, 1.25, 1.5, 2, 2.5, 3, 4, 10])
def test_an_error_of_at_most_a_tenth_more_than_fa3s(size, seq_len, causal):
    """From flat rows to such that one key dominates; FA3 rounds the largest p of a row without an error."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(16384 // seq_len, 2, seq_len, 128, device="cuda").to(torch.bfloat16) for _ in range(3))
    exact = Inputs(q * size, k, v, *reference(q * size, k, v, causal, SCALE))
    ours, theirs = (
        errors((IMPLEMENTATIONS[key].bind(q * size, k, v, causal, SCALE)()[0], None), exact)[0]
        for key in ("improved_plus", "fa3")
    )
    assert ours <= 1.1 * theirs


@pytest.mark.gpu
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, "bfloat16"), (64, "float16"), (128, "float16")])
@pytest.mark.parametrize(("batch", "heads", "seq_len"), [(1, 1, 128), (3, 5, 640), (2, 16, 2048)])
def test_other_head_dims_and_dtypes_come_from_the_same_source(
    head_dim, dtype, batch, heads, seq_len, causal, tmp_path, monkeypatch
):
    workload = Workload(batch=batch, heads=heads, seq_len=seq_len, head_dim=head_dim, dtype=dtype, causal=causal)
    special = override.specialization_of(workload)
    monkeypatch.setitem(VARIANTS, "improved_plus", replace(VARIANT, specializations=(special,)))
    override.generate(VARIANTS["improved_plus"], tmp_path)
    found = override.find("improved_plus", special, tmp_path)
    torch.manual_seed(5)
    q, k, v = (torch.randn(workload.shape, device="cuda").to(getattr(torch, dtype)) for _ in range(3))
    k[:, :, seq_len // 2 :] *= 3
    exact = Inputs(q, k, v, *reference(q, k, v, causal, workload.sm_scale))
    rel_error, lse_error = errors(bind_attn_fwd(q, k, v, causal, workload.sm_scale, found)(), exact)
    assert rel_error < MAX_REL_ERROR[dtype]
    assert lse_error < 1e-4


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 2, 3, 7, 37, 200])
@pytest.mark.parametrize("seq_len", [128, 384, 2176])
def test_every_tile_is_computed_whatever_the_number_of_heads(heads, seq_len):
    """The causal tile order cuts the heads into sections, of which the last may be smaller."""
    torch.manual_seed(heads)
    q, k, v = (torch.randn(1, heads, seq_len, 128, device="cuda").to(torch.bfloat16) for _ in range(3))
    exact = Inputs(q, k, v, *reference(q, k, v, True, SCALE))
    for key in VARIANTS:
        rel_error, lse_error = errors(IMPLEMENTATIONS[key].bind(q, k, v, True, SCALE)(), exact)
        assert rel_error < MAX_REL_ERROR["bfloat16"], key
        assert lse_error < 1e-4, key
