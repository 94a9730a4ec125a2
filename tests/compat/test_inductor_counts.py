"""FLOPs and bytes that are derived from Inductor's graph, against graphs that were counted by hand.

Inductor writes its Triton program for a fake H200; what is counted is that program.
"""

import importlib.util
import re
from collections import Counter
from itertools import product
from math import prod
from pathlib import Path

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import library
from torch.nn import functional as F  # noqa: N812
from torch.utils._sympy.functions import FloorDiv, Identity, ModularIndexing

from kperf.compat import inductor_fake
from kperf.compat.inductor_counts import Access, elements
from kperf.compat.inductor_graph import noted, watched
from kperf.errors import MeasurementError
from kperf.ir import offline
from kperf.ir.compile import compile_kernel, sass

ROWS, WIDTH = 1024, 4096
N = ROWS * WIDTH
H200 = offline.properties(), offline.Driver()


def program_of(function, inputs):
    return inductor_fake.program_of(function, inputs, *H200)


def kernels(function, *shapes, dtype=torch.bfloat16):
    inputs = [
        torch.empty(shape, dtype=dtype, device="meta") if isinstance(shape, tuple) else shape.to("meta")
        for shape in shapes
    ]
    return program_of(function, inputs).kernels


def only(function, *shapes, **settings):
    (kernel,) = kernels(function, *shapes, **settings)
    return kernel.counts


def test_a_pointwise_operator_reads_and_writes_each_element_once():
    counts = only(lambda x, y: x * y + 1, (ROWS, WIDTH), (ROWS, WIDTH))
    assert counts.bytes == 2 * 3 * N
    assert (counts.flops, counts.products, counts.functions) == (2 * N, 0, 0)


def test_a_broadcast_row_is_read_once():
    assert only(lambda x, row: x + row, (ROWS, WIDTH), (WIDTH,)).bytes == 2 * (2 * N + WIDTH)
    assert only(lambda x, column: x + column, (ROWS, WIDTH), (ROWS, 1)).bytes == 2 * (2 * N + ROWS)


def test_what_a_fused_chain_hands_on_is_not_moved():
    def chain(x):
        y = torch.relu(x * 2)  # never written
        return y.exp() - y

    counts = only(chain, (ROWS, WIDTH))
    assert counts.bytes == 2 * 2 * N
    assert counts.flops == 3 * N  # the product, exp and the difference: relu is none
    assert counts.functions == N


def test_what_a_fused_chain_hands_on_and_gives_out_is_written_and_not_read():
    def chain(x):
        y = x * 2
        return y, y.sum(-1, dtype=torch.float32)

    counts = only(chain, (ROWS, WIDTH), dtype=torch.float32)
    assert counts.bytes == 4 * (2 * N + ROWS)
    assert counts.flops == 2 * N


def test_what_two_operators_compute_both_is_computed_once():
    assert only(lambda x: ((x * 3).exp(), (x * 3).neg()), (ROWS, WIDTH)).flops == 2 * N
    assert only(lambda x: ((x * 3).exp(), (x * 4).neg()), (ROWS, WIDTH)).flops == 3 * N


def test_a_norm_divides_once_a_row():
    counts = only(lambda x, w: F.rms_norm(x, (WIDTH,), w), (ROWS, WIDTH), (WIDTH,))
    assert counts.bytes == 2 * (2 * N + WIDTH)
    # A square and an addition to the sum, a product with the root and one with the weight; of a row the mean, epsilon
    # and the root.
    assert counts.flops == 4 * N + 3 * ROWS
    assert counts.functions == 2 * ROWS


def test_a_layer_norm_is_counted_with_its_variance():
    counts = only(lambda x: F.layer_norm(x, (WIDTH,)), (ROWS, WIDTH))
    assert counts.bytes == 2 * 2 * N
    assert 8 * N <= counts.flops <= 9 * N  # Welford's six, the difference and the product


def test_reductions_are_told_apart():
    softmax = only(lambda x: torch.softmax(x, -1), (ROWS, WIDTH), dtype=torch.float32)
    assert (softmax.flops, softmax.functions, softmax.reduced) == (6 * N, 3 * N, 3 * N)
    assert softmax.bytes == 4 * 2 * N
    summed = only(lambda x: x.cumsum(-1), (ROWS, WIDTH), dtype=torch.float32)
    assert (summed.flops, summed.reduced) == (N, N)
    assert only(lambda x: x.argmax(-1), (ROWS, WIDTH)).flops == 0
    assert only(lambda x: x.sort(-1), (ROWS, 128)).flops == 0


def test_boundaries_are_read_too():
    counts = only(torch.searchsorted, (1024,), (64,), dtype=torch.float32)
    assert counts.bytes == 4 * 1024 + 4 * 64 + 8 * 64


def test_loops_of_two_sizes_are_not_taken_for_each_other():
    def two(x):
        return x.exp().sum(), x[:, :1] * 2

    assert sum(kernel.counts.functions for kernel in kernels(two, (4, WIDTH), dtype=torch.float32)) == 4 * WIDTH


def test_a_slice_counts_as_the_slice():
    half = WIDTH // 2
    assert only(lambda x: x[:, :half] * 2, (ROWS, WIDTH)).bytes == 2 * 2 * N // 2
    assert only(lambda x: x[:, :half] * x[:, half:], (ROWS, WIDTH)).bytes == 2 * (N + N // 2)
    assert only(lambda x: x[:, :half] * x[:, 1 : half + 1], (ROWS, WIDTH)).bytes == 2 * (ROWS * (half + 1) + N // 2)


def test_a_view_is_no_kernel_and_counts_as_what_it_shows():
    assert kernels(lambda x: x.view(-1, 64), (ROWS, WIDTH)) == []
    assert only(lambda x: x.view(-1, 64).transpose(0, 1).contiguous() + 1, (ROWS, WIDTH)).bytes == 2 * 2 * N
    assert only(lambda x: x.expand(8, ROWS, WIDTH) * 2.0, (ROWS, WIDTH)).bytes == 2 * (N + 8 * N)


def test_what_is_changed_in_place_is_read_and_written():
    def change(x, y):
        x.add_(y)

    counts = only(change, (ROWS, WIDTH), (ROWS, WIDTH))
    assert counts.bytes == 2 * 3 * N
    assert counts.flops == N


def test_what_an_operator_of_somebody_changes_is_read_and_written():
    def change(x, y):
        torch.ops.kperf_test.change(x, y)

    with library._scoped_library("kperf_test", "FRAGMENT") as made:
        made.define("change(Tensor(a!) x, Tensor y) -> ()")
        made.impl("change", lambda x, y: None, "Meta")
        made.impl("change", lambda x, y: x.add_(y), "CompositeExplicitAutograd")
        (kernel,) = kernels(change, (ROWS, WIDTH), (ROWS, WIDTH))
    assert (kernel.name, kernel.counts.bytes) == ("kperf_test.change.default", 2 * 3 * N)


def test_of_a_concatenation_each_part_is_read_where_it_belongs():
    counts = only(turned, (64, 32, 128), (64, 1, 64), (64, 1, 64))
    assert counts.bytes == 2 * (2 * 64 * 32 * 128 + 2 * 64 * 64)
    part_of_a_larger = only(lambda x, c, s: turned(x[:, 8:40], c, s), (64, 48, 128), (64, 1, 64), (64, 1, 64))
    assert part_of_a_larger.bytes == counts.bytes


def test_what_is_read_beside_a_concatenation_is_read_whole():
    def beside(a, b, c):
        return torch.cat([a * 2, b * 3], dim=-1) + c

    counts = only(beside, (ROWS, 64), (ROWS, 192), (ROWS, 256))
    assert counts.bytes == 2 * 3 * ROWS * 256


def test_a_repeated_operand_of_a_product_is_read_once():
    (kernel,) = kernels(lambda x, w: torch.bmm(x.expand(8, 16, 32), w), (1, 16, 32), (8, 32, 64))
    assert kernel.counts.bytes == 2 * (16 * 32 + 8 * 32 * 64 + 8 * 16 * 64)


def test_rows_that_are_looked_up_are_at_most_as_many_as_are_asked_for():
    asked = torch.zeros(100, dtype=torch.int64)
    counts = only(lambda table, ids: table[ids] * 2.0, (5000, 64), asked, dtype=torch.float32)
    assert counts.bytes == 8 * 100 + 4 * 2 * 100 * 64


def test_indices_are_no_flops():
    assert only(lambda x: x + 1, torch.zeros(N, dtype=torch.int32)).flops == 0


def test_a_product_is_the_librarys_and_its_epilogue_inductors():
    product_, epilogue = kernels(lambda a, b: F.gelu(a @ b, approximate="tanh"), (ROWS, 256), (256, WIDTH))
    assert (product_.name, product_.kind, product_.operands) == ("mm", "extern", "1024x256, 256x4096")
    assert product_.counts.products == product_.counts.flops == 2 * ROWS * WIDTH * 256
    assert product_.counts.bytes == 2 * (ROWS * 256 + 256 * WIDTH + N)
    assert (epilogue.kind, epilogue.counts.bytes, epilogue.counts.products) == ("triton", 2 * 2 * N, 0)
    assert epilogue.name.startswith("triton_poi_fused_")
    assert epilogue.counts.functions == N  # tanh
    assert epilogue.counts.flops == 9 * N


def test_a_bias_is_read_by_the_product():
    (kernel,) = kernels(F.linear, (ROWS, 256), (WIDTH, 256), (WIDTH,))
    assert kernel.name == "addmm"
    assert kernel.counts.bytes == 2 * (ROWS * 256 + 256 * WIDTH + N + WIDTH)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_knows_its_mask_and_its_heads(causal):
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    (kernel,) = kernels(attend, (2, 8, 512, 64), (2, 2, 512, 64), (2, 2, 512, 64))
    assert kernel.counts.products == 4 * 2 * 8 * 512 * 512 * 64 // (2 if causal else 1)
    moved = 2 * 64 * 512 * 2 * (8 + 2 + 2 + 8) + 4 * 2 * 8 * 512  # q, k, v, o and the log-sum-exp
    assert moved <= kernel.counts.bytes <= moved + 64  # and a few numbers for dropout


def test_every_launch_is_marked_before_its_call():
    program = program_of(lambda x, w: torch.relu(torch.relu(x) @ w), [torch.empty(256, 256, device="meta")] * 2)
    body = program.code[program.code.index("def call(") :]
    marks = [body.index(f"_kperf_reached({number})") for number in range(3)]
    calls = [body.index(f"{program.kernels[0].name}.run("), body.index("extern_kernels.mm("),
             body.index(f"{program.kernels[2].name}.run(")]  # fmt: skip
    assert [kernel.kind for kernel in program.kernels] == ["triton", "extern", "triton"]
    assert sorted([*marks, *calls]) == [place for pair in zip(marks, calls, strict=True) for place in pair]
    assert set(program.sources) == {program.kernels[0].name, program.kernels[2].name}
    assert all("@triton.jit" in source for source in program.sources.values())


def test_the_program_that_runs_says_what_is_next():
    def cubed(a):
        return a @ a @ a

    x = torch.eye(8) * 2
    with torch.no_grad():
        torch.compile(cubed)(x)  # what Inductor keeps of it is not taken for the program
    torch._dynamo.reset()
    with torch.no_grad(), noted() as program:
        run = torch.compile(cubed)
        run(x)
    said = []
    with torch.no_grad(), watched(said.append):
        y = run(x)
    assert said == [0, 1]
    assert [(kernel.name, kernel.counts.products) for kernel in program.kernels] == [("mm", 2 * 8**3)] * 2
    assert torch.equal(y, torch.eye(8) * 8)
    run(x)
    assert said == [0, 1]


def test_several_graphs_are_refused():
    def broken(x):
        y = x @ x
        torch._dynamo.graph_break()
        return y @ x

    with pytest.raises(MeasurementError, match="breaks its graph"):
        kernels(broken, (8, 8))
    with pytest.raises(MeasurementError, match="2 graphs of it: only a module of one graph"), noted():
        torch.compile(broken)(torch.ones(8, 8))


FLOPS_OF = {"FADD": 1, "FMUL": 1, "FFMA": 2}
"""Instructions of Hopper's for float32."""


def flops_in_sass(kernel: str, source: str, folder: Path) -> float:
    """FLOPs of a block of a kernel of Inductor's without loops, over the elements that it is for.

    Compiled for sm_90a with the first configuration that Inductor would try.
    """
    path = folder / f"{kernel}.py"
    path.write_text(source.replace("triton_helpers.set_driver_to_gpu()", ""))
    spec = importlib.util.spec_from_file_location(kernel, path)
    module = importlib.util.module_from_spec(spec)
    with inductor_fake.fake_gpu(*H200):
        spec.loader.exec_module(module)
    tuned = getattr(module, kernel)
    config, signature = tuned.configs[0], dict(tuned.triton_meta["signature"])
    attributes = {
        (place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind != "constexpr"
    }
    text = sass(compile_kernel(tuned.fn, signature, config.kwargs, attributes=attributes, num_warps=config.num_warps))
    opcodes = Counter(re.findall(r"^\s*(?:/\*\w+\*/)?\s*(?:@!?U?P\d+ +)?([A-Z0-9]+)", text, flags=re.MULTILINE))
    sizes = [size for name, size in config.kwargs.items() if name.endswith("BLOCK")]
    elements = prod([*sizes, *map(int, re.findall(r"R0_BLOCK: tl.constexpr = (\d+)", source))])
    return sum(opcodes[name] * flops for name, flops in FLOPS_OF.items()) * 32 * config.num_warps / elements


def turned(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def derived_and_compiled(function, shapes, folder):
    program = program_of(function, [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes])
    (kernel,) = program.kernels
    ((name, source),) = program.sources.items()
    return kernel.counts.flops / prod(shapes[0]), flops_in_sass(name, source, folder)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x * y + x, [(ROWS, WIDTH)] * 2),
        (lambda x, y: (x - y) * (x * 2 - 1), [(ROWS, WIDTH)] * 2),
        (lambda x, row, column: x * column + row, [(ROWS, WIDTH), (WIDTH,), (ROWS, 1)]),
        (turned, [(1024, 32, 128), (1024, 1, 64), (1024, 1, 64)]),
    ],
)
def test_arithmetic_is_what_the_machine_code_does(function, shapes, tmp_path):
    derived, compiled = derived_and_compiled(function, shapes, tmp_path)
    assert compiled == pytest.approx(derived, rel=0.1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: F.silu(x) * x, [(ROWS, WIDTH)]),
        (lambda x: F.rms_norm(x, (512,)), [(ROWS, 512)]),  # so short that its loop is none
        (lambda x, row: (1 + row) * x, [(ROWS, WIDTH), (WIDTH,)]),  # 1 + row anew for each element
        (lambda x, y: (x * y, x * y + 1), [(ROWS, WIDTH)] * 2),  # a product, and one with the addition in it
    ],
)
def test_the_machine_does_no_less(function, shapes, tmp_path):
    derived, compiled = derived_and_compiled(function, shapes, tmp_path)
    assert derived < compiled < 10 * derived


OUTER, MIDDLE, INNER = sympy.symbols("i j k", integer=True, nonnegative=True)
NUMBERS = st.integers(0, 12)


@st.composite
def accesses(draw):
    ranges = tuple((variable, draw(st.integers(1, 5))) for variable in (OUTER, MIDDLE, INNER))
    index = sum((draw(NUMBERS) * variable for variable in (OUTER, MIDDLE, INNER)), sympy.Integer(draw(NUMBERS)))
    if draw(st.booleans()):
        index += draw(NUMBERS) * FloorDiv(OUTER + 5 * MIDDLE, draw(st.integers(1, 7)))
    if draw(st.booleans()):
        index += Identity(
            draw(NUMBERS) * ModularIndexing(MIDDLE + 5 * INNER, draw(st.integers(1, 3)), draw(st.integers(1, 6)))
        )
    condition = sympy.StrictLessThan(MIDDLE, draw(st.integers(0, 5))) if draw(st.booleans()) else sympy.true
    return Access(index, ranges, condition)


@given(st.lists(accesses(), min_size=1, max_size=3))
def test_elements_are_counted_as_if_one_by_one(found):
    touched = set()
    for access in found:
        variables = [variable for variable, _ in access.ranges]
        index = access.index.replace(Identity, lambda inner: inner)
        for point in product(*(range(size) for _, size in access.ranges)):
            values = dict(zip(variables, point, strict=True))
            if access.condition is sympy.true or access.condition.subs(values):
                touched.add(int(index.subs(values)))
    assert elements(found, 10**6) == len(touched)


def test_elements_of_large_tensors_are_counted_without_looking_at_each():
    rows, columns = (OUTER, 10**7), (MIDDLE, 4096)
    assert elements([Access(4096 * OUTER + MIDDLE, (rows, columns))], 10**12) == 4096 * 10**7
    halves = [Access(8192 * OUTER + MIDDLE + offset, (rows, columns)) for offset in (0, 2048)]
    assert elements(halves, 10**12) == 6144 * 10**7
    assert (
        elements([Access(FloorDiv(OUTER * MIDDLE, 3), (rows, columns))], 5000) == 5000
    )  # a bound: no more than there are
    assert elements([Access(OUTER, (rows,)), Access(OUTER + 1, (rows,))], 10**12) == 10**7 + 1
