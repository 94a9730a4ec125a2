"""An autotuner whose list of configurations is too short: one alone, or the best at the end of what it may choose."""

import math
from collections.abc import Iterator
from dataclasses import replace

from kperf.compat.triton.tuning import Tuning
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.options import MOST_WARPS, more_warps
from kperf.diagnose.rule import Rule
from kperf.diagnose.script.history import History
from kperf.diagnose.thresholds import TUNED_GAIN
from kperf.trace.analyze.finding import Finding

_LEAST = {"num_warps": 1, "num_stages": 1}
_MOST = {"num_warps": MOST_WARPS, "num_ctas": 16, "maxnreg": 255}
"""Of a CTA, a cluster and a thread."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the list, the choice, and the times that the autotuner kept.

    A hint: a value beyond the list is seldom faster (docs/rules/autotuner-list.md).
    """
    for tuning in (kernel.history or History()).tunings[:1]:
        if len(tuning.configs) == 1:
            yield kernel.finding(
                RULE.id,
                None,
                "low",
                "the kernel's autotuner has a single configuration, so it compares nothing",
                "give @triton.autotune several triton.Config, with other tiles, num_warps and num_stages",
                {"configurations": 1},
                candidates=[*more_warps(kernel)[:1], {"num_stages": (kernel.num_stages or 1) + 1}],
            )
        elif not kernel.tuned and (edges := _edges(ran := _that_ran(tuning))):  # else no GPU has chosen
            yield _at_the_edge(kernel, ran, edges)


def _that_ran(tuning: Tuning) -> Tuning:
    """Without the configurations that took for ever, as Triton says of those that need more than an SM has."""
    if not tuning.milliseconds:
        return tuning
    timed = [one for one in zip(tuning.configs, tuning.milliseconds, strict=False) if math.isfinite(one[1])]
    return replace(tuning, configs=tuple(config for config, _ in timed), milliseconds=tuple(took for _, took in timed))


def _at_the_edge(kernel: Kernel, tuning: Tuning, edges: dict[str, tuple[list[int], int]]) -> Finding:
    evidence: dict[str, float | int | str] = {"configurations": len(tuning.configs)}
    for name, (values, _) in edges.items():
        evidence |= {name: tuning.best[name], f"{name}_values": ", ".join(map(str, values))}
    gains = {name: gain for name in edges if (gain := _gain(tuning, name)) is not None}
    if gains:
        evidence |= {"best_ms": min(tuning.milliseconds)} | {f"{name}_gain": gain for name, gain in gains.items()}
    words = [
        f"{name}={tuning.best[name]}, the {'largest' if tuning.best[name] == values[-1] else 'smallest'} of "
        f"{', '.join(map(str, values))}"
        for name, (values, _) in edges.items()
    ]
    return kernel.finding(
        RULE.id,
        None,
        "low",
        "the kernel's autotuner chose a value at the end of its list, so a value beyond the list may be faster: "
        + "; ".join(words),
        "add a triton.Config with "
        + " or ".join(f"{name}={value}" for name, (_, value) in edges.items())
        + " to the autotuner's list",
        evidence,
        confidence="medium" if gains else "low",
        candidates=[{name: value} for name, (_, value) in edges.items()],
    )


def _edges(tuning: Tuning) -> dict[str, tuple[list[int], int]]:
    """Parameters whose best value is the first or last of those in the list: the values, and the one beyond."""
    found: dict[str, tuple[list[int], int]] = {}
    for name, best in tuning.best.items():
        values = sorted({value for config in tuning.configs if isinstance(value := config.get(name), int)})
        if isinstance(best, bool) or len(values) < 2 or best not in (values[0], values[-1]):
            continue
        beyond = _beyond(name, values, best)
        gain = _gain(tuning, name)
        if beyond is not None and (gain is None or gain >= TUNED_GAIN):
            found[name] = values, beyond
    return found


def _beyond(name: str, values: list[int], best: int) -> int | None:
    """The next value: powers of two go on by doubling, others by a step; None where there is none."""
    doubling = name != "num_stages" and all(value > 0 and value & (value - 1) == 0 for value in values)
    if best == values[-1]:
        beyond = best * 2 if doubling else 2 * best - values[-2]
    else:
        beyond = best // 2 if doubling else 2 * best - values[1]
    return beyond if _LEAST.get(name, 1) <= beyond <= _MOST.get(name, beyond) else None


def _gain(tuning: Tuning, name: str) -> float | None:
    """Time of the fastest configuration with another value of a parameter over the best; None without times."""
    timed = list(zip(tuning.configs, tuning.milliseconds, strict=False))
    others = [took for config, took in timed if config.get(name) != tuning.best[name]]
    best = min((took for _, took in timed), default=0.0)
    return min(others) / best if others and best else None


RULE = Rule("autotuner-list", "An autotuner's list that is too short", check, needs="history", only_options=True)
