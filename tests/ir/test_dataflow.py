"""Names in modules as large as an unrolled kernel's."""

import time

import pytest

from kperf.ir.dataflow import Dataflow
from kperf.ir.ttgir import Module
from kperf.trace.instrument.events import instrument, read_rules
from kperf.trace.instrument.program import read_program

HEAD = """#b = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
module attributes {"ttg.num-ctas" = 1 : i32, "ttg.num-warps" = 4 : i32, ttg.target = "cuda:90"} {
  tt.func public @k(%x_ptr: !tt.ptr<f32>, %y_ptr: !tt.ptr<f32>) attributes {noinline = false} {
    %r = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32, #b>
    %y = tt.splat %y_ptr : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>, #b>
    %a0 = tt.splat %x_ptr : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>, #b>
    %s = tt.load %y : tensor<128x!tt.ptr<f32>, #b>
"""
TAIL = """    tt.store %y, %s : tensor<128x!tt.ptr<f32>, #b>
    tt.return
  }
}
"""


def unrolled(steps: int, loads: int = 100) -> str:
    """A kernel whose addresses come one from another, `steps` times."""
    lines = []
    for n in range(1, steps + 1):
        lines.append(f"    %a{n} = tt.addptr %a{n - 1}, %r : tensor<128x!tt.ptr<f32>, #b>, tensor<128xi32, #b>")
        lines += [f"    %m{n}_{k} = arith.muli %r, %r : tensor<128xi32, #b>" for k in range(4)]
        if n % (steps // loads) == 0:
            lines.append(f"    %l{n} = tt.load %a{n} : tensor<128x!tt.ptr<f32>, #b>")
            lines.append(f"    %u{n} = arith.addf %s, %l{n} : tensor<128xf32, #b>")
    return HEAD + "\n".join(lines) + "\n" + TAIL


def test_an_address_is_followed_however_many_steps_lead_to_it():
    module = Module(unrolled(4000))
    dataflow = Dataflow(module)
    loads = [op for op in module.walk() if op.name == "tt.load"]
    assert [dataflow.names.source(op) for op in loads] == ["y", *["x"] * 100]


@pytest.mark.parametrize("steps", [500])
def test_a_kernel_of_eight_times_the_operations_takes_no_more_than_so_many_times_as_long(steps):
    """By processor time, the least of two: it was 30 times where addresses were followed anew for each operation."""

    def seconds(steps):
        text, rules = unrolled(steps), read_rules()
        taken = []
        for _ in range(2):
            begin = time.process_time()
            read_program(instrument(text, rules=rules), rules)
            taken.append(time.process_time() - begin)
        return min(taken)

    assert seconds(8 * steps) < 14 * seconds(steps)
