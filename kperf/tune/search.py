"""The search over configurations: an estimate begins, corrected by what is measured, and Optuna goes on.

The records are the only memory: a search that was killed goes on from them, as one that was not would have. So there
is no journal beside them which could say something else.
"""

import math
import random
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import create_trial

from kperf.attention.configs import Config
from kperf.tune.records import Cost

Sampler = Callable[[int], BaseSampler]
"""Made anew for each proposal, from a seed."""

_PROPOSALS = 8
"""So many times a proposal may be one that was tried or dropped before chance decides."""


def parzen(seed: int) -> BaseSampler:
    """The tree-structured Parzen estimator, over all choices at once: what is best of one depends on the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # of `multivariate`
        return TPESampler(seed=seed, n_startup_trials=4, multivariate=True)


def next_trial(
    expected: Mapping[Config, float],
    tried: Mapping[Config, Cost],
    trials: int,
    elsewhere: Sequence[Config] = (),
    *,
    seed: int,
) -> Config:
    """Which of `expected`, configurations and the cycles they should take, to try next in a search of so many trials.

    The first half of the trials is what was best `elsewhere`, then what should be fastest; the rest is Optuna's, which
    looks where the estimate does not.
    """
    by_estimate = len(tried) < math.ceil(trials / 2)
    first = [*elsewhere, *most_promising(expected, tried)] if by_estimate else []
    return propose([*expected], tried, first, seed=seed)


def most_promising(expected: Mapping[Config, float], tried: Mapping[Config, Cost]) -> list[Config]:
    """Configurations in the order of what they should cost by the estimate and by what those tried cost beside it.

    An estimate is right about stages sooner than about tiles. So its error is taken to be that of the same tile and
    number of warps, where one was tried; else that of all that were.
    """
    errors: dict[tuple[int, int, int], list[float]] = {}
    for config, cost in tried.items():
        if cost is not None and config in expected:
            errors.setdefault(_tile(config), []).append(math.log(cost / expected[config]))
    of_all = statistics.mean(error for of_tile in errors.values() for error in of_tile) if errors else 0.0

    def corrected(config: Config) -> float:
        of_tile = errors.get(_tile(config))
        return math.log(expected[config]) + (statistics.mean(of_tile) if of_tile else of_all)

    return sorted(expected, key=corrected)


def _tile(config: Config) -> tuple[int, int, int]:
    return config.BLOCK_M, config.BLOCK_N, config.num_warps


def propose(
    candidates: Sequence[Config],
    tried: Mapping[Config, Cost],
    first: Sequence[Config] = (),
    *,
    seed: int,
    sampler: Sampler = parzen,
) -> Config:
    """Which of `candidates` to try next; one that is not in `tried`, of which there has to be one.

    `tried`: what is known, in the order in which it was found; `first`: proposed before all others, if candidates.
    Optuna may propose what was dropped, or tried: told that it costs as much as the worst, it looks elsewhere.
    """
    left = {config for config in candidates if config not in tried}
    for config in first:
        if config in left:
            return config
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    chance = random.Random(f"{seed} {len(tried)}")
    axes = _axes([*candidates, *tried])
    space: dict[str, BaseDistribution] = {name: IntDistribution(0, len(values) - 1) for name, values in axes.items()}
    study = optuna.create_study(sampler=sampler(chance.getrandbits(32)))
    worst = max((cost for cost in tried.values() if cost is not None), default=1.0)
    for config, cost in tried.items():
        params = dict(zip(axes, _place(axes, config), strict=True))
        value = math.log(worst if cost is None else cost)
        study.add_trial(create_trial(params=params, distributions=space, value=value))
    by_place = {_place(axes, config): config for config in left}
    for _ in range(_PROPOSALS):
        trial = study.ask(space)
        proposed = by_place.get(tuple(trial.params[name] for name in axes))
        if proposed is not None:
            return proposed
        study.tell(trial, math.log(worst))
    return chance.choice([config for config in candidates if config in left])


def _place(axes: Mapping[str, list[Any]], config: Config) -> tuple[int, ...]:
    return tuple(values.index(getattr(config, name)) for name, values in axes.items())


def _axes(candidates: Sequence[Config]) -> dict[str, list[Any]]:
    """The fields in which candidates differ, and their values from small to large: neighbours are alike."""
    values = {name: {getattr(config, name) for config in candidates} for name in Config.model_fields}
    return {name: sorted(choices) for name, choices in values.items() if len(choices) > 1}
