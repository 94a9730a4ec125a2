"""Tiles that have each address many times: how the equal addresses lie, and code that repeats them in the same way."""

import math
import re

import numpy as np
import pytest

from kperf.diagnose.analyses.repetitions import of_repetitions
from tests.diagnose.test_wasted_work import found


class Tile:
    """What `of_repetitions` reads of an access."""

    def __init__(self, numbers):
        self.value = type("Value", (), {"numbers": numbers})


def repeated(code, x, group):
    """What the printed code computes of a tile that has each number once."""
    parts = re.fullmatch(r"tl\.reshape\(tl\.broadcast_to\(x\[(.*?)\], (\(.*?\))\), (\(.*\))\)", code)
    assert parts is not None, code
    lengths = dict(zip("nm", x.shape, strict=False)) | {"group": group}
    index = tuple(None if one == "None" else slice(None) for one in parts[1].split(", "))
    shapes = [
        [math.prod(lengths[one] for one in length.split(" * ")) for length in part.strip("(),").split(", ")]
        for part in parts.groups()[1:]
    ]
    return np.broadcast_to(x[index], shapes[0]).reshape(shapes[1])


ONCE = np.arange(12 * 8).reshape(12, 8)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["neighbours", "again"])
def test_the_printed_code_gives_the_tile(axis, kind):
    tile = np.repeat(ONCE, 8, axis) if kind == "neighbours" else np.tile(ONCE, (8, 1) if axis == 0 else (1, 8))
    why, advice = of_repetitions(Tile(tile), 8)
    length, which = ONCE.shape[axis], ("rows", "columns")[axis]
    assert why == (
        "8 neighbours along a dimension of the tile have one address"
        if kind == "neighbours"
        else f"every {length} {which} of the tile have the same addresses again"
    )
    assert np.array_equal(repeated(advice.partition("used: ")[2], ONCE, 8), tile)
    assert ("in place of the modulo" in advice) == (kind == "again")


@pytest.mark.parametrize("kind", ["neighbours", "again"])
def test_the_printed_code_gives_the_vector(kind):
    once = np.arange(32)
    tile = np.repeat(once, 8) if kind == "neighbours" else np.tile(once, 8)
    why, advice = of_repetitions(Tile(tile), 8)
    assert ("elements" in why) == (kind == "again")
    assert np.array_equal(repeated(advice.partition("used: ")[2], once, 8), tile)


def test_no_code_is_printed_of_what_it_would_not_give():
    rows = (np.arange(64) % 5)[:, None] * 100 + np.arange(8)  # 64 is no multiple of 5
    why, advice = of_repetitions(Tile(rows), 12)
    assert why == "every 5 rows of the tile have the same addresses again"
    assert "tl.reshape" not in advice
    anywhere = (np.arange(64) * 5 % 64 // 8)[:, None] * 100 + np.arange(8)
    assert of_repetitions(Tile(anywhere), 8) == (
        "equal addresses lie in many places of the tile",
        "load each number once, and repeat it where it is used",
    )


GEMM = """
def gemm(a, b, c, K, sa, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, K, BK):
        x = tl.load(a + (ROWS)[:, None] * sa + (at + k)[None, :])
        acc = tl.dot(x, tl.load(b + (at + k)[:, None] * sa + n[None, :]), acc)
    tl.store(c + m[:, None] * sa + n[None, :], acc.to(tl.bfloat16))
"""


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("rows", "why", "code"),
    [
        ("m % 4", "every 4 rows of the tile have the same addresses again", "x[None, :, :], (group, n, m)"),
        ("m // 16", "16 neighbours along a dimension of the tile have one address", "x[:, None, :], (n, group, m)"),
        ("m", None, None),
        ("m % 32", None, None),  # each address twice
    ],
)
def test_how_the_rows_of_a_kernel_s_tile_lie(tmp_path, rows, why, code):
    text = GEMM.replace("ROWS", rows)
    finding = found(tmp_path, text, "*bf16,*bf16,*bf16,i32:16,i32:16", "BM=64", "BN=32", "BK=64").get("redundant-load")
    assert (finding is not None) == (why is not None)
    if finding is not None:
        assert finding.message.endswith(why)
        assert code in finding.advice
