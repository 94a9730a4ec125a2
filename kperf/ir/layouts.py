"""Types of tensors in printed TTGIR, and which thread holds which element of one.

`elements` gives the coordinates that the registers of the lanes of each warp hold, by the definitions in Triton's
TritonGPUAttrDefs.td: blocked, slice, linear and the results of MMAs (versions 2 and 3).
"""

import math
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Coordinates = NDArray[np.int64]
"""[warp, register, lane, dimension]; a register of several lanes may hold the same element."""

_BITS = {"bf16": 16, "index": 64, "i1": 8}
_LIST = re.compile(r"(\w+)\s*=\s*(\[[^=]*\]|\d+|true|false)")


@dataclass(frozen=True)
class TensorType:
    """A tensor, or one in shared memory: shape, element (`f16`, `!tt.ptr<f16>`), and its layout as printed.

    allocated: the shape of the buffer of which this is a part, where it is one.
    """

    shape: tuple[int, ...]
    element: str
    layout: str
    allocated: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of one element; of a pointer, of what it points at."""
        return element_bytes(self.element)


@cache
def element_bytes(element: str) -> int:
    """Bytes of an element, of a pointer those of what it points at; bits of `i1` take a byte."""
    inner = re.sub(r"^!tt\.ptr<(.*?)(?:,.*)?>$", r"\1", element)
    bits = _BITS.get(inner) or int((re.search(r"\d+", inner) or ["32"])[0])
    return max(bits // 8, 1)


def split_commas(text: str) -> list[str]:
    """The parts between commas outside of all brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character in "<([{":
            depth += 1
        elif character in ">)]}" and text[place - 1 : place + 1] != "->":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()] if text[start:].strip() else parts


@lru_cache(maxsize=1 << 14)
def tensor_types(text: str) -> tuple[TensorType, ...]:
    """Every tensor and memory descriptor in a text, in order, those of descriptors of tensors left out."""
    types = []
    for match in re.finditer(r"(?<![\w<])(?:tensor|!ttg\.memdesc)<", text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"<": 1, ">": -1 if text[end - 1] != "-" else 0}.get(text[end], 0)
            end += 1
        inner = split_commas(text[match.end() : end - 1])
        shaped = re.match(r"((?:\d+x)*)(.*)$", inner[0]) if inner else None
        if shaped is not None:
            shape = tuple(int(length) for length in shaped[1].split("x") if length)
            whole = inner[-1] if re.fullmatch(r"\d+(x\d+)*", inner[-1]) else ""
            allocated = tuple(map(int, whole.split("x"))) if whole else ()
            types.append(TensorType(shape, shaped[2], inner[1] if len(inner) > 1 else "", allocated))
    return tuple(types)


class Layouts:
    """The layouts of a module by their aliases (`#blocked1`)."""

    def __init__(self, lines: list[str]) -> None:
        """Read the aliases at the head of the text."""
        pairs = (re.match(r"(#[\w$.-]+) = (#tt.*)$", line) for line in lines)
        self._aliases = {match[1]: match[2] for match in pairs if match}

    def full(self, layout: str) -> str:
        """A layout with all its aliases put in."""
        for _ in range(8):  # a slice of a slice of an alias
            replaced = re.sub(r"#[\w$.-]+", lambda match: self._aliases.get(match[0], match[0]), layout)
            if replaced == layout:
                break
            layout = replaced
        return layout

    def kind(self, layout: str) -> str:
        """`blocked`, `nvidia_mma`, `slice`, `dot_op`, `linear`, `nvmma_shared`, `swizzled_shared`, ..."""
        match = re.match(r"#(?:ttg|ttng)\.(\w+)", self.full(layout))
        return match[1] if match else ""

    def parameters(self, layout: str) -> dict[str, list[int]]:
        """Its lists of numbers by name; a number is a list of one."""
        return _parameters(self.full(layout))

    def offsets(self, shared: TensorType, places: Coordinates) -> Coordinates | None:
        """Bytes from the start of a buffer in shared memory to elements of it: [warp, register, lane].

        By the definitions in TritonGPUAttrDefs.td: swizzled, padded, linear, and those of TMA and wgmma in two
        dimensions. None of a layout that is not known, and of a part of a larger buffer.
        """
        layout = self.full(shared.layout)
        rank = len(shared.shape)
        if rank > 2 or places.shape[-1] != rank or shared.allocated[-rank:] not in ((), shared.shape):
            return None
        kind, parameters = self.kind(layout), _parameters(layout)
        numbers: Coordinates | None = None
        if kind == "swizzled_shared":
            numbers = _swizzled(parameters, shared.shape, places)
        elif kind == "nvmma_shared" and rank == 2:
            numbers = _tiled(parameters, shared, places)
        elif kind in ("padded_shared", "shared_linear"):
            numbers = _remapped(layout, shared.shape, places)
        return None if numbers is None else numbers * shared.bytes

    def elements(self, tensor: TensorType) -> Coordinates | None:
        """Which elements the registers of the lanes of each warp hold; None of a layout that is not known."""
        return _elements(self.full(tensor.layout), tensor.shape)


def _swizzled(parameters: dict[str, list[int]], shape: tuple[int, ...], places: Coordinates) -> Coordinates:
    """Rows of `shape`, in which groups of `vec` elements change places from row to row."""
    vec, per, phases = (parameters.get(name, [1])[0] for name in ("vec", "perPhase", "maxPhase"))
    order = parameters.get("order", list(reversed(range(len(shape)))))
    column = places[..., order[0]]
    row = places[..., order[1]] if len(order) > 1 else np.zeros_like(column)
    moved: Coordinates = ((column // vec) ^ ((row // per) % phases)) * vec + column % vec
    return row * shape[order[0]] + moved


def _tiled(parameters: dict[str, list[int]], shared: TensorType, places: Coordinates) -> Coordinates:
    """Tiles of rows as long as the swizzle, one below the other; 16 bytes change places within 128 bytes of rows."""
    across = 0 if parameters.get("transposed", [0])[0] else 1
    row, column = places[..., 1 - across], places[..., across]
    rows, columns = shared.shape[1 - across], shared.shape[across]
    width = parameters["swizzlingByteWidth"][0] // shared.bytes
    if not width:
        return row * columns + column
    vec, phases = 16 // shared.bytes, parameters["swizzlingByteWidth"][0] // 16
    inside = column % width
    moved = ((inside // vec) ^ (row // (8 // phases) % phases)) * vec + inside % vec
    return column // width * (rows * width) + row * width + moved


def _remapped(layout: str, shape: tuple[int, ...], places: Coordinates) -> Coordinates | None:
    """Offsets by bases, one a bit, and what is put in after each of the intervals."""
    bases = _bases(layout, "offset")
    if bases is None:
        order = _parameters(layout).get("order")
        if order is None:
            return None
        at = _counting(list(shape), order)
    else:
        at = _spanned(bases, len(shape))
    if len(at) != math.prod(shape):
        return None
    offset = np.zeros(shape, dtype=np.int64)
    offset[tuple(at.T)] = np.arange(len(at))
    offsets: Coordinates = offset[tuple(np.moveaxis(places, -1, 0))]
    pairs = [(int(every), int(more)) for every, more in re.findall(r"(\d+):\+(\d+)", layout)]
    return offsets + sum((offsets // every * more for every, more in pairs), np.zeros_like(offsets))


def _bases(layout: str, name: str) -> list[list[int]] | None:
    """The basis vectors of an input of a linear layout; None if it has none of this name."""
    match = re.search(rf"\b{name} = (\[\]|\[\[.*?\]\])", layout)
    if match is None:
        return None
    return [[int(n) for n in re.findall(r"\d+", vector)] for vector in re.findall(r"\[([\d, ]+)\]", match[1])]


def _spanned(bases: list[list[int]], rank: int) -> Coordinates:
    """What each number maps to whose bits stand for these vectors."""
    values = np.zeros((1 << len(bases), rank), dtype=np.int64)
    for bit, base in enumerate(bases):
        values[(np.arange(len(values)) >> bit & 1).astype(bool)] ^= np.array(base)
    return values


def _parameters(layout: str) -> dict[str, list[int]]:
    parameters = {}
    for name, value in _LIST.findall(layout):
        numbers = [int(number) for number in re.findall(r"-?\d+", value)]
        parameters[name] = numbers if numbers else [int(value == "true")]
    return parameters


@cache
def _elements(layout: str, shape: tuple[int, ...]) -> Coordinates | None:
    if layout.startswith("#ttg.slice"):
        match = re.match(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>$", layout)
        if match is None:
            return None
        dim = int(match[1])
        parent = _elements(match[2], (*shape[:dim], 1, *shape[dim:]))
        return None if parent is None else np.delete(parent, dim, axis=3)
    parameters = _parameters(layout)
    if layout.startswith("#ttg.blocked"):
        return _blocked(parameters, shape)
    if layout.startswith("#ttg.nvidia_mma") and len(shape) == 2:
        return _mma(parameters, shape)
    if layout.startswith("#ttg.linear"):
        return _linear(layout, shape)
    return None


def _blocked(parameters: dict[str, list[int]], shape: tuple[int, ...]) -> Coordinates | None:
    names = ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order")
    if any(len(parameters.get(name, ())) != len(shape) for name in names):
        return None
    size, threads, warps, order = (parameters[name] for name in names)
    tile = [a * b * c for a, b, c in zip(size, threads, warps, strict=True)]
    repeats = [max(length // whole, 1) for length, whole in zip(shape, tile, strict=True)]
    inside, outside = _counting(size, order), _counting(repeats, order)
    registers = np.array([o * np.array(tile) + i for o in outside for i in inside])
    lanes = _counting(threads, order) * np.array(size)
    groups = _counting(warps, order) * (np.array(size) * np.array(threads))
    coordinates = groups[:, None, None, :] + registers[None, :, None, :] + lanes[None, None, :, :]
    return np.asarray(coordinates % np.array(shape), dtype=np.int64)


def _counting(lengths: list[int], order: list[int]) -> Coordinates:
    """All indices below these lengths, the dimension that comes first in `order` running fastest."""
    slowest_first = [lengths[dim] for dim in reversed(order)]
    rows = np.array(list(product(*map(range, slowest_first))), dtype=np.int64)
    result = np.empty_like(rows)
    for place, dim in enumerate(reversed(order)):
        result[:, dim] = rows[:, place]
    return result


def _mma(parameters: dict[str, list[int]], shape: tuple[int, ...]) -> Coordinates | None:
    """Of the result of mma.sync and wgmma: 16 rows a warp, two neighbouring columns a lane (PTX ISA, wgmma, D)."""
    version, warps = parameters.get("versionMajor", [0])[0], parameters.get("warpsPerCTA", [])
    if version not in (2, 3) or len(warps) != 2:
        return None
    columns_of_warp = parameters["instrShape"][1]
    lane = np.arange(32)
    repeats = max(shape[0] // (16 * warps[0]), 1), max(shape[1] // (columns_of_warp * warps[1]), 1)
    registers = [
        (row * 16 * warps[0] + 8 * upper, column * columns_of_warp * warps[1] + 8 * block + pair)
        for row in range(repeats[0])
        for column in range(repeats[1])
        for block in range(columns_of_warp // 8)
        for upper in range(2)
        for pair in range(2)
    ]
    groups = _counting(warps, [0, 1] if version == 3 else [1, 0]) * np.array([16, columns_of_warp])
    lanes = np.stack([lane // 4, lane % 4 * 2], axis=1)
    coordinates = groups[:, None, None, :] + np.array(registers)[None, :, None, :] + lanes[None, None, :, :]
    return np.asarray(coordinates % np.array(shape), dtype=np.int64)


def _linear(layout: str, shape: tuple[int, ...]) -> Coordinates | None:
    parts = []
    for name in ("warp", "register", "lane"):
        bases = _bases(layout, name)
        if bases is None:
            return None
        parts.append(_spanned(bases, len(shape)))
    warp, register, lane = parts
    coordinates = warp[:, None, None, :] ^ register[None, :, None, :] ^ lane[None, None, :, :]
    return np.asarray(coordinates % np.array(shape), dtype=np.int64)
