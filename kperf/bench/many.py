"""A sweep over several GPUs, one process each, through dask.distributed: for its nannies, which start a process that
died anew while its work goes to the others, and because a scheduler's address is all that other hosts need. (Ray does
the same with a wheel of 79 MB; dask's two have 2.5.)

What is the engine's: processes, their death, messages. What is ours: a task is a group of places, whole on one GPU; as
many tasks are under way as there are GPUs, the dearest first; all is written by the one process that asked. Nothing of
the engine that samples or limits the processes is left on while they measure.
"""

import asyncio
import functools
import logging
import os
import platform
import queue
import signal
import tempfile
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

import dask
from distributed import Client, KilledWorker, Nanny, Scheduler, Security, SpecCluster, WorkerPlugin, get_worker
from distributed.utils import get_mp_context

from kperf.attention.implementations import implementations
from kperf.bench.points import Figure
from kperf.bench.spread import Numbered
from kperf.bench.sweep import Asked, Measured, Progress, Task, measure_task
from kperf.errors import MeasurementError, UsageError, kind_and_line
from kperf.record import device
from kperf.record.store import Environment

_SETTINGS = {
    "distributed.worker.profile.enabled": False,  # would stop the measuring thread a hundred times a second
    "distributed.admin.system-monitor.gil.enabled": False,  # would poll a thousand times a second
    "distributed.admin.system-monitor.interval": "1 h",
    "distributed.diagnostics.nvml": False,
    "distributed.worker.http.routes": [],
    "distributed.scheduler.http.routes": [],
    "distributed.nanny.pre-spawn-environ": {},  # the environment is that of one process alone
    "distributed.worker.multiprocessing-method": "forkserver",  # torch is imported once, not by each and once more
    "distributed.scheduler.allowed-failures": 2,
    "distributed.scheduler.work-stealing-interval": "200 ms",
    "distributed.comm.timeouts.connect": "10 s",
    "distributed.deploy.lost-worker-timeout": "60 s",
}
_POLL_S = 0.5
_STEP_EVERY_S = 1.0
"""How often a process tells of its rounds: more would be work beside the measurement."""
_PATIENCE_S = 60.0
"""How long a process may take to come back, which asks for its GPU, before that counts as lost."""
_CONNECT_S = 10.0
_CLOSE_S = 0.5
"""How long processes may take to end by themselves: they have nothing to keep."""
_STEPS = "kperf-steps"
_IMPORTED_ONCE = [__name__]
"""Modules of the process from which those that measure are forked."""


@dataclass(frozen=True)
class _Order:
    """A task as it travels; implementations by their keys, for they are functions."""

    number: int
    task: Task
    keys: tuple[str, ...]
    figure: Figure
    rounds: int


@dataclass(frozen=True)
class _Step:
    """What a process is doing, of which order; `lost` if that is its end."""

    number: int
    activity: str
    gpu: str
    process: int
    lost: bool = False


_held = ExitStack()
"""What this process holds until it ends: its GPU's lock."""


@functools.cache
def _this_card() -> Environment:
    """Of a process with one GPU: take the GPU's lock for good, and say what it is."""
    _held.enter_context(device.exclusive())
    return device.environment()


class _OneGpu(WorkerPlugin):  # type: ignore[misc]
    """What a process does before it says that it is there: without its GPU it never does."""

    def setup(self, worker: Any) -> None:
        """Raises `UsageError` while another process measures on its GPU, `MeasurementError` if that does not answer."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # at a terminal it is for the process that asked
        try:
            _this_card()
        except UsageError:
            raise
        except Exception as error:  # whatever torch, NVML or the driver raise
            raise MeasurementError(f"{worker.name} cannot be used: {kind_and_line(error)}") from None


def _ready(dask_worker: Any) -> tuple[str, Environment]:
    """In a process with one GPU: its name and what it is."""
    return dask_worker.name, _this_card()


def _measure(order: _Order) -> Measured:
    """In a process with one GPU: an order, all of it in turn.

    A broken context cannot be used again: the process ends with it, and what follows is what follows on any death.
    """
    worker = get_worker()
    reported_at = 0.0

    def tell(activity: str, lost: bool = False) -> None:
        worker.log_event(_STEPS, {"step": asdict(_Step(order.number, activity, worker.name, os.getpid(), lost))})

    def on_step(activity: str) -> None:
        nonlocal reported_at
        if not activity.startswith("round") or time.monotonic() - reported_at > _STEP_EVERY_S:
            reported_at = time.monotonic()
            tell(activity)

    on_step("starting")
    asked = Asked(implementations(order.keys), order.figure, order.rounds)
    try:
        return replace(measure_task(order.task, asked, _this_card(), on_step), gpu=worker.name)
    except MeasurementError as error:
        tell(str(error), lost=True)
        time.sleep(1.0)  # until that is sent
        os._exit(1)


class _Nanny(Nanny):  # type: ignore[misc]
    """Ends its process without the engine's patience of four seconds: one that measures does not hear."""

    async def kill(self, timeout: float = 5, reason: str = "nanny-kill") -> None:
        """Ask it to end, and make it."""

        def make_it() -> None:
            with suppress(ProcessLookupError):
                if self.pid:
                    os.kill(self.pid, signal.SIGKILL)

        making = asyncio.get_running_loop().call_later(_CLOSE_S, make_it)
        try:
            await super().kill(timeout, reason)
        finally:
            making.cancel()


class Processes:
    """GPUs with a process each, as a sweep measures on them (`sweep.Bench`)."""

    def __init__(self, client: Client, begin: float) -> None:
        """`begin`: when starting began, by the monotonic clock. Raises `UsageError` if GPUs are not alike."""
        self._client = client
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        answers = client.run(_ready, workers=list(_gpus(client)))
        self.names = {environment.gpu_uuid: name for name, environment in answers.values()}
        self.environments = [_asked_here(environment) for _, environment in sorted(answers.values(), key=itemgetter(0))]
        self._require_alike(self.environments)
        client.subscribe_topic(_STEPS, lambda event: self._inbox.put(_Step(**event[1]["step"])))
        self.start_s = time.monotonic() - begin

    def measure(self, tasks: Sequence[Task], asked: Asked, progress: Progress) -> Generator[Measured, None, None]:
        """Each task once, first those that belong to one GPU, then the dearest.

        Raises `MeasurementError` if no GPU is left, and at the end if a task ended every process that began it.
        """
        keys = tuple(implementation.key for implementation in asked.implementations)
        first = sorted(tasks, key=lambda task: (task.gpu_uuid is None, -task.cost))
        waiting = deque(_Order(n, task, keys, asked.figure, asked.rounds) for n, task in enumerate(first))
        watch = _Watch(self.names, {order.number: order.task for order in waiting}, progress)
        under_way: dict[Any, _Order] = {}
        given_up: list[str] = []
        try:
            while waiting or under_way:
                while waiting and len(under_way) < len(self.environments):
                    order = waiting.popleft()
                    under_way[self._submit(order)] = order
                news = self._news()
                if isinstance(news, _Step):
                    watch.step(news)
                elif news in under_way:
                    order = under_way.pop(news)
                    if news.status == "finished":
                        yield self._checked(news.result())
                    else:
                        given_up.append(watch.given_up(order, news))
                for future in watch.gone(partial(_gpus, self._client), under_way):
                    under_way.pop(future)
                    future.cancel()
        finally:
            self._client.cancel(list(under_way), force=True)
        if given_up:
            others = f" (and {len(given_up) - 1} more)" if len(given_up) > 1 else ""
            raise MeasurementError(f"{given_up[0]}{others}; what was recorded is kept")

    def _submit(self, order: _Order) -> Any:
        resources = {"GPU": 1} | ({order.task.gpu_uuid: 1} if order.task.gpu_uuid else {})
        future = self._client.submit(_measure, order, key=f"measure-{os.urandom(6).hex()}", resources=resources)
        future.add_done_callback(self._inbox.put)
        return future

    def _news(self) -> Any:
        """A step, a task that ended, or None if nothing happens for a while."""
        try:
            return self._inbox.get(timeout=_POLL_S)
        except queue.Empty:
            return None

    def _checked(self, measured: Measured) -> Measured:
        environment = _asked_here(measured.environment)
        self._require_alike([self.environments[0], environment])
        return replace(measured, environment=environment)

    def _require_alike(self, environments: Sequence[Environment]) -> None:
        first, *others = environments
        for other in others:
            for name, here in first.setting.items():
                if (there := other.setting[name]) != here:
                    raise UsageError(
                        f"{name} of {self.names.get(other.gpu_uuid, other.gpu_uuid)} is {there} and of "
                        f"{self.names[first.gpu_uuid]} {here}, and one figure needs one: make them alike, or choose "
                        "others with --gpus"
                    )


class _Watch:
    """Tells what becomes of tasks and processes."""

    def __init__(self, names: dict[str, str], tasks: dict[int, Task], progress: Progress) -> None:
        self._names = names
        self._tasks = tasks
        self._progress = progress
        self._by: dict[int, _Step] = {}
        self._lost: dict[int, str] = {}
        self._seen = dict.fromkeys(names, time.monotonic())
        self._asked_at = time.monotonic()

    def step(self, step: _Step) -> None:
        """Show it; say so if another process than before has the task, for that one died."""
        before = self._by.get(step.number)
        place = self._tasks[step.number].places[0]
        if step.lost:
            self._lost[step.number] = step.activity
            self._progress.say(f"{step.gpu}: {step.activity}; its process is started anew")
        elif before is not None and before.process != step.process:
            self._progress.say(f"the process of {before.gpu} ended: {step.gpu} takes over {place[1]}")
        self._by[step.number] = step
        self._progress.step(place, step.activity, step.gpu)

    def given_up(self, order: _Order, future: Any) -> str:
        """A sentence about a task that has no points. Raises what it raised, unless that is the end of its process."""
        workload = order.task.places[0][1]
        if future.status == "cancelled":
            raise MeasurementError("the scheduler is gone; what was recorded is kept")
        error = future.exception()
        if not isinstance(error, KilledWorker):
            raise error
        sentence = f"{workload} ended every process that began it"
        if order.number in self._lost:
            sentence += f", the last with: {self._lost[order.number]}"
        self._progress.say(f"{sentence}; the others go on")
        return sentence

    def gone(self, workers: Any, under_way: dict[Any, _Order]) -> list[Any]:
        """The tasks of GPUs that do not come back and that no other may do.

        Raises `MeasurementError` if no GPU is left at all.
        """
        now = time.monotonic()
        if now - self._asked_at < _POLL_S:
            return []
        self._asked_at = now
        for uuid in set().union(*workers().values()):
            self._seen[uuid] = now
        if now - max(self._seen.values()) > _PATIENCE_S:
            raise MeasurementError(
                f"no process is left on any of the {len(self._names)} GPUs: what was recorded is kept, and the same "
                "command goes on from there"
            )
        abandoned = []
        for future, order in under_way.items():
            uuid = order.task.gpu_uuid
            if uuid is not None and now - self._seen[uuid] > _PATIENCE_S:
                self._progress.say(f"{self._names[uuid]} does not come back: what compares it is not measured")
                abandoned.append(future)
        return abandoned


@contextmanager
def processes(chosen: Sequence[Numbered]) -> Iterator[Processes]:
    """A process for each of these GPUs of this machine; all of them have ended when this ends, however it does.

    Raises `UsageError` if another process of this program measures on one of them.
    """
    begin = time.monotonic()
    with _quiet(), tempfile.TemporaryDirectory(prefix="kperf-gpus-") as scratch:
        # Others on this machine reach the port, too, and would have programs of theirs run.
        among_us = {"security": Security.temporary(), "protocol": "tls", "host": "127.0.0.1"}
        workers = {
            f"GPU {card.number}": {"cls": _Nanny, "options": _options(card, f"GPU {card.number}", scratch) | among_us}
            for card in chosen
        }
        scheduler = {
            "cls": Scheduler,
            "options": {"dashboard": False, "dashboard_address": "127.0.0.1:0"} | among_us,
        }
        with _sentences():
            cluster = SpecCluster(workers, scheduler, security=among_us["security"], silence_logs=False)
        with cluster, Client(cluster) as client:
            yield Processes(client, begin)


@contextmanager
def joined(address: str) -> Iterator[Processes]:
    """The GPUs that joined a scheduler (`serve`); they stay when this ends, started anew if they are at work then.

    Raises `UsageError` if no scheduler answers or no GPU has joined it, or another process measures on one of them.
    """
    begin = time.monotonic()
    with _quiet():
        try:
            client = Client(address, timeout=_CONNECT_S)
        except OSError:
            raise _no_scheduler(address) from None
        with client:
            if not _gpus(client):
                raise UsageError(f"no GPU has joined {address}: `kperf worker {address}` on each host joins its GPUs")
            bench = Processes(client, begin)
            try:
                yield bench
            except BaseException:
                client.restart_workers(list(_gpus(client)), timeout=_CONNECT_S, raise_for_error=False)
                raise


def serve(address: str, chosen: Sequence[Numbered]) -> None:
    """Join GPUs of this machine to a scheduler, with a process each, until Ctrl-C or the scheduler's end.

    Raises `UsageError` if none answers, or another process measures on one of them.
    """

    async def run() -> None:
        with tempfile.TemporaryDirectory(prefix="kperf-gpus-") as scratch:
            host = platform.node()
            nannies = [_Nanny(address, **_options(card, f"{host}, GPU {card.number}", scratch)) for card in chosen]
            try:
                await asyncio.gather(*nannies)
                await asyncio.gather(*(nanny.finished() for nanny in nannies))
            finally:
                await asyncio.gather(*(nanny.close() for nanny in nannies))

    with _quiet(), _sentences(address):
        asyncio.run(run())


def _gpus(client: Client) -> dict[str, set[str]]:
    """The processes that are there, by address, and the UUIDs of their GPUs."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    resources = {address: set(worker["resources"]) for address, worker in workers.items()}
    return {address: names - {"GPU"} for address, names in resources.items() if "GPU" in names}


def _options(card: Numbered, name: str, scratch: str) -> dict[str, Any]:
    """Of a nanny whose process sees one GPU, by its UUID: numbers depend on who counts."""
    return {
        "name": name,
        "nthreads": 1,
        "env": {"CUDA_VISIBLE_DEVICES": f"GPU-{card.gpu.uuid}"},
        "resources": {"GPU": 1, card.gpu.uuid: 1},
        "memory_limit": 0,
        "local_directory": scratch,
        "plugins": [_OneGpu()],
        "dashboard": False,
        "dashboard_address": "127.0.0.1:0",
        "silence_logs": logging.CRITICAL,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine's settings, and none of its log: what there is to say is printed here."""
    logger = logging.getLogger("distributed")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with dask.config.set(_SETTINGS):
            get_mp_context().set_forkserver_preload(_IMPORTED_ONCE)
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _sentences(address: str = "") -> Iterator[None]:
    """What a new process reported of its GPU, which the engine raises as the cause of a failure of its own.

    Raises `UsageError` if the cause is that no scheduler answers at `address`.
    """
    try:
        yield
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UsageError | MeasurementError):
                raise cause from None
            if address and isinstance(cause, OSError):
                raise _no_scheduler(address) from None
            cause = cause.__cause__ or cause.__context__
        raise


def _no_scheduler(address: str) -> UsageError:
    return UsageError(f"no scheduler answers at {address}: `dask scheduler` starts one")


def _asked_here(environment: Environment) -> Environment:
    """With the command that asked for the measurement."""
    return environment.model_copy(update={"command_line": device.command_line()})
