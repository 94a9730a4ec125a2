"""How the stage times of one kernel become those of another's iteration."""

from types import SimpleNamespace

import pytest

from kperf.errors import UsageError
from kperf.trace.analyze.predict import ITERATIONS, _steps


def iteration(*kinds):
    return [SimpleNamespace(kind=kind) for kind in kinds]


def test_arithmetic_is_shared_out_and_of_all_else_a_region_takes_the_mean():
    stages = {"arithmetic": [30.0, 10.0, 23.0], "tensor": [5.0, 16.0], "barrier": [7.0]}
    steps = _steps(iteration("arithmetic", "tensor", "arithmetic", "barrier", "load"), stages)
    assert len(steps) == 5 * ITERATIONS
    assert [step.cycles for step in steps[:5]] == [31.5, 10.5, 31.5, 7.0, 0.0]
    assert [step.iteration for step in steps[4:7]] == [0, 1, 1]
    assert [step.cycles for step in _steps(iteration("arithmetic"), stages)[:1]] == [63.0]


@pytest.mark.parametrize("kind", ["arithmetic", "tensor"])
def test_without_its_work_measured_there_is_no_prediction(kind):
    with pytest.raises(UsageError, match=f"the measured kernel has no region of {kind}: no prediction"):
        _steps(iteration(kind, "barrier"), {"barrier": [1.0]})
