"""Put `proton.record` pairs into TTGIR, and take them out again.

Which operations are recorded is data (`regions.toml`). A pair stands in one block, its start before its end, so the
records are balanced on every path whatever the control flow around them does. Every warp group has one more pair
around all it does, its lifetime; where the function's blocks branch, as at an early return, one in each block.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import PrivateAttr, ValidationError

from kperf.arch import completion
from kperf.console import complain
from kperf.errors import UsageError, first_line
from kperf.ir.compile import parse_ttgir
from kperf.ir.dataflow import Dataflow
from kperf.ir.names import Aliases
from kperf.ir.ttgir import Block, Module, Operation, Region
from kperf.record.files import read_text, write_atomically
from kperf.record.store import Frozen, first_of

RULES = Path(__file__).with_name("regions.toml")
LIFETIME = "lifetime of "
"""Prefix of the names of the scopes around all that a warp group does."""
MAX_SCOPES = 256
"""An event has 8 bits for the number of its scope."""

_RECORD = re.compile(r'^\s*proton\.record (start|end) "[^"]*"(?: loc\(.*\))?$')
_TERMINATORS = {"ttg.warp_yield", "ttg.warp_return", "tt.return", "cf.br", "cf.cond_br", "cf.switch"}
_INDEX_ARITHMETIC = re.compile(r"ttg\.memdesc_index|arith\.\w+")

Kind = Literal["tensor", "wait", "issue", "arithmetic", "load", "store", "signal"]
NEEDED: tuple[Kind, ...] = ("tensor", "wait", "issue", "load", "store", "signal", "arithmetic")
"""Which regions keep their events where there are too many, the first before the others: waits for MMAs and for loads,
then their issues. What has none is part of a gap, which its operations name."""
Detail = Literal["fine", "coarse"]
"""How many records.

fine: every recorded operation has its own pair. coarse: as few as leave the assembler free to move the arithmetic as it
may in the original kernel. MMA waits with no issue between them share a pair, and a barrier wait that
follows arithmetic has none: the assembler hoists it over the arithmetic, and a record before it would hold it back.
"""


class Rule(Frozen):
    """One entry of `regions.toml`; its comments say what the fields mean."""

    operation: str
    pattern: str = ""
    completes: bool = False
    region: str
    kind: Kind
    record: bool | Literal["without wgmma"]
    extend: tuple[str, ...] = ()


class Rules(Frozen):
    """`regions.toml`, and the aliases of a trade for what its regions are called."""

    rank: tuple[Kind, ...]
    rule: tuple[Rule, ...]
    aliases: Aliases = Aliases()
    _known: dict[str, list[Rule]] = PrivateAttr(default_factory=dict)

    def find(self, operation: Operation, dataflow: Dataflow) -> Rule | None:
        """The first rule that fits; none for what the aliases do not tell apart."""
        fitting = (rule for rule in self._about(operation.name) if re.search(rule.pattern, operation.rest))
        rule = next((rule for rule in fitting if not rule.completes or dataflow.guards.completes(operation)), None)
        return rule if rule is not None and self.aliases.regions.get(_general_name(rule, operation), "-") else None

    def _about(self, name: str) -> list[Rule]:
        """The rules of an operation's name: a module has thousands of operations and a few dozen names."""
        if name not in self._known:
            self._known[name] = [rule for rule in self.rule if fnmatchcase(name, rule.operation)]
        return self._known[name]

    def name(self, operation: Operation, dataflow: Dataflow) -> str:
        """The region of an operation; empty when no rule is about it."""
        rule = self.find(operation, dataflow)
        if rule is None:
            return ""
        name = _fill(rule.region, dataflow.fields(operation))
        return self.aliases.regions.get(name, name)


_NO_FIELDS = {"operation": "", "product": "", "buffer": "", "state": ""}


def _fill(template: str, fields: dict[str, str]) -> str:
    return " ".join(template.format(**(_NO_FIELDS | fields)).split())


def _general_name(rule: Rule, operation: Operation) -> str:
    return _fill(rule.region, {"operation": operation.name.rpartition(".")[2]})


def read_rules(path: Path = RULES, aliases: Path | None = None) -> Rules:
    """Read a rule file, and one of aliases; raises `UsageError` when it is not one."""
    try:
        rules = Rules.model_validate(_read_toml(path))
        for rule in rules.rule:
            re.compile(rule.pattern)
            _fill(rule.region, {})
    except ValidationError as error:
        raise UsageError(f"{path} is not a set of region rules: {first_of(error)}") from None
    except (re.error, LookupError, ValueError, AttributeError, OverflowError) as error:  # of a pattern, of a template
        raise UsageError(f"{path} is not a set of region rules: {first_line(error)}") from None
    if aliases is None:
        return rules
    try:
        return rules.model_copy(update={"aliases": Aliases.model_validate(_read_toml(aliases))})
    except ValidationError as error:
        raise UsageError(f"{aliases} is not a set of aliases: {first_of(error)}") from None
    except ValueError as error:
        raise UsageError(f"{aliases} is not a set of aliases: {first_line(error)}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    """Raises `UsageError` for what is no text, ValueError for what is no TOML."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


@dataclass
class _Pair:
    """A region to be recorded: the lines before which it starts and after which it ends.

    `rank`: those of the lowest are recorded before the others (`NEEDED`, and of these the innermost loops').
    """

    name: str
    first: int
    last: int
    rank: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Instrumented:
    """A module with events; `left_out`: how many regions have none, because there are more than `MAX_SCOPES`."""

    text: str
    left_out: int


def why_left_out(regions: int) -> str:
    """A sentence on so many regions without events; empty if there is none."""
    if not regions:
        return ""
    return (
        f"{regions} of its regions have no events, which number {MAX_SCOPES} at most, and are parts of the gaps "
        "between others: choose with --regions"
    )


def instrument(
    text: str, *, detail: Detail = "fine", regions: Sequence[str] = ("*",), rules: Rules | None = None
) -> str:
    """The text of `instrumented`."""
    return instrumented(text, detail=detail, regions=regions, rules=rules).text


def instrumented(
    text: str, *, detail: Detail = "fine", regions: Sequence[str] = ("*",), rules: Rules | None = None
) -> Instrumented:
    """The module `text` with a pair of events around every region whose name fits one of the patterns `regions`.

    Only whole lines are added. Of more regions than events can number those that are `NEEDED` first have events, inner
    loops before outer ones. Raises `UsageError` if the text does not parse, has events already, or no such region.
    """
    rules = rules or read_rules()
    if "proton.record" in text:
        raise UsageError("the TTGIR has events already: strip them first (kperf instrument --strip)")
    module = Module(text)
    _refuse_what_cannot_be_lowered(module)
    dataflow = Dataflow(module, rules.aliases)
    asynchronous = any(completion(op.name) in ("wgmma", "tcgen05") for op in module.walk())
    lifetimes: list[_Pair] = []
    pairs: list[_Pair] = []
    unknown = list(regions)
    for group in module.warp_groups():
        # The default partition's warps also run what stands around the partitions.
        own = module.function.regions[0] if group.region.label == "default" else group.region
        placed = (_place(region, rules, dataflow, detail, asynchronous) for region in (group.region, own))
        known = next((pairs for pairs in placed if pairs), [])
        unknown = [pattern for pattern in unknown if not any(fnmatchcase(pair.name, pattern) for pair in known)]
        chosen = [pair for pair in known if any(fnmatchcase(pair.name, pattern) for pattern in regions)]
        if chosen:
            lifetimes += _lifetimes(own, group.name)
            pairs += chosen
    if unknown:
        wanted = "" if unknown == ["*"] else f" named {', '.join(unknown)}"
        raise UsageError(f"the TTGIR has no region{wanted} to record; the rules are in {RULES.name}")
    if (room := MAX_SCOPES - len(lifetimes)) < 1:
        raise UsageError(
            f"its warp groups branch into {len(lifetimes)} blocks, more than the {MAX_SCOPES} that events can number"
        )
    kept = _most_needed(pairs, room)
    return Instrumented(_insert(text, [*lifetimes, *kept]), len(pairs) - len(kept))


def _most_needed(pairs: list[_Pair], room: int) -> list[_Pair]:
    """So many pairs in the order of the text; those of one rank that do not all fit are spread over the text."""
    kept: list[_Pair] = []
    for rank in sorted({pair.rank for pair in pairs}):
        equal = [pair for pair in pairs if pair.rank == rank]
        count = min(len(equal), room - len(kept))
        kept += [equal[number * len(equal) // count] for number in range(count)]
    return sorted(kept, key=lambda pair: pair.first)


def strip(text: str) -> str:
    """The text without its records: what `instrument` was given, byte for byte."""
    return "".join(line for line in text.splitlines(keepends=True) if not _RECORD.match(line.rstrip("\n")))


def _refuse_what_cannot_be_lowered(module: Module) -> None:
    """Say in one sentence what Triton's passes would crash on."""
    others = [op for op in module.functions if op is not module.function]
    if others:
        match = re.search(r"@([\w$.-]+)\(", others[0].rest)
        raise UsageError(
            f"{module.kernel_name} calls {match.group(1) if match else 'a function'}, which is not inlined: Triton's "
            "records reach one function only, so take its noinline away to trace the kernel"
        )
    if any(op.name == "ttg.warp_specialize" and _depth(op) for op in module.walk()):
        raise UsageError(
            f"{module.kernel_name} starts its warp groups anew inside of a loop: Triton's records need groups that "
            "start once"
        )


def _rank(op: Operation, rule: Rule) -> tuple[int, int]:
    return NEEDED.index(rule.kind), -_depth(op)


def _depth(op: Operation) -> int:
    """How many loops are around it."""
    owner = op.parent.owner if op.parent else None
    return 0 if owner is None else (owner.name in ("scf.for", "scf.while")) + _depth(owner)


def _blocks(region: Region) -> list[Block]:
    """The blocks of this region and of all inside it, but for other warps' partitions."""
    inside = [sub for op in region.operations for sub in op.regions if not sub.label.startswith("partition")]
    return [*region.blocks, *(block for sub in inside for block in _blocks(sub))]


def _place(region: Region, rules: Rules, dataflow: Dataflow, detail: Detail, asynchronous: bool) -> list[_Pair]:
    """The pairs in all blocks of a region that one warp group runs."""
    return [
        pair
        for block in _blocks(region)
        for pair in _pairs(block, rules, dataflow, _Placement(detail, asynchronous=asynchronous))
    ]


def _pairs(block: Block, rules: Rules, dataflow: Dataflow, placement: "_Placement") -> list[_Pair]:
    for op in block.operations:
        placement.visit(op, rules.find(op, dataflow), rules.name(op, dataflow))
    return placement.pairs


class _Placement:
    """Goes through the operations of one block and decides where pairs start and end."""

    def __init__(self, detail: Detail, *, asynchronous: bool) -> None:
        self.pairs: list[_Pair] = []
        self._detail = detail
        self._asynchronous = asynchronous
        self._extend: tuple[str, ...] = ()
        self._joinable: list[str] | None = None  # names in the last pair, while a later MMA's wait may still join it
        self._after_arithmetic = False  # some stands between the last pair and here

    def visit(self, op: Operation, rule: Rule | None, name: str) -> None:
        if self.pairs and op.name in self._extend:
            self.pairs[-1].last = op.last_line
            return
        if op.name.startswith("scf."):
            self._after_arithmetic = False
        if not _INDEX_ARITHMETIC.fullmatch(op.name):
            self._extend = ()
        if rule is None:
            return
        if rule.kind == "arithmetic" and not self._recorded(rule):
            self._after_arithmetic = True
            if self._joinable is not None:
                self._joinable.append(name)
        elif rule.kind == "issue":
            # An MMA after arithmetic is recorded from its issue on: that is where the arithmetic ends.
            self._joinable = None
            if self._after_arithmetic:
                self._open(op, rule, name, joinable=True)
        elif self._recorded(rule) and not (rule.kind == "wait" and self._detail == "coarse" and self._after_arithmetic):
            self._record(op, rule, name)

    def _recorded(self, rule: Rule) -> bool:
        return rule.record is True or (rule.record == "without wgmma" and not self._asynchronous)

    def _record(self, op: Operation, rule: Rule, name: str) -> None:
        self._extend = rule.extend
        coarse = self._detail == "coarse"
        if rule.kind == "tensor" and self._joinable is not None:
            self._joinable.append(name)
            last = self.pairs[-1]
            last.name, last.last = " + ".join(dict.fromkeys(self._joinable)), op.last_line
            last.rank = _rank(op, rule)
            self._joinable = self._joinable if coarse else None
            self._after_arithmetic = False
        else:
            self._open(op, rule, name, joinable=coarse and rule.kind == "tensor")

    def _open(self, op: Operation, rule: Rule, name: str, *, joinable: bool) -> None:
        self.pairs.append(_Pair(name, op.line, op.last_line, _rank(op, rule)))
        self._joinable = [name] if joinable else None
        self._after_arithmetic = False


def _lifetimes(region: Region, group: str) -> list[_Pair]:
    """A pair around each block of a region; around one in which nothing happens only if it is the first."""
    pairs = []
    for number, block in enumerate(region.blocks):
        inside = [op for op in block.operations if op.name not in _TERMINATORS]
        if inside:
            pairs.append(_Pair(LIFETIME + group, inside[0].line, inside[-1].last_line))
        elif number == 0 and block.operations:
            raise UsageError(f"{group} does nothing before it branches: there is no place for an event")
    return pairs


def _insert(text: str, pairs: list[_Pair]) -> str:
    lines = text.splitlines(keepends=True)
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for pair in pairs:  # lifetimes come first: their starts are the outermost, their ends too
        indent = lines[pair.first][: len(lines[pair.first]) - len(lines[pair.first].lstrip())]
        before.setdefault(pair.first, []).append(f'{indent}proton.record start "{pair.name}"\n')
        after.setdefault(pair.last, []).insert(0, f'{indent}proton.record end "{pair.name}"\n')
    result: list[str] = []
    for number, line in enumerate(lines):
        result += before.get(number, [])
        result.append(line)
        result += after.get(number, [])
    return "".join(result)


def run(
    file: Path, *, regions: Sequence[str], detail: str, rules: Path | None, strip_only: bool, out: Path | None
) -> str:
    """`kperf instrument`: read, add or take out, write; returns what was written."""
    if detail not in get_args(Detail):
        raise UsageError(f"unknown detail {detail!r}: choose from {', '.join(get_args(Detail))}")
    text = read_text(file)
    if strip_only:
        if [*regions] != ["*"] or detail != "fine" or rules is not None:
            raise UsageError("--strip takes all events out: leave --regions, --detail and --rules out")
        result = strip(text)
    else:
        made = instrumented(text, detail=cast(Detail, detail), regions=regions, rules=read_rules(rules or RULES))
        result = made.text
        parse_ttgir(result)  # what we write is what Triton reads
        if made.left_out:
            complain(f"{file}: {why_left_out(made.left_out)}")
    if out is None:
        sys.stdout.write(result)
    else:
        write_atomically(out, result)
    return result
