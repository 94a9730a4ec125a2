import math

import numpy as np
import pytest
import torch

from kperf.measure import Inputs, _calls_per_sample, errors, make_inputs, median_interval
from kperf.workload import Workload

WORKLOAD = Workload(batch=2, heads=2, seq_len=128, head_dim=64)


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(WORKLOAD, seed=7, device_name="cpu")


def test_inputs_are_the_seeds(inputs):
    assert torch.equal(inputs.q, make_inputs(WORKLOAD, 7, "cpu").q)
    assert not torch.equal(inputs.q, make_inputs(WORKLOAD, 8, "cpu").q)
    assert inputs.q.dtype == torch.bfloat16
    assert inputs.o.dtype == torch.float32


def test_errors_are_those_of_the_definition(inputs):
    rel_error, lse_error = errors((inputs.o * 1.01, inputs.lse + 0.5), inputs)
    assert rel_error == pytest.approx(0.01, rel=1e-4)
    assert lse_error == pytest.approx(0.5, rel=1e-4)
    assert errors((inputs.o.to(torch.bfloat16), None), inputs)[0] < 4e-3


def test_one_element_that_was_not_written_is_no_number(inputs):
    poisoned = inputs.o.clone()
    poisoned[1, 1, 127, 63] = math.nan
    assert math.isnan(errors((poisoned, None), inputs)[0])
    lse = inputs.lse.clone()
    lse[0, 0, 0] = math.nan
    assert math.isnan(errors((inputs.o, lse), inputs)[1])


def test_the_interval_covers_the_median_as_often_as_it_says():
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        low, high = median_interval(list(random.lognormal(0, 0.1, 15)))
        covered += low <= 1 <= high
    assert 180 <= covered <= 200


def test_equal_samples_have_an_interval_of_a_point():
    assert median_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_a_sample_is_long_enough_and_the_same_for_all():
    assert _calls_per_sample([0.01, 0.02]) == 50
    assert _calls_per_sample([80.0]) == 1
    assert _calls_per_sample([1e-4]) == 64
    assert _calls_per_sample([]) == 1


def test_errors_of_huge_numbers_are_numbers(inputs):
    huge = Inputs(inputs.q, inputs.k, inputs.v, inputs.o * 1e30, inputs.lse)
    assert errors((inputs.o * 1.01e30, None), huge)[0] == pytest.approx(0.01, rel=1e-4)
