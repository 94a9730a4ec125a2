"""The search over configurations: Optuna proposes, what was tried before is told to it first.

The records are the only memory: a search that was killed goes on from them, as one that was not would have. So there
is no journal beside them which could say something else.
"""

import math
import random
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
        found = by_place.get(tuple(trial.params[name] for name in axes))
        if found is not None:
            return found
        study.tell(trial, math.log(worst))
    return chance.choice([config for config in candidates if config in left])


def _place(axes: Mapping[str, list[Any]], config: Config) -> tuple[int, ...]:
    return tuple(values.index(getattr(config, name)) for name, values in axes.items())


def _axes(candidates: Sequence[Config]) -> dict[str, list[Any]]:
    """The fields in which candidates differ, and their values from small to large: neighbours are alike."""
    values = {name: {getattr(config, name) for config in candidates} for name in Config.model_fields}
    return {name: sorted(found) for name, found in values.items() if len(found) > 1}
