"""Kernels lowered no further than their TTGIR, for tests that read no machine code: LLVM and ptxas take seconds each.

What a launcher reads is in the metadata; of shared memory it says that none is needed.
"""

from pathlib import Path

from triton import knobs

from kperf.compat.triton.modules import allocate_warp_groups

FOLDER = Path(knobs.cache.dir).with_name("lowered")
"""A cache of their own, that all tests share: nobody is to take such a kernel for one with machine code."""


def install(monkeypatch):
    """What is compiled for a GPU of NVIDIA ends from now on after its TTGIR; the later texts are empty."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(FOLDER))
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", _no_machine_code)


def _no_machine_code(backend, stages, options, language, capability):
    stages |= {"llir": _metadata_alone} | dict.fromkeys(("ptx", "cubin"), lambda text, _: text)


def _metadata_alone(module, metadata):
    allocate_warp_groups(module)
    metadata |= dict.fromkeys(("shared", "tmem_size", "global_scratch_size", "profile_scratch_size"), 0)
    metadata |= dict.fromkeys(("global_scratch_align", "profile_scratch_align"), 1)
    metadata |= {"name": module.get_entry_func_name(), "num_warps": module.get_int_attr("ttg.total-num-warps")}
    return ""
