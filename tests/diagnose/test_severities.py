"""A severity follows from what a kernel does, also beside the proof set: each fault here has a neighbour without it."""

import math
from dataclasses import replace

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import compilations, inputs
from tests.diagnose.test_kernels import diagnosis_of

pytestmark = pytest.mark.kernels


def found(folder, kernel, launch):
    """The first finding of each rule of a kernel, of which `launch` makes the tensors and calls it."""
    script = folder / "script.py"
    script.write_text(f"import torch, triton, triton.language as tl\n\n@triton.jit\n{kernel.strip()}\n\n{launch}\n")
    return {one.id: one for one in reversed(diagnosis_of(script).findings)}


DIVIDED = """
def sums(x, out, n, d, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for k in range(n):LINE acc += tl.load(x + (i + k) // d)
    tl.store(out + i, acc)
"""


@pytest.mark.parametrize("line", ["", "\n       "])
def test_a_loop_on_one_line_is_divided_as_one_on_two(tmp_path, line):
    launch = 'x = torch.empty(1 << 20, device="cuda")\nsums[(1024,)](x, x, 64, 7, 1024)'
    finding = found(tmp_path, DIVIDED.replace("LINE", line), launch)["loop-division"]
    assert finding.severity == "medium"
    assert 2 < finding.estimate.speedup <= 3


BY_CONSTANT = DIVIDED.replace("LINE", "\n        at = (i + k) // d\n       ").replace("x + (i + k) // d", "x + at")


@pytest.mark.parametrize(
    ("divisor", "loaded", "severity", "words"),
    [
        (
            "d",
            "VALUE",
            "medium",
            "by a number known only at run time, which takes some twenty instructions for each index",
        ),
        ("7", "VALUE", "medium", "by 7, which takes a multiplication and shifts for each index"),
        ("7", "tl.sin(tl.sin(VALUE))", "low", "by 7, which takes a multiplication and shifts for each index"),
    ],
)
def test_a_division_by_a_constant_is_short(tmp_path, divisor, loaded, severity, words):
    launch = 'x = torch.empty(1 << 20, device="cuda")\nsums[(1024,)](x, x, 64, 7, 1024)'
    kernel = BY_CONSTANT.replace("// d", f"// {divisor}")
    kernel = kernel.replace("tl.load(x + at)", loaded.replace("VALUE", "tl.load(x + at)"))
    finding = found(tmp_path, kernel, launch)["loop-division"]
    assert (finding.severity, words in finding.message) == (severity, True)
    assert ("make the divisor a tl.constexpr" in finding.advice) == (divisor == "d")
    assert (finding.estimate.speedup < 1.1) == (severity == "low")
    assert finding.estimate.speedup <= finding.estimate.high <= (8 if divisor == "d" else 5)


GROUPED = """
def grouped(x, w, y, sizes, G, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile = tl.program_id(0)
    first, group = 0, 0
    for g in range(G):
        tiles = tl.cdiv(tl.load(sizes + g), BM)
        group += ((first + tiles) <= tile).to(tl.int32)
        first += tiles
    rm = tile * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        b = tl.load(w + group * K * N + (k + rk)[:, None] * N + rn[None, :])
        acc = PRODUCT
    tl.store(y + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""
BF16 = 'device="cuda", dtype=torch.bfloat16'


@pytest.mark.parametrize("product", ["tl.dot(a, b, acc)", "acc + tl.sum(a, 1)[:, None] * tl.sum(b, 0)[None, :]"])
def test_looking_for_a_group_before_a_loop_over_tiles_is_a_hint(tmp_path, product):
    launch = (
        f"x, y = torch.empty(8192, 4096, {BF16}), torch.empty(8192, 4096, {BF16})\n"
        f"w, s = torch.empty(8, 4096, 4096, {BF16}), torch.full((8,), 1024, dtype=torch.int32)\n"
        "grouped[(64, 32)](x, w, y, s, 8, 4096, 4096, 128, 128, 64, num_warps=8, num_stages=4)"
    )
    finding = found(tmp_path, GROUPED.replace("PRODUCT", product), launch)["scalar-loop"]
    assert (finding.severity, finding.estimate.speedup) == ("low", 1.05)


SEARCH = """
def rows_of(starts, x, out, n, B: tl.constexpr):
    token = tl.program_id(0)
    BODY
    i = tl.arange(0, B)
    tl.store(out + token * B + i, tl.load(x + first * B + i))
"""
WALK = "first = 0\n    while tl.load(starts + first + 1) <= token: first += 1"
HALVE = """first, end = 0, n
    while first + 1 < end:
        middle = (first + end) // 2
        before = tl.load(starts + middle) <= token
        first = tl.where(before, middle, first)
        end = tl.where(before, end, middle)"""
CHASE = "first = 0\n    while tl.load(starts + first) > token: first = tl.load(starts + first)"
LOCK = "first = 0\n    while tl.load(starts, volatile=True) != token: first = 0"


@pytest.mark.parametrize(("body", "named"), [(WALK, True), (HALVE, False), (CHASE, False), (LOCK, False)])
def test_a_walk_through_a_sorted_list_could_halve_it(tmp_path, body, named):
    launch = (
        "starts, x = torch.empty(1025, device='cuda', dtype=torch.int32), torch.empty(1 << 20, device='cuda')\n"
        "rows_of[(65536,)](starts, x, torch.empty(1 << 24, device='cuda'), 1024, 256)"
    )
    finding = found(tmp_path, SEARCH.replace("BODY", body), launch).get("scalar-loop")
    assert (finding is not None) is named
    if named:
        assert (finding.severity, finding.source.line) == ("medium", 7)
        assert finding.advice.startswith("if the numbers are sorted, search by halving")


WALKS_OVER_TILES = """
def walk(table, x, out, B: tl.constexpr):
    i = tl.arange(0, B)
    page = tl.program_id(0) * 64
    acc = tl.zeros((B,), tl.float32)
    while CONDITION:
        acc += ADDED
        page += 1
    tl.store(out + tl.program_id(0) * B + i, acc)
"""


@pytest.mark.parametrize(
    ("condition", "added", "named"),
    [
        ("tl.load(table + page) > 0", "1.0", True),
        ("tl.load(table + page) > 0", "tl.load(x + page * B + i)", False),
        ("tl.sum(tl.load(table + page + i), 0) > 0", "1.0", False),
    ],
)
def test_a_while_loop_that_loads_tiles_is_no_search(tmp_path, condition, added, named):
    launch = (
        "table, x = torch.zeros(1 << 14, device='cuda', dtype=torch.int32), torch.empty(1 << 22, device='cuda')\n"
        "walk[(128,)](table, x, torch.empty(1 << 17, device='cuda'), 256)"
    )
    kernel = WALKS_OVER_TILES.replace("CONDITION", condition).replace("ADDED", added)
    assert ("scalar-loop" in found(tmp_path, kernel, launch)) is named


PER_THREAD = """
def weighted(x, w, at, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + i)
    acc = tl.zeros((B,), tl.float32)
    total = 0.0
    for k in range(n):
        BODY
    tl.store(out + tl.program_id(0) * B + i, acc + total)
"""


@pytest.mark.parametrize(
    ("body", "length", "words"),
    [
        ("acc += v * tl.load(w + k)", 256, None),
        ("acc += v * tl.load(w + tl.load(at + k))", 256, None),
        ("acc += v * tl.load(w + k)", 32, "computes with it for 32 elements, fewer than the 128 threads of the CTA"),
        ("total += tl.load(w + k)", 256, "all threads of the CTA do the same work"),
        ("total += tl.load(w + k)\n        acc = acc * 0.5 + v", 256, "all threads of the CTA do the same work"),
    ],
)
def test_a_loaded_number_is_the_same_work_unless_each_thread_has_its_elements(tmp_path, body, length, words):
    launch = (
        "x, w, at = torch.empty(1 << 20, device='cuda'), torch.empty(1 << 12, device='cuda'), torch.empty(1 << 12, "
        f"device='cuda', dtype=torch.int32)\nweighted[(1024,)](x, w, at, torch.empty_like(x), 4096, {length})"
    )
    one = found(tmp_path, PER_THREAD.replace("BODY", body), launch).get("scalar-loop")
    assert (one is None) is (words is None)
    assert words is None or one.message.endswith(words)


COUNT = """
def count(x, out, B: tl.constexpr):
    lane = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + lane)
    tl.atomic_add(out + tl.zeros((B,), tl.int32), v, mask=MASK)
"""


@pytest.mark.parametrize(
    ("mask", "elements", "severity", "most"),
    [
        ("lane == 0", 1, "low", 1.1),
        ("lane % 16 == 0", 256, "high", 256),
        ("lane < B", 4096, "high", 1000),
        ("v > 0", 4096, "medium", 1.5),
        ("(lane >= 0) & (tl.program_id(0) == 0)", 4096, "medium", 1.5),
    ],
)
def test_elements_that_a_mask_leaves_out_do_not_meet(tmp_path, mask, elements, severity, most):
    launch = 'x = torch.empty(1 << 26, device="cuda")\ncount[(1 << 14,)](x, torch.zeros(1, device="cuda"), 4096)'
    finding = found(tmp_path, COUNT.replace("MASK", mask), launch)["atomic-contention"]
    assert (finding.evidence["elements"], finding.severity) == (elements, severity)
    assert 1 < finding.estimate.speedup <= most
    assert finding.estimate.high <= 1000


GRADIENT = """
def gradient(x, weight, rows, B: tl.constexpr):
    lane = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for row in range(rows):
        total += tl.load(x + (tl.program_id(0) * rows + row) * B + lane)
    tl.atomic_add(weight + lane, total)
"""


@pytest.mark.parametrize(
    ("rows", "ctas", "severity", "speedup"),
    [(1, 16384, "medium", 1 + 1.6), (8, 2112, "medium", 1 + 1.6 / 8), (8, 2111, "low", 1.1), (64, 2112, "low", 1.1)],
)
def test_sums_that_all_ctas_add_to_cost_by_their_bytes(tmp_path, rows, ctas, severity, speedup):
    launch = (
        f"x, weight = torch.empty({rows * ctas}, 4096, device='cuda'), torch.zeros(4096, device='cuda')\n"
        f"gradient[({ctas},)](x, weight, {rows}, 4096, num_warps=8)"
    )
    finding = found(tmp_path, GRADIENT, launch)["atomic-contention"]
    assert (finding.severity, finding.estimate.speedup) == (severity, pytest.approx(speedup))


GRADIENT_OF = """
def gradient(x, weight, B: tl.constexpr):
    row = LOADED
    tl.atomic_add(weight + tl.arange(0, B), row.to(tl.float32))
"""


@pytest.mark.parametrize(
    ("loaded", "severity", "speedup"),
    [
        ("tl.reshape(x.load([tl.program_id(0), 0]), (B,))", "medium", 1 + 1.6 * 2),
        ("tl.rand(0, tl.program_id(0) * B + tl.arange(0, B))", "low", 1.1),
    ],
)
def test_sums_that_all_ctas_add_to_cost_by_their_bytes_beside_tma(tmp_path, loaded, severity, speedup):
    """TMA loads a row of 256 numbers of 16 bits, which are added in 32 bits. Beside no loads no bytes move."""
    launch = (
        "from triton.tools.tensor_descriptor import TensorDescriptor\n"
        f"x, weight = torch.empty(4096, 256, {BF16}), torch.zeros(256, device='cuda')\n"
        "gradient[(4096,)](TensorDescriptor.from_tensor(x, [1, 256]), weight, 256)"
    )
    finding = found(tmp_path, GRADIENT_OF.replace("LOADED", loaded), launch)["atomic-contention"]
    assert (finding.severity, finding.estimate.speedup) == (severity, pytest.approx(speedup))


TICKETS = """
def tickets(x, counter, lock, n, B: tl.constexpr):
    lane = tl.arange(0, B)
    tile = tl.program_id(0)
    while tile < n:
        tl.store(x + tile * B + lane, tl.load(x + tile * B + lane) * 2)
        STEP
"""
SPIN = """while tl.atomic_cas(lock + tile % 64, 0, 1) == 1:
            pass
        tl.atomic_xchg(lock + tile % 64, 0)
        tile += tl.num_programs(0)"""


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("tile = tl.atomic_add(counter, 1)", False),
        (SPIN, False),
        ("tl.atomic_xchg(lock, 1); tile += tl.num_programs(0)", False),
        ("tl.atomic_add(counter, 1); tile += tl.num_programs(0)", True),
    ],
    ids=["ticket", "lock", "flag", "count"],
)
def test_a_ticket_or_a_lock_cannot_be_summed_first(tmp_path, step, said):
    launch = (
        'x = torch.empty(1 << 24, device="cuda")\n'
        'tickets[(264,)](x, *torch.zeros(2, 64, device="cuda", dtype=torch.int32), 4096, 4096)'
    )
    assert ("atomic-contention" in found(tmp_path, TICKETS.replace("STEP", step), launch)) == said


ROWS = """
def rows(x, y, n, COLS: tl.constexpr):
    cols = tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for row in tl.range(tl.program_id(0), n, tl.num_programs(0), num_stages=STAGES):
        total += tl.load(x + row * COLS + cols)
    tl.store(y + tl.program_id(0) * COLS + cols, total)
"""


@pytest.mark.parametrize(("stages", "said"), [(1, True), (2, True), (4, False)])
def test_buffers_that_are_filled_ahead_are_bytes_in_flight(tmp_path, stages, said):
    launch = 'x = torch.empty(1 << 27, device="cuda")\nrows[(132,)](x, x, 16384, 8192, num_warps=8)'
    assert ("low-occupancy" in found(tmp_path, ROWS.replace("STAGES", str(stages)), launch)) == said


INDEXED = """
def indexed(x, index, y, n, COLS: tl.constexpr):
    first = tl.zeros([32], tl.int32)
    for k in range(0, n, 32):
        first += tl.load(index + k + tl.arange(0, 32))
    cols = tl.sum(first, 0) + tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for row in range(tl.program_id(0), n, tl.num_programs(0)):
        total += tl.load(x + row * COLS + tl.arange(0, COLS))
    tl.store(y + cols, total)
"""


@pytest.mark.parametrize(("cols", "said"), [(8192, True), (16384, False)])
def test_a_loop_over_indices_does_not_count_beside_one_over_tiles(tmp_path, cols, said):
    launch = f"""x = torch.empty(1 << 27, device="cuda")
indexed[(132,)](x, torch.empty(1024, dtype=torch.int32), x, 1024, {cols}, num_warps=8)"""
    assert ("low-occupancy" in found(tmp_path, INDEXED, launch)) == said


FORCES = """
def forces(x, out, n, B: tl.constexpr, J: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    mine = tl.load(x + i)
    acc = tl.zeros((B,), tl.float32)
    for s in range(0, n, J):
        other = tl.load(x + s + tl.arange(0, J))
        ITERATION
    tl.store(out + i, acc)
"""


@pytest.mark.parametrize(
    ("iteration", "said"),
    [
        ("d = other[None, :] - mine[:, None]; acc += tl.sum(d * tl.rsqrt(d * d + 1e-3), 1)", False),
        ("acc += tl.sum(other, 0)", True),
    ],
)
def test_what_arithmetic_bounds_needs_no_more_ctas(tmp_path, iteration, said):
    launch = 'x = torch.empty(132 * 4 * 128, device="cuda")\nforces[(528,)](x, x, 132 * 4 * 128, 128, 32, num_warps=4)'
    assert ("low-occupancy" in found(tmp_path, FORCES.replace("ITERATION", iteration), launch)) == said


WEIGHTS = """
def scaled(x, w, y, rows, COLS: tl.constexpr):
    i = tl.arange(0, COLS)
    for r in range(tl.program_id(0), rows, tl.num_programs(0)):
        weight = tl.load(w + tl.program_id(0) * COLS + i)
        tl.store(y + r * COLS + i, tl.load(x + r * COLS + i) * weight)
"""


@pytest.mark.parametrize(
    ("columns", "warps", "severity", "speedup"),
    [
        (2048, 32, "low", 1.05),
        (32768, 32, "medium", 1 + (131072 / 64) / (2 * 131072 / 20)),  # 256 KB an iteration: more than L1
        (32768, 8, "low", 1.05),  # 128 registers a thread to keep it
    ],
)
def test_what_l1_cannot_keep_is_worth_registers(tmp_path, columns, warps, severity, speedup):
    launch = f'x = torch.empty(1 << 14, {columns}, device="cuda")\n'
    launch += f"scaled[(132,)](x, x, torch.empty_like(x), 1 << 14, {columns}, num_warps={warps})"
    finding = found(tmp_path, WEIGHTS, launch)["redundant-load"]
    assert finding.severity == severity
    assert finding.estimate.speedup == pytest.approx(speedup)


GEMM = """
def gemm(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + k + rk[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc, input_precision="ieee")
    tl.store(c + rm[:, None] * N + rn[None, :], acc)
"""


@pytest.mark.parametrize(("tile", "severity"), [(64, "medium"), (128, "high")])
def test_two_warps_cost_large_tiles_more(tmp_path, tile, severity):
    launch = f'a, c = torch.empty(4096, 4096, {BF16}), torch.empty(4096, 4096, device="cuda")\n'
    launch += f"gemm[({4096 // tile}, {4096 // tile})](a, a, c, 4096, 4096, {tile}, {tile}, 64, num_warps=2)"
    assert found(tmp_path, GEMM, launch)["wgmma-unused"].severity == severity


def test_few_rows_are_a_hint_whatever_the_warps(tmp_path):
    launch = f'a, c = torch.empty(4096, 4096, {BF16}), torch.empty(4096, 4096, device="cuda")\n'
    launch += "gemm[(256, 64)](a, a, c, 4096, 4096, 16, 64, 64, num_warps=2)"
    assert found(tmp_path, GEMM, launch)["wgmma-unused"].severity == "low"


@pytest.mark.parametrize(("rows", "advised"), [(16, False), (4096, True)])
def test_wgmma_is_not_advised_where_memory_takes_longer_than_the_mmas(tmp_path, rows, advised):
    """A few rows times a large matrix: its bytes come once. Without warps enough in a tile of few rows, none help."""
    launch = f"a, b = torch.empty({rows}, 4096, {BF16}), torch.empty(4096, 65536, {BF16})\n"
    launch += f'c = torch.empty({rows}, 65536, device="cuda")\n'
    launch += f"gemm[({rows // 16}, 1024)](a, b, c, 65536, 4096, 16, 64, 64, num_warps=2)"
    findings = found(tmp_path, GEMM, launch)
    assert ("wgmma-unused" in findings) == advised
    assert not advised or not findings["wgmma-unused"].candidates


def test_an_ieee_dot_is_estimated_by_what_is_as_exact_and_what_is_not(tmp_path):
    launch = 'a = torch.empty(4096, 4096, device="cuda")\n'
    launch += "gemm[(32, 32)](a, a, a, 4096, 4096, 128, 128, 32, num_warps=8)"
    finding = found(tmp_path, GEMM, launch)["dot-on-fma"]
    estimate = finding.estimate
    assert (finding.severity, estimate.low, estimate.high) == ("medium", 0.85, 4096 / 256)
    assert 1.1 <= estimate.speedup < 2  # as medium is


LONG = """
def long_indices(x, out, n, a, b, B: tl.constexpr):
    i = (tl.program_id(0) * B + tl.arange(0, B)).to(tl.int64)
    acc = tl.zeros((B,), tl.float32)
    for k in range(n):
        acc += tl.load(x + ((i * a + k) * b + (i + k) * k) % 1024)
    tl.store(out + i, acc)
"""


@pytest.mark.parametrize(
    ("element", "severity", "speedup"),
    [("int8", "medium", pytest.approx(1.58, rel=0.1)), ("float32", "low", 1.05)],  # 1 or 4 bytes of memory beside it
)
def test_long_indices_cost_time_where_instructions_take_longer_than_bytes(tmp_path, element, severity, speedup):
    launch = (
        f'x = torch.empty(1024, device="cuda", dtype=torch.{element})\n'
        'long_indices[(1024,)](x, torch.empty(1 << 20, device="cuda"), 64, 7, 11, 1024)'
    )
    finding = found(tmp_path, LONG, launch)["int64-index"]
    assert (finding.severity, finding.estimate.speedup) == (severity, speedup)
    assert 0.5 < finding.evidence["share_of_instructions"] < 0.9


HEADS = """
def heads(x, cos, y, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    c = tl.load(cos + tl.program_id(0) * WIDTH + cols, mask=cols < WIDTH)
    for head in range(n):
        at = (tl.program_id(0) * n + head) * WIDTH + cols
        tl.store(y + at, tl.load(x + at, mask=cols < WIDTH) * c, mask=cols < WIDTH)
"""


def of_heads(folder, width, block, warps, tokens=1 << 14):
    """The findings of rows of `width` bfloat16 numbers in tiles of `block`, and the line of the load in the loop."""
    launch = (
        'x = torch.empty(1 << 26, device="cuda", dtype=torch.bfloat16)\n'
        f"heads[({tokens},)](x, x, x, 32, {width}, {block}, num_warps={warps})"
    )
    return found(folder, HEADS, launch), 9


@pytest.mark.parametrize(
    ("block", "warps", "speedup"),
    [
        (128, 4, 2**0.5),  # a number a thread; twice as many CTAs of one warp fit on an SM
        (256, 4, 2**0.5),
        (512, 4, (25 / 16) ** 0.5),  # 16 of 25 KB are in flight
        (1024, 4, None),  # 16 bytes a thread
        (256, 1, None),
    ],
)
def test_a_loop_that_loads_a_few_bytes_a_thread_wants_fewer_warps(tmp_path, block, warps, speedup):
    findings, line = of_heads(tmp_path, block, block, warps)
    assert ("few-bytes-in-flight" in findings) == (speedup is not None)
    if speedup is not None:
        finding = findings["few-bytes-in-flight"]
        assert (finding.severity, finding.source.line) == ("medium", line)
        assert finding.estimate.speedup == pytest.approx(speedup, rel=1e-3)
        assert finding.candidates == [{"num_warps": max(block * 2 // 512, 1)}]
        assert f"launch with num_warps={max(block * 2 // 512, 1)}" in finding.advice


@pytest.mark.parametrize(("element", "advised"), [("int8", True), ("bfloat16", False)])  # 8 or 16 bytes a thread
def test_what_a_loop_stores_is_a_threads_too(tmp_path, element, advised):
    launch = (
        'x = torch.empty(1 << 26, device="cuda", dtype=torch.int8)\n'
        f"heads[(1 << 14,)](x, x, x.to(torch.{element}), 32, 1024, 1024, num_warps=4)"
    )
    assert ("few-bytes-in-flight" in found(tmp_path, HEADS, launch)) == advised


def test_fewer_warps_are_not_advised_where_the_grid_fills_no_sm(tmp_path):
    finding = of_heads(tmp_path, 128, 128, 4, tokens=1024)[0]["few-bytes-in-flight"]
    assert finding.candidates == []
    assert finding.advice.startswith("load the tiles of several iterations at once")


@pytest.mark.parametrize(("width", "elements"), [(64, 64), (60, 60), (100, None)])
def test_threads_that_a_mask_leaves_idle_are_counted(tmp_path, width, elements):
    findings, line = of_heads(tmp_path, width, 128, 4)
    assert ("idle-threads" in findings) == (elements is not None)
    if elements is not None:
        finding = findings["idle-threads"]
        assert (finding.source.line, finding.evidence["elements"]) == (line, elements)
        assert "a mask leaves the other threads without work" in finding.message
        assert finding.advice.endswith("or launch with num_warps=1")
        assert "few-bytes-in-flight" not in findings  # it would say the same of the same line


SHORT_ROWS = """
def short_rows(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(x + at)
    tl.store(y + at, ROW)
"""


def of_short_rows(folder, ctas, block, row="2 * row"):
    launch = (
        'x = torch.empty(1 << 26, device="cuda", dtype=torch.bfloat16)\n'
        f"short_rows[({ctas},)](x, torch.empty_like(x), {block}, num_warps=4)"
    )
    return found(folder, SHORT_ROWS.replace("ROW", row), launch)


@pytest.mark.parametrize(
    ("waves", "severity", "speedup", "of_longer_rows"),
    [(1, "low", 1.0, None), (3, "medium", 3.0, 2.59), (50, "medium", 8.42, 4.4)],
)
def test_a_launch_gains_no_more_than_its_waves(tmp_path, waves, severity, speedup, of_longer_rows):
    """16 CTAs of 4 warps fit on each of 132 SMs. In one wave all of them wait for memory at the same time.

    In more of them they take longer to start than their bytes take, and then as long as one wait for memory at least.
    """
    finding = of_short_rows(tmp_path, waves * 16 * 132, 64)["idle-threads"]
    assert (finding.severity, finding.estimate.speedup) == (severity, pytest.approx(speedup, rel=0.01))
    findings = of_short_rows(tmp_path, waves * 16 * 132, 128)
    assert ("few-bytes-in-flight" in findings) == (of_longer_rows is not None)
    if of_longer_rows is not None:
        assert findings["few-bytes-in-flight"].estimate.speedup == pytest.approx(of_longer_rows, rel=0.01)


@pytest.mark.parametrize(
    ("row", "advice", "candidates"),
    [
        ("2 * row", "let a CTA work on 16 times as many elements (", [{"BLOCK": 128 * n} for n in (2, 4, 8)]),
        ("row / tl.max(row, 0)", "let a CTA work on 16 rows at once", [{"num_warps": 1}]),
        ("tl.cumsum(row, 0)", "let a CTA work on 16 rows at once", [{"num_warps": 1}]),
    ],
)
def test_a_row_that_is_reduced_stays_as_long_as_it_is(tmp_path, row, advice, candidates):
    finding = of_short_rows(tmp_path, 1 << 18, 128, row)["few-bytes-in-flight"]
    assert finding.advice.startswith(advice)
    assert ("or launch with num_warps=1" in finding.advice) == (candidates == [{"num_warps": 1}])
    assert finding.candidates == candidates


OF_TWO_TYPES = """
def of_two_types(x, z, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(x + at) + tl.load(z + at)
    tl.store(y + at, ROW)
"""


@pytest.mark.parametrize(
    ("row", "advice"),
    [
        ("2 * row", "let a CTA work on 4 times as many elements (BLOCK=512, or several rows)"),
        ("row / tl.max(row, 0)", "let a CTA work on 4 rows at once, a tile of 4 x BLOCK"),
    ],
)
def test_a_larger_tile_has_a_length_that_triton_takes(tmp_path, row, advice):
    """Of 6 bytes a thread, 16 are 2.7 times as many."""
    launch = (
        'x, z = (torch.empty(1 << 25, device="cuda", dtype=dtype) for dtype in (torch.bfloat16, torch.float32))\n'
        "of_two_types[(1 << 18,)](x, z, z, 128, num_warps=4)"
    )
    finding = found(tmp_path, OF_TWO_TYPES.replace("ROW", row), launch)["few-bytes-in-flight"]
    assert finding.advice.startswith(advice)


PARTS_OF_RECORDS = """
def records(x, y, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i)
    for part in tl.static_range(PARTS):
        tl.store(y + i * PARTS + part, value + part)
"""


@pytest.mark.parametrize("warps", [1, 4])
def test_an_element_is_stored_once_however_many_warps_hold_it(tmp_path, warps):
    """32 elements in records of 11: 11 stores of 32 sectors each, beside the bytes of 12 elements."""
    launch = (
        'x = torch.empty(1 << 20, device="cuda")\n'
        f'records[(1 << 15,)](x, torch.empty(11 << 20, device="cuda"), 11, 32, num_warps={warps})'
    )
    estimate = found(tmp_path, PARTS_OF_RECORDS, launch)["uncoalesced-access"].estimate
    assert estimate.speedup == pytest.approx(11 * 32 * 32 / 2050 / (32 * 12 * 4 / 3900), rel=0.05)


PAIRS_OF_ROWS = """
def ranks(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * BLOCK + i)
    smaller = (row[:, None] > row[None, :]).to(tl.int32)
    tl.store(y + tl.program_id(0) * BLOCK + i, tl.sum(smaller, 1))
"""


def test_threads_that_compute_all_pairs_of_a_short_row_are_not_idle(tmp_path):
    launch = 'x = torch.empty(1 << 20, device="cuda")\nranks[(1 << 14,)](x, x, 64, num_warps=4)'
    assert "idle-threads" not in found(tmp_path, PAIRS_OF_ROWS, launch)


TRANSPOSED = """
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    BEFORE
    for k in range(0, END, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + rn[:, None] * K + (k + rk)[None, :])
        acc = tl.dot(x, y.T, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""


@pytest.mark.parametrize(
    ("before", "end", "advice"),
    [
        ("pass", "K", "runs at least once, tl.assume(K > 0)"),
        ("pass", "K // BK * BK", "runs at least once, tl.assume(end > start)"),  # 0 of a K that is not
        ("tl.assume(K > 0)", "K", None),
        ("pass", "4096", None),
    ],
)
def test_a_loop_that_may_not_run_leaves_its_sum_two_sources(tmp_path, before, end, advice):
    launch = (
        f"a, b, c = (torch.empty(4096, 4096, {BF16}) for _ in range(3))\n"
        "product[(32, 16)](a, b, c, 4096, 4096, 4096, 128, 256, 64, num_warps=8, num_stages=3)"
    )
    findings = found(tmp_path, TRANSPOSED.replace("BEFORE", before).replace("END", end), launch)
    assert ("wgmma-serialised" in findings) == (advice is not None)
    if advice is not None:
        assert (findings["wgmma-serialised"].severity, advice in findings["wgmma-serialised"].advice) == ("high", True)
        assert findings["wgmma-serialised"].evidence == {"wgmma": 4, "waited_for": 4, "warning": "C7515"}


MASKED = """
def masked(x, y, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    limit = tl.load(y)
    mask, at = MASK, tl.program_id(0) * BLOCK + cols
    tl.store(y + at, 2 * tl.load(x + at, mask=mask), mask=mask)
"""


@pytest.mark.parametrize(
    ("mask", "idle"),
    [
        ("cols < 64", True),
        ("(cols < 64) & (tl.program_id(0) > 3)", False),
        ("(cols < 64) & (cols < limit)", False),
        ("cols < 96", False),
    ],
)
def test_a_mask_of_few_ctas_or_of_data_leaves_no_threads_idle(tmp_path, mask, idle):
    """How many elements another CTA, or other data, would ask for, nobody knows."""
    launch = (
        'x, y = (torch.empty(1 << 24, device="cuda", dtype=torch.int32) for _ in range(2))\n'
        "masked[(1 << 14,)](x, y, 128, num_warps=4)"
    )
    assert ("idle-threads" in found(tmp_path, MASKED.replace("MASK", mask), launch)) == idle


WORK = """
def work(x, y, n, COLS: tl.constexpr, TIMES: tl.constexpr):
    cols = tl.arange(0, COLS)
    for row in range(tl.program_id(0), n, tl.num_programs(0)):
        v = tl.load(x + row * COLS + cols)
        for _ in tl.static_range(TIMES):
            v = v * v + 1.5
        tl.store(y + row * COLS + cols, v)
"""


@pytest.mark.parametrize(("operations", "said"), [(16, True), (40, True), (64, False)])
def test_a_loop_is_bound_by_memory_with_what_it_stores(tmp_path, operations, said):
    """A number takes 0.2 cycles of an SM to load, 0.2 to store, and each operation on it 1/128."""
    launch = (
        'x = torch.empty(1 << 26, device="cuda")\n'
        f"work[(132,)](x, torch.empty_like(x), 1 << 14, 4096, {operations // 2}, num_warps=8)"
    )
    assert ("low-occupancy" in found(tmp_path, WORK, launch)) == said


SCORES = """
def attention(q, k, v, bias, out, n, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows, dims = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    x = tl.load(q + rows[:, None] * D + dims[None, :])
    top = tl.full([BM], float("-inf"), tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    BEFORE
    for start in range(0, n, BN):
        cols = start + tl.arange(0, BN)
        y = tl.load(k + cols[None, :] * D + dims[:, None])
        added = tl.load(bias + rows[:, None] * n + cols[None, :]).to(tl.float32)
        s = tl.dot(x, y) * 0.125 + added
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        z = tl.load(v + cols[:, None] * D + dims[None, :])
        acc = tl.dot(p.to(tl.bfloat16), z, acc * tl.exp2(top - new)[:, None])
        top = new
    tl.store(out + rows[:, None] * D + dims[None, :], acc.to(tl.bfloat16))
"""


@pytest.mark.parametrize(
    ("before", "advice"),
    [("pass", "say before the loop that it runs at least once, tl.assume(n > 0)"), ("tl.assume(n > 0)", None)],
)
def test_a_bias_of_the_scores_is_no_sum_that_the_loop_makes(tmp_path, before, advice):
    launch = (
        f"q, k, v, out = (torch.empty(4096, 64, {BF16}) for _ in range(4))\n"
        f"attention[(32,)](q, k, v, torch.empty(4096, 4096, {BF16}), out, 4096, 64, 128, 64, num_warps=4, num_stages=3)"
    )
    finding = found(tmp_path, SCORES.replace("BEFORE", before), launch).get("wgmma-serialised")
    assert (finding is not None) == (advice is not None)
    if finding is not None and advice is not None:
        assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("before", "severity", "says", "advice"),
    [
        ("pass", "medium", "; with num_warps=8 they wait too (C7515)", "halve the tile: "),
        ("tl.assume(n > 0)", "high", "(ptxas C7511: insufficient register resources for the wgmma pipeline)",
         "launch with num_warps=8, or halve the tile: "),
    ],
    ids=["the loop may not run", "the loop runs"],
)  # fmt: skip
def test_more_warps_that_wait_for_their_mmas_too_are_not_advised(tmp_path, before, severity, says, advice):
    launch = (
        f"q, k, v, out = (torch.empty(4096, 64, {BF16}) for _ in range(4))\n"
        f"attention[(32,)](q, k, v, torch.empty(4096, 4096, {BF16}), out, 4096, 64, 128, 128, num_stages=2)"
    )
    finding = found(tmp_path, SCORES.replace("BEFORE", before), launch)["wgmma-serialised"]
    assert (finding.severity, finding.message.endswith(says)) == (severity, True)
    assert finding.advice.startswith(advice)
    assert ({"num_warps": 8} in finding.candidates) == (severity == "high")
    assert (finding.estimate.speedup, finding.estimate.low) == ((1.2, 0.9) if severity == "medium" else (1.8, 1.2))


def test_what_an_mma_of_the_same_iteration_needs_is_not_reduced_after_the_loop(tmp_path):
    kernel = SCORES.replace("BEFORE", "total = tl.zeros([BM], tl.float32)")
    kernel = kernel.replace("        top = new", "        total += tl.sum(p, 1)\n        top = new")
    kernel = kernel.replace("acc.to(", "(acc / total[:, None]).to(")
    launch = (
        f"q, k, v, out = (torch.empty(4096, 64, {BF16}) for _ in range(4))\n"
        f"attention[(256,)](q, k, v, torch.empty(4096, 4096, {BF16}), out, 4096, 64, 16, 64, num_warps=4)"
    )
    script = tmp_path / "script.py"
    found(tmp_path, kernel, launch)
    advice = {one.source.line: one.advice for one in diagnosis_of(script).findings if one.id == "reduction-in-loop"}
    of_largest, of_sum = (advice[number] for number in sorted(advice))
    assert of_largest == "give each warp whole rows: use fewer warps, or more rows in the tile"
    assert of_sum.startswith("add to a vector that the loop carries, and reduce the vector once after the loop")
    fewer = found(tmp_path, kernel, launch.replace("num_warps=4", "num_warps=1"))
    assert "reduction-in-loop" not in fewer


@pytest.mark.parametrize(
    ("warps", "more"), [(4, ", or let two warp groups of a CTA take turns (num_warps=8)"), (8, "")]
)
def test_two_warp_groups_are_not_advised_where_there_are_two(tmp_path, warps, more):
    kernel = TRANSPOSED.replace("BEFORE", "pass").replace("END", "4096")
    kernel = kernel.replace("tl.dot(x, y.T, acc)", "acc + tl.dot(x, y.T) * tl.load(b + rn + k).to(tl.float32)[None, :]")
    launch = (
        f"a, b, c = (torch.empty(4096, 4096, {BF16}) for _ in range(3))\n"
        f"product[(32, 64)](a, b, c, 4096, 4096, 4096, 128, 64, 64, num_warps={warps}, num_stages=3)"
    )
    finding = found(tmp_path, kernel, launch)["wgmma-serialised"]
    assert (finding.severity, finding.advice) == ("low", f"take a larger BLOCK_K for each factor{more}")


def test_a_sum_that_is_rounded_in_each_iteration_is_made_outside_of_the_mma(tmp_path):
    kernel = (
        TRANSPOSED.replace("BEFORE", "pass")
        .replace("END", "4096")
        .replace("BM, BN], tl.float32", "BM, BN], tl.bfloat16")
    )
    kernel = kernel.replace("tl.dot(x, y.T, acc)", "acc + tl.dot(x, y.T).to(tl.bfloat16)")
    launch = (
        f"a, b, c = (torch.empty(4096, 4096, {BF16}) for _ in range(3))\n"
        "product[(32, 32)](a, b, c, 4096, 4096, 4096, 128, 128, 64, num_warps=8, num_stages=3)"
    )
    finding = found(tmp_path, kernel, launch)["wgmma-serialised"]
    assert (finding.severity, finding.evidence["read_by"]) == ("medium", "arith.addf")
    assert finding.message.endswith("adds the MMA's result to the sum, rounded to bf16 in each iteration")
    assert finding.advice == "accumulate with acc = tl.dot(a, b, acc) in float32, and round the sum once after the loop"


TILES = """
def tiles(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CTAS: tl.constexpr):
    rk, across = tl.arange(0, BK), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * across, CTAS, flatten=True):
        rm, rn = tile // across * BM + tl.arange(0, BM), tile % across * BN + tl.arange(0, BN)
        rn = tl.max_contiguous(tl.multiple_of(tl.where(rn < N, rn, 0), BN), BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(tl.cdiv(K, BK)):
            x = tl.load(a + rm[:, None] * K + (k * BK + rk)[None, :])
            at = (k * BK + rk)[:, None] * N + rn[None, :]
            y = tl.load(b + at)
            acc = tl.dot(x, y, acc)
        tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""
SAID_AGAIN = "tl.max_contiguous(tl.multiple_of(at, (1, 16)), (1, BN))"


@pytest.mark.parametrize(
    ("old", "new", "is_found"), [("", "", True), (", flatten=True", "", False), ("b + at", f"b + {SAID_AGAIN}", False)]
)
def test_what_is_said_of_an_index_before_a_flattened_loop_is_lost(tmp_path, old, new, is_found):
    launch = (
        f"a, b, c = (torch.empty(4096, 4096, {BF16}) for _ in range(3))\n"
        "tiles[(132,)](a, b, c, 4096, 4096, 4096, 128, 128, 64, 132, num_warps=8, num_stages=3)"
    )
    finding = found(tmp_path, TILES.replace(old, new), launch).get("loads-not-pipelined")
    assert (finding is not None) == is_found
    if finding is not None:
        assert "its index comes out of a branch in the loop (flatten=True makes one)" in finding.message
        assert finding.advice.startswith("write tl.max_contiguous and tl.multiple_of in the inner loop")


WEIGHTED = """
def weighted(a, b, s, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    pa, pb, ps = a + rm[:, None] * K + rk[None, :], b + rk[:, None] * N + rn[None, :], s + rk[None, :]
    for _ in range(0, K, BK):
        x = tl.load(pa)
        weight = tl.load(ps)
        acc = tl.dot(x * weight, tl.load(pb), acc)
        pa, pb, ps = pa + BK, pb + BK * N, ps + BK
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""


def test_a_vector_of_weights_is_not_worth_a_descriptor(tmp_path):
    """128 bytes of weights in each iteration, which scale the columns of x."""
    launch = (
        f"a, b, c = (torch.empty(4096, 4096, {BF16}) for _ in range(3))\n"
        f"weighted[(64, 64)](a, b, torch.empty(4096, {BF16}), c, 4096, 4096, 64, 64, 64, num_warps=4, num_stages=3)"
    )
    found(tmp_path, WEIGHTED, launch)
    every = diagnosis_of(tmp_path / "script.py").findings
    assert sorted(one.source.line for one in every if one.id == "tma-unused") == [9, 11]


LARGEST = """
def largest(x, y, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0) * n, tl.arange(0, BLOCK)
    top = -float("inf")
    for start in range(0, n, BLOCK):
        STEP
    tl.store(y + tl.program_id(0), top)
"""


@pytest.mark.parametrize(
    ("step", "needed"),
    [
        ("top = tl.maximum(top, tl.max(tl.load(x + row + start + i), 0))", False),
        ("top = tl.max(tl.maximum(tl.load(x + row + start + i), top), 0)", False),
        ("top = tl.max(tl.load(x + row + start + i) * top, 0)", True),
        ("top = tl.max(tl.maximum(tl.load(x + row + start + i) + top, top), 0)", True),
    ],
)
def test_elements_that_meet_the_last_result_first_can_keep_their_own(tmp_path, step, needed):
    launch = 'x = torch.empty(4096, 8192, device="cuda")\nlargest[(4096,)](x, x, 8192, 1024)'
    advice = found(tmp_path, LARGEST.replace("STEP", step), launch)["reduction-in-loop"].advice
    assert ("add to a vector that the loop carries" in advice) != needed


DECODED = """
def decoded(q, k, v, out, n, N: tl.constexpr, D: tl.constexpr):
    i, d = tl.arange(0, N), tl.arange(0, D)
    x = tl.load(q + d)
    top, total, acc = -float("inf"), 0.0, tl.zeros([D], tl.float32)
    for start in range(0, n, N):
        at = (tl.program_id(0) * n + start + i)[:, None] * D + d[None, :]
        s = tl.sum(x[None, :] * tl.load(k + at), 1)
        STEP
    tl.store(out + tl.program_id(0) * D + d, acc / total + top)
"""
ONLINE = """new = tl.maximum(top, tl.max(s, 0))
        p, alpha = tl.exp(s - new), tl.exp(top - new)
        total = alpha * total + tl.sum(p, 0)
        acc = acc * alpha + tl.sum(p[:, None] * tl.load(v + at), 0)
        top = new"""


@pytest.mark.parametrize(
    ("step", "vectors"),
    [
        (ONLINE, [False, True, True]),
        # the next iteration's terms need what this one has added up
        ("total += tl.sum(s, 0)\n        top += tl.max(s * total, 0)", [False, True]),
        ("top = tl.maximum(top, tl.max(s, 0))\n        total += tl.sum(s, 0)", [True, True]),
        ("top = tl.maximum(top, tl.max(s, 0))\n        total = total * 0.5 + tl.sum(s, 0)", [True, True]),
    ],
)
def test_a_largest_score_that_each_sum_needs_is_not_reduced_after_the_loop(tmp_path, step, vectors):
    launch = (
        'q, k, v, out = (torch.empty(256, 4096, 64, device="cuda") for _ in range(4))\n'
        "decoded[(256,)](q, k, v, out, 4096, 64, 64, num_warps=8)"
    )
    found(tmp_path, DECODED.replace("STEP", step), launch)
    every = diagnosis_of(tmp_path / "script.py").findings
    advice = {one.source.line: one.advice for one in every if one.id == "reduction-in-loop"}
    assert ["add to a vector that the loop carries" in advice[line] for line in sorted(advice)] == vectors
    assert all("give each warp whole" in one for one in advice.values())


def test_a_reduction_of_a_reduction_can_be_done_after_the_loop_with_it(tmp_path):
    """Of a tile both dimensions: the second one only goes on with the first one."""
    launch = (
        'a, b, out = (torch.empty(8, 4096, 2048, device="cuda") for _ in range(3))\n'
        "states[(8, 64)](a, b, out, 4096, 2048, 32, 32)"
    )
    findings = found(tmp_path, STATES.replace("BODY", "h += tl.sum(tl.sum(tl.load(b + at), 0), 0)"), launch)
    assert findings["reduction-in-loop"].advice.startswith("add to a vector that the loop carries")


RESCALED = """
def rescaled(p, v, s, out, n, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    m, k, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    acc = tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        x = tl.load(p + m[:, None] * n + (start + k)[None, :])
        y = tl.load(v + (start + k)[:, None] * D + d[None, :])
        acc = acc * tl.load(s + start + m)[:, None]
        acc += tl.dot(x, y, out_dtype=OUT)
    tl.store(out + m[:, None] * D + d[None, :], acc)
"""


@pytest.mark.parametrize(("out", "is_found"), [("tl.float16", True), ("tl.float32", False)])
def test_an_mma_of_halves_does_not_add_to_a_sum_in_float32(tmp_path, out, is_found):
    launch = (
        'p, v = (torch.empty(128 * 4096, device="cuda", dtype=torch.float16) for _ in range(2))\n'
        's, out = torch.empty(8192, device="cuda"), torch.empty(128, 64, device="cuda")\n'
        "rescaled[(264,)](p, v, s, out, 4096, 128, 64, 64, num_warps=8, num_stages=3)"
    )
    finding = found(tmp_path, RESCALED.replace("OUT", out), launch).get("wgmma-serialised")
    assert (finding is not None) == is_found
    if finding is not None:
        assert finding.advice.startswith("accumulate with acc = tl.dot(a, b, acc), without out_dtype")


TWICE = """
def norm(x, y, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0) * n, tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + row + start + i)
    mean = tl.sum(total, 0) / n
    for start in range(0, n, BLOCK):
        again = tl.load(x + row + start + i)
        LAST
"""
SQUARES = "total += (again - mean) * (again - mean)\n    tl.store(y + tl.program_id(0), tl.sum(total, 0))"
KEEP = "hold the whole row in registers, and load it once"
BACKWARDS = "let this loop run from the end to the beginning: the L2 cache has what the kernel loaded last"
SUBTRACT = "tl.store(y + row + start + i, again - mean)"


@pytest.mark.parametrize(
    ("last", "columns", "severity", "advice"),
    [
        (SUBTRACT, 1024, "medium", f"let one tile of 1024 elements {KEEP}"),
        (SUBTRACT, 5000, "medium", f"let one tile of 8192 elements {KEEP}: launch with num_warps=16"),
        (SUBTRACT, 32768, "medium", f"let one tile of 32768 elements {KEEP}: launch with num_warps=32"),
        (SUBTRACT, 40000, "low", BACKWARDS),
        (SUBTRACT, 65536, "low", BACKWARDS),
        (SQUARES, 65536, "medium", "compute all in one pass (an online algorithm)"),
        (
            SQUARES,
            4096,
            "medium",
            f"compute all in one pass (an online algorithm); or let one tile of 4096 elements {KEEP}: launch with "
            "num_warps=8",
        ),
    ],
)
def test_a_row_that_no_registers_hold_is_read_twice_by_what_stores_it(tmp_path, last, columns, severity, advice):
    launch = f'x = torch.empty(4096, {columns}, device="cuda")\nnorm[(4096,)](x, torch.empty_like(x), {columns}, 512)'
    finding = found(tmp_path, TWICE.replace("LAST", last), launch)["redundant-load"]
    assert (finding.severity, finding.advice) == (severity, advice)
    assert (f"a CTA's part of it, {columns} elements, is too long" in finding.message) == (severity == "low")


NORM_GRADIENT = """
def gradient(x, g, w, y, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0) * n, tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + row + start + i) * tl.load(g + row + start + i) * tl.load(w + start + i)
    mean = tl.sum(total, 0) / n
    for start in range(0, n, BLOCK):
        again = tl.load(g + row + start + i) * tl.load(WEIGHT + start + i)
        tl.store(y + row + start + i, again - mean * tl.load(x + row + start + i))
"""


@pytest.mark.parametrize(
    ("weight", "columns", "keeps"), [("w", 8192, True), ("w", 16384, False), ("y", 16384, True), ("y", 32768, False)]
)
def test_all_that_a_loop_loads_again_has_to_fit_into_registers(tmp_path, weight, columns, keeps):
    """With 32 warps a tile of 16384 elements takes 16 of a thread's 64 registers: two rows of three fit."""
    launch = (
        f'x, g, y = (torch.empty(4096, {columns}, device="cuda") for _ in range(3))\n'
        f"gradient[(4096,)](x, g, torch.empty({columns}, device='cuda'), y, {columns}, 1024)"
    )
    advice = found(tmp_path, NORM_GRADIENT.replace("WEIGHT", weight), launch)["redundant-load"].advice
    assert advice.startswith("let one tile of" if keeps else "let this loop run from the end")


BLENDED = """
def blended(x0, x1, x2, x3, y, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    i, which = tl.arange(0, BLOCK), tl.arange(0, ROWS)
    first = tl.where(which == 1, x1, x0 + which * 0)
    x = tl.where(which == 3, x3, tl.where(which == 2, x2, first))[:, None] + tl.program_id(0) * n
    score = tl.zeros([ROWS], tl.float32)
    for start in range(0, n, BLOCK):
        score += tl.sum(tl.load(x + (start + i)[None, :]), 1)
    score *= 0.5
    weight = tl.exp(score - tl.max(score, 0))
    for start in range(0, n, BLOCK):
        tile = tl.load(x + (start + i)[None, :])
        STORE
"""


@pytest.mark.parametrize(
    ("store", "severity", "advice"),
    [
        (
            "tl.store(y + tl.program_id(0) * n + start + i, tl.sum(tile * weight[:, None], 0))",
            "medium",
            "compute all in one pass (an online algorithm) with the 16384 elements of the result in registers: scale "
            "what is summed",
        ),
        ("tl.store(x + (start + i)[None, :], tile * weight[:, None])", "low", BACKWARDS),
    ],
)
def test_sums_of_rows_that_are_too_long_are_kept_in_place_of_the_rows(tmp_path, store, severity, advice):
    launch = (
        'rows = [torch.empty(4096, 16384, device="cuda") for _ in range(5)]\n'
        "blended[(4096,)](*rows, 16384, ROWS=4, BLOCK=512)"
    )
    finding = found(tmp_path, BLENDED.replace("STORE", store), launch)["redundant-load"]
    assert (finding.severity, finding.advice) == (severity, advice)
    assert finding.message.startswith("x0 and 3 other pointers are read at the same addresses as on line ")


@pytest.mark.parametrize(
    ("size", "tile", "advice"),
    [
        (4096, 32, "use tiles of 128 x 128 (num_warps=4 or 8)"),
        (1024, 32, "use tiles of 64 x 64 (num_warps=4)"),  # of 128 x 128 there are 64, on 132 SMs
        (512, 32, None),
    ],
)
def test_larger_tiles_are_advised_as_far_as_they_fill_the_gpu(tmp_path, size, tile, advice):
    kernel = TRANSPOSED.replace("BEFORE", "pass").replace("END", "K")
    launch = (
        f"a, b, c = (torch.empty({size}, {size}, {BF16}) for _ in range(3))\n"
        f"product[({size // tile}, {size // tile})](a, b, c, {size}, {size}, {size}, {tile}, {tile}, 64, num_warps=4)"
    )
    finding = found(tmp_path, kernel, launch).get("small-tile")
    assert (finding is not None) == (advice is not None)
    if finding is not None and advice is not None:
        assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("depth", "dtype", "columns"),
    [
        (16, "bfloat16", 64),
        (32, "bfloat16", None),
        (16, "float16", 64),
        (16, "float32", None),
        (32, "float8_e4m3fn", 128),
    ],
)
def test_an_iteration_of_few_columns_waits_for_one_instruction(tmp_path, depth, dtype, columns):
    kernel = TRANSPOSED.replace("BEFORE", "pass").replace("END", "K")
    launch = (
        f'a, b, c = (torch.empty(4096, 4096, device="cuda", dtype=torch.{dtype}) for _ in range(3))\n'
        f"product[(32, 32)](a, b, c, 4096, 4096, 4096, 128, 128, {depth}, num_warps=8)"
    )
    finding = found(tmp_path, kernel, launch).get("small-tile")
    assert (finding is not None) == (columns is not None)
    if finding is not None:
        assert finding.advice.startswith(f"let an iteration multiply {columns} columns (rows of 128 bytes)")
        assert (finding.severity, finding.estimate.speedup, finding.evidence["row_bytes"]) == ("high", 2.0, 32)


ATTENTION_OF_KEYS = """
def attended(q, k, v, o, N, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rm, rn, rd = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    query = tl.load(q + rm[:, None] * D + rd[None, :])
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for n in range(0, N, BN):
        key = tl.load(k + KEYS[:, None] * D + rd[None, :])
        s = tl.dot(query, tl.trans(key))
        larger = tl.maximum(largest, tl.max(s, 1))
        p, scale = tl.exp(s - larger[:, None]), tl.exp(largest - larger)
        total = total * scale + tl.sum(p, 1)
        value = tl.load(v + KEYS[:, None] * D + rd[None, :])
        SUM
        largest = larger
    tl.store(o + rm[:, None] * D + rd[None, :], (acc / total[:, None]).to(tl.bfloat16))
"""


@pytest.mark.parametrize("keys", ["(n + rn)", "(tl.load(q.to(tl.pointer_type(tl.int32)) + n // BN) * BN + rn)"])
@pytest.mark.parametrize(
    ("summed", "rows", "count", "finds"),
    [
        ("acc = tl.dot(p.to(tl.bfloat16), value, acc * scale[:, None])", 16, 16, True),
        ("acc = acc * scale[:, None] + tl.dot(p.to(tl.bfloat16), value)", 64, 16, True),
        ("acc *= scale[:, None]; acc += tl.dot(p.to(tl.bfloat16), value)", 64, 32, False),
        ("acc = tl.dot(p.to(tl.bfloat16), value) + acc * 1.0", 16, 64, False),
    ],
)
def test_an_iteration_of_few_keys_rescales_its_sum_for_them(tmp_path, keys, summed, rows, count, finds):
    kernel = ATTENTION_OF_KEYS.replace("KEYS", keys).replace("SUM", summed)
    launch = (
        f"q, k, v, o = (torch.empty(65536, 128, {BF16}) for _ in range(4))\n"
        f"attended[({65536 // rows},)](q, k, v, o, 4096, 128, {rows}, {count}, num_warps=4)"
    )
    finding = found(tmp_path, kernel, launch).get("small-tile")
    assert (finding is not None) == finds
    if finding is not None:
        assert finding.message.startswith("each iteration has only 16 keys (the dimension over which this MMA sums)")
        assert finding.advice.startswith("let an iteration have 32 or 64 keys (of several pages, if a page has 16)")
        assert (finding.severity, finding.estimate.speedup) == ("medium", pytest.approx(2**0.5))


def test_exp_beside_mmas_costs_the_issue_slots_that_exp2_does_not_take(tmp_path):
    """Of 8192 scores four instructions each are 256 cycles, beside 1575 of MMAs and some 900 of arithmetic."""
    kernel = ATTENTION_OF_KEYS.replace("KEYS", "(n + rn)").replace(
        "SUM", "acc = acc * scale[:, None] + tl.dot(p.to(tl.bfloat16), value)"
    )
    launch = (
        f"q, k, v, o = (torch.empty(65536, 128, {BF16}) for _ in range(4))\n"
        "attended[(512,)](q, k, v, o, 4096, 128, 128, 64, num_warps=8)"
    )
    finding = found(tmp_path, kernel, launch)["slow-math"]
    gain = (1575 + 900) / (1575 + 900 - 256)
    assert (finding.severity, finding.estimate.low) == ("low", 1.0)
    assert finding.estimate.speedup == pytest.approx(gain, rel=0.02)
    assert finding.estimate.high == pytest.approx(2 * gain - 1, rel=0.04)


EXPERTS = """
def experts(a, w, chosen, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    expert = CHOICE
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(w + expert * N * K + rn[None, :] * K + (k + rk)[:, None])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""


@pytest.mark.parametrize(
    ("choice", "experts", "severity"),
    [
        ("tl.load(chosen + tl.program_id(1))", 64, "low"),  # 4 CTAs an expert, where a larger tile joins 8
        ("tl.load(chosen + tl.program_id(1))", 4, "high"),  # 64 of them
        ("tl.program_id(1) // 64", 4, "high"),
    ],
)
def test_of_the_rows_of_an_expert_there_may_be_few(tmp_path, choice, experts, severity):
    launch = (
        f"(a, c), w = torch.empty(2, 4096, 2048, {BF16}), torch.empty({experts}, 2048, 2048, {BF16})\n"
        'chosen = torch.empty(256, device="cuda", dtype=torch.int32)\n'
        "experts[(64, 256)](a, w, chosen, c, 2048, 2048, 16, 32, 64, num_warps=4)"
    )
    finding = found(tmp_path, EXPERTS.replace("CHOICE", choice), launch)["small-tile"]
    assert finding.severity == severity
    assert finding.advice.startswith("if more than 16 rows have the same operand") == (severity == "low")
    assert finding.advice.startswith("many CTAs with other rows") == (severity == "high" and "tl.load" in choice)


HEADS_OF_TOKENS = """
def heads(x, w, y, K, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    rm, rd, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BK)
    acc = tl.zeros([BM, D], tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rm[:, None] * K + (k + rk)[None, :])
        b = tl.load(w + tl.program_id(1) * K * D + (k + rk)[:, None] * D + rd[None, :])
        acc = PRODUCT
    tl.store(y + rm[:, None] * D + rd[None, :], STORED)
"""
STEPS_OF_COLUMNS = HEADS_OF_TOKENS.replace(", tl.arange(0, D)", ", tl.program_id(1) * D + tl.arange(0, D)")
STEPS_OF_COLUMNS = STEPS_OF_COLUMNS.replace("[:, None] * D", "[:, None] * K").replace("* K * D +", "+")


@pytest.mark.parametrize(
    ("kernel", "rows", "columns", "tile", "is_turned"),
    [
        (HEADS_OF_TOKENS, 32, 16, (128, 16), False),
        (HEADS_OF_TOKENS, 32, 16, (16, 128), True),
        (HEADS_OF_TOKENS, 16, 32, (128, 32), False),
        (HEADS_OF_TOKENS, 16, 32, (32, 128), True),
        (HEADS_OF_TOKENS, 32, 32, (128, 32), False),
        (STEPS_OF_COLUMNS, 32, 32, (128, 128), False),
        (STEPS_OF_COLUMNS, 32, 16, (128, 128), True),
    ],
)
def test_a_side_that_is_as_long_as_the_problem_stays_as_it_is(tmp_path, kernel, rows, columns, tile, is_turned):
    """A tile of 128 x 32 loads 5 elements for each that a tile of 32 x 32 loads 8."""
    product = "acc + tl.trans(tl.dot(tl.trans(b), tl.trans(a)))" if is_turned else "tl.dot(a, b, acc)"
    kernel = kernel.replace("PRODUCT", product).replace("STORED", "acc.to(tl.bfloat16)")
    launch = (
        f"x, w, y = (torch.empty(1 << 26, {BF16}) for _ in range(3))\n"
        f"heads[(2048, 8)](x, w, y, 2048, {columns}, {rows}, 64, num_warps=4)"
    )
    finding = found(tmp_path, kernel, launch)["small-tile"]
    assert finding.advice.startswith(f"use tiles of {tile[0]} x {tile[1]} (num_warps=4 or 8)")
    assert finding.estimate.high == pytest.approx(math.prod(tile) / sum(tile) * (rows + columns) / (rows * columns))
    assert any("D" in one for one in finding.candidates) == (math.prod(tile) == 128 * 128)


def test_a_tile_of_which_both_sides_are_as_long_as_the_problem_is_not_small(tmp_path):
    kernel = HEADS_OF_TOKENS.replace("tl.program_id(0) * BM + tl.arange(0, BM)", "tl.arange(0, BM)")
    kernel = kernel.replace("x + rm", "x + tl.program_id(0) * K * 32 + rm").replace(
        "y + rm", "y + tl.program_id(0) + rm"
    )
    kernel = kernel.replace("PRODUCT", "tl.dot(a, b, acc)").replace("STORED", "acc.to(tl.bfloat16)")
    launch = f"x, w, y = (torch.empty(1 << 26, {BF16}) for _ in range(3))\n"
    launch += "heads[(2048, 8)](x, w, y, 2048, 16, 32, 64, num_warps=4)"
    assert "small-tile" not in found(tmp_path, kernel, launch)


SPILLED_AFTER = """
def spilled(a, b, c, x, y, n, M: tl.constexpr, BLOCK: tl.constexpr):
    m, j = tl.arange(0, M), tl.arange(0, BLOCK)
    at = m[:, None] * M + m[None, :]
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n, BLOCK):
        acc += tl.load(x + k + j)
    tl.store(y + j, acc)
    p = tl.dot(tl.load(a + at), tl.load(b + at))
    q = tl.dot(tl.load(a + at), tl.load(c + at))
    tl.store(y + at, tl.exp(p) * q)
"""


def test_spills_outside_of_the_loops_are_a_hint(tmp_path):
    launch = (
        f"a, b, c = (torch.empty(128, 128, {BF16}) for _ in range(3))\n"
        'x = torch.empty(1 << 20, device="cuda")\nspilled[(1024,)](a, b, c, x, x, 65536, 128, 256, num_warps=4)'
    )
    finding = found(tmp_path, SPILLED_AFTER, launch)["register-spills"]
    assert (finding.severity, finding.evidence["in_loops"]) == ("low", 0)
    assert finding.estimate.high < 1.2


PACKED = """
def packed(a, q, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(1) * BM + tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(q + ((k + rk) // 8)[:, None] * N + rn[None, :])
        acc = tl.dot(x, ((y >> ((rk % 8) * 4)[:, None]) & 15).to(tl.bfloat16), acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""


def test_words_that_eight_rows_share_are_loaded_once(tmp_path):
    """64 x 64 x 128 of 4 bits: 16 KB and 4 KB, so 51 operations for each byte."""
    launch = (
        f"a, c = torch.empty(1024, 8192, {BF16}), torch.empty(1024, 32768, {BF16})\n"
        'q = torch.empty(1024, 32768, device="cuda", dtype=torch.int32)\n'
        "packed[(512, 16)](a, q, c, 32768, 8192, 64, 64, 128, num_warps=4)"
    )
    assert "small-tile" not in found(tmp_path, PACKED, launch)
    assert "does 51 operations for each byte" in diagnosis_of(tmp_path / "script.py").bound.message


@pytest.mark.parametrize(("ctas", "advised"), [(8, True), (120, True), (121, False), (132, False)])
def test_a_few_idle_sms_are_not_worth_a_split(tmp_path, ctas, advised):
    launch = f'x = torch.empty(1 << 20, device="cuda")\ncount[({ctas},)](x, x, 1024)'
    findings = found(tmp_path, COUNT.replace("MASK", "lane < B"), launch)
    assert ("launch-too-small" in findings) == advised


@pytest.mark.parametrize(("ctas", "block", "severity"), [(2, 256, "low"), (2, 65536, "high"), (64, 512, "low")])
def test_a_split_shortens_no_wait_for_memory(tmp_path, ctas, block, severity):
    """A CTA without a loop waits once, some 1280 cycles, and moves its 8 bytes an element at 20 a cycle."""
    launch = f'x = torch.empty(1 << 20, device="cuda")\nshort_rows[({ctas},)](x, torch.empty_like(x), {block})'
    finding = found(tmp_path, SHORT_ROWS.replace("ROW", "2 * row"), launch)["launch-too-small"]
    work, share = 8 * block / 20, ctas / 132
    assert finding.severity == severity
    assert finding.estimate.high == pytest.approx((1280 + work) / (1280 + work * share), rel=0.02)


STATES = """
def states(a, b, out, T, D, BT: tl.constexpr, BD: tl.constexpr):
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    h = tl.zeros([BD], tl.float32)
    for t in range(0, T, BT):
        at = (tl.program_id(0) * T + t + tl.arange(0, BT))[:, None] * D + d[None, :]
        BODY
    tl.store(out + tl.program_id(0) * D + d, h)
"""
STEP = "new = tl.load(b + at) + tl.load(a + at) * h[None, :]; h = tl.sum(new, 0)"


@pytest.mark.parametrize(
    ("body", "needed"),
    [
        (f"{STEP}; tl.store(out + at, new)", True),
        (STEP, True),
        ("h += tl.sum(tl.load(b + at) * tl.load(a + at), 0)", False),
    ],
)
def test_each_step_of_a_recurrence_needs_the_last_one(tmp_path, body, needed):
    launch = (
        'a, b, out = (torch.empty(8, 4096, 2048, device="cuda") for _ in range(3))\n'
        "states[(8, 64)](a, b, out, 4096, 2048, 32, 32)"
    )
    findings = found(tmp_path, STATES.replace("BODY", body), launch)
    whole = "give each warp whole columns"
    advice = f"{whole}: use fewer warps, or more columns" if needed else "add to a vector that the loop carries"
    assert findings["reduction-in-loop"].advice.startswith(advice)
    assert whole in findings["reduction-in-loop"].advice


@pytest.mark.parametrize(
    ("body", "advised"), [(f"{STEP}; tl.store(out + at, new)", False), ("tl.store(out + at, tl.load(a + at))", True)]
)
def test_the_steps_of_a_recurrence_are_not_shared_out_to_more_ctas(tmp_path, body, advised):
    launch = (
        f"a, b, out = (torch.empty(8, 4096, 2048, {BF16}) for _ in range(3))\n"
        "states[(8, 64)](a, b, out, 4096, 2048, 32, 32)"
    )
    assert ("low-occupancy" in found(tmp_path, STATES.replace("BODY", body), launch)) == advised


ONE_STAGE = """
def gemm(a, b, c, K: tl.constexpr, B: tl.constexpr):
    m, n = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for i in range(K // B):
        k = i * B + tl.arange(0, B)
        acc += tl.dot(tl.load(a + m[:, None] * K + k[None, :]), tl.load(b + k[:, None] * 4096 + n[None, :]))
    tl.store(c + m[:, None] * 4096 + n[None, :], acc)
"""


@pytest.mark.parametrize(("side", "severity", "stages"), [(4, "high", 3), (32, "medium", 2)])
def test_stages_take_no_cta_away_from_an_sm_that_has_one(tmp_path, side, severity, stages):
    """16 CTAs have an SM each, of which 1024 have several: there they wait for memory in turn."""
    launch = f'a = torch.empty(4096, 4096, {BF16})\nc = torch.empty(4096, 4096, device="cuda")\n'
    launch += f"gemm[({side}, {side})](a, a, c, 4096, 128, num_warps=8, num_stages=1)"
    finding = found(tmp_path, ONE_STAGE, launch)["loads-not-pipelined"]
    assert finding.severity == severity
    assert f"num_stages={stages}" in finding.advice
    assert ("only one CTA fits on an SM" in finding.advice) == (side == 32)


DOUBLED = """
def doubled(x, y, D, B: tl.constexpr):
    row, n = tl.program_id(0) * D, tl.arange(0, B)
    for start in range(0, tl.cdiv(D, B)):
        at = start * B + n
        tl.store(y + row + at, tl.load(x + row + at, mask=at < D) * 2, mask=at < D)
"""


@pytest.mark.parametrize(("length", "most"), [(100, None), (300, 3), (6000, 16)])
def test_a_loop_waits_for_memory_no_more_often_than_it_runs(tmp_path, length, most):
    """Rows of a benchmark may be as short as one tile: nothing is left to load at once."""
    launch = f"x = torch.empty(128, {length}, {BF16})\ny = torch.empty_like(x)\n"
    finding = found(tmp_path, DOUBLED, f"{launch}doubled[(128,)](x, y, {length}, 128)").get("few-bytes-in-flight")
    assert (finding and finding.estimate.high) == most


ASKED = """
def asked(seat_of, x, out, tokens, n, W, B: tl.constexpr):
    t = tl.program_id(0)
    c = tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for e in range(n):
        seat = tl.load(SEAT)
        BODY
    tl.store(out + t * W + c, acc, mask=c < W)
"""
ASKED_LAUNCHED = """
seat_of = torch.zeros(4096, 128, device="cuda", dtype=torch.int32)
x, out = torch.zeros(4096 * ROWS, 500, device="cuda"), torch.zeros(4096, 500, device="cuda")
asked[(4096,)](seat_of, x, out, 4096, 128, 500, 512)
"""
LOADED = "acc += tl.load(x + seat * W + c, mask=c < W, other=0.0)"
IF_SEATED = f"if seat >= 0:\n            {LOADED}"
STORED = "if seat >= 0:\n            tl.store(x + seat * W + c, acc, mask=c < W)"


@pytest.mark.parametrize(
    ("seat", "body", "rows", "severity", "working"),
    [
        ("seat_of + e * tokens + t", IF_SEATED, 8, "high", 8),
        ("seat_of + t * n + e", f"if seat == 0:\n            pass\n        else:\n            {LOADED}", 4, "high", 4),
        ("seat_of + t * n + e", STORED, 4, "high", 4),
        ("seat_of + t * n + e", STORED, 2.5, "high", 2.5),
        ("seat_of + t * n + e", IF_SEATED, 2.5, "low", 0),  # rows may be loaded more than once
        ("seat_of + t * n + e", IF_SEATED.replace("seat * W", "e * W"), 8, "low", 0),
        ("seat_of + t * n + e", LOADED.replace("c < W", "(c < W) & (seat >= 0)"), 8, "low", 0),
        ("seat_of + t * n + e", IF_SEATED, 128, None, 0),  # all seats are taken
        ("seat_of + t", IF_SEATED, 8, None, 0),
        ("seat_of + t * n + e", LOADED, 8, None, 0),
        ("seat_of + t * n + e", f"acc *= 0.5\n        {IF_SEATED}", 8, None, 0),
        ("seat_of + t * n + e", f"{IF_SEATED}\n        else:\n            tl.store(x + e * W + c, acc)", 8, None, 0),
    ],
    ids=["loaded", "else", "stored", "part", "table", "tile", "mask", "all", "same", "each", "beside", "both"],
)  # fmt: skip
def test_a_loop_that_asks_all_for_few_could_loop_over_these(tmp_path, seat, body, rows, severity, working):
    launch = ASKED_LAUNCHED.replace("4096 * ROWS", str(int(4096 * rows)))
    one = found(tmp_path, ASKED.replace("SEAT", seat).replace("BODY", body), launch).get("scalar-loop")
    assert (one and one.severity) == severity
    if one is not None:
        assert one.evidence["working"] == pytest.approx(working)
        assert one.advice.startswith("list the iterations that do something")
        assert (one.estimate.speedup > 3) == (severity == "high")


def test_few_iterations_of_many_have_the_gain_that_was_measured(tmp_path):
    """8.34 x on an H200: each token asks all 256 experts for its 8, again for each slice of 7168 numbers."""
    kernel = """
def asked(seat_of, x, out, tokens, n, W, B: tl.constexpr):
    t = tl.program_id(0)
    begin = 0
    while begin < W:
        c = begin + tl.arange(0, B)
        acc = tl.zeros((B,), tl.float32)
        for e in range(n):
            seat = tl.load(seat_of + e * tokens + t)
            if seat != -1:
                acc += tl.load(x + seat * W + c, mask=c < W)
        tl.store(out + t * W + c, acc, mask=c < W)
        begin += B
"""
    launch = (
        "seat_of = torch.zeros(256, 4096, device='cuda', dtype=torch.int64)\n"
        "x, out = (torch.zeros(n * 4096, 7168, device='cuda', dtype=torch.bfloat16) for n in (8, 1))\n"
        "asked[(4096,)](seat_of, x, out, 4096, 256, 7168, 1024)"
    )
    one = found(tmp_path, kernel, launch)["scalar-loop"]
    assert one.severity == "high"
    assert 8.34 / 1.5 <= one.estimate.speedup <= 8.34 * 1.5
    assert one.message.endswith("and so again in each iteration of the loop around it")


PARTS = """
def parts(x, out, n, C, B: tl.constexpr):
    row, cols = tl.program_id(0) * C, tl.arange(0, B)
    for part in range(C):
        BODY
"""
IN_TILES = """for begin in range(0, n, B):
            at = (row + part) * n + begin + cols
            tl.store(out + at, 2 * tl.load(x + at, mask=MASK), mask=MASK)"""
AT_ONCE = "at = (row + part) * n + cols\n        tl.store(out + at, 2 * tl.load(x + at, mask=MASK), mask=MASK)"


@pytest.mark.parametrize(
    ("body", "mask", "n", "elements"),
    [
        (IN_TILES, "begin + cols < n", 512, 512),
        (AT_ONCE, "cols < n", 700, 700),
        (AT_ONCE, "cols < n", 1024, 1024),
        (AT_ONCE, "cols < n", 1200, None),
        (IN_TILES, "begin + cols < n", 2100, None),  # the first tile is whole
        (AT_ONCE, "(cols < n) & (part > 2)", 512, None),
        (AT_ONCE, "cols < tl.load(x + part)", 512, None),
    ],
)
def test_a_tile_that_is_longer_than_what_each_iteration_has_leaves_threads_idle(tmp_path, body, mask, n, elements):
    launch = (
        f"x = torch.zeros(4096, 16, {n}, device='cuda', dtype=torch.half)\n"
        f"parts[(4096,)](x, torch.empty_like(x), {n}, 16, 2048)"
    )
    one = found(tmp_path, PARTS.replace("BODY", body).replace("MASK", mask), launch).get("idle-threads")
    assert (one and one.evidence.get("elements")) == elements
    if one is not None:
        assert (one.severity, one.evidence["tile"]) == ("medium", 2048)
        assert one.candidates == [{"B": 1 << (elements - 1).bit_length()}]


@pytest.mark.parametrize(("loops", "elements"), [(1, None), (8, 512)])
def test_a_short_row_that_one_tile_holds_is_its_kernel_s_only_work(tmp_path, loops, elements):
    launch = (
        "x = torch.zeros(4096, 8, 512, device='cuda', dtype=torch.half)\n"
        f"parts[(4096,)](x, torch.empty_like(x), 512, {loops}, 2048)"
    )
    kernel = PARTS.replace("BODY", IN_TILES).replace("MASK", "begin + cols < n")
    one = found(tmp_path, kernel, launch).get("idle-threads")
    assert (one and one.evidence["elements"]) == elements


COLUMNS = """
def columns(x, out, n, tiles, R: tl.constexpr, B: tl.constexpr):
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, col = tile // (n // B), tile % (n // B)
        v = TILE
        tl.store(out + row * n + col * B + tl.arange(0, B), tl.max(v.to(tl.float32), AXIS))
"""
BY_TMA = "x.load([row * R, col * B])"
BY_POINTERS = "tl.load(x + (row * R + tl.arange(0, R))[:, None] * n + col * B + tl.arange(0, B)[None, :])"


@pytest.mark.parametrize(
    ("tile", "rows", "warps", "ctas", "candidates"),
    [
        (BY_TMA, 32, 4, 16384, [{"num_warps": 1}, {"num_warps": 2}]),
        (BY_TMA, 32, 8, 2112, [{"num_warps": 1}, {"num_warps": 2}]),
        (BY_TMA, 32, 1, 16384, None),
        (BY_TMA, 256, 4, 2048, None),  # too much for the registers of a warp
        (BY_TMA, 32, 4, 64, None),  # too few CTAs for so few warps
        (BY_POINTERS, 32, 4, 16384, None),
    ],
)
def test_a_small_tile_by_tma_is_reduced_in_one_warp(tmp_path, tile, rows, warps, ctas, candidates):
    """2.15 x on an H200, with 32 rows and 4 warps."""
    x = f"TensorDescriptor.from_tensor(x, [{rows}, 128])" if tile is BY_TMA else "x"
    launch = (
        "from triton.tools.tensor_descriptor import TensorDescriptor\n"
        "x, out = torch.zeros(8192, 8192, device='cuda', dtype=torch.bfloat16), torch.zeros(512, 8192, device='cuda')\n"
        f"columns[({ctas},)]({x}, out, 8192, {8192 // rows * 64}, {rows}, 128, num_warps={warps})"
    )
    kernel = COLUMNS.replace("TILE", tile).replace("AXIS", "0")
    one = found(tmp_path, kernel, launch).get("reduction-in-loop")
    assert (one and one.candidates) == candidates
    if one is not None and warps == 4:
        assert 2.15 / 1.5 <= one.estimate.speedup <= 2.15 * 1.5


POOLED = """
def pooled(x, out, T: tl.constexpr, C: tl.constexpr):
    t, c = tl.arange(0, T), tl.arange(0, C)
    at = tl.program_id(0) * T * C
    v = tl.load(x + at + INDEX)
    tl.store(out + tl.program_id(0) * KEPT, tl.max(v, AXIS))
"""
COLUMNS_OF_TILE = ("t[:, None] * C + c[None, :]", "C + c", 0)
ROWS_OF_TILE = ("t[:, None] * C + c[None, :]", "T + t", 1)
THREE = ("tl.arange(0, 4)[:, None, None] * (T * C // 4) + tl.arange(0, T // 4)[None, :, None] * C + c[None, None, :]",
         "C + tl.arange(0, 4)[:, None] * C + c[None, :]", 1)  # fmt: skip


@pytest.mark.parametrize(
    ("index", "rows", "warps", "ctas", "severity"),
    [
        (COLUMNS_OF_TILE, 64, 4, 16384, "medium"),
        (COLUMNS_OF_TILE, 64, 8, 16384, "medium"),
        (THREE, 64, 4, 16384, "medium"),
        (ROWS_OF_TILE, 64, 4, 16384, None),  # each warp has whole rows
        (COLUMNS_OF_TILE, 64, 1, 16384, None),
        (COLUMNS_OF_TILE, 512, 4, 2048, None),  # too much for the registers of a warp
        (COLUMNS_OF_TILE, 64, 4, 100, None),  # too few CTAs for so few warps
    ],
)
def test_a_small_tile_by_pointers_is_reduced_in_one_warp(tmp_path, index, rows, warps, ctas, severity):
    """1.45 x on an H200, of three dimensions with 4 warps."""
    source, kept, axis = index
    kernel = POOLED.replace("INDEX", source).replace("KEPT", kept).replace("AXIS", str(axis))
    launch = (
        f"x, out = torch.zeros({ctas}, {rows}, 64, device='cuda'), torch.zeros(1 << 24, device='cuda')\n"
        f"pooled[({ctas},)](x, out, {rows}, 64, num_warps={warps})"
    )
    one = found(tmp_path, kernel, launch).get("reduction-in-loop")
    assert (one and one.severity) == severity
    if one is not None:
        assert one.candidates[0] == {"num_warps": 1}
        assert 1.1 < one.estimate.speedup < 1.45 * 1.5


def test_of_a_sort_whose_instructions_take_longer_than_its_bytes_nothing_is_known(tmp_path):
    kernel = POOLED.replace("INDEX", ROWS_OF_TILE[0]).replace(
        "KEPT, tl.max(v, AXIS)", f"T * C + {ROWS_OF_TILE[0]}, tl.sort(v, 1)"
    )
    launch = (
        "x, out = torch.zeros(16384, 2, 1024, device='cuda'), torch.zeros(1 << 25, device='cuda')\n"
        "pooled[(16384,)](x, out, 2, 1024, num_warps=8)"
    )
    assert "reduction-in-loop" not in found(tmp_path, kernel, launch)


def test_of_configurations_with_the_same_faults_the_one_that_gains_least_is_shown(tmp_path, monkeypatch):
    """It is the faster one: the others have more to gain."""
    launch = "x = torch.zeros(1 << 20, device='cuda')\nones[(1024,)](x, 1024)"
    script = tmp_path / "ones.py"
    source = "def ones(x, B: tl.constexpr):\n    tl.store(x + tl.program_id(0) * B + tl.arange(0, B), 1.0)"
    script.write_text(f"import torch, triton, triton.language as tl\n\n@triton.jit\n{source}\n\n{launch}\n")
    kernel, *_ = inputs.read(str(script), (), SM_90A)
    tried = {gain: replace(kernel, tuned=True, num_stages=stages) for stages, gain in enumerate((22.0, 7.6, 12.0))}
    gains = {id(one): gain for gain, one in tried.items()}

    def diagnosed(one, made=compilations.diagnose):
        fault = one.finding("scalar-loop", None, "high", "", "", {}, estimate=(gains[id(one)], 1.0, 32.0))
        return made(one).model_copy(update={"findings": [fault]})

    monkeypatch.setattr(compilations, "diagnose", diagnosed)
    ((best, diagnosis),) = compilations.kernels_with_diagnoses(list(tried.values()))
    assert (best is tried[7.6], diagnosis.configurations) == (True, 3)
