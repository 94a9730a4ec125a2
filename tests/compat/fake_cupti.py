"""A CUPTI that is not there: `fake_cupti.c`, built from the header in Triton's wheel, in the place of libcupti.

Structures of `kperf.compat.cupti` that lie otherwise than NVIDIA's would be read and written wrong here too.
"""

import ctypes
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
import triton

from kperf.compat import cupti

INCLUDE = Path(triton.__file__).parent / "backends/nvidia/include"
REASONS = {"long_scoreboard": 0, "long_scoreboard_not_issued": 1, "not_selected": 2, "gmma": 3, "selected": 4}
REFUSED, SUBSCRIBED = 35, 39
DETACHED, STARTED = 0, 4


@cache
def library() -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not (INCLUDE / "cupti_pcsampling.h").is_file():
        pytest.skip("to build a fake CUPTI takes a C compiler and Triton's headers")
    built = Path(tempfile.mkdtemp(prefix="kperf-fake-cupti-")) / "libcupti.so"
    source = Path(__file__).with_name("fake_cupti.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-I", INCLUDE, source, "-o", built], check=True)
    loaded = ctypes.CDLL(str(built))
    shutil.rmtree(built.parent)
    return loaded


class Fake:
    """What a test says to it, and what it saw."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded
        loaded.fake_reset()

    def add(self, kernel: str, address: int, reason: str, samples: int) -> None:
        self._loaded.fake_add(kernel.encode(), ctypes.c_uint64(address), REASONS[reason], samples)

    def forget_samples(self) -> None:
        self._loaded.fake_reset_samples()

    def refuse(self, function: str, code: int) -> None:
        self._loaded.fake_refuse(function.encode(), code)

    def drop(self, samples: int) -> None:
        self._loaded.fake_drop(ctypes.c_uint64(samples))

    def fill(self) -> None:
        self._loaded.fake_fill()

    def keep(self, instructions: int) -> None:
        self._loaded.fake_keep(ctypes.c_size_t(instructions))

    def decode_by(self, instructions: int) -> None:
        self._loaded.fake_decode_by(ctypes.c_size_t(instructions))

    def wait(self, reads: int) -> None:
        self._loaded.fake_wait(reads)

    @property
    def state(self) -> int:
        return int(self._loaded.fake_state())

    @property
    def period(self) -> int:
        return int(self._loaded.fake_period())

    @property
    def finalized(self) -> int:
        return int(self._loaded.fake_finalized())


def install(monkeypatch: pytest.MonkeyPatch) -> Fake:
    loaded = library()
    cupti._cupti.cache_clear()
    monkeypatch.setattr(cupti, "_library", lambda *_: loaded)
    monkeypatch.setattr(cupti, "_QUIET_S", 0.03)
    return Fake(loaded)
