"""Where in the source an operation comes from: the locations that MLIR prints, with the calls that were inlined.

The grammar is MLIR's (mlir.llvm.org/docs/Dialects/Builtin, "Location Attributes"): `loc("file":line:column)`,
`loc("name"(child))`, `loc(callsite(callee at caller))`, `loc(fused<data>[one, other])`, `loc(unknown)` and aliases
`#locN`, which may be defined after their use.
"""

import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

_STRING = r'"(?:[^"\\]|\\.)*"'
_TOKEN = re.compile(rf"{_STRING}|(?<![\w$.#%@!-])loc\(|[()]")
_PART = re.compile(rf"\s*({_STRING}|#[\w$.-]+|-?\d+|\w+|[():,\[\]<>])")
_ALIAS = re.compile(r"^(#[\w$.-]+) = loc\((.*)\)\s*$")
_LIBRARY = re.compile(r"[/\\]triton[/\\](?:language|experimental|runtime|tools)[/\\]")
_ESCAPE = re.compile(r'\\([0-9A-Fa-f]{2}|["\\nt])')
_PLACE = re.compile(rf"({_STRING}):(\d+)(?=:\d)")
_OCTAL = re.compile(r'\\([0-7]{3}|["\\])')
_DEEPEST = 100
"""Nested locations that are followed: aliases of a damaged text may name each other."""


@dataclass(frozen=True)
class Frame:
    """A place in a source file. Lines and columns count from 1; a column of 0 is unknown."""

    file: str
    line: int
    column: int = 0

    @property
    def in_library(self) -> bool:
        """Whether it is in Triton's own language library, which no user changes."""
        return _LIBRARY.search(self.file) is not None


def of_user(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame outside of Triton's library; the innermost of all if there is none outside."""
    return next((frame for frame in frames if not frame.in_library), next(iter(frames), None))


@dataclass(frozen=True)
class Location:
    """Where an operation comes from.

    frames: the place itself, then the calls around it that were inlined, the innermost first. names: of the variables
    to which the value was assigned, the innermost last. fused: where the operation was made of several, the others.
    """

    frames: tuple[Frame, ...] = ()
    names: tuple[str, ...] = ()
    fused: tuple["Location", ...] = ()

    @property
    def frame(self) -> Frame | None:
        """Its line of source: `of_user`."""
        return of_user(self.frames)


UNKNOWN = Location()


@dataclass(frozen=True)
class Moved:
    """From where lines stood when a kernel was compiled to where they stand now.

    lines: of each file, as it was called then, (line then, file now, line now) in order. What lies between two of them
    has moved as the one above.
    """

    lines: Mapping[str, Sequence[tuple[int, str, int]]] = field(default_factory=dict)

    @staticmethod
    def between(then: str, now: str) -> "Moved":
        """What moved from one text to another of the same module, no function of which has been inlined."""
        before, after = _places(then), _places(now)
        if before == after or len(before) != len(after):
            return STAYED
        lines: dict[str, set[tuple[int, str, int]]] = {}
        for (file, line), (file_now, line_now) in zip(before, after, strict=True):
            lines.setdefault(file, set()).add((line, file_now, line_now))
        return Moved({file: sorted(pairs) for file, pairs in lines.items()})

    def frame(self, then: Frame) -> Frame:
        """The place now; of a file of which nothing is known, the same."""
        if not (known := self.lines.get(then.file)):
            return then
        line, file, line_now = known[max(bisect(known, then.line, key=itemgetter(0)) - 1, 0)]
        return replace(then, file=file, line=then.line + line_now - line)

    def text(self, then: str) -> str:
        """MLIR with the places of its locations as they are now."""

        def place(match: re.Match[str]) -> str:
            now = self.frame(Frame(unquoted(match[1]), int(match[2])))
            return f"{quoted(now.file)}:{now.line}"

        return _PLACE.sub(place, then) if self.lines else then


STAYED = Moved()


def _places(text: str) -> list[tuple[str, int]]:
    """File and line of each location of a text, in its order."""
    return [(unquoted(file), int(line)) for file, line in _PLACE.findall(text)]


def strip(text: str) -> str:
    """The text without its locations, and without the lines that define aliases of locations."""
    return "".join(_without(line)[0] for line in text.splitlines(keepends=True) if not _ALIAS.match(line))


def split(text: str) -> tuple[list[str], list[Location | None]]:
    """Lines without their locations, and of each line the location at its end; lines of aliases are empty.

    A location that cannot be read is `UNKNOWN`.
    """
    lines = text.splitlines()
    if "loc(" not in text:
        return lines, [None] * len(lines)
    aliases = {match[1]: match[2] for line in lines if (match := _ALIAS.match(line))}
    known: dict[str, Location] = {}
    bare: list[str] = []
    locations: list[Location | None] = []
    for line in lines:
        if _ALIAS.match(line):
            bare.append("")
            locations.append(None)
            continue
        without, last = _without(line)
        bare.append(without)
        if last is not None and last not in known:
            known[last] = read(last, aliases)
        locations.append(None if last is None else known[last])
    return bare, locations


def read(text: str, aliases: Mapping[str, str] | None = None) -> Location:
    """The location in `text`, which stands between the brackets of `loc(...)`; `UNKNOWN` if it cannot be read."""
    try:
        return _Reader(text, aliases or {}, 0).location()
    except (ValueError, StopIteration):
        return UNKNOWN


def _without(line: str) -> tuple[str, str | None]:
    """The line without its locations, and the one with which it ends."""
    kept: list[str] = []
    last: str | None = None
    copied = 0
    for start, end in _spans(line):
        kept.append(line[copied:start].removesuffix(" "))
        copied = end
        last = line[start + len("loc(") : end - 1] if not line[end:].strip() else None
    return "".join(kept) + line[copied:], last


def _spans(line: str) -> Iterator[tuple[int, int]]:
    """Start and end of each `loc(...)` of a line, outside of strings."""
    depth, start = 0, None
    for token in _TOKEN.finditer(line):
        if token[0] == "loc(" and start is None:
            start, depth = token.start(), 1
        elif start is not None and token[0] in ("(", "loc("):
            depth += 1
        elif start is not None and token[0] == ")":
            depth -= 1
            if depth == 0:
                yield start, token.end()
                start = None


class _Reader:
    """Reads one location, token by token; raises ValueError or StopIteration where the text is none."""

    def __init__(self, text: str, aliases: Mapping[str, str], depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("locations that name each other")
        self._tokens = _PART.findall(text)
        self._aliases = aliases
        self._depth = depth
        self._at = 0

    def location(self) -> Location:
        token = self._next()
        if token == "loc":  # with its own brackets, as in an alias's definition
            self._expect("(")
            inner = self.location()
            self._expect(")")
            return inner
        if token.startswith("#"):
            return _Reader(self._aliases.get(token, "unknown"), self._aliases, self._depth + 1).location()
        if token == "callsite":
            self._expect("(")
            callee = self.location()
            self._expect("at")
            caller = self.location()
            self._expect(")")
            return replace(callee, frames=callee.frames + caller.frames)
        if token == "fused":
            return self._fused()
        if token.startswith('"'):
            return self._file_or_name(unquoted(token))
        if token == "unknown":
            return UNKNOWN
        raise ValueError(token)

    def _fused(self) -> Location:
        if self._peek() == "<":
            depth = 0
            while depth or self._peek() == "<":
                depth += {"<": 1, ">": -1}.get(self._next(), 0)
        self._expect("[")
        parts = []
        while self._peek() != "]":
            parts.append(self.location())
            if self._peek() == ",":
                self._next()
        self._expect("]")
        known = [part for part in parts if part.frames] or [UNKNOWN]
        return replace(known[0], fused=known[0].fused + tuple(known[1:]))

    def _file_or_name(self, text: str) -> Location:
        if self._peek() == "(":
            self._next()
            child = self.location()
            self._expect(")")
            return replace(child, names=(text, *child.names))
        if self._peek() != ":":
            return Location(names=(text,))
        self._next()
        line, column = int(self._next()), 0
        if self._peek() == ":":
            self._next()
            column = int(self._next())
        if self._peek() == "to":  # a range: where it begins is enough
            self._next()
            while self._peek() == ":" or self._peek().isdigit():
                self._next()
        return Location((Frame(text, line, column),))

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        if self._at == len(self._tokens):
            raise StopIteration
        self._at += 1
        return str(self._tokens[self._at - 1])

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise ValueError(token)


def unquoted(token: str) -> str:
    """What an MLIR string says: bytes outside of ASCII are printed as two hexadecimal digits."""

    def character(match: re.Match[str]) -> str:
        return {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}.get(match[1]) or chr(int(match[1], 16))

    return _of_bytes(_ESCAPE.sub(character, token[1:-1]))


def quoted(text: str) -> str:
    """The MLIR string that says a text."""
    plain = {byte: chr(byte) for byte in range(32, 127)} | {ord('"'): r"\22", ord("\\"): r"\\"}
    return '"' + "".join(plain.get(byte, f"\\{byte:02X}") for byte in text.encode()) + '"'


def unescaped(text: str) -> str:
    """What a string in LLVM's assembly says, without its quotes: bytes outside of ASCII are three octal digits."""
    return _of_bytes(_OCTAL.sub(lambda match: match[1] if len(match[1]) == 1 else chr(int(match[1], 8)), text))


def _of_bytes(text: str) -> str:
    try:
        return text.encode("latin-1").decode()
    except (UnicodeEncodeError, UnicodeDecodeError):
        return text
