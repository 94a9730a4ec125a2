"""What ends a kernel's spills: what options leave of them, and the length of a tile that needs no more registers."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kperf.diagnose.analyses.largest import Largest
from kperf.diagnose.analyses.starts import row_lengths
from kperf.diagnose.analyses.warps import most_registers, spilled_with_warps, warps_change
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOOPS, MMAS, loops_around, mask_place
from kperf.diagnose.reading.options import named, scaled
from kperf.diagnose.thresholds import REGISTER_BYTES, SPILLED_BYTES
from kperf.ir import compile as compiler
from kperf.ir.layouts import tensor_types

TO_END_SPILLS = "so that nothing is spilled, also "
_PARTS = {4: "a quarter", 8: "an eighth"}
_DIMENSIONS = ("rows", "columns")
_WHOLE = ("tt.scan", "tt.gather", "tt.histogram")
"""What no loop carries from one part of a tile to the next without more work."""
_MOST_NEEDED = 4
"""Times the registers that there are: what needs more is spilled in any case, and ptxas takes seconds to find that."""


@dataclass(frozen=True)
class Option:
    """Compile options, and the bytes of a thread's registers that are spilled with them; None where it is not known.

    change: as a candidate of a finding. registers: that a thread has with it.
    """

    change: dict[str, int]
    left: int | None
    registers: int

    @property
    def is_limit(self) -> bool:
        """Whether it is another `maxnreg` alone."""
        return "num_warps" not in self.change

    @property
    def written(self) -> str:
        """As it is written at a launch."""
        return ", ".join(f"{name}={value}" for name, value in self.change.items())

    @property
    def leaves(self) -> str:
        """What it leaves, in words."""
        return f"{self.written} leaves {f'{self.left} bytes' if self.left else 'none'}"

    @property
    def ends_spills(self) -> bool:
        """Whether nothing that shows is left."""
        return self.left is not None and self.left < SPILLED_BYTES


def options(
    kernel: Kernel, *, registers: int | None = None, warps: int | None = None, compiled: bool = True
) -> list[Option]:
    """`maxnreg` and `num_warps`, as far as they are given; what leaves least comes first.

    compiled: whether that is found out. ptxas assembles the kernel with other registers while Triton compiles it with
    other warps.
    """
    of_limit, of_warps = None, None
    if compiled:
        with ThreadPoolExecutor(1) as assembler:
            limited = assembler.submit(_spilled_with_limit, kernel, registers) if registers else None
            of_warps = spilled_with_warps(kernel, warps) if warps else None
            of_limit = limited.result() if limited is not None else None
    found = [Option({"maxnreg": registers}, of_limit, registers)] if registers else []
    if warps:
        found.append(Option(warps_change(kernel, warps), of_warps, most_registers(kernel, warps)))
    spilled = kernel.resources.spilled_bytes if kernel.resources is not None else 0
    better = [one for one in found if one.left is None or one.left <= spilled]
    return sorted(better, key=lambda one: (one.left is None, 0 if one.ends_spills else one.left or 0))


def _spilled_with_limit(kernel: Kernel, registers: int) -> int | None:
    """None where a thread needs many times as many registers, or where no PTX is known."""
    assert kernel.resources is not None
    needed, ptx = (
        kernel.resources.registers + kernel.resources.spilled_bytes / REGISTER_BYTES,
        kernel.compiled.texts.get("ptx"),
    )
    if ptx is None or needed > _MOST_NEEDED * registers:
        return None
    return compiler.spilled_with(ptx, kernel.arch, registers)


def shorter_tile(kernel: Kernel, value: Largest | None, after: Sequence[Option]) -> str:
    """How a tile gets as short as registers need, in words: a row has to be walked in a loop.

    after: options, of which the first is taken. Half a tile is a first step where it is not known what that leaves.
    """
    assert kernel.resources is not None
    most = after[0].registers if after else most_registers(kernel, kernel.total_warps)
    left = after[0].left if after else kernel.resources.spilled_bytes
    times = 2
    while left is not None and most + left / REGISTER_BYTES > times * most:
        times *= 2
    if value is not None and is_whole_row(kernel, value):
        return f"walk the row in a loop, in tiles of {value.tensor.size // times}"
    part = "halve the tile" if times == 2 else f"take {_PARTS.get(times, f'a {times}th')} of the tile"
    if constants := named(scaled(kernel, _lengths(kernel, value), 1 / times), before=": "):
        return part + constants
    walked = _walked(kernel, value, times) if value is not None else ""
    return walked or part


def _lengths(kernel: Kernel, value: Largest | None) -> set[int]:
    """Lengths of a tile that may become shorter: of no dimension that is reduced once, whose results would be others.

    What a loop reduces it may carry. Of a value that is not known all with which the kernel goes from tile to tile.
    """
    if value is None:
        return set(kernel.configuration.values()) if kernel.tile_lengths is not None else set()
    shape = value.tensor.shape
    if any(True for _ in kernel.named(*MMAS, *LOOPS)):
        return set(shape)
    whole = _axes(kernel, "tt.reduce", *_WHOLE, shape=shape) if len(shape) > 1 else set()
    return set(shape) - {shape[axis] for axis in whole}


def _walked(kernel: Kernel, value: Largest, times: int) -> str:
    """Along which dimension a loop may walk through a value's tile, in words; empty of MMAs, and where none is known.

    Best one along which nothing is reduced, neither of the tile nor of what its reduction leaves; else one whose sum or
    maximum the loop carries.
    """
    shape = value.tensor.shape
    if any(True for _ in kernel.named(*MMAS)) or not 1 <= len(shape) <= len(_DIMENSIONS):
        return ""
    reduced, whole = _axes(kernel, "tt.reduce", shape=shape), _axes(kernel, *_WHOLE, shape=shape)
    along = [axis for axis, length in enumerate(shape) if length >= times and axis not in whole]
    free = [axis for axis in along if axis not in reduced and shape[axis] not in row_lengths(kernel)]
    carried = [axis for axis in along if axis in reduced]
    axis = max(free or carried, key=lambda one: shape[one], default=None)
    if axis is None:
        return ""
    sizes = " x ".join(map(str, shape))
    what = f"{_DIMENSIONS[axis]} of the tile of {sizes}" if len(shape) > 1 else "elements of the tile"
    carry = "" if free else ", and carry what is reduced along them (of a softmax the running maximum and sum)"
    return f"loop over the {shape[axis]} {what}, {shape[axis] // times} at a time{carry}"


def _axes(kernel: Kernel, *names: str, shape: Sequence[int]) -> set[int]:
    """Those along which operations reduce, or scan, tiles of a shape."""
    found = set()
    for op in kernel.named(*names):
        types, axis = tensor_types(kernel.module.lines[op.last_line]), re.search(r"axis = (\d+)", op.rest)
        if types and axis is not None and tuple(types[0].shape) == tuple(shape):
            found.add(int(axis[1]))
    return found


def is_whole_row(kernel: Kernel, value: Largest) -> bool:
    """Whether a value is a row that no loop walks: of one dimension, reduced as a whole, and masked in no iteration."""
    if len(value.tensor.shape) > 1 or value.tensor.size not in row_lengths(kernel):
        return False
    access = next((one for one in kernel.accesses if one.tensor.size == value.tensor.size), None)
    if access is None:
        return False
    around = loops_around(access.operation)
    mask = kernel.values.operand(access.operation, mask_place(access.operation))
    return all(map(kernel.runs_once, around)) or (mask is not None and not mask.iterations)
