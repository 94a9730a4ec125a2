"""The levels that a kernel is compiled through, from TTIR to machine code, each line with its line of source.

TTIR and TTGIR have MLIR's locations; LLVM IR has debug metadata (llvm.org/docs/LangRef, "DILocation"); PTX and AMD's
assembly have `.loc` directives, with the calls that were inlined in the comment that LLVM prints beside them.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from kperf.arch import Arch
from kperf.ir.locations import STAYED, Frame, Moved, of_user, unescaped, unquoted
from kperf.ir.machine import MachineCode
from kperf.ir.ttgir import Module

LEVELS = ("ttir", "ttgir", "llir", "ptx", "sass", "gcn")
"""In the order of compilation; sass is NVIDIA's machine code, gcn AMD's."""
_OF_BACKEND = {"cuda": LEVELS[:5], "hip": ("ttir", "ttgir", "llir", "gcn")}
TEXTS = {"ttir": "ttir", "ttgir": "ttgir", "llir": "llir", "ptx": "ptx", "gcn": "amdgcn"}
"""Level -> what Triton calls its text, and how a file of its cache ends; sass is read from the cubin."""

_METADATA = re.compile(r"^(!\d+) = (?:distinct )?!(DI\w+)\((.*)\)$", re.MULTILINE)
_FIELD = re.compile(r'(\w+): (!\d+|-?\d+|"[^"]*")')
_DEBUG = re.compile(r",? !dbg (!\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"(?:\s+"((?:[^"\\]|\\.)*)")?', re.MULTILINE)
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*?(?://|;)\s*(\S.*))?$")
_CALLER = re.compile(r"@\[ (.+?):(\d+):(\d+)")
_TEMPORARY = re.compile(r"^(?:\$L__|\.L)(?:tmp|func_)\w*:$")
_SECTION = re.compile(r"^\.(?:text$|section\s+([^\s,]+))")
_DIRECTIVE = re.compile(r"^\.\w+(?!\w*:)")
_DEEPEST = 100
"""Calls that are followed: those of a damaged text may go round."""


@dataclass(frozen=True)
class Line:
    """A line of a level. frames: its line of source and the calls around it, the innermost first; empty if unknown."""

    text: str
    frames: tuple[Frame, ...] = ()

    @property
    def frame(self) -> Frame | None:
        """Its line of source: `of_user`."""
        return of_user(self.frames)


def levels_of(arch: Arch) -> tuple[str, ...]:
    """The levels that a kernel for an architecture goes through."""
    return _OF_BACKEND[arch.backend]


def read_levels(texts: Mapping[str, str], code: MachineCode | None, moved: Moved = STAYED) -> dict[str, list[Line]]:
    """The levels that there are. texts: by the names of `LEVELS`; code: the sass.

    moved: from where lines stood in the texts to where they stand in `code` and shall in all levels.
    Raises `UsageError` if TTIR or TTGIR is cut short.
    """
    readers: dict[str, Callable[[str], list[Line]]] = {
        "ttir": _mlir,
        "ttgir": _mlir,
        "llir": _llvm,
        "ptx": partial(_assembly, "//"),
        "gcn": partial(_assembly, ";"),
    }
    levels = {level: _moved(readers[level](texts[level]), moved) for level in LEVELS if level in texts}
    if code is not None:
        levels["sass"] = _with_calls(_sass(code), levels.get("ptx", ()))
    return {level: levels[level] for level in LEVELS if level in levels}


def _moved(lines: list[Line], moved: Moved) -> list[Line]:
    return [replace(line, frames=tuple(map(moved.frame, line.frames))) for line in lines]


def _mlir(text: str) -> list[Line]:
    module = Module(text)
    frames = {op.line: op.location.frames for op in module.root.walk() if op.location is not None}
    return [Line(line.rstrip(), frames.get(number, ())) for number, line in enumerate(module.lines) if line.strip()]


def _llvm(text: str) -> list[Line]:
    """Of LLVM IR the functions and what they refer to, without metadata."""
    nodes = {name: (kind, dict(_FIELD.findall(fields))) for name, kind, fields in _METADATA.findall(text)}
    lines = []
    for line in text.splitlines():
        if not line.strip() or line.startswith(("!", ";", "attributes ", "source_filename", "target ")):
            continue
        at = _DEBUG.search(line)
        lines.append(Line(_DEBUG.sub("", line), tuple(_frames(at[1], nodes)) if at else ()))
    return lines


def _frames(name: str, nodes: Mapping[str, tuple[str, Mapping[str, str]]]) -> Iterator[Frame]:
    """Of a DILocation and those that it is inlined at; of a function (its `define`) where it begins."""
    for _ in range(_DEEPEST):
        kind, fields = nodes.get(name, ("", {}))
        line, column = (int(text) if (text := fields.get(key, "")).isdecimal() else 0 for key in ("line", "column"))
        scope = name if kind == "DISubprogram" else fields.get("scope", "")
        _, scope_fields = nodes.get(scope, ("", {}))
        _, file = nodes.get(scope_fields.get("file", ""), ("", {}))
        if line and "filename" in file:
            folder, base = unquoted(file.get("directory", '""')), unquoted(file["filename"])
            yield Frame(_joined(folder, base), line, column)
        if "inlinedAt" not in fields:
            return
        name = fields["inlinedAt"]


def _assembly(comment: str, text: str) -> list[Line]:
    """Instructions, labels to which something jumps, and PTX's declarations; a `.loc` holds until the next."""
    files = _files(text)
    frames: tuple[Frame, ...] = ()
    lines = []
    in_code = True
    for line in text.splitlines():
        if loc := _LOC.match(line):
            frames = tuple(_called(loc, files))
            continue
        word = " ".join(line.partition(comment)[0].split())
        if section := _SECTION.match(word):
            in_code = section[1] is None or section[1].startswith(".text")
        if not in_code or not word or _TEMPORARY.match(word) or (_DIRECTIVE.match(word) and comment == ";"):
            continue
        if not word.startswith(".file"):
            lines.append(
                Line("    " * line[:1].isspace() + word, () if word[0] in ".{})" or word.endswith(":") else frames)
            )
    return lines


def _called(loc: re.Match[str], files: Mapping[str, str]) -> Iterator[Frame]:
    """The frames of a `.loc`: the comment names the calls' files without their folders."""
    number, line, column, comment = loc.groups()
    if int(line):
        yield Frame(files.get(number, ""), int(line), int(column))
        for base, caller, at in _CALLER.findall(comment or ""):
            whole = [path for path in files.values() if path.rpartition("/")[2] == base]
            yield Frame(whole[0] if len(whole) == 1 else base, int(caller), int(at))


def _files(text: str) -> dict[str, str]:
    """Number of a `.file` -> its path. AMD's assembly has the folder apart."""
    return {
        number: _joined(unescaped(first), unescaped(second)) if second else unescaped(first)
        for number, first, second in _FILE.findall(text)
    }


def _joined(folder: str, name: str) -> str:
    return name if not folder or name.startswith("/") else f"{folder.rstrip('/')}/{name}"


def _sass(code: MachineCode) -> list[Line]:
    """Without the instructions that it is padded with."""
    padding = next((n for n, last in enumerate(reversed(code.instructions)) if last.opcode != "NOP"), 0)
    instructions = code.instructions[: len(code.instructions) - padding]
    words = (f"{i.predicate} {i.opcode} {i.operands}".strip() for i in instructions)
    return [Line(f"{i.address:04x}  {text}", i.frames) for i, text in zip(instructions, words, strict=True)]


def _with_calls(sass: list[Line], ptx: Iterable[Line]) -> list[Line]:
    """The calls around instructions of which ptxas keeps the innermost line alone, where PTX has one way to it."""
    ways: dict[tuple[str, int], set[tuple[Frame, ...]]] = defaultdict(set)
    for line in ptx:
        if line.frames:
            ways[line.frames[0].file, line.frames[0].line].add(tuple(replace(frame, column=0) for frame in line.frames))
    return [
        replace(line, frames=next(iter(way)))
        if len(line.frames) == 1 and len(way := ways[line.frames[0].file, line.frames[0].line]) == 1
        else line
        for line in sass
    ]
