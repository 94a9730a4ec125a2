"""Which parameters of a kernel are lengths of its tiles, by its source."""

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from kperf.diagnose.reading.sources import Definition, first_line, nodes
from kperf.ir.locations import Frame

_Functions = Mapping[str, list[Definition]]
_NamesOf = Callable[[ast.expr], set[str]]

_FIRST = ("zeros", "full", "empty")
"""Functions whose first argument is a shape."""
_AFTER_TILE = ("reshape", "view", "broadcast_to")
"""Functions of a tile, or its methods, whose other arguments are a shape."""
_BLOCK_SHAPE = {"make_block_ptr": 4, "make_tensor_descriptor": 3, "_experimental_make_tensor_descriptor": 3}
"""Functions with a block shape -> its place."""
_PROGRAM, _RANGE = "program_id", "arange"
"""Functions of which a number of the CTA, or of each element of a tile, is computed."""
_OF_ROWS = frozenset((_RANGE, "load"))
"""Functions of which numbers of rows are computed: what multiplies these is the length of a row, and no step."""
_RANGES = ("range", "static_range")
_STEP = 2
"""The place of a range's step. It is as long as the tile with which the loop steps, whoever made the tile."""
_OF_DESCRIPTOR = ("load", "store", "gather", "scatter", "atomic_add")
"""Methods that get where a tile begins, of which a descriptor from the host has the length: `[pid * BLOCK_M, k]`."""
_LIBRARIES = ("tl", "triton", "language", "libdevice", "math", "gl", "ttgl")
_ARITHMETIC = ("min", "max", "minimum", "maximum", "cdiv", "next_power_of_2", "constexpr", "int")
"""Functions of numbers; others make tiles, or load."""
_BUILTINS = ("len", "float", "bool", "print", "isinstance", "tuple", "list", "abs", "sum", "range", "static_range")


@dataclass(frozen=True)
class TileLengths:
    """Parameters of a function, by name.

    lengths: of tiles. steps: those of them with which it goes from tile to tile, from CTA to CTA or in a loop. A tile
    of another length has to hold all that there is. of_ctas: the steps from CTA to CTA. of_bounds: parameters of any
    kind of which a loop's first or last number is computed. of_turns: those of them that are no lengths of tiles, and
    steps from CTA to CTA: a CTA may take so many items one after another. So looks the length of a row, too.
    """

    lengths: frozenset[str]
    steps: frozenset[str]
    of_ctas: frozenset[str] = frozenset()
    of_bounds: frozenset[str] = frozenset()
    of_turns: frozenset[str] = frozenset()


def tile_lengths(frame: Frame) -> TileLengths | None:
    """Those of the function at a line, and of functions that it calls; None where the source cannot be read.

    A number of which a length is computed is one too, and one that a function of another file gets.
    """
    functions = _functions(frame.file)
    definitions = (one for same_name in functions.values() for one in same_name)
    function = next((one for one in definitions if first_line(one) <= frame.line <= one.lineno), None)
    return _of_function(function, functions, ()) if function is not None else None


@cache
def _functions(file: str) -> _Functions:
    """The functions of a file by name; none if it cannot be read."""
    found = defaultdict[str, list[Definition]](list)
    for node in nodes(file):
        if isinstance(node, Definition):
            found[node.name].append(node)
    return found


def _of_function(function: Definition, functions: _Functions, callers: tuple[str, ...]) -> TileLengths:
    parameters = {one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)}
    computed = _computed(function, _names)
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    products = [node for node in ast.walk(function) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)]
    lengths = [one for call in calls for one in _shapes(call)]
    factors = [
        (factor, number, _closure([number], computed, _names) & {_PROGRAM, *_OF_ROWS})
        for product in products
        for factor, number in ((product.left, product.right), (product.right, product.left))
    ]
    of_ctas = [factor for factor, number, made in factors if made == {_PROGRAM} and number not in products]
    strides = _closure((factor for factor, _, made in factors if made & _OF_ROWS), computed, _names)
    steps = [factor for factor, number, made in factors if not made & _OF_ROWS and number not in products]
    steps += [one for call in calls for one in _steps(call)]
    bounds = [one for call in calls if _called(call) in _RANGES for one in call.args[:_STEP]]
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id in functions and call.func.id not in callers:
            for called in functions[call.func.id]:
                inside = _of_function(called, functions, (*callers, function.name))
                lengths += _passed(call, called, inside.lengths)
                steps += _passed(call, called, inside.steps)
                of_ctas += _passed(call, called, inside.of_ctas)
                bounds += _passed(call, called, inside.of_bounds)
        elif _is_unknown(call, functions, {*parameters, *computed}):
            passed = [*call.args, *(one.value for one in call.keywords)]
            numbers = [one for one in passed if not _names(one) & computed.keys()]
            lengths += numbers
            steps += numbers
    found = _closure(lengths, computed, _names) & parameters
    stepping = _closure(of_ctas, computed, _names) - strides
    bounding = _closure(bounds, _computed(function, _mentioned), _mentioned) & parameters
    return TileLengths(
        frozenset(found),
        frozenset(found & _closure(steps, computed, _names) - strides),
        frozenset(found & stepping),
        frozenset(bounding),
        frozenset(bounding & stepping - found),
    )


def _closure(expressions: Iterable[ast.expr], computed: Mapping[str, set[str]], names: _NamesOf) -> set[str]:
    """The names of which these numbers are computed."""
    todo = [name for one in expressions for name in names(one)]
    found = set[str]()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += computed.get(name, ())
    return found


def _computed(function: Definition, names: _NamesOf) -> dict[str, set[str]]:
    """The names of which a function's variables are computed."""
    found = defaultdict[str, set[str]](set)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name, value in _assigned(target, node.value):
                    found[name] |= names(value)
    return dict(found)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple | ast.List):
        each = value.elts if isinstance(value, ast.Tuple | ast.List) else [value] * len(target.elts)
        for one, its in zip(target.elts, each, strict=False):
            yield from _assigned(one, its)


def _names(expression: ast.expr) -> set[str]:
    """The names of which a number is computed; a condition chooses it, and the shape of a tile is that of its maker."""
    if isinstance(expression, ast.Name):
        return {expression.id}
    if isinstance(expression, ast.Attribute):
        return set()
    if isinstance(expression, ast.Call) and _called(expression) in (_PROGRAM, *_OF_ROWS):
        return {_called(expression)}
    if isinstance(expression, ast.Call):
        each = list(expression.args) if _called(expression) in _ARITHMETIC else []
    else:
        each = [one for one in ast.iter_child_nodes(expression) if isinstance(one, ast.expr)]
    if isinstance(expression, ast.IfExp):
        each.remove(expression.test)
    return set[str]().union(*map(_names, each))


def _mentioned(expression: ast.expr) -> set[str]:
    """All names that a number may be computed of, by any function; a number in memory is of none."""
    if isinstance(expression, ast.Name):
        return {expression.id}
    if isinstance(expression, ast.Call) and _called(expression) == "load":
        return set()
    return set[str]().union(*map(_mentioned, _expressions_in(expression)))


def _expressions_in(node: ast.AST) -> list[ast.expr]:
    """The expressions of which another one, or an argument by its keyword, is made."""
    children = ast.iter_child_nodes(node)
    each = [one.value if isinstance(one, ast.keyword) else one for one in children]
    return [one for one in each if isinstance(one, ast.expr)]


def _called(call: ast.Call) -> str:
    """The name of a function, or of a method."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _shapes(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call that are lengths of tiles."""
    name = _called(call)
    if name in (*_FIRST, *_AFTER_TILE, *_BLOCK_SHAPE):
        keyword = "block_shape" if name in _BLOCK_SHAPE else "shape"
        yield from (one.value for one in call.keywords if one.arg == keyword)
    if name == _RANGE:
        yield from call.args
    elif name in _FIRST:
        yield from call.args[:1]
    elif name in _AFTER_TILE:
        yield from call.args if _is_method(call) else call.args[1:]
    elif name in _BLOCK_SHAPE:
        yield from call.args[_BLOCK_SHAPE[name] :][:1]
    elif name in _RANGES:
        yield from call.args[_STEP:]
    elif name in _OF_DESCRIPTOR and _is_method(call):
        yield from (one for one in call.args if isinstance(one, ast.List | ast.Tuple))


def _steps(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call of which one is a step from tile to tile, beside products."""
    name = _called(call)
    if name in _RANGES:
        yield from call.args[_STEP:]
    elif name in ("cdiv", "advance"):
        yield from call.args


def _is_method(call: ast.Call) -> bool:
    """Whether it is one of a tile or of a descriptor."""
    return isinstance(call.func, ast.Attribute) and not _is_of_library(call)


def _is_of_library(call: ast.Call) -> bool:
    base = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(base, ast.Attribute) or (isinstance(base, ast.Name) and base.id in _LIBRARIES)


def _is_unknown(call: ast.Call, functions: _Functions, local: set[str]) -> bool:
    """Whether it calls a function of another file."""
    if isinstance(call.func, ast.Attribute):
        return not _is_of_library(call) and isinstance(call.func.value, ast.Name) and call.func.value.id not in local
    return _called(call) not in (*functions, *_BUILTINS, *_ARITHMETIC)


def _passed(call: ast.Call, function: Definition, names: frozenset[str]) -> list[ast.expr]:
    """What a call gives for these parameters of a function, and what may be any of them (`**options`)."""
    parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    given = [one for name, one in zip(parameters, call.args, strict=False) if name in names]
    return given + [one.value for one in call.keywords if one.arg is None or one.arg in names]
