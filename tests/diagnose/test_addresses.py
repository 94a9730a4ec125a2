"""Addresses: what the compiler is not sure of, what is read from memory, and what that does to loads."""

from collections import Counter

import pytest

from kperf.arch import GFX942, H200_COPY_GB_PER_S, H200_PARTIAL_STORE_GB_PER_S, SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses.occupancy import arithmetic_cycles
from kperf.diagnose.engine import diagnose

pytestmark = pytest.mark.kernels

HEAD = "import torch\nimport triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
MATMUL = """
@triton.jit
def kernel(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    pa = a + rm[:, None] * K + rk[None, :]
    pb = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(pa)
        y = tl.load(pb)  # here
        acc = tl.dot(x, y, acc)
        pa += BK
        pb += BK * N
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""
MATMUL_TYPES = "a=*bf16,b=*bf16,c=*bf16,N=i32:16,K=i32:16"
TILES = ("BM=128", "BN=128", "BK=64")


def findings(tmp_path, source, signature="", constexprs=(), **options):
    """Of a function `kernel`, or of a script that launches it: by rule and line."""
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + source)
    if not signature:
        (kernel,) = inputs.read(str(path), (), SM_90A)
    else:
        given = {"num_warps": 4, "num_stages": 3} | options
        (kernel,) = inputs.read(f"{path}:kernel", (), SM_90A, signature=signature, constexprs=constexprs, options=given)
    return {(one.id, one.source.line): one for one in diagnose(kernel).findings}


def line(source, mark="# here"):
    return next(number for number, text in enumerate((HEAD + source).splitlines(), 1) if mark in text)


GROUPED = MATMUL.replace("kernel(a, b, c", "kernel(addresses, c").replace(
    "    pa = a",
    "    a = tl.load(addresses).to(tl.pointer_type(tl.bfloat16))\n"
    "    b = tl.load(addresses + 1).to(tl.pointer_type(tl.bfloat16))\n    pa = a",
)
GROUPED_TYPES = "addresses=*i64,c=*bf16,N=i32:16,K=i32:16"


def test_a_pointer_from_memory_has_no_alignment_until_one_is_said(tmp_path):
    found = findings(tmp_path, GROUPED, GROUPED_TYPES, TILES)["loads-not-pipelined", line(GROUPED)]
    assert found.severity == "high"
    assert (
        "prove only 2 contiguous bytes of a thread, and cp.async copies 4 or more: its address is computed"
        in found.message
    )
    assert found.advice.startswith("if they are multiples of 16, say so: pointer = tl.multiple_of(pointer, 16)")
    said = GROUPED.replace("    pa = a", "    a, b = tl.multiple_of(a, 16), tl.multiple_of(b, 16)\n    pa = a")
    assert ("loads-not-pipelined", line(said)) not in findings(tmp_path, said, GROUPED_TYPES, TILES)


def test_a_tile_that_a_while_loop_hands_out_is_known(tmp_path):
    body = GROUPED.partition("    rm, rn")[2].replace("tl.program_id(0)", "tile")
    looped = GROUPED.partition("    rm, rn")[0] + "    tile = tl.program_id(0)\n    while tile < N:\n"
    looped += "\n".join(f"    {text}" for text in ("    rm, rn" + body).splitlines()) + "\n        tile += 132\n"
    found = findings(tmp_path, looped, GROUPED_TYPES, TILES)["loads-not-pipelined", line(looped)]
    assert found.advice.startswith("if they are multiples of 16, say so: pointer = tl.multiple_of(pointer, 16)")


def test_operands_of_8_bits_want_k_contiguous(tmp_path):
    types = MATMUL_TYPES.replace("*bf16", "*fp8e4nv", 2)
    found = findings(tmp_path, MATMUL, types, TILES)
    assert found["loads-not-pipelined", line(MATMUL)].message.endswith(
        "wgmma takes 8-bit operands only if K (the dimension over which the MMA sums) is contiguous, so each thread "
        "has to transpose its part of this tile"
    )
    turned = MATMUL.replace("rk[:, None] * N + rn[None, :]", "rk[:, None] + rn[None, :] * K", 1)
    turned = turned.replace("pb += BK * N", "pb += BK")
    tiles = findings(tmp_path, turned, types, ("BM=128", "BN=256", "BK=64"), num_warps=8)
    assert {rule for rule, _ in tiles} == {"tma-unused"}
    a, b = (tiles["tma-unused", line(turned) + place].advice for place in (-1, 0))
    assert "block_shape=[128, 64]" in a
    assert ".T" not in a
    assert "block_shape=[256, 64]" in b
    assert b.endswith("and load with desc.load, and .T, as the tile lies transposed in memory")


def test_indices_modulo_an_odd_number_are_masked_instead(tmp_path):
    wrapped = MATMUL.replace("    pa = a", "    rn = rn % M\n    pa = a").replace("c, N, K", "c, M, N, K")
    types = MATMUL_TYPES.replace("N=", "M=i32,N=")
    found = findings(tmp_path, wrapped, types, TILES)
    for rule in ("uncoalesced-access", "loads-not-pipelined"):
        one = found[rule, line(wrapped)]
        assert one.advice == "leave out the modulo and mask the elements beyond M instead, or pad M to a multiple of 16"
    assert findings(tmp_path, wrapped, types.replace("M=i32", "M=i32:16"), TILES).keys() == {
        ("tma-unused", number) for number in (line(wrapped) - 1, line(wrapped))
    }


CACHED = """
@triton.jit
def kernel(x, slots, cache, heads, length, D: tl.constexpr, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    slot = tl.load(slots + tl.program_id(0))
    tl.store(cache + slot * heads * length + d * 16, tl.load(x + tl.program_id(0) * D + d))  # here
"""


def test_the_tensor_is_that_of_the_pointer_and_not_of_the_loaded_index(tmp_path):
    for kind in ("i32", "i64"):
        found = findings(tmp_path, CACHED, f"*bf16,*{kind},*bf16,i64:16,i64:16", ["D=1024", "BLOCK=1024"])
        one = found["uncoalesced-access", line(CACHED)]
        assert "neighbouring threads store elements of cache that lie 16 elements apart" in one.message


TRANSPOSED = """
@triton.jit
def kernel(x, y, H, W, ROWS: tl.constexpr, COLS: tl.constexpr):
    across = W // COLS
    h = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)[:, None]
    w = tl.program_id(0) % across * COLS + tl.arange(0, COLS)[None, :]
    tl.store(y + h * W + w, tl.load(x + w * H + h))  # here
"""


def test_a_tile_of_one_row_cannot_lie_in_order_in_a_tensor_and_its_transpose(tmp_path):
    """The other row as the tile's would move the fault to the other tensor."""
    types = "*bf16,*bf16,i32:16,i32:16"
    one = findings(tmp_path, TRANSPOSED, types, ["ROWS=1", "COLS=512"])["uncoalesced-access", line(TRANSPOSED)]
    assert one.advice.startswith("give the tile 16 elements or more of each of its dimensions")
    assert not findings(tmp_path, TRANSPOSED, types, ["ROWS=32", "COLS=64"])


SPLIT_INDEX = """
@triton.jit
def kernel(x, y, W, H, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h, w = i // W, i % W
    tl.store(y + i, tl.load(x + h * (W + 2) + w, mask=i < H * W), mask=i < H * W)  # here
"""


def test_an_index_that_is_split_into_row_and_column_keeps_its_modulo(tmp_path):
    """Without it another element is loaded: it does not wrap around at the end of a tensor."""
    one = findings(tmp_path, SPLIT_INDEX, "*fp32,*fp32,i32,i32:16", ["BLOCK=1024"])["narrow-access", line(SPLIT_INDEX)]
    assert one.advice.endswith(
        "let a CTA's tile lie in one row of W elements: compute the row from tl.program_id, let tl.arange run along "
        "the row, and mask the elements beyond W; or pad W to a multiple of 16"
    )


def test_a_tile_that_repeats_its_rows_is_none_for_tma(tmp_path):
    repeated = MATMUL.replace("rk[:, None] * N", "rk[:, None] // 8 * N").replace("BK * N", "BK // 8 * N")
    found = findings(tmp_path, repeated, MATMUL_TYPES, TILES)
    assert [number for rule, number in found if rule == "tma-unused"] == [line(repeated) - 1]


PAGES = """
@triton.jit
def kernel(pages, begins, x, y, n, D: tl.constexpr, BLOCK: tl.constexpr):
    i, d = tl.arange(0, BLOCK), tl.arange(0, D)
    begin = tl.load(begins + tl.program_id(0))
    acc = tl.zeros((BLOCK, D), tl.float32)
    for k in range(0, n, BLOCK):
        page = tl.load(pages + begin + k + i)  # here
        acc += tl.load(x + page[:, None] * D + d[None, :])
    tl.store(y + tl.program_id(0) * D + d, tl.sum(acc, 0))
"""


@pytest.mark.parametrize(("width", "severity"), [(128, "low"), (4, "medium")])
def test_a_few_narrow_requests_among_many_are_a_hint(tmp_path, width, severity):
    """256 indices of 4 bytes beside 256 rows of 512, or of 16 bytes."""
    found = findings(tmp_path, PAGES, "*i32,*i32,*fp32,*fp32,i32", (f"D={width}", "BLOCK=256"), num_warps=2)
    one = found["narrow-access", line(PAGES)]
    share = 1 / (1 + width / 4)
    assert one.severity == severity
    assert one.estimate.speedup == pytest.approx((1 / (1 - share * 3 / 4)) ** 0.5, rel=1e-3)


PARTIAL = """
@triton.jit
def kernel(q, k, pages, y, n, D: tl.constexpr, BLOCK: tl.constexpr):
    h, i, d = tl.arange(0, 16), tl.arange(0, BLOCK), tl.arange(0, D)
    head = tl.load(q + h[:, None] * D + d[None, :])
    acc = tl.zeros((16, D), tl.float32)
    for block in range(n):
        page = tl.load(pages + block)
        tile = tl.load(k + page * BLOCK * D + i[:, None] * D + d[None, :])
        acc = tl.dot(tl.dot(head, tile.T).to(tl.bfloat16), tile, acc)
    tl.store(y + (tl.program_id(0) * 16 + h[:, None]) * (D + 2) + d[None, :], acc)  # here
"""


def test_what_a_loop_loads_by_loaded_addresses_counts_too(tmp_path):
    """Sums with two more numbers in each row, which a CTA stores once after the loop."""
    found = findings(tmp_path, PARTIAL, "*bf16,*bf16,*i32,*fp32,i32", ("D=128", "BLOCK=64"), num_warps=4)
    one = found["narrow-access", line(PARTIAL)]
    assert (one.severity, one.evidence["machine_bytes"]) == ("low", 8)


SPLIT_ROWS = """
@triton.jit
def kernel(x, y, N, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    length = tl.cdiv(N, SPLIT)
    begin = tl.program_id(1) * N + tl.program_id(0) * length
    for i in range(0, length, BLOCK):
        columns = i + tl.arange(0, BLOCK)
        tl.store(y + begin + columns, 2 * tl.load(x + begin + columns, mask=columns < length))  # here

x = torch.zeros(64, 4096 + ODD, dtype=torch.bfloat16, device="cuda")
kernel[(4, 64)](x, torch.empty_like(x), 4096 + ODD, 4, 512)
"""


@pytest.mark.parametrize(("odd", "said"), [("0", "rows begin at a quotient of N"), ("16", "rows begin up to")])
def test_a_quotient_is_no_multiple_of_16_to_the_compiler_whatever_it_is(tmp_path, odd, said):
    """A quarter of 4096 columns is a multiple of 16, and begins so; of 4112 columns it is 1028."""
    text = SPLIT_ROWS.replace("ODD", odd)
    found = findings(tmp_path, text)["narrow-access", line(text)]
    assert said in found.message
    assert ("tl.multiple_of(n // d, 16)" in found.advice) == (odd == "0")


@pytest.mark.parametrize("length", ["tl.multiple_of((N + SPLIT - 1) // SPLIT, 16)", "SHARE"])
def test_a_quotient_of_which_the_compiler_knows_a_multiple_is_no_finding(tmp_path, length):
    text = SPLIT_ROWS.replace("ODD", "0").replace("tl.cdiv(N, SPLIT)", length)
    text = text.replace("N, SPLIT: tl", "N, SHARE, SPLIT: tl").replace("4096 + 0, 4,", "4096, 1024, 4,")
    assert ("narrow-access", line(text)) not in findings(tmp_path, text)


COLUMNS = """
@triton.jit
def kernel(x, index, out, M, N, BLOCK: tl.constexpr):
    rows = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    column = tl.load(index + tl.program_id(0))
    tl.store(out + tl.program_id(0) * M + rows, tl.load(x + rows * N + column))  # here
"""
COLUMN_TYPES = "x=*fp32,index=*i32,out=*fp32,M=i32:16,N=i32:16"


@pytest.mark.parametrize(
    ("address", "is_found"), [("rows * N + column", True), ("rows + column * N", False), ("rows * column", False)]
)
def test_where_a_tile_begins_may_come_from_memory_and_not_its_strides(tmp_path, address, is_found):
    source = COLUMNS.replace("rows * N + column", address)
    found = findings(tmp_path, source, COLUMN_TYPES, ("BLOCK=1024",))
    assert (("uncoalesced-access", line(source)) in found) == is_found
    if is_found:
        assert found["uncoalesced-access", line(source)].message.endswith("load elements of x that lie apart")


TWO_COLUMNS = """
@triton.jit
def kernel(x, out, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    y = tl.load(x + rows * N + tl.program_id(0))  # loaded
    tl.store(out + rows * M + tl.program_id(0), y)  # stored
"""


def test_what_one_change_gives_is_estimated_once_for_all_lines(tmp_path):
    found = findings(tmp_path, TWO_COLUMNS, "x=*fp32,out=*fp32", ("M=1024", "N=4096", "BLOCK=1024"))
    lines = [line(TWO_COLUMNS, f"# {name}") for name in ("loaded", "stored")]
    for place, other in (lines, lines[::-1]):
        one = found["uncoalesced-access", place]
        # Requests use 4 of 32 bytes: L2 gives 64 bytes where memory gives 20, and writes parts of sectors slower.
        assert one.estimate.speedup == pytest.approx(8 * (20 / 64 + 3900 / 2050) / 2)
        assert f"; the same holds for line {other}, and the estimate is for all of them together" in one.message


HEADS = """
@triton.jit
def kernel(s, out, n, H: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr):
    batch, head = tl.program_id(1) // H, tl.program_id(1) % H
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places = (batch * n + rows) * H * STEP + head * STEP
    tl.store(out + places, tl.cumsum(tl.load(s + places), 0))  # here
"""


@pytest.mark.parametrize(
    ("step", "neighbours", "severity", "gain"),
    [
        (1, 8, "high", 8 * (20 / 64 + 3900 / 2050) / 2),
        (4, 2, "medium", 8**0.5),  # both use 8 of 32 bytes together
        (8, 0, "high", 8**0.8),
    ],
)
def test_what_other_ctas_use_of_a_sector_moves_from_memory_once(tmp_path, step, neighbours, severity, gain):
    constexprs = ("H=16", f"STEP={step}", "BLOCK=1024")
    one = findings(tmp_path, HEADS, "s=*fp32,out=*fp32,n=i32", constexprs)["uncoalesced-access", line(HEADS)]
    where = "between L2 and the SM" if neighbours else "from device memory"
    far = f"{16 * step} elements apart" if step == 1 else "apart"
    assert one.message == (
        f"the load uses 12% of the bytes that it moves {where}: neighbouring threads load elements of s that lie {far}"
        + "; the next CTA along axis y of the grid uses other bytes of the same sectors" * (neighbours > 0)
    )
    assert one.advice.startswith(
        f"let each CTA do the work of {neighbours} neighbours along axis y of the grid, or more: tl.program_id(1) * "
        f"{neighbours} + tl.arange(0, {neighbours}) as the last index of the tile, in place of tl.program_id(1)"
    ) == (neighbours > 0)
    assert (one.severity, one.estimate.speedup) == (severity, pytest.approx(gain))


def test_a_store_moves_its_bytes_to_memory(tmp_path):
    source = """
@triton.jit
def kernel(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i * 5, tl.load(x + i))  # here
"""
    one = findings(tmp_path, source, "x=*fp32,out=*fp32", ("BLOCK=1024",))["uncoalesced-access", line(source)]
    assert one.message == (
        "the store uses 20% of the bytes that it moves to device memory: neighbouring threads store elements of out "
        "that lie 5 elements apart"
    )


ROPE = """
@triton.jit
def kernel(x, out, H: tl.constexpr, D: tl.constexpr):
    i = tl.program_id(0) * H * D * 2 + tl.arange(0, H)[:, None] * D * 2 + 2 * tl.arange(0, D)[None, :]
    even = tl.load(x + i)
    odd = tl.load(x + i + 1)  # loads
    tl.store(out + i, even - odd)  # here
    tl.store(out + i + 1, even + odd)
"""


@pytest.mark.parametrize(("heads", "element", "use"), [(32, "bf16", 1 / 16), (32, "fp32", 1 / 8), (1, "bf16", 1 / 2)])
def test_a_store_of_a_part_of_each_sector_is_taken_by_itself(tmp_path, heads, element, use):
    types, constexprs = f"x=*{element},out=*{element}", (f"H={heads}", f"D={4096 // heads if heads == 1 else 64}")
    found = findings(tmp_path, ROPE, types, constexprs)
    one = found["uncoalesced-access", line(ROPE)]
    after = line(ROPE) + 1
    assert one.message.startswith(
        f"each request of the store writes {use:.0%} of each sector that it moves to L2, and requests of line {after} "
        "write the rest separately"
    )
    assert (
        one.advice == "put the 2 parts of an element side by side with tl.join and tl.reshape, and store them together"
    )
    gain = H200_COPY_GB_PER_S / H200_PARTIAL_STORE_GB_PER_S / use / 2  # of bytes that are loaded and stored
    assert one.estimate.speedup == pytest.approx(max(gain, 1.1))
    assert one.severity == ("high" if gain > 3 else "medium")
    loads = [other for (rule, _), other in found.items() if rule == "uncoalesced-access" and other is not one]
    assert [other.estimate.speedup for other in loads] == [1.3] * len(loads)


def test_columns_that_a_loop_walks_are_severe_whoever_uses_the_rest(tmp_path):
    loop = """
@triton.jit
def kernel(x, out, n, M: tl.constexpr, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        acc += tl.load(x + (start + tl.arange(0, BLOCK)) * M + tl.program_id(0))  # here
    tl.store(out + tl.program_id(0), tl.sum(acc, 0))
"""
    one = findings(tmp_path, loop, "x=*fp32,out=*fp32,n=i32", ("M=4096", "BLOCK=1024"))[
        "uncoalesced-access", line(loop)
    ]
    assert one.severity == "high"


FACTORS = """
@triton.jit
def kernel(x, factors, M: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(factors + tl.program_id(0) * BLOCK + i)  # row
    places = x + tl.program_id(0) * 16 * M + tl.arange(0, 16)[:, None] * M + 2 * i[None, :]
    tl.store(places, tl.load(places) * row[None, :])  # here
"""


def test_a_row_in_the_layout_of_a_tile_that_lies_apart_is_no_fault_of_its_own(tmp_path):
    found = findings(tmp_path, FACTORS, "x=*bf16,factors=*fp32", ("M=4096", "BLOCK=64"))
    assert ("uncoalesced-access", line(FACTORS)) in found
    assert ("uncoalesced-access", line(FACTORS, "# row")) not in found


BROADCAST = """
@triton.jit
def kernel(x, c, out, m, k, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N)
    acc = tl.zeros((M, N), tl.float32)
    for step in range(k):
        column = tl.load(x + step * m + i)  # here
        row = tl.load(c + step * N + j)
        acc += UPDATE
    tl.store(out + i[:, None] * N + j[None, :], acc)
"""


def broadcast(tmp_path, update, *lengths):
    source = BROADCAST.replace("UPDATE", update)
    found = findings(tmp_path, source, "x=*fp32,c=*fp32,out=*fp32,m=i32:16,k=i32", lengths)
    return found.get(("uncoalesced-access", line(source)))


def test_a_vector_that_threads_share_lies_side_by_side(tmp_path):
    """Each request loads one element. Beside few operations their number counts: 2 x 2 warps of 32 rows, 32 columns."""
    far = "tl.abs(column[:, None] - row[None, :])"
    assert broadcast(tmp_path, f"tl.exp({far})", "M=64", "N=64") is None
    assert broadcast(tmp_path, far, "M=64", "N=128") is None
    one = broadcast(tmp_path, "tl.maximum(column[:, None], row[None, :])", "M=64", "N=64")
    assert one.message == (
        "many threads load the same element of x, because the layout is that of the tile to which the elements are "
        "broadcast: an iteration's requests take some 132 cycles of an SM, and its arithmetic and bytes take 64"
    )
    assert (one.severity, one.evidence["requests"]) == ("low", 128)
    assert one.advice.startswith("make the tile longer along the dimension of the broadcast")


def test_a_vector_that_threads_share_and_whose_elements_lie_apart_is_uncoalesced(tmp_path):
    source = BROADCAST.replace("UPDATE", "tl.exp(column[:, None] - row[None, :])").replace("m + i)", "m + i * 16)")
    found = findings(tmp_path, source, "x=*fp32,c=*fp32,out=*fp32,m=i32:16,k=i32", ("M=64", "N=64"))
    assert "from device memory" in found["uncoalesced-access", line(source)].message


SHORT_ROWS = """
@triton.jit
def kernel(x, out, N, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    rows, channels = tl.arange(0, BLOCK), tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    places = rows[:, None] * N + channels[None, :]
    tl.store(out + places, tl.load(x + places))  # here
"""


def test_rows_of_a_part_of_a_sector_are_made_longer(tmp_path):
    types = "x=*fp16,out=*fp16,N=i32:16"
    found = findings(tmp_path, SHORT_ROWS, types, ("CHANNELS=4", "BLOCK=512"))["uncoalesced-access", line(SHORT_ROWS)]
    assert found.advice.startswith("let a CTA work on 4 times as many elements or more along the tile's dimension 1: 8")
    assert not findings(tmp_path, SHORT_ROWS, types, ("CHANNELS=16", "BLOCK=512"))


ONE_HEAD = """
@triton.jit(do_not_specialize=["heads"])
def kernel(x, out, n, heads, BLOCK: tl.constexpr):
    places = tl.program_id(0) * heads * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places, mask=places < n), mask=places < n)  # here

x = torch.empty(1 << 20, device="cuda")
kernel[(1024,)](x, torch.empty_like(x), (1 << 20) - 1, 1, BLOCK=1024)
"""


def test_a_number_that_is_1_at_the_launch_is_no_stride_for_that(tmp_path):
    found = findings(tmp_path, ONE_HEAD)["mask-stops-vectors", line(ONE_HEAD)]
    assert "its mask ends at n" in found.message
    strided = ONE_HEAD.replace("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK) * heads")
    found = findings(tmp_path, strided)["narrow-access", line(strided)]
    assert "heads is 1 at this launch, and the kernel is compiled for any number" in found.message


FUNCTIONS = """
@triton.jit
def kernel(x, y, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(y + i, libdevice.CALL)  # called
"""


@pytest.mark.parametrize(
    ("call", "instead"),
    [("sin(a)", "libdevice.fast_sinf"), ("log10(a)", "libdevice.fast_logf"), ("tanh(a)", "tl.sigmoid"),
     ("exp10(a)", "tl.exp2"), ("div_rn(1.0, a)", "the reciprocal"),
     ("asin(a)", ""), ("sinh(a)", ""), ("atanh(a)", ""), ("expm1(a)", ""), ("erfinv(a)", "")],
)  # fmt: skip
def test_another_function_of_a_name_is_no_advice(tmp_path, call, instead):
    text = FUNCTIONS.replace("CALL", call)
    advice = findings(tmp_path, text, "*fp32,*fp32", ("B=1024",))["slow-math", line(text, "# called")].advice
    assert instead in advice
    assert advice.startswith("use Triton's own function") == (not instead)


@pytest.mark.parametrize(
    ("call", "said"),
    [("sin", True), ("cos", True), ("erf", True), ("exp", False), ("exp2", False), ("sqrt", False), ("abs", False)],
)
def test_functions_of_triton_that_are_the_librarys_are_slow(tmp_path, call, said):
    text = FUNCTIONS.replace("libdevice.CALL", f"tl.{call}(a)")
    found = findings(tmp_path, text, "*fp32,*fp32", ("B=1024",))
    assert (("slow-math", line(text, "# called")) in found) == said
    if said:
        assert found["slow-math", line(text, "# called")].message.startswith(f"{call} of 1024 elements is a library")


EXPONENTIALS = """
@triton.jit
def kernel(x, y, m, n, B: tl.constexpr):
    row = tl.program_id(0)
    sums = tl.zeros([B], tl.float32)
    for at in tl.range(0, n, B):
        a = tl.load(x + row * n + at + tl.arange(0, B)).to(tl.float32)
        sums += CALL  # called
    tl.store(y + row * B + tl.arange(0, B), sums)
"""


@pytest.mark.parametrize(
    ("call", "element", "said"),
    [
        ("tl.exp(a - m)", "fp16", True), ("tl.exp(tl.sqrt(a))", "fp16", True),
        ("tl.exp(a - m)", "fp32", False),  # 3 of 128 instructions a cycle beside 4 bytes of 20
        ("tl.exp2(a - m)", "fp16", False), ("tl.where(a > m, a, 0.0)", "fp16", False),
    ],
)  # fmt: skip
def test_exp_beside_few_bytes_has_a_shorter_form(tmp_path, call, element, said):
    text = EXPONENTIALS.replace("CALL", call)
    found = findings(tmp_path, text, f"*{element}:16,*fp32:16,fp32,i32:16", ("B=2048",))
    assert (("slow-math", line(text, "# called")) in found) == said
    if said:
        one = found["slow-math", line(text, "# called")]
        assert one.severity == "low"
        assert one.estimate.speedup == pytest.approx(1 + 3 / 128 / (2 / SM_90A.memory_bytes_per_cycle))


def test_the_machine_code_of_exp_has_the_instructions_that_exp2_has_not(tmp_path):
    codes = []
    for called in ("exp", "exp2"):
        path = tmp_path / f"{called}.py"
        path.write_text(HEAD + FUNCTIONS.replace("libdevice.CALL", f"tl.{called}(a)"))
        (kernel,) = inputs.read(f"{path}:kernel", (), SM_90A, signature="*fp32,*fp32", constexprs=("B=1024",))
        codes.append(Counter(one.opcode.partition(".")[0] for one in kernel.code.instructions))
    more = codes[0] - codes[1]
    of_a_thread = 1024 // kernel.threads
    assert (more["FSETP"], more["FMUL"]) == (of_a_thread, 3 * of_a_thread)  # one FMUL is log2(e)


@pytest.mark.parametrize(
    ("call", "said"),
    [("round(a)", False), ("nearbyint(a)", False), ("copysign(a, a)", False), ("asin(a)", True), ("fmod(a, a)", True)],
)
def test_a_function_of_few_instructions_is_not_slow(tmp_path, call, said):
    text = FUNCTIONS.replace("CALL", call)
    assert (("slow-math", line(text, "# called")) in findings(tmp_path, text, "*fp32,*fp32", ("B=1024",))) == said


@pytest.mark.parametrize(("types", "severity"), [("*fp32,*fp32", "low"), ("*fp16,*fp16", "medium")])
def test_a_function_that_takes_no_longer_than_the_bytes_is_a_hint(tmp_path, types, severity):
    """Some 31 instructions an element, 128 a cycle, beside 8 or 4 bytes, 20 a cycle."""
    text = FUNCTIONS.replace("libdevice.CALL", "tl.erf(a.to(tl.float32))")
    one = findings(tmp_path, text, types, ("B=1024",))["slow-math", line(text, "# called")]
    assert (one.severity, one.estimate.speedup) == (severity, 1.05 if severity == "low" else 1.3)


def test_a_function_of_the_library_takes_as_long_whoever_calls_it(tmp_path):
    cycles = []
    path = tmp_path / "called.py"
    for called in ("tl.sin", "libdevice.sin", "tl.exp2"):
        path.write_text(HEAD + FUNCTIONS.replace("libdevice.CALL", f"{called}(a)"))
        (kernel,) = inputs.read(f"{path}:kernel", (), SM_90A, signature="*fp32,*fp32", constexprs=("B=1024",))
        cycles.append(arithmetic_cycles(kernel, kernel.operations))
    assert cycles == [160.0, 160.0, 64.0]  # 20 instructions of 1024 elements, 128 a cycle; 16 exponentials a cycle


PRICED = """
@triton.jit
def kernel(x, y, o):
    i = tl.arange(0, 1024)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, (CALL) + b)
"""
SPECIAL = ("MUFU", "FRND", "POPC", "FLO", "BREV")


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *((f"tl.{name}(a)", "fp32") for name in ("abs", "floor", "ceil", "exp", "exp2", "log", "log2", "sqrt")),
        *((f"libdevice.{name}(a)", "fp32") for name in ("abs", "rint", "trunc", "rsqrt", "exp")),
        *((f"libdevice.{name}(a)", "i32") for name in ("popc", "clz", "brev")),
        ("tl.abs(a)", "i32"), ("tl.fma(a, b, 3.0)", "fp32"), ("tl.clamp(a, -1.0, 1.0)", "fp32"), ("a * b", "fp32"),
        ("libdevice.copysign(a, b)", "fp32"), ("tl.minimum(a, b)", "fp32"), ("a / b", "fp32"), ("a / 3.0", "fp32"),
        ("a / tl.load(y)", "fp32"),
    ],
)  # fmt: skip
def test_an_operation_takes_the_cycles_of_its_machine_code(tmp_path, call, kind):
    """Within two instructions an element: 128 a cycle, and 16 of the special function unit."""
    path = tmp_path / "priced.py"
    cycles, counts = [], []
    for written in (call, "a"):
        path.write_text(HEAD + PRICED.replace("CALL", written))
        (kernel,) = inputs.read(f"{path}:kernel", (), SM_90A, signature=f"*{kind},*{kind},*{kind}")
        cycles.append(arithmetic_cycles(kernel, kernel.operations))
        opcodes = [one.opcode for one in kernel.code.instructions if not one.opcode.startswith(("NOP", "BRA"))]
        counts.append((len(opcodes), sum(opcode.startswith(SPECIAL) for opcode in opcodes)))
    (all_of, special), (other, none) = counts
    in_code = kernel.threads * max((all_of - other) / 128, (special - none) / 16)
    assert cycles[0] - cycles[1] == pytest.approx(in_code, abs=2 * 1024 / 128)


def test_amds_library_has_no_short_sine(tmp_path):
    path = tmp_path / "turned.py"
    path.write_text(HEAD + FUNCTIONS.replace("libdevice.CALL", "tl.sin(a)"))
    (kernel,) = inputs.read(f"{path}:kernel", (), GFX942, signature="*fp32,*fp32", constexprs=("B=1024",))
    advice = [one.advice for one in diagnose(kernel).findings if one.id == "slow-math"]
    assert advice == ["load it from a table that is computed once"]


ANGLES = """
@triton.jit
def kernel(x, theta, D: tl.constexpr):
    half = tl.arange(0, D // 2)
    angle = tl.program_id(0) * (1.0 / libdevice.pow(theta, 2.0 * half / D))  # power
    a, b = tl.load(x + half).to(tl.float32), tl.load(x + D // 2 + half).to(tl.float32)
    tl.store(x + half, a * libdevice.cos(angle) - b * libdevice.sin(angle))  # turned
"""


def test_the_array_of_a_large_angle_is_no_spill_and_its_function_is_slow_however_few_they_are(tmp_path):
    found = findings(tmp_path, ANGLES, "x=*bf16,theta=fp32", ("D=128",))
    assert not [rule for rule, _ in found if rule == "register-spills"]
    lines = {number for rule, number in found if rule == "slow-math"}
    assert lines == {line(ANGLES, "# power"), line(ANGLES, "# turned")}


ROWS = """
@triton.jit
def kernel(x, y, stride, n, HEADER: tl.constexpr, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + tl.program_id(0) * stride + HEADER + i)  # here
        tl.store(y + tl.program_id(0) * n + i, v.to(y.dtype.element_ty))
"""


def test_a_constant_before_a_row_keeps_threads_from_whole_vectors(tmp_path):
    types = "x=*i8,y=*i8,stride=i32:16,n=i32:16"
    found = findings(tmp_path, ROWS, types, ("HEADER=3", "BLOCK=2048"))
    assert [rule for rule, _ in found] == ["narrow-access"]
    finding = found["narrow-access", line(ROWS)]
    assert (finding.severity, finding.evidence["machine_bytes"]) == ("medium", 1)
    assert finding.message == (
        "a thread loads 1 byte at a time where 16 bytes are contiguous: rows begin up to 3 bytes after a multiple of "
        "16 bytes"
    )
    assert finding.advice.startswith("begin rows at multiples of 16 bytes")
    assert findings(tmp_path, ROWS, types, ("HEADER=16", "BLOCK=2048")) == {}


def test_rows_of_unknown_beginnings_are_not_called_far_apart(tmp_path):
    launch = """
x = torch.empty(8192, 8195, device="cuda", dtype=torch.int8)
kernel[(8192,)](x, torch.empty(8192, 8192, device="cuda"), 8195, 8192, 0, 2048)
"""
    assert [rule for rule, _ in findings(tmp_path, ROWS + launch)] == ["narrow-access"]


@pytest.mark.parametrize("element", ["bfloat16", "float32"])
def test_neighbours_of_a_window_are_no_fault_of_its_layout(tmp_path, element):
    """Each shifted load asks for single elements, whatever the layout: the cache has their sectors."""
    window = f"""
@triton.jit
def kernel(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + i) + tl.load(x + i + 1) + tl.load(x + i + 2)
    tl.store(y + i, total)

x = torch.empty((1 << 24) + 16, device="cuda", dtype=torch.{element})
kernel[(1 << 14,)](x, torch.empty_like(x), 1024)
"""
    assert findings(tmp_path, window) == {}


@pytest.mark.parametrize(("depth", "reported"), [(128, False), (192, True)])
def test_two_iterations_are_too_few_for_a_descriptor(tmp_path, depth, reported):
    """Of 64 elements each: to make it takes as long as it saves (0.97 and 0.98 x on an H200)."""
    whole = MATMUL.replace("N, K, BM", "N, K: tl.constexpr, BM")
    found = findings(tmp_path, whole, MATMUL_TYPES.replace(",K=i32:16", ""), (*TILES, f"K={depth}"))
    assert ("tma-unused" in {rule for rule, _ in found}) == reported
