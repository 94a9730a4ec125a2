"""Rules on how a function is launched: what recompiles it, and what its autotuner may choose."""

from dataclasses import replace

import pytest

from kperf.arch import SM_90A
from kperf.compat.triton.tuning import Tuning
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from kperf.diagnose.rules import autotuner_list
from kperf.diagnose.script.history import History

pytestmark = pytest.mark.kernels

SCALE = """
import torch, triton, triton.language as tl

@triton.jit{decorator}
def scale(x, out, {n}, m, k, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * (m + k), mask=i < n)

x, out = torch.empty(1 << 16, device="cuda"), torch.empty(1 << 16, device="cuda")
for n, m, k, block in {launches}:
    scale[(64,)](x, out, n, m, k, block)
"""


def found(tmp_path, launches, decorator="", n="n"):
    script = tmp_path / "it.py"
    script.write_text(SCALE.format(launches=launches, decorator=decorator, n=n))
    kernels = inputs.read(str(script), (), SM_90A)
    every = [one for kernel in kernels for one in diagnose(kernel).findings]
    return [one for one in every if one.id == "recompiled-often"]


def test_a_kernel_that_recompiles_names_the_argument_and_its_values(tmp_path):
    launches = [(1024, 7, 5, 64), (1000, 7, 5, 64), (1, 7, 5, 64), (1024, 7, 1, 64), (1024, 7, 5, 64)]
    (one,) = found(tmp_path, launches)
    assert one.evidence == {
        "compilations": 4,
        "launches": 5,
        "argument": "n",
        "values": "1024, 1000, 1",
        "kinds": "a multiple of 16, no multiple of 16, the value 1",
        "other_arguments": "k",
    }
    assert one.severity == "low"
    assert "n differs (1024: a multiple of 16, 1000: no multiple of 16, 1: the value 1); k differs too" in one.message
    assert '@triton.jit(do_not_specialize=["n"])' in one.advice  # a thread has one element, as narrow as can be
    assert (one.source.line, one.source.function) == (5, "scale")


def test_a_size_that_ends_the_mask_of_wide_accesses_stays_specialised(tmp_path):
    (one,) = found(tmp_path, [(1024, 7, 5, 1024), (1000, 7, 5, 1024), (1, 7, 5, 1024), (1024, 7, 1, 1024)])
    assert one.evidence["argument"] == "n"
    assert one.advice == (
        "pad n to multiples of 16; leave out do_not_specialize, because a mask ends at n, and accesses become narrow "
        "where n is not known to be a multiple of 16"
    )


def test_tensors_that_begin_anywhere_are_no_strides(tmp_path):
    script = tmp_path / "slices.py"
    begun = COPY.split("for row, column", maxsplit=1)[0] + (
        "for first, last, row in [(0, 0, 4096), (1, 0, 4096), (0, 1, 4096), (1, 1, 4096)]:\n"
        "    copy[(4, 64)](x[first:], out[last:], row, 1, 1024)\n"
    )
    script.write_text(begun)
    every = [one for kernel in inputs.read(str(script), (), SM_90A) for one in diagnose(kernel).findings]
    (one,) = [one for one in every if one.id == "recompiled-often"]
    assert one.advice == "pass as x tensors that begin at a multiple of 16 bytes (a slice such as x[1:] may not)"


COPY = """
import torch, triton, triton.language as tl

@triton.jit
def copy(x, out, row, column, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(1) * 4096 + i, tl.load(x + tl.program_id(1) * row + i * column))

x, out = torch.empty(1 << 24, device="cuda"), torch.empty(1 << 24, device="cuda")
for row, column in {strides}:
    copy[(4, 64)](x, out, row, column, 1024)
"""


@pytest.mark.parametrize(
    ("strides", "advice"),
    [
        ([(4096, 1), (4099, 1), (4096, 3), (4099, 3)], "pad row to multiples of 16; leave out do_not_specialize"),
        (
            [(4096, 3), (1, 3), (4096, 4), (4096, 16), (1, 16), (1, 1)],
            "pass tensors of one layout; leave out do_not_specialize",
        ),
    ],
)
def test_what_is_known_of_a_stride_is_worth_its_compilations(tmp_path, strides, advice):
    script = tmp_path / "strides.py"
    script.write_text(COPY.format(strides=strides))
    every = [one for kernel in inputs.read(str(script), (), SM_90A) for one in diagnose(kernel).findings]
    (one,) = [one for one in every if one.id == "recompiled-often"]
    assert one.advice.startswith(advice)


def test_three_compilations_and_tiles_are_no_fault(tmp_path):
    assert found(tmp_path, [(1024, 7, 5, 64), (1000, 7, 5, 64), (1, 7, 5, 64)]) == []
    assert found(tmp_path, [(1024, 7, 5, block) for block in (64, 128, 256, 512, 1024)]) == []


def test_what_is_not_specialised_is_not_compiled_again(tmp_path):
    launches = [(1024, 7, 5, 64), (1000, 7, 5, 64), (1, 7, 5, 64), (1024, 7, 1, 64)]
    assert len(found(tmp_path, launches)) == 1
    assert found(tmp_path, launches, decorator="(do_not_specialize=['n', 'k'])") == []


def test_a_constexpr_of_many_values(tmp_path):
    launches = [(number, 7, 5, 64) for number in range(1000, 1011)]
    (one,) = found(tmp_path, launches, n="n: tl.constexpr")
    assert (one.severity, one.evidence["kinds"], one.evidence["compilations"]) == ("medium", "constexpr", 11)
    assert "n, a constexpr, has 11 values (1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007)" in one.message
    assert one.advice.startswith("declare n without tl.constexpr")


TUNED = [{"BLOCK": block, "num_warps": warps, "num_stages": 3} for block in (128, 256, 512) for warps in (4, 8)]


def of_tuning(tuning, kernel):
    return list(autotuner_list.check(kernel(History(tunings=[tuning]))))


@pytest.fixture
def kernel(tmp_path):
    """A kernel with a history."""
    script = tmp_path / "it.py"
    script.write_text(SCALE.format(launches=[(1024, 7, 5, 64)], decorator="", n="n"))
    (read,) = inputs.read(str(script), (), SM_90A)
    return lambda history: replace(read, history=history)


def test_the_best_at_the_end_of_the_list_with_what_it_was_worth(kernel):
    times = (8.0, 7.0, 6.0, 5.9, 4.0, 5.0)
    (one,) = of_tuning(Tuning(tuple(TUNED), TUNED[4], times), kernel)
    assert one.evidence == {
        "configurations": 6,
        "BLOCK": 512,
        "BLOCK_values": "128, 256, 512",
        "num_warps": 4,
        "num_warps_values": "4, 8",
        "best_ms": 4.0,
        "BLOCK_gain": 1.475,
        "num_warps_gain": 1.25,
    }
    assert one.severity == "low"
    assert one.candidates == [{"BLOCK": 1024}, {"num_warps": 2}]
    assert "BLOCK=512, the largest of 128, 256, 512; num_warps=4, the smallest of 4, 8" in one.message


def test_without_a_gpu_an_autotuner_has_chosen_nothing(kernel):
    history = History(tunings=[Tuning(tuple(TUNED), TUNED[4])])
    assert len(list(autotuner_list.check(kernel(history)))) == 1  # as of a choice that was read from a file
    assert not list(autotuner_list.check(replace(kernel(history), tuned=True)))


@pytest.mark.parametrize(
    ("best", "times", "edges"),
    [
        (2, (8.0, 7.0, 4.0, 5.0, 6.0, 6.0), {"num_warps"}),  # BLOCK=256 lies inside
        (4, (8.0, 4.1, 6.0, 5.9, 4.0, 5.0), set()),  # neither is worth 3 %
        (3, (8.0, 7.0, 5.0, 4.0, 6.0, 6.0), {"num_warps"}),
    ],
)
def test_what_lies_inside_or_is_worth_nothing_is_no_edge(kernel, best, times, edges):
    shown = of_tuning(Tuning(tuple(TUNED), TUNED[best], times), kernel)
    assert {name for one in shown for candidate in one.candidates for name in candidate} == edges


def test_a_configuration_that_needs_more_than_an_sm_has_is_no_value_to_compare_with(kernel):
    never = float("inf")
    shown = of_tuning(Tuning(tuple(TUNED), TUNED[4], (never, never, never, never, 4.0, 5.0)), kernel)
    assert {name for one in shown for candidate in one.candidates for name in candidate} == {"num_warps"}
    assert of_tuning(Tuning(tuple(TUNED), TUNED[4], (never,) * 4 + (4.0, never)), kernel) == []


def test_without_times_the_edge_is_named_with_less_confidence(kernel):
    (one,) = of_tuning(Tuning(tuple(TUNED), TUNED[5]), kernel)
    assert (one.severity, one.confidence) == ("low", "low")
    assert one.candidates == [{"BLOCK": 1024}, {"num_warps": 16}]
    assert "best_ms" not in one.evidence


@pytest.mark.parametrize(("name", "values", "best", "beyond"), [
    ("num_stages", (1, 2, 3), 1, None), ("num_stages", (1, 2, 3), 3, 4), ("num_stages", (2, 4), 4, 6),
    ("num_warps", (16, 32), 32, None), ("num_warps", (1, 2), 1, None), ("GROUP", (3, 6, 9), 9, 12),
])  # fmt: skip
def test_the_value_beyond_is_one_that_there_is(kernel, name, values, best, beyond):
    configs = tuple({name: value} for value in values)
    shown = of_tuning(Tuning(configs, {name: best}, tuple(1.0 if value == best else 2.0 for value in values)), kernel)
    assert [one.candidates for one in shown] == ([] if beyond is None else [[{name: beyond}]])


ADD = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, total, part, bias, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.load(total + {place}) + tl.load(x + part * n + i).to(tl.float32) * tl.load(bias)
    tl.store(total + i, sums)

@triton.jit
def other(x):
    tl.store(x, 1.0)

n = 1 << 16
x = torch.empty(8, n, dtype=torch.bfloat16, device="cuda")
total, bias, elsewhere = (torch.empty(n, device="cuda") for _ in range(3))
for part in range(8):
    {launch}
"""
BY_VIEW = "add[(64,)](x[part], total, 0, bias, n, 1024)"
BY_NUMBER = "add[(64,)](x, total, part, bias, n, 1024)"


def repeated(tmp_path, launch, place="i", kernel=ADD):
    script = tmp_path / "it.py"
    script.write_text(kernel.format(launch=launch, place=place))
    every = [one for kernel in inputs.read(str(script), (), SM_90A) for one in diagnose(kernel).findings]
    return [one for one in every if one.id == "repeated-launch"]


@pytest.mark.parametrize(("launch", "moved"), [(BY_VIEW, "x"), (BY_NUMBER, "part")])
def test_launches_that_add_to_one_tensor_could_be_one(tmp_path, launch, moved):
    (one,) = repeated(tmp_path, launch)
    assert one.message == (
        f"8 launches, one after another, load total and store it again: they differ in {moved} alone"
    )
    assert one.advice.startswith("if nothing reads total between the launches, launch once")
    assert one.advice.endswith("and store total after the loop")
    assert (one.severity, one.source.line, one.evidence) == ("high", 7, {"launches": 8, "bytes": 8 * 1024})
    assert one.estimate.speedup == pytest.approx(8 * (2 + 8) / (8 * 2 + 8))


def test_a_benchmark_that_begins_again_makes_no_longer_series(tmp_path):
    (one,) = repeated(tmp_path, f"[{BY_VIEW} for _ in range(3) for part in range(8)]")
    assert one.evidence["launches"] == 8


@pytest.mark.parametrize(
    "launch",
    [
        "add[(64,)](x[0], total, 0, bias, n, 1024)",  # the same again, as a benchmark does
        f"{BY_VIEW}; other[(1,)](elsewhere)",
        f"{BY_VIEW}; bias.mul_(2)",
        f"bias = torch.empty(1, device='cuda'); {BY_VIEW}",
        f"total = torch.empty(n, device='cuda'); {BY_VIEW}",
        "add[(64,)](x, total[part * 64:], 0, bias, n, 1024)",
        "add[(64 - part,)](x[part], total, 0, bias, n, 1024)",
        "add[(64,)](x[part], total, 0, total[1:], n, 1024)",  # what it scales by is what it stores
    ],
)
def test_launches_that_need_what_is_between_them_stay_apart(tmp_path, launch):
    assert repeated(tmp_path, launch) == []


def test_elements_of_other_ctas_wait_for_the_whole_launch(tmp_path):
    assert repeated(tmp_path, BY_VIEW, "i + 1") == []


@pytest.mark.parametrize(
    ("arguments", "moved"),
    [("0.5**part, False", "decay, x"), ("0.5, part == 0", "FIRST, x"), ("0.5, False", "x")],
)
def test_all_that_differs_between_launches_is_named(tmp_path, arguments, moved):
    kernel = ADD.replace("BLOCK: tl.constexpr", "BLOCK: tl.constexpr, decay, FIRST: tl.constexpr")
    kernel = kernel.replace("* tl.load(bias)", "* decay")
    (one,) = repeated(tmp_path, f"add[(64,)](x[part], total, 0, bias, n, 1024, {arguments})", kernel=kernel)
    assert one.message.endswith(f"they differ in {moved} alone")


def test_a_script_under_inference_mode_has_no_series(tmp_path):
    """Torch counts no writes there, so that what lies between two launches is not known."""
    assert repeated(tmp_path, f"with torch.inference_mode(): x = x.clone(); {BY_VIEW}") == []


STEP = """
import torch, triton, triton.language as tl

@triton.jit
def step(x, y, rate, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * {stride} + tl.arange(0, BLOCK)
    {mask}
    p = tl.load(x + {place}, mask=i < n)
    tl.store(y + i, p + tl.load(rate + i, mask=i < n) * p * (1 - p), mask=m)

n = 1 << 16
x, y, z, rate = (torch.rand(n, device="cuda") for _ in range(4))
def launch(x, y, rate=rate, n=n):
    step[(n // 1024,)](x, y, rate, n, 1024)
{launches}
"""
SWAPS = "for _ in range(8): launch(x, y); x, y = y, x"


def iterated(tmp_path, launches=SWAPS, **other):
    parts = {"stride": "BLOCK", "mask": "m = i < n", "place": "i"} | other
    script = tmp_path / "it.py"
    script.write_text(STEP.format(launches=launches, **parts))
    every = [one for kernel in inputs.read(str(script), (), SM_90A) for one in diagnose(kernel).findings]
    return [one for one in every if one.id == "repeated-launch"]


@pytest.mark.parametrize(
    ("launches", "count"),
    [
        (SWAPS, 8),
        ("launch(x, y)\nfor _ in range(4): launch(y, y)", 5),
        ("for _ in range(6): y = torch.empty_like(x); launch(x, y); x = y", 6),
        ("for _ in range(3): launch(x, y); [launch(y, y) for _ in range(3)]", 4),  # a benchmark that begins again
    ],
)
def test_launches_that_iterate_could_be_one(tmp_path, launches, count):
    (one,) = iterated(tmp_path, launches)
    assert (one.severity, one.source.line, one.evidence) == ("high", 8, {"launches": count, "bytes": 8 * 1024})
    assert one.estimate.high <= count


@pytest.mark.parametrize(
    "launches",
    [
        "for _ in range(8): launch(x, y)",  # a benchmark
        "for _ in range(8): launch(x, x)",  # perhaps one too
        "launch(x, y); launch(y, z)",  # a transform and its inverse
        "for _ in range(8): launch(x, y); x.copy_(y)",
        "for _ in range(8): launch(x, y); x, y = y, x; rate.mul_(2)",
        "for _ in range(8): launch(x, y); x, y = y, x; x.clamp_(0, 1)",
        "for _ in range(8): launch(x, y, rate=y); x, y = y, x",  # what it loads beside it is what it stores
        "for part in range(8): launch(x, y, n=n - 16 * part); x, y = y, x",  # the last elements are those before
    ],
)
def test_launches_that_are_no_iteration_stay_apart(tmp_path, launches):
    assert iterated(tmp_path, launches) == []


@pytest.mark.parametrize(
    "other",
    [
        {"place": "i + 1"},
        {"stride": "1000"},  # the next CTA stores some of the same elements
        {"mask": "m = (i < n) & (tl.arange(0, BLOCK) < 1000)"},  # the others are those of an earlier launch
    ],
)
def test_an_iteration_on_elements_of_other_ctas_waits_for_the_whole_launch(tmp_path, other):
    assert iterated(tmp_path, **other) == []
