"""Atomics that the GPU does not know, and the compiler makes of a loop around a compare-and-swap."""

from collections.abc import Iterator

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding

_EMULATED_BYTES = 2
"""Of bfloat16 and float16: all GPUs have the atomics of longer elements that Triton knows."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of `tl.atomic_add` and the like at whose line the machine code compares and swaps.

    The loop costs much where updates meet at an address. Where they do not, the fix costs more: float32 has twice the
    bytes (scattered_halves in results/h100-80gb-hbm3/diagnose.jsonl). Of addresses that are read from memory the data
    decides that.
    """
    for op in kernel.named("tt.atomic_rmw"):
        types = tensor_types(op.rest)
        if not types or types[-1].bytes != _EMULATED_BYTES:
            continue  # to read the machine code takes time
        swaps = [one for one in kernel.instructions_of(op) if ".CAS" in one.opcode]
        if not swaps:
            continue
        addresses = kernel.values.operand(op, 0)
        by_data = addresses is None or addresses.loaded
        yield kernel.finding(
            RULE.id,
            op,
            "low" if by_data else "medium",
            f"the GPU has no instruction for this atomic on {types[-1].element}: each element repeats a load, an "
            "addition and a compare-and-swap until no other thread interferes, and each addition rounds",
            "if many updates have the same address, add in a float32 tensor, and convert the sums in a second kernel; "
            "or let neighbouring threads update neighbouring addresses, which sm_90 adds two or more at a time",
            {"instructions": len(swaps), "elements": types[-1].size},
            confidence="medium",
            estimate=(1.1, 0.75, 10.0),
        )


RULE = Rule(
    "emulated-atomics", "Atomics emulated by a compare-and-swap loop", check, needs="machine code", targets=("sm_",)
)
