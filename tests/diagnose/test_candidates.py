"""Advice is compiled and diagnosed before it is given: what brings another fault, or nothing, is left out."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from kperf.arch import GFX942, SM_90A
from kperf.compat.triton.cache import own_cache
from kperf.console import WholeConsole
from kperf.diagnose import candidates, command, inputs
from kperf.diagnose.candidates import IN_LIST, MOST_CHANGES, NONE_HELPS, NOT_COMPILED, REMAINS, checked
from kperf.diagnose.compilations import diagnose_all
from kperf.diagnose.engine import diagnose
from kperf.diagnose.finding import Diagnoses
from kperf.diagnose.reading.options import OPTIONS
from kperf.diagnose.rules import register_spills
from kperf.ir import compile as compiler
from kperf.trace.analyze.finding import Estimate
from kperf.trace.capture.trial import SAME_CODE, in_words

pytestmark = pytest.mark.kernels

KERNELS = Path(__file__).parent / "kernels"


def read(name):
    kernel, *_ = inputs.read(str(KERNELS / name), (), SM_90A)
    return kernel


def of(diagnosis, rule):
    return next(one for one in diagnosis.findings if one.id == rule)


def left_out(finding):
    return {one.change: one.why for one in finding.dropped}


def test_a_tile_that_spills_registers_is_left_out(capfd):
    kernel = read("drafts/mla_decode.py")
    (diagnosis,) = diagnose_all([kernel])
    finding = of(diagnosis, "wgmma-unused")
    why = left_out(finding)["BLOCK_H=64"]
    assert why.startswith("then 1072 bytes of a thread's registers are spilled")
    assert why.endswith("[register-spills]")
    console = WholeConsole(file=io.StringIO())
    command.show(console, Diagnoses(kernels=[diagnosis]), command.Request())
    assert f"left out BLOCK_H=64: {why}\n" in console.file.getvalue()
    assert capfd.readouterr() == ("", "")


def test_a_tile_that_fails_with_what_the_script_computes_from_it_is_not_left_out():
    """The descriptors of the launch have boxes of the tile's own length: nothing says that another tile fails."""
    kernel = read("drafts/grouped_gemm_tma.py")
    diagnosis = diagnose(kernel)
    assert of(diagnosis, "small-tile").candidates == [{"BK": 64}]
    assert candidates.with_change(kernel, {"BK": 64}) is None
    assert checked(kernel, diagnosis) == diagnosis


def test_a_tile_of_which_nothing_is_known_is_not_named_as_what_helps(monkeypatch):
    """Three stages make the same kernel, and the tile does not compile: that is no reason to advise it."""
    kernel = read("drafts/matmul_one_stage.py")
    diagnosis = diagnose(kernel)
    loads = of(diagnosis, "loads-not-pipelined")
    tile = next(name for name in kernel.configuration if name not in OPTIONS)
    both = loads.model_copy(update={"candidates": [{"num_stages": 3}, {tile: 64}]})
    monkeypatch.setattr(candidates, "with_change", lambda kernel, change: kernel if "num_stages" in change else None)
    (found,) = checked(kernel, diagnosis.model_copy(update={"findings": [both]})).findings
    assert left_out(found) == {"num_stages=3": SAME_CODE}
    assert f"{tile}=64" not in found.advice
    assert (found.severity, found.estimate) == (loads.severity, loads.estimate)


def test_what_ptxas_refuses_is_none_and_prints_nothing(capsys, monkeypatch):
    def refuse(*_, **__):
        print("the PTX, and how to run ptxas")
        raise RuntimeError("registers")

    kernel = read("drafts/matmul_one_stage.py")
    monkeypatch.setattr(compiler.triton, "compile", refuse)
    assert compiler.recompiled(kernel.compiled.kernel, {"num_stages": 3}) is None
    assert capsys.readouterr() == ("", "")


BOTH = """
import torch, triton, triton.language as tl

@triton.jit
def mm(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, num_stages: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + k + rk[None, :])
        y = tl.load(b + (k + rk[:, None]) * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

a, b, c = (torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
mm[(32, 32)](a, b, c, 4096, 4096, 128, 128, 64, num_stages=1, num_warps=4)
"""


def test_an_option_that_is_a_constexpr_too_is_both(tmp_path):
    """As in Triton's softmax tutorial: a launch's `num_stages=3` is given to both."""
    (tmp_path / "mm.py").write_text(BOTH)
    (kernel,) = inputs.read(str(tmp_path / "mm.py"), (), SM_90A)
    diagnosis = diagnose(kernel)
    assert of(diagnosis, "loads-not-pipelined").candidates[0] == {"num_stages": 3}
    assert checked(kernel, diagnosis) == diagnosis


@pytest.mark.parametrize("kind", ["amd", "folder"])
def test_what_cannot_be_compiled_again_keeps_its_advice(tmp_path, kind):
    """AMD's machine code is not read, and a folder of Triton's cache has no source."""
    with own_cache(tmp_path):
        kernel, *_ = inputs.read(str(KERNELS / "drafts/matmul_one_stage.py"), (), GFX942 if kind == "amd" else SM_90A)
    if kind == "folder":
        kernel, *_ = inputs.read(str(tmp_path), (), SM_90A)
    diagnosis = diagnose(kernel)
    found = of(diagnosis, "loads-not-pipelined")
    assert (found.severity, len(found.candidates) > 0) == ("high", True)
    assert checked(kernel, diagnosis) == diagnosis


def test_a_finding_whose_second_candidate_helps_is_printed(one_stage, monkeypatch):
    kernel, diagnosis = one_stage
    make = candidates.with_change

    def same(kernel, change):
        return kernel if change == {"num_stages": 3} else make(kernel, change)

    monkeypatch.setattr(candidates, "with_change", same)
    console = WholeConsole(file=io.StringIO())
    command.show(console, Diagnoses(kernels=[checked(kernel, diagnosis)]), command.Request())
    said = console.file.getvalue()
    assert "launch with num_stages=4 (" in said
    assert f"left out num_stages=3: {SAME_CODE}\n" in said


@pytest.fixture
def one_stage():
    """A GEMM without a pipeline, what is found in it, and its candidates: 3, 4, 2 and 5 stages."""
    kernel = read("drafts/matmul_one_stage.py")
    return kernel, diagnose(kernel)


def test_advice_that_helps_stays_as_it_is_and_no_more_is_compiled(one_stage, monkeypatch):
    compiled, make = [], candidates.with_change

    def noted(kernel, change):
        compiled.append(change)
        return make(kernel, change)

    monkeypatch.setattr(candidates, "with_change", noted)
    kernel, diagnosis = one_stage
    assert checked(kernel, diagnosis) == diagnosis
    assert compiled == [{"num_stages": 3}]


def test_the_advice_names_the_first_candidate_that_helps(one_stage, monkeypatch):
    """Of three stages nothing is made, of four the same kernel: two rid it of the finding."""
    kernel, diagnosis = one_stage
    make = candidates.with_change

    def change(kernel, change):
        made = {3: lambda: None, 4: lambda: kernel}.get(change["num_stages"], lambda: make(kernel, change))
        return made()

    monkeypatch.setattr(candidates, "with_change", change)
    found = checked(kernel, diagnosis).findings
    loads = [one for one in found if one.id == "loads-not-pipelined"]
    assert [one.advice for one in loads] == ["launch with num_stages=2"] * 2
    assert [left_out(one) for one in loads] == [{"num_stages=3": NOT_COMPILED, "num_stages=4": SAME_CODE}] * 2
    assert {one.severity for one in loads} == {"high"}


def test_advice_of_options_alone_that_never_helps_is_a_hint(one_stage, monkeypatch):
    """The loads stay as they are in every compilation, whose machine code differs."""
    kernel, diagnosis = one_stage
    other = replace(kernel, compiled=read("drafts/matmul_small.py").compiled)
    monkeypatch.setattr(candidates, "with_change", lambda *_: other)
    monkeypatch.setattr(candidates, "diagnose", lambda _: diagnosis)
    loads = [one for one in checked(kernel, diagnosis).findings if one.id == "loads-not-pipelined"]
    assert [set(left_out(one).values()) for one in loads] == [{REMAINS}] * 2
    assert {(one.severity, one.advice, one.estimate) for one in loads} == {
        ("low", NONE_HELPS.format("launch option"), None)
    }


def test_no_more_than_four_changes_of_a_kernel_are_compiled(one_stage, monkeypatch):
    kernel, diagnosis = one_stage
    loads = of(diagnosis, "loads-not-pipelined")
    many = loads.model_copy(update={"candidates": [{"num_stages": number} for number in range(3, 12)]})
    compiled = []
    monkeypatch.setattr(candidates, "with_change", lambda _, change: compiled.append(in_words(change)))
    found = checked(kernel, diagnosis.model_copy(update={"findings": [many, many]})).findings
    assert compiled == ["num_stages=3", "num_stages=4", "num_stages=5", "num_stages=6"]
    assert len(compiled) == MOST_CHANGES
    assert [list(left_out(one)) for one in found] == [compiled] * 2
    assert {one.severity for one in found} == {"high"}  # five more may help


def test_what_was_hidden_behind_a_fault_does_not_speak_against_its_advice():
    """With one warp a CTA the start of CTAs is what takes long: it did before."""
    kernel = read("drafts/moe_router.py")
    diagnosis = diagnose(kernel)
    assert of(diagnosis, "idle-threads").candidates == [{"num_warps": 1}]
    assert checked(kernel, diagnosis) == diagnosis


@pytest.mark.parametrize(
    ("helpful", "advice", "dropped"),
    [
        ("BM=64", "halve the tile: BM=64", {"num_warps=8": NOT_COMPILED, "num_warps=16": NOT_COMPILED}),
        ("num_warps=16", "launch with num_warps=16, or halve the tile: BM=64 or BN=64", {"num_warps=8": NOT_COMPILED}),
    ],
)
def test_the_advice_no_longer_names_what_was_left_out(monkeypatch, helpful, advice, dropped):
    """As it was: `launch with num_warps=8, or halve the tile: BM=64 or BN=64`."""
    kernel = read("planted/scaled_sum.py")
    other = replace(kernel, compiled=read("drafts/matmul_small.py").compiled)
    diagnosis = diagnose(kernel)
    monkeypatch.setattr(candidates, "with_change", lambda _, change: other if in_words(change) == helpful else None)
    monkeypatch.setattr(candidates, "diagnose", lambda _: diagnosis.model_copy(update={"findings": []}))
    spills = of(checked(kernel, diagnosis), "register-spills")
    assert (spills.advice, left_out(spills)) == (advice, dropped)


def test_other_advice_stays_where_no_option_helps(monkeypatch):
    """As it was: `let a CTA work on 32 rows at once, a tile of 32 x BLOCK; or launch with num_warps=1`."""
    kernel = read("drafts/moe_router.py")
    monkeypatch.setattr(candidates, "with_change", lambda *_: None)
    before = diagnose(kernel)
    threads = of(checked(kernel, before), "idle-threads")
    assert threads.advice == "let a CTA work on 32 rows at once, a tile of 32 x BLOCK"
    assert (threads.severity, threads.estimate) == ("medium", of(before, "idle-threads").estimate)


def test_a_tile_alone_that_does_not_help_is_no_advice(monkeypatch):
    kernel = read("drafts/mxfp4_unpack.py")
    monkeypatch.setattr(candidates, "with_change", lambda kernel, _: kernel)
    few_warps = of(checked(kernel, diagnose(kernel)), "low-occupancy")
    assert (few_warps.advice, few_warps.estimate) == (NONE_HELPS.format("tile size"), None)
    assert few_warps.severity == "medium"


WIDE_ROW = """
import torch, triton, triton.language as tl

@triton.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * n + cols).to(tl.float32)
    power = tl.exp(row - tl.max(row, 0))
    tl.store(y + tl.program_id(0) * n + cols, power / tl.sum(power, 0) + row)

x, y = torch.empty(2, 1024, 65536, device="cuda", dtype=torch.bfloat16)
softmax[(1024,)](x, y, 65536, 65536, num_warps=16)
"""


def test_spills_that_a_finding_explains_are_not_brought_by_its_advice(tmp_path, monkeypatch):
    """Of 65536 elements 16 warps have a part in memory, which 32 warps may have too."""
    script = tmp_path / "softmax.py"
    script.write_text(WIDE_ROW)
    kernel, *_ = inputs.read(str(script), (), SM_90A)
    diagnosis = diagnose(kernel)
    wide = of(diagnosis, "too-few-warps")
    assert (wide.severity, wide.evidence["explains"]) == ("high", "register-spills")
    assert wide.advice.startswith("launch with num_warps=32")
    (spills,) = register_spills.RULE.check(kernel)
    costly = spills.model_copy(update={"estimate": Estimate(speedup=50.0, low=1.0, high=99.0)})
    monkeypatch.setattr(candidates, "diagnose", lambda _: diagnosis.model_copy(update={"findings": [costly]}))
    assert of(checked(kernel, diagnosis), "too-few-warps") == wide


def test_a_configuration_of_the_autotuners_list_is_not_advised():
    kernel = read("planted/tuned_stages.py")
    assert of(checked(kernel, diagnose(kernel)), "too-few-stages").advice.startswith("put num_stages=3 into its triton")
    (tuning,) = kernel.history.tunings
    configs = (*tuning.configs, {**tuning.best, "num_stages": 3})
    with_three = replace(kernel, history=replace(kernel.history, tunings=[replace(tuning, configs=configs)]))
    diagnosis = diagnose(with_three)
    hint = of(diagnosis, "too-few-stages").model_copy(update={"severity": "low"})
    for before in (diagnosis, diagnosis.model_copy(update={"findings": [hint]})):
        stages = of(checked(with_three, before), "too-few-stages")
        assert stages.advice == "the autotuner has num_stages=3 in its list: its times decide"
        assert left_out(stages) == {"num_stages=3": IN_LIST}
        assert (stages.severity, stages.estimate) == ("low", None)
