"""Graphs that take turns: on a clock of our own, and on a GPU that computes what is queued for it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kperf.bench import turns
from tests.conftest import STATE


class Event:
    """Of rounds that take a millisecond and follow each other."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1.0


class Mixture:
    """Rounds of 0.01 s on a clock of our own, whose times fall by 5 % a second until `settles_s`."""

    def __init__(self, monkeypatch, settles_s):
        self.now, self.settles_s = 100.0, settles_s
        monkeypatch.setattr(turns.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(turns.torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "Event", type("Event", (Event,), {"synchronize": lambda _: self.pass_time()}))
        monkeypatch.setattr(turns, "timed_replay", lambda graph, flush: lambda: self.milliseconds(graph))
        monkeypatch.setattr(turns.device, "device_state", lambda: STATE)
        monkeypatch.setattr(turns.device, "other_processes", lambda: 1)
        self.candidates = [SimpleNamespace(graph=factor, samples_ms=[], places=[]) for factor in (1.0, 2.0, 3.0)]
        ceiling = SimpleNamespace(graph=1.0)
        self.turns = turns.Turns(2, ceiling, None, np.random.default_rng(0))

    def pass_time(self):
        self.now += 0.01

    def milliseconds(self, graph):
        return graph * (1 + 0.05 * max(0.0, 100 + self.settles_s - self.now))


def test_rounds_are_taken_once_the_mixture_has_settled(monkeypatch):
    mixture = Mixture(monkeypatch, settles_s=2.5)
    steps = []
    timed = mixture.turns.timed(mixture.candidates, 40, steps.append)
    assert steps[-40:] == [f"round {number} of 40" for number in range(1, 41)]
    assert timed.settling.settled
    assert 2.2 <= timed.settling.seconds <= 3.0
    assert timed.settling.shift < 0.01
    for candidate in mixture.candidates:
        assert len(candidate.samples_ms) == len(candidate.places) == 40
        assert max(candidate.samples_ms) < 1.01 * candidate.graph / 2  # of two calls
    assert len(timed.states) == len(timed.ceiling_ms) == 40
    assert timed.other_processes == 1
    assert mixture.now - 100 - timed.settling.seconds >= 8 * 0.25  # blocks lie apart


def test_what_never_settles_is_measured_and_said(monkeypatch):
    mixture = Mixture(monkeypatch, settles_s=1000.0)
    mixture.milliseconds = lambda graph: graph * 1.1 ** int((mixture.now - 100) / 0.25)
    timed = mixture.turns.timed(mixture.candidates, 40, lambda _: None)
    assert not timed.settling.settled
    assert timed.settling.seconds == pytest.approx(6.0, abs=0.3)
    assert timed.settling.shift > 0.03


LOG_2 = float(np.log(2.0))


@pytest.mark.parametrize(
    ("factor", "criterion", "window_s", "found"),
    [
        (1.0, 0.01, 0.25, (1.0, True)),  # no sooner than `_SETTLE_S`, and as soon
        (1.0, 0.01, 0.5, (1.0, True)),
        (1.0, 0.01, 2.0, (4.0, True)),  # two windows
        (2.0, LOG_2, 1.5, (6.0, False)),  # no longer than `_SETTLE_AT_MOST_S`
        (0.5, LOG_2, 1.5, (6.0, False)),  # either way
        (2.0, np.nextafter(LOG_2, 1), 1.5, (3.0, True)),
        (0.5, np.nextafter(LOG_2, 1), 1.5, (3.0, True)),
    ],
)
def test_settling_lasts_as_long_as_it_has_to_and_no_longer(monkeypatch, factor, criterion, window_s, found):
    now, windows = [0.0], iter(range(100))

    def window(_):
        now[0] += window_s
        return np.array([3.0, 5.0]) * factor ** next(windows)

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(turns, "_window", window)
    monkeypatch.setattr(turns, "_SETTLED", criterion)
    settling = turns._settle(iter(()))
    assert (settling.seconds, settling.settled) == found
    assert settling.shift == abs(float(np.log(factor)))


def test_a_window_lasts_a_quarter_of_a_second_or_one_round(monkeypatch):
    for round_s, rounds in ((0.125, 2), (0.25, 1), (0.0625, 4), (9.0, 1)):
        now, taken = [0.0], []

        def mixture(round_s=round_s, now=now, taken=taken):
            while True:
                now[0] += round_s
                taken.append(len(taken) + 1.0)
                yield SimpleNamespace(samples_ms=[taken[-1], 10 * taken[-1]])

        monkeypatch.setattr(turns.time, "perf_counter", lambda now=now: now[0])
        medians = turns._window(mixture())
        assert len(taken) == rounds
        assert medians.tolist() == [(1 + rounds) / 2, 10 * (1 + rounds) / 2]


@pytest.mark.parametrize(
    ("sample_ms", "times"), [(0.1, 1), (9.9, 1), (10.0, 2), (19.9, 2), (20.0, 3), (30.0, 3), (500.0, 3)]
)
def test_long_samples_have_more_rounds(sample_ms, times):
    assert turns._times(sample_ms) == times


def test_every_candidate_has_its_own_samples_whatever_the_order(monkeypatch):
    mixture = Mixture(monkeypatch, settles_s=0.0)
    rounds = mixture.turns.mixture(mixture.candidates)
    taken = [next(rounds) for _ in range(20)]
    assert all(round_.samples_ms == [0.5, 1.0, 1.5] for round_ in taken)
    assert all(sorted(round_.places) == [0, 1, 2] for round_ in taken)
    assert len({tuple(round_.places) for round_ in taken}) > 3


def test_a_place_is_where_in_the_round_a_candidate_came(monkeypatch):
    mixture, begun = Mixture(monkeypatch, settles_s=0.0), []
    monkeypatch.setattr(turns, "timed_replay", lambda graph, flush: begun.append(graph) or (lambda: graph))
    candidates = [SimpleNamespace(graph=float(number), samples_ms=[], places=[]) for number in range(10, 15)]
    mixture.turns.ceiling.graph = None
    rounds = mixture.turns.mixture(candidates)
    taken = [next(rounds) for _ in range(12)]
    orders = [begun[number * 6 + 1 : number * 6 + 6] for number in range(12)]  # the ceiling is first of each
    for round_, order in zip(taken, orders, strict=True):
        assert [order[place] for place in round_.places] == [10.0, 11.0, 12.0, 13.0, 14.0]
        assert round_.samples_ms == [5.0, 5.5, 6.0, 6.5, 7.0]  # of two calls
    assert any(
        [order.index(graph) for graph in (10.0, 11.0, 12.0, 13.0, 14.0)] != [int(g - 10) for g in order]
        for order in orders
    )


class Queue:
    """A GPU that computes what is queued for it, 5 ms a sample, on a clock beside that of the host."""

    def __init__(self, monkeypatch):
        self.host_ms = self.gpu_ms = self.waited_ms = 0.0
        queue = self

        class Event:
            def __init__(self, enable_timing):
                pass

            def record(self):
                queue.work(0.0)
                self.at_ms = queue.gpu_ms

            def synchronize(self):
                queue.host_ms = max(queue.host_ms, self.at_ms)

            def elapsed_time(self, end):
                return end.at_ms - self.at_ms

        def replay(graph, flush):
            queue.host_ms += 0.01
            queue.work(graph)
            return lambda: graph

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.drain)
        monkeypatch.setattr(turns, "timed_replay", replay)
        monkeypatch.setattr(turns.time, "perf_counter", lambda: self.host_ms / 1e3)
        monkeypatch.setattr(turns.device, "other_processes", lambda: 0)
        self.candidates = [SimpleNamespace(graph=5.0, samples_ms=[], places=[]) for _ in range(2)]
        ceiling = SimpleNamespace(graph=5.0)
        self.turns = turns.Turns(1, ceiling, None, np.random.default_rng(0))

    def work(self, milliseconds):
        self.waited_ms += max(0.0, self.host_ms - self.gpu_ms)
        self.gpu_ms = max(self.gpu_ms, self.host_ms) + milliseconds

    def drain(self):
        self.host_ms = max(self.host_ms, self.gpu_ms)


@pytest.mark.parametrize("stalls_ms", [60.0, 400.0])
def test_the_gpu_does_not_wait_for_a_host_that_stalls_and_where_it_does_that_is_recorded(monkeypatch, stalls_ms):
    """After each eighth timed round the driver does not answer for a while."""
    queue, before = Queue(monkeypatch), []

    def state():
        before.append((queue.gpu_ms, queue.waited_ms))
        queue.host_ms += stalls_ms if len(before) % 8 == 1 else 1.0
        return STATE

    monkeypatch.setattr(turns.device, "device_state", state)
    timed = queue.turns.timed(queue.candidates, 40, lambda _: None)
    begin_ms, waited_ms = before[0]
    waited = (queue.waited_ms - waited_ms) / (queue.gpu_ms - begin_ms)
    assert (waited > 0.1) == (stalls_ms > 100)
    assert timed.idle_share == pytest.approx(waited, abs=0.03)
    assert queue.host_ms == queue.gpu_ms  # nothing is left queued


def test_no_more_is_queued_than_a_tenth_of_a_second_takes(monkeypatch):
    queue = Queue(monkeypatch)
    rounds = queue.turns.mixture(queue.candidates)
    for _ in range(50):
        next(rounds)
        assert queue.gpu_ms - queue.host_ms <= 100 + 15
    assert queue.gpu_ms - queue.host_ms >= 85
