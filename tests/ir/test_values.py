"""Index arithmetic of TTGIR, carried out: each operation on numbers of both signs, as MLIR defines it."""

import numpy as np
import pytest

from kperf.ir.next_iteration import NextIteration
from kperf.ir.ttgir import Module
from kperf.ir.values import Values

HEAD = """#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90", "ttg.threads-per-warp" = 32 : i32} {
  tt.func public @k(%p: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %q: !tt.ptr<i32>, %n: i32, %m: i32 {tt.divisibility = 16 : i32}) attributes {noinline = false} {
"""  # noqa: E501
TAIL = """
    tt.return
  }
}
"""


def computed(lines, name, known=None):
    """The value of an SSA name after these operations."""
    body = "\n".join(f"    {line.strip()}" for line in lines.strip().splitlines())
    module = Module(HEAD + body + TAIL)
    op = next(op for op in module.walk() if name.partition("#")[0] in op.results)
    return Values(module, known).of(op.parent, name)


def constants(*numbers):
    return "\n".join(f"%c{place} = arith.constant {number} : i32" for place, number in enumerate(numbers))


@pytest.mark.parametrize(
    ("name", "a", "b", "result"),
    [
        ("addi", 7, -9, -2), ("subi", 7, -9, 16), ("muli", -7, 9, -63), ("andi", 12, 10, 8), ("ori", 12, 10, 14),
        ("xori", 12, 10, 6), ("maxsi", -7, 3, 3), ("minsi", -7, 3, -7), ("maxui", 7, 3, 7), ("minui", 7, 3, 3),
        ("shli", 5, 3, 40), ("shrsi", -40, 3, -5), ("shrui", 41, 3, 5),
        ("divsi", 7, 2, 3), ("divsi", -7, 2, -3), ("divsi", 7, -2, -3), ("divsi", -7, -2, 3), ("divui", 7, 2, 3),
        ("remsi", 7, 3, 1), ("remsi", -7, 3, -1), ("remsi", 7, -3, 1), ("remui", 7, 3, 1),
        ("floordivsi", -7, 2, -4), ("floordivsi", 7, 2, 3), ("ceildivsi", 7, 2, 4), ("ceildivsi", -7, 2, -3),
        ("ceildivsi", 8, 2, 4), ("divsi", 9, 0, 9), ("remsi", 9, 0, 0),
    ],
)  # fmt: skip
def test_integers_are_computed_as_mlir_does(name, a, b, result):
    value = computed(f"{constants(a, b)}\n%r = arith.{name} %c0, %c1 : i32", "%r")
    assert value.numbers.tolist() == result


@pytest.mark.parametrize(
    ("predicate", "results"),
    [
        ("eq", [0, 1, 0]), ("ne", [1, 0, 1]), ("slt", [1, 0, 0]), ("sle", [1, 1, 0]), ("sgt", [0, 0, 1]),
        ("sge", [0, 1, 1]), ("ult", [1, 0, 0]), ("ule", [1, 1, 0]), ("ugt", [0, 0, 1]), ("uge", [0, 1, 1]),
    ],
)  # fmt: skip
def test_comparisons_below_at_and_above(predicate, results):
    found = []
    for number in (2, 3, 4):
        lines = f"{constants(number, 3)}\n%r = arith.cmpi {predicate}, %c0, %c1 : i32"
        found.append(computed(lines, "%r").numbers.tolist())
    assert found == results


@pytest.mark.parametrize(("number", "result"), [(-7, 7), (7, 7), (0, 0)])
def test_a_magnitude_has_no_sign(number, result):
    assert computed(f"{constants(number)}\n%r = math.absi %c0 : i32", "%r").numbers.tolist() == result


TENSOR = "tensor<8xi32, #b>"
RANGE = f"%i = tt.make_range {{end = 12 : i32, start = 4 : i32}} : {TENSOR}"


def test_tensors_of_addresses_are_bytes_from_their_pointer():
    lines = f"""
    {RANGE}
    %s = tt.splat %p : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>, #b>
    %a = tt.addptr %s, %i : tensor<8x!tt.ptr<f32>, #b>, {TENSOR}
    %t = tt.splat %q : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>, #b>
    """
    address = computed(lines, "%a")
    assert address.numbers.tolist() == [(1 << 40) + 4 * i for i in range(4, 12)]
    assert (address.arguments, address.loaded, address.program) == ({"p"}, False, False)
    other = computed(lines, "%t").numbers
    assert other.tolist() == [(2 << 40) + 4] * 8  # no multiple of 16 that the compiler knows


def test_shapes_are_followed():
    lines = f"""
    {RANGE}
    %e = tt.expand_dims %i {{axis = 1 : i32}} : {TENSOR} -> tensor<8x1xi32, #b>
    %w = tt.broadcast %e : tensor<8x1xi32, #b> -> tensor<8x2xi32, #b>
    %t = tt.trans %w {{order = array<i32: 1, 0>}} : tensor<8x2xi32, #b> -> tensor<2x8xi32, #b>
    %r = tt.reshape %t : tensor<2x8xi32, #b> -> tensor<4x4xi32, #b>
    %k = arith.constant dense<3> : {TENSOR}
    %z = arith.constant dense<0> : {TENSOR}
    %h = arith.constant dense<7> : {TENSOR}
    %l = arith.cmpi slt, %i, %h : {TENSOR}
    %x = arith.select %l, %k, %z : tensor<8xi1, #b>, {TENSOR}
    """
    assert computed(lines, "%w").numbers.tolist() == [[i, i] for i in range(4, 12)]
    assert computed(lines, "%t").numbers.tolist() == [list(range(4, 12))] * 2
    assert computed(lines, "%r").numbers.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]] * 2
    assert computed(lines, "%x").numbers.tolist() == [3, 3, 3, 0, 0, 0, 0, 0]


def test_what_a_value_depends_on_is_followed():
    lines = f"""
    {RANGE}
    %x = tt.get_program_id x : i32
    %y = tt.get_program_id y : i32
    %z = tt.get_program_id z : i32
    %g = tt.get_num_programs x : i32
    %a = arith.addi %x, %n : i32
    %s = tt.splat %q : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>, #b>
    %d = tt.addptr %s, %i : tensor<8x!tt.ptr<i32>, #b>, {TENSOR}
    %l = tt.load %d : tensor<8x!tt.ptr<i32>, #b>
    %u = arith.addi %l, %i : {TENSOR}
    %f = tt.splat %p : !tt.ptr<f32> -> tensor<8x!tt.ptr<f32>, #b>
    %v = tt.load %f : tensor<8x!tt.ptr<f32>, #b>
    """
    assert [int(computed(lines, f"%{name}").numbers) for name in "xyzg"] == [5, 3, 2, 1024]
    assert [computed(lines, f"%{name}").program for name in "xga"] == [True, False, True]
    assert (computed(lines, "%a").arguments, computed(lines, "%i").arguments) == ({"n"}, set())
    loaded = computed(lines, "%u")
    assert (loaded.loaded, loaded.arguments, computed(lines, "%d").loaded) == (True, {"q"}, False)
    assert all(1 << 12 <= number < (1 << 24) + 12 for number in loaded.numbers)
    assert computed(lines, "%v") is None  # floats are no indices


@pytest.mark.parametrize(
    ("factor", "by", "scattered"),
    [
        ("%both", "%step", False), ("%step", "%both", False),  # (begin + i) * 3
        ("%i", "%begins", True), ("%both", "%i", True), ("%both", "%begins", True),
    ],
)  # fmt: skip
def test_only_where_a_tile_begins_may_be_data(factor, by, scattered):
    value = computed(
        f"""%i = tt.make_range {{end = 4 : i32, start = 0 : i32}} : tensor<4xi32, #b>
            %begin = tt.load %q : !tt.ptr<i32>
            %begins = tt.splat %begin : i32 -> tensor<4xi32, #b>
            %both = arith.addi %begins, %i : tensor<4xi32, #b>
            %step = arith.constant dense<3> : tensor<4xi32, #b>
            %x = arith.muli {factor}, {by} : tensor<4xi32, #b>""",
        "%x",
    )
    assert (value.loaded, value.scattered) == (True, scattered)


@pytest.mark.parametrize(
    ("tile", "loaded"), [("%l", True), ("%i", False)], ids=["what was read", "what the CTA itself counts"]
)
def test_what_a_read_tile_is_reduced_to_is_one_number_as_if_read(tile, loaded):
    value = computed(
        f"""%i = tt.make_range {{end = 8 : i32, start = 0 : i32}} : {TENSOR}
            %q8 = tt.splat %q : !tt.ptr<i32> -> tensor<8x!tt.ptr<i32>, #b>
            %l = tt.load %q8 : tensor<8x!tt.ptr<i32>, #b>
            %m = "tt.reduce"({tile}) <{{axis = 0 : i32}}> ({{
            ^bb0(%a: i32, %b: i32):
              %c = arith.maxsi %a, %b : i32
              tt.reduce.return %c : i32
            }}) : ({TENSOR}) -> i32""",
        "%m",
    )
    assert (value is not None) == loaded
    if value is not None:
        assert (value.numbers.shape, value.loaded, value.scattered, value.arguments) == ((), True, False, {"q"})


def test_arguments_are_large_and_multiples_of_16_only_where_the_compiler_knows_it():
    lines = "%a = arith.addi %n, %n : i32\n%b = arith.addi %m, %m : i32"
    n, m = (int(computed(lines, name).numbers) // 2 for name in ("%a", "%b"))
    assert (n % 16, m % 16) == (5, 0)
    assert min(n, m) > 1 << 13
    assert n != m
    assert int(computed(lines, "%a", {"n": 21}).numbers) == 42
    assert int(computed(lines, "%a", {"n": 0}).numbers) == 0


LOOP = f"""
    %c0 = arith.constant 2 : i32
    %c1 = arith.constant 9 : i32
    %c2 = arith.constant 1 : i32
    {RANGE}
    %o:2 = scf.for %j = %c0 to %c1 step %c2 iter_args(%k = %c1, %v = %i) -> (i32, {TENSOR})  : i32 {{
      %s = arith.addi %j, %k : i32
      %w = arith.addi %v, %i : {TENSOR}
      scf.yield %s, %w : i32, {TENSOR}
    }}
    %e = arith.addi %o#0, %c0 : i32
    %f = arith.addi %o#1, %i : {TENSOR}
"""


def test_a_loop_stands_at_its_first_iteration_and_ends_with_what_it_began():
    inside = computed(LOOP, "%s")
    assert int(inside.numbers) == 2 + 9
    assert len(inside.iterations) == 1
    assert computed(LOOP, "%w").numbers.tolist() == [2 * i for i in range(4, 12)]
    assert (int(computed(LOOP, "%e").numbers), computed(LOOP, "%e").iterations) == (11, set())
    assert computed(LOOP, "%f").numbers.tolist() == [2 * i for i in range(4, 12)]


def test_of_a_branch_the_first_way_is_taken():
    lines = f"""
    {constants(4, 9)}
    %t = arith.cmpi slt, %c0, %c1 : i32
    %r:2 = scf.if %t -> (i32, i32) {{
      %x = arith.addi %c0, %c0 : i32
      scf.yield %x, %c1 : i32, i32
    }} else {{
      scf.yield %c1, %c0 : i32, i32
    }}
    %a = arith.addi %r#0, %c0 : i32
    %b = arith.addi %r#1, %c0 : i32
    """
    assert [int(computed(lines, name).numbers) for name in ("%a", "%b")] == [12, 13]


def test_what_is_too_large_or_unknown_is_unknown():
    lines = """
    %i = tt.make_range {end = 2097152 : i32, start = 0 : i32} : tensor<2097152xi32, #b>
    %t = arith.addi %i, %i : tensor<2097152xi32, #b>
    %d = arith.constant dense<0> : tensor<2097152xi32, #b>
    %f = arith.constant 1.500000e+00 : f32
    %g = arith.fptosi %f : f32 to i32
    """
    assert [computed(lines, name) for name in ("%t", "%d", "%f", "%g")] == [None] * 4
    half = computed(lines.replace("2097152", "1048576"), "%t")
    assert (half.numbers.size, int(half.numbers[-1])) == (1 << 20, 2 * ((1 << 20) - 1))
    assert np.all(computed("%t = arith.constant true\n%u = arith.extui %t : i1 to i32", "%u").numbers == 1)


def test_a_long_chain_is_computed_and_what_is_read_is_read_once():
    """A sort is a thousand operations long; each of its numbers is compared with itself."""
    lines = ["%v0 = tt.load %q : !tt.ptr<i32>"]
    lines += [f"%v{place + 1} = arith.addi %v{place}, %v{place} : i32" for place in range(20)]
    lines += [f"%v{place + 1} = arith.maxsi %v{place}, %v{place} : i32" for place in range(20, 3000)]
    lines += ["%c = arith.constant 1048576 : i32", "%w = arith.muli %v0, %c : i32", "%r = arith.subi %v3000, %w : i32"]
    value = computed("\n".join(lines), "%r")
    assert value.numbers.tolist() == 0
    assert value.loaded


def sources(lines, operation, index=0):
    """The lines of the operations from which an operand of the first operation of a name is computed."""
    body = [line.strip() for line in lines.strip().splitlines()]
    module = Module(HEAD + "\n".join(f"    {line}" for line in body) + TAIL)
    op = next(op for op in module.walk() if op.name == operation)
    return sorted(made.results[0] for made in Values(module).sources(op, index))


BRANCHING = f"""
    {constants(4, 9)}
    %t = arith.cmpi slt, %c0, %n : i32
    %unused = arith.addi %c0, %c1 : i32
    %r = scf.if %t -> (i32) {{
      %x = arith.addi %c0, %c0 : i32
      scf.yield %x : i32
    }} else {{
      %y = arith.muli %c0, %c1 : i32
      scf.yield %y : i32
    }}
    %o:2 = scf.for %j = %c0 to %n step %c1 iter_args(%k = %c0, %v = %r) -> (i32, i32)  : i32 {{
      %s = arith.subi %v, %j : i32
      %w = arith.divsi %s, %c1 : i32
      %z = arith.remsi %k, %c1 : i32
      scf.yield %z, %w : i32, i32
    }}
"""


def test_sources_of_an_operand_are_followed_through_branches_and_iterations():
    assert sources(BRANCHING, "arith.muli") == ["%c0"]
    assert sources(BRANCHING, "arith.muli", 1) == ["%c1"]
    assert sources(BRANCHING, "arith.muli", 2) == []
    # What is carried stands for all that an iteration computes it from, and a branch for both of its ways.
    assert sources(BRANCHING, "arith.subi") == ["%c0", "%c1", "%o", "%r", "%s", "%t", "%w", "%x", "%y"]
    assert sources(BRANCHING, "arith.subi", 1) == ["%c0", "%o"]
    assert sources(BRANCHING, "arith.remsi") == ["%c0", "%c1", "%o", "%z"]
    argument = f"{constants(4, 9)}\n%a = arith.addi %n, %c1 : i32\n%r = arith.subi %a, %c0 : i32"
    assert sources(argument, "arith.subi") == ["%a", "%c1"]


def test_a_name_that_is_met_twice_does_not_end_the_search():
    """`%a` comes to hand again before `%c0` has: what stands behind it is still to be followed."""
    lines = f"""
    {constants(4, 9)}
    %b = arith.muli %c0, %c0 : i32
    %a = arith.muli %c1, %c1 : i32
    %d = arith.addi %b, %a : i32
    %e = arith.addi %d, %a : i32
    %r = arith.subi %e, %c1 : i32
    """
    assert sources(lines, "arith.subi") == ["%a", "%b", "%c0", "%c1", "%d", "%e"]


MOVED = """
%c2 = arith.constant 2 : i32
%c5 = arith.constant 5 : i32
%x = tt.load %q : !tt.ptr<i32>
%r = scf.for %i = %c2 to %n step %c5 iter_args(%at = %c5, %twice = %x) -> (i32, i32)  : i32 {
  %end = arith.muli %i, %c2 : i32
  %y = tt.load %q : !tt.ptr<i32>
  %sum = arith.addi %at, %end : i32
  %more = arith.addi %twice, %x : i32
  %where = arith.addi %y, %i : i32
  %last = arith.subi %more, %twice : i32
  scf.yield %sum, %more : i32, i32
}
"""


def test_the_next_iteration_has_what_the_first_one_handed_on():
    body = "\n".join(f"    {line}" for line in MOVED.strip().splitlines())
    module = Module(HEAD + body + TAIL)
    (loop,) = (op for op in module.walk() if op.name == "scf.for")
    first = Values(module)
    later = NextIteration(first, loop)
    found = {
        name: [int(values.of(loop.regions[0], f"%{name}").numbers) for values in (first, later)]
        for name in ("i", "at", "end", "sum", "twice", "where")
    }
    assert (found["i"], found["at"], found["end"], found["sum"]) == ([2, 7], [5, 9], [4, 14], [9, 23])
    assert found["twice"][1] == 2 * found["twice"][0] > 0  # what is loaded before the loop is the same in both
    assert found["where"][1] - found["where"][0] == 5
