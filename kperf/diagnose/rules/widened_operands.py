"""Operands of an MMA that were 16-bit numbers in memory and were made float32 before it."""

from collections.abc import Iterator

from kperf.diagnose.kernel import MMAS, Kernel
from kperf.diagnose.rule import Rule
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_PASSED = ("ttg.convert_layout", "ttg.local_alloc", "ttg.local_load", "tt.trans", "ttg.memdesc_trans", "tt.fp_to_fp")


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of an `arith.extf` from 16 to 32 bits between a load and an MMA; severe where both operands have one."""
    for op in kernel.named(*MMAS):
        widened = {place: widening for place in (0, 1) if (widening := _widening(kernel, op, place)) is not None}
        for place, widening in widened.items():
            narrow = widening.rest.partition(" : ")[2].partition(" to ")[0]
            element = "bfloat16" if "bf16" in narrow else "float16"
            both = len(widened) == 2
            yield kernel.finding(
                RULE.id,
                op,
                "high" if both else "medium",
                f"an operand of the MMA is {element} in memory and is made float32 "
                f"{'before it' if both else 'as the other is'}, which halves the tensor cores' rate at least",
                f"give tl.dot the {element} operands; it sums in float32"
                if both
                else f"if the MMA needs no more precision, give tl.dot the other operand as {element} too",
                {"operand": place, "loaded_as": element},
                estimate=(3.0, 1.3, 8.0) if both else (1.3, 1.0, 2.0),
            )


def _widening(kernel: Kernel, op: Operation, place: int) -> Operation | None:
    stores = (
        one
        for one in kernel.named("ttg.local_store", "ttng.tmem_store")
        if one.parent is op.parent and one.operands[1:2] == op.operands[place : place + 1]
    )
    stored = next(stores, None)  # into the buffer that the MMA reads
    maker = kernel.values.maker(op, place) if stored is None else kernel.values.maker(stored, 0)
    for _ in range(8):
        if maker is None:
            return None
        if maker.name == "arith.extf":
            wide = "f32" in maker.rest.rpartition(" to ")[2]
            return maker if wide and "16" in maker.rest.partition(" to ")[0].partition(" : ")[2] else None
        if maker.name not in _PASSED:
            return None
        maker = kernel.values.maker(maker, 0)
    return None


RULE = Rule("widened-operands", "Operands widened before an MMA", check)
