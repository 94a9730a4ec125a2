"""Which thread holds which element, and the numbers of index arithmetic, against what was counted by hand."""

import numpy as np
import pytest

from kperf.ir.layouts import Layouts, TensorType, element_bytes, tensor_types
from kperf.ir.ttgir import Module
from kperf.ir.values import Values, arguments_of

LAYOUTS = Layouts(
    [
        "#b = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [2, 1], order = [1, 0]}>",
        "#mma3 = #ttg.nvidia_mma<{versionMajor = 3, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>",
        "#l = #ttg.linear<{register = [[0, 1], [8, 0]], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], "
        "warp = [[16, 0]], block = []}>",
        "#rows = #ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [32, 1], warpsPerCTA = [4, 1], "
        "order = [0, 1]}>",
    ]
)


def elements(layout, *shape):
    return LAYOUTS.elements(TensorType(shape, "f32", layout))


@pytest.mark.parametrize(
    ("layout", "shape", "warp", "register", "lane", "place"),
    [
        ("#b", (32, 16), 0, 0, 0, (0, 0)),
        ("#b", (32, 16), 0, 3, 0, (0, 3)),
        ("#b", (32, 16), 0, 0, 3, (0, 12)),
        ("#b", (32, 16), 0, 0, 4, (1, 0)),
        ("#b", (32, 16), 1, 0, 31, (15, 12)),
        ("#b", (32, 16), 1, 5, 31, (31, 13)),  # the tile once more, below
        ("#b", (8, 16), 1, 0, 4, (1, 0)),  # a second warp repeats the first
        ("#ttg.slice<{dim = 1, parent = #b}>", (32,), 1, 4, 9, (26,)),
        ("#mma3", (64, 64), 2, 1, 5, (33, 3)),
        ("#mma3", (64, 64), 0, 2, 0, (8, 0)),
        ("#mma3", (64, 64), 3, 4, 31, (55, 14)),
        ("#mma3", (128, 64), 0, 32, 0, (64, 0)),  # the tile once more, below
        ("#mma3", (64, 128), 0, 32, 0, (0, 64)),  # and beside
        ("#l", (32, 8), 1, 3, 5, (25, 3)),
    ],
)
def test_an_element_is_where_the_layout_puts_it(layout, shape, warp, register, lane, place):
    assert tuple(elements(layout, *shape)[warp, register, lane]) == place


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("#b", (32, 16)),
        ("#mma3", (64, 64)),
        ("#mma3", (128, 128)),
        ("#l", (32, 8)),
        ("#rows", (128, 1)),
        ("#ttg.slice<{dim = 1, parent = #rows}>", (128,)),
    ],
)
def test_each_element_is_held_once(layout, shape):
    places = elements(layout, *shape).reshape(-1, len(shape))
    assert len(places) == np.prod(shape)
    assert len({tuple(place) for place in places.tolist()}) == np.prod(shape)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("width", "bits"), [(128, 3), (64, 2), (32, 1), (0, 0)])
def test_bytes_of_a_tile_of_tma_lie_as_cutlass_swizzles_them(width, bits, transposed):
    """Rows as long as the swizzle, one below the other; Swizzle<bits, 4, 3> of the address."""
    words = f"swizzlingByteWidth = {width}, transposed = {str(transposed).lower()}, elementBitWidth = 16"
    tile = TensorType((64, 128), "bf16", f"#ttg.nvmma_shared<{{{words}}}>")
    places = np.stack(np.indices(tile.shape), -1).reshape(1, 1, -1, 2)
    row, column = places[..., int(transposed)], 2 * places[..., 1 - int(transposed)]
    rows, row_bytes = (128, 128) if transposed else (64, 256)
    across = width or row_bytes
    address = column // across * rows * across + row * across + column % across
    wanted = address ^ ((address >> 7 & (1 << bits) - 1) << 4)
    assert np.array_equal(LAYOUTS.offsets(tile, places), wanted)


def test_what_is_not_known_is_said():
    assert elements("#ttg.new_layout<{}>", 8) is None
    assert element_bytes("!tt.ptr<bf16>") == 2
    assert element_bytes("f8E4M3FN") == 1
    types = tensor_types("!tt.tensordesc<tensor<64x64xf16>>, tensor<2x!tt.ptr<f32>, #b>, !ttg.memdesc<3x8xf16, #s, #m>")
    assert [(one.shape, one.element, one.layout) for one in types] == [
        ((2,), "!tt.ptr<f32>", "#b"),
        ((3, 8), "f16", "#s"),
    ]


@pytest.mark.parametrize(
    ("text", "shape", "element", "layout", "allocated"),
    [
        ("tensor<8xi32>", (8,), "i32", "", ()),
        ("tensor<8x!f<(i8) -> f32>, #b> -> tensor", (8,), "!f<(i8) -> f32>", "#b", ()),
        ("tensor<8x!f<(i8)-> f32>, #b>", (8,), "!f<(i8)-> f32>", "#b", ()),
        ("!ttg.memdesc<16x8xbf16, #s, #m, mutable, 4x16x8>", (16, 8), "bf16", "#s", (4, 16, 8)),
        ("!ttg.memdesc<8xbf16, #s, #m, mutable>", (8,), "bf16", "#s", ()),
        ("tensor<8xi32, #b", (8,), "i32", "#", ()),  # cut short
    ],
)
def test_a_type_is_read_up_to_its_own_bracket(text, shape, element, layout, allocated):
    assert tensor_types(text) == (TensorType(shape, element, layout, allocated),)


TEXT = """module attributes {"ttg.num-warps" = 4 : i32} {
  tt.func public @f(%x: !tt.ptr<f16> {tt.divisibility = 16 : i32}, %n: i32, %y: !tt.ptr<i32> {tt.divisibility = 16 : i32}) attributes {noinline = false} {
    %c4 = arith.constant 4 : i32
    %c0 = arith.constant 0 : i32
    %pid = tt.get_program_id x : i32
    %i = tt.make_range {end = 8 : i32, start = 0 : i32} : tensor<8xi32, #b>
    %four = tt.splat %c4 : i32 -> tensor<8xi32, #b>
    %q = arith.divsi %i, %four : tensor<8xi32, #b>
    %r = arith.remsi %i, %four : tensor<8xi32, #b>
    %p = tt.splat %x : !tt.ptr<f16> -> tensor<8x!tt.ptr<f16>, #b>
    %a = tt.addptr %p, %q : tensor<8x!tt.ptr<f16>, #b>, tensor<8xi32, #b>
    %o = scf.for %k = %c0 to %n step %c4 iter_args(%c = %a) -> (tensor<8x!tt.ptr<f16>, #b>)  : i32 {
      %v = tt.load %c : tensor<8x!tt.ptr<f16>, #b>
      %next = tt.addptr %c, %four : tensor<8x!tt.ptr<f16>, #b>, tensor<8xi32, #b>
      scf.yield %next : tensor<8x!tt.ptr<f16>, #b>
    }
    %py = tt.splat %y : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>, #b>
    %z = tt.addptr %py, %r : tensor<8x!tt.ptr<i32>, #b>, tensor<8xi32, #b>
    %j = tt.load %z : tensor<8x!tt.ptr<i32>, #b>
    %g = tt.addptr %p, %j : tensor<8x!tt.ptr<f16>, #b>, tensor<8xi32, #b>
    %w = tt.load %g : tensor<8x!tt.ptr<f16>, #b>
    tt.return
  }
}
"""  # noqa: E501


def test_index_arithmetic_is_carried_out():
    module = Module(TEXT)
    assert [(one.name, one.type, one.divisible) for one in arguments_of(module)] == [
        ("%x", "!tt.ptr<f16>", True),
        ("%n", "i32", False),
        ("%y", "!tt.ptr<i32>", True),
    ]
    values = Values(module)
    looping, indices, gathered = (values.operand(op, 0) for op in module.walk() if op.name == "tt.load")
    assert (looping.numbers - looping.numbers[0]).tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert looping.numbers[0] % 16 == 0
    (loop,) = (op for op in module.walk() if op.name == "scf.for")
    assert looping.iterations == {loop.line}
    assert looping.arguments == {"x"}
    assert (indices.numbers - indices.numbers[0]).tolist() == [0, 4, 8, 12] * 2
    assert not indices.loaded
    assert gathered.loaded
    assert gathered.arguments == {"x", "y"}


def test_a_number_that_a_launch_says_is_taken():
    module = Module(TEXT.replace("tt.splat %c4", "tt.splat %n"))
    load = next(op for op in module.walk() if op.name == "tt.load")
    numbers = Values(module, {"n": 2}).operand(load, 0).numbers
    assert ((numbers - numbers[0]) // 2).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert Values(module).operand(load, 0).numbers.tolist() == [1 << 40] * 8  # n is large
