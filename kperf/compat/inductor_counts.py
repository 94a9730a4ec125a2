"""FLOPs and bytes of the kernels that torch.compile makes, from Inductor's own graph: what has to be done, each once.

A kernel of Inductor's is one node of its scheduler, made of the loops of the operators fused into it. Each loop body is
run once, symbolically, under a handler of its operators (`torch._inductor.ops_handler`, the way by which Inductor
itself reads dependencies and writes code):

- *bytes*: the elements of each tensor that the kernel reads and does not make itself, and of each that it writes and
  somebody else reads, times their size. An element is counted once however often it is read: an index expression is
  evaluated, so a slice counts as the slice and a broadcast row as a row. A tensor that fusion keeps in registers is
  no traffic; one that is changed in place is read and written.
- *FLOPs*: floating-point additions, subtractions, multiplications (one each, a fused pair two), divisions and
  functions (exp, tanh, rsqrt: one each, though the machine takes several instructions), for as many elements as the
  value depends on: the mean of a row is divided once a row, not once an element. What two fused operators both compute
  counts once. A sum has one addition an element. Comparisons, maxima, conversions and index arithmetic are none. What
  the machine does more than that (a function's instructions, sums of threads, a value of a row for each element anew)
  is not in it: it is arithmetic that the graph asks for.
- *reduced*: of them, those of reductions.
- *products*: of them, those that go to the tensor cores, by `torch.utils.flop_counter`; attention under a causal mask
  at half, as everywhere here (FlashAttention-3, arXiv 2407.08608, section 4.1).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import sympy
import torch
from torch._inductor import ir
from torch._inductor.fx_utils import count_flops_fx
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.scheduler import BaseSchedulerNode, SchedulerNode
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import Identity

from kperf.compat.inductor_program import Counts

ARITHMETIC = {"add": 1, "sub": 1, "mul": 1, "fma": 2}
"""What the machine has an instruction for: operator -> FLOPs."""
FUNCTIONS = frozenset({
    "truediv", "div_rn", "reciprocal", "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow",
    "sigmoid", "tanh", "erf", "erfc", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "lgamma",
})  # fmt: skip
"""What takes it several."""
_REDUCTIONS = {
    "sum": (1, 1, 0),
    "prod": (1, 1, 0),
    "welford_reduce": (3, 6, 1),  # two subtractions, a division, two additions, a multiplication
    "welford_combine": (3, 8, 1),  # a subtraction, a division, three additions, three multiplications
    "online_softmax_reduce": (2, 3, 1),  # a subtraction, exp, an addition
}
"""Results, FLOPs an element, and how many of them are functions; of those that are not here one result and none."""
_NUMBERS_ARE_NONE = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not", "isnan"})
_EVALUATED = 1 << 22
"""Most elements that an index expression is evaluated for."""


@dataclass(frozen=True)
class _Value:
    """What a loop body computes: a number that is the same for the same value, and what it depends on.

    `term`: as an expression of the loops' variables, if it is one: an index, or a condition on indices.
    """

    number: int
    depends: frozenset[sympy.Symbol] = frozenset()
    floating: bool = False
    term: Any = None


@dataclass(frozen=True)
class Access:
    """Elements of a tensor: `index`, of variables from 0 to `ranges`, where the condition holds."""

    index: sympy.Expr
    ranges: tuple[tuple[sympy.Symbol, int], ...]
    condition: Any = sympy.true

    @property
    def points(self) -> int:
        """How often the index is evaluated."""
        return prod(size for _, size in self.ranges)


class _Loops(DefaultHandler):
    """Runs loop bodies, one after another, of the operators in one kernel."""

    def __init__(self) -> None:
        self.flops = 0
        self.functions = 0
        self.reduced = 0
        self.reads: dict[str, list[Access]] = {}
        self.writes: dict[str, list[Access]] = {}
        self._ranges: dict[sympy.Symbol, int] = {}
        self._kept: frozenset[sympy.Symbol] = frozenset()
        self._numbers: dict[Any, int] = {}
        self._stored: dict[str, _Value] = {}
        self._condition: Any = sympy.true
        self._looked_up: dict[str, frozenset[sympy.Symbol]] = {}

    def run(self, node: SchedulerNode) -> None:
        """Count what this operator adds to the kernel."""
        body = node._body
        self._ranges = {variable: int(size) for variable, size in body.var_ranges.items()}
        self._kept = frozenset(body.vars[0])
        with V.set_ops_handler(self):
            body(*body.vars, allow_same_symbol_in_index=True)

    def _made(
        self, key: Any, depends: Iterable[sympy.Symbol], floating: bool, *, flops: int = 0, functions: int = 0
    ) -> _Value:
        """The value of `key`, which costs so much for each element that it depends on, if it is a new one."""
        variables = frozenset(depends)
        known = key in self._numbers
        number = self._numbers.setdefault(key, len(self._numbers))
        if not known:
            elements = prod(self._ranges.get(variable, 1) for variable in variables)
            self.flops += flops * elements
            self.functions += functions * elements
        return _Value(number, variables, floating)

    def _where(self, index: sympy.Expr) -> tuple[Any, ...]:
        """An index in a key: the loops of two operators may have variables of one name."""
        return str(index), *((name, size) for name, size in self._ranges.items() if name in index.free_symbols)

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = [value for value in (*args, *kwargs.values()) if isinstance(value, _Value)]
        dtypes = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.dtype)]
        floating = any(value.floating for value in values) and name not in _NUMBERS_ARE_NONE
        if name in {"to_dtype", "to_dtype_bitcast", "constant", "index_expr", "rand", "randn"} and dtypes:
            floating = dtypes[0].is_floating_point
        flops = ARITHMETIC.get(name, int(name in FUNCTIONS)) if floating else 0
        depends = frozenset().union(*(value.depends for value in values))
        key = (name, *(_key(value) for value in (*args, *kwargs.values())))
        if name == "index_expr":
            depends |= args[0].free_symbols
            key = (*key, self._where(args[0]))
        made = self._made(key, depends, floating, flops=flops, functions=flops * (name in FUNCTIONS))
        return replace(made, term=_term(name, args))

    def load(self, name: str, index: sympy.Expr) -> _Value:
        variables = frozenset().union(*(self._looked_up.get(symbol.name, {symbol}) for symbol in index.free_symbols))
        if name in self._stored:
            stored = self._stored[name]
            return _Value(stored.number, variables, stored.floating)
        ranges = tuple((variable, size) for variable, size in self._ranges.items() if variable in variables)
        self.reads.setdefault(name, []).append(Access(index, ranges, self._condition))
        return self._made(("load", name, self._where(index)), variables, V.graph.get_dtype(name).is_floating_point)

    def store(self, name: str, index: sympy.Expr, value: _Value, mode: Any = None) -> None:
        self._stored[name] = value
        self.writes.setdefault(name, []).append(Access(index, tuple(self._ranges.items())))
        if mode is not None:  # an atomic addition
            self._made(("store", name, value.number), self._ranges, value.floating, flops=int(value.floating))

    def store_reduction(self, name: str, index: sympy.Expr, value: _Value) -> None:
        self.store(name, index, value)

    def reduction(self, dtype: torch.dtype, _src_dtype: torch.dtype, reduction_type: str, value: Any) -> Any:
        """A value of the loops that stay; so many as the kind of reduction has results."""
        results, flops, functions = _REDUCTIONS.get(reduction_type, (1, 0, 0))
        reduced = self._over_all(reduction_type, (dtype,) * results, value, flops, functions, self._kept)
        return reduced if results > 1 else reduced[0]

    def scan(self, dtypes: Sequence[torch.dtype], _combine: Any, values: tuple[_Value, ...]) -> tuple[_Value, ...]:
        """One operation an element and value."""
        return self._over_all("scan", dtypes, values, len(values), 0, frozenset(self._ranges))

    def sort(self, dtypes: Sequence[torch.dtype], values: tuple[_Value, ...], *_: Any) -> tuple[_Value, ...]:
        """Comparisons."""
        return self._over_all("sort", dtypes, values, 0, 0, frozenset(self._ranges))

    def bucketize(self, values: _Value, boundaries: tuple[Any, ...], *_: Any, **__: Any) -> _Value:
        """At most all boundaries are read."""
        place, size = sympy.Symbol("boundary", integer=True), int(boundaries[1])
        self.reads.setdefault(boundaries[0], []).append(Access(place, ((place, size),)))
        return self._made(("bucketize", values.number, boundaries[0]), values.depends, False)

    def frexp(self, x: _Value) -> tuple[_Value, _Value]:
        """Mantissa and exponent."""
        return self._made(("mantissa", x.number), x.depends, True), self._made(("exponent", x.number), x.depends, False)

    def _over_all(
        self, name: str, dtypes: Sequence[torch.dtype], value: Any, flops: int, functions: int, kept: frozenset[Any]
    ) -> tuple[_Value, ...]:
        """The results of what goes through all elements of the loops, one for each dtype."""
        parts = value if isinstance(value, tuple) else (value,)
        key = (name, *(part.number for part in parts))
        if dtypes[0].is_floating_point:
            before = self.flops
            self._made(key, self._ranges, True, flops=flops, functions=functions)
            self.reduced += self.flops - before
        depends = frozenset().union(*(part.depends for part in parts)) & kept
        return tuple(self._made((*key, place), depends, dtype.is_floating_point) for place, dtype in enumerate(dtypes))

    def masked(self, mask: _Value, body: Callable[[], _Value], other: Any) -> _Value:
        before = self._condition
        if mask.term is not None:
            self._condition = sympy.And(before, mask.term)
        inner = body()
        self._condition = before
        key = ("masked", mask.number, inner.number, other)
        return self._made(key, mask.depends | inner.depends, inner.floating)

    def indirect_indexing(self, x: _Value, *_: Any, **__: Any) -> sympy.Symbol:  # type: ignore[override]
        name = f"looked_up{x.number}"
        self._looked_up[name] = x.depends
        return sympy.Symbol(name, integer=True)


_CONDITIONS: dict[str, Callable[..., Any]] = {
    "lt": sympy.StrictLessThan,
    "le": sympy.LessThan,
    "gt": sympy.StrictGreaterThan,
    "ge": sympy.GreaterThan,
    "logical_and": sympy.And,
    "logical_or": sympy.Or,
}


def _term(name: str, args: tuple[Any, ...]) -> Any:
    """An index, a number, or a condition of such, as an expression; None for what is read from memory."""
    if name in {"index_expr", "constant"}:
        return sympy.sympify(args[0])
    terms = [value.term if isinstance(value, _Value) else None for value in args]
    return _CONDITIONS[name](*terms) if name in _CONDITIONS and None not in terms else None


def _key(value: Any) -> Any:
    return value.number if isinstance(value, _Value) else str(value)


def count(node: BaseSchedulerNode, removed: set[str]) -> Counts:
    """Of one launch of a node's kernel. `removed`: tensors that Inductor keeps in registers."""
    loops, moved, products = _Loops(), 0, 0
    for part in node.get_nodes():
        if isinstance(part, SchedulerNode) and not part.is_template():
            loops.run(part)
        else:
            products += _products(part)
            moved += sum(map(_bytes_of, _operands(part, removed)))
    for accesses in (loops.reads, loops.writes):
        for name, of_buffer in accesses.items():
            if name not in removed:
                moved += elements(of_buffer, int(V.graph.get_numel(name))) * V.graph.get_dtype(name).itemsize
    return Counts(loops.flops + products, products, loops.functions, loops.reduced, moved)


def _products(node: BaseSchedulerNode) -> int:
    """Of a matrix product or of attention; 0 for what has no formula."""
    assert node.node is not None
    return sum(_attention(origin) or count_flops_fx(origin) or 0 for origin in node.node.get_origins())


def _attention(origin: torch.fx.Node) -> int | None:
    """Of torch's attention, whose own formula does not know fewer heads of k and v, nor the mask; None for others."""
    if not isinstance(origin.target, torch._ops.OpOverload) or "scaled_dot_product" not in str(origin.target):
        return None
    names = [argument.name for argument in origin.target._schema.arguments]
    settings: dict[str, Any] = {**dict(zip(names, origin.args, strict=False)), **origin.kwargs}
    (batch, heads, rows, head_dim), k, v = (settings[name].meta["val"].shape for name in ("query", "key", "value"))
    flops = 2 * batch * heads * rows * k[2] * (head_dim + v[3])
    return int(flops // 2 if settings.get("is_causal") else flops)


def _operands(node: BaseSchedulerNode, removed: set[str]) -> Iterator[Any]:
    """The tensors that a call of a library or a template reads and writes."""
    operation: Any = node.node
    yield from operation.inputs
    yield from (V.graph.get_buffer(name) for made in node.get_outputs() for name in made.get_mutations())
    if isinstance(operation.layout, ir.MultiOutputLayout):
        yield from operation.outputs
    elif not isinstance(operation.layout, ir.NoneLayout) and operation.get_name() not in removed:
        yield operation


def _bytes_of(tensor: Any) -> int:
    """Each element once: a dimension of stride 0 repeats."""
    if not isinstance(tensor, ir.IRNode) or not tensor.has_tensor_output():
        return 0
    sizes = (int(size) for size, stride in zip(tensor.get_size(), tensor.get_stride(), strict=True) if stride != 0)
    return prod(sizes) * tensor.get_dtype().itemsize


_FUNCTIONS_OF_INDICES = {
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "ModularIndexing": lambda a, divisor, modulus: a // divisor % modulus,
    "Where": np.where,
}


def elements(accesses: Sequence[Access], size: int) -> int:
    """How many different elements of a tensor of `size` are accessed.

    The strides that all have in common are taken apart as factors if what is inside of one does not reach its next
    step, and what is left of the index expressions is evaluated. Where that is too much, or an index is itself read
    from memory, it is the sum of the accesses or the whole tensor, whichever is less.
    """
    distinct = list(dict.fromkeys(accesses))
    bound = min(sum(access.points for access in distinct), size)
    if any(access.index.free_symbols - {variable for variable, _ in access.ranges} for access in distinct):
        return bound
    used = [_used(access) for access in distinct]
    bound = min(sum(access.points for access in used), size)
    strides = [_strides(access) for access in used]
    common = sorted(set.intersection(*(set(of_access) for of_access in strides)), reverse=True)
    for taken in range(len(common), -1, -1):
        factors = common[:taken]
        rest = [
            _without(access, [of_access[factor] for factor in factors])
            for access, of_access in zip(used, strides, strict=True)
        ]
        if sum(access.points for access in rest) > _EVALUATED:
            break
        offsets = np.unique(np.concatenate([_evaluated(access) for access in rest]))
        if not offsets.size:
            return 0
        if not factors:
            return min(int(offsets.size), size)
        *outer, (stride, length) = factors
        reach = [*outer, (int(np.ptp(offsets)) + stride * (length - 1) + 1, 1)]
        if all(step >= inner * times for (step, _), (inner, times) in pairwise(reach)):
            return min(int(prod(times for _, times in outer)) * _steps(offsets, stride, length), size)
    return bound


def _steps(offsets: np.ndarray[Any, np.dtype[np.int64]], stride: int, length: int) -> int:
    """How many different numbers are an offset and up to `length` - 1 times the stride."""
    places, residues = np.divmod(offsets, stride)
    order = np.lexsort((places, residues))
    apart = np.where(np.diff(residues[order]) == 0, np.diff(places[order]), length)
    return int(np.minimum(apart, length).sum()) + length


def _used(access: Access) -> Access:
    """Without the variables that it does not depend on, and Inductor's marks."""
    index, condition = (term.replace(Identity, lambda inner: inner) for term in (access.index, access.condition))
    needed = index.free_symbols | condition.free_symbols
    ranges = tuple((variable, size) for variable, size in access.ranges if variable in needed)
    return Access(sympy.expand(index), ranges, condition)


def _strides(access: Access) -> dict[tuple[int, int], sympy.Symbol]:
    """(stride, size) -> the variable, of those that the index is linear in and that stand in no condition."""
    strides = {}
    for variable, size in access.ranges:
        stride = access.index.coeff(variable)
        others = (access.index - stride * variable).free_symbols | access.condition.free_symbols
        if stride.is_Integer and stride > 0 and variable not in others:
            strides[int(stride), size] = variable
    return strides


def _without(access: Access, variables: Sequence[sympy.Symbol]) -> Access:
    index = access.index.subs(dict.fromkeys(variables, 0))
    ranges = tuple((variable, size) for variable, size in access.ranges if variable not in variables)
    return Access(index, ranges, access.condition)


def _evaluated(access: Access) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The index at every point where the condition holds."""
    variables = [variable for variable, _ in access.ranges]
    grid = np.meshgrid(*(np.arange(size) for _, size in access.ranges), indexing="ij", sparse=True)
    values = [
        sympy.lambdify(variables, term, modules=[_FUNCTIONS_OF_INDICES, "numpy"])(*grid)
        for term in (access.index, access.condition)
    ]
    index, holds = np.broadcast_arrays(*values)
    return np.asarray(index[holds], dtype=np.int64)
