"""The first element of each value, in several CTAs: what is known, and what is not."""

import numpy as np
import pytest

from kperf.ir.origins import Origins
from kperf.ir.ttgir import Module
from tests.ir.test_values import HEAD, TAIL

PROGRAMS = {"x": np.array([0, 1, 2, 3]), "y": np.array([0, 0, 1, 1]), "z": np.array([0, 0, 0, 0])}
START = """
%x = tt.get_program_id x : i32
%y = tt.get_program_id y : i32
%c2 = arith.constant 2 : i32
%c0 = arith.constant 0 : i32
"""


def origins(lines, begins=None):
    module = Module(HEAD + "\n".join(f"    {line}" for line in (START + lines).strip().splitlines()) + TAIL)
    lines_of = {op.results[0]: op for op in module.walk() if op.results}
    begins = {lines_of[name].line: numbers for name, numbers in (begins or {}).items()}
    return Origins(module, {"n": 9}, PROGRAMS, (4, 2, 1), begins), lines_of


def numbers(lines, name, begins=None):
    values, ops = origins(lines, begins)
    value = values.of(ops[name.partition("#")[0]].parent, name)
    return None if value is None else np.broadcast_to(value.numbers, 4).tolist()


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("%r = arith.divsi %x, %c2 : i32", [0, 0, 1, 1]),
        ("%r = arith.addi %n, %y : i32", [9, 9, 10, 10]),
        ("%r = arith.addi %m, %y : i32", None),  # a number that the launch does not say
        ("%r = tt.get_num_programs y : i32", [2] * 4),
        ("%r = tt.make_range {end = 40 : i32, start = 8 : i32} : tensor<32xi32, #b>", [8] * 4),
        ("%r = tt.splat %x : i32 -> tensor<32xi32, #b>", [0, 1, 2, 3]),
        ("%r = arith.constant dense<7> : tensor<32xi32, #b>", [7] * 4),
        ("%r = arith.constant {async_task_id = array<i32: 1>} 7 : i32", [7] * 4),
        ("%r = tt.load %q : !tt.ptr<i32>", None),
    ],
)
def test_a_value_has_a_number_a_cta(line, result):
    assert numbers(line, "%r") == result


def test_each_cta_takes_its_own_branch():
    lines = """
%w = arith.cmpi eq, %y, %c0 : i32
%r:2 = scf.if %w -> (i32, i32) {
  scf.yield %x, %c2 : i32, i32
} else {
  scf.yield %n, %m : i32, i32
}"""
    assert numbers(lines, "%r#0") == [0, 1, 9, 9]
    assert numbers(lines, "%r#1") is None


@pytest.mark.parametrize(
    ("condition", "inner", "taken"),
    [
        ("eq, %y, %c0", None, [True, True, False, False]),
        ("eq, %y, %c0", "sgt, %x, %c0", [False, True, False, False]),
        ("eq, %n, %c0", None, [False] * 4),
        ("eq, %m, %c0", None, None),
    ],
)
def test_an_operation_runs_where_the_branches_around_it_are_taken(condition, inner, taken):
    lines = f"""
%w = arith.cmpi {condition} : i32
scf.if %w {{
  %v = arith.cmpi {inner or condition} : i32
  scf.if %v {{
    %t = arith.addi %x, %y : i32
  }} else {{
    %e = arith.addi %x, %n : i32
  }}
}}"""
    values, ops = origins(lines)
    for name, wanted in (("%t", taken), ("%w", [True] * 4)):
        runs = values.runs(ops[name])
        assert (runs if runs is None else np.broadcast_to(runs, 4).tolist()) == wanted
    if inner is not None:
        assert values.runs(ops["%e"]).tolist() == [True, False, False, False]


def test_a_branch_of_some_iterations_is_not_known():
    lines = """
scf.for %i = %c0 to %n step %c2  : i32 {
  %w = arith.cmpi eq, %i, %c0 : i32
  scf.if %w {
    %t = arith.addi %x, %y : i32
  }
}"""
    values, ops = origins(lines)
    assert values.runs(ops["%t"]) is None
    assert values.runs(ops["%w"]).tolist() is True


def test_a_loop_stands_where_it_is_told_and_what_it_ends_with_is_not_known():
    lines = """
%r = scf.for %i = %x to %n step %c2 iter_args(%a = %c0) -> (i32)  : i32 {
  %t = arith.muli %i, %c2 : i32
  %s = arith.addi %a, %t : i32
  scf.yield %s : i32
}"""
    assert numbers(lines, "%s") == [0, 2, 4, 6]
    assert numbers(lines, "%s", begins={"%r": PROGRAMS["x"] + 2}) == [4, 6, 8, 10]
    assert numbers(lines, "%r") is None


def test_what_a_partition_is_given_stands_for_what_is_outside():
    lines = """
%k = arith.addi %x, %c2 : i32
%k_0 = arith.muli %x, %c2 : i32
ttg.warp_specialize(%k, %y)
default {
  ttg.warp_yield
}
partition0(%k_0: i32, %other: i32) num_warps(4) {
  %t = arith.addi %k_0, %other : i32
  ttg.warp_return
} : (i32, i32) -> ()"""
    assert numbers(lines, "%t") == [2, 3, 5, 6]
