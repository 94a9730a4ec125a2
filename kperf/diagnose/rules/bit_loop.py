"""The set bits of words, counted bit by bit where one instruction counts those of a word."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kperf.diagnose.analyses.comparisons import axis_of, beside, is_along, is_broadcast, is_given
from kperf.diagnose.analyses.loops import carried, innermost
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, FLOATS, MOVES, chooses_one, source
from kperf.diagnose.reading.operations import inside, loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.arithmetic import SHIFTS
from kperf.ir.layouts import tensor_types
from kperf.ir.outcomes import constant_number
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_LEAST_BITS = 8
"""Of a word: some flags are no count."""
_OF_BIT = 5
"""Of a bit, in instructions at full rate: a shift, a mask, and half of an addition of three numbers, at half rate."""
_OF_WORD = 10
"""Of a word by POPC, whose rate is an eighth, and an addition at half rate. By both `hamming_search` gains 14.5 x, and
15.62 x were measured (H100)."""
_WIDE = 4
"""Bytes of the shortest word that POPC takes."""
_PASSED = (*CASTS, *FLOATS, *MOVES, "tt.splat")
_RIGHT = ("arith.shrsi", "arith.shrui")
_LINEAR = (*SHIFTS, "arith.muli", "arith.constant", "tt.make_range")
"""Through which each iteration's shift is another one."""
_ENDS = ("scf.yield", "scf.condition")
_OF_SHORT = "; of a shorter word, libdevice.popc(word.to(tl.int32) & mask) with a mask of as many bits as it has"


@dataclass(frozen=True)
class _Operand:
    """A number that an operation reads."""

    user: Operation
    place: int

    @property
    def name(self) -> str:
        """Of the number."""
        return self.user.operands[self.place]

    def before(self, kernel: Kernel, passed: Iterable[str] = CASTS) -> Operation | None:
        """What makes it, before these operations."""
        return source(kernel.values, self.user, self.place, tuple(passed))


@dataclass(frozen=True)
class _Bit:
    """A bit of a word as a number. shift: which one; None of the lowest, or with `is_any` of the lowest that is set."""

    word: _Operand
    shift: _Operand | None = None
    is_any: bool = False

    @property
    def users(self) -> tuple[Operation, ...]:
        """What takes the bit out of the word."""
        return (self.word.user, *((self.shift.user,) if self.shift is not None else ()))

    @property
    def bytes(self) -> int:
        """Of the word."""
        types = tensor_types(self.word.user.rest)
        return types[0].bytes if types else _WIDE


@dataclass(frozen=True)
class _Count:
    """at: where it is reported. operations: those that count. bits: of all words of an element. loop: over the bits."""

    at: Operation
    operations: tuple[Operation, ...]
    elements: int
    bytes: int
    bits: int
    words: int = 1
    loop: Operation | None = None


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of sums of the bits of a word, in a loop over the bits, written one after another, or along an axis of a tile."""
    for count in (*_by_loops(kernel), *_one_by_one(kernel), *_by_tiles(kernel)):
        around = beside(kernel, count.at, count.operations, count.loop)
        others, least = arithmetic_cycles(kernel, around), bytes_or_mma_cycles(kernel, around)
        each = count.elements / kernel.arch.fp32_per_cycle
        by_bit, by_word = _OF_BIT * count.bits * each, _OF_WORD * count.words * each
        gain = max(by_bit + others, least) / max(by_word + others, least)
        if gain < MEDIUM_GAIN or any("POPC" in one.opcode for one in kernel.instructions_of(count.at)):
            continue
        yield kernel.finding(
            RULE.id,
            count.at,
            "high" if gain >= SEVERE_GAIN else "medium",
            f"the bits of {count.elements} words are counted one at a time, {count.bits // count.words} bits a word: "
            f"this takes some {by_bit:.0f} cycles of an SM, and all other work takes {max(others, least):.0f} cycles",
            "write libdevice.popc(word), which counts the bits of an int32 or int64 in one instruction (from "
            "triton.language.extra import libdevice); it takes no other type, so convert a uint32 with .to(tl.int32); "
            "to count some bits alone, libdevice.popc(word & mask)" + _OF_SHORT * (count.bytes < _WIDE),
            {"bits": count.bits, "elements": count.elements, "count_cycles": by_bit, "word_cycles": by_word},
            confidence="medium",
            estimate=(gain, min(gain, 1.2), 1.5 * gain),
        )


def _by_loops(kernel: Kernel) -> Iterator[_Count]:
    """Loops that do nothing but count, each iteration one bit of a word."""
    for loop in innermost(kernel):
        done = [op for op in inside(loop) if op.parent is not None and op.parent.owner is loop]
        counts = list(_of_loop(kernel, loop, done[-1]))
        counting = {op.line for count in counts for op in count.operations}
        for end in (op for op in done if op.name == "scf.condition"):
            counting |= {op.line for op in kernel.values.sources(end, 0)}
        if all(op.line in counting or op.name in _ENDS for op in done):
            yield from counts


def _of_loop(kernel: Kernel, loop: Operation, last: Operation) -> Iterator[_Count]:
    """The sums of bits that a loop carries; last: its last operation."""
    for place, (begin, _) in enumerate(carried(loop)):
        grown = kernel.values.maker(last, place)
        if grown is None or grown.name not in ("arith.addi", "arith.addf") or begin not in grown.operands:
            continue
        added = _Operand(grown, 1 - grown.operands.index(begin))
        bit, types = _bit(kernel, added) or _lowest_set(kernel, added), tensor_types(grown.rest)
        if bit is None or not types or not _is_another(kernel, bit, loop):
            continue
        bits = min(kernel.iterations(loop) or 8 * bit.bytes, 8 * bit.bytes)
        if bits >= _LEAST_BITS:
            made = [op for op in kernel.values.sources(grown, added.place) if loop in loops_around(op)]
            yield _Count(loop, (grown, *made), types[0].size, bit.bytes, bits, loop=loop)


def _is_another(kernel: Kernel, bit: _Bit, loop: Operation) -> bool:
    """Whether each iteration of a loop has another bit: of the same word, or of one that loses a bit each time."""
    if bit.shift is not None:
        shift, word = bit.shift, bit.word
        value = kernel.values.operand(shift.user, shift.place)
        made = [op for op in kernel.values.sources(shift.user, shift.place) if loop in loops_around(op)]
        moved = value is not None and loop.line in value.iterations and all(op.name in _LINEAR for op in made)
        return moved and is_given(kernel, word.user, word.place, loop)
    ends = {begin: place for place, (begin, _) in enumerate(carried(loop))}
    last = list(inside(loop))[-1]
    left = kernel.values.maker(last, ends[bit.word.name]) if bit.word.name in ends else None
    if left is None or bit.word.name not in left.operands:
        return False
    if bit.is_any:
        return left.name == "arith.andi" and _is_without_lowest(kernel, left, bit.word.name)
    return left.name in _RIGHT and left.operands[0] == bit.word.name and _constant(kernel, _Operand(left, 1)) == 1


def _is_without_lowest(kernel: Kernel, masked: Operation, word: str) -> bool:
    """Whether it is `x & (x - 1)`, which is x without its lowest set bit."""
    less = kernel.values.maker(masked, 1 - masked.operands.index(word))
    if less is None or word not in less.operands:
        return False
    by = _constant(kernel, _Operand(less, 1 - less.operands.index(word)))
    return (less.name, by) in (("arith.addi", -1), ("arith.subi", 1))


def _one_by_one(kernel: Kernel) -> Iterator[_Count]:
    """Sums in which the bits of a word stand one after another, as an unrolled loop leaves them."""
    sums = [op for op in kernel.named("arith.addi") if tensor_types(op.rest)]
    uses = Counter(name for op in kernel.operations for name in op.operands)
    parts = {name for op in sums for name in op.operands if uses[name] == 1}
    for total in (op for op in sums if op.results[0] not in parts):
        places: dict[str, list[int]] = defaultdict(list)
        operations, todo, size = [], [total], _WIDE
        while todo:
            op = todo.pop()
            operations.append(op)
            for added in (_Operand(op, place) for place in range(len(op.operands))):
                made = kernel.values.maker(op, added.place)
                if made is not None and made.name == "arith.addi" and added.name in parts:
                    todo.append(made)
                elif (bit := _bit(kernel, added)) is not None and (place := _place(kernel, bit)) is not None:
                    places[place[0]].append(place[1])
                    operations += bit.users
                    size = bit.bytes
        words = [bits for bits in places.values() if len(set(bits)) == len(bits) >= _LEAST_BITS]
        if words:
            elements = tensor_types(total.rest)[0].size
            yield _Count(total, tuple(operations), elements, size, sum(map(len, words)), len(words))


def _place(kernel: Kernel, bit: _Bit) -> tuple[str, int] | None:
    """The word of a bit and its place in it, where that is a constant; through words that are shifted one by one."""
    word, at = bit.word, 0.0 if bit.shift is None else _constant(kernel, bit.shift)
    while at is not None:
        made = word.before(kernel)
        if made is None or made.name not in _RIGHT:
            return word.name, int(at)
        by = _constant(kernel, _Operand(made, 1))
        word, at = _Operand(made, 0), None if by is None else at + by
    return None


def _by_tiles(kernel: Kernel) -> Iterator[_Count]:
    """Sums along an axis of a tile, whose elements are the bits of a word."""
    for op in kernel.named("tt.reduce"):
        bit = _bit(kernel, _Operand(op, 0)) if len(op.operands) == 1 else None
        if bit is None or bit.shift is None or not any(one.name in ("arith.addi", "arith.addf") for one in inside(op)):
            continue
        axis, user = axis_of(op), bit.shift.user
        tile = tensor_types(user.rest)[0]
        same_user = bit.word.user is user and len(tile.shape) > 1
        if same_user and is_along(kernel, user, 1, axis) and is_broadcast(kernel, user, 0, axis):
            bits, elements = tile.shape[axis], tile.size // tile.shape[axis]
            if bits >= _LEAST_BITS:
                yield _Count(op, (op, *bit.users), elements, tile.bytes, bits)


def _bit(kernel: Kernel, number: _Operand) -> _Bit | None:
    """The bit that a number is, 0 or 1, as `x >> s & 1`, `(x & 1 << s) != 0` and what selects 1 or 0 by these."""
    made = number.before(kernel, _PASSED)
    while made is not None and chooses_one(kernel.values, made):
        made = source(kernel.values, made, 0, _PASSED)
    is_condition = made is not None and made.name == "arith.cmpi"
    if made is not None and is_condition:
        wanted = (made.rest.split(",")[0].strip(), _constant(kernel, _Operand(made, 1)))
        made = source(kernel.values, made, 0, _PASSED) if wanted in (("ne", 0), ("eq", 1)) else None
    if made is None or made.name != "arith.andi":
        return None
    for place in (0, 1):
        mask, word = _Operand(made, place), _Operand(made, 1 - place)
        one = mask.before(kernel, _PASSED)
        if _constant(kernel, mask) == 1:
            moved = word.before(kernel)
            is_moved = moved is not None and moved.name in _RIGHT
            return _Bit(_Operand(moved, 0), _Operand(moved, 1)) if moved is not None and is_moved else _Bit(word)
        if is_condition and one is not None and one.name == "arith.shli" and _constant(kernel, _Operand(one, 0)) == 1:
            return _Bit(word, _Operand(one, 1))
    return None


def _lowest_set(kernel: Kernel, number: _Operand) -> _Bit | None:
    """A word that is not 0, as a number: it has a set bit."""
    made = number.before(kernel, _PASSED)
    while made is not None and chooses_one(kernel.values, made):
        made = source(kernel.values, made, 0, _PASSED)
    if made is None or made.name != "arith.cmpi" or made.rest.split(",")[0].strip() != "ne":
        return None
    return _Bit(_Operand(made, 0), is_any=True) if _constant(kernel, _Operand(made, 1)) == 0 else None


def _constant(kernel: Kernel, number: _Operand) -> float | None:
    """The number that it is everywhere; None if it is no constant."""
    made = number.before(kernel, _PASSED)
    return constant_number(made) if made is not None and made.name == "arith.constant" else None


RULE = Rule("bit-loop", "Bits that are counted one at a time", check, targets=("sm_",))
