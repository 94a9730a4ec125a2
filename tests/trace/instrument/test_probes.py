"""The probes of a main loop whose branches have records of their own."""

import triton
import triton.language as tl

from kperf.ir.compile import named_ttgir
from kperf.trace.capture.passes import single_probes
from kperf.trace.instrument.events import read_rules, strip
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
