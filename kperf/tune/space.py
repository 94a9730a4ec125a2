"""The configurations that are searched, and those of them that compiling shows to be worth timing. Needs no GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel

from kperf.attention.configs import Config
from kperf.attention.workload import Workload
from kperf.errors import MeasurementError
from kperf.ir import compile as compiler
from kperf.ir.amd import GFX942, LDS_LIMIT, amd_resources, compile_for
from kperf.ir.compile import HOPPER, SHARED_MEMORY_LIMIT
from kperf.ir.occupancy import blocks_per_sm
from kperf.tune.estimate import H200, MI300X, Processor, cycles
from kperf.tune.resources import stock_source

DEFAULT = Config(BLOCK_M=128, BLOCK_N=64, PRELOAD_V=False, num_warps=4, num_stages=1)
"""What is tuned away from: AITER's configuration of MI300X before its tuning, which adds waves_per_eu=2 there."""


@dataclass(frozen=True)
class Needs:
    """Of one kernel. registers: a thread; spills: bytes a thread on NVIDIA, vector registers on AMD; shared_bytes: of
    a block, or a work group's local data share."""

    registers: int
    spills: int
    shared_bytes: int


@dataclass(frozen=True)
class Architecture:
    """What compiles for it, how far a kernel may go, and what is searched.

    lanes: threads a warp or wave; spill_limit: up to so many `spill_unit` a larger tile may be worth its spills; tiles:
    choices of BLOCK_M and of BLOCK_N; waves: of waves_per_eu; stages: of num_stages; resident: how many blocks of so
    many warps fit on a processor at once.
    """

    name: str
    target: GPUTarget
    lanes: int
    register_limit: int
    shared_limit: int
    shared_name: str
    spill_unit: str
    spill_limit: int
    tiles: tuple[tuple[int, ...], tuple[int, ...]]
    stages: tuple[int, ...]
    waves: tuple[int | None, ...]
    processor: Processor
    read: Callable[[CompiledKernel], Needs]
    resident: Callable[[Needs, int], int]

    @property
    def has_waves(self) -> bool:
        """Whether waves_per_eu is a choice."""
        return self.waves != (None,)

    @property
    def default(self) -> Config:
        """`DEFAULT` as this architecture has it."""
        return DEFAULT.model_copy(update={"waves_per_eu": 2 if self.has_waves else None})

    def space(self) -> list[Config]:
        """All that is searched, before anything is known of it."""
        axes = product(*self.tiles, (False, True), self.waves, (4, 8), (1,), self.stages)
        names = Config.model_fields
        return [Config.model_validate(dict(zip(names, choices, strict=True))) for choices in axes]


def _nvidia(kernel: CompiledKernel) -> Needs:
    found = compiler.resources(kernel)
    return Needs(found.registers, found.spilled_bytes, found.shared_bytes)


def _blocks_per_sm(needs: Needs, warps: int) -> int:
    return blocks_per_sm(needs.registers, needs.shared_bytes, warps)


def _amd(kernel: CompiledKernel) -> Needs:
    found = amd_resources(kernel)
    return Needs(found.vgprs, found.vgpr_spills, found.lds_bytes)


def _groups_per_unit(needs: Needs, waves: int) -> int:
    """Of a compute unit: four SIMDs of 512 vector registers a lane and at most eight waves, and the local data share
    (AMD CDNA 3 Instruction Set Architecture, 2025)."""
    waves_at_once = 4 * min(8, 512 // max(needs.registers, 1))
    return min(waves_at_once // waves, LDS_LIMIT // max(needs.shared_bytes, 1))


ARCHITECTURES = {
    "sm_90a": Architecture(
        name="sm_90a",
        target=HOPPER,
        lanes=32,
        register_limit=255,
        shared_limit=SHARED_MEMORY_LIMIT,
        shared_name="shared memory",
        spill_unit="bytes",
        spill_limit=64,  # head_dim 256 on an H200: with 56 one of the two fastest, with 200 1.7 times their time
        tiles=((64, 128), (32, 64, 128)),
        waves=(None,),
        stages=(1, 2, 3, 4),
        processor=H200,
        read=_nvidia,
        resident=_blocks_per_sm,
    ),
    "gfx942": Architecture(
        name="gfx942",
        target=GFX942,
        lanes=64,
        register_limit=512,
        shared_limit=LDS_LIMIT,
        shared_name="local data share",
        spill_unit="registers",
        spill_limit=0,
        tiles=((32, 64, 128), (16, 32, 64)),
        waves=(1, 2),
        stages=(1, 2),
        processor=MI300X,
        read=_amd,
        resident=_groups_per_unit,
    ),
}
"""Where the plain kernel can be tuned."""


@dataclass(frozen=True)
class Judged:
    """A configuration, what it needs (None where it was not compiled), and why it is dropped, or None if it is left.

    refused: dropped because it does not compile, or no GPU would launch it; what spills would only be slow.
    """

    config: Config
    needs: Needs | None
    dropped: str | None
    refused: bool = False


def prune(
    architecture: Architecture,
    workload: Workload,
    configs: Sequence[Config] | None = None,
    on_judged: Callable[[Judged], None] = lambda _: None,
) -> list[Judged]:
    """Compile the configurations, several at once, and say of each whether it is worth timing; in their order.

    The code, and so the answer, depends on head_dim, dtype and mask, and not on the other sizes. Those that differ in
    BLOCK_N alone are compiled from the narrowest on, until one spills too much: wider tiles take more registers, and
    minutes.
    """
    chosen = architecture.space() if configs is None else configs
    alike: dict[Config, list[Config]] = {}
    for config in sorted(chosen, key=lambda one: one.BLOCK_N):
        alike.setdefault(config.model_copy(update={"BLOCK_N": 16}), []).append(config)
    judged: dict[Config, Judged] = {}
    for found in compiler.several(partial(_judge_widening, architecture, workload, on_judged), alike.values()):
        judged |= {one.config: one for one in found}
    return [judged[config] for config in chosen]


def _judge_widening(
    architecture: Architecture, workload: Workload, on_judged: Callable[[Judged], None], configs: Sequence[Config]
) -> list[Judged]:
    judged: list[Judged] = []
    spilling: int | None = None
    for config in configs:
        if spilling is None:
            one = judge(architecture, workload, config)
        else:
            one = Judged(config, None, f"spills with BLOCK_N={spilling} already")
        if one.needs and one.needs.spills > architecture.spill_limit and spilling is None:
            spilling = config.BLOCK_N
        judged.append(one)
        on_judged(one)
    return judged


def judge(architecture: Architecture, workload: Workload, config: Config) -> Judged:
    """Whether one configuration is worth timing.

    What cannot be is not compiled: a float32 accumulator of more registers than a thread may have.
    """
    accumulator = config.BLOCK_M * workload.head_dim // (architecture.lanes * config.num_warps)
    if accumulator > architecture.register_limit:
        return Judged(config, None, f"the accumulator alone takes {accumulator} registers a thread")
    source = stock_source(config, workload.head_dim, workload.causal, workload.dtype)
    options = {name: value for name, value in config.options().items() if name not in source.fn.arg_names}
    try:
        needs = architecture.read(compile_for(architecture.target, source, **options))
    except MeasurementError as error:
        return Judged(config, None, str(error), refused=True)
    if needs.shared_bytes > architecture.shared_limit:
        too_much = f"{needs.shared_bytes} bytes of {architecture.shared_name}, more than {architecture.shared_limit}"
        return Judged(config, needs, too_much, refused=True)
    too_many = needs.spills > architecture.spill_limit
    return Judged(config, needs, f"spills {needs.spills} {architecture.spill_unit}" if too_many else None)


def expected(architecture: Architecture, workload: Workload, judged: Sequence[Judged]) -> dict[Config, float]:
    """What is left, and how many cycles it should take, the fastest first."""
    found: dict[Config, float] = {}
    for one in judged:
        if one.dropped is None and one.needs is not None:
            resident = max(architecture.resident(one.needs, one.config.num_warps), 1)
            found[one.config] = cycles(architecture.processor, workload, one.config, resident)
    return dict(sorted(found.items(), key=lambda item: item[1]))
