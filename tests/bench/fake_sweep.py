"""A small sweep over GPUs that are none (`fake_process`), asked for by this process or by one of its own."""

import atexit
import os
import sys
from pathlib import Path

import dask

from kperf.attention.implementations import implementations
from kperf.attention.workload import Workload
from kperf.bench import many
from kperf.bench.points import Store
from kperf.bench.spread import Numbered
from kperf.bench.sweep import Progress, run_sweep
from kperf.record.machine import Gpu

KEYS = ("fa3", "triton")
PLACES = [("seq_len", Workload(batch=1, seq_len=128 * n)) for n in range(1, 10)]
GROUPS = [[place] for place in PLACES]


def gpus(*numbers):
    return [Numbered(n, Gpu("NVIDIA H200", (9, 0), mig=False, processes=0, uuid=f"card{n}")) for n in numbers]


def faked(folder):
    many._IMPORTED_ONCE = ["kperf.bench.many", "tests.bench.fake_process"]  # or each would import torch
    return dask.config.set(
        {
            "distributed.nanny.environ": {"KPERF_FAKE_SWEEP": str(folder)},
            "distributed.worker.preload": ["tests.bench.fake_process"],
        }
    )


def measure(results, bench, groups=GROUPS, **options):
    options = {"progress": Progress()} | options
    run_sweep(groups, implementations(KEYS), Store(results), figure="fig12", rounds=10, bench=bench, **options)


def as_a_command(folder: Path, results: Path) -> None:
    """The head of a session, which ends as Python does; `results` gets its standard error."""
    os.setsid()
    with (results / "stderr").open("w") as stderr:
        os.dup2(stderr.fileno(), 2)
    try:
        with faked(folder), many.processes(gpus(0, 1)) as bench:
            measure(results, bench)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not
