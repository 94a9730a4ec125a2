"""A matrix product written as a multiplication and a sum: along a dimension, of rank-1 updates, or vector by vector.

Squared distances are one too: |x - c|^2 = |x|^2 + |c|^2 - 2 x.c.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from kperf.arch import H200
from kperf.diagnose.analyses.factors import CASTS, joins_rows, products_of, sums
from kperf.diagnose.analyses.loops import carried, read
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, moved_bytes
from kperf.diagnose.analyses.shared_tiles import vector_products
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.reading.operations import LOOPS, STORES, loops_around, own
from kperf.diagnose.reading.options import LEAST_TILE
from kperf.diagnose.rule import Rule
from kperf.diagnose.rules.small_tile import SMALL_SIDE, larger_tile
from kperf.diagnose.thresholds import BUSY_INTENSITY, MEDIUM_GAIN, SEVERE_GAIN, SMALL_TILE_SHARE
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation, Region
from kperf.trace.analyze.finding import Finding

_ADDITIONS = {"arith.addf": (0, 1), "arith.subf": (0,), "math.fma": (2,)}
"""Operations that add a product to a sum -> the places at which the sum may be."""
_PRODUCTS = ("arith.mulf", "math.fma")
_MOVES = ("tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "ttg.convert_layout")
"""What leaves the numbers of a factor as they are."""
_WEIGHTS = ("tt.splat", "arith.constant")
"""What may scale the square of a difference: a number of the whole tile, also another one in each iteration. With
weights of each row or column that differ along the sum, |x|^2 would be a matrix multiplication too."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of sums over a product of three dimensions, of sums of rank-1 updates, and of a vector in each of many CTAs."""
    for op, axis, shape in sums(kernel):
        if len(shape) != 3:
            continue
        for product, _ in products_of(kernel, op):
            if joins_rows(kernel, product, axis):
                yield _finding(
                    kernel,
                    product,
                    f"a product of {_by(shape)} elements is summed",
                    f"write the sum as tl.dot(a, b){_precision(kernel, product)}"
                    + (f", and pad dimensions below {LEAST_TILE} to {LEAST_TILE}" if min(shape) < LEAST_TILE else "")
                    + _larger(kernel, product, axis, shape),
                )
        square = kernel.values.maker(op, 0)
        if square is not None and square.name != "math.fma" and _is_sum_of_squares(kernel, op, square, axis, shape):
            yield from _of_squares(kernel, [square])
    bodies = (loop.regions[-1] for loop in kernel.named(*LOOPS))
    for region in (*kernel.module.function.regions, *bodies):
        for products in _outer_products(kernel, region):
            if _square(kernel, products[-1]):
                yield from _of_squares(kernel, products)
                continue
            yield _finding(
                kernel,
                products[-1],
                f"rank-1 updates of {_by(tensor_types(products[-1].rest)[0].shape)} elements are summed",
                f"load {LEAST_TILE} or more columns and rows at once, as two tiles, and write acc = tl.dot(a, b, acc)"
                f"{_precision(kernel, products[-1])}",
            )
    yield from _of_vectors(kernel)


def _precision(kernel: Kernel, product: Operation) -> str:
    """Which operands tl.dot gets, by those of the product: fewer bits than they have change the results."""
    if not _has_float32(kernel, product):
        return " with 16-bit operands"
    return (
        ' with input_precision="tf32x3", which keeps nearly all digits of float32 (16-bit operands, or "tf32", are '
        "faster and change the results)"
    )


def _has_float32(kernel: Kernel, product: Operation) -> bool:
    """Whether it multiplies numbers of 32 bits that nothing has rounded to 16: loaded ones, or computed ones."""
    todo = [(product, place) for place in range(2)]
    while todo:
        made = kernel.values.maker(*todo.pop())
        if made is None:
            return True
        if made.name in _MOVES:
            todo.append((made, 0))
        elif made.name not in ("arith.extf", "tt.fp_to_fp"):
            return True
    return False


def _larger(kernel: Kernel, product: Operation, axis: int, shape: Sequence[int]) -> str:
    """Which tiles feed the tensor cores, where those of a loop are smaller: as small-tile says of the tl.dot."""
    sides = [length for place, length in enumerate(shape) if place != axis]
    size = 4 if _has_float32(kernel, product) else 2
    done, wanted = 2 * math.prod(sides) / (sum(sides) * size), BUSY_INTENSITY * 2 / size
    loop = next(iter(loops_around(product)), None)
    if loop is None or max(sides) > SMALL_SIDE or done >= SMALL_TILE_SHARE * wanted:
        return ""
    tile = larger_tile(kernel, loop, (sides[0], sides[1]), shape[axis])
    return (
        f"; take tiles of {tile[0]} x {tile[1]} at once, as smaller ones do not feed the tensor cores" if tile else ""
    )


def _of_vectors(kernel: Kernel) -> Iterator[Finding]:
    """Of CTAs that load the same tile, each to multiply it with a vector of its own, if a `tl.dot` of all is faster."""
    written = kernel.as_written
    found = vector_products(written) if written is not None else None
    if written is None or found is None or found.gain < MEDIUM_GAIN:
        return
    largest = max(found.products, key=lambda one: (one.elements * written.times(one.product), -one.product.line))
    tensors = " and ".join(sorted(written.tensors_of(largest.load))) or "a tensor"
    also = lines_of((one.product for one in found.products), largest.product)
    yield kernel.finding(
        RULE.id,
        largest.product,
        "high" if found.gain >= SEVERE_GAIN else "medium",
        f"{found.times:.0f} CTAs load the same tile of {tensors}, and each multiplies the tile by a vector of its own "
        f"on the FMA units{f' (likewise on {also})' if also else ''}: together this is a matrix multiplication, which "
        "the tensor cores do faster",
        f"let one CTA take {found.rows:.0f} of these vectors (heads, tokens, queries) as the rows of "
        f"a tile, padded to {LEAST_TILE} rows, load each tile of {tensors} once for all rows, and multiply with tl.dot"
        + (f"; split the loop over more CTAs: {found.ctas_left:.0f} are left" if found.is_split else ""),
        {"ctas": found.times, "elements": largest.elements},
        confidence="medium",
        estimate=(found.gain, min(max(found.gain / 4, 1.0), found.gain_of_fewer_ctas), 2 * found.gain),
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


def _of_squares(kernel: Kernel, products: Sequence[Operation]) -> Iterator[Finding]:
    """Of sums of squared differences, if a dot gives anything beside the kernel's bytes and its other arithmetic."""
    tile = tensor_types(products[-1].rest)[0]
    gain = _gain(kernel, products)
    if gain >= MEDIUM_GAIN:
        yield kernel.finding(
            RULE.id,
            products[-1],
            "high" if gain >= SEVERE_GAIN else "medium",
            f"{_by(tile.shape)} squared differences are summed on the FMA units: |x - c|^2 is |x|^2 + |c|^2 - 2 x.c, "
            "and x.c is a matrix multiplication, which the tensor cores do faster",
            f"load {LEAST_TILE} or more columns and rows at once, as two tiles, and write x2[:, None] + c2[None, :] - "
            "2 * tl.dot(x, c) with the sums of squares x2 and c2 in float32; where x and c are large and nearly equal, "
            "this loses digits: subtract a common mean from both first",
            {"elements": tile.size},
            confidence="medium",
            estimate=(gain, max(gain / 4, 1.0), 2 * gain),
        )


def _gain(kernel: Kernel, products: Sequence[Operation]) -> float:
    """Cycles with the squares on the FMA units over those with MMAs, of a CTA; its bytes take as long in both.

    Of an iteration alone where nothing says how many there are. L2 gives what is loaded, since other CTAs load it too,
    and memory takes what is stored. Of the kmeans_assign of 27 x (H100) this gives 16.
    """
    loop = next(iter(loops_around(products[0])), None)
    repeated = loop is not None and kernel.iterations(loop) is None
    operations = list(own(loop)) if loop is not None and repeated else kernel.operations
    by_hand = [op for product in products for op in _square(kernel, product)]
    sums = {name for product in products for name in product.results}
    others = [op for op in operations if op not in by_hand and not sums & read(op)]
    elements = sum(tensor_types(product.rest)[0].size * kernel.times(product) for product in products)
    by_dot = 2 * elements / kernel.arch.flop_per_cycle["bf16"]
    moving = sum(
        kernel.times(op)
        * moved_bytes(kernel, [op])
        / (kernel.arch.memory_bytes_per_cycle if op.name in STORES else H200.l2_bytes_per_cycle)
        for op in operations
    )
    left = arithmetic_of_cta(kernel, others)
    return max(arithmetic_of_cta(kernel, by_hand) + left, moving) / max(by_dot + left, moving)


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def _is_sum_of_squares(kernel: Kernel, op: Operation, product: Operation, axis: int, shape: Sequence[int]) -> bool:
    """Whether a reduction sums squared distances of vectors that both run along its axis, all as long as a tile."""
    if not _square(kernel, product) or not _is_outer(kernel, product):
        return False
    vectors = [tensor_types(one.rest)[0] for one in _broadcasts(kernel, _square(kernel, product)[-1])]
    return all(one.shape[axis] > 1 for one in vectors) and shape[axis] * _repeats(kernel, op) >= LEAST_TILE


def _repeats(kernel: Kernel, op: Operation) -> int:
    """How many results of an operation a loop adds up; 1 where it does not."""
    for loop in loops_around(op)[:1]:
        begins = {end: begin for begin, end in carried(loop)}
        for one in loop.regions[-1].operations:
            sums = one.name in _ADDITIONS and begins.get(one.results[0]) in read(one)
            if sums and any(_uncast(kernel, kernel.values.maker(one, place)) is op for place in (0, 1)):
                return kernel.iterations(loop) or LEAST_TILE
    return 1


def _uncast(kernel: Kernel, op: Operation | None) -> Operation | None:
    """What makes the elements that an operation casts, or the operation itself."""
    while op is not None and op.name in CASTS:
        op = kernel.values.maker(op, 0)
    return op


def _broadcasts(kernel: Kernel, op: Operation) -> list[Operation]:
    """The two broadcasts that an operation multiplies or subtracts; empty of what does not."""
    joins = op.name in (*_PRODUCTS, "arith.subf")
    operands = [kernel.values.maker(op, place) for place in (0, 1)] if joins else []
    broadcasts = [one for one in operands if one is not None and one.name == "tt.broadcast"]
    return broadcasts if len(broadcasts) == 2 else []


def _square(kernel: Kernel, product: Operation) -> list[Operation]:
    """The operations that square a difference of two broadcasts, the difference last; empty of other products.

    Weights may scale the square. Of float64 it is none: whoever computes in it wants the digits that a dot would lose.
    """
    found, differences = list[Operation](), list[Operation]()
    factors: list[Operation | None] = [product]
    while factors:
        op = factors.pop()
        if op is None:
            return []
        if op.name == "arith.subf":
            differences.append(op)
        elif op.name == "arith.divf" and _is_weight(kernel.values.maker(op, 1)):
            found += [op] if op not in found else []
            factors.append(kernel.values.maker(op, 0))
        elif op.name in (*CASTS, "arith.mulf") or (op is product and op.name == "math.fma"):
            found += [op] if op not in found else []
            factors += [kernel.values.maker(op, place) for place in range(min(len(op.operands), 2))]
        elif not _is_weight(op):
            return []
    squares = len(differences) == 2 and differences[0] is differences[1] and "f64" not in product.rest
    return [*found, differences[0]] if squares and _broadcasts(kernel, differences[0]) else []


def _is_weight(op: Operation | None) -> bool:
    """Whether it is one number for a tile, or in three dimensions a vector along one of them."""
    if op is None or op.name != "tt.broadcast":
        return op is not None and op.name in _WEIGHTS
    shape = tensor_types(op.rest)[0].shape
    return len(shape) == 3 and sum(length > 1 for length in shape) == 1


def _vectors(kernel: Kernel, product: Operation) -> Operation | None:
    """The operation on the two broadcasts: the product itself, or the difference of which it is the square."""
    multiplies = product.name in _PRODUCTS and _broadcasts(kernel, product)
    return product if multiplies else next(iter(_square(kernel, product)[::-1]), None)


def _outer_products(kernel: Kernel, region: Region) -> Iterator[list[Operation]]:
    """The outer products that are added to one sum, in a loop or one after another, the last first, if they are many.

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
            pairs = [pair for one in products if (pair := _vectors(kernel, one)) is not None]
            depth = min(len({pair.operands[place] for pair in pairs}) for place in (0, 1))
        if depth >= LEAST_TILE:
            yield products


def _added(kernel: Kernel, op: Operation) -> tuple[str, Operation] | None:
    """The name of the sum to which an operation adds an outer product, and the product; None if it does not."""
    for place in _ADDITIONS.get(op.name, ()):
        product = op if op.name == "math.fma" else kernel.values.maker(op, 1 - place)
        if product is not None and _is_outer(kernel, product):
            return op.operands[place].partition("#")[0], product
    return None


def _is_outer(kernel: Kernel, product: Operation) -> bool:
    """Whether the factors, or what is subtracted, are vectors along different dimensions, each as long as a tile."""
    pair = _vectors(kernel, product)
    shapes = [tensor_types(one.rest) for one in _broadcasts(kernel, pair)] if pair is not None else []
    lengths = [
        max((length for length, before in zip(tile.shape, vector.shape, strict=True) if before < length), default=0)
        for vector, tile in shapes
    ]
    along = [[one > 1 for one in vector.shape] for vector, _ in shapes]
    return len(shapes) == 2 and along[0] != along[1] and min(lengths) >= LEAST_TILE


def _is_of_iteration(kernel: Kernel, product: Operation, loop: Operation) -> bool:
    """Whether each iteration has other vectors: with the same one the others could be added before the product."""
    pair = _vectors(kernel, product)
    return pair is not None and all(loop in kernel.values.sources(pair, place) for place in (0, 1))


RULE = Rule("dot-by-hand", "A matrix multiplication without tl.dot", check, explained_by=("scan-by-hand",))
