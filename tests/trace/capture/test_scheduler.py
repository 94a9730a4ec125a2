"""Which launches are traced, decided for kernels that are made up and a GPU that says when it is asked."""

from types import SimpleNamespace

import pytest

from kperf.trace.capture import gpu as gpus
from kperf.trace.capture.gpu import Span, times
from kperf.trace.capture.kernels import CapturedLaunch, Kernel, TraceOptions
from kperf.trace.capture.scheduler import GOES_ON, IDLE, Scheduler

GRID = (4, 1, 1)


class Clock:
    """Marks are milliseconds; only those up to `now` are over, and to ask for the time of another is an error."""

    def __init__(self, now=10**9):
        self.now = now

    def is_over(self, mark):
        return mark <= self.now

    def milliseconds(self, start, end):
        assert end <= self.now, "it would have to wait"
        return float(end - start)


def kernel(name="f", hash_="", device=0, line=1):
    return Kernel(SimpleNamespace(hash=hash_ or name, name=name), device, name, "it.py", line)


def scheduler(*kernels, gpu=None, **options):
    made = Scheduler(TraceOptions(**{"passes": 1, "ctas": "all"} | options), gpu or Clock())
    made.kernels.update((one.key, one) for one in kernels)
    return made


def launch(made, one, times_=1, trace=True):
    """Launches of a kernel; those that are due are traced, whole. Returns the numbers of these."""
    due = []
    for _ in range(times_):
        number = made.note(one, GRID)
        if trace and made.is_due(one, number, GRID):
            due.append(number)
            one.taken = captured(number, made)
    return due


def captured(number, made, warm=None, rounds=0):
    warm = number >= 3 or made.options.launch is not None if warm is None else warm
    return CapturedLaunch(number, warm, GRID, None, [], None, {}, None, rounds=rounds)


def test_the_first_and_the_third_launch_are_due():
    f = kernel()
    assert launch(scheduler(f), f, 9) == [1, 3]
    f = kernel()
    assert launch(scheduler(f, launch=4), f, 9) == [4]


def test_a_launch_that_another_threads_work_hides_is_made_up_for_by_a_later_one():
    f = kernel()
    made = scheduler(f)
    assert launch(made, f) == [1]
    launch(made, f, 4, trace=False)
    assert launch(made, f, 4) == [6]


def test_of_a_tuners_configurations_the_one_that_goes_on_is_traced():
    """Ten, each launched eight times; the seventh is then launched on."""
    configurations = [kernel(hash_=str(number)) for number in range(10)]
    made = scheduler(*configurations)
    due = [launch(made, one, 8) for one in configurations]
    assert due == [[1, 3], [1, 3], *[[]] * 8]
    assert launch(made, configurations[6], 20) == [9]
    assert made.is_one_of_many(configurations[7])
    assert made.siblings(configurations[7]) == 10


def test_the_last_configuration_is_traced_when_it_was_launched_much_more_often():
    configurations = [kernel(hash_=str(number)) for number in range(5)]
    made = scheduler(*configurations)
    for one in configurations[:-1]:
        launch(made, one, 7)
    assert launch(made, configurations[-1], 100) == [GOES_ON * 7]


@pytest.mark.parametrize("other", [{"line": 2}, {"device": 1}], ids=["function", "GPU"])
def test_compilations_of_another_function_or_for_another_gpu_are_no_siblings(other):
    three = [kernel(hash_="0"), kernel(hash_="1"), kernel(hash_="2", **other)]
    made = scheduler(*three)
    assert [launch(made, one, 3) for one in three] == [[1, 3]] * 3


def test_one_compilation_on_two_gpus_is_two_kernels():
    a, b = kernel(device=0), kernel(device=1)
    assert a.key != b.key
    made = scheduler(a, b)
    assert (launch(made, a, 3), launch(made, b, 3)) == ([1, 3], [1, 3])


def test_nothing_is_waited_for_within_a_launch():
    """The slower of two by what is over; what is not over yet is left out."""
    gpu = Clock(now=100)
    f, g = kernel("f"), kernel("g", line=2)
    made = scheduler(f, g, gpu=gpu)
    f.launches = g.launches = 4
    f.spans.extend([Span(0, 10), Span(90, 101)])
    g.spans.append(Span(0, 500))
    assert made.total_ms(f, wait=False) == 40.0
    assert made.original_ms(f, wait=False) == 10.0
    assert made.total_ms(g, wait=False) == 0.0
    assert made.original_ms(g, wait=False) is None
    gpu.now = 1000
    assert [one.name for one in made.chosen] == ["g", "f"]
    assert made.total_ms(f) == 4 * (10 + 11) / 2


def test_the_cold_first_launch_is_no_time_of_the_original_kernel():
    f = kernel()
    made = scheduler(f)
    f.launches = 3
    f.cold = Span(0, 50)
    assert made.original_ms(f) is None
    assert made.total_ms(f) == 150.0
    f.alone.append(Span(100, 103))
    f.spans.extend([Span(200, 205), Span(300, 304)])
    assert made.original_ms(f) == 4.0
    f.alone[0] = Span(100, 100.05)  # short: what is timed without a pause before it says nothing
    assert made.original_ms(f) == pytest.approx(0.05)
    f.taken = captured(3, made)
    f.taken.original_spans += [Span(400, 407), Span(500, 509), Span(600, 608)]
    assert made.original_ms(f) == 8.0


def test_times_that_are_known_stay_known_and_a_gpu_that_failed_knows_no_more():
    class Failed(Clock):
        def milliseconds(self, start, end):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    known, unknown = Span(0, 3), Span(5, 9)
    assert times([known], Clock(), wait=True) == [3.0]
    assert times([known, unknown], Failed(), wait=True) == [3.0]
    assert times([unknown], Failed(), wait=False) == []
    assert known.is_over(Clock(now=-1))


def test_a_kernels_spans_are_bounded():
    f = kernel()
    f.spans.extend(Span(n, n + 1) for n in range(100_000))
    assert len(f.spans) == 64
    assert gpus.times(f.spans, Clock(), wait=True) == [1.0] * 64


def test_all_is_read_when_every_kernel_that_is_still_launched_is():
    f, g = kernel("f"), kernel("g", line=2)
    made = scheduler(f, g)
    launch(made, f, 3)
    assert not made.is_all_read([])
    assert made.is_all_read([f.key])  # g was not launched at all
    launch(made, g, 1)
    assert not made.is_all_read([f.key])
    launch(made, f, IDLE)
    assert not made.is_all_read([f.key])
    launch(made, f, 1)
    assert made.is_all_read([f.key])
    launch(made, g, 2)
    assert not made.is_all_read([f.key])
    assert made.is_all_read([f.key, g.key])


def test_of_each_name_that_was_asked_for_a_kernel_has_to_be_read():
    f, g = kernel("f"), kernel("g", line=2)
    made = scheduler(f, g, patterns=["f", "h*"])
    launch(made, f, 3)
    launch(made, g, 1)
    assert not made.is_all_read([f.key])
    h = kernel("hello", line=3)
    made.kernels[h.key] = h
    launch(made, h, 2)
    assert not made.is_all_read([f.key, h.key])
    launch(made, h, 1)
    assert made.is_all_read([f.key, h.key])


def test_a_kernel_of_which_rounds_or_passes_are_to_come_is_not_read():
    f = kernel()
    made = scheduler(f, passes=None)
    made.note(f, GRID)
    f.taken = captured(3, made, rounds=2)
    assert made.wants_a_round(f, GRID)
    assert not made.wants_a_round(f, (5, 1, 1))
    assert not made.is_timed(f)
    f.taken.original_spans += [Span(0, 1), Span(2, 3)]
    assert made.is_timed(f)
    assert made.wants_a_pass(f, GRID)
    assert not made.wants_a_pass(f, (5, 1, 1))
    assert not made.is_whole(f)
    assert not made.is_all_read([f.key])
    f.taken.why_one = "there is no loop"
    assert made.is_whole(f)
    assert made.is_all_read([f.key])


@pytest.mark.parametrize("passes", [None, 1])
def test_a_kernel_of_which_a_sample_is_to_come_or_to_be_decided_on_is_not_read(passes):
    f = kernel()
    made = scheduler(f, passes=passes, ctas="auto")
    made.note(f, GRID)
    f.taken = captured(3, made, rounds=1)
    f.taken.why_one = "there is no loop"
    assert not made.is_timed(f)
    f.taken.original_spans.append(Span(0, 1))
    assert made.is_timed(f)
    assert made.wants_sampled_ctas(f, GRID)
    assert not made.wants_sampled_ctas(f, (5, 1, 1))
    assert not made.is_whole(f)
    f.taken.sampled = captured(4, made, rounds=2)
    assert made.wants_sampled_ctas(f, GRID)
    f.taken.sampled.original_spans += [Span(0, 1), Span(2, 3)]
    assert not made.wants_sampled_ctas(f, GRID)
    assert made.is_all_read([f.key])
    f.taken.sampled, f.taken.why_all = None, "its CTAs come in clusters"
    assert not made.wants_sampled_ctas(f, GRID)
    assert made.is_whole(f)
    f.taken.why_all = None
    for others in ({"passes": 2, "ctas": "auto"}, {"passes": passes, "ctas": "all"}):
        assert not scheduler(f, **others).wants_sampled_ctas(f, GRID)


def test_what_events_cost_is_of_launches_in_turn_and_unknown_without_them():
    f = kernel()
    made = scheduler(f)
    f.taken = captured(3, made)
    assert made.cost(f, f.taken) is None
    f.taken.spans = [Span(0, 15), Span(0, 13), Span(0, 99)]
    assert made.cost(f, f.taken) is None
    f.taken.original_spans = [Span(0, 10), Span(0, 12), Span(0, 1)]
    assert made.cost(f, f.taken) == pytest.approx(0.5)
