"""Every small change of a source file: one operator, number, condition, result or step at a time.

An own generator of a page, because mutmut and cosmic-ray either rewrite the functions whose source Triton reads or
start an interpreter, which imports torch for seconds, for each mutant. Texts, annotations and decorators stay: what a
sentence says is for its reader to judge.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==",
    "in": "not in", "not in": "in", "is": "is not", "is not": "is",
    "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
    "and": "or", "or": "and",
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil"}
STATEMENTS = {ast.Raise: "pass", ast.Break: "continue", ast.Continue: "break"}

Change = tuple[tuple[int, int], str]
"""The bytes [start, end) and what stands there instead."""


@dataclass(frozen=True)
class Mutant:
    """`new` in place of the bytes [start, end) of a file; `function`: the first line of the def around it, or 0."""

    file: str
    line: int
    function: int
    start: int
    end: int
    old: str
    new: str

    def apply(self, source: bytes) -> bytes:
        """The changed file."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        """One line for the table."""
        return f"{self.file}:{self.line}: {self.old} -> {self.new}"


def mutants(root: Path, file: str) -> list[Mutant]:
    """All mutants of a file, in the order of its text."""
    source = (root / file).read_bytes()
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))

    def at(line: int, column: int) -> int:
        return begins[line - 1] + column

    def span(node: ast.AST) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)

    found = []
    for node, function in _walk(ast.parse(source), 0):
        for (start, end), new in _changes(node, span, source):
            old = source[start:end].decode()
            found.append(Mutant(file, source.count(b"\n", 0, start) + 1, function, start, end, _short(old), new))
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.new))


def function_at(source: bytes, line: int) -> int:
    """The first line of the innermost def around a line, its decorators' first where it has them; 0 outside of any."""
    return max((start for start, end in _functions(ast.parse(source)) if start <= line <= end), default=0)


def _functions(tree: ast.AST) -> Iterator[tuple[int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield _first_line(node), node.end_lineno


def _first_line(node: ast.FunctionDef) -> int:
    """As Python counts it for the code that it makes."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _walk(node: ast.AST, function: int) -> Iterator[tuple[ast.AST, int]]:
    """Every node but annotations, decorators and types, with the def around it."""
    function = _first_line(node) if isinstance(node, ast.FunctionDef) else function
    yield node, function
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_type_alias(child):
                yield from _walk(child, function)


def _is_type_alias(node: ast.AST) -> bool:
    """`Name = Annotated[...]` or `Literal[...]`."""
    match node:
        case ast.Assign(value=ast.Subscript(value=ast.Name(id="Annotated" | "Literal"))):
            return True
    return False


def _changes(node: ast.AST, span: Callable[[ast.AST], tuple[int, int]], source: bytes) -> Iterator[Change]:  # noqa: PLR0912
    """Each change at this node."""
    match node:
        case ast.Compare():
            for left, right in zip([node.left, *node.comparators], node.comparators, strict=False):
                yield from _operator(span(left)[1], span(right)[0], source)
        case ast.BinOp():
            yield from _operator(span(node.left)[1], span(node.right)[0], source)
        case ast.BoolOp():
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from _operator(span(left)[1], span(right)[0], source)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            start, _ = span(node)
            yield (start, start + (3 if isinstance(node.op, ast.Not) else 1)), ""
        case ast.AugAssign():
            yield from _operator(span(node.target)[1], span(node.value)[0], source)
        case ast.Constant(value=bool()):
            yield span(node), str(not node.value)
        case ast.Constant(value=int() | float()):
            yield span(node), repr(node.value + 1)
        case ast.Name() if node.id in NAMES:
            yield span(node), NAMES[node.id]
        case ast.If() | ast.While() | ast.IfExp():
            start, end = span(node.test)
            yield (start, end), f"(not ({source[start:end].decode()}))"
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield span(node.value), "None"
        case ast.Expr(value=ast.Call()):
            yield span(node), "None"
        case ast.Raise() | ast.Break() | ast.Continue():
            yield span(node), STATEMENTS[type(node)]


def _operator(start: int, end: int, source: bytes) -> Iterator[Change]:
    """The operator between two operands, which brackets or a line's end may stand beside."""
    between = source[start:end].decode()
    word = between.strip(" ()\n\t\\")
    old = " ".join(word.removesuffix("=").split() if word not in OPERATORS else word.split())
    if old in OPERATORS and "#" not in between:
        begin = start + len(between[: between.index(old.split()[0])].encode())
        stop = start + len(between[: between.rindex(old.split()[-1])].encode()) + len(old.split()[-1].encode())
        yield (begin, stop), OPERATORS[old]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."
