"""Samples of the instructions at which warps are, taken by the GPU itself: CUPTI's PC sampling (cupti_pcsampling.h).

Proton's `pcsampling` calls the same functions. It throws out of a callback where CUPTI refuses, which ends the script's
process; it counts a sample in which no warp issued twice, and knows neither `gmma` nor `not_selected`. Hence no Proton.
"""

import ctypes
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ctypes import POINTER, byref, c_char_p, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from triton import knobs

from kperf.errors import UsageError

_SUBSCRIBED_ALREADY = 39
_FIXES = {
    35: "the driver lets nobody but administrators read the GPU's counters: load its kernel module with "
    "NVreg_RestrictProfilingToAdminUsers=0, or run with CAP_SYS_ADMIN (developer.nvidia.com/ERR_NVGPUCTRPERM)",
    _SUBSCRIBED_ALREADY: "another profiler is active in this process: end it before the first launch of a Triton "
    "kernel, or run without it",
    40: "the host of this virtual GPU does not allow it: ask its administrator to enable profiling",
    41: "a GPU in confidential computing cannot be sampled",
    43: "an instance of MIG cannot be sampled: use the whole GPU",
    45: "WSL cannot sample: run on Linux itself",
}
"""CUPTI's results (cupti_result.h), and what to do about each."""

_PERIOD, _REASONS, _HARDWARE_BUFFER, _MODE, _START_STOP, _DATA = 1, 2, 4, 5, 6, 8
"""Attributes of a configuration (CUpti_PCSamplingConfigurationAttributeType)."""
_CONTINUOUS = 1
_BUFFER_BYTES = 64 << 20
"""On the GPU; CUPTI's own choice are 512 MB."""
_PCS_AT_ONCE = 2048
_MOST_WAIT_S = 1.0
"""For the first samples: threads of CUPTI's decode them."""
_QUIET_S = 0.25
"""After the last ones there are no more: those threads wake up ten times a second (cupti_pcsampling.h)."""
_POLL_S = 0.01
_MOST_TURN_S = 10.0
"""For another thread, which samples too: a kernel of its may wait for what this thread is to launch."""
_NAME_BYTES = 128
_attaching = threading.Lock()
"""There is one CUPTI in a process."""
_REASON = re.compile(r".*stalled_(?P<reason>\w+?)(?P<not_issued>_not_issued)?")
"""CUPTI counts more beside what warps wait for: all samples (`smsp__pcsamp_sample_count`), those that were lost."""


class _StallReason(ctypes.Structure):
    _fields_ = (("reason", c_uint32), ("samples", c_uint32))


class _PcData(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("cubin_crc", c_uint64),
        ("pc_offset", c_uint64),
        ("function_index", c_uint32),
        ("pad", c_uint32),
        ("function_name", c_char_p),
        ("stall_reason_count", c_size_t),
        ("stall_reasons", POINTER(_StallReason)),
        ("correlation_id", c_uint32),
    )


class _Data(ctypes.Structure):
    _fields_ = (
        ("size", c_size_t),
        ("collect_pcs", c_size_t),
        ("total_samples", c_uint64),
        ("dropped_samples", c_uint64),
        ("pcs", c_size_t),
        ("remaining_pcs", c_size_t),
        ("range", c_uint64),
        ("pc_data", POINTER(_PcData)),
        ("other_kernels_samples", c_uint64),
        ("hardware_buffer_full", c_uint8),
    )


class _Reasons(ctypes.Structure):
    _fields_ = (("count", c_size_t), ("indices", POINTER(c_uint32)))


class _Value(ctypes.Union):
    _fields_ = (
        ("number", c_uint32),
        ("bytes", c_size_t),
        ("reasons", _Reasons),
        ("address", c_void_p),
        ("_", c_uint64 * 3),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("type", c_uint32), ("status", c_uint32), ("value", _Value))


def _parameters(*fields: tuple[str, Any]) -> type[ctypes.Structure]:
    """What a function takes of a context: its own size, a pointer that is null, the context, and `fields`."""
    first = (("size", c_size_t), ("private", c_void_p), ("context", c_void_p))
    return type("_Parameters", (ctypes.Structure,), {"_fields_": (*first, *fields)})


_OfContext = _parameters()
_ReasonCount = _parameters(("count", POINTER(c_size_t)))
_ReasonNames = _parameters(("count", c_size_t), ("indices", POINTER(c_uint32)), ("names", POINTER(c_char_p)))
_Configuration = _parameters(("count", c_size_t), ("attributes", POINTER(_Attribute)))
_GetData = _parameters(("data", c_void_p))
_Callback = ctypes.CFUNCTYPE(None, c_void_p, c_uint32, c_uint32, c_void_p)


@dataclass(frozen=True)
class PcSample:
    """Samples of warps whose next instruction is at `address` of a kernel, and which wait for `reason` until it issues.

    `reason`: in CUPTI's words without their prefix, `long_scoreboard`; `selected`: it issues. not_issued: of `samples`
    those in which no warp of the scheduler issued.
    """

    address: int
    reason: str
    samples: int
    not_issued: int


class RefusedError(UsageError):
    """Nothing can be sampled in this process: the sentence says why and what to do."""


class Sampler:
    """Samples the current CUDA context from `start` to `stop`; made by `sampling`."""

    def __init__(self, context: int) -> None:
        """PC sampling of `context` is enabled."""
        self._context = context
        each, self._reasons = self._read_reasons()
        self._counts = (_StallReason * (each * _PCS_AT_ONCE))()
        self._pcs = (_PcData * _PCS_AT_ONCE)()
        for place, pc in enumerate(self._pcs):
            pc.stall_reasons = ctypes.cast(byref(self._counts, place * each * 8), POINTER(_StallReason))
        self._data = _Data(size=ctypes.sizeof(_Data), collect_pcs=_PCS_AT_ONCE, pc_data=self._pcs)
        self._indices = (c_uint32 * len(self._reasons))(*self._reasons)

    def start(self, period: int) -> None:
        """Sample a warp of each SM once in 2 ** `period` cycles, from 5 to 31, from now on."""
        values = {
            _REASONS: _Value(reasons=_Reasons(len(self._indices), self._indices)),
            _PERIOD: _Value(number=period),
            _HARDWARE_BUFFER: _Value(bytes=_BUFFER_BYTES),
            _DATA: _Value(address=ctypes.addressof(self._data)),
            _START_STOP: _Value(number=1),
            _MODE: _Value(number=_CONTINUOUS),
        }
        attributes = (_Attribute * len(values))(*(_Attribute(kind, 0, value) for kind, value in values.items()))
        self._call("SetConfigurationAttribute", _Configuration, count=len(values), attributes=attributes)
        self._call("Start", _OfContext)

    def stop(self, kernel: str) -> tuple[list[PcSample], int]:
        """What was sampled of the kernels of this name, by address; and how many samples of all kernels were lost.

        To be called when the kernels are over. Raises `UsageError` if the GPU's buffer was too small.
        """
        self._call("Stop", _OfContext)
        counts: Counter[tuple[int, str, bool]] = Counter()
        dropped, last = 0, time.monotonic()
        while True:  # what is there already, and then what CUPTI's threads decode, piece by piece
            for pc in self._pcs[: self._data.pcs]:
                last = time.monotonic()
                if pc.function_name == kernel.encode():
                    for stall in pc.stall_reasons[: pc.stall_reason_count]:
                        if stall.reason in self._reasons:
                            counts[pc.pc_offset, *self._reasons[stall.reason]] += stall.samples
            dropped += self._data.dropped_samples
            if time.monotonic() - last > (_QUIET_S if counts and not self._data.remaining_pcs else _MOST_WAIT_S):
                break
            if not self._data.pcs:
                time.sleep(_POLL_S)
            self._read()
        if self._data.remaining_pcs:
            raise UsageError(f"CUPTI gave no samples of {self._data.remaining_pcs} instructions: run it again")
        places = sorted({(address, reason) for address, reason, _ in counts})
        samples = [PcSample(*place, counts[*place, False], counts[*place, True]) for place in places]
        return [sample for sample in samples if sample.samples], dropped

    def _read(self) -> None:
        """Let CUPTI fill the buffer; of what it leaves as it was, nothing counts twice."""
        self._data.pcs = self._data.dropped_samples = self._data.hardware_buffer_full = 0
        try:
            self._call("GetData", _GetData, data=ctypes.addressof(self._data))
        except UsageError:
            if not self._data.hardware_buffer_full:
                raise
        if self._data.hardware_buffer_full:
            raise UsageError("the GPU's buffer of samples was full")

    def _read_reasons(self) -> tuple[int, dict[int, tuple[str, bool]]]:
        """The number of counters; index -> the reason that one counts, and whether only where no warp issued.

        Raises `UsageError` if none counts what warps wait for.
        """
        count = c_size_t()
        self._call("GetNumStallReasons", _ReasonCount, count=ctypes.pointer(count))
        texts = [ctypes.create_string_buffer(_NAME_BYTES) for _ in range(count.value)]
        indices = (c_uint32 * count.value)()
        names = (c_char_p * count.value)(*(c_char_p(ctypes.addressof(text)) for text in texts))
        self._call("GetStallReasons", _ReasonNames, count=count.value, indices=indices, names=names)
        matches = {index: _REASON.fullmatch(text.value.decode()) for index, text in zip(indices, texts, strict=True)}
        reasons = {
            index: (match["reason"], match["not_issued"] is not None) for index, match in matches.items() if match
        }
        if not reasons:
            raise UsageError("this CUPTI names nothing that warps wait for: name a newer one in TRITON_CUPTI_LIB_PATH")
        return count.value, reasons

    def _call(self, name: str, parameters: type[ctypes.Structure], **fields: Any) -> None:
        given = parameters(size=ctypes.sizeof(parameters), context=self._context, **fields)
        _checked(f"cuptiPCSampling{name}", byref(given))


def current_context() -> int:
    """The CUDA context of this thread. Raises `RefusedError` where it can be seen at once that nothing is sampled."""
    if torch.autograd.profiler._is_profiler_enabled:  # any thread's; it has a CUPTI of its own, which does not see ours
        raise RefusedError(_FIXES[_SUBSCRIBED_ALREADY])
    context = c_void_p()
    cuda = _library("libcuda.so.1", "there is no driver of NVIDIA's")
    if cuda.cuCtxGetCurrent(byref(context)) or not context.value:
        raise RefusedError("this thread has no CUDA context")
    _cupti()
    return context.value


@contextmanager
def sampling() -> Iterator[Sampler]:
    """Within it CUPTI is attached to this process, and learns of the kernels that are loaded; then all is as before.

    Nothing is to be timed within it. Raises `RefusedError` where nothing can be sampled, and `UsageError` if another
    thread samples for long.
    """
    context = current_context()
    enabled = _OfContext(size=ctypes.sizeof(_OfContext), context=context)
    with ExitStack() as stack:
        if not _attaching.acquire(timeout=_MOST_TURN_S):
            raise UsageError("another thread samples a kernel all the while: choose one with --kernel")
        stack.callback(_attaching.release)
        try:
            subscriber, callback = c_void_p(), _Callback(lambda *_: None)
            _checked("cuptiSubscribe", byref(subscriber), callback, None)
            stack.callback(_cupti().cuptiFinalize)
            stack.callback(_cupti().cuptiUnsubscribe, subscriber)
            _checked("cuptiPCSamplingEnable", byref(enabled))
            stack.callback(_cupti().cuptiPCSamplingDisable, byref(enabled))
            sampler = Sampler(context)
        except UsageError as error:
            raise RefusedError(str(error)) from None
        yield sampler


def _checked(name: str, *arguments: Any) -> None:
    """Call a function of CUPTI's. Raises `UsageError` if it refuses."""
    code = getattr(_cupti(), name)(*arguments)
    if code:
        text = c_char_p()
        _cupti().cuptiGetResultString(code, byref(text))
        words = (text.value or b"an error").decode()
        raise UsageError(_FIXES.get(code) or f"{name} gives {words}: try a newer driver")


@cache
def _cupti() -> ctypes.CDLL:
    path = Path(knobs.proton.cupti_lib_dir) / "libcupti.so"
    missing = "this Triton comes without CUPTI: name the folder of libcupti.so in TRITON_CUPTI_LIB_PATH"
    library = _library(str(path), missing)
    if not hasattr(library, "cuptiPCSamplingStart"):
        raise RefusedError(f"{path} is too old to sample: name the folder of a newer one in TRITON_CUPTI_LIB_PATH")
    return library


def _library(name: str, missing: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise RefusedError(missing) from None
