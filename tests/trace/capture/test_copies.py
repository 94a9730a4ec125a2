"""Copies of a launch's tensors: what counts as the same numbers, and that nothing else was written."""

import math

import numpy as np
import pytest
import torch

from kperf.errors import UsageError
from kperf.trace.capture.copies import Copies, likeness


def tensor(*numbers, dtype=torch.float32):
    return torch.tensor(numbers, dtype=dtype)


@pytest.mark.parametrize(
    ("found", "expected", "alike"),
    [
        (tensor(1.0, 2.0), tensor(1.0, 2.0), "equal bits"),
        (tensor(1.0, 2.0), tensor(1.0, 2.0001), "within tolerance"),
        (tensor(1.0, 2.0), tensor(1.0, 2.001), "different"),
        (tensor(1.0, 0.0), tensor(1.0, -5e-5), "within tolerance"),  # of the root mean square
        (tensor(1.0, 0.0), tensor(1.0, -5e-4), "different"),
        (tensor(1.0, 2.0, dtype=torch.float64), tensor(1.0, 2.0001, dtype=torch.float64), "different"),
        (tensor(1.0, 2.0, dtype=torch.bfloat16), tensor(1.0, 2.03, dtype=torch.bfloat16), "within tolerance"),
        (tensor(1.0, 2.0), tensor(1.0, 2.0, dtype=torch.float64), "different"),
        (tensor(1.0, 2.0), tensor(1.0, 2.0)[None], "different"),
        (tensor(0.0), tensor(-0.0), "within tolerance"),
        (tensor(math.nan, 1.0), -tensor(math.nan, -1.0), "within tolerance"),
        (tensor(math.nan, 1.0), tensor(1.0, 1.0), "different"),
        (tensor(1.0, 1.0), tensor(math.nan, 1.0), "different"),
        (tensor(math.inf, 1.0), tensor(math.inf, 1.00001), "within tolerance"),
        (tensor(math.inf, 1.0), tensor(-math.inf, 1.0), "different"),
        (tensor(0.0, 1.0), tensor(-math.inf, 1.0), "different"),
        (tensor(math.inf, 1.0), tensor(1.0, 1.0), "different"),
        (tensor(1 + 1j, dtype=torch.complex64), tensor(1 + 1.0001j, dtype=torch.complex64), "within tolerance"),
        (tensor(1 + 1j, dtype=torch.complex64), tensor(1 + 1.001j, dtype=torch.complex64), "different"),
        (tensor(7, 8, dtype=torch.int32), tensor(7, 8, dtype=torch.int32), "equal bits"),
        (tensor(1000, 8, dtype=torch.int32), tensor(1001, 8, dtype=torch.int32), "different"),  # no tolerance
        (tensor(True, False, dtype=torch.bool), tensor(True, True, dtype=torch.bool), "different"),
    ],
)
def test_tensors_are_alike_by_bits_or_within_the_tolerance_of_their_type(found, expected, alike):
    assert likeness(found, expected) == alike


def launched(x, write, *, reach=1):
    """Whether a launch that writes so into the copy of `x` is equal to one that doubles it: in its bits, and nearly."""
    copies = Copies([x], free_bytes=1 << 40, reach=reach)
    copies.begin()
    (ours,) = copies.of([x])
    ours.mul_(2)
    expected = copies.results()
    copies.begin()
    write(ours)
    return copies.equal(expected, bits=True), copies.equal(expected, bits=False)


@pytest.mark.parametrize(
    ("wrong", "equal"),
    [
        (lambda x: x.mul_(2), (True, True)),
        (lambda x: x.mul_(2.00001), (False, True)),
        (lambda x: x.mul_(2.01), (False, False)),
        (lambda x: x.mul_(2).as_strided((9,), (1,)).fill_(2.0), (False, False)),  # one element beyond its end
        (lambda x: x.mul_(2).as_strided((9,), (1,), x.storage_offset() - 1).fill_(2.0), (False, False)),
    ],
)
@pytest.mark.parametrize("reach", [1, 2])
def test_a_launch_is_equal_that_writes_the_same_numbers_and_nothing_else(wrong, equal, reach):
    assert launched(torch.ones(8), wrong, reach=reach) == equal


@pytest.mark.parametrize("reach", [2, 4, 16])
def test_as_far_as_a_launch_may_reach_memory_is_ours(reach):
    x = torch.ones(1 << 16)
    copies = Copies([x], free_bytes=1 << 40, reach=reach)
    (ours,) = copies.of([x])
    memory, begin = ours.untyped_storage(), ours.storage_offset()
    assert memory.nbytes() // 4 - begin >= reach * x.numel()
    assert begin >= (reach - 1) * x.numel()


@pytest.mark.parametrize("by", [0, 1])
def test_of_integers_and_of_bytes_that_no_number_fits_the_bits_decide(by):
    """Of a storage of 10 bytes no whole number of floats is known: a view of the first 8 is not all of it."""
    whole = torch.arange(10, dtype=torch.uint8)
    floats = whole.clone()[:8].view(torch.float32)
    for x in (torch.arange(4), whole, floats):
        assert launched(x, lambda ours: ours.mul_(2).add_(by)) == (by == 0, by == 0)


@pytest.mark.parametrize("part", [slice(4), slice(4, 8), slice(2, 6)])
def test_memory_that_became_two_storages_is_not_copied(part):
    """The copies would lie apart, and a launch on them would read what it did not write."""
    numbers = np.arange(8.0)
    tensors = [torch.from_numpy(numbers), torch.from_numpy(numbers[part])]
    with pytest.raises(UsageError, match="have memory in common, and are no views of one tensor"):
        Copies(tensors, free_bytes=1 << 40)
    Copies([tensors[0], tensors[0][part], torch.empty(0), torch.empty(0)], free_bytes=1 << 40)


def test_an_expanded_and_a_transposed_view_lie_in_one_copy():
    x = torch.arange(6.0).view(2, 3)
    views = [x.T, x[1:, ::2], x[:1].expand(4, 3)]
    copies = Copies(views, free_bytes=1 << 40, reach=2)
    copies.begin()
    for view, ours in zip(views, copies.of(views), strict=True):
        assert torch.equal(view, ours)
        assert (view.stride(), view.data_ptr() % 512) == (ours.stride(), ours.data_ptr() % 512)
    copies.of(views)[0][0, 0] = 7
    assert [int(ours.flatten()[0]) for ours in copies.of(views)] == [7, 3, 7]
    assert x[0, 0] == 0


def test_the_scripts_tensors_stay_as_they_are_and_the_copies_begin_anew():
    x, y = torch.arange(4.0), torch.arange(4.0, 8.0)
    copies = Copies([x, y, x[1:]], free_bytes=1 << 40, only_written=[1])
    copies.begin()
    first, second, part = copies.of([x, y, x[1:]])
    first += 1
    assert part.tolist() == [2, 3, 4]  # one storage
    assert len(copies.results()) == 2  # what is only written is a result also where it is as it was
    copies.begin(poison=True)
    assert first.tolist() == x.tolist() == [0, 1, 2, 3]
    assert second.isnan().all()
    copies.begin()
    assert second.tolist() == y.tolist() == [4, 5, 6, 7]
