"""Options of a launch and lengths of tiles: what advice says to change them to, in words and as candidates."""

from collections.abc import Iterable, Mapping, Sequence

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ASYNC_COPIES, MMAS

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Compile options that a launch, or an autotuner's configuration, may give."""
MOST_WARPS = 32
"""Of a CTA, on any GPU."""
LEAST_TILE = 16
"""What is shorter is seldom the length of a tile."""


def tile_for(elements: int) -> int:
    """The length of the shortest tile that holds so many elements: `tl.arange` takes powers of two alone."""
    return 1 << max(elements - 1, 0).bit_length()


def with_option(kernel: Kernel, written: str) -> str:
    """Where an option such as `num_warps=8` is to be written: at the launch, or in the autotuner's list."""
    tunings = kernel.history.tunings if kernel.history is not None else ()
    return f"put {written} into its triton.Config" if kernel.tuned or tunings else f"launch with {written}"


def warps_advice(kernel: Kernel, lengths: Iterable[int] = ()) -> str:
    """Twice as many warps as far as a CTA may have them, or half the tile of these lengths."""
    if kernel.num_warps * 2 > MOST_WARPS:
        return halved(kernel, lengths)
    return f"{with_option(kernel, f'num_warps={kernel.num_warps * 2}')}, or {halved(kernel, lengths)}"


def more_warps(kernel: Kernel) -> list[dict[str, int]]:
    """Candidates: twice and four times as many warps, as far as a CTA may have them."""
    return [{"num_warps": warps} for warps in (2 * kernel.num_warps, 4 * kernel.num_warps) if warps <= MOST_WARPS]


def other_options(kernel: Kernel) -> list[dict[str, int]]:
    """Candidates that nothing in the code speaks for: other numbers of stages for copies in loops, and of warps.

    Of warps four and more for MMAs, as wgmma needs, and no fewer than keep what the kernel's registers hold. None
    in Gluon, whose source says both, and none that an autotuner had to choose from.
    """
    if kernel.is_gluon or kernel.tuned or (kernel.history is not None and kernel.history.tunings):
        return []
    names = {op.name for op in kernel.module.walk()}
    stages: list[int] = []
    if kernel.num_stages is not None and not names.isdisjoint(ASYNC_COPIES):
        stages = [kernel.num_stages + 1, kernel.num_stages + 2, kernel.num_stages - 1]
    held = kernel.num_warps * kernel.resources.registers if kernel.resources is not None else 0
    fewest = max(4 if not names.isdisjoint(MMAS) else 1, held / kernel.arch.thread_registers)
    warps = [1 << power for power in range(MOST_WARPS.bit_length())]
    return [{"num_stages": number} for number in stages if number > 0] + [
        {"num_warps": number} for number in warps if fewest <= number != kernel.num_warps
    ]


def scaled(kernel: Kernel, lengths: Iterable[int], factor: float, *, whole: bool = False) -> list[dict[str, int]]:
    """Candidates: each constexpr that is one of these lengths of a tile, `factor` times as long, and all of them.

    Empty where no constexpr has this value. Where the source is known, those with which it goes from tile to tile;
    whole: also lengths of tiles that hold all that there is, for which half a tile is too short.
    """
    wanted, used = set(lengths), kernel.tile_lengths
    tiles = {
        name: int(value * factor)
        for name, value in kernel.configuration.items()
        if name not in OPTIONS and value in wanted and int(value * factor) >= LEAST_TILE
        if used is None or name in (used.lengths if whole else used.steps)
    }
    single = [{name: value} for name, value in tiles.items()]
    return [*single, tiles] if len(single) > 1 else single


def halved(kernel: Kernel, lengths: Iterable[int]) -> str:
    """Half of a tile of these lengths, in words, with the constexprs that have them."""
    return f"halve the tile{named(scaled(kernel, lengths, 0.5), before=': ')}"


def named(candidates: Sequence[Mapping[str, int]], before: str = "", otherwise: str = "") -> str:
    """Candidates of one constexpr each in words, as they are written, behind `before`; without any `otherwise`."""
    words = [f"{name}={value}" for one in candidates if len(one) == 1 for name, value in one.items()]
    return before + " or ".join(words) if words else otherwise
