"""A direct launch hands Triton's C launcher what `kernel[grid]` hands it, and steps aside for who watches launches."""

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import knobs
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

from kperf.attention import ragged, views
from kperf.compat.torch import empty
from kperf.compat.triton.launches import intercepted_launches
from kperf.ir import offline
from tests.attention.attending_gpu import attending_gpu, forget  # noqa: F401
from tests.attention.handed_in import SCALE, begins_of, operands, ragged_operands

GRID = slice(0, 3)
HOOKS = slice(10, 13)
"""Of what the C launcher is given: after grid, stream, function, two options, two scratch buffers and metadata."""


@pytest.fixture
def launcher(attending_gpu, monkeypatch):  # noqa: F811
    """Triton's own launcher of CUDA kernels, above its C: `launches` it was given, `encoded` arguments of descriptors.

    What a call allocates are the same tensors in each.
    """
    found = SimpleNamespace(launches=[], encoded=[])

    class Utils(offline.Utils):
        def fill_tma_descriptor(self, *arguments):
            found.encoded.append(arguments)
            return arguments

    active = offline.Driver()
    active.launcher_cls, active.utils = nvidia.CudaLauncher, Utils(active.arch)
    monkeypatch.setattr(driver, "_active", active)
    module = SimpleNamespace(launch=lambda *arguments: found.launches.append(arguments))
    monkeypatch.setattr(nvidia, "compile_module_from_src", lambda **_: module)
    monkeypatch.setattr(nvidia, "library_dirs", list)
    made = {}
    for caller in (views, ragged):
        monkeypatch.setattr(caller, "empty", lambda *given: made.setdefault(given, empty(*given)))
    forget()
    return found


def watched(call, monkeypatch):
    """Calls with a hook of a profiler in place, and gives it."""
    hook = knobs.HookChain()
    hook.add(lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(knobs.runtime, "launch_enter_hook", hook)
        call()
    return hook


@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_the_c_launcher_is_given_the_same(launcher, monkeypatch, kv_heads, causal):
    q, k, v = operands(kv_heads=kv_heads)
    views.attend(q, k, v, causal, SCALE)
    hook = watched(lambda: views.attend(q, k, v, causal, SCALE), monkeypatch)
    direct, tritons = launcher.launches
    assert direct[GRID] == (16, 1, 1)
    assert tritons[HOOKS][1] is hook
    assert direct[HOOKS] == (None,) * 3
    assert len(direct) == len(tritons)
    for place, (one, other) in enumerate(zip(direct, tritons, strict=True)):
        if place not in range(10, 13):
            assert one is other or one == other
    addresses = [tensor.data_ptr() for tensor in (q, k, v)]
    assert [arguments[0] for arguments in launcher.encoded] == [arguments[0] for arguments in launcher.encoded[:4]] * 2
    assert [arguments[0] for arguments in launcher.encoded[:3]] == addresses


def test_it_is_given_the_same_by_both_kernels_of_sequences_of_different_lengths(launcher, monkeypatch):
    begins = begins_of([130, 7])
    given = (*ragged_operands([130, 7], [130, 7]), begins, begins, True, 130, SCALE)
    ragged.attend(*given)
    watched(lambda: ragged.attend(*given), monkeypatch)
    grids = [launch[GRID] for launch in launcher.launches]
    assert grids == [(2, 1, 1), (12, 1, 1)] * 2
    for direct, tritons in zip(launcher.launches[:2], launcher.launches[2:], strict=True):
        assert direct[HOOKS] == (None,) * 3
        assert tritons[HOOKS] != direct[HOOKS]
        assert direct[: HOOKS.start] == tritons[: HOOKS.start]
        assert all(
            one is other or one == other for one, other in zip(direct[HOOKS.stop :], tritons[HOOKS.stop :], strict=True)
        )


def test_a_descriptor_is_encoded_once_an_address(launcher):
    q, k, v = operands()
    views.attend(q, k, v, True, SCALE)
    del launcher.encoded[:]
    views.attend(q, k, v, True, SCALE)
    assert not launcher.encoded
    other = k.clone()
    views.attend(q, other, v, True, SCALE)
    assert [arguments[0] for arguments in launcher.encoded] == [other.data_ptr()]
    views.attend(q, v, k, True, SCALE)  # each the other's place
    assert [arguments[0] for arguments in launcher.encoded[1:]] == [v.data_ptr(), k.data_ptr()]
    first, *_, last = launcher.launches
    begin = HOOKS.stop + 9  # after q: a descriptor, four sizes, four strides
    assert first[begin][0] == k.data_ptr()
    assert last[begin][0] == v.data_ptr()


def test_sequences_of_other_totals_are_launched_with_what_is_there(launcher):
    """As in training that packs others at each step: batch, total and longest differ, their places do not."""
    q, k, v = ragged_operands([300], [300])
    grids = []
    for lengths in ([130, 7], [2], [100, 100, 100], [130, 7]):
        total, begins = sum(lengths), begins_of(lengths)
        del launcher.encoded[:]
        ragged.attend(q[:total], k[:total], v[:total], begins, begins, True, max(lengths), SCALE)
        grids.append([launch[0] for launch in launcher.launches[-2:]])
        of_inputs = [one[0] for one in launcher.encoded if one[0] in {tensor.data_ptr() for tensor in (q, k, v)}]
        assert of_inputs == ([tensor.data_ptr() for tensor in (q, k, v)] if len(grids) == 1 else [])
    assert grids == [[2, 12], [1, 4], [3, 20], [2, 12]]
    by_heads = (tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in (q, k, v))
    begins = begins_of([300])
    ragged.attend(*by_heads, begins, begins, True, 300, SCALE)  # other strides: they do depend on the total
    assert len(launcher.encoded) >= 4


def test_no_more_descriptors_are_kept_than_that(launcher, monkeypatch):
    q, k, v = operands()
    monkeypatch.setattr(views.plan(q, k, v, True).launcher._encoded, "most", 6)
    values = [v + step for step in range(4)]
    for value in values:
        views.attend(q, k, value, True, SCALE)
        assert len(views.plan(q, k, v, True).launcher._encoded) <= 6
    assert [launch[HOOKS.stop + 18][0] for launch in launcher.launches] == [value.data_ptr() for value in values]


def test_where_two_threads_have_passed_a_limit_it_holds_again(launcher, monkeypatch):
    q, k, v = operands()
    values = [v + step for step in range(5)]  # all are kept, so that each has an address of its own
    kept = [views.attend(q, k, value, True, SCALE) for value in values[:-1]]
    found = views.plan(q, k, v, True).launcher
    assert len(found._encoded) > 5
    monkeypatch.setattr(found._encoded, "most", 5)
    kept.append(views.attend(q, k, values[-1], True, SCALE))
    assert len(found._encoded) <= 5
    for module, plan in (
        (views, lambda rows: views.plan(q, k[:, :, :rows], v[:, :, :rows], False)),
        (ragged, lambda rows: ragged.plan(q[0], k[0], v[0], *[begins_of([4])] * 2, True, rows)),
    ):
        for rows in (1, 2, 3):
            plan(rows)
        assert len(module._plans) > 2
        monkeypatch.setattr(module._plans, "most", 2)
        plan(4)
        assert len(module._plans) <= 2


def test_who_takes_launches_in_place_of_the_kernel_gets_them(launcher):
    q, k, v = operands()
    views.attend(q, k, v, True, SCALE)
    taken = []
    with intercepted_launches(lambda _: taken.append):
        views.attend(q, k, v, True, SCALE)
    assert len(launcher.launches) == 1
    (call,) = taken
    assert [descriptor.base.data_ptr() for descriptor in call.arguments[:3]] == [x.data_ptr() for x in (q, k, v)]
    views.attend(q, k, v, True, SCALE)
    assert len(launcher.launches) == 2


def test_a_hook_alone_is_enough_to_step_aside(launcher, monkeypatch):
    q, k, v = operands()
    direct = views.plan(q, k, v, True).launcher._direct
    assert direct.usable()
    for name in ("launch_enter_hook", "launch_exit_hook"):
        with monkeypatch.context() as patch:
            patch.setattr(knobs.runtime, name, print)
            assert not direct.usable()
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", None)
    assert direct.usable()


def test_launchers_of_others_are_not_gone_around(attending_gpu):  # noqa: F811
    assert views.plan(*operands(), True).launcher._direct is None


def test_memory_on_a_gpu_is_torchs_own_where_it_has_to_be_filled(monkeypatch):
    calls = []

    def allocate(shape, strides, dtype):
        calls.append((shape, strides, dtype))
        return "allocated"

    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cuda", allocate)
    given = (2, 3), (1, 2), torch.float16
    assert empty(*given, torch.device("cuda", 0)) == "allocated"
    assert calls == [given]
    torch.use_deterministic_algorithms(True)
    try:
        with FakeTensorMode():
            filled = empty(*given, torch.device("cuda", 0))
    finally:
        torch.use_deterministic_algorithms(False)
    assert filled.stride() == (1, 2)
    assert len(calls) == 1
