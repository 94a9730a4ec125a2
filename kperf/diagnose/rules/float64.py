"""Arithmetic in 64 bits on data of 32 or fewer."""

from collections.abc import Iterator

from kperf.console import agreeing
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, STORES, TMA_LOADS, TMA_STORES
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding

_SMALL = 128
_PART = 16
"""Of the elements that the kernel loads at once: what is done with fewer, as a scale of each row, costs little.
A division in float64 takes some sixteen instructions, one for each element that was loaded."""
_RATE = 2
"""How many times as fast float32 is on an H100."""
_INSTRUCTIONS = {"arith.divf": 16, "math.exp": 16, "math.exp2": 16, "math.log": 27, "math.log2": 27}
"""Of an operation in float64: kernels that gained 1.1, 2.1 and 3.8 x (H100) have estimates of 1.4, 2.5 and 3.7."""
_LIBRARY = 20
"""Of another function."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of the first operation on float64 tensors, if the kernel loads no tensor of float64, and stores none."""
    if _is_asked_for(kernel):
        return
    wide = [
        op
        for op in kernel.operations
        if op.name.startswith(("arith.", "math.", "tt.dot", "tt.extern"))
        and op.name != "arith.constant"
        and any(tensor.element == "f64" and tensor.size >= _SMALL for tensor in tensor_types(op.rest))
    ]
    loaded = [tensor.size for op in kernel.named(*LOADS) for tensor in tensor_types(op.rest)]
    if wide and loaded:
        widest = max(tensor.size for op in wide for tensor in tensor_types(op.rest) if tensor.element == "f64")
        few = widest * _PART <= max(loaded)
        estimate = (1.05, 1.0, 1.3) if few else _gain(kernel)
        numbers = " and ".join(
            f"the number at {name}" if one.is_pointer else name
            for name, one in kernel.parameters.items()
            if "f64" in one.type
        )
        yield kernel.finding(
            RULE.id,
            wide[0],
            "low" if few else "high" if estimate[0] >= SEVERE_GAIN else "medium",
            f"{len(wide)} {agreeing(len(wide), 'operation computes', 'operations compute')} in float64, although no "
            f"{'tensor' if numbers else 'argument'} is float64: this takes twice the registers of float32, at 1/2 "
            "(H100) to 1/64 (others) of float32's rate",
            f"convert {numbers} to tl.float32 before it meets a tensor"
            if numbers
            else "convert to tl.float32 instead, and write constants as plain Python floats",
            {"operations": len(wide), "elements": widest},
            estimate=estimate,
        )


def _is_asked_for(kernel: Kernel) -> bool:
    """Whether the kernel loads float64 tensors, or stores float64."""
    loads = (tensor for op in kernel.named(*LOADS, *TMA_LOADS) for tensor in tensor_types(op.rest))
    stored = any("f64" in op.rest for op in kernel.named(*STORES, *ATOMICS, *TMA_STORES))
    return stored or any("f64" in tensor.element for tensor in loads)


def _gain(kernel: Kernel) -> tuple[float, float, float]:
    """Cycles of an SM for a CTA's arithmetic as it is over those in float32; neither takes less than memory does."""
    wide = narrow = 0.0
    for op in kernel.operations:
        types = tensor_types(op.rest)
        if not types or op.line in kernel.index_lines or not op.name.startswith(("arith.", "math.", "tt.extern")):
            continue
        elements = max(tensor.size for tensor in types) * kernel.times(op)
        function = not op.name.startswith("arith.")
        in_float32 = elements / (kernel.arch.exponentials_per_cycle if function else kernel.arch.fp32_per_cycle)
        instructions = _INSTRUCTIONS.get(op.name, _LIBRARY if function else 1) * elements
        is_wide = any(tensor.element == "f64" for tensor in types)
        narrow += in_float32
        wide += _RATE * instructions / kernel.arch.fp32_per_cycle if is_wide else in_float32
    moved = sum(one.asked_bytes * kernel.times(one.operation) for one in kernel.accesses)
    memory = moved / kernel.arch.memory_bytes_per_cycle
    gain = max(wide, memory) / max(narrow, memory, 1.0)
    return max(gain, 1.1), 1.0, max(2 * gain, 2.0)


RULE = Rule("float64", "Arithmetic in float64", check)
