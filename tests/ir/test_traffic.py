"""Bytes that operations move, as their types say."""

import pytest

from kperf.ir.traffic import Traffic, traffic
from kperf.ir.ttgir import Operation


@pytest.mark.parametrize(
    ("name", "rest", "loaded", "stored"),
    [
        ("tt.load", " %x, %m, %o : tensor<2048x!tt.ptr<bf16>, #blocked>", 4096, 0),
        ("tt.load", " %first : !tt.ptr<i32>", 4, 0),
        ("tt.load", " %flags : tensor<64x!tt.ptr<i1>, #blocked>", 64, 0),
        ("tt.store", " %p, %v, %m : tensor<128x256x!tt.ptr<f8E4M3FN>, #blocked1>", 0, 32768),
        ("tt.atomic_rmw",
         " fadd, relaxed, gpu, %p, %v : (tensor<128x!tt.ptr<f32>, #b>, tensor<128xf32>)", 0, 512),
        ("ttg.async_copy_global_to_local",
         " %p, %s {contiguity = 8 : i32} : tensor<128x64x!tt.ptr<bf16>> -> <128x64xbf16>", 16384, 0),
        ("ttng.async_tma_copy_global_to_local",
         " %k[%h, %c] : !tt.tensordesc<tensor<64x64xbf16>>, !ttg.memdesc<1xi64> -> !ttg.memdesc<64x64xbf16>", 8192, 0),
        ("amdg.buffer_load", " %x[%i], %mask, %zero : tensor<4096xbf16, #blocked>", 8192, 0),
        ("amdg.buffer_store", " %v, %y[%i], %mask : tensor<64x32xf32, #blocked>", 0, 8192),
        ("amdg.buffer_atomic_rmw", " fadd, relaxed, gpu, %v, %y[%i], %mask : tensor<128xf16, #b>", 0, 256),
        ("ttng.async_tma_copy_local_to_global",
         " %o[%q, %c] %s : !tt.tensordesc<tensor<128x64xf32>>", 0, 32768),
    ],
)  # fmt: skip
def test_a_tensor_counts_whole(name: str, rest: str, loaded: int, stored: int):
    assert traffic(Operation(name, (), rest, 0, 0, None), "x") == Traffic("x", loaded, stored)


def test_arithmetic_moves_nothing():
    assert traffic(Operation("arith.addf", (), " %a, %b : tensor<128xf32, #blocked>", 0, 0, None), "x") is None
