"""Each implementation alone and sustained: at the power cap joules per FLOP decide, not cycles.

Taken in turn (Fig. 12) all kernels share one clock, which the power controller sets for their mixture. Alone, a kernel
that needs less energy a FLOP gets a higher clock. Both are true; this is the second.
"""

import secrets
import time
from collections.abc import Sequence

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kperf.attention.implementations import FIG12, implementations
from kperf.attention.workload import Workload
from kperf.bench import MEASURES_AGAIN
from kperf.bench.measure import Candidate, prepare_alone
from kperf.bench.points import CUBLAS, PowerPoint, PowerSample, PowerStore
from kperf.bench.reference import make_inputs
from kperf.bench.turns import CEILING_FLOPS, Ceiling
from kperf.errors import MeasurementError
from kperf.record import device
from kperf.record.store import DeviceState

_REPLAY_MS = 20.0
_CEILING_PRODUCTS = 13
"""Also about 20 ms: long enough for the CPU to ask NVML while the GPU works."""

_STATE_INTERVAL_S = 0.05


class _Alone:
    """A captured graph (of `owner`, which keeps alive what it reads), its work, and its samples."""

    def __init__(self, key: str, owner: Candidate | Ceiling, flops: int) -> None:
        self.key = key
        self.owner = owner
        self.flops = flops
        self.samples: list[PowerSample] = []

    def run(self, seconds: float) -> None:
        """Replay for so many seconds; the second half, at a steady clock and temperature, is the sample.

        Its power is what the GPU's energy counter counted between two of its steps, exact however often it steps.
        """
        self._replay_for(seconds / 2)
        begin = time.perf_counter()
        replays, states, meter = self._replay_for(seconds / 2)
        elapsed = time.perf_counter() - begin
        (start_s, start_j), (end_s, end_j) = meter[0], meter[-1]
        self.samples.append(
            PowerSample(
                tflops=replays * self.flops / elapsed / 1e12,
                power_w=(end_j - start_j) / (end_s - start_s),
                energy_j=end_j - start_j,
                energy_s=end_s - start_s,
                sm_mhz=float(np.mean([state.sm_mhz for state in states])),
                temperature_c=float(np.mean([state.temperature_c for state in states])),
            )
        )

    def _replay_for(self, seconds: float) -> tuple[int, list[DeviceState], list[tuple[float, float]]]:
        """Keeps the GPU busy without a gap: the next replay is queued before the last one is waited for.

        Gives the number of replays, the GPU's states, and when (seconds) its energy counter stepped to what (joules).
        """
        ended: list[torch.cuda.Event] = []
        states: list[DeviceState] = []
        counted, meter = device.energy_j(), []
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            self.owner.graph.replay()
            event = torch.cuda.Event()
            event.record()
            ended.append(event)
            while len(ended) > 1 and not ended[-2].query():
                if (now_j := device.energy_j()) != counted:
                    counted = now_j
                    meter.append((time.perf_counter(), counted))
            if time.perf_counter() - begin > len(states) * _STATE_INTERVAL_S:
                states.append(device.device_state())
        torch.cuda.synchronize()
        if len(meter) < 2:
            raise MeasurementError(f"the GPU's energy counter does not step within {seconds:g} s: --seconds longer")
        return len(ended), states, meter


def workloads(causal: bool) -> list[Workload]:
    """Those of Fig. 12 that are long enough for the power cap to decide: batch 16, seq_len 4096, 8192 and 16384."""
    return [Workload(batch=16, seq_len=2**n, causal=causal) for n in (12, 13, 14)]


_Turns = tuple[str, str | None, float, int]
"""An implementation, the hash of its override, seconds a turn, and passes."""


def _recorded(points: Sequence[PowerPoint], workload: Workload) -> list[set[_Turns]]:
    """What each run of a workload has."""
    runs: dict[str, set[_Turns]] = {}
    for point in points:
        if point.workload == workload:
            turns = (point.implementation, point.override_sha256, point.seconds, len(point.samples))
            runs.setdefault(point.run, set()).add(turns)
    return list(runs.values())


def measure(
    console: Console,
    store: PowerStore,
    keys: Sequence[str] | None,
    *,
    causal: bool,
    seconds: float,
    passes: int,
    fresh: bool = False,
) -> None:
    """Rotate the implementations: each pass begins one further on, so that none always follows the same one.

    What is recorded already, in this environment with these overrides, turns and passes, is left out, unless `fresh`.
    """
    with device.exclusive(), store.writer() as writer:
        environment = writer.record_environment(device.environment())
        here = [] if fresh else [point for point in writer.points if point.environment == environment]
        for workload in workloads(causal):
            chosen = [item for item in implementations(keys or FIG12) if not item.unsupported(workload)]
            hashes = {item.key: override.sha256 for item in chosen if (override := item.override(workload))}
            wanted = {(key, hashes.get(key), seconds, passes) for key in (*(item.key for item in chosen), CUBLAS)}
            if any(wanted <= run for run in _recorded(here, workload)):
                console.print(f"{workload} is recorded in this environment already: {MEASURES_AGAIN}")
                continue
            inputs = make_inputs(workload, secrets.randbits(32))
            alone = [_Alone(item.key, *prepare_alone(item, workload, inputs, _REPLAY_MS)) for item in chosen]
            alone.append(_Alone(CUBLAS, Ceiling(_CEILING_PRODUCTS), _CEILING_PRODUCTS * CEILING_FLOPS))
            left = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn(), console=console
            )
            with left:
                task = left.add_task(str(workload), total=passes * len(alone))
                for done in range(passes):
                    for place in range(len(alone)):
                        alone[(done + place) % len(alone)].run(seconds)
                        left.advance(task)
            common = {"run": secrets.token_hex(6), "environment": environment, "recorded_at": device.now()}
            writer.append(
                [
                    PowerPoint(
                        **common,
                        **workload.model_dump(),
                        implementation=each.key,
                        seconds=seconds,
                        samples=each.samples,
                        other_processes=device.other_processes(),
                        override_sha256=hashes.get(each.key),
                    )
                    for each in alone
                ]
            )
            del alone, inputs
            torch.cuda.empty_cache()
