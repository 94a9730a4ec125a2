"""How far this Triton takes a kernel with events: the check that decides whether kernels can be traced with it."""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import triton
import triton.language as tl

from kperf.arch import of
from kperf.compat.triton import VERSION, CompiledKernel
from kperf.errors import UsageError, root_cause
from kperf.ir import compile as compiler
from kperf.ir.override import Override, recompile
from kperf.trace.instrument.events import Rules, instrument, read_rules
from kperf.trace.instrument.program import read_program
from kperf.trace.instrument.session import Recording, session

Stage = Literal["instrumented", "lowered", "machine code", "run"]

_BYTES_A_WARP = 1024
"""Of events: a size that fits beside what most kernels take."""

_CLOCK_READS = {"cuda": "SR_CLOCKLO", "hip": "s_memtime"}
"""What an event is in machine code."""


@dataclass(frozen=True)
class Attempt:
    """The last stage that was tried, whether it worked, and what it gave: numbers, or why not."""

    stage: Stage
    ok: bool
    message: str


def attempt(kernel: CompiledKernel, folder: Path, rules: Rules) -> Attempt:
    """Instrument a compiled kernel, compile it for the same target, and count the events in its machine code.

    `folder`: for files. Whatever Triton raises becomes the attempt's message.
    """
    try:
        text = instrument(compiler.named_ttgir(kernel.asm["ttgir"]), rules=rules)
        program = read_program(text, rules)
    except Exception as error:  # front end and passes raise what they like
        return Attempt("instrumented", False, root_cause(error))
    arch = of(kernel.metadata.target)
    warps = tuple(sorted(group.first_warp for group in program.groups))
    inside = kernel.metadata.shared + _BYTES_A_WARP * len(warps) <= arch.cta_shared_bytes
    recording = Recording(warps, program.total_warps, _BYTES_A_WARP, "shared" if inside else "global", arch=arch)
    try:
        with session(recording, apart=True):
            made = recompile(kernel, Override(folder / f"{kernel.name}.ttgir", text, program.kernel_name))
        if made.metadata.profile_scratch_size != recording.block_bytes:
            raise UsageError(
                f"a CTA's events take {made.metadata.profile_scratch_size} bytes where {recording.block_bytes} are read"
            )
    except Exception as error:  # as above
        return Attempt("lowered", False, root_cause(error))
    try:
        events = _machine_code(made).count(_CLOCK_READS[arch.backend])
    except Exception as error:  # a tool that does not know the target
        return Attempt("machine code", False, root_cause(error))
    wanted = 2 * len(program.scopes)
    words = f"{events} events in machine code, {wanted} in the TTGIR, kept in {recording.memory} memory"
    return Attempt("machine code", events >= wanted, words)  # of an unrolled loop there are more


def _machine_code(kernel: CompiledKernel) -> str:
    return compiler.sass(kernel) if "cubin" in kernel.asm else str(kernel.asm["amdgcn"])


@triton.jit  # type: ignore[untyped-decorator]
def _ten_lines(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row * n + start + columns, mask=start + columns < n, other=0.0)
        total += tl.exp(x)
    tl.store(y_ptr + row, tl.sum(total, axis=0))


@cache
def why_no_events() -> str | None:
    """None if a kernel of ten lines comes out of this Triton with its events in the machine code, else a sentence.

    Tried once a process, for sm_90a; needs no GPU.
    """
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    kernel = compiler.compile_kernel(_ten_lines, signature, {"BLOCK": 256})
    with tempfile.TemporaryDirectory() as folder:
        tried = attempt(kernel, Path(folder), read_rules())
    if tried.ok:
        return None
    return f"Triton {VERSION} does not lower events as 3.6 to 3.9 do ({tried.message}): install one of those to trace"
