"""What the tables say, how an architecture is found, and that nothing of a GPU stands elsewhere."""

import ast
import json
import re
import statistics
from pathlib import Path
from typing import get_args

import pytest

from kperf import arch
from kperf.arch import (
    COPY_OVER_ATOMICS,
    H200,
    H200_ATOMIC_BYTES_PER_CYCLE,
    H200_ATOMIC_NS,
    H200_COPY_GB_PER_S,
    H200_SM_BYTES_IN_FLIGHT,
    KNOWN,
    MI300X,
    SM_90A,
)
from kperf.errors import UsageError

KPERF = Path(arch.__file__).resolve().parents[1]


@pytest.mark.parametrize("one", KNOWN, ids=lambda one: one.name)
def test_an_architecture_is_found_by_each_of_its_names(one):
    for name in (one.name, one.target, f"{one.backend}:{one.number}", one.name.removesuffix("a")):
        assert arch.of(name) is one


def test_the_capability_is_as_torch_gives_it():
    found = {one.name: one.device_capability for one in KNOWN}
    assert found["sm_89"] == (8, 9)
    assert found["sm_90a"] == (9, 0)
    assert found["sm_120"] == (12, 0)
    assert (found["gfx942"], found["gfx950"]) == ((9, 4), (9, 5))


def test_an_unknown_target_is_refused_by_a_sentence_with_the_known_ones():
    with pytest.raises(UsageError) as refused:
        arch.of("sm_75")
    assert str(refused.value) == (
        "no GPU architecture 'sm_75' is known: choose from sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_103a, sm_120, "
        "gfx942, gfx950"
    )


@pytest.mark.parametrize("one", KNOWN, ids=lambda one: one.name)
def test_the_tables_are_whole(one):
    assert set(get_args(arch.Dtype)) - {"fp4"} <= set(one.flop_per_cycle)
    mmas = {name for name, kind in one.operations.items() if kind == "mma"}
    assert mmas == set(one.completion)
    for place, opcode in enumerate(one.opcodes):  # the first that fits is taken: none hides a later one
        assert not [other for other in one.opcodes[:place] if opcode.prefix.startswith(other.prefix)], opcode


@pytest.mark.parametrize(
    ("name", "sms", "mhz", "tflops"),
    [("sm_80", 108, 1410, 312), ("sm_86", 72, 1695, 125), ("sm_89", 142, 2490, 362), ("sm_90a", 132, 1830, 989),
     ("sm_100a", 148, 1850, 2250), ("sm_120", 188, 2617, 504), ("gfx942", 304, 2100, 1307),
     ("gfx950", 256, 2400, 2517)],
)  # fmt: skip
def test_peaks_are_those_of_the_data_sheets(name, sms, mhz, tflops):
    assert sms * mhz * 1e6 * arch.of(name).flop_per_cycle["bf16"] / 1e12 == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("name", "sms", "mhz", "tflops"),
    [
        ("sm_80", 108, 1410, {"fp16": 312, "tf32": 156, "int8": 624, "fp32": 19.5, "fp64": 19.5}),
        ("sm_86", 72, 1695, {"fp16": 125, "tf32": 62.5, "int8": 250, "fp32": 31.2}),
        ("sm_89", 142, 2490, {"fp16": 362, "tf32": 183, "fp8": 733, "int8": 733, "fp32": 91.6}),
        ("sm_90a", 132, 1830, {"fp16": 989, "tf32": 494.7, "fp8": 1979, "int8": 1979}),
        ("sm_90a", 132, 1980, {"fp32": 66.9, "fp64": 66.9}),
        ("sm_100a", 148, 1850, {"fp16": 2250, "tf32": 1125, "fp8": 4500, "int8": 4500, "fp4": 9000}),
        ("sm_100a", 148, 1965, {"fp32": 75, "fp64": 37}),
        ("sm_103a", 148, 1850, {"bf16": 2250, "fp16": 2250, "fp8": 4500, "fp4": 13500}),
        ("sm_120", 188, 2617, {"fp16": 504, "tf32": 252, "fp8": 1008, "int8": 1008, "fp4": 2015, "fp32": 126}),
        ("gfx942", 304, 2100, {"fp16": 1307, "tf32": 654, "fp8": 2615, "int8": 2615, "fp32": 163, "fp64": 163}),
        ("gfx950", 256, 2400, {"fp16": 2517, "fp8": 5033, "int8": 5033, "fp4": 10066, "fp32": 157, "fp64": 78.6}),
    ],
)
def test_each_types_peak_is_that_of_the_data_sheet(name, sms, mhz, tflops):
    """A100, A10, L40S, H100 SXM5, HGX B200, HGX B300, RTX PRO 6000, MI300X, MI355X; without sparsity."""
    peaks = {dtype: sms * mhz * 1e6 * arch.of(name).flop_per_cycle[dtype] / 1e12 for dtype in tflops}
    assert peaks == pytest.approx(tflops, rel=0.015)


@pytest.mark.parametrize("one", KNOWN, ids=lambda one: one.name)
def test_registers_come_in_eights_and_banks_are_of_4_bytes(one):
    """CUDA C++ Programming Guide, "Shared Memory"; CDNA 3 and 4 Instruction Set Architecture, "Local Data Share"."""
    assert one.thread_register_unit == 8
    assert (one.shared_banks, one.shared_bank_bytes) == (64 if one.name == "gfx950" else 32, 4)


@pytest.mark.parametrize(
    ("name", "sms", "mhz", "terabytes"),
    [("sm_80", 108, 1410, 2.039), ("sm_86", 72, 1695, 0.6), ("sm_89", 142, 2490, 0.864), ("sm_90a", 132, 1830, 4.8),
     ("sm_100a", 148, 1850, 8.0), ("sm_103a", 148, 1850, 8.0), ("sm_120", 188, 2617, 1.792), ("gfx942", 304, 2100, 5.3),
     ("gfx950", 256, 2400, 8.0)],
)  # fmt: skip
def test_the_memory_is_as_fast_as_the_data_sheet_says(name, sms, mhz, terabytes):
    """A100 80GB, A10, L40S, H200, HGX B200, HGX B300, RTX PRO 6000, MI300X, MI355X: TB/s of all SMs."""
    assert sms * mhz * 1e6 * arch.of(name).memory_bytes_per_cycle / 1e12 == pytest.approx(terabytes, rel=0.02)


def test_what_no_data_sheet_says_of_an_h200_is_what_was_recorded():
    results = KPERF.parent / "results/h200"
    timelines = [json.loads(path.read_text()) for path in results.glob("examples/*.timeline.json")]
    rates = [one["bandwidth"]["copy_gb_per_s"] for one in timelines if one["bandwidth"]]
    # Two cards are a percent apart.
    assert pytest.approx(statistics.median(rates), rel=0.02) == H200_COPY_GB_PER_S <= max(rates)
    rows = [json.loads(line) for line in (results / "diagnose.jsonl").read_text().splitlines()]
    sums = next(row["fixed"]["original_ms"] for row in rows if row["name"] == "atomic_sum")
    assert statistics.median(sums) * 1e6 / (1 << 24) == pytest.approx(H200_ATOMIC_NS, rel=0.01)
    (added,) = (json.loads(path.read_text()) for path in results.glob("examples/split_k.timeline.json"))
    cycles = next(one["cycles"]["median"] for one in added["regions"] if one["name"] == "atomic add c")
    assert 128 * 128 * 4 / cycles == pytest.approx(H200_ATOMIC_BYTES_PER_CYCLE, rel=0.02)


def test_bytes_in_flight_on_an_sm_follow_from_bandwidth_and_latency():
    assert pytest.approx(4.8e12 * 700e-9 / H200.sms, rel=0.01) == H200_SM_BYTES_IN_FLIGHT


def test_mmas_complete_as_the_hardware_says():
    assert {one.name: set(one.completion.values()) for one in KNOWN} == {
        "sm_80": {"sync"},
        "sm_86": {"sync"},
        "sm_89": {"sync"},
        "sm_90a": {"sync", "wgmma"},
        "sm_100a": {"sync", "tcgen05"},
        "sm_103a": {"sync", "tcgen05"},
        "sm_120": {"sync"},
        "gfx942": {"sync"},
        "gfx950": {"sync"},
    }
    assert arch.completion("ttng.warp_group_dot") == "wgmma"
    assert arch.completion("tt.load") is None


def numbers_of_gpus() -> set[int]:
    """Those that mean nothing else: limits of shared memory, and how many SMs a GPU has."""
    limits = {limit for one in KNOWN for limit in (one.cta_shared_bytes, one.sm_shared_bytes)}
    return (limits - {64 * 1024}) | {H200.sms, MI300X.sms}


NAMES = re.compile(rf"({'|'.join(one.name for one in KNOWN)}|sm_90|sm_100|sm_103|cuda:\d+|hip:\w+|h[12]00)")
ELSEWHERE = [path for path in sorted(KPERF.rglob("*.py")) if path.parent != Path(arch.__file__).parent]


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: str(path.relative_to(KPERF)))
def test_no_number_and_no_target_of_a_gpu_stands_elsewhere(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            assert called != "GPUTarget", f"{path}:{node.lineno} makes a target: take it from kperf.arch"
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            assert node.value not in numbers_of_gpus(), (
                f"{path}:{node.lineno} has {node.value}: take it from kperf.arch"
            )
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not NAMES.fullmatch(node.value), f"{path}:{node.lineno} names {node.value}: take it from kperf.arch"


def test_it_imports_nothing_of_the_project_but_errors():
    for path in Path(arch.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                allowed = ("kperf.arch", "kperf.errors", "__future__", "collections.abc", "dataclasses", "typing")
                assert node.module.startswith(allowed) or node.module == "kperf.compat.triton", path


def test_a_device_has_its_peak():
    assert H200.arch is SM_90A
    assert H200.peak_tflops("bf16") == pytest.approx(132 * 4096 * 1.98e9 / 1e12)


def test_what_atomics_of_all_ctas_cost_beside_a_copy_is_what_was_recorded():
    """Rows of 4096 elements: two of bfloat16 are loaded and one is stored, beside one of float32 that is added."""
    record = KPERF.parent / "results/h100-80gb-hbm3/diagnose.jsonl"
    rows = [row for line in record.read_text().splitlines() if (row := json.loads(line))["name"] == "rms_norm_backward"]
    assert rows
    for row in rows:
        original, fixed = (statistics.median(row["fixed"][name]) for name in ("original_ms", "fixed_ms"))
        assert (original / fixed - 1) * (3 * 2) / 4 == pytest.approx(COPY_OVER_ATOMICS, rel=0.05)
