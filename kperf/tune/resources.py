"""What the plain Triton kernels here need on NVIDIA's sm_90a and on AMD's gfx942, from compiling alone.

Those are the stock kernel of attention in its configurations, `attn_fwd`, and what the scripts of examples/ launch.
Gluon kernels are left out: their layouts are Hopper's.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kperf.arch import GFX942, SM_90A
from kperf.attention.configs import Config
from kperf.attention.kernels import stock
from kperf.attention.kernels.attn_fwd import attn_fwd
from kperf.attention.variants import FULL_AND_CAUSAL
from kperf.attention.workload import HEAD_DIMS
from kperf.compat.triton import ASTSource
from kperf.compat.triton.sources import is_gluon
from kperf.errors import MeasurementError
from kperf.ir import compile as compiler
from kperf.ir import offline
from kperf.ir.amd import AmdResources, amd_resources
from kperf.ir.compile import Resources, compile_for, options_of

Scripts = Iterable[tuple[Path, Sequence[str]]]
"""Scripts and their arguments."""


@dataclass(frozen=True)
class Kernel:
    """A plain Triton kernel with its compile-time arguments and options; `origin`: where it is from."""

    origin: str
    source: ASTSource
    num_warps: int
    num_stages: int

    @property
    def choices(self) -> str:
        """The constexprs that are numbers, BLOCK_M=128 and so on."""
        names = self.source.fn.arg_names
        constants = {names[place]: value for (place, *_), value in self.source.constants.items()}
        return " ".join(f"{name}={int(value)}" for name, value in constants.items() if isinstance(value, int))


@dataclass(frozen=True)
class Needs:
    """A kernel's resources on both."""

    kernel: Kernel
    nvidia: Resources
    amd: AmdResources


def stock_kernel(config: Config, head_dim: int, causal: bool) -> Kernel:
    """The stock kernel of attention in one configuration, bfloat16."""
    return Kernel("stock", stock_source(config, head_dim, causal), config.num_warps, config.num_stages)


def stock_source(config: Config, head_dim: int, causal: bool, dtype: str = "bfloat16") -> ASTSource:
    """What the stock kernel of attention is compiled from in one configuration."""
    tiles = {"BLOCK_M": config.BLOCK_M, "BLOCK_N": config.BLOCK_N, "PRELOAD_V": config.PRELOAD_V}
    constexprs = {"HEAD_DIM": head_dim, "CAUSAL": causal, "WARP_SPECIALIZE": False, **tiles}
    element = {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    q_box, kv_box = (f"tensordesc<{element}[{rows}, {head_dim}]>" for rows in (config.BLOCK_M, config.BLOCK_N))
    signature = {"q": q_box, "k_desc": kv_box, "v_desc": kv_box, "o": q_box}
    signature |= {"lse_ptr": "*fp32", "sm_scale": "fp32", "seq_len": "i32", "n_rows": "i32"}
    return ASTSource(stock.attention, signature | dict.fromkeys(constexprs, "constexpr"), constexprs, {})


def plain_kernels(scripts: Scripts) -> Iterator[Kernel]:
    """All of them, each once."""
    for head_dim in HEAD_DIMS:
        for causal in (False, True):
            for config in stock.PLAIN_CONFIGS:
                yield stock_kernel(config, head_dim, causal)
    for special in FULL_AND_CAUSAL:
        yield Kernel("attn_fwd", ASTSource(attn_fwd, special.signature(), special.constexprs(), {}), 4, 2)
    hashes = set()
    for script, arguments in scripts:
        for launch in offline.launched_by(script, arguments):
            if is_gluon(launch.kernel.src) or launch.kernel.hash in hashes:
                continue
            hashes.add(launch.kernel.hash)
            options: dict[str, Any] = options_of(launch.kernel)
            yield Kernel(script.stem, launch.kernel.src, options["num_warps"], options["num_stages"])


def needs(kernel: Kernel) -> Needs:
    """Compile for both. Raises `MeasurementError` if one of them refuses it."""
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages}
    nvidia, amd = (compile_for(target, kernel.source, **options) for target in (SM_90A, GFX942))
    return Needs(kernel, compiler.resources(nvidia), amd_resources(amd))


def run(console: Console, scripts: Scripts) -> None:
    """Print a row a kernel; raises `MeasurementError` at the end if one does not compile."""
    table = Table(title="plain Triton kernels, from compiling alone (nothing ran)", title_justify="left")
    table.caption = (
        f"* more than a work group may have: {SM_90A.cta_shared_bytes} bytes of shared memory on {SM_90A.name}, "
        f"{GFX942.cta_shared_bytes} of local data share on {GFX942.name}"
    )
    table.caption_justify = "left"
    table.add_column("kernel", overflow="fold")
    table.add_column("constexprs", min_width=24)
    for name in ("warps, stages", "sm_90a registers", "spilled bytes", "shared bytes", "gfx942 VGPRs (AGPRs)", "SGPRs",
                 "spills V, S", "LDS bytes", "MFMA"):  # fmt: skip
        table.add_column(name, justify="right")
    failures = []
    for kernel in plain_kernels(scripts):
        try:
            table.add_row(*_cells(needs(kernel)))
        except MeasurementError as error:
            failures.append(f"{kernel.origin}: {error}")
    console.print(table)
    if failures:
        raise MeasurementError(failures[0])


def _cells(needed: Needs) -> list[str]:
    kernel, nvidia, amd = needed.kernel, needed.nvidia, needed.amd
    name = kernel.source.fn.__name__
    too_much = "*" if nvidia.shared_bytes > SM_90A.cta_shared_bytes else ""
    return [
        name if kernel.origin in (name, "stock") else f"{kernel.origin}: {name}",
        kernel.choices, f"{kernel.num_warps}, {kernel.num_stages}",
        str(nvidia.registers), str(nvidia.spilled_bytes), f"{nvidia.shared_bytes}{too_much}",
        f"{amd.vgprs} ({amd.agprs})", str(amd.sgprs), f"{amd.vgpr_spills}, {amd.sgpr_spills}",
        f"{amd.lds_bytes}{'' if amd.fits else '*'}", str(amd.mfma),
    ]  # fmt: skip
