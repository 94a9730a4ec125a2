"""The probes of a main loop whose branches have records of their own."""

import triton
import triton.language as tl

from kperf.ir.compile import named_ttgir
from kperf.trace.capture.passes import single_probes
from kperf.trace.instrument.events import LIFETIME, read_rules, strip
from kperf.trace.instrument.probes import between, find_probes, probed_kernel
from tests.trace.kernels import Case, compile_case


@triton.jit
def either(a, b, table, c, n, B: tl.constexpr):
    i = tl.arange(0, B)
    at = i[:, None] * B + i[None, :]
    acc = tl.zeros((B, B), tl.float32)
    for j in tl.range(0, n, num_stages=1):
        x = tl.load(a + at + j)
        if tl.load(table + j) > 0:  # noqa: SIM108
            y = tl.load(b + at + j)
        else:
            y = tl.load(c + at - j)
        acc = tl.dot(x, y, acc)
        acc += tl.sum(tl.load(table + j + i)).to(tl.float32)
    tl.store(c + at, acc.to(tl.bfloat16))


def test_between_two_probes_around_branches_lie_the_branches():
    kernel = compile_case(Case(either, ("*bf16", "*bf16", "*i32", "*bf16", "i32"), {"B": 16}, {}))
    text = named_ttgir(kernel.asm["ttgir"])
    probes = find_probes(text, read_rules())
    (only,) = probes.classes
    assert [name for name in only.names if "load" in name] == [
        f"{end} of load {name}" for name in ("a", "table", "table") for end in ("start", "end")
    ]
    (body,) = only.bodies
    assert between(probes.program, body.probes[3], body.probes[4]).name == "branches"
    assert 4 in only.measured  # something happens there: it is no other's time
    for places in single_probes(probes):
        assert strip(probed_kernel(probes, places).text) == text


def test_each_event_of_a_pass_is_one_of_all_probes():
    kernel = compile_case(Case(either, ("*bf16", "*bf16", "*i32", "*bf16", "i32"), {"B": 16}, {}))
    probes = find_probes(named_ttgir(kernel.asm["ttgir"]), read_rules())
    names = {
        probe: name
        for of in probes.classes
        for body in of.bodies
        for probe, name in zip(body.probes, of.names, strict=True)
    }
    for places in single_probes(probes):
        made = probed_kernel(probes, places)
        pairs = [scope for scope in made.program.scopes if not scope.name.startswith(LIFETIME)]
        assert len(made.probes) == 2 * len(pairs) > 0
        for scope in pairs:
            first, last = made.probes[scope.number, True], made.probes[scope.number, False]
            assert scope.name == f"{names[first]} to {names[last]}"


@triton.jit
def two_ways(a, b, c, n, m, B: tl.constexpr):
    """One loop where m is 0; else a loop in a loop, which stands deeper."""
    i = tl.arange(0, B)
    at = i[:, None] * B + i[None, :]
    acc = tl.zeros((B, B), tl.float32)
    if m == 0:
        for j in tl.range(0, n, num_stages=1):
            acc = tl.dot(tl.load(a + at + j), tl.load(b + at + j), acc)
    else:
        for k in tl.range(0, m, num_stages=1):
            acc *= 0.5
            for j in tl.range(0, n, num_stages=1):
                acc = tl.dot(tl.load(a + at + j + k), tl.load(b + at + j), acc)
    tl.store(c + at, acc.to(tl.bfloat16))


def test_of_loops_at_different_depths_each_that_may_be_the_main_loop_is_recorded():
    kernel = compile_case(Case(two_ways, ("*bf16", "*bf16", "*bf16", "i32", "i32"), {"B": 16}, {}))
    text = named_ttgir(kernel.asm["ttgir"])
    probes = find_probes(text, read_rules())
    loops = [body.loop for of in probes.classes for body in of.bodies]
    depths = [len(next(s.loops for s in probes.program.scopes if s.loop == loop)) for loop in loops]
    assert depths == [1, 2]  # and not the loop around the second
    recorded = {scope.loop for scope in probed_kernel(probes, single_probes(probes)[0]).program.scopes if scope.loop}
    assert len(recorded) == 2
