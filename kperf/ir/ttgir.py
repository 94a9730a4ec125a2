"""A reader of printed TTGIR: the tree of operations and regions, line by line, and what can run after what.

Triton's Python bindings can parse and print a module but hardly walk it; its printer puts one operation on a line and
one brace at a line's end, which is all that this reader relies on. It reads what `compile.canonical_ttgir` and
`compile.named_ttgir` give, and a compiled kernel's `asm["ttgir"]` with its locations.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from kperf.arch import Arch, of
from kperf.errors import UsageError
from kperf.ir.locations import Location, split

_OPERATION = re.compile(r'^(?:(?P<results>%[\w:, %$.-]+?) = )?"?(?P<name>[a-z_]\w*(?:\.\w+)+)"?(?P<rest>.*)$')
_SSA = re.compile(r"%[\w$.-]+(?:#\d+)?")
_LABEL = re.compile(r"^(default|partition\d+)\b")
_BLOCK = re.compile(r"^\^(?P<label>\w+)(?:\((?P<arguments>.*)\))?:")
_TARGET = re.compile(r"\^(\w+)")
_INLINE_ASM = "tt.elementwise_inline_asm"
_ENDS = ("tt.return", "ttg.warp_return")
_ARGUMENT = re.compile(r"(%[\w$.-]+): ")


@dataclass
class Operation:
    """One operation: `line` is its index in the text, `last_line` that of the brace which closes its last region.

    `location` is None where the text has none.
    """

    name: str
    results: tuple[str, ...]
    rest: str
    line: int
    last_line: int
    parent: "Region | None"
    regions: list["Region"] = field(default_factory=list)
    location: Location | None = None

    @cached_property
    def operands(self) -> tuple[str, ...]:
        """SSA names in the order they stand on the line (of `scf.for`, the induction variable and bounds too)."""
        text = self.rest
        if self.name == _INLINE_ASM:  # its text and its attributes stand before them
            text = text[text.rfind("} %") + 1 :]
        return tuple(_SSA.findall(text.split(" : ")[0]))

    def walk(self) -> Iterator["Operation"]:
        """This operation and all inside it, in the order of the text."""
        yield self
        for region in self.regions:
            yield from region.walk()


@dataclass
class Block:
    """Operations that run one after another; the last may branch to other blocks of the region by their labels."""

    label: str = ""
    arguments: tuple[str, ...] = ()
    operations: list[Operation] = field(default_factory=list)


@dataclass
class Region:
    """The blocks between two braces; `label` is `default` or `partitionN` for a warp group's, else empty."""

    label: str
    header: str
    line: int
    owner: Operation | None
    blocks: list[Block] = field(default_factory=lambda: [Block()])

    @property
    def operations(self) -> list[Operation]:
        """Those of all blocks, in the order of the text."""
        return [operation for block in self.blocks for operation in block.operations]

    def walk(self) -> Iterator[Operation]:
        """All operations inside, in the order of the text."""
        for operation in self.operations:
            yield from operation.walk()


def line_of(region: Region | None) -> int:
    """Where a region begins; -1 if there is none."""
    return -1 if region is None else region.line


@dataclass(frozen=True)
class WarpGroup:
    """One partition of a warp-specialised kernel, or the whole body of a plain one."""

    name: str
    region: Region
    num_warps: int


class Module:
    """The tree of one printed module. Raises `UsageError` if the text has no function or its braces do not balance."""

    def __init__(self, text: str) -> None:
        """Read the text, one operation a line. `lines` are those of the text, without their locations."""
        self.lines, self._locations = split(text)
        self.root = Region("", "", -1, None)
        self._read()
        self.functions = [op for op in self.root.walk() if op.name == "tt.func"]
        public = [op for op in self.functions if " public " in op.rest.split("(")[0] + " "]
        if len(public) != 1:
            raise UsageError(f"the TTGIR has {len(public)} public functions; an override has one")
        self.function = public[0]
        if not self.function.regions:
            raise UsageError("the public function of the TTGIR has no body")
        match = re.search(r"@([\w$.-]+)\(", self.function.rest)
        if match is None:
            raise UsageError("the TTGIR's function has no name")
        self.kernel_name = match.group(1)

    def _read(self) -> None:
        region = self.root
        for number, line in enumerate(self.lines):
            text = line.strip()
            if not text or text.startswith(("#", "//")):
                continue
            if block := _BLOCK.match(text):
                if region.blocks[-1].operations:
                    region.blocks.append(Block())
                region.blocks[-1].label = block["label"]
                region.blocks[-1].arguments = tuple(_ARGUMENT.findall(block["arguments"] or ""))
                continue
            if text.startswith("}"):
                if region.owner is None:
                    raise UsageError(f"the TTGIR closes a brace too many on line {number + 1}")
                owner, parent = region.owner, region.owner.parent
                owner.last_line = number
                owner.location = self._locations[number] or owner.location
                if text.endswith("{"):  # } else {
                    region = Region("", text, number, owner)
                    owner.regions.append(region)
                else:
                    region = parent if parent is not None else self.root
                continue
            label = _LABEL.match(text)
            if label and text.endswith("{") and region.blocks[-1].operations:
                owner = region.blocks[-1].operations[-1]
                region = Region(label.group(1), text, number, owner)
                owner.regions.append(region)
                continue
            operation = self._operation(text, number, region)
            region.blocks[-1].operations.append(operation)
            if text.endswith("{"):
                region = Region("", text, number, operation)
                operation.regions.append(region)
        if region is not self.root:
            raise UsageError("the TTGIR ends inside a region: it is truncated")

    def _operation(self, text: str, number: int, region: Region) -> Operation:
        if text.startswith("module "):
            return Operation("module", (), text[len("module ") :], number, number, region, [], self._locations[number])
        match = _OPERATION.match(text)
        if match is None:
            raise UsageError(f"line {number + 1} of the TTGIR is not an operation: {text[:60]}")
        results = tuple(name.split(":")[0].strip() for name in (match["results"] or "").split(",") if name.strip())
        location = self._locations[number]
        return Operation(match["name"], results, match["rest"], number, number, region, [], location)

    def walk(self) -> Iterator[Operation]:
        """All operations of the function, in the order of the text."""
        return self.function.walk()

    @property
    def arguments(self) -> tuple[str, ...]:
        """SSA names of the function's arguments, in order."""
        return tuple(_ARGUMENT.findall(self.function.rest.partition(" attributes ")[0]))

    @property
    def _before_function(self) -> str:
        """The module's attributes are there, behind a line for each layout and for each argument's name."""
        return "\n".join(self.lines[: self.function.line])

    @property
    def num_warps(self) -> int:
        """Warps of the default partition: the module's `ttg.num-warps`."""
        match = re.search(r'"ttg\.num-warps" = (\d+)', self._before_function)
        if match is None:
            raise UsageError('the TTGIR has no "ttg.num-warps" attribute')
        return int(match.group(1))

    @property
    def arch(self) -> Arch:
        """What it is for: the module's `ttg.target`. Raises `UsageError` for a target that is not known."""
        match = re.search(r'ttg\.target = "([\w:]+)"', self._before_function)
        if match is None:
            raise UsageError('the TTGIR has no "ttg.target" attribute')
        return of(match.group(1))

    def warp_groups(self) -> list[WarpGroup]:
        """The partitions, `default` first; one group named `all` if the kernel is not warp-specialised."""
        specialize = [op for op in self.walk() if op.name == "ttg.warp_specialize"]
        if not specialize:
            return [WarpGroup("all", self.function.regions[0], self.num_warps)]
        groups = []
        for op in specialize:
            for region in op.regions:
                if region.label == "default":
                    groups.append(WarpGroup("default", region, self.num_warps))
                elif region.label:
                    warps = re.search(r"num_warps\((\d+)\)", region.header)
                    groups.append(WarpGroup(region.label, region, int(warps.group(1)) if warps else self.num_warps))
        return groups

    def descriptor_boxes(self) -> list[tuple[tuple[int, int], str]]:
        """((rows, columns), element type) of each tensor-descriptor argument, in order."""
        boxes = re.findall(r"%[\w$.-]+: !tt\.tensordesc<(?:tensor<)?(\d+)x(\d+)x(\w+)", self.function.rest)
        return [((int(rows), int(columns)), dtype) for rows, columns, dtype in boxes]


Graph = dict[int, tuple[Operation, ...]]
"""Line of an operation -> the operations that can run next."""


def control_flow(region: Region) -> Graph:
    """What can run after what in a region and all inside it, in one warp of the region's group.

    A loop's own operation is passed before each of its iterations and at its end. Partitions are other warps' and not
    followed: each is a region of its own.
    """
    graph: Graph = {}
    _link_region(region, (), graph)
    return graph


def _link_region(region: Region, after: tuple[Operation, ...], graph: Graph) -> tuple[Operation, ...]:
    """Link a region that `after` follows; returns where it begins."""
    blocks = {block.label: block for block in region.blocks}
    for block in region.blocks:
        targets = _TARGET.findall(block.operations[-1].rest) if block.operations else []
        ends = block.operations and block.operations[-1].name in _ENDS
        following = tuple(blocks[target].operations[0] for target in targets if blocks[target].operations)
        _link(block.operations, following or (() if ends else after), graph)
    first = region.blocks[0].operations
    return (first[0],) if first else after


def _link(operations: list[Operation], after: tuple[Operation, ...], graph: Graph) -> None:
    for op in reversed(operations):
        if op.name == "scf.for":
            graph[op.line] = (*_link_region(op.regions[0], (op,), graph), *after)
        elif op.name == "scf.while":
            condition, body = op.regions
            again = _link_region(body, (op,), graph)
            graph[op.line] = _link_region(condition, (*again, *after), graph)
        elif op.name == "scf.if":
            ways = [start for region in op.regions for start in _link_region(region, after, graph)]
            graph[op.line] = (*ways, *(after if len(op.regions) < 2 else ()))
        elif op.name == "ttg.warp_specialize":
            default = [region for region in op.regions if region.label == "default"]
            graph[op.line] = _link_region(default[0], after, graph) if default else after
        else:
            graph[op.line] = after
        after = (op,)
