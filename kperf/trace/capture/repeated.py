"""A launch of the script's that is made again, on copies of its tensors: the script sees nothing of it."""

from dataclasses import dataclass, replace

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import Launch, LaunchCall
from kperf.errors import UsageError
from kperf.trace.capture.copies import Copies
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.trial import why_not_repeated


@dataclass(frozen=True)
class Repeated:
    """A launch on copies. `begin` before each `call`, and before the script's own: these change the tensors."""

    call: LaunchCall
    copies: Copies

    def begin(self) -> None:
        """Let the copies hold what the script's tensors hold now."""
        self.copies.begin()

    def of(self, kernel: CompiledKernel, launch: Launch) -> "Repeated":
        """The same launch of another kernel."""
        return replace(self, call=self.call.of(kernel, launch))


def repeated(compiled: CompiledKernel, call: LaunchCall, gpu: Gpu) -> Repeated:
    """A launch that is still to be made, on copies.

    Raises `UsageError` if it cannot be repeated, or if there is no memory for copies.
    """
    if why := why_not_repeated(compiled):
        raise UsageError(why)
    with gpu.on(call.stream):
        copies = Copies(call.arguments, free_bytes=gpu.free_bytes())
        return Repeated(call.again(call.stream).elsewhere(call.grid, copies.of(call.arguments)), copies)
