"""The recorded H200 run is whole, right, and of the overrides that are committed."""

import statistics

import pytest

from kperf import fig12, override
from kperf.attention import IMPLEMENTATIONS
from kperf.kernels.variants import VARIANTS
from kperf.measure import MAX_LSE_ERROR, MAX_REL_ERROR
from kperf.report import speedup_interval
from kperf.results import RECORDED, Store

STORE = Store(RECORDED / "h200")
MODES = [fig12.Mode(), fig12.Mode(causal=True)]


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: mode.stem)
def recorded(request):
    return request.param, fig12.figure_runs(STORE, request.param)


def test_every_place_has_every_bar_from_one_environment(recorded):
    mode, runs = recorded
    assert list(runs) == fig12.grid(mode.causal)
    points = [p for run in runs.values() for p in run.values()]
    assert all({*mode.keys} <= run.keys() for run in runs.values())
    assert {p.status for p in points} == {"ok"}
    assert len({p.environment for p in points}) == 1
    assert all(len(p.samples_ms) >= 10 for p in points)


def test_every_point_was_right_and_its_numbers_are_its_samples(recorded):
    _, runs = recorded
    for run in runs.values():
        assert len({p.run for p in run.values()}) == 1
        for p in run.values():
            assert p.rel_error < MAX_REL_ERROR[p.dtype]
            assert p.lse_error is None or p.lse_error < MAX_LSE_ERROR
            assert p.median_ms == pytest.approx(statistics.median(p.samples_ms))
            assert p.tflops == pytest.approx(p.flops / p.median_ms / 1e9)
            assert p.ci95_ms[0] <= p.median_ms <= p.ci95_ms[1]
            assert sorted({len(p.samples_ms), len(p.round_order), len(p.device_states)}) == [len(p.samples_ms)]


def test_the_overrides_that_ran_are_those_that_are_committed(recorded):
    _, runs = recorded
    for (_, workload), run in runs.items():
        for key in VARIANTS:
            if key in run:
                assert run[key].override_sha256 == override.find(key, override.specialization_of(workload)).sha256


def test_the_environment_names_a_clean_commit():
    used = {p.environment for mode in MODES for run in fig12.figure_runs(STORE, mode).values() for p in run.values()}
    environments = STORE.environments()
    for name in used:
        assert environments[name].gpu == "NVIDIA H200"
        assert len(environments[name].git_commit) == 40
        assert environments[name].triton == "3.6.0"


def test_the_improved_schedule_is_as_fast_as_promised():
    runs = [run for (_, w), run in fig12.figure_runs(STORE, fig12.Mode()).items() if w.seq_len >= 1024]
    assert speedup_interval(runs, "improved", "vanilla")[0] >= 1.15
    assert speedup_interval(runs, "improved", "fa3")[0] >= 0.93


def test_the_figures_lie_beside():
    for mode in MODES:
        for suffix in ("pdf", "png"):
            assert (STORE.folder / f"{mode.stem}.{suffix}").stat().st_size > 10_000
    assert set(IMPLEMENTATIONS) >= set(MODES[0].keys)
