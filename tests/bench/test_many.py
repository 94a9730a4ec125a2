"""Several GPUs: the processes, their engine, the locks and the store are real; what they measure is not."""

import os
import re
import signal
import threading
import time
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
import torch
from distributed import Client, Scheduler, Security, SpecCluster
from distributed.utils import get_mp_context

from kperf.bench import many, spread
from kperf.bench.points import Store, newest_whole_runs
from kperf.bench.sweep import Progress
from kperf.bench.walltime import SweepStore
from kperf.errors import MeasurementError, UsageError
from kperf.paper import fig12
from kperf.record.device import locked
from tests.bench.fake_sweep import GROUPS, KEYS, PLACES, as_a_command, faked, gpus, measure
from tests.command import kperf
from tests.processes import has_ended, soon

CONTROL = 640
"""The middle one."""


@pytest.fixture
def fake_gpus(tmp_path):
    folder = tmp_path / "fake_gpus"
    folder.mkdir()
    with faked(folder):
        yield folder


def log(folder):
    """(begin or end, seq_len, inputs, card, process) of each line."""
    lines = [line.split() for line in (folder / "log").read_text().splitlines()]
    return [(what, int(seq_len), inputs, card, int(process)) for what, seq_len, inputs, card, process in lines]


def processes_at_work(folder):
    return {process for *_, process in log(folder)}


def interrupt(*_):
    raise KeyboardInterrupt


def lines(results):
    """How many points there are of each length and implementation; reading holds every line to be whole."""
    return Counter((point.seq_len, point.implementation) for point in Store(results).points())


def expected(cards, places=PLACES):
    each = {workload.seq_len: cards if workload.seq_len == CONTROL else 1 for _, workload in places}
    return {(seq_len, key): count for seq_len, count in each.items() for key in KEYS}


def test_a_sweep_is_spread_and_each_workload_is_whole_on_one_gpu(tmp_path, fake_gpus):
    kinds = [
        [(sweep, workload.model_copy(update={"inputs": kind})) for kind in ("normal", "x4")]
        for sweep, workload in PLACES
    ]
    told, steps = [], []
    progress = Progress(
        begin=lambda done, total: told.append(total),
        step=lambda key, what, gpu: steps.append((key, gpu)),
        advance=lambda cost: told.append(-cost),
        points=lambda points, gpu: told.append(gpu),
    )
    with many.processes(gpus(0, 1, 3)) as bench:
        measure(tmp_path, bench, kinds, progress=progress)
    assert lines(tmp_path) == {key: 2 * count for key, count in expected(3).items()}
    assert sum(one for one in told if isinstance(one, int)) == 0
    assert {one for one in told if isinstance(one, str)} == {"GPU 0", "GPU 1", "GPU 3"}
    assert {gpu for _, gpu in steps} == {"GPU 0", "GPU 1", "GPU 3"}
    assert {key for key, _ in steps} == {kind[0] for kind in kinds}
    # On a card one group is over before the next begins, and its kinds follow each other.
    for card in ("card0", "card1", "card3"):
        of_it = [line for line in log(fake_gpus) if line[3] == card]
        assert len({process for *_, process in of_it}) == 1
        groups = [of_it[n : n + 4] for n in range(0, len(of_it), 4)]
        for group in groups:
            assert [line[0] for line in group] == ["begin", "end"] * 2
            assert len({line[1] for line in group}) == 1
        assert groups[0][0][1] == CONTROL
    # The dearest come first, for the last to end is short.
    begun = [line[1] for line in log(fake_gpus) if line[0] == "begin" and line[2] == "normal"]
    assert begun[:3] == [CONTROL] * 3
    assert set(begun[3:6]) == {1152, 1024, 896}
    # A point's environment is its card's, and a run is of one card.
    store = Store(tmp_path)
    uuids = {name: environment.gpu_uuid for name, environment in store.environments().items()}
    measured_on = {(seq_len, inputs, card) for _, seq_len, inputs, card, _ in log(fake_gpus)}
    assert {(p.seq_len, p.inputs, uuids[p.environment]) for p in store.points()} == measured_on
    for run in {p.run for p in store.points()}:
        assert len({p.environment for p in store.points() if p.run == run}) == 1


def test_what_is_recorded_on_any_of_the_gpus_is_not_measured_again(tmp_path, fake_gpus):
    said = []
    with many.processes(gpus(0, 1)) as bench:
        measure(tmp_path, bench, GROUPS[3:6])
        measure(tmp_path, bench)
        measure(tmp_path, bench, progress=Progress(say=said.append))
        assert lines(tmp_path) == expected(2)
        assert said[0].startswith("9 of 9 workloads are recorded")
        assert len(said) == 1  # nothing was measured: there is no time to tell
        first, second = SweepStore(tmp_path).points()
        assert (len(first.places), len(second.places)) == (3, 6)
        assert [len(record.gpus) for record in (first, second)] == [2, 2]
        measure(tmp_path, bench, GROUPS[:1], fresh=True)
    assert lines(tmp_path)[128, "fa3"] == 3  # once before, and as the only one it is what compares both


def test_the_time_is_kept_beside_that_of_one_gpu(tmp_path, fake_gpus):
    said = []
    with many.processes(gpus(1)) as bench:
        measure(tmp_path, bench)
    assert lines(tmp_path) == expected(1)  # one alone has nothing to compare
    with many.processes(gpus(0, 1)) as bench:
        measure(tmp_path, bench)
        assert lines(tmp_path) == expected(2)  # what compares the cards was lacking on the other, and nothing else
        measure(tmp_path, bench, fresh=True, progress=Progress(say=said.append))
    one, comparing, two = SweepStore(tmp_path).points()
    assert [share.tasks for share in comparing.gpus] == [1, 0]
    assert one.same_work(two)
    other = {"figure": "bench", "rounds": 11, "implementations": KEYS[:1], "places": two.places[:1]}
    assert not any(one.same_work(two.model_copy(update={field: value})) for field, value in other.items())
    assert min(one.seconds / 9, two.seconds / 5) > 0.05
    assert one.gpus[0].tasks == 9
    assert sum(share.tasks for share in two.gpus) == 10
    assert all(share.busy_s / share.tasks > 0.05 for share in two.gpus)
    assert len(set(two.runs)) == 10
    ratio = one.seconds / two.seconds
    assert re.fullmatch(
        rf"9 workloads on 2 GPUs in \d+ s and \d+ s to start; on one \d+ s: {ratio:.2f} times as fast \(20..-..-..\)",
        said[0],
    )


def test_a_killed_process_loses_nothing_and_the_others_take_over(tmp_path, fake_gpus):
    (fake_gpus / "kill-card1").touch()  # as it measures what compares the cards
    (fake_gpus / "kill-1152").touch()
    said = []
    with many.processes(gpus(0, 1)) as bench:
        measure(tmp_path, bench, progress=Progress(say=said.append))
    assert lines(tmp_path) == expected(2)
    assert [line[3] for line in sorted(log(fake_gpus)) if line[:2] == ("end", CONTROL)] == ["card0", "card1"]
    began = [line for line in log(fake_gpus) if line[:2] == ("begin", 1152)]
    assert len({process for *_, process in began}) == 2
    taken_over = [sentence for sentence in said if "takes over" in sentence]
    assert any(sentence.startswith("the process of GPU 1 ended: GPU 1 takes over") for sentence in taken_over)
    assert any("1152" in sentence for sentence in taken_over)


def test_a_broken_context_ends_its_process_and_not_the_sweep(tmp_path, fake_gpus):
    (fake_gpus / "lost-1024").touch()
    said = []
    with many.processes(gpus(0, 1)) as bench:
        measure(tmp_path, bench, progress=Progress(say=said.append))
    assert lines(tmp_path) == expected(2)
    broken, again = (line[4] for line in log(fake_gpus) if line[:2] == ("begin", 1024))
    assert broken != again
    assert any("broke the GPU's context" in sentence for sentence in said)


def test_what_ends_every_process_is_given_up_and_the_others_are_measured(tmp_path, fake_gpus):
    (fake_gpus / "crash-256").touch()
    with (
        pytest.raises(MeasurementError, match=r"256.* ended every process that began it; what was recorded is kept"),
        many.processes(gpus(0, 1)) as bench,
    ):
        measure(tmp_path, bench)
    assert lines(tmp_path) == expected(2, [place for place in PLACES if place[1].seq_len != 256])
    assert sum(line[:2] == ("begin", 256) for line in log(fake_gpus)) == 3


def test_a_gpu_that_does_not_come_back_is_said_and_the_rest_is_measured(tmp_path, fake_gpus, monkeypatch):
    monkeypatch.setattr(many, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(many, "_POLL_S", 0.1)
    said = []
    with many.processes(gpus(0, 1)) as bench:
        (fake_gpus / "kill-card1").touch()
        (fake_gpus / "no-return-card1").touch()
        measure(tmp_path, bench, progress=Progress(say=said.append))
    assert lines(tmp_path) == expected(1)
    assert "GPU 1 does not come back: what compares it is not measured" in said


def test_when_no_gpu_is_left_a_sentence_says_so(tmp_path, fake_gpus, monkeypatch):
    monkeypatch.setattr(many, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(many, "_POLL_S", 0.1)
    with many.processes(gpus(0, 1)) as bench:
        for what in ("no-return-card0", "no-return-card1", "kill-1152", "kill-1024"):
            (fake_gpus / what).touch()
        with pytest.raises(MeasurementError, match="no process is left on any of the 2 GPUs: what"):
            measure(tmp_path, bench)
    assert len(newest_whole_runs(Store(tmp_path).points(), KEYS)) >= 1  # what compares the cards was


def test_a_gpu_that_another_measures_on_is_refused(tmp_path, fake_gpus):
    with (
        locked(fake_gpus / "kperf-gpu-card1.lock", "does"),
        pytest.raises(UsageError, match="is measuring on GPU card1: wait for it to end"),
        many.processes(gpus(0, 1)),
    ):
        pass
    with many.processes(gpus(0, 1)):
        for card in ("card0", "card1"):
            with pytest.raises(UsageError), locked(fake_gpus / f"kperf-gpu-{card}.lock", "does"):
                pass
    with locked(fake_gpus / "kperf-gpu-card1.lock", "does"):  # given back
        pass


def test_a_gpu_that_cannot_be_used_is_said(tmp_path, fake_gpus):
    (fake_gpus / "no-return-card1").touch()
    with (
        pytest.raises(MeasurementError, match=r"^GPU 1 cannot be used: RuntimeError: No CUDA GPUs are available$"),
        many.processes(gpus(0, 1)),
    ):
        pass


def test_gpus_that_are_not_alike_are_refused(tmp_path, fake_gpus):
    (fake_gpus / "driver-card1").touch()
    with pytest.raises(UsageError, match=r"driver of GPU 1 is 999\.9 and of GPU 0 580\.1"), many.processes(gpus(0, 1)):
        pass


def test_the_engine_leaves_those_who_measure_alone(fake_gpus):
    def asked(dask_worker):
        return {
            "threads": dask_worker.state.nthreads,
            "profiled": "profile" in dask_worker.periodic_callbacks,
            "limit": dask_worker.memory_manager.memory_limit,
            "gil": dask_worker.monitor.monitor_gil_contention,
            "openmp": os.environ.get("OMP_NUM_THREADS"),
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
            "interrupt": signal.getsignal(signal.SIGINT),
            "forked from a process that used CUDA": torch.cuda._is_in_bad_fork(),
        }

    with many.processes(gpus(2)) as bench:
        (found,) = bench._client.run(asked).values()
    assert found == {
        "threads": 1,
        "profiled": False,
        "limit": None,
        "gil": False,
        "openmp": os.environ.get("OMP_NUM_THREADS"),
        "gpus": "GPU-card2",
        "interrupt": signal.SIG_IGN,
        "forked from a process that used CUDA": False,
    }


def test_nobody_else_on_the_machine_can_have_programs_run(fake_gpus):
    with many.processes(gpus(0)) as bench:
        address = bench._client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        with pytest.raises(OSError, match=r"TCP|TLS|Timed out"):
            Client(address.replace("tls://", "tcp://"), timeout=0.5)
        stranger = Security.temporary()
        with pytest.raises(OSError, match=r"TCP|TLS|Timed out"):
            Client(address, security=stranger, timeout=0.5)


def test_gpus_of_hosts_join_a_scheduler(tmp_path, fake_gpus, monkeypatch):
    said = []
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}}
    with SpecCluster({}, scheduler, silence_logs=False) as cluster:
        address = cluster.scheduler_address
        with (
            pytest.raises(UsageError, match=f"no GPU has joined {address}: `kperf worker {address}`"),
            many.joined(address),
        ):
            pass
        hosts = [threading.Thread(target=many.serve, args=(address, gpus(n))) for n in (0, 1)]
        for host in hosts:
            host.start()
        cluster.wait_for_workers(2, timeout=120)
        with many.joined(address) as bench:
            measure(tmp_path, bench)
        with many.joined(address) as bench:  # they stayed
            measure(tmp_path, bench, progress=Progress(say=said.append))
        assert lines(tmp_path) == expected(2)
        (fake_gpus / "slow-card1").touch()  # for minutes
        before = processes_at_work(fake_gpus)
        with pytest.raises(KeyboardInterrupt), many.joined(address) as bench:
            measure(tmp_path, bench, fresh=True, progress=Progress(points=interrupt))
        (fake_gpus / "slow-card1").unlink()
        assert not any(psutil.pid_exists(process) for process in before)
        with many.joined(address) as bench:  # they are back
            measure(tmp_path, bench, GROUPS[:1], fresh=True)
    for host in hosts:
        host.join(120)
    assert not any(host.is_alive() for host in hosts)
    assert said[0].startswith("9 of 9 workloads")
    monkeypatch.setattr(many, "_CONNECT_S", 0.2)
    monkeypatch.setitem(many._SETTINGS, "distributed.comm.timeouts.connect", "200 ms")
    with pytest.raises(UsageError, match=f"no scheduler answers at {address}"), many.joined(address):
        pass
    with pytest.raises(UsageError, match=f"no scheduler answers at {address}"):
        many.serve(address, gpus(0))


@pytest.mark.usefixtures("unrendered")
def test_fig12_from_the_command_line(tmp_path, fake_gpus, monkeypatch):
    machine = SimpleNamespace(gpus=tuple(one.gpu for one in gpus(0, 1, 2)))
    monkeypatch.setattr(spread.device, "why_static", lambda: None)
    monkeypatch.setattr(spread.machine, "probe", lambda: machine)
    monkeypatch.setattr(fig12, "verify_overrides", lambda console, run_too: console.print(f"verified, run: {run_too}"))
    command = ["fig12", "--results", tmp_path, "--gpus", "0,2"]
    done = kperf(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "verified, run: False" in done.stdout
    assert re.search(r"^16 workloads on 2 GPUs in \d s and \d+ s to start; the same work", done.stdout, re.MULTILINE)
    assert re.search(r"^on 2 cards, each workload whole on one: card0 \d+, card2 \d+$", done.stdout, re.MULTILINE)
    assert re.search(r"^GPU [02]: .* fa3 \d+", done.stdout, re.MULTILINE)
    # Pretended times are the same everywhere: the cards agree.
    assert re.search(r"of the times 8 of 8 lie in .* of the ratios to fa3 7 of 7", done.stdout)
    store = Store(tmp_path / "h200")
    assert {environment.gpu_uuid for environment in store.environments().values()} == {"card0", "card2"}
    assert all(e.command_line.startswith("kperf fig12") for e in store.environments().values())
    assert len(store.points()) == 17 * 8
    again = kperf(*command)
    assert "16 of 16 workloads are recorded" in again.stdout
    assert len(store.points()) == 17 * 8


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_who_asked_takes_all_processes_along(tmp_path, fake_gpus, how):
    (fake_gpus / "slow-card1").touch()
    with many._quiet():  # forked from what has imported torch and has no threads
        asking = get_mp_context().Process(target=as_a_command, args=(fake_gpus, tmp_path))
        asking.start()
    while lines(tmp_path).total() < 4 or not (tmp_path / "fig12.jsonl").read_bytes().endswith(b"\n"):
        time.sleep(0.05)
        assert asking.is_alive(), (tmp_path / "stderr").read_text()
    family = [asking.pid, *(child.pid for child in psutil.Process(asking.pid).children(recursive=True))]
    begin = time.monotonic()
    if how == signal.SIGINT:
        os.killpg(asking.pid, how)  # as a terminal does
    else:
        os.kill(asking.pid, how)
    asking.join(200)
    assert soon(lambda: all(map(has_ended, family)))
    assert time.monotonic() - begin < 200  # on a busy machine; the workload under way would take longer
    assert asking.exitcode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in (tmp_path / "stderr").read_text()
    (fake_gpus / "slow-card1").unlink()
    with many.processes(gpus(0, 1)) as bench:
        measure(tmp_path, bench)
    assert lines(tmp_path) == expected(2)


def test_a_process_that_is_lost_and_one_that_takes_over_are_said_and_every_step_is_shown():
    said, shown = [], []
    progress = Progress(say=said.append, step=lambda *step: shown.append(step))
    watch = many._Watch({}, {4: SimpleNamespace(places=[PLACES[1]])}, progress)
    watch.step(many._Step(4, "compiling", "GPU 0", 71))
    watch.step(many._Step(4, "round 1 of 9", "GPU 0", 71))
    assert said == []
    watch.step(many._Step(4, "round 1 of 9", "GPU 2", 93))
    assert said.pop() == f"the process of GPU 0 ended: GPU 2 takes over {PLACES[1][1]}"
    watch.step(many._Step(4, "out of memory", "GPU 2", 93, lost=True))
    assert said == ["GPU 2: out of memory; its process is started anew"]
    assert shown == [(PLACES[1], what, gpu) for what, gpu in (
        ("compiling", "GPU 0"), ("round 1 of 9", "GPU 0"), ("round 1 of 9", "GPU 2"), ("out of memory", "GPU 2")
    )]  # fmt: skip
