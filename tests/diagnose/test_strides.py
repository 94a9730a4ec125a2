"""Strides of a function without a launch: unknown until the signature says that one is 1, as the JIT would."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose

pytestmark = pytest.mark.kernels

MATMUL = """
import triton, triton.language as tl

@triton.jit
def mm(a, b, c, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    a += rm[:, None] * am + rk[None, :] * ak
    b += rk[:, None] * bk + rn[None, :] * bn
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a)
        y = tl.load(b)
        acc = tl.dot(x, y, acc)
        a += BK * ak
        b += BK * bk
    tl.store(c + rm[:, None] * cm + rn[None, :] * cn, acc.to(tl.bfloat16))
"""
TYPES = {"a": "*bf16", "b": "*bf16", "c": "*bf16"} | dict.fromkeys(("K", "am", "ak", "bk", "bn", "cm", "cn"), "i32:16")


def found(tmp_path, source=MATMUL, **types):
    path = tmp_path / "mm.py"
    path.write_text(source)
    tiles = ("BM=128", "BN=128", "BK=64")
    signature = ",".join(f"{name}={kind}" for name, kind in (TYPES | types).items())
    options = {"num_warps": 8, "num_stages": 3}
    (kernel,) = inputs.read(f"{path}:mm", (), SM_90A, signature=signature, constexprs=tiles, options=options)
    return {(one.id, one.source.line): one for one in diagnose(kernel).findings}


def test_an_unknown_stride_is_no_severe_finding_and_is_named(tmp_path):
    unknown = found(tmp_path)
    for line, stride in ((11, "am or ak"), (12, "bk or bn"), (16, "cm or cn")):
        one = unknown["uncoalesced-access", line]
        assert (one.severity, one.confidence) == ("low", "low")
        assert one.message.endswith(f"that lie apart, unless {stride} is 1")
        assert one.advice == f"if {stride} is 1, say so with i32:1 in --signature"
    assert unknown["loads-not-pipelined", 11].severity == "low"
    assert {one.severity for one in unknown.values()} == {"low"}


def test_strides_of_1_are_contiguous_rows(tmp_path):
    known = found(tmp_path, ak="i32:1", bn="i32:1", cn="i32:1")
    assert {rule for rule, _ in known} <= {"tma-unused"}


@pytest.mark.parametrize(("stride", "named"), [("ak", "am or ak"), ("bn", "bk or bn")])
def test_one_that_is_not_said_to_be_1_is_still_named(tmp_path, stride, named):
    known = found(tmp_path, **dict.fromkeys({"ak", "bn", "cn"} - {stride}, "i32:1"))
    (message,) = (one.message for one in known.values() if one.id == "uncoalesced-access")
    assert message.endswith(f"unless {named} is 1")


COLUMN = """
import triton, triton.language as tl

@triton.jit
def mm(a, b, c, K, am, ak, bk, bn, cm, cn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(1) * BM * BM + tl.arange(0, BM * BM)
    tl.store(b + rows, tl.load(a + rows * am))
"""


@pytest.mark.parametrize(("stride", "severity"), [("i32", "low"), ("i32:16", "high")])
def test_the_only_stride_is_not_1_where_it_is_a_multiple_of_16(tmp_path, stride, severity):
    one = found(tmp_path, COLUMN, am=stride)["uncoalesced-access", 7]
    assert (one.severity, "unless am is 1" in one.message) == (severity, severity == "low")


def test_where_a_tile_begins_may_be_loaded_before_the_loop(tmp_path):
    """As the rows of one sequence of many: an iteration waits for no index."""
    source = MATMUL.replace("    a += rm", "    a += tl.load(begins)\n    a += rm").replace(
        "a, b, c, K", "a, b, c, begins, K"
    )
    known = found(tmp_path, source, begins="*i32", bn="i32:1", cn="i32:1")
    assert (
        "waits for memory: the compiler can prove only 2 contiguous bytes" in known["loads-not-pipelined", 12].message
    )
