"""Kernels whose cycles are known before they run: what a clock inside of a kernel is held against.

Each iteration of a kernel's loop does the same work, `steps` long, by every warp of a CTA of four, one a quarter of an
SM:

fma    multiply-adds, each of which waits for the one before: 4 cycles each. The assembler knows this latency, and
       writes it into each instruction as the cycles to stall.
ex2    exponentials, eight chains a thread side by side: 8 cycles each, as a quarter of an SM computes 4 lanes of 32 in
       a cycle (CUDA C++ Programming Guide, "Arithmetic Instructions", compute capability 9.0).
wgmma  MMAs of 64x256x16 in bfloat16 that are waited for at the end of the iteration: 128 cycles each, at the 4096
       operations that an SM does in a cycle (NVIDIA H100 Tensor Core GPU Architecture, 2022).
spin   a loop that reads the clock until so many cycles are over, and says how many they were.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kperf.compat.triton.drivers import active_device
from kperf.errors import MeasurementError
from kperf.studies.kernels import ex2_chains, fma_chain, products, spin

MARK = "// known work"
"""A comment in the PTX of the work, by which a rule finds it in TTGIR."""
_LANES = 8
"""Chains of exponentials that a thread has in flight."""
_PRODUCTS_A_CALL = 4
"""wgmma over 16 each in a `warpgroup_mma` over 64."""


@dataclass(frozen=True)
class Known:
    """A kernel, and the cycles of an iteration of so many steps.

    `region`: whether the work is a region of its own on the timeline, or else the whole iteration is what is known.
    `launch`: run it once, with so many steps, CTAs and iterations; returns the cycles of an iteration as known.
    """

    kernel: str
    instruction: str
    region: bool
    steps: tuple[int, ...]
    launch: Callable[[int, int, int], float]


def fma_ptx(steps: int) -> str:
    """$0 = the `steps`th iterate of x -> x $2 + $3, from $1."""
    return _work(".reg .f32 t;", "mov.f32 t, $1;", *["fma.rn.f32 t, t, $2, $3;"] * steps, "mov.f32 $0, t;")


def ex2_ptx(steps: int) -> str:
    """$0 to $7 = the iterates of x -> 2^-x from $8 to $15, `steps` exponentials in all."""
    lanes = range(_LANES)
    return _work(
        ".reg .f32 " + ", ".join(f"t{lane}" for lane in lanes) + ";",
        *[f"mov.f32 t{lane}, ${_LANES + lane};" for lane in lanes],
        *[f"neg.f32 t{lane}, t{lane};\n ex2.approx.ftz.f32 t{lane}, t{lane};" for lane in lanes] * (steps // _LANES),
        *[f"mov.f32 ${lane}, t{lane};" for lane in lanes],
    )


def spin_ptx(steps: int) -> str:
    """$0 = $1 + the cycles until at least `steps` were over."""
    return _work(
        ".reg .u32 begin, now;\n .reg .pred early;",
        "mov.u32 begin, %clock;",
        "again:",
        "mov.u32 now, %clock;",
        "sub.u32 now, now, begin;",
        f"setp.lt.u32 early, now, {steps};",
        "@early bra again;",
        "add.u32 $0, $1, now;",
    )


def _work(*lines: str) -> str:
    return "\n ".join([f"{{ {MARK}", *lines, "}"])


def _launch_fma(steps: int, ctas: int, iterations: int) -> float:
    n = 128 * ctas
    x, a, b, out = (torch.full((n,), value, device=active_device()) for value in (0.0, 0.5, 1.0, math.nan))
    fma_chain[(ctas,)](x, a, b, out, iterations, WORK=fma_ptx(steps), num_warps=4)
    _check("fma", out, 2 - 2 * 0.5 ** min(steps * iterations, 24))
    return 4.0 * steps


def _launch_ex2(steps: int, ctas: int, iterations: int) -> float:
    x = torch.zeros(1024 * ctas, device=active_device())
    out = torch.full_like(x, math.nan)
    ex2_chains[(ctas,)](x, out, iterations, WORK=ex2_ptx(steps), num_warps=4)
    expected = 0.0
    for _ in range(min(iterations * steps // _LANES, 200)):
        expected = 2.0**-expected
    _check("ex2", out, expected)
    return 8.0 * steps


def _launch_spin(steps: int, ctas: int, iterations: int) -> float:
    x = torch.zeros(128 * ctas, dtype=torch.int32, device=active_device())
    out = torch.empty_like(x)
    spin[(ctas,)](x, out, iterations, WORK=spin_ptx(steps), num_warps=4)
    recorded = out.view(ctas, 4, 32)[:, 0]  # the first warp of each CTA writes the records
    cycles = float(recorded.double().mean()) / iterations
    if not steps <= cycles < steps + 1000:
        raise MeasurementError(f"spin waited {cycles:.0f} cycles and not {steps}")
    return cycles


def _launch_products(steps: int, ctas: int, iterations: int) -> float:
    a = torch.full((64, 64), 0.5, device=active_device(), dtype=torch.bfloat16)
    b = torch.full((64, 256), 0.5, device=active_device(), dtype=torch.bfloat16)
    out = torch.full((ctas * 64, 256), math.nan, device=active_device())
    products[(ctas,)](a, b, out, iterations, CALLS=steps // _PRODUCTS_A_CALL, num_warps=4)
    _check("wgmma", out, 0.25 * 16 * steps * iterations)
    return 128.0 * steps


def _check(name: str, out: torch.Tensor, expected: float) -> None:
    """Raise `MeasurementError` unless all that the kernel wrote is what the work gives."""
    worst = float((out - expected).abs().max())
    if not worst <= 1e-5 * abs(expected):  # a NaN is not
        raise MeasurementError(f"the kernel of known {name} is off by {worst:g} from {expected:g}")


KNOWN = (
    Known("fma_chain", "fma", True, (16, 64, 256, 1024), _launch_fma),
    Known("ex2_chains", "ex2", True, (8, 32, 128, 512), _launch_ex2),
    Known("products", "wgmma", False, (4, 8, 16, 32), _launch_products),
    Known("spin", "spin", True, (256, 1024, 4096, 16384), _launch_spin),
)
