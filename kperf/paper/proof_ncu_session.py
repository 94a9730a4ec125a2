"""What `kperf proof --beside-ncu` runs under ncu: each script once, and then its last launch again, which ncu profiles.

Called with the seconds after which no script begins, the file for its answers (`proof_ncu.Answer`, a line each) and the
scripts. The GPU is taken in turn.
"""

import contextlib
import gc
import io
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from kperf.errors import MeasurementError, first_line
from kperf.paper.proof_ncu import Answer
from kperf.paper.proof_session import launched
from kperf.record import device


class Profiler:
    """What ncu waits for, and the GPU that it profiles."""

    def settle(self) -> None:
        """Wait for all launches, whose errors show here; torch gives back what it keeps, for ncu copies all memory."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    @contextlib.contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Launches within it are profiled, under that name."""
        torch.cuda.nvtx.range_push(name)
        torch.cuda.cudart().cudaProfilerStart()
        try:
            yield
            torch.cuda.synchronize()
        finally:
            torch.cuda.cudart().cudaProfilerStop()
            torch.cuda.nvtx.range_pop()


def profiled(script: Path, profiler: Profiler) -> Answer:
    """Run a script, and profile its last launch: of an autotuned kernel the one of the best configuration.

    Raises `RuntimeError` for an error of the GPU, after which nothing else can run in this process.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            calls, _ = launched(script)
    except MeasurementError as error:
        profiler.settle()
        last = (errors.getvalue().strip().splitlines() or [str(error)])[-1]
        return Answer(name=script.stem, is_over=True, why=f"the script failed: {last}")
    profiler.settle()
    begin = time.monotonic()
    with profiler.on(script.stem):
        calls[-1]()
    return Answer(name=script.stem, is_over=True, took_s=time.monotonic() - begin)


def main(profiler: Profiler | None = None) -> None:
    """Write an answer as a script begins, and as it ends; end when time is over, or at the first error of the GPU."""
    begin_within_s = float(sys.argv[1])
    out, *scripts = map(Path, sys.argv[2:])
    with device.in_turn(), out.open("a") as answers:
        begin = time.monotonic()

        def write(answer: Answer) -> None:
            answers.write(f"{answer.model_dump_json()}\n")
            answers.flush()
            os.fsync(answers.fileno())

        for number, script in enumerate(scripts):
            if number and time.monotonic() - begin > begin_within_s:
                break
            write(Answer(name=script.stem, is_over=False))
            try:
                write(profiled(script, profiler or Profiler()))
            except RuntimeError as error:
                write(Answer(name=script.stem, is_over=True, why=f"the GPU failed: {first_line(error)}"))
                break


if __name__ == "__main__":
    main()
