"""What `make proof` runs of each kernel, in a process of its own: `kperf diagnose --try`, and then its fixed copy.

Called with the script, its fixed copy (or -), and the file for what comes of it. The GPU is taken in turn with others.
"""

import io
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.launches import LaunchCall, compilations_within, intercepted_launches
from kperf.console import WholeConsole
from kperf.diagnose import command
from kperf.errors import MeasurementError, UsageError
from kperf.record import bandwidth, device
from kperf.record.files import write_atomically
from kperf.trace import command as trace
from kperf.trace.capture.copies import likeness
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.kernels import TraceOptions
from kperf.trace.capture.script import Script
from kperf.trace.capture.trial import ROUNDS

SEED = 0
"""Of torch's generators before each script: a kernel and its fixed copy have the same inputs."""


def run(script: Path, fixed: Path | None, gpu: Gpu) -> dict[str, Any]:
    """The fields of `kperf.paper.proof.Outcome`."""
    begin = time.monotonic()
    trace.refuse_what_cannot_work(TraceOptions())  # compiles a kernel of its own
    with device.in_turn():
        bandwidth.measure()  # while nothing else runs; it is kept for the process
        torch.manual_seed(SEED)
        shown = WholeConsole(file=io.StringIO())
        request = command.Request(as_json=True, try_out=True)
        status = command.run_traced(shown, str(script), (), request, gpu)
        found = json.loads(shown.file.getvalue())  # type: ignore[attr-defined]
        beside, why = None, ""
        if fixed is not None:
            try:
                beside = compared(script, fixed, gpu)
            except MeasurementError as error:
                why = str(error)
    own_s = device.own_seconds()
    waited_s = time.monotonic() - own_s
    took_s = time.monotonic() - begin - waited_s
    return {
        "status": status,
        "kernels": found["kernels"],
        "fixed": beside,
        "why": why,
        "took_s": took_s,
        "waited_s": waited_s,
    }


def compared(script: Path, fixed: Path, gpu: Gpu) -> dict[str, Any]:
    """Both scripts' launches, timed in turn, after what they computed was compared.

    Raises `MeasurementError` if a script fails, or if a tensor that both call the same holds other numbers.
    """
    original, tensors = launched(script)
    changed, others = launched(fixed)
    common = [name for name, tensor in tensors.items() if name in others and others[name].shape == tensor.shape]
    for name in common:
        if likeness(others[name], tensors[name]) == "different":
            raise MeasurementError(f"{name} of the fixed {fixed.name} is not that of {script.name}")
    rounds = []
    for number in range(-1, ROUNDS):  # the first warms them up
        if number % 2:
            original_ms, fixed_ms = _timed(original, gpu), _timed(changed, gpu)
        else:
            fixed_ms, original_ms = _timed(changed, gpu), _timed(original, gpu)
        rounds.append((original_ms, fixed_ms))
    times = zip(*rounds[1:], strict=True)
    return {"compared": common, **dict(zip(("original_ms", "fixed_ms"), times, strict=True))}


def launched(script: Path) -> tuple[list[LaunchCall], dict[str, torch.Tensor]]:
    """The launches of a script that is run, and its tensors by name. Raises `MeasurementError` if it fails."""
    calls: list[LaunchCall] = []

    def note(_: CompiledKernel) -> Callable[[LaunchCall], None]:
        def noted(call: LaunchCall) -> None:
            calls.append(call)
            call()

        return noted

    torch.manual_seed(SEED)
    with intercepted_launches(note), compilations_within(device.Compiling()):
        if status := Script(str(script), ()).run():
            raise MeasurementError(f"{script.parent.name}/{script.name} ends with exit status {status}")
    if not calls:
        raise MeasurementError(f"{script.parent.name}/{script.name} launches no Triton kernel")
    names = vars(sys.modules["__main__"])
    return calls, {name: value for name, value in names.items() if isinstance(value, torch.Tensor)}


def _timed(calls: Sequence[LaunchCall], gpu: Gpu) -> float:
    """Milliseconds of launches with the host ahead of them."""
    stream = calls[0].stream
    gpu.spin(stream)
    start = gpu.mark(stream)
    for call in calls:
        call()
    return gpu.milliseconds(start, gpu.mark(stream))


def main(gpu: Gpu | None = None) -> None:
    """Write what came of a kernel as JSON; of what a user could mend, the sentence alone."""
    script, fixed, out = sys.argv[1:]
    try:
        with tempfile.TemporaryDirectory() as cache, own_cache(Path(cache)):  # two scripts may have one kernel's text
            found = run(Path(script), None if fixed == "-" else Path(fixed), gpu or Gpu())
    except (UsageError, MeasurementError) as error:
        raise SystemExit(str(error)) from None
    write_atomically(Path(out), json.dumps(found))


if __name__ == "__main__":
    main()
