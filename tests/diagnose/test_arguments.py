"""What launches and scripts say that a compiled kernel does not: strides of 1, addresses, counters, backward passes."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from kperf.diagnose.thresholds import SPILLED_SHARE

pytestmark = pytest.mark.kernels

ROWS = """
import torch, triton, triton.language as tl

@triton.jit(do_not_specialize=[LEFT])
def scaled(x, y, n, sx ANNOTATION, sy ANNOTATION, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i * sx, mask=i < n)
    tl.store(y + i * sy, value * 2, mask=i < n)

n = 1 << 24
x, y = torch.empty(n, device="cuda"), torch.empty(n, device="cuda")
scaled[(n // 1024,)](x, y, n, SX, SY, BLOCK=1024)
"""

HIDDEN = """
import torch, triton, triton.language as tl

@triton.jit(DECORATOR)
def gemm(a, b, c, N, K, lda, bn, ldb, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    a += rm[:, None] * lda + rk[None, :]
    b += rk[:, None] * ldb + rn[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a)
        acc = tl.dot(x, tl.load(b), acc)
        a += BK
        b += BK * ldb
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

a, b, c = (torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
gemm[(32, 32)](a, b, c, 4096, 4096, 4096, 1, WIDTH, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)
"""


def of_script(tmp_path, text):
    script = tmp_path / "it.py"
    script.write_text(text)
    return [diagnose(kernel) for kernel in inputs.read(str(script), (), SM_90A)]


def rows(tmp_path, *, left="", annotation="", sx=1, sy=1):
    text = ROWS.replace("LEFT", left).replace("ANNOTATION", annotation).replace("SX", str(sx)).replace("SY", str(sy))
    (diagnosis,) = of_script(tmp_path, text)
    return {(one.id, one.source.line): one for one in diagnosis.findings}


@pytest.mark.parametrize(("left", "annotation"), [("", ": int"), ("'sx', 'sy'", "")])
def test_a_stride_of_1_for_which_nothing_is_compiled_costs_vectors_and_no_sectors(tmp_path, left, annotation):
    found = rows(tmp_path, left=left, annotation=annotation)
    assert set(found) == {("narrow-access", 7)}
    one = found["narrow-access", 7]
    by, removed = ("a type annotation", "the annotation of sx and sy")
    if left:
        by, removed = ("do_not_specialize", "sx and sy from do_not_specialize")
    assert one.message == (
        "a thread loads 4 bytes at a time where 16 bytes are contiguous (likewise on line 8): "
        f"because of {by}, the compiler does not know that at this launch sx and sy are 1"
    )
    assert one.advice == f"remove {removed}; or declare sx and sy as tl.constexpr"
    assert (one.severity, one.estimate.speedup) == ("medium", 2.0)


def test_a_stride_of_1_that_the_jit_compiles_for_is_nothing(tmp_path):
    assert rows(tmp_path) == {}


def test_a_stride_of_0_is_one_number_for_all_and_others_lie_apart(tmp_path):
    assert set(rows(tmp_path, annotation=": int", sx=0)) == {("narrow-access", 8)}
    apart = rows(tmp_path, annotation=": int", sx=9)  # 64 apart are no parts of records, and nothing is between them
    assert apart["uncoalesced-access", 7].severity == "high"
    assert ("uncoalesced-access", 8) not in apart


@pytest.mark.parametrize(
    ("decorator", "advice"),
    [
        (
            'do_not_specialize=["lda", "ldb"]',
            "remove lda and ldb from do_not_specialize; or where lda and ldb are multiples",
        ),
        ("do_not_specialize=[5, 7]", "remove lda and ldb from do_not_specialize; or where lda and ldb are multiples"),
        ('do_not_specialize_on_alignment=["ldb"]', "remove ldb from do_not_specialize_on_alignment; or where ldb is"),
        ('do_not_specialize=["bn"]', "remove bn from do_not_specialize; or declare bn as tl.constexpr"),
        ('do_not_specialize=["N"]', None),
    ],
)
def test_what_the_source_keeps_from_the_compiler_is_named_where_loads_are_not_ahead(tmp_path, decorator, advice):
    (diagnosis,) = of_script(tmp_path, HIDDEN.replace("DECORATOR", decorator).replace("WIDTH", "4096"))
    found = {one.id: one for one in diagnosis.findings}
    assert ("loads-not-pipelined" in found) == (advice is not None)
    if advice is not None:
        one = found["loads-not-pipelined"]
        assert one.severity == "high"
        assert one.advice.startswith(advice)
        assert found["narrow-access"].advice.startswith(advice)


def test_what_loads_that_are_not_ahead_cause_is_no_severe_finding_of_its_own(tmp_path):
    text = HIDDEN.replace("DECORATOR", 'do_not_specialize=["lda", "ldb"]').replace("WIDTH", "4096")
    (diagnosis,) = of_script(tmp_path, text.replace("(32, 32)", "(32, 16)").replace("BN=128", "BN=256"))
    first, *_ = diagnosis.findings
    assert (first.id, first.severity) == ("loads-not-pipelined", "high")
    assert "does not know that at this launch lda and ldb are multiples of 16 (4096)" in first.message
    (spills,) = (one for one in diagnosis.findings if one.id == "register-spills")
    assert spills.evidence["share_of_instructions"] > SPILLED_SHARE
    assert spills.severity == "low"
    assert spills.message.startswith("a consequence of the loads that are not pipelined")
    assert spills.advice.startswith("first remove lda and ldb from do_not_specialize")


@pytest.mark.parametrize(
    ("width", "stages", "in_place_of"),
    [("4099", 3, "ldb"), ("4096", 1, "ldb"), ("4096", 3, "ldb // 16 * 16")],
    ids=["no multiple", "one stage", "written so"],
)
def test_where_something_else_is_in_the_way_the_source_is_not_blamed(tmp_path, width, stages, in_place_of):
    text = HIDDEN.replace("DECORATOR", 'do_not_specialize=["ldb"]').replace("WIDTH", width)
    text = text.replace("rk[:, None] * ldb", f"rk[:, None] * ({in_place_of})").replace(
        "num_stages=3", f"num_stages={stages}"
    )
    (diagnosis,) = of_script(tmp_path, text)
    said = [one.advice for one in diagnosis.findings if one.id == "loads-not-pipelined"]
    assert not any("do_not_specialize" in advice for advice in said)
    assert bool(said) == (in_place_of == "ldb")


SHIFTED_ROWS = """
import torch, triton, triton.language as tl

@triton.jit(do_not_specialize=[LEFT])
def doubled(x, y, n, stride, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.program_id(0) * stride
    value = tl.load(x + row + i, mask=i < n)
    tl.store(y + row + i, value * 2, mask=i < n)

x = torch.empty(1 << 25, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
for first, stride in LAUNCHES:
    doubled[(4096,)](x[first:], y, 4096, stride, BLOCK=4096)
"""


@pytest.mark.parametrize(
    ("left", "launches", "rule", "advice"),
    [
        (
            "'stride'",
            [(0, 4112)],
            "narrow-access",
            "remove stride from do_not_specialize; or where stride is a multiple of 16 at",
        ),
        (
            "'n'",
            [(0, 4112)],
            "mask-stops-vectors",
            "remove n from do_not_specialize; or where n is a multiple of 16 at each launch",
        ),
        ("'x'", [(0, 4112)], "narrow-access", "remove x from do_not_specialize"),
        ("'x'", [(1, 4112)], "narrow-access", "let x begin at a multiple of 16 bytes"),
        ("'stride'", [(0, 4112), (0, 4111)], "narrow-access", "round stride up to a multiple of 16 (of a stride: pad"),
    ],
)
def test_what_is_a_multiple_of_16_in_all_launches_is_to_be_specialised(tmp_path, left, launches, rule, advice):
    (diagnosis,) = of_script(tmp_path, SHIFTED_ROWS.replace("LEFT", left).replace("LAUNCHES", str(launches)))
    found = {one.id: one for one in diagnosis.findings}
    assert found[rule].advice.startswith(advice)


PADDED = """
import torch, triton, triton.language as tl

@triton.jit
def inner(x, y, width, begin, end, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = i % width
    value = tl.load(x + i, mask=(column >= begin) & (column < end), other=0.0)
    tl.store(y + i, value)

x, y = torch.empty(1 << 24, device="cuda", dtype=torch.bfloat16), torch.empty(1 << 24, device="cuda")
inner[(1 << 16,)](x, y, 4096, 3, 4093, BLOCK=256)
"""


def test_a_mask_between_arguments_of_a_launch_does_not_say_how_few_bytes_it_lets_through(tmp_path):
    (diagnosis,) = of_script(tmp_path, PADDED)
    (one,) = (one for one in diagnosis.findings if one.id == "few-bytes-in-flight")
    assert one.evidence["bytes_of_a_thread"] == 4.0
    assert one.advice.startswith("let a CTA work on 4 times as many elements")


COUNTED = """
import torch, triton, triton.language as tl

@triton.jit
def counts(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    bins = tl.arange(0, BINS)
    total = tl.zeros([BINS, BLOCK], tl.int64)
    for start in range(0, n, BLOCK):
        at = OFFSETS
        total += (tl.load(x + at)[None, :] == bins[:, None]).to(tl.int64)
    tl.atomic_add(out + bins, tl.sum(total, 1))

x, out = torch.empty(1 << 20, device="cuda", dtype=torch.int32), torch.zeros(16, device="cuda", dtype=torch.int64)
counts[(132,)](x, out, 1 << 20, 16, 256)
"""


@pytest.mark.parametrize(
    ("offsets", "lines"),
    [("start + tl.arange(0, BLOCK)", set()), ("(start + tl.arange(0, BLOCK)).to(tl.int64) * BLOCK // 128", {9})],
)
def test_a_sum_in_64_bits_is_no_index_and_an_address_is(tmp_path, offsets, lines):
    (diagnosis,) = of_script(tmp_path, COUNTED.replace("OFFSETS", offsets))
    assert {one.source.line for one in diagnosis.findings if one.id == "int64-index"} == lines


GATHERED = """
import torch, triton, triton.language as tl

@triton.jit
def gathered(x, table, out, n, last, stride, B: tl.constexpr, D: tl.constexpr):
    at, cols = tl.arange(0, B), tl.arange(0, D)
    total = tl.zeros([B, D], tl.float32)
    for start in range(0, n, B):
        row = tl.load(table + start + at)
        total += tl.load(x + OFFSETS)
    tl.store(out + at[:, None] * D + cols[None, :], total)

x = torch.empty(LENGTH, device="cuda", dtype=torch.float16)
table = torch.empty(1 << 14, device="cuda", dtype=torch.INDEX)
gathered[(132,)](x, table, torch.empty(1 << 14, device="cuda"), 1 << 14, 1 << 14, 64, 128, 64)
"""
WIDENED_LATE = "widen it only to multiply it by the stride, as index.to(tl.int64) * stride"
KEPT = f"keep the loaded index in 32 bits, and {WIDENED_LATE}"
CONVERTED = f"convert the loaded index to 32 bits, as index.to(tl.int32), and {WIDENED_LATE}"
POINTER_FIRST = "add index * stride to the pointer first, and then to that pointer the other offsets in 32 bits"
FIRST_ADDRESS = (
    "compute the tile's first address once before the loop, in 64 bits, and the offsets in the loop in 32 bits"
)
LEFT = "leave the loaded index in 32 bits, which reach across 2^31 elements: the launch's largest tensor has"


@pytest.mark.parametrize(
    ("offsets", "index", "length", "advice"),
    [
        ("((row.to(tl.int64) + last) % last)[:, None] * stride + cols[None, :]", "int32", "1 << 33", {KEPT}),
        ("tl.where(row < 0, row.to(tl.int64) + last, row)[:, None] * stride", "int32", "1 << 33", {KEPT}),
        ("row[:, None] * stride", "int64", "1 << 33", {CONVERTED}),
        ("((row.to(tl.int64)[:, None] * stride) + cols[None, :])", "int32", "1 << 33", {POINTER_FIRST}),
        ("row.to(tl.int64)[:, None] * stride", "int32", "1 << 20", {LEFT}),
        ("row.to(tl.int64)[:, None] * stride", "int32", "1 << 33", set()),  # each of its 64 bits may be needed
        ("(start + at).to(tl.int64)[:, None] * stride", "int32", "1 << 33", {FIRST_ADDRESS}),
        ("((at + start).to(tl.int64) * 3)[:, None] + cols[None, :]", "int64", "1 << 20", {FIRST_ADDRESS}),
    ],
)
def test_gathered_rows_have_no_first_address_before_the_loop(tmp_path, offsets, index, length, advice):
    source = GATHERED.replace("OFFSETS", offsets).replace("INDEX", index).replace("LENGTH", length)
    (diagnosis,) = of_script(tmp_path, source)
    found = {one.advice for one in diagnosis.findings if one.id == "int64-index"}
    assert {one.partition(" has ")[0] + " has" * (" has " in one) for one in found} == advice


PASSES = """
import torch, triton, triton.language as tl

@triton.jit
def norm(x, w, y, out, n, BLOCK: tl.constexpr):
    row, total = tl.program_id(0) * n, 0.0
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + row + cols, mask=cols < n, other=0.0))
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        weight = tl.load(w + tl.arange(0, BLOCK))
        value = tl.load(x + row + cols, mask=cols < n, other=0.0)
        tl.store(y + row + cols, value * weight / total, mask=cols < n)

n = LENGTH
x, y = torch.empty(4096, n, device="cuda"), torch.empty(4096, n, device="cuda")
norm[(4096,)](x, torch.empty(2048, device="cuda"), y, y, n, 2048, num_warps=4)
"""


@pytest.mark.parametrize(("length", "iterations"), [(2048, 1), (2000, 1), (4096, 2)])
def test_a_loop_of_one_iteration_does_nothing_again(tmp_path, length, iterations):
    (diagnosis,) = of_script(tmp_path, PASSES.replace("LENGTH", str(length)))
    found = {(one.id, one.source.line): one for one in diagnosis.findings}
    again = found["redundant-load", 13]
    assert again.message.startswith("x is read at the same addresses as on line 9")
    if iterations == 1:
        assert set(found) == {("redundant-load", 13)}
        assert again.advice == (  # behind loops that stay, the variable would have the last tile of a longer row alone
            "where one tile holds the whole row, as at this launch, leave out the loops, keep what the first load "
            "returns in a variable, and leave out this load"
        )
    else:
        assert "each iteration reduces 2048 elements" in found["reduction-in-loop", 9].message
        assert again.advice.startswith("let one tile of 4096 elements hold the whole row in registers")
        assert "each iteration loads the same 8192 bytes of w again" in found["redundant-load", 12].message


def test_without_a_launch_a_loop_may_have_many_iterations(tmp_path):
    script = tmp_path / "it.py"
    source = PASSES.replace("out, n, BLOCK", "begin, end, n, BLOCK")
    script.write_text(source.replace("range(0, n,", "range(begin, end,"))
    types = "*fp32,*fp32,*fp32,i32:16,i32:16,i32:16"
    (kernel,) = inputs.read(f"{script}:norm", (), SM_90A, signature=types, constexprs=("BLOCK=2048",))
    assert "reduction-in-loop" in {one.id for one in diagnose(kernel).findings}


TURNED = """
import torch, triton, triton.language as tl

@triton.jit
def turned(x, y, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for start in range(0, n, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        tile = tl.load(x + rows[:, None] * n + cols[None, :])
        tl.store(y + cols[:, None] * 8192 + rows[None, :], tl.trans(tile))

turned[(128,)](torch.empty(8192, LENGTH, device="cuda"), torch.empty(LENGTH, 8192, device="cuda"), LENGTH, 64)
"""


@pytest.mark.parametrize(("length", "said"), [(64, False), (4096, True)])
def test_a_layout_that_is_changed_once_is_not_changed_in_each_iteration(tmp_path, length, said):
    (diagnosis,) = of_script(tmp_path, TURNED.replace("LENGTH", str(length)))
    assert ("conversion-in-loop" in {one.id for one in diagnosis.findings}) == said


SCALARS = """
import torch, triton, triton.language as tl

@triton.jit
def one_by_one(x, out, n):
    total = 0
    for i in range(n):
        BODY
    tl.store(out + n, total)

x, out = torch.empty(4096, device="cuda", dtype=torch.int32), torch.zeros(8192, device="cuda", dtype=torch.int32)
one_by_one[(132,)](x, out, 4000)
"""


@pytest.mark.parametrize(
    ("body", "severity", "advice"),
    [
        ("total += tl.load(x + i)", "high", "and reduce it with tl.sum"),
        ("total += tl.load(x + i); tl.store(out + i, total)", "high", "and scan it with tl.cumsum"),
        ("at = out + tl.load(x + i); tl.store(at, tl.load(at) + 1)", "medium", "count them with tl.histogram"),
        (
            "at = out + tl.load(x + i); tl.store(out + i, tl.load(at) + 1)",
            "medium",
            "count with tl.sum those that are less",
        ),
    ],
)
def test_what_to_do_with_a_block_of_numbers_follows_from_what_is_done_with_each(tmp_path, body, severity, advice):
    (diagnosis,) = of_script(tmp_path, SCALARS.replace("BODY", body))
    (one,) = (one for one in diagnosis.findings if one.id == "scalar-loop")
    assert one.severity == severity
    assert advice in one.advice


SCATTERED = """
import torch, triton, triton.language as tl

@triton.jit
def scattered(x, table, out, n, used):
    row, total = tl.program_id(0) * n, 0
    for i in range(used):
        number = tl.load(x + row + i)
        BODY
    tl.store(out + row, total)

x, table, out = (torch.zeros(1 << 22, device="cuda", dtype=torch.int32) for _ in range(3))
scattered[(GRID,)](x, table, out, USED, USED, num_warps=4)
"""
FEWER = "; for 16 numbers launch with num_warps=1, or let a CTA have 8 such rows"
TILE = "the tile of addresses that the numbers make, with the loop's conditions as the mask"


@pytest.mark.parametrize(
    ("body", "used", "advice"),
    [
        ("tl.atomic_add(out + number, 1)", 16, f"give tl.atomic_add {TILE}{FEWER}"),
        ("if number >= 0: tl.store(out + number, i)", 16, f"give tl.store {TILE}{FEWER}"),
        ("tl.store(out + tl.load(table + number), i)", 512, f"give tl.store {TILE}"),
        ("total += tl.load(table + number)", 512, "reduce it with tl.sum or tl.max"),
        ("total += number", 100, "reduce it with tl.sum or tl.max; for 100 numbers launch with num_warps=1"),
        ("tl.atomic_add(out + i, number)", 512, "reduce it with tl.sum or tl.max"),
    ],
)
def test_numbers_that_are_addresses_are_scattered_and_not_summed(tmp_path, body, used, advice):
    text = SCATTERED.replace("BODY", body).replace("USED", str(used)).replace("GRID", "4096")
    (diagnosis,) = of_script(tmp_path, text)
    (one,) = (one for one in diagnosis.findings if one.id == "scalar-loop")
    assert one.advice == f"load a block of numbers at once (tl.arange), and {advice}"


@pytest.mark.parametrize(
    ("grid", "order", "severity", "least", "most"),
    [
        (1, "relaxed", "low", 1, 1.1),
        (132, "relaxed", "low", 1, 1.1),
        (65536, "relaxed", "high", 1.5, 3),
        (65536, "acq_rel", "high", 5, 15),
    ],
)
def test_numbers_at_once_gain_as_much_as_the_ctas_of_a_launch_wait(tmp_path, grid, order, severity, least, most):
    """A launch of few CTAs takes longer to begin than 16 numbers; the CTAs of many start one after another."""
    body = f'tl.atomic_add(out + number, 1, sem="{order}")'
    text = SCATTERED.replace("BODY", body).replace("USED", "16").replace("GRID", str(grid))
    (diagnosis,) = of_script(tmp_path, text)
    (one,) = (one for one in diagnosis.findings if one.id == "scalar-loop")
    assert one.severity == severity
    assert least <= one.estimate.speedup <= most


BACKWARD = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) * 2)

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        ctas = torch.cuda.get_device_properties(x.device).multi_processor_count if x.device.type == "cuda" else 1
        dx = torch.empty_like(dy)
        double[(ctas,)](dy, dx, 1024)
        return dx

x = torch.empty(132 * 1024, device="cuda", requires_grad=True)
y = Double.apply(x)
RUN
"""


@pytest.mark.parametrize(
    "run", ["y.sum().backward()", "y.backward(torch.ones_like(y))", "torch.autograd.grad(y.sum(), x)"]
)
def test_a_backward_pass_finds_its_tensors_on_a_gpu(tmp_path, run):
    script = tmp_path / "it.py"
    script.write_text(BACKWARD.replace("RUN", run))
    (kernel,) = inputs.read(str(script), (), SM_90A)
    assert kernel.grid == (132, 1, 1)


GROUPS = """
import torch, triton, triton.language as tl

@triton.jit
def grouped(x, y, n, groups, count, BLOCK: tl.constexpr):
    each = n // groups
    i = tl.arange(0, BLOCK)
    at = tl.program_id(0) * BEGIN + i
    tl.store(y + at, tl.load(x + at, mask=i < END) * 2, mask=i < END)

x = torch.empty(1 << 26, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
grouped[(4096,)](x, y, N, GROUPS, COUNT, BLOCK=2048)
"""


def of_groups(tmp_path, end, n, groups, count=16, begin="BLOCK"):
    text = GROUPS.replace("END", end).replace("BEGIN", begin).replace("COUNT", str(count))
    (diagnosis,) = of_script(tmp_path, text.replace("GROUPS", str(groups)).replace("N,", f"{n},"))
    return {one.id: one for one in diagnosis.findings}


@pytest.mark.parametrize(
    ("end", "n", "groups", "advice"),
    [
        ("each", 8192, 4, "pass each as an argument (Triton"),
        ("n // groups", 8192, 32, "pass n // groups as an argument (Triton"),
        ("each", 4000, 8, "pad each to a multiple of 16, and pass each as an argument"),
        ("tl.minimum(each, 1024)", 8192, 4, "pass tl.minimum(each, 1024) as an argument"),
        ("groups", 8192, 100, "pass a multiple of 16 as groups (Triton"),
        ("n", 1600, 4, ""),
        ("n // 16 * 16", 1600, 4, ""),
        ("groups", 1600, 64, ""),
    ],
)
def test_a_mask_that_ends_at_a_quotient_names_what_it_ends_at(tmp_path, end, n, groups, advice):
    one = of_groups(tmp_path, end, n, groups).get("mask-stops-vectors")
    assert (one is not None) == bool(advice)
    assert one is None or one.advice.startswith(advice)
    assert one is None or end == "groups" or f"its mask ends at {end}, a quotient of groups, n, which" in one.message


@pytest.mark.parametrize(
    ("count", "advice"),
    [
        (20, "round count up to a multiple of 16 (of a stride: pad the rows), or pass it as tl.constexpr"),
        (21, "round count up to a multiple of 16 (of a stride: pad the rows)"),
        (32, None),
    ],
)
def test_a_number_of_which_rows_begin_is_named(tmp_path, count, advice):
    one = of_groups(tmp_path, "n", 1600, 4, count, begin="count").get("narrow-access")
    assert (one.advice if one is not None else None) == advice
