"""Sampled CTAs: one kernel with the original body and the instrumented one, where a few CTAs take the instrumented.

Both are compiled from one function, so that their PTX has one name, one list of parameters and one size of a CTA; and
braces scope registers and labels in PTX. So the two bodies stand one behind the other, each in braces, behind a test:

    slot = (CTA - first) / stride mod 2^32;  if (slot < most slots) goto instrumented;  { original } { instrumented }

The stride is a prime, so that no column of tiles, no SM and no wave is always or never met, and is odd, so that it has
an inverse modulo 2^32: slot is one multiplication. It is below 2^31 / stride exactly where the stride divides CTA -
first, and there it is the quotient: the number of the CTA's part of the buffer, which has parts of sampled CTAs alone.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kperf.errors import UsageError
from kperf.ir.ptx import Ptx, read_ptx
from kperf.trace.instrument.session import Recording

STRIDES = (17, 7, 5)
"""Of recorded CTAs: primes that do not divide the numbers of SMs of data-centre GPUs (132, 144, 148, 78, 108, 114)."""
FIRST = 5
"""The first recorded CTA: the very first ones meet cold caches."""
LEAST_RECORDED = 32
"""CTAs: a launch from which fewer would be recorded has all of its CTAs recorded."""
MOST_CTAS = 1 << 31
"""Of a launch, as CUDA allows them in one dimension of a grid."""


_INSTRUCTION = re.compile(r"\s*(?P<opcode>[a-z][\w.]*)\s+%\w+, (?P<operands>[^;{}\[\]]*);\s*(//.*)?")
_WRITTEN = re.compile(r"^\s*(?:@\S+\s+)?(?!st\.|red\.|bar)[a-z][\w.]*\s+(\{[^}]*\}|%\w+)")
_TARGET = re.compile(r"\s*\$(?!L__tmp|L__func_begin)[\w$]+:")
"""A label, but for those of debug information."""
_SUM = re.compile(r"\s*add\.[su]64\s+(%\w+), (%\w+), (%\w+);\s*(?://.*)?")
_NUMBER = re.compile(r"-?\d+")
_ARITHMETIC = re.compile(
    r"(?P<name>mov|add|mul|mad|shl|cvt)(\.lo|(?P<widens>\.wide|\.[us]64)|(?P<narrows>\.u32))?"
    r"\.(?P<type>[bus])(?P<width>32|64)"
)
_CTAS = ((0, 0, 0, 1, 1), (1, 0, 0, 2, 3), (0, 1, 0, 5, 2), (4, 2, 3, 5, 3))
"""x, y, z of a CTA, and x, y of its grid."""


@dataclass(frozen=True)
class Sample:
    """The CTAs that are recorded: every `stride`th from `first` on. A CTA's number counts x, then y, then z."""

    stride: int = STRIDES[0]
    first: int = FIRST

    @classmethod
    def of(cls, ctas: int) -> "Sample":
        """Of a launch of so many CTAs: the sparsest in which enough are recorded; the densest where none has them."""
        samples = [cls(stride) for stride in STRIDES]
        return next((sample for sample in samples if sample.is_enough(ctas)), samples[-1])

    def is_enough(self, ctas: int) -> bool:
        """Whether enough CTAs of such a launch are recorded to read from them."""
        return self.count(ctas) >= LEAST_RECORDED

    def count(self, ctas: int) -> int:
        """How many CTAs of a launch are recorded."""
        return max(-(-(ctas - self.first) // self.stride), 0)

    def cta(self, slot: int) -> int:
        """The number of the CTA that writes part `slot` of the buffer."""
        return self.first + self.stride * slot

    @property
    def inverse(self) -> int:
        """What a CTA's number is multiplied by, modulo 2^32."""
        return pow(self.stride, -1, 1 << 32)

    @property
    def start(self) -> int:
        """What is added to that: the slot, if it is below `most_slots`."""
        return -self.first * self.inverse % (1 << 32)

    @property
    def most_slots(self) -> int:
        """Slots of a launch of `MOST_CTAS`."""
        return -(-MOST_CTAS // self.stride)


def sampled(original: str, instrumented: str, recording: Recording, sample: Sample, registers: int | None) -> str:
    """The PTX of a kernel whose sampled CTAs take the instrumented body, and all others the original one.

    `registers`: the most a thread may have; None for what ptxas chooses. Raises `UsageError` for PTX that is not
    understood, a sentence each.
    """
    ours, theirs = read_ptx(original), read_ptx(instrumented)
    for part in ("version", "entry", "parameters", "directives"):
        if (own := getattr(ours, part)) != (its := getattr(theirs, part)):
            raise UsageError(f"its PTX and the instrumented kernel's have different {part}: {own[:40]} and {its[:40]}")
    if "cluster" in ours.directives:
        raise UsageError("its CTAs come in clusters, which are not sampled")
    if re.search(r"[%$]kperf_", ours.body + theirs.body):
        raise UsageError("its PTX has names that begin with kperf_")
    offset = max(ours.files, default=0)
    original_body = ours.body_with_files({number: number for number in ours.files})
    instrumented_body = _at_its_slot(theirs, recording.block_bytes).body_with_files(
        {number: number + offset for number in theirs.files}
    )
    body = f"{_test(sample)}{{\n{original_body}}}\n$kperf_instrumented:\n{{\n{instrumented_body}}}\n"
    directives = ours.directives
    if registers is not None and ".maxnreg" not in directives:
        directives += f" .maxnreg {registers}"
    return replace(
        ours,
        declarations=_both(ours.declarations, theirs.declarations),
        directives=directives,
        body=body,
        files=ours.files | {number + offset: path for number, path in theirs.files.items()},
    ).text


def key_of(original: str, sample: Sample, registers: int | None) -> str:
    """What tells what `sampled` makes of one instrumented kernel apart, for a cache."""
    made_by = Path(__file__).read_bytes() + original.encode()
    return f"sampled.{sample.stride}.{sample.first}.{registers}.{hashlib.sha256(made_by).hexdigest()[:16]}"


def _test(sample: Sample) -> str:
    """The CTA's number in the grid, its slot, and the branch."""
    return f"""\
	.reg .pred %kperf_p;
	.reg .b32 %kperf_x, %kperf_y, %kperf_z, %kperf_nx, %kperf_ny, %kperf_cta, %kperf_slot;
	mov.u32 %kperf_x, %ctaid.x;
	mov.u32 %kperf_y, %ctaid.y;
	mov.u32 %kperf_z, %ctaid.z;
	mov.u32 %kperf_nx, %nctaid.x;
	mov.u32 %kperf_ny, %nctaid.y;
	mad.lo.u32 %kperf_cta, %kperf_z, %kperf_ny, %kperf_y;
	mad.lo.u32 %kperf_cta, %kperf_cta, %kperf_nx, %kperf_x;
	mad.lo.u32 %kperf_slot, %kperf_cta, {sample.inverse}, {sample.start};
	setp.lt.u32 %kperf_p, %kperf_slot, {sample.most_slots};
	@%kperf_p bra.uni $kperf_instrumented;
"""


def _both(ours: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
    """The declarations of both modules."""
    for name in ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            raise UsageError(f"its PTX and the instrumented kernel's declare {name} in two ways")
    return ours | theirs


def _at_its_slot(module: Ptx, block_bytes: int) -> Ptx:
    """The instrumented module with each CTA's events at its slot, and no longer at its number.

    Proton adds the CTA's number times `block_bytes` to the last parameter, to Triton 3.7 in 32 bits, from 3.8 on in 64.
    Each sum is computed here for a few CTAs of a few grids: whatever instructions it is made of, it is that one, or
    that one and a register, or it is not understood.
    """
    parameter, lines = re.escape(module.parameter_names[-1]), module.body.splitlines()
    loads = [re.fullmatch(rf"\s*ld\.param\.[bu]64\s+(%\w+), \[{parameter}\];\s*", line) for line in lines]
    pointers = {match[1] for match in loads if match}
    if not pointers or sum(map(bool, loads)) != len(re.findall(rf"{parameter}\b", module.body)):
        raise UsageError(f"the buffer of its events, {parameter}, is read in a way that is not understood")
    named = re.compile("|".join(rf"{re.escape(pointer)}\b" for pointer in pointers))
    uses = {number for number, line in enumerate(lines) if named.search(line) and not loads[number]}
    if not uses:
        raise UsageError("its PTX writes no events")
    begins, offsets = set(range(len(lines))), set(range(len(lines)))
    for (x, y, z, nx, ny), base in zip(_CTAS, range(1 << 46, 1 << 47, 1 << 44), strict=False):
        known = {"%ctaid.x": x, "%ctaid.y": y, "%ctaid.z": z, "%nctaid.x": nx, "%nctaid.y": ny}
        offset = ((z * ny + y) * nx + x) * block_bytes
        computed = _computed(lines, known | dict.fromkeys(pointers, base))
        begins &= {number for number, value in enumerate(computed) if value == base + offset}
        offsets &= {number for number, value in enumerate(computed) if value == offset}
    at_slot: dict[int, str] = {}
    for number in uses:
        if number in begins:
            result, (pointer,) = _WRITTEN.findall(lines[number])[0], set(named.findall(lines[number]))
            at_slot[number] = f"\tmad.wide.u32 \t{result}, %kperf_slot, {block_bytes}, {pointer};"
        elif (place := _summand(number, lines, named, uses, offsets)) is not None:
            line, result, rest = place
            at_slot[line] = f"\tmad.wide.u32 \t{result}, %kperf_slot, {block_bytes}, {rest};"
        else:
            raise UsageError("where a CTA's events begin in the buffer is not understood")
    return replace(module, body="".join(f"{at_slot.get(number, line)}\n" for number, line in enumerate(lines)))


def _summand(
    use: int, lines: Sequence[str], named: re.Pattern[str], uses: set[int], offsets: set[int]
) -> tuple[int, str, str] | None:
    """Of a pointer's sum with a register that is a CTA's offset and something else: its line, it, and the other.

    None where the sum is another, or where the register is read anywhere else.
    """
    sums = [_SUM.fullmatch(line) for line in lines]
    outer = sums[use]
    summands = [] if outer is None else [each for each in outer.group(2, 3) if not named.fullmatch(each)]
    if len(summands) != 1:
        return None
    readers = {number for number, line in enumerate(lines) if re.search(rf"{re.escape(summands[0])}\b", line)}
    makers = [number for number in readers if summands[0] in _registers_written(lines[number])]
    inner = sums[makers[0]] if len(makers) == 1 and readers - uses == set(makers) else None
    if inner is None:
        return None
    written = Counter(register for line in lines for register in _registers_written(line))
    of_cta = {register for number in offsets for register in _registers_written(lines[number])}
    others = [each for each in inner.group(2, 3) if each not in of_cta or written[each] > 1]
    return (makers[0], summands[0], others[0]) if len(others) == 1 else None


def _computed(lines: Sequence[str], known: dict[str, int]) -> list[int | None]:
    """Of each line what it computes, if that is arithmetic of integers on registers that are known there.

    A register that is written at several places is known until the next place to which a branch may lead.
    """
    written = Counter(register for line in lines for register in _registers_written(line))
    given, values = set(known), dict(known)
    computed: list[int | None] = []
    for line in lines:
        if _TARGET.match(line):
            values = {name: value for name, value in values.items() if written[name] == 1 or name in given}
        match = _INSTRUCTION.fullmatch(line)
        operands = match["operands"].split(", ") if match else []
        numbers = [values.get(each, int(each) if _NUMBER.fullmatch(each) else None) for each in operands]
        computed.append(_arithmetic(match["opcode"], numbers) if match else None)
        for register in set(_registers_written(line)) - given:
            values.pop(register, None)
            if (value := computed[-1]) is not None:
                values[register] = value
    return computed


def _registers_written(line: str) -> list[str]:
    return [register for group in _WRITTEN.findall(line) for register in re.findall(r"%\w+", group)]


def _arithmetic(opcode: str, values: Sequence[int | None]) -> int | None:
    match = _ARITHMETIC.fullmatch(opcode)
    numbers = [value for value in values if value is not None]
    if match is None or len(numbers) < len(values):
        return None
    width = int(match["width"])
    if match["widens"] and match["type"] == "s":
        numbers[:2] = [(value + (1 << width - 1)) % (1 << width) - (1 << width - 1) for value in numbers[:2]]
    if match["name"] == "shl":
        result = numbers[0] << numbers[1]
    else:
        factors = 2 if match["name"] in {"mul", "mad"} else 1
        result = math.prod(numbers[:factors]) + sum(numbers[factors:])
    return result % (1 << (32 if match["narrows"] else 64 if match["widens"] else width))
