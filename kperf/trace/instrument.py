"""Put `proton.record` pairs into TTGIR, and take them out again.

Which operations are recorded is data (`regions.toml`). A pair stands in one block, its start before its end, so the
records are balanced on every path whatever the control flow around them does. Every warp group has one more pair
around all it does, its lifetime.
"""

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from kperf.compile import parse_ttgir
from kperf.errors import UsageError
from kperf.files import write_atomically
from kperf.trace.dataflow import Dataflow
from kperf.ttgir import Module, Operation, Region

RULES = Path(__file__).with_name("regions.toml")
LIFETIME = "lifetime"
MAX_SCOPES = 256
"""A record has 8 bits for the number of its scope."""

_RECORD = re.compile(r'^\s*proton\.record (start|end) "[^"]*"(?: loc\(.*\))?$')
_TERMINATORS = {"ttg.warp_yield", "ttg.warp_return", "tt.return"}
_INDEX_ARITHMETIC = re.compile(r"ttg\.memdesc_index|arith\.\w+")

Kind = Literal["tensor", "wait", "issue", "arithmetic", "load", "store", "signal"]
Detail = Literal["fine", "coarse"]
"""fine: every recorded operation has its own pair. coarse: matrix-product waits with no issue between them share one, so
that nothing keeps the assembler from moving the arithmetic between them below the last, as it may in the plain kernel."""


class Rule(BaseModel):
    """One entry of `regions.toml`; its comments say what the fields mean."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    operation: str
    pattern: str = ""
    region: str
    kind: Kind
    record: bool
    extend: tuple[str, ...] = ()

    def fits(self, operation: Operation) -> bool:
        """Whether this rule is about `operation`."""
        return operation.name == self.operation and re.search(self.pattern, operation.rest) is not None


class Rules(BaseModel):
    """`regions.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: tuple[Kind, ...]
    rule: tuple[Rule, ...]

    def find(self, operation: Operation) -> Rule | None:
        """The first rule that fits."""
        return next((rule for rule in self.rule if rule.fits(operation)), None)

    def name(self, operation: Operation, dataflow: Dataflow) -> tuple[str, Kind] | None:
        """Region and kind of an operation, or None when no rule is about it."""
        rule = self.find(operation)
        if rule is None:
            return None
        fields = {"product": "", "buffer": "", "state": ""} | dataflow.fields(operation)
        return " ".join(rule.region.format(**fields).split()), rule.kind


def read_rules(path: Path = RULES) -> Rules:
    """Read a rule file; raises `UsageError` when it is not one."""
    try:
        rules = Rules.model_validate(tomllib.loads(path.read_text()))
        for rule in rules.rule:
            re.compile(rule.pattern)
            rule.region.format(product="", buffer="", state="")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the rules {path} cannot be read: {error}") from None
    except (tomllib.TOMLDecodeError, ValidationError, re.error, KeyError, IndexError, ValueError) as error:
        raise UsageError(f"{path} is not a set of region rules: {str(error).splitlines()[0]}") from None
    return rules


@dataclass
class _Pair:
    """A region to be recorded: the lines before which it starts and after which it ends."""

    name: str
    first: int
    last: int


def instrument(
    text: str, *, detail: Detail = "fine", regions: Sequence[str] = ("*",), rules: Rules | None = None
) -> str:
    """The module `text` with a pair of records around every region whose name fits one of the patterns `regions`.

    Only whole lines are added. Raises `UsageError` if the text does not parse, has records already, or has no such region.
    """
    rules = rules or read_rules()
    if "proton.record" in text:
        raise UsageError("the TTGIR has records already: strip them first (kperf instrument --strip)")
    module = Module(text)
    dataflow = Dataflow(module)
    pairs: list[_Pair] = []
    for group in module.warp_groups():
        found = [
            pair
            for region in _blocks(group.region)
            for pair in _pairs(region, rules, dataflow, detail)
            if any(fnmatchcase(pair.name, pattern) for pattern in regions)
        ]
        if found:
            pairs += [_lifetime(group.region), *found]
    if not pairs:
        wanted = "" if tuple(regions) == ("*",) else f" named {', '.join(regions)}"
        raise UsageError(f"the TTGIR has no region{wanted} to record; the rules are in {RULES.name}")
    if len(pairs) > MAX_SCOPES:
        raise UsageError(
            f"{len(pairs)} regions are more than the {MAX_SCOPES} that records can number: choose with --regions"
        )
    return _insert(text, pairs)


def strip(text: str) -> str:
    """The text without its records: what `instrument` was given, byte for byte."""
    return "".join(line for line in text.splitlines(keepends=True) if not _RECORD.match(line.rstrip("\n")))


def _blocks(region: Region) -> list[Region]:
    """This region and all inside it."""
    return [region] + [inner for op in region.operations for sub in op.regions for inner in _blocks(sub)]


def _pairs(region: Region, rules: Rules, dataflow: Dataflow, detail: Detail) -> list[_Pair]:
    pairs: list[_Pair] = []
    extend: tuple[str, ...] = ()
    joinable: list[str] | None = None  # names in the last pair, while a later matrix-product wait may still join it
    after_arithmetic = False  # since the last pair: the next one is where the arithmetic ends
    for op in region.operations:
        if pairs and op.name in extend:
            pairs[-1].last = op.last_line
            continue
        if not _INDEX_ARITHMETIC.fullmatch(op.name):
            extend = ()
        rule, name = rules.find(op), rules.name(op, dataflow)
        if rule is None or name is None:
            continue
        if rule.kind == "arithmetic":
            after_arithmetic = True
            if joinable is not None:
                joinable.append(name[0])
            continue
        if rule.kind == "issue":
            joinable = [name[0]] if after_arithmetic else None
        if not rule.record and not (rule.kind == "issue" and after_arithmetic):
            continue
        extend = rule.extend
        if rule.kind == "tensor" and joinable is not None:
            joinable.append(name[0])
            pairs[-1].name, pairs[-1].last = " + ".join(dict.fromkeys(joinable)), op.last_line
        else:
            pairs.append(_Pair(name[0], op.line, op.last_line))
        if rule.kind == "tensor" and detail == "fine":
            joinable = None
        elif rule.kind != "issue":
            joinable = [name[0]] if rule.kind == "tensor" else None
        after_arithmetic = False
    return pairs


def _lifetime(region: Region) -> _Pair:
    operations = region.operations
    last = operations[-2] if len(operations) > 1 and operations[-1].name in _TERMINATORS else operations[-1]
    return _Pair(LIFETIME, operations[0].line, last.last_line)


def _insert(text: str, pairs: list[_Pair]) -> str:
    lines = text.splitlines(keepends=True)
    before: dict[int, list[str]] = {}
    after: dict[int, list[str]] = {}
    for pair in pairs:  # the lifetime comes first: its start is the outermost, its end too
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
) -> None:
    """`kperf instrument`: read, add or take out, write."""
    if detail not in get_args(Detail):
        raise UsageError(f"unknown detail {detail!r}: choose from {', '.join(get_args(Detail))}")
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    if strip_only:
        result = strip(text)
    else:
        result = instrument(text, detail=cast(Detail, detail), regions=regions, rules=read_rules(rules or RULES))
        parse_ttgir(result)  # what we write is what Triton reads
    if out is None:
        sys.stdout.write(result)
    else:
        write_atomically(out, result)
