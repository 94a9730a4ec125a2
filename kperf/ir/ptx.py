"""The parts of a PTX module with one kernel, as LLVM writes it for Triton: what two of them need to become one."""

import re
from dataclasses import dataclass

from kperf.errors import UsageError

_ENTRY = re.compile(r"^\.visible \.entry (?P<name>[\w$]+)\((?P<parameters>[^)]*)\)\s*(?P<directives>[^{]*)\{\n", re.M)
_COMMENT = re.compile(r"//.*$", re.M)
_DECLARATION = re.compile(
    r"(?P<kind>\.extern \.shared|\.extern \.func|\.shared|\.global|\.const) [^=]*?(?P<name>[\w$]+)\s*(\[\d*\]|\()?"
    r"\s*(=|$)"
)
_PROTOTYPE = re.compile(r"\.extern \.func\s*(\([^)]*\))?\s*(?P<name>[\w$]+)\s*\([^)]*\)$")
_DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug_\w+\s*\{[^{}]*\}", re.M)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+("[^"\n]*")\s*$', re.M)
_LOC = re.compile(r"^(\s*\.loc\s+)(\d+)( \d+ \d+)[^/\n]*", re.M)


@dataclass(frozen=True)
class Ptx:
    """A module. `version`: its first directives; `declarations`: module-level ones by name, without the `;`.

    `parameters` and `directives`: the entry's, one space between words. `files`: quoted paths by number. `body`: what
    stands between the entry's braces.
    """

    version: str
    declarations: dict[str, str]
    entry: str
    parameters: str
    directives: str
    body: str
    files: dict[int, str]

    @property
    def parameter_names(self) -> list[str]:
        """Names of the parameters, in order."""
        return re.findall(r"([\w$]+)(?:\[\d+\])?(?:,|$)", self.parameters.replace(" ,", ","))

    def body_with_files(self, numbers: dict[int, int]) -> str:
        """The body with other numbers of files; the calls around an inlined line are left out."""

        def renumbered(line: re.Match[str]) -> str:
            return f"{line[1]}{numbers[int(line[2])]}{line[3]} "

        return _LOC.sub(renumbered, self.body)

    @property
    def text(self) -> str:
        """The module as ptxas takes it, without debug sections."""
        declarations = "".join(f"{declaration};\n" for declaration in self.declarations.values())
        head = self.version.replace(" .", "\n.")
        files = "".join(f"\t.file\t{number} {path}\n" for number, path in self.files.items())
        return (
            f"{head}\n\n{declarations}.visible .entry {self.entry}({self.parameters})\n{self.directives}\n"
            f"{{\n{self.body}}}\n{files}"
        )


def read_ptx(text: str) -> Ptx:
    """The parts of a module with one entry. Raises `UsageError` for what is not understood, a sentence each."""
    entries = list(_ENTRY.finditer(text))
    if len(entries) != 1 or len(re.findall(r"\.entry\b", _COMMENT.sub("", text))) != 1:
        raise UsageError(f"its PTX has {len(entries)} entries that are understood, and one is needed")
    (entry,) = entries
    end = _closing_brace(text, entry.end())
    version, declarations = _head(text[: entry.start()])
    body, files = text[entry.end() : end], _files(text[end + 1 :])
    used = {int(number) for _, number, _ in _LOC.findall(body)} - set(files)
    if used:
        raise UsageError(f"its PTX names file {min(used)}, which it does not list")
    return Ptx(
        version,
        declarations,
        entry["name"],
        _one_line(entry["parameters"]),
        _one_line(entry["directives"]),
        body,
        files,
    )


def with_registers(text: str, most: int) -> str:
    """The module with at most so many registers a thread, where it has no limit of its own.

    Raises `UsageError` unless it has one entry that says how many threads a CTA has.
    """
    if re.search(r"^\s*\.maxnreg\b", text, re.M):
        return text
    limited, count = re.subn(r"^(\s*\.reqntid [\d, ]+)$", rf"\1\n.maxnreg {most}", text, flags=re.M)
    if count != 1:
        raise UsageError(f"its PTX says at {count} places how many threads a CTA has, and one is needed")
    return limited


def _one_line(text: str) -> str:
    return " ".join(_COMMENT.sub("", text).split())


def _closing_brace(text: str, start: int) -> int:
    """Where the brace is that closes the one before `start`; comments and strings count for nothing."""
    depth = 1
    for token in re.compile(r'//.*|/\*.*?\*/|"[^"\n]*"|[{}]').finditer(text, start):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0:
            return token.start()
    raise UsageError("its PTX ends before its entry does")


def _head(text: str) -> tuple[str, dict[str, str]]:
    """The first directives, and the declarations by name."""
    text = _COMMENT.sub("", text)
    first = re.match(r"\s*\.version \S+\s+\.target [^\n]+\s+\.address_size \d+\n", text)
    if first is None:
        raise UsageError("its PTX does not begin with version, target and size of addresses")
    declarations: dict[str, str] = {}
    for statement in text[first.end() :].split(";"):
        declaration = " ".join(statement.split())
        if not declaration:
            continue
        match = _PROTOTYPE.match(declaration) or _DECLARATION.match(declaration)
        if match is None:
            raise UsageError(f"its PTX declares what is not understood: {declaration[:60]}")
        declarations[match["name"]] = declaration
    return _one_line(first[0]), declarations


def _files(text: str) -> dict[int, str]:
    """The table of files behind the entry, where nothing else stands but debug sections."""
    text = _DEBUG_SECTION.sub("", _COMMENT.sub("", text))
    if rest := _FILE.sub("", text).strip():
        raise UsageError(
            f"its PTX has more behind its entry than files and debug sections: {rest.splitlines()[0][:60]}"
        )
    return {int(number): path for number, path in _FILE.findall(text)}
