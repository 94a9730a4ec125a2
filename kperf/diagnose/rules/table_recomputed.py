"""Functions of no data, such as the cosines of a transform, that many CTAs compute alike."""

import math
from collections.abc import Iterator

from kperf.diagnose.analyses.occupancy import arithmetic_of_cta
from kperf.diagnose.analyses.tables import table_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of a launch whose CTAs compute such values for longer than it takes to load them."""
    table = table_of(kernel)
    if table is None:
        return
    costliest = max(table.functions, key=lambda op: (arithmetic_of_cta(kernel, [op]), -op.line))
    also = f" (likewise on {also})" if (also := lines_of(table.functions, costliest)) else ""
    whole = table.cta_bytes * math.prod(kernel.grid or ()) / table.times
    yield kernel.finding(
        RULE.id,
        costliest,
        "high" if table.gain >= SEVERE_GAIN else "medium",
        f"{table.times:.0f} CTAs compute this function of the same {tensor_types(costliest.rest)[-1].size} "
        f"numbers{also}, without loaded data: this takes some {table.computing:.0f} cycles of an SM in each CTA, all "
        f"other arithmetic takes {table.others:.0f} cycles, and loading the values would take {table.loading:.0f} "
        "cycles",
        "compute the values once before the launch, in torch or in another kernel, and include constant factors; store "
        f"them as a table of at most {whole:.0f} bytes, in the type that this kernel uses; load the table here",
        {
            "repeated": table.times,
            "table_bytes": whole,
            "computing_cycles": table.computing,
            "other_cycles": table.others,
            "loading_cycles": table.loading,
        },
        confidence="medium",
        estimate=(table.gain, 1.0, 2 * table.gain),
    )


RULE = Rule("table-recomputed", "A table that many CTAs compute", check, needs="launch")
