"""A matrix product written as a broadcast, a multiplication and a sum: along a dimension, or of rank-1 updates."""

from collections import Counter
from collections.abc import Iterator, Sequence

from kperf.diagnose.kernel import LEAST_TILE, LOOPS, Kernel
from kperf.diagnose.loops import carried, read
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation, Region
from kperf.trace.analyze.finding import Finding

_ADDITIONS = {"arith.addf": (0, 1), "arith.subf": (0,), "math.fma": (2,)}
"""Operations that add a product to a sum -> the places at which the sum may be."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of sums over a product of three dimensions, and of sums of rank-1 updates."""
    for op in kernel.named("tt.reduce"):
        types = tensor_types(op.rest) or tensor_types(kernel.module.lines[op.last_line])
        maker = kernel.values.maker(op, 0)
        if not types or len(types[0].shape) != 3 or maker is None or maker.name != "arith.mulf":
            continue
        if _factors(kernel, maker):
            yield _finding(
                kernel,
                maker,
                f"a product of {_by(types[0].shape)} elements is summed",
                "write the sum as tl.dot(a, b) with 16-bit operands, and pad dimensions below 16 to 16",
            )
    bodies = (loop.regions[-1] for loop in kernel.named(*LOOPS))
    for region in (*kernel.module.function.regions, *bodies):
        for product in _outer_products(kernel, region):
            yield _finding(
                kernel,
                product,
                f"rank-1 updates of {_by(tensor_types(product.rest)[0].shape)} elements are summed",
                f"load {LEAST_TILE} or more columns and rows at once, as two tiles, and write acc = tl.dot(a, b, acc) "
                "with 16-bit operands",
            )


def _finding(kernel: Kernel, product: Operation, computed: str, advice: str) -> Finding:
    return kernel.finding(
        RULE.id,
        product,
        "high",
        f"{computed} on the FMA units: this is a matrix multiplication, which the tensor cores do faster",
        advice,
        {"elements": tensor_types(product.rest)[0].size},
        estimate=(8.0, 2.0, 16.0),
    )


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _factors(kernel: Kernel, op: Operation) -> list[Operation]:
    """The broadcasts of a product's two factors; empty of what is no product of broadcasts."""
    factors = [kernel.values.maker(op, place) for place in (0, 1)] if op.name in ("arith.mulf", "math.fma") else []
    broadcasts = [factor for factor in factors if factor is not None and factor.name == "tt.broadcast"]
    return broadcasts if len(broadcasts) == 2 else []


def _outer_products(kernel: Kernel, region: Region) -> Iterator[Operation]:
    """The first of the outer products that are added to one sum, in a loop or one after another, if they are many.

    Nothing else in a loop may read the sum: what reads it in each iteration, as a recurrence does with its state, needs
    the sum of that iteration.
    """
    added = {op.results[0]: found for op in region.operations if (found := _added(kernel, op)) is not None}
    readers = Counter(name for op in region.walk() for name in read(op)) if added else Counter[str]()
    summed = {name for name, _ in added.values()}
    for end in added:
        if end in summed:
            continue
        products, begin = [], end
        while begin in added and (begin == end or readers[begin] == 1):
            begin, product = added[begin]
            products.append(product)
        loop = region.owner
        if loop is not None and (begin, end) in carried(loop) and readers[begin] == readers[end] == 1:
            products = [one for one in products if _is_of_iteration(kernel, one, loop)]
            depth = len(products) * (kernel.iterations(loop) or LEAST_TILE)
        else:
            depth = min(len({one.operands[place] for one in products}) for place in (0, 1))
        if depth >= LEAST_TILE:
            yield products[-1]


def _added(kernel: Kernel, op: Operation) -> tuple[str, Operation] | None:
    """The name of the sum to which an operation adds an outer product, and the product; None if it does not."""
    for place in _ADDITIONS.get(op.name, ()):
        product = op if op.name == "math.fma" else kernel.values.maker(op, 1 - place)
        if product is not None and _is_outer(kernel, product):
            return op.operands[place].partition("#")[0], product
    return None


def _is_outer(kernel: Kernel, product: Operation) -> bool:
    """Whether the factors are vectors along different dimensions, each as long as a tile."""
    shapes = [tensor_types(factor.rest) for factor in _factors(kernel, product)]
    lengths = [
        max((length for length, before in zip(tile.shape, vector.shape, strict=True) if before < length), default=0)
        for vector, tile in shapes
    ]
    along = [[one > 1 for one in vector.shape] for vector, _ in shapes]
    return len(shapes) == 2 and along[0] != along[1] and min(lengths) >= LEAST_TILE


def _is_of_iteration(kernel: Kernel, product: Operation, loop: Operation) -> bool:
    """Whether each iteration has other vectors: with the same one the others could be added before the product."""
    return all(loop in kernel.values.sources(product, place) for place in (0, 1))


RULE = Rule("dot-by-hand", "A matrix multiplication without tl.dot", check, explained_by=("scan-by-hand",))
