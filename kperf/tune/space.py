"""The configurations that are searched, and those of them that compiling shows to be worth timing. Needs no GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from kperf.arch import H200, MI300X, Arch, Device
from kperf.attention.configs import Config
from kperf.attention.workload import Workload
from kperf.compat.triton import CompiledKernel
from kperf.errors import MeasurementError
from kperf.ir import compile as compiler
from kperf.ir.amd import amd_resources
from kperf.ir.compile import compile_for
from kperf.tune.estimate import cycles
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
class SearchSpace:
    """What is searched on a GPU, and how far a kernel may go.

    spill_limit: up to so many `spill_unit` a larger tile may be worth its spills; tiles: choices of BLOCK_M and of
    BLOCK_N; waves: of waves_per_eu; stages: of num_stages; read: what a compiled kernel needs.
    """

    device: Device
    spill_unit: str
    spill_limit: int
    tiles: tuple[tuple[int, ...], tuple[int, ...]]
    stages: tuple[int, ...]
    waves: tuple[int | None, ...]
    read: Callable[[CompiledKernel], Needs]

    @property
    def arch(self) -> Arch:
        """What is compiled for."""
        return self.device.arch

    @property
    def has_waves(self) -> bool:
        """Whether waves_per_eu is a choice."""
        return self.waves != (None,)

    @property
    def default(self) -> Config:
        """`DEFAULT` as this architecture has it."""
        return DEFAULT.model_copy(update={"waves_per_eu": 2 if self.has_waves else None})

    def configs(self) -> list[Config]:
        """All that is searched, before anything is known of it."""
        axes = product(*self.tiles, (False, True), self.waves, (4, 8), (1,), self.stages)
        names = Config.model_fields
        return [Config.model_validate(dict(zip(names, choices, strict=True))) for choices in axes]


def _nvidia(kernel: CompiledKernel) -> Needs:
    resources = compiler.resources(kernel)
    return Needs(resources.registers, resources.spilled_bytes, resources.shared_bytes)


def _amd(kernel: CompiledKernel) -> Needs:
    resources = amd_resources(kernel)
    return Needs(resources.vgprs, resources.vgpr_spills, resources.lds_bytes)


SPACES = {
    space.arch.name: space
    for space in (
        SearchSpace(
            device=H200,
            spill_unit="bytes",
            spill_limit=64,  # head_dim 256 on an H200: with 56 one of the two fastest, with 200 1.7 times their time
            tiles=((64, 128), (32, 64, 128)),
            waves=(None,),
            stages=(1, 2, 3, 4),
            read=_nvidia,
        ),
        SearchSpace(
            device=MI300X,
            spill_unit="registers",
            spill_limit=0,
            tiles=((32, 64, 128), (16, 32, 64)),
            waves=(1, 2),
            stages=(1, 2),
            read=_amd,
        ),
    )
}
"""Where the plain kernel can be tuned, by the name of the architecture."""


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
    space: SearchSpace,
    workload: Workload,
    configs: Sequence[Config] | None = None,
    on_judged: Callable[[Judged], None] = lambda _: None,
) -> list[Judged]:
    """Compile the configurations, several at once, and say of each whether it is worth timing; in their order.

    The code, and so the answer, depends on head_dim, dtype and mask, and not on the other sizes. Those that differ in
    BLOCK_N alone are compiled from the narrowest on, until one spills too much: wider tiles take more registers, and
    minutes.
    """
    chosen = space.configs() if configs is None else configs
    alike: dict[Config, list[Config]] = {}
    for config in sorted(chosen, key=lambda choice: choice.BLOCK_N):
        alike.setdefault(config.model_copy(update={"BLOCK_N": 16}), []).append(config)
    judged: dict[Config, Judged] = {}
    for widening in compiler.several(partial(_judge_widening, space, workload, on_judged), alike.values()):
        judged |= {verdict.config: verdict for verdict in widening}
    return [judged[config] for config in chosen]


def _judge_widening(
    space: SearchSpace, workload: Workload, on_judged: Callable[[Judged], None], configs: Sequence[Config]
) -> list[Judged]:
    judged: list[Judged] = []
    spilling: int | None = None
    for config in configs:
        if spilling is None:
            verdict = judge(space, workload, config)
        else:
            verdict = Judged(config, None, f"spills with BLOCK_N={spilling} already")
        if verdict.needs and verdict.needs.spills > space.spill_limit and spilling is None:
            spilling = config.BLOCK_N
        judged.append(verdict)
        on_judged(verdict)
    return judged


def judge(space: SearchSpace, workload: Workload, config: Config) -> Judged:
    """Whether one configuration is worth timing.

    What cannot be is not compiled: a float32 accumulator of more registers than a thread may have.
    """
    accumulator = config.BLOCK_M * workload.head_dim // (space.arch.warp_size * config.num_warps)
    if accumulator > space.arch.thread_registers:
        return Judged(config, None, f"the accumulator alone takes {accumulator} registers a thread")
    source = stock_source(config, workload.head_dim, workload.causal, workload.dtype)
    options = {name: value for name, value in config.options().items() if name not in source.fn.arg_names}
    try:
        needs = space.read(compile_for(space.arch, source, **options))
    except MeasurementError as error:
        return Judged(config, None, str(error), refused=True)
    if needs.shared_bytes > space.arch.cta_shared_bytes:
        too_much = f"{needs.shared_bytes} bytes of {space.arch.shared_name}, more than {space.arch.cta_shared_bytes}"
        return Judged(config, needs, too_much, refused=True)
    too_many = needs.spills > space.spill_limit
    return Judged(config, needs, f"spills {needs.spills} {space.spill_unit}" if too_many else None)


def expected(space: SearchSpace, workload: Workload, judged: Sequence[Judged]) -> dict[Config, float]:
    """What is left, and how many cycles it should take, the fastest first."""
    by_config: dict[Config, float] = {}
    for verdict in judged:
        if verdict.dropped is None and verdict.needs is not None:
            needs, warps = verdict.needs, verdict.config.num_warps
            resident = max(space.arch.ctas_per_sm(needs.registers, needs.shared_bytes, warps), 1)
            by_config[verdict.config] = cycles(space.device, workload, verdict.config, resident)
    return dict(sorted(by_config.items(), key=lambda item: item[1]))
