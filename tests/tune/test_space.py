"""What compiling drops before anything is timed, and why; what is left compiles, fits and spills nothing."""

import pytest

from kperf.attention.configs import Config
from kperf.attention.kernels.stock import PLAIN_CONFIGS
from kperf.attention.workload import Workload
from kperf.bench.points import Store
from kperf.record.store import RECORDED
from kperf.tune import space
from kperf.tune.space import SPACES, Judged, Needs, expected, judge, prune
from tests.tune.compiled import AUTOTUNED, JUDGED

pytestmark = pytest.mark.kernels

WIDE = Workload(batch=4, heads=8, seq_len=512, head_dim=256)
SM_90A, GFX942 = SPACES["sm_90a"], SPACES["gfx942"]


def config(block_m, block_n, num_warps=4, num_stages=1, **more):
    fields = {"PRELOAD_V": False} | more
    return Config(BLOCK_M=block_m, BLOCK_N=block_n, num_warps=num_warps, num_stages=num_stages, **fields)


def test_an_accumulator_that_no_thread_can_hold_is_not_compiled(monkeypatch):
    monkeypatch.setattr(space, "compile_for", None)
    found = judge(SM_90A, WIDE, config(128, 64, 4))
    assert found.needs is None
    assert not found.refused  # it would run, and spill
    assert found.dropped == "the accumulator alone takes 256 registers a thread"


def test_what_spills_or_does_not_fit_is_dropped_by_what_the_compiler_made():
    fits, too_large = (judge(SM_90A, WIDE, config(64, 64, 8, stages)) for stages in (2, 4))
    assert fits.dropped is None
    assert 0 < fits.needs.shared_bytes <= SM_90A.arch.cta_shared_bytes < too_large.needs.shared_bytes
    limit = SM_90A.arch.cta_shared_bytes
    assert too_large.dropped == f"{too_large.needs.shared_bytes} bytes of shared memory, more than {limit}"
    # Of which waves_per_eu reaches the compiler: to hold two a SIMD unit, a wave has half of the registers.
    fits, spills = (judge(GFX942, WIDE, config(32, 32, waves_per_eu=waves)) for waves in (1, 2))
    assert fits.needs.registers > 256 >= spills.needs.registers
    assert fits.dropped is None
    assert fits.needs.shared_bytes <= GFX942.arch.cta_shared_bytes
    assert spills.needs.spills > 0
    assert spills.dropped == f"spills {spills.needs.spills} registers"


def test_a_few_spilled_bytes_do_not_drop_a_larger_tile():
    narrow = WIDE.model_copy(update={"head_dim": 64})
    little, much = (judge(SM_90A, of, config(m, 128, PRELOAD_V=True)) for of, m in ((narrow, 128), (WIDE, 64)))
    assert 0 < little.needs.spills <= SM_90A.spill_limit < much.needs.spills
    assert little.dropped is None
    assert much.dropped == f"spills {much.needs.spills} bytes"


def test_preloading_v_is_another_kernel():
    late, early = (judge(SM_90A, WIDE, config(64, 32, PRELOAD_V=first)) for first in (False, True))
    assert late.needs.shared_bytes < early.needs.shared_bytes  # both tiles are there at once


def test_what_does_not_compile_says_so():
    wrong = WIDE.model_copy(update={"head_dim": 48})  # no power of two
    found = judge(SM_90A, wrong, config(64, 32))
    assert found.needs is None
    assert found.refused
    assert found.dropped.startswith("attention does not compile for sm_90a: ")


def test_wider_tiles_of_one_that_spills_are_dropped_uncompiled(monkeypatch):
    compiled = []

    def judged(_architecture, _workload, one):
        compiled.append(one)
        return Judged(one, Needs(255, 80 * (one.BLOCK_N == 64), 0), "spills 80 bytes" if one.BLOCK_N == 64 else None)

    monkeypatch.setattr(space, "judge", judged)
    asked = [config(64, n, warps) for n in (128, 32, 64) for warps in (8, 4)]
    told = []
    found = prune(SM_90A, WIDE, asked, told.append)
    assert [one.config for one in found] == asked
    assert {one.config: one.dropped for one in found} == {
        config(64, n, warps): {32: None, 64: "spills 80 bytes", 128: "spills with BLOCK_N=64 already"}[n]
        for n in (32, 64, 128)
        for warps in (4, 8)
    }
    assert sorted(one.BLOCK_N for one in compiled) == [32, 32, 64, 64]
    assert len(told) == len(asked)


@pytest.mark.parametrize("name", SPACES)
def test_the_space_has_each_configuration_once_and_the_reports_tuned_one(name):
    every = SPACES[name].configs()
    assert len(set(every)) == len(every)
    waves = {"gfx942": {"waves_per_eu": 2}}.get(name, {})
    assert config(64, 32, 4, 1, PRELOAD_V=True, **waves) in every
    assert all((one.waves_per_eu is None) == (name == "sm_90a") for one in every)


def test_expected_is_what_is_left_the_fastest_first():
    found = expected(SM_90A, WIDE, [*JUDGED, Judged(config(128, 128, 4), Needs(255, 800, 64), "spills 800 bytes")])
    assert sorted(map(str, found)) == sorted(str(one.config) for one in JUDGED)
    assert [*found.values()] == sorted(found.values())


def test_the_estimate_puts_first_what_the_autotuner_chose_on_an_h200():
    """Of its list, for most recorded shapes: long ones it times too few times to know."""
    shapes = {
        point.workload: point.message
        for point in Store(RECORDED / "h200").points()
        if (point.implementation, point.head_dim, point.status) == ("triton", 128, "ok") and point.tflops
        if point.seq_len <= 4096 and point.batch <= 16
    }
    assert len(shapes) >= 20
    for causal, judged in AUTOTUNED.items():
        assert [one.config for one in judged] == PLAIN_CONFIGS
        assert judge(SM_90A, Workload(batch=1, seq_len=128, causal=causal), judged[-1].config) == judged[-1]
    agreed = 0
    for workload, chosen in shapes.items():
        best = next(iter(expected(SM_90A, workload, AUTOTUNED[workload.causal])))
        names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
        agreed += all(f"{name}: {getattr(best, name)}," in chosen + "," for name in names)
    assert agreed >= 0.8 * len(shapes)
