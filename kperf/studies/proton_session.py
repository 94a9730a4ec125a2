"""The process that `make proton` profiles: every implementation in a scope of its own, a session for each mask.

`python -m kperf.studies.proton_session KEYS LAUNCHES FOLDER` writes FOLDER/full.hatchet, causal.hatchet and
reasons.json, which says why an implementation is in neither.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton.profiler as proton
from torch.nn.attention import SDPBackend

from kperf.attention.implementations import IMPLEMENTATIONS, Implementation
from kperf.attention.kernels.attn_fwd import attn_fwd
from kperf.attention.libraries import Output, sdpa
from kperf.attention.workload import Workload
from kperf.bench.points import MAX_REL_ERROR
from kperf.bench.reference import errors, expected_of, make_inputs
from kperf.errors import first_line
from kperf.record.files import write_atomically

WORKLOADS = {
    "full": Workload(batch=4, seq_len=4096),
    "causal": Workload(batch=4, seq_len=4096, causal=True),
}
"""Session -> what is computed in it."""
_WARM = 3
_SEED = 14


SDPA = {
    item.key: item
    for item in (
        Implementation("sdpa_flash", "SDPA flash", partial(sdpa, SDPBackend.FLASH_ATTENTION)),
        Implementation("sdpa_cudnn", "SDPA cuDNN", partial(sdpa, SDPBackend.CUDNN_ATTENTION)),
        IMPLEMENTATIONS["sdpa_efficient"],
        IMPLEMENTATIONS["sdpa_math"],
    )
}
"""Every back end of torch's own attention."""

KEYS = ("fa3", "vanilla", "improved", "improved_plus", *SDPA)
"""Those of Fig. 12 that want no autotuning; its FA2 and cuDNN are SDPA's flash and cuDNN."""
ALL = IMPLEMENTATIONS | SDPA


def bytes_of(workload: Workload) -> int:
    """q, k, v and o, two bytes a number, each moved once."""
    return 4 * 2 * workload.rows * workload.head_dim


def described(workload: Workload, grid: tuple[int, ...], metadata: Any, _arguments: dict[str, Any]) -> dict[str, Any]:
    """What Proton's launch hook asks of a kernel: its name with its launch's configuration, and its operations."""
    blocks = "x".join(map(str, grid))
    name = f"{metadata.name}_<grid:{blocks}>_<warps:{metadata.num_warps}>_<shared:{metadata.shared}>"
    return {"name": name, "flops16": workload.flops}


def profile(name: str, keys: list[str], launches: int, folder: Path) -> dict[str, str]:
    """A session of one workload; returns why an implementation is not in it."""
    workload = WORKLOADS[name]
    inputs = make_inputs(workload, _SEED)
    expected = expected_of(workload, inputs)
    calls: dict[str, Callable[[], Output]] = {}
    reasons: dict[str, str] = {}
    for key in keys:
        item = ALL[key]
        reason = item.unsupported(workload) or item.missing()
        try:
            if reason is None:
                call = item.bind(inputs.q, inputs.k, inputs.v, workload.causal, workload.sm_scale)
                error, _lse = errors(call(), expected)
                calls[key] = call
                if not error <= MAX_REL_ERROR[workload.dtype]:
                    reason = f"{item.label} is off by {error:.2e}"
        except torch.AcceleratorError:
            raise
        except Exception as error:  # whatever a library raises is this implementation's failure
            reason = f"{item.label} failed: {first_line(error)[:200]}"
        if reason is not None:
            calls.pop(key, None)
            reasons[key] = reason
    attn_fwd.launch_metadata = partial(described, workload)
    session = proton.start(str(folder / name), backend="cupti", hook="triton")
    for key, call in calls.items():
        proton.deactivate(session)
        for _ in range(_WARM):
            call()
        torch.cuda.synchronize()
        proton.activate(session)
        with proton.scope(
            key, {"flops": float(launches * workload.flops), "bytes": float(launches * bytes_of(workload))}
        ):
            for _ in range(launches):
                call()
        torch.cuda.synchronize()
    proton.finalize(session)
    return reasons


def main(keys: str, launches: str, folder: str) -> None:
    """Both sessions."""
    reasons = {name: profile(name, keys.split(","), int(launches), Path(folder)) for name in WORKLOADS}
    write_atomically(Path(folder, "reasons.json"), json.dumps(reasons))


if __name__ == "__main__":
    main(*sys.argv[1:])
