"""mma.sync on Hopper, where wgmma would do it at nearly twice the rate."""

from collections.abc import Iterator

from kperf.arch import SM_90A
from kperf.diagnose.kernel import Kernel, loops_around, mma_element, mma_shape
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding, Level

_ROWS = 64
"""Of a wgmma (PTX ISA, "wgmma.mma_async")."""
_SMALL = 64 * 64
"""Elements of a tile that keeps the tensor cores waiting for its operands either way."""
_WARPS = 4
"""A warp group, which issues it."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of an MMA whose result has the layout of MMA version 2."""
    for op in kernel.named("tt.dot"):
        types = tensor_types(op.rest.partition(" : ")[2])
        shape, element = mma_shape(op), mma_element(op)
        version = kernel.layouts.parameters(types[-1].layout).get("versionMajor") if types else None
        if version != [2] or shape is None or element == "f64":
            continue
        rows, columns, _ = shape
        severity: Level = "high" if loops_around(op) else "medium"
        if rows < _ROWS:
            severity = "low" if rows <= 16 else "medium"
            why = f"its tile has {rows} rows, and wgmma needs at least {_ROWS}"
            advice = (
                f"use tiles of {_ROWS} or 128 rows; if the problem has few rows, swap the operands (compute the "
                "transpose)"
            )
        elif kernel.num_warps % _WARPS:
            why = f"num_warps={kernel.num_warps}, and wgmma needs a multiple of {_WARPS} warps"
            advice = f"{kernel.with_option(f'num_warps={_WARPS}')}, or 8 for tiles of 128 rows"
            if rows * columns <= _SMALL:
                severity = "medium"  # 1.15 x were measured of 64 x 64 (H200)
        else:
            why = f"{element} operands of {rows}x{columns} do not have a layout that wgmma takes"
            advice = (
                "give the second operand with K (the dimension over which the MMA sums) contiguous, and use 2-D "
                "operands"
            )
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"the MMA runs as mma.sync, not as wgmma: {why}",
            advice,
            {"rows": rows, "columns": columns, "num_warps": kernel.num_warps, "operand": element},
            candidates=[{"num_warps": _WARPS}] if kernel.num_warps % _WARPS else (),
            estimate=(1.6, 1.1, 2.5) if severity == "high" else (1.3, 1.0, 2.0),
        )


RULE = Rule("wgmma-unused", "mma.sync where wgmma fits", check, targets=(SM_90A.name,))
