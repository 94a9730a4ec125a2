"""The syntax trees of source files, each read once."""

import ast
from functools import cache
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def nodes(file: str) -> tuple[ast.AST, ...]:
    """Of a file's syntax tree; empty if it cannot be read."""
    try:
        return tuple(ast.walk(ast.parse(Path(file).read_text())))
    except (OSError, SyntaxError, ValueError):
        return ()


def first_line(function: Definition) -> int:
    """That of its first decorator, else of its `def`."""
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
