"""The search of now, replayed on what all configurations took on an H200, and what the pages say of that record."""

import math
import random
from dataclasses import replace

import pytest

from kperf.arch import H200
from kperf.ir.compile import compile_for, sass
from kperf.ir.sass import order
from kperf.record.store import RECORDED
from kperf.tune import estimate
from kperf.tune.command import TENTH
from kperf.tune.records import DEFAULT_KEY, GOAL, REPORTED, TUNED_KEY, ranked, store_in, studies, tuned
from kperf.tune.resources import stock_source
from kperf.tune.search import next_trial
from kperf.tune.space import SPACES, expected
from tests.pages import said
from tests.tune.compiled import JUDGED

STUDIES = studies(store_in(RECORDED / "h200").points())
SM_90A = SPACES["sm_90a"]
SEEDS = range(3)


def off_by(factors):
    """An H200 with other numbers, in the order of the estimate's terms."""
    flops, exponentials, fp32, shared, load, latency = factors
    arch = replace(
        H200.arch,
        flop_per_cycle={dtype: rate * flops for dtype, rate in H200.arch.flop_per_cycle.items()},
        exponentials_per_cycle=H200.arch.exponentials_per_cycle * exponentials,
        fp32_per_cycle=H200.arch.fp32_per_cycle * fp32,
        shared_bytes_per_cycle=H200.arch.shared_bytes_per_cycle * shared,
    )
    return replace(H200, arch=arch, l2_bytes_per_cycle=64 * load, l2_latency=800 * latency)


def replayed(study, seed, elsewhere=(), of=SM_90A):
    """Of what a search finds: its time over the best's, less 1, and the trial in which it was tried.

    Once it has tried the best of all, the trials that are left change neither.
    """
    costs = study.tried("exhaustive")
    best = ranked(costs)[0]
    trials, tried = math.ceil(TENTH * study.runnable), {}
    cycles = expected(of, study.workload, JUDGED)
    while len(tried) < trials and best not in tried:
        config = next_trial(cycles, tried, trials, elsewhere, seed=seed)
        tried[config] = costs[config]
    found = ranked(tried)[0]
    return costs[found] / costs[best] - 1, [*tried].index(found) + 1


def correlation(study):
    """Of the ranks by the estimate and by the recorded costs."""
    from scipy.stats import spearmanr  # imported by whoever runs this: it takes a second

    cycles, costs = expected(SM_90A, study.workload, JUDGED), study.tried("exhaustive")
    return spearmanr([*cycles.values()], [costs[config] for config in cycles]).statistic


def test_all_of_the_experiment_is_recorded():
    assert tuple(study.workload for study in STUDIES) == REPORTED
    for study in STUDIES:
        assert study.is_exhaustive
        assert study.regret is not None
        assert {*study.tried("search")} <= {*study.tried("exhaustive")}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: str(study.workload.seq_len))
def test_a_search_of_now_comes_within_the_goal_of_the_best_recorded(study):
    """By itself, and beginning with what was best for the other lengths."""
    others = tuned(other for other in STUDIES if other is not study)["sm_90a"]
    for elsewhere in ((), tuple(dict.fromkeys(others.values()))):
        assert all(replayed(study, seed, elsewhere)[0] <= GOAL for seed in SEEDS)


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: str(study.workload.seq_len))
def test_the_estimate_ranks_configurations_as_they_were_measured(study):
    assert correlation(study) > 0.9


def test_it_does_so_with_an_estimate_whose_numbers_are_wrong(monkeypatch):
    """Each off by chance up to a factor of two, so that not only the numbers that fit this card are tried."""
    chance = random.Random(7)
    regrets = []
    for seed in range(40):
        factors = [2 ** chance.uniform(-1, 1) for _ in range(6)]
        monkeypatch.setattr(estimate, "_SYNC", 100 * 2 ** chance.uniform(-1, 1))
        wrong = replace(SM_90A, device=off_by(factors))
        regrets += [replayed(study, seed, of=wrong)[0] for study in STUDIES[:3]]
    missed = sum(regret > GOAL for regret in regrets)
    assert missed <= 0.1 * len(regrets)
    assert said(f"{missed} of {len(regrets)} simulated searches")


def test_the_pages_say_what_is_recorded():
    assert {study.ratio_to_vendor[0] for study in STUDIES} == {"cudnn"}
    for study in STUDIES:
        tuned_ms, before_ms = (study.comparison[key].median_ms for key in (TUNED_KEY, DEFAULT_KEY))
        numbers = f"{tuned_ms:.4f} | {before_ms / tuned_ms:.1f} | {study.ratio_to_vendor[1]:.3f} | {study.regret:.1%}"
        assert said(f"| {study.workload.seq_len} | {numbers.removesuffix('%')} |")
    (runnable,) = {study.runnable for study in STUDIES}
    (failed,) = {sum(cost is None for cost in study.tried("exhaustive").values()) for study in STUDIES}
    assert said(f"{runnable} configurations compile, and {failed} of the {runnable} fail when they run")


def test_the_pages_say_what_the_estimate_and_the_search_of_now_give():
    ranks = [correlation(study) for study in STUDIES]
    between = "between the estimated and the measured times of all configurations"
    assert said(f"rank correlation {between} is {min(ranks):.2f} to {max(ranks):.2f}")
    found = [replayed(study, seed) for study in STUDIES for seed in SEEDS]
    assert {regret for regret, _ in found} == {0.0}
    assert max(trial for _, trial in found) == 2
    assert said("finds the fastest configuration within two timed configurations")


@pytest.mark.kernels
def test_nothing_of_a_block_runs_under_its_exponentials():
    """What the pages say of the distance to cuDNN, for what was chosen and what comes next: one wait a trip."""
    slower = []
    for study in STUDIES[2:]:
        workload, final = study.workload, study.tried("final")
        assert study.chosen == ranked(final)[0]
        slower.append(100 * (final[ranked(final)[1]] / final[study.chosen] - 1))
        for config, blocks in zip(ranked(final)[:2], (2, 1), strict=True):
            source = stock_source(config, workload.head_dim, workload.causal, workload.dtype)
            kernel = compile_for(SM_90A.arch, source, num_warps=config.num_warps, num_stages=config.num_stages)
            needs = SM_90A.read(kernel)
            assert said(f"{needs.shared_bytes} bytes")
            assert said(f"spill {needs.spills} bytes a thread") or not needs.spills
            assert SM_90A.arch.ctas_per_sm(needs.registers, needs.shared_bytes, config.num_warps) == blocks
            words = [word.split()[0] for word in order(sass(kernel)) if word.startswith(("wgmma", "wait", "exp2"))]
            trip = [word for word, before in zip(words, ["", *words], strict=False) if word != before]
            assert trip == ["wgmma", "wait", "exp2", "wgmma", "wait"] * 2  # once more after each of the two loops
    assert said(f"takes {slower[0]:.1f} % longer than with tiles of 64 x 128 at seq_len 2048")
    assert said(f"{slower[1]:.1f} % longer at seq_len 4096.")
