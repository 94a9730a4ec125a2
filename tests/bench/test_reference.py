"""Inputs, the float32 reference and the errors against it."""

import math
from dataclasses import replace

import pytest
import torch

from kperf.attention.workload import Workload
from kperf.bench.reference import errors, expected_of, gradient_error, make_inputs, reference, reference_gradients
from tests.attention.handed_in import SCALE, exact, normal, operands

WORKLOAD = Workload(batch=2, heads=2, seq_len=128, head_dim=64)


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(WORKLOAD, seed=7, device_name="cpu")


@pytest.fixture(scope="module")
def right(inputs):
    return expected_of(WORKLOAD, inputs)


def test_inputs_are_the_seeds(inputs, right):
    assert torch.equal(inputs.q, make_inputs(WORKLOAD, 7, "cpu").q)
    assert not torch.equal(inputs.q, make_inputs(WORKLOAD, 8, "cpu").q)
    assert inputs.q.dtype == torch.bfloat16
    assert right.o.dtype == torch.float32


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_the_references_are_the_formula_in_both_directions(causal, kv_heads):
    q, k, v = operands(kv_heads=kv_heads, dtype=torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    o, lse = exact(*leaves, causal)
    do = normal(*q.shape, dtype=torch.float64, seed=3)
    expected = torch.autograd.grad(o, leaves, do)
    found_o, found_lse = reference(q, k, v, causal, SCALE)
    found = reference_gradients(q, k, v, found_o, found_lse, do, causal, SCALE)
    for one, right in zip((found_o, found_lse, *found), (o.detach(), lse.detach(), *expected), strict=True):
        assert one.shape == right.shape
        assert float((one - right).abs().max()) < 2e-5


def test_a_gradient_that_is_wrong_or_no_number_counts():
    workload = WORKLOAD.model_copy(update={"backward": True, "heads": 4, "kv_heads": 2})
    inputs = make_inputs(workload, 7, "cpu")
    right = expected_of(workload, inputs)
    dq, dk, dv = right.gradients
    assert (dq.shape, dk.shape, dv.shape) == ((2, 4, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64))
    assert not torch.equal(inputs.do, inputs.q)
    assert gradient_error((dq * 1.02, dk, dv * 1.03), right) == pytest.approx(0.03, rel=1e-4)
    assert math.isnan(gradient_error((dq * 1.02, dk * math.nan, dv), right))


def test_errors_are_those_of_the_definition(right):
    rel_error, lse_error = errors((right.o * 1.01, right.lse + 0.5), right)
    assert rel_error == pytest.approx(0.01, rel=1e-4)
    assert lse_error == pytest.approx(0.5 / max(float(right.lse.abs().min()), 1), rel=1e-4)
    small = replace(right, lse=right.lse / 100)
    assert errors((right.o, small.lse + 0.5), small)[1] == pytest.approx(0.5, rel=1e-4)
    large = replace(right, lse=torch.full_like(right.lse, -4000.0))
    assert errors((right.o, large.lse + 0.5), large)[1] == pytest.approx(0.5 / 4000, rel=1e-4)
    assert errors((right.o.to(torch.bfloat16), None), right)[0] < 4e-3


def test_one_element_that_was_not_written_is_no_number(right):
    poisoned = right.o.clone()
    poisoned[1, 1, 127, 63] = math.nan
    assert math.isnan(errors((poisoned, None), right)[0])
    lse = right.lse.clone()
    lse[0, 0, 0] = math.nan
    assert math.isnan(errors((right.o, lse), right)[1])


def test_errors_of_huge_numbers_are_numbers(right):
    huge = replace(right, o=right.o * 1e30)
    assert errors((right.o * 1.01e30, None), huge)[0] == pytest.approx(0.01, rel=1e-4)
