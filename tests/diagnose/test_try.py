"""`kperf diagnose --try` on a fake GPU: what is tried, measured, dropped, printed, and that the script sees nothing.

The fake computes what a kernel would (`COMPUTED`), and takes as long as its configuration says (`MILLISECONDS`).
"""

import io
import itertools
import os
import random
import signal
import statistics
import sys
import time
import weakref

import pytest
import torch
import triton

from kperf.compat.triton.cache import own_cache
from kperf.console import WholeConsole
from kperf.diagnose import command, experiments
from kperf.diagnose.command import show
from kperf.diagnose.finding import Diagnoses
from kperf.diagnose.results import naming
from kperf.diagnose.rules import loads_not_pipelined
from kperf.diagnose.sarif import sarif
from kperf.errors import UsageError
from kperf.trace.analyze import read
from kperf.trace.analyze.models import LoadWait
from kperf.trace.capture import copies, trial
from kperf.trace.capture.capturer import Capturer
from tests.command import kperf
from tests.trace.capture import fake_gpu

pytestmark = pytest.mark.kernels

GEMM = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * K + rk[None, :]
    b_ptrs = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a_ptrs)
        y = tl.load(b_ptrs)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))

generator = torch.manual_seed(3)
a, b = torch.randn(256, 128, dtype=torch.bfloat16), torch.randn(128, 256, dtype=torch.bfloat16)
c = torch.empty(256, 256, dtype=torch.bfloat16)
def run(times, warps=4, stages=1):
    for _ in range(times):
        gemm[(4, 4)](a, b, c, 256, 256, 128, 64, 64, 64, num_warps=warps, num_stages=stages)
"""


class Computing(fake_gpu.Launcher):
    """Writes what the kernel would, and lets time go by."""

    computed = staticmethod(lambda launcher, arguments: None)
    milliseconds = staticmethod(lambda launcher: 1.0)
    now = 0.0

    def __call__(self, *everything):
        super().__call__(*everything)
        fake_gpu.LAUNCHES[-1].arguments = ()
        Computing.computed(self, everything[9:])
        Computing.now += Computing.milliseconds(self)

    @property
    def constants(self):
        return {self.source.fn.arg_names[place]: value for (place,), value in self.source.constants.items()}


class ClockedGpu(fake_gpu.FakeGpu):
    free = 1 << 40

    def mark(self, stream):
        return Computing.now

    def free_bytes(self):
        return self.free


def matmul(launcher, arguments):
    a, b, c = arguments[:3]
    c.copy_(a.float() @ b.float())


@pytest.fixture
def diagnose(tmp_path, monkeypatch):
    """Runs `kperf diagnose --try` on a script's text; returns the one kernel's JSON, what is printed of it, and the
    tensor `c` of the script with three random numbers that it would draw next."""
    fake_gpu.install(tmp_path, monkeypatch)
    monkeypatch.setattr(fake_gpu.Driver, "launcher_cls", Computing)
    behave(monkeypatch)
    for module in (trial, experiments):  # what compiles here is compiled once
        monkeypatch.setattr(module, "own_cache", lambda _: own_cache(fake_gpu.INSTRUMENTED))
        monkeypatch.setattr(module, "LIMIT_S", 200.0)  # a slow machine has time enough, but where a test says
    monkeypatch.setattr(sys, "argv", ["kperf"])
    found = []
    show = command.show
    monkeypatch.setattr(command, "show", lambda console, diagnoses, request: found.append(diagnoses))

    def printed(kernels):
        console = WholeConsole(file=io.StringIO(), width=250)
        show(console, Diagnoses(kernels=kernels), command.Request(explain=True))
        return console.file.getvalue()

    def run_all(text, gpu=None, try_out=None):  # as `kperf diagnose SCRIPT` does
        script = tmp_path / "it.py"
        script.write_text(f"{text}\ntorch.save([c, torch.rand(3)], {str(tmp_path / 'end.pt')!r})\n")
        fake_gpu.LAUNCHES.clear()
        request = command.Request(try_out=try_out)
        assert command.run_traced(WholeConsole(quiet=True), str(script), (), request, gpu or ClockedGpu()) == 0
        kernels = found.pop().kernels
        return *kernels, printed(kernels)

    def run(text, gpu=None, try_out=None):
        one, said = run_all(text, gpu, try_out)
        return one, said, torch.load(tmp_path / "end.pt")

    run.all = run_all
    return run


def behave(monkeypatch, computed=matmul, milliseconds=lambda _: 1.0):
    monkeypatch.setattr(Computing, "computed", staticmethod(computed))
    monkeypatch.setattr(Computing, "milliseconds", staticmethod(milliseconds))


def finding(diagnosis, rule):
    return next(one for one in diagnosis.findings if one.id == rule)


def speedups(diagnosis, rule):
    return {one.change: (one.speedup, one.low, one.high, one.equal) for one in finding(diagnosis, rule).tried}


def dropped(diagnosis, rule):
    return {one.change: one.why for one in finding(diagnosis, rule).dropped}


def by_stages(table):
    return lambda launcher: table[launcher.metadata.num_stages]


def test_a_finding_has_the_measured_gain_of_its_candidates(diagnose, monkeypatch):
    behave(monkeypatch, milliseconds=by_stages({1: 3.0, 2: 2.0, 3: 1.25, 4: 1.0}))
    one, said, _ = diagnose(GEMM + "run(1)")
    assert speedups(one, "loads-not-pipelined") == {
        "num_stages=3": (2.4, 2.4, 2.4, True),
        "num_stages=4": (3.0, 3.0, 3.0, True),
        "num_stages=2": (1.5, 1.5, 1.5, True),
    }
    best = finding(one, "loads-not-pipelined").tried[1]
    assert (best.original_ms, best.changed_ms) == ([3.0] * trial.ROUNDS, [1.0] * trial.ROUNDS)
    assert " x, measured 2.40 x (num_stages=3), 3.00 x (4), 1.50 x (2))" in said.partition("(estimated ")[2]
    assert "write: gemm[grid](..., num_stages=4)  # 3.00 x, 3.00 to 3.00\n" in said
    result = sarif(Diagnoses(kernels=[one]))["runs"][0]["results"]
    measured = next(one for one in result if one["ruleId"] == "loads-not-pipelined")["properties"]["measured"]
    assert measured[1] == {
        "change": "num_stages=4", "speedup": 3.0, "low": 3.0, "high": 3.0, "write": "gemm[grid](..., num_stages=4)"
    }  # fmt: skip


TWO_KERNELS = f"""{GEMM}
@triton.jit
def plus(x, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < N) + 1, mask=i < N)

few, many = torch.zeros(1024), torch.zeros(1024)
for _ in range(2): plus[(4,)](few, 1024, BLOCK=256)
run(5)
"""


def test_the_kernel_that_takes_the_scripts_time_comes_first(diagnose, monkeypatch):
    """gemm is launched after plus; the fake's launches take 3 ms and 1 ms."""

    def compute(launcher, arguments):
        if launcher.metadata.name == "gemm":
            matmul(launcher, arguments)

    behave(monkeypatch, compute, lambda launcher: 3.0 if launcher.metadata.name == "gemm" else 1.0)
    gemm, plus, said = diagnose.all(TWO_KERNELS)
    assert (gemm.kernel, gemm.launches, gemm.launch_ms) == ("gemm", 5, pytest.approx(3.0))
    assert (plus.kernel, plus.launches, plus.launch_ms) == ("plus", 2, pytest.approx(1.0))
    assert "gemm for sm_90a, 5 launches of 3 ms, 88% of the kernels' time\n" in said
    assert "plus for sm_90a, 2 launches of 1 ms, 12% of the kernels' time\n" in said


def test_the_interval_is_that_of_the_median_of_ratios(diagnose, monkeypatch):
    chance = random.Random(0)
    behave(monkeypatch, milliseconds=lambda launcher: chance.uniform(2, 4) / launcher.metadata.num_stages)
    one = diagnose(GEMM + "run(1)")[0]
    for each in finding(one, "loads-not-pipelined").tried:
        ratios = sorted(before / after for before, after in zip(each.original_ms, each.changed_ms, strict=True))
        assert len(ratios) == 21
        assert (each.low, each.speedup, each.high) == (ratios[5], statistics.median(ratios), ratios[15])
        assert each.low < each.speedup < each.high


def test_options_that_gain_nothing_make_a_finding_a_hint(diagnose, monkeypatch):
    """If all that is advised was timed; one configuration that gains, or one that has no time, keeps it as it was."""
    for milliseconds, severity in (
        ({1: 1.0, 2: 1.0, 3: 0.98, 4: 2.0, 5: 2.0}, "low"),
        ({1: 1.0, 2: 1.0, 3: 0.9, 4: 2.0, 5: 2.0}, "medium"),
    ):
        behave(monkeypatch, milliseconds=by_stages(milliseconds))
        assert finding(diagnose(GEMM + "run(1)")[0], "loads-not-pipelined").severity == severity
    behave(monkeypatch, computed=wrong)
    assert finding(diagnose(GEMM + "run(1)")[0], "loads-not-pipelined").severity == "medium"


def test_options_that_change_no_code_make_a_finding_a_hint(diagnose, monkeypatch):
    """The compiler makes of them what it made before: none of them can be faster."""
    monkeypatch.setattr(trial, "_code", lambda kernel: "the same")
    shown = finding(diagnose(GEMM + "run(1)")[0], "loads-not-pipelined")
    assert {one.why for one in shown.dropped} == {trial.SAME_CODE}
    assert shown.severity == "low"


def test_nothing_faster_is_said(diagnose, monkeypatch):
    behave(monkeypatch, milliseconds=by_stages({1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}))
    assert "none of these is at least 3% faster here\n" in diagnose(GEMM + "run(1)")[1]


def test_options_that_gain_nothing_say_nothing_of_the_rest_of_the_advice(diagnose, monkeypatch):
    one = diagnose(GEMM + "run(1)")[0]
    tried = finding(one, "loads-not-pipelined").tried[0].model_copy(update={"speedup": 0.8, "low": 0.79, "high": 0.81})
    rows = finding(one, "loads-not-pipelined").model_copy(update={"id": "idle-threads", "tried": [tried]})
    console = WholeConsole(file=io.StringIO())
    show(console, Diagnoses(kernels=[one.model_copy(update={"findings": [rows]})]), command.Request())
    assert "none of these is at least 3% faster here; the rest of the advice was not timed\n" in console.file.getvalue()


def test_without_it_nothing_is_tried(diagnose):
    one = diagnose(GEMM + "run(1)", try_out=False)[0]
    assert finding(one, "loads-not-pipelined").candidates == [{"num_stages": stages} for stages in (3, 4, 2, 5)]
    assert (finding(one, "loads-not-pipelined").tried, finding(one, "loads-not-pipelined").dropped) == ([], [])
    assert len(fake_gpu.LAUNCHES) == 1


def wrong(launcher, arguments):
    """One bit, with three stages; with four, nothing is written."""
    if launcher.metadata.num_stages != 4:
        matmul(launcher, arguments)
    if launcher.metadata.num_stages == 3:
        arguments[2].view(torch.int16)[7, 7] ^= 1


def test_a_candidate_that_is_wrong_is_dropped(diagnose, monkeypatch):
    """By one bit where only num_stages differs; and one that writes nothing where the result stands already."""
    behave(monkeypatch, computed=wrong)
    one, said, (c, _) = diagnose(GEMM + "c.copy_(a.float() @ b.float())\nrun(1)")
    assert set(speedups(one, "loads-not-pipelined")) == {"num_stages=2"}
    assert dropped(one, "loads-not-pipelined") == dict.fromkeys(
        ("num_stages=3", "num_stages=4"), "it computes something else than the original"
    )
    assert "left out num_stages=3; num_stages=4: it computes something else than the original\n" in said
    assert c.isfinite().all()


WIDE = GEMM.replace("(4, 4)", "(4, 1)").replace("64, 64, 64, num", "64, 256, 64, num")
USED_TWICE = (
    WIDE.replace("    acc = tl.zeros", "    most = tl.zeros((BM,), tl.float32)\n    acc = tl.zeros")
    .replace("y, acc)\n", "y, acc)\n        most = tl.maximum(most, tl.max(tl.abs(x.to(tl.float32)), 1))\n")
    .replace("acc.to", "(acc + most[:, None]).to")
)
"""The MMA and other code use a tile: with two stages or more, one buffer too few (`buffer-race`)."""
COMPUTED_OPERAND = WIDE.replace("x = tl.load(a_ptrs)", "x = (tl.load(a_ptrs).to(tl.float32) * 1.5).to(tl.bfloat16)")
"""Registers of an MMA's operand are written before it is over, by Triton before 3.9."""
DOUBTFUL = {USED_TWICE: "high"} | ({COMPUTED_OPERAND: "low"} if triton.__version__ < "3.9" else {})
"""Kernels whose results a finding doubts, and how severe it is."""


def wrong_in(launches):
    """One element is, beyond the tolerance, in these launches (from 0) with more than one stage."""
    counted = itertools.count()

    def compute(launcher, arguments):
        matmul(launcher, arguments)
        if launcher.metadata.num_stages > 1 and next(counted) in launches:
            arguments[2][7, 7] += 100

    return compute


@pytest.mark.parametrize("text", DOUBTFUL)
def test_results_in_doubt_are_compared_with_those_without_a_pipeline(diagnose, monkeypatch, text):
    """Wrong ones are counted, and make the finding severe and sure; a change is not compared with wrong results."""
    behave(monkeypatch, computed=wrong_in({0, 4, 19}))
    one, said, _ = diagnose(text + "run(1, stages=3)")
    shown = finding(one, "buffer-race")
    assert (shown.checked.than, shown.checked.launches, shown.checked.different) == ("num_stages=1", 20, 3)
    assert (shown.severity, shown.confidence, one.findings[0].id) == ("high", "high", "buffer-race")
    assert "wrong here: the results of 3 of 20 launches are not those with num_stages=1\n" in said
    assert one.not_tried == "its results are wrong"
    assert not any(each.tried or each.dropped for each in one.findings)
    result = sarif(Diagnoses(kernels=[one]))["runs"][0]["results"][0]
    assert result["properties"]["checked"] == {"than": "num_stages=1", "launches": 20, "different": 3}


def test_results_that_are_right_leave_a_doubt_as_it_was(diagnose, monkeypatch):
    """Within the tolerance; the launch is made as without it, and changes are tried."""
    behave(monkeypatch)
    severities = {}
    for text in DOUBTFUL:
        one, said, (c, _) = diagnose(text + "run(1, stages=2)")
        assert "no wrong result seen here: the results of all 20 launches are those with num_stages=1\n" in said
        assert c.isfinite().all()
        assert any(each.tried for each in one.findings)
        severities[text] = finding(one, "buffer-race").severity
    assert severities == DOUBTFUL


def test_without_another_configuration_the_first_launch_is_compared_with_the_next_ones(diagnose, monkeypatch):
    """Stages that the kernel's loop has are not those of the launch."""
    behave(monkeypatch, computed=wrong_in({3, 5}))  # 0 and 1 are the reference, and what it computes once more
    text = USED_TWICE.replace("in range(0, K, BK)", "in tl.range(0, K, BK, num_stages=3)")
    one, said, _ = diagnose(text + "run(1, stages=3)")
    checked = finding(one, "buffer-race").checked
    assert (checked.than, checked.different) == ("", 2)
    assert "wrong here: the results of 2 of 20 launches are not those of the first launch\n" in said


def test_launches_with_atomics_are_not_compared_with_each_other(diagnose, monkeypatch):
    """Each may add in another order; beside a launch without a pipeline they are compared."""
    behave(monkeypatch, computed=wrong_in({3, 5}))
    atomic = USED_TWICE.replace("tl.store(c", "tl.atomic_add(c").replace(", dtype=torch.bfloat16)\ndef", ")\ndef")
    of_loop = atomic.replace("in range(0, K, BK)", "in tl.range(0, K, BK, num_stages=3)")
    one, _, _ = diagnose(of_loop + "run(1, stages=3)")
    assert finding(one, "buffer-race").checked is None
    assert one.not_tried == "its atomics may compute something else each time, so two launches say nothing"
    one, _, _ = diagnose(atomic + "run(1, stages=3)")
    assert finding(one, "buffer-race").checked.different == 2


def test_stages_with_which_a_tile_gets_a_buffer_too_few_are_not_tried(diagnose):
    """Whether or not a launch shows it."""
    one, said, _ = diagnose(USED_TWICE + "run(1)")
    assert not any(each.tried for each in one.findings)
    assert dropped(one, "loads-not-pipelined")["num_stages=3"] == (
        "its results may be wrong: a tile gets one buffer too few (buffer-race)"
    )
    assert "first load the tile a second time" in said


def test_what_is_wrong_without_a_pipeline_too_is_no_measure(diagnose, monkeypatch):
    values = itertools.count()
    behave(monkeypatch, computed=lambda launcher, arguments: arguments[2].fill_(next(values)))
    one, _, _ = diagnose(USED_TWICE + "run(1, stages=3)")
    assert finding(one, "buffer-race").checked is None
    assert one.not_tried == "with num_stages=1, too, it does not compute the same twice"


@pytest.mark.parametrize("text", [GEMM, GEMM.replace("tl.store(c", "tl.atomic_add(c")])
def test_of_a_launch_that_changes_nothing_nothing_is_tried(diagnose, monkeypatch, text):
    """Whether a tensor is only written or also read: any configuration would seem to compute the same."""
    behave(monkeypatch, computed=lambda launcher, arguments: None)
    one = diagnose(text.replace("bfloat16)", "float32)") + "run(1)")[0]
    assert not any(each.tried for each in one.findings)
    assert one.not_tried == "this launch changes no tensor, so nothing shows whether a change computes the same"


def test_a_candidate_that_does_not_compile_is_dropped(diagnose, monkeypatch):
    compile_one = trial.Trial._compile_one

    def fails(self, change):
        if change == {"num_stages": 3}:
            raise RuntimeError("module:\nPassManager::run failed")
        if change == {"num_stages": 4}:
            os.kill(os.getpid(), signal.SIGKILL)
        return compile_one(self, change)

    monkeypatch.setattr(trial.Trial, "_compile_one", fails)
    one = diagnose(GEMM + "run(1)")[0]
    assert set(speedups(one, "loads-not-pipelined")) == {"num_stages=2"}
    assert dropped(one, "loads-not-pipelined") == {
        "num_stages=3": "PassManager::run failed",
        "num_stages=4": "its compiler ended with SIGKILL",
    }


def test_a_compiler_that_hangs_costs_no_more_than_the_limit(diagnose, monkeypatch):
    monkeypatch.setattr(experiments, "LIMIT_S", 4.0)
    monkeypatch.setattr(trial, "LIMIT_S", 4.0)
    monkeypatch.setattr(trial.Trial, "_compile_one", lambda self, change: time.sleep(280))
    begin = time.monotonic()
    one = diagnose(GEMM + "run(1)")[0]
    assert time.monotonic() - begin < 140
    assert set(dropped(one, "loads-not-pipelined").values()) == {"there was no time left to compile it (4 s a kernel)"}


def test_a_candidate_that_needs_too_much_shared_memory_is_not_tried(diagnose):
    one = diagnose(GEMM.replace("64, 64, 64,", "128, 128, 128,") + "run(1, warps=16)")[0]
    assert set(speedups(one, "loads-not-pipelined")) == {"num_stages=2", "num_stages=3"}
    assert dropped(one, "loads-not-pipelined") == {}


def test_a_candidate_that_the_gpu_refuses_is_dropped(diagnose, monkeypatch):
    monkeypatch.setattr(loads_not_pipelined, "fitting_stages", lambda *_: (3, 4, 2))
    one = diagnose(GEMM.replace("64, 64, 64,", "128, 128, 128,") + "run(1, warps=16)")[0]
    assert set(speedups(one, "loads-not-pipelined")) == {"num_stages=2", "num_stages=3"}
    why = dropped(one, "loads-not-pipelined")["num_stages=4"]
    assert why.startswith("out of resource: shared memory, Required: 262144, Hardware limit: 232448")


def test_a_candidate_that_does_not_end_is_dropped_at_the_limit(diagnose, monkeypatch):
    seen = []
    gpu = ClockedGpu()
    gpu.is_over = lambda mark: 4 not in seen
    # The limit is over as soon as it hangs.
    monkeypatch.setattr(trial.device, "own_seconds", lambda: time.monotonic() + 1000 * (4 in seen))

    def computed(launcher, arguments):
        seen.append(launcher.metadata.num_stages)
        matmul(launcher, arguments)

    behave(monkeypatch, computed=computed)
    one = diagnose(GEMM + "run(1)", gpu=gpu)[0]
    assert dropped(one, "loads-not-pipelined")["num_stages=4"] == (
        "there was no time left to check it (200 s a kernel)"
    )


@pytest.mark.parametrize(("rounds", "into_the_next"), [(5, 3), (6, 0), (6, 3), (7, 0)])
def test_whole_rounds_count_and_six_are_needed(diagnose, monkeypatch, rounds, into_the_next):
    """A round is a launch of the original and one of each candidate, in turn from both ends; the first warms up."""
    stages = []

    def computed(launcher, arguments):
        stages.append(launcher.metadata.num_stages)
        matmul(launcher, arguments)

    behave(monkeypatch, computed=computed)
    diagnose(GEMM + "run(1)")
    *launched, _ = stages  # at the end the script's own
    before = 2 + 3  # the original twice, to know whether it repeats itself, and each candidate, to compare
    assert launched[before:] == ([1, 3, 4, 2, 2, 4, 3, 1] * trial.ROUNDS)[: 4 * (1 + trial.ROUNDS)]
    last = before + 4 * (1 + rounds) + into_the_next
    monkeypatch.setattr(trial.device, "own_seconds", lambda: 1000.0 * (len(fake_gpu.LAUNCHES) > last))
    found = finding(diagnose(GEMM + "run(1)")[0], "loads-not-pipelined")
    assert [len(one.original_ms) for one in found.tried] == [len(one.changed_ms) for one in found.tried]
    assert [len(one.changed_ms) for one in found.tried] == ([] if rounds < 6 else [rounds] * 3)
    why = {f"num_stages={n}": "there was no time left for 6 rounds (200 s a kernel)" for n in (2, 3, 4)}
    assert {one.change: one.why for one in found.dropped} == (why if rounds < 6 else {})
    assert len(fake_gpu.LAUNCHES) == last + 2  # that which showed that it was over, and the script's own


IN_PLACE = """
import torch, triton, triton.language as tl

@triton.jit
def rows(c, sums, n, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(c + row * BLOCK + i)
    tl.store(c + row * BLOCK + i, x * 2)
    tl.atomic_add(sums, tl.sum(x.to(tl.float32)))

torch.manual_seed(3)
c, sums = torch.randn(64, 8192, dtype=torch.bfloat16), torch.zeros(1)
views = [c.data_ptr(), sums.data_ptr()]
for _ in range(4):
    rows[(64,)](c, sums, 64, 8192, num_warps=1)
c = torch.cat([c.flatten().view(torch.uint8), sums.view(torch.uint8)])
"""


def doubled(launcher, arguments):
    """In place; the sum's last bit depends on the order of the atomics, which differs from launch to launch."""
    c, sums = arguments[:2]
    sums += c.float().sum() * (1 + 1e-7 * (len(fake_gpu.LAUNCHES) % 2))
    c.mul_(2)


def test_a_script_computes_what_it_would_have(diagnose, monkeypatch):
    """Its tensors and its random numbers, of a kernel that works in place and with atomics."""
    behave(monkeypatch, computed=doubled, milliseconds=lambda launcher: 8.0 / launcher.metadata.num_warps)
    ends = []
    text = IN_PLACE.replace("rows[", "assert views == [c.data_ptr(), sums.data_ptr()]; rows[")
    for try_out in (False, True):
        one, _, end = diagnose(text, try_out=try_out)
        ends.append(end)
    for without, tried in zip(*ends, strict=True):
        assert torch.equal(without, tried)
    found = speedups(one, "too-few-warps")
    assert found["num_warps=16"] == (16.0, 16.0, 16.0, True)
    assert len(found) == 3


def test_other_warps_may_round_otherwise_and_not_more(diagnose, monkeypatch):
    def computed(launcher, arguments):
        doubled(launcher, arguments)
        arguments[0].mul_({8: 1.01, 32: 1.1}.get(launcher.metadata.num_warps, 1.0))

    behave(monkeypatch, computed=computed)
    one = diagnose(IN_PLACE)[0]
    assert set(speedups(one, "too-few-warps")) == {"num_warps=16", "num_warps=8"}
    assert dropped(one, "too-few-warps") == {"num_warps=32": "it computes something else than the original"}


def test_without_memory_for_copies_nothing_is_tried(diagnose):
    gpu = ClockedGpu()
    gpu.free = 100 << 20
    one, said, _ = diagnose(GEMM + "run(1)", gpu=gpu)
    assert one.not_tried == "copies of its tensors take 256 MB of GPU memory, and 100 MB are free"
    assert f"nothing was tried: {one.not_tried}\n" in said
    assert len(fake_gpu.LAUNCHES) == 1


def test_copies_are_gone_after_the_trial(diagnose, monkeypatch):
    alive = []
    moved = copies.Copies.of

    def of(self, arguments):
        made = moved(self, arguments)
        alive.extend(weakref.ref(one.untyped_storage()) for one in made if isinstance(one, torch.Tensor))
        return made

    monkeypatch.setattr(copies.Copies, "of", of)
    gone = []
    traced = Capturer.trace
    monkeypatch.setattr(Capturer, "trace", lambda *given: gone.append([one() for one in alive]) or traced(*given))
    diagnose(GEMM + "run(1)")
    assert len(gone[0]) >= 3
    assert set(gone[0]) == {None}


def test_of_a_kernel_without_candidates_other_options_are_tried(diagnose, monkeypatch):
    """Nothing in the code speaks for them; the time of what is faster is the only reason."""
    behave(monkeypatch, milliseconds=lambda launcher: {8: 0.5, 16: 0.8}.get(launcher.metadata.num_warps, 1.0))
    one, said, _ = diagnose(GEMM + "run(1, stages=3)")
    found = finding(one, "launch-options")
    assert {words: round(each[0], 6) for words, each in speedups(one, "launch-options").items()} == {
        "num_stages=4": 1.0, "num_stages=5": 1.0, "num_stages=2": 1.0,
        "num_warps=8": 2.0, "num_warps=16": 1.25, "num_warps=32": 1.0,
    }  # fmt: skip
    assert (found.severity, found.dropped) == ("high", [])
    assert "with num_warps=8 this launch takes less time than with num_warps=4 [launch-options]" in said
    assert "write: gemm[grid](..., num_warps=8)  # 2.00 x, 2.00 to 2.00" in said


def test_where_no_other_option_is_faster_none_is_a_finding(diagnose, monkeypatch):
    behave(monkeypatch, milliseconds=lambda launcher: {8: 1.0, 16: 0.99}.get(launcher.metadata.num_warps, 1.0))
    one = diagnose(GEMM + "run(1, stages=3)")[0]
    assert "launch-options" not in {each.id for each in one.findings}


def test_options_for_which_a_finding_speaks_are_its_own(diagnose, monkeypatch):
    behave(monkeypatch, milliseconds=by_stages({1: 2.0, 2: 2.0, 3: 1.0, 4: 2.0}))
    one = diagnose(GEMM + "run(1)")[0]
    assert speedups(one, "loads-not-pipelined")["num_stages=3"][0] == 2.0
    assert "launch-options" not in {each.id for each in one.findings}


ROWS = """
import torch, triton, triton.language as tl

@triton.jit
def rows(x, c, B: tl.constexpr):
    columns = tl.program_id(0) * B + tl.arange(0, B)
    a = tl.load(x + columns)
    e = tl.exp(a - tl.max(a, 0))
    tl.store(c + columns, e / tl.sum(e, 0))

x = torch.randn(8, 65536)
c = torch.empty_like(x)
rows[(8,)](x, c, 65536, num_warps=4)
"""


def test_advice_names_the_fastest_candidate_and_not_the_likeliest(diagnose, monkeypatch):
    behave(
        monkeypatch,
        computed=lambda _, arguments: arguments[1].copy_(arguments[0].softmax(1)),
        milliseconds=lambda launcher: {32: 0.8, 16: 0.5}.get(launcher.metadata.num_warps, 1.0),
    )
    one, said, _ = diagnose(ROWS)
    found = finding(one, "too-few-warps")
    assert found.candidates[0] == {"num_warps": 32}
    assert found.advice.startswith("launch with num_warps=16")  # what it leaves spilled, each Triton's ptxas says
    assert "  launch with num_warps=16" in said


TUNED = (
    GEMM.replace(
        "@triton.jit",
        "@triton.autotune([triton.Config({'BK': 64}, num_warps=4, num_stages=1)], key=['M'])\n@triton.jit",
    )
    + """
for _ in range(2):
    gemm[(4, 4)](a, b, c, 256, 256, 128, 64, 64)
"""
)


def test_of_an_autotuned_kernel_its_configuration_is_written(diagnose):
    one = diagnose(TUNED)[0]
    best = finding(one, "loads-not-pipelined").tried[1]
    assert best.write == "triton.Config({'BK': 64}, num_warps=4, num_stages=4)"


def test_beside_an_autotuner_a_launch_gives_what_no_configuration_has(diagnose, monkeypatch):
    """Triton refuses a constexpr that both give."""
    text = ADD.replace(
        "@triton.heuristics", "@triton.autotune([triton.Config({}, num_warps=4)], key=['n'])\n@triton.heuristics"
    )
    behave(monkeypatch, computed=by_tiles([]), milliseconds=lambda launcher: 512.0 / launcher.constants["BLOCK"])
    one = diagnose(text + "n = 128 * 6000\nplus[grid](x[:n], y[:n], c[:n], n, BLOCK=128)")[0]
    assert {trial.change: trial.write for trial in finding(one, "few-bytes-in-flight").tried} == {
        f"BLOCK={cta}": f"plus[grid](..., BLOCK={cta})" for cta in (256, 512, 1024)
    }


@pytest.mark.parametrize("line", ["tl.device_assert(i >= 0)", "tl.device_print('i', i)"])
def test_a_kernel_that_asserts_keeps_its_tiles_and_one_that_prints_is_launched_once(diagnose, monkeypatch, line):
    """An assertion that fails with another tile would end the script."""
    behave(monkeypatch, computed=by_tiles([]))
    text = ADD.replace("    mask = (i", f"    {line}\n    mask = (i")
    one = diagnose(text + "n = 128 * 6000\nplus[grid](x, y, c, n, BLOCK=128, num_warps=4, debug=True)")[0]
    if "print" in line:
        assert one.not_tried == "it prints, and would print again"
        assert len(fake_gpu.LAUNCHES) == 1
    else:
        assert set(dropped(one, "few-bytes-in-flight").values()) == {
            "its assertions may not hold with other tiles, and one that fails ends the script"
        }


ADD = """
import torch, triton, triton.language as tl

@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def plus(x, y, c, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = (i < n) | EVEN
    tl.store(c + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)

x, y, c = (torch.rand(1 << 20).half() for _ in range(3))
def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)
"""


def by_tiles(seen):
    """Adds what the CTAs of the grid cover, beyond the tensors too, as a kernel without masks does."""

    def computed(launcher, arguments):
        x, y, c, n, cta, even = arguments
        assert launcher.constants["BLOCK"] == cta
        seen.append((cta, launcher.constants["EVEN"], n))
        whole = torch.empty(0, dtype=c.dtype).set_(c.untyped_storage())
        begin = c.storage_offset()
        end = begin + (n if not even else -(-n // cta) * cta)
        whole[begin:end] = torch.cat([x[:n] + y[:n], torch.zeros(end - begin - n, dtype=c.dtype)])

    return computed


def test_tiles_follow_the_script_s_function_of_the_grid_and_its_heuristics(diagnose, monkeypatch):
    seen = []
    behave(monkeypatch, computed=by_tiles(seen), milliseconds=lambda launcher: 512.0 / launcher.constants["BLOCK"])
    one = diagnose(ADD + "n = 128 * 6000\nplus[grid](x[:n], y[:n], c[:n], n, BLOCK=128, num_warps=4)")[0]
    assert speedups(one, "few-bytes-in-flight") == {
        f"BLOCK={128 * factor}": (factor, factor, factor, True) for factor in (2, 4, 8)
    }
    assert {(cta, even) for cta, even, _ in seen} == {(128, True), (256, True), (512, True), (1024, True)}
    tried = {launch.grid[0] for launch in fake_gpu.LAUNCHES}
    assert tried == {6000, 3000, 1500, 750}


def test_a_tile_that_reaches_beyond_its_tensor_is_dropped_and_the_script_s_memory_whole(diagnose, monkeypatch):
    behave(monkeypatch, computed=by_tiles([]))
    text = ADD.replace('arguments["n"] % arguments["BLOCK"] == 0', "True")
    one, _, (c, _) = diagnose(
        text + "c.fill_(7)\nn = 128 * 6001\nplus[grid](x[:n], y[:n], c[:n], n, BLOCK=128, num_warps=4)"
    )
    assert dropped(one, "few-bytes-in-flight")["BLOCK=256"] == "it computes something else than the original"
    assert set(c[128 * 6001 :].tolist()) == {7}


def test_tiles_that_reach_further_than_there_is_memory_are_dropped_and_smaller_ones_are_tried(diagnose, monkeypatch):
    """A tile of 8 times the length may write 8 times as far: 7 of the script's storages lie before and after ours."""
    behave(monkeypatch, computed=by_tiles([]))
    gpu = ClockedGpu()
    gpu.free = (256 << 20) + 3 * (2 + 2 * 2) * (2 << 20)
    one = diagnose(ADD + "n = 128 * 6000\nplus[grid](x, y, c, n, BLOCK=128, num_warps=4)", gpu=gpu)[0]
    assert set(speedups(one, "few-bytes-in-flight")) == {"BLOCK=256"}
    assert dropped(one, "few-bytes-in-flight") == {
        "BLOCK=512": "copies of its tensors take 304 MB of GPU memory, and 292 MB are free",
        "BLOCK=1024": "copies of its tensors take 352 MB of GPU memory, and 292 MB are free",
    }
    assert not one.not_tried


def test_without_a_function_of_the_grid_tiles_are_fixed(diagnose, monkeypatch):
    behave(monkeypatch, computed=by_tiles([]))
    one = diagnose(ADD + "n = 128 * 6000\nplus[(6000,)](x, y, c, n, BLOCK=128, num_warps=4)")[0]
    assert set(dropped(one, "few-bytes-in-flight").values()) == {
        "its grid is no function of the meta-parameters, so its tiles are fixed"
    }


def test_what_a_timeline_finds_is_tried_at_a_later_launch(diagnose, monkeypatch):
    behave(monkeypatch, milliseconds=by_stages({3: 2.0, 2: 4.0, 4: 1.0, 5: 1.0}))
    monkeypatch.setattr(read, "timeline", lambda launch, about, made=read.timeline: with_wait(made(launch, about)))
    one = diagnose(GEMM + "run(16, stages=3)")[0]
    assert {change: found[0] for change, found in speedups(one, "exposed-loads").items()} == {
        "num_stages=4": 2.0, "num_stages=5": 2.0
    }  # fmt: skip


def test_what_was_tried_before_an_error_is_not_called_nothing(diagnose, monkeypatch):
    """A timeline names more to try, and the launch after it cannot be tried."""
    behave(monkeypatch, milliseconds=by_stages({1: 4.0, 3: 2.0, 2: 4.0, 4: 1.0, 5: 1.0}))
    monkeypatch.setattr(read, "timeline", lambda launch, about, made=read.timeline: with_wait(made(launch, about)))
    attempts = []

    def refused(self, *given, made=Capturer.try_changes):
        attempts.append(given)
        if len(attempts) > 1:
            raise UsageError("there is no memory left")
        return made(self, *given)

    monkeypatch.setattr(Capturer, "try_changes", refused)
    one, said, _ = diagnose(GEMM + "run(16, stages=1)")
    assert len(attempts) == 2
    assert finding(one, "loads-not-pipelined").tried
    assert "the rest was not tried: there is no memory left\n" in said
    assert "nothing was tried" not in said


def with_wait(timeline, line=None):
    """At the first region, or at the first of a line."""
    region = next(one for one in timeline.regions if line in (None, one.source.line))
    wait = LoadWait(warp_group=region.warp_group, regions=[region.name], cycles=100.0, share=0.5)
    return timeline.model_copy(update={"load_wait": wait})


@pytest.mark.parametrize("from_its_folder", [True, False])
def test_a_measured_wait_is_evidence_of_the_finding_that_names_its_cause(
    diagnose, monkeypatch, tmp_path, from_its_folder
):
    """One cause, one advice: and its estimate, as what waits could save at most is no speed-up."""
    behave(monkeypatch, milliseconds=by_stages({1: 2.0, 3: 1.0, 2: 1.0, 4: 1.0, 5: 4.0}))
    line = 1 + GEMM.splitlines().index("        x = tl.load(a_ptrs)")
    monkeypatch.setattr(
        read, "timeline", lambda launch, about, made=read.timeline: with_wait(made(launch, about), line)
    )
    # A kernel of its own, in each run: of equal ones Triton's cache has the first one's file.
    text = GEMM.replace("acc = tl.dot(x, y, acc)", f"acc = tl.dot(x, y, acc)  # {tmp_path}")
    if from_its_folder:  # from which a timeline names it, where the compiler has the whole path
        monkeypatch.chdir(tmp_path)
    one = diagnose(text + "run(16, stages=1)")[0]
    assert "exposed-loads" not in {found.id for found in one.findings}
    first, second = (found for found in one.findings if found.id == "loads-not-pipelined")
    assert [found.source.line - line for found in (first, second)] == [0, 1]
    assert first.evidence["share"] == 0.5
    assert f"num_stages=1; loads are exposed: {first.evidence['wait_cycles']:.0f} of " in first.message
    assert "share" not in second.evidence
    assert first.estimate == second.estimate
    assert {trial.change for trial in first.tried} == {f"num_stages={stages}" for stages in (2, 3, 4, 5)}


TUNER = """
import torch, triton, triton.language as tl

@triton.autotune([triton.Config({"BLOCK": block}) for block in (128, 256, 512)], key=["n"])
@triton.jit
def double(x, c, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(c + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

n = 1 << 16
x, c = torch.rand(n), torch.empty(n)
double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, c, n)
"""


def test_the_tuner_s_choice_is_known_and_the_next_value_tried(diagnose, monkeypatch):
    def benchmark(_driver):
        def measure(call, **_):
            begin = Computing.now
            call()
            return [Computing.now - begin] * 3

        return measure

    monkeypatch.setattr(fake_gpu.Driver, "get_benchmarker", benchmark)
    behave(
        monkeypatch,
        computed=lambda launcher, arguments: arguments[1].copy_(arguments[0] * 2),
        milliseconds=lambda launcher: 1024.0 / launcher.constants["BLOCK"],
    )
    one, _, _ = diagnose(TUNER)
    shown = finding(one, "autotuner-list")
    assert shown.evidence == {
        "configurations": 3, "BLOCK": 512, "BLOCK_values": "128, 256, 512", "best_ms": 2.0, "BLOCK_gain": 2.0
    }  # fmt: skip
    assert speedups(one, "autotuner-list") == {"BLOCK=1024": (2.0, 2.0, 2.0, True)}
    assert shown.tried[0].write == "triton.Config({'BLOCK': 1024}, num_warps=4, num_stages=3)"


@pytest.mark.parametrize("what", [("--static", "it.py"), ("it.timeline.json",)])
def test_what_launches_nothing_cannot_be_tried(what):
    done = kperf("diagnose", "--try", *what)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--try times kernels, which only a script on a GPU launches" in done.stderr


def test_without_a_gpu_it_is_one_sentence(tmp_path):
    script = tmp_path / "it.py"
    script.write_text(GEMM + "run(1)")
    done = kperf("diagnose", "--try", script)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "`kperf diagnose --static` needs no GPU" in done.stderr


@pytest.mark.parametrize(
    ("advice", "likeliest", "fastest", "named"),
    [
        ("halve the tile: M=64 or N=128", "M=64", "N=128", "halve the tile: N=128"),
        ("halve the tile: M=64 or N=128", "M=64", "M=64, N=128", "halve the tile: M=64, N=128"),
        ("use num_warps=8, or halve it: M=64", "num_warps=8", "M=64", "use num_warps=8, or halve it: M=64"),
        ("launch with num_warps=16", "num_warps=16", "num_warps=1", "launch with num_warps=1"),
        ("launch with num_stages=3 (or 4)", "num_stages=3", "num_stages=3", "launch with num_stages=3"),
        ("launch with num_stages=3 (or 4)", "num_stages=3", "num_stages=4", "launch with num_stages=4"),
        (
            "launch with num_warps=1: as num_warps=16",
            "num_warps=1",
            "num_warps=2",
            "launch with num_warps=2: as num_warps=16",
        ),
        (
            "launch with maxnreg=128: it has 32; halve it",
            "maxnreg=128",
            "num_warps=8",
            "launch with num_warps=8; halve it",
        ),
    ],
)
def test_of_several_candidates_advice_names_the_fastest(advice, likeliest, fastest, named):
    assert naming(advice, likeliest, fastest) == named
