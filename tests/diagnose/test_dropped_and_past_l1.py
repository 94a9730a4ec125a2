"""Loads of bytes that are dropped, and of bytes that L1 could have kept: of each its neighbours that are right."""

from dataclasses import replace

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from tests.diagnose.test_kernels import KERNELS
from tests.diagnose.test_measured import recorded
from tests.diagnose.test_severities import found as found_in_script
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

CHOICE = """
def choose(a, b, flags, out, n, BM: tl.constexpr, BN: tl.constexpr):
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    at = rows[:, None] * n + cols[None, :]
    keep = CONDITION
    x = tl.load(a + at, mask=MASK_A)
    y = tl.load(b + at, mask=MASK_B)
    tl.store(out + at, STORED)
"""
PARTS = {
    "CONDITION": "(tl.load(flags + rows) > 3)[:, None]",
    "MASK_A": "(cols < n)[None, :]",
    "MASK_B": "(cols < n)[None, :]",
    "STORED": "tl.where(keep, x, y)",
}
CHOSEN = ("*bf16,*bf16,*i32,*bf16,i32:16", "BM=8", "BN=512")


def chosen(folder, signature=CHOSEN[0], **parts):
    source = CHOICE
    for name, text in (PARTS | parts).items():
        source = source.replace(name, text)
    return found(folder, source, signature, *CHOSEN[1:]).get("both-sides-loaded")


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"MASK_A": "None", "MASK_B": "None"},
        {"STORED": "tl.where(keep, x.to(tl.float32) * 2, tl.where((cols % 3 == 0)[None, :], y, 0.0).to(tl.float32))"},
        {"CONDITION": "tl.load(flags + tl.program_id(0)) != 0"},
        {"CONDITION": "tl.program_id(0) % 4 == 0"},
        {"CONDITION": "(tl.load(flags + cols // 64) != 0)[None, :]"},
        {"CONDITION": "(rows % 2 == 0)[:, None]"},
        {"MASK_A": "(rows < n)[:, None]", "MASK_B": "(rows < n)[:, None]"},
    ],
    ids=str,
)
def test_of_two_sides_that_rows_choose_from_one_is_loaded_in_vain(tmp_path, parts):
    finding = chosen(tmp_path, **parts)
    assert finding.source.line == 10
    assert finding.message.startswith("a and b are both loaded whole, and tl.where keeps one of the two")
    assert "mask=condition in the load of a, and mask=~condition in the load of b" in finding.advice
    assert finding.advice.endswith("a load that has a mask already keeps its other=, and its mask is joined with &")
    assert finding.estimate.speedup == pytest.approx(1.5, rel=0.01)  # three tiles in place of two
    assert finding.estimate.low == 1.0


def test_a_flag_may_be_a_float(tmp_path):
    condition = "(tl.load(flags + rows) > 0.5)[:, None]"
    assert chosen(tmp_path, CHOSEN[0].replace("i32,*bf16", "fp32,*bf16"), CONDITION=condition) is not None


@pytest.mark.parametrize(
    "parts",
    [
        {"CONDITION": "(tl.load(flags + cols) > 3)[None, :]"},
        {"CONDITION": "tl.load(flags + at) > 3"},
        {"CONDITION": "(tl.load(flags + cols // 4) != 0)[None, :]"},
        {"CONDITION": "(cols % 2 == 0)[None, :]"},
        {"MASK_A": "keep & (cols < n)[None, :]", "MASK_B": "~keep & (cols < n)[None, :]"},
        {"STORED": "tl.where(keep, x + y, y * x)"},
        {"STORED": "tl.where(tl.max(x.to(tl.float32)) > tl.max(y.to(tl.float32)), x, y)"},
        {"CONDITION": "(rows < n)[:, None]", "STORED": "tl.where(keep, x, 0.0)"},
    ],
    ids=str,
)
def test_what_varies_in_a_sector_or_is_masked_or_used_is_loaded_for_something(tmp_path, parts):
    assert chosen(tmp_path, **parts) is None


def test_sides_that_all_ctas_share_come_from_a_cache(tmp_path):
    source = CHOICE.replace("(a + at", "(a + cols[None, :]").replace("(b + at", "(b + n + cols[None, :]")
    for name, text in (PARTS | {"CONDITION": "tl.load(flags + tl.program_id(0)) != 0"}).items():
        source = source.replace(name, text)
    source = source.replace("tl.where(keep, x, y)", "tl.where(keep, x, y) + tl.load(a + 4096 + at)")
    assert "both-sides-loaded" not in found(tmp_path, source, *CHOSEN)


def test_a_row_that_a_constant_replaces_need_not_be_loaded(tmp_path):
    finding = chosen(tmp_path, CONDITION="(tl.load(flags + rows) == 7)[:, None]", STORED="tl.where(keep, 0.0, x)")
    assert finding.message.startswith("a is loaded whole, and tl.where replaces a part of it")
    assert "mask=~condition in the load of a" in finding.advice
    assert (finding.severity, finding.confidence) == ("medium", "low")
    assert (finding.estimate.speedup, finding.estimate.high) == pytest.approx((4 / 3, 2.0), rel=0.01)


LENGTH = """
def length(a, b, lens, out, n, BM: tl.constexpr, BN: tl.constexpr):
    slot, cols = tl.program_id(0), tl.arange(0, BN)
    length = tl.load(lens + slot)
    acc = tl.zeros((BN,), tl.float32)
    for start in range(0, n, BM):
        rows = start + tl.arange(0, BM)
        x = tl.load(a + (slot * n + rows)[:, None] * BN + cols[None, :])
        acc += tl.sum(tl.where(KEEP[:, None], x, 0.0), 0)
    tl.store(out + slot * BN + cols, acc)
"""


@pytest.mark.parametrize(("keep", "is_found"), [("(rows < length)", False), ("(tl.load(lens + rows) != 0)", True)])
def test_rows_behind_a_length_are_left_to_the_rule_of_the_loop(tmp_path, keep, is_found):
    rules = found(tmp_path, LENGTH.replace("KEEP", keep), *CHOSEN)
    assert ("both-sides-loaded" in rules, "masked-tiles" in rules) == (is_found, not is_found)


BRANCH = """
def branch(a, b, flags, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    fresh = tl.load(flags + tl.program_id(0)) != 0
    BODY
    tl.store(out + at, x)
"""
AFTER = """x = tl.load(a + at)
    y = tl.load(b + at)
    if fresh:
        x = y"""
INSIDE = """if fresh:
        x = tl.load(a + at)
    else:
        x = tl.load(b + at)"""


@pytest.mark.parametrize(("body", "is_found"), [(AFTER, True), (INSIDE, False)])
def test_loads_in_a_branch_are_loaded_where_it_is_taken(tmp_path, body, is_found):
    rules = found(tmp_path, BRANCH.replace("BODY", body), "*bf16,*bf16,*i32,*bf16", "BLOCK=2048")
    assert ("both-sides-loaded" in rules) == is_found


def test_a_kernel_at_the_roof_gains_by_bytes_that_it_does_not_load():
    kernel, *_ = inputs.read(str(KERNELS / "drafts/state_reset.py"), (), SM_90A)
    known = recorded("layer_norm")
    memory = known.memory.model_copy(update={"unique_gb_per_s": 1960.0})
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0})
    timeline = known.model_copy(update={"kernel": kernel.name, "memory": memory, "bandwidth": bandwidth})
    findings = {one.id: one for one in diagnose(kernel, [timeline]).findings}
    assert findings["near-the-roof"].message.endswith("nothing but fewer bytes makes it faster")
    assert (findings["both-sides-loaded"].severity, findings["both-sides-loaded"].estimate.speedup) == ("high", 1.5)


def test_a_state_that_all_slots_share_moves_once():
    kernel, *_ = inputs.read(str(KERNELS / "drafts/state_reset.py"), (), SM_90A)
    shared = replace(kernel, lengths=kernel.lengths | {"new_ptr": kernel.lengths["new_ptr"] // 256})
    (finding,) = (one for one in diagnose(shared).findings if one.id == "both-sides-loaded")
    assert finding.estimate.speedup == pytest.approx((2 + 1 / 256) / (1.5 + 1 / 512), rel=0.01)
    assert finding.estimate.high == pytest.approx(2, rel=0.01)  # all slots are fresh


TAPS = """
def window(x, w, out, n, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in LOOP:
        acc += tl.load(x + ADDRESS, cache_modifier="MODIFIER") * tl.load(w + i)
    tl.store(TO + at, acc)
"""
WINDOW = {"LOOP": "range(TAPS)", "ADDRESS": "at + i", "MODIFIER": ".cg", "TO": "out"}


def swept(folder, block=1024, num_warps=4, **parts):
    source = TAPS
    for name, text in (WINDOW | parts).items():
        source = source.replace(name, text, 1)
    rules = found(folder, source, "*fp32,*fp32,*fp32,i32:16", "TAPS=16", f"BLOCK={block}", num_warps=num_warps)
    return rules.get("redundant-load")


@pytest.mark.parametrize(
    ("parts", "times"),
    [
        ({}, 16),
        ({"LOOP": "tl.static_range(TAPS)"}, 16),
        ({"MODIFIER": ".cv"}, 16),
        ({"LOOP": "range(n)"}, 8),  # of a loop whose length nothing says
    ],
    ids=str,
)
def test_taps_past_l1_are_loaded_from_l2_again(tmp_path, parts, times):
    finding = swept(tmp_path, **parts)
    modifier = (WINDOW | parts)["MODIFIER"]
    assert finding.message.startswith(f"a CTA loads each byte of x some {times} times, and each time from L2")
    assert finding.advice.startswith(f'leave out cache_modifier="{modifier}"')
    assert finding.estimate.low == 1.0 < finding.estimate.speedup < finding.estimate.high


@pytest.mark.parametrize(
    "parts",
    [
        {"MODIFIER": ".ca"},
        {"MODIFIER": ""},
        {"ADDRESS": "at * 1 + i * 1024"},  # each byte once
        {"ADDRESS": "tl.program_id(0) * n + i * BLOCK + tl.arange(0, BLOCK)"},
        {"TO": "x"},  # other CTAs write what this one loads
        {"LOOP": "range(2)"},  # memory takes longer
    ],
    ids=str,
)
def test_what_a_cta_loads_once_or_writes_may_pass_by_l1(tmp_path, parts):
    finding = swept(tmp_path, **parts)
    assert finding is None or "times" not in finding.evidence  # a load of the same bytes in each iteration is another


@pytest.mark.parametrize(("block", "is_kept"), [(8192, True), (65536, False)])
def test_a_window_that_l1_cannot_keep_is_loaded_from_l2_anyhow(tmp_path, block, is_kept):
    finding = swept(tmp_path, block=block, num_warps=32)
    assert (finding is not None and "times" in finding.evidence) == is_kept


def test_volatile_taps_pass_by_l1_too(tmp_path):
    source = TAPS.replace('cache_modifier="MODIFIER"', "volatile=True")
    for name, text in WINDOW.items():
        source = source.replace(name, text, 1)
    finding = found(tmp_path, source, "*fp32,*fp32,*fp32,i32:16", "TAPS=16", "BLOCK=1024")["redundant-load"]
    assert finding.evidence["times"] == pytest.approx(16, rel=0.02)
    assert finding.message.endswith("volatile loads pass by the L1 cache")
    assert finding.advice.startswith("leave out volatile=True")


LOOKUP = """
def lookup(code, table, flag, out, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    BEFORE
    c = tl.load(code + i)
    v = tl.load(table + c, PAST_L1)
    tl.store(TO, v)
"""
LOOKED_UP = {"BEFORE": "pass", "PAST_L1": "volatile=True", "TO": "out + i"}


def looked_up(folder, length=4096, to="out", **parts):
    source = LOOKUP
    for name, text in (LOOKED_UP | parts).items():
        source = source.replace(name, text)
    launch = (
        "code, out = torch.zeros(1 << 24, device='cuda', dtype=torch.int32), torch.empty(1 << 24, device='cuda')\n"
        f"table, flag = torch.empty({length}, device='cuda'), torch.zeros(1 << 14, device='cuda', dtype=torch.int32)\n"
        f"lookup[(1 << 14,)](code, table, flag, {to}, B=1024)"
    )
    return found_in_script(folder, source, launch).get("redundant-load")


@pytest.mark.parametrize(
    ("parts", "option"),
    [
        ({}, "volatile=True"),
        ({"PAST_L1": "volatile=True, mask=c >= 0"}, "volatile=True"),
        ({"PAST_L1": 'cache_modifier=".cg"'}, 'cache_modifier=".cg"'),
        (
            {"BEFORE": "scale = tl.load(flag + tl.program_id(0), volatile=True)", "TO": "out + i + scale"},
            "volatile=True",
        ),
        ({"BEFORE": "tl.atomic_add(flag + tl.program_id(0), 1)"}, "volatile=True"),
    ],
    ids=str,
)
def test_a_table_that_all_ctas_gather_from_past_l1_crowds_its_lines_of_l2(tmp_path, parts, option):
    finding = looked_up(tmp_path, **parts)
    assert finding.source.line == 8
    assert finding.message.startswith("an SM loads each byte of table some 31 times")
    assert finding.advice.startswith(f"leave out {option}, so that L1 keeps the 16384 bytes")
    assert finding.estimate.low == 1.0 < finding.estimate.speedup < finding.estimate.high


@pytest.mark.parametrize(
    "parts",
    [
        {"PAST_L1": ""},
        {"length": 1 << 20},  # L1 cannot keep it
        {"TO": "table + c"},
        {"to": "table"},  # the same tensor
        {"BEFORE": "while tl.load(flag, volatile=True) < 1:\n        pass"},
        {"BEFORE": "while tl.atomic_cas(flag, 1, 1) != 1:\n        pass"},
        {"BEFORE": "if tl.load(flag, volatile=True) != 0:\n        i += 1"},
    ],
    ids=str,
)
def test_a_table_that_is_written_meanwhile_or_too_long_may_be_gathered_past_l1(tmp_path, parts):
    finding = looked_up(tmp_path, **parts)
    assert finding is None or "times" not in finding.evidence


@pytest.mark.parametrize("length", [64, 256, 4096])
def test_fewer_lines_are_slower(tmp_path, length):
    finding = looked_up(tmp_path, length=length)
    longer = looked_up(tmp_path, length=4 * length)
    assert finding.estimate.speedup > longer.estimate.speedup


def test_the_estimate_of_a_palette_is_near_what_was_measured():
    kernel, *_ = inputs.read(str(KERNELS / "drafts/palette_lookup.py"), (), SM_90A)
    (finding,) = (one for one in diagnose(kernel).findings if one.id == "redundant-load")
    assert finding.estimate.speedup == pytest.approx(35.4, rel=0.4)  # H200
