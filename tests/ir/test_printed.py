"""Every Triton prints TTGIR in its own way; what is read from the text is the same."""

from collections import Counter

import pytest
import triton

from kperf.ir.compile import named_ttgir
from kperf.ir.ttgir import Module
from kperf.trace.instrument import events, program
from tests.ir import printed
from tests.trace.kernels import compiled

BOXES = {
    "add": [],
    "gemm_pointers_2": [],
    "gemm_tma": [((128, 64), "bf16"), ((256, 64), "bf16"), ((128, 256), "bf16")],
    "gluon_gemm": [((64, 64), "bf16"), ((64, 128), "bf16"), ((64, 128), "bf16")],
}
TILES = {"add": {"x": 4096, "y": 4096, "out": 4096}}
TILES["gemm_tma"] = TILES["gemm_pointers_2"] = {"a": 128 * 64 * 2, "b": 256 * 64 * 2, "c": 128 * 256 * 2}
TILES["gluon_gemm"] = {"a": 64 * 64 * 2, "b": 64 * 128 * 2, "c": 64 * 128 * 2}
"""Bytes of what is loaded or stored at once."""


def read(version: str, kernel: str, monkeypatch) -> program.Program:
    """From the text alone: another Triton's parser takes no other's text."""
    monkeypatch.setattr(events, "parse_ttgir", lambda _: None)
    monkeypatch.setattr(program, "_allocate_warps", lambda _: ([4], 8))
    return program.read_program(events.instrument(printed.text(version, kernel)))


def facts(found: program.Program):
    return (
        [(group.name, group.num_warps, group.issues) for group in found.groups],
        [(scope.name, scope.group, len(scope.loops)) for scope in found.scopes],
        Counter((one.name, one.kind, one.issues, one.flop, one.traffic, one.uses) for one in found.intervals.values()),
        [(loop.mmas, loop.loads) for loop in found.loops.values()],
    )


def test_the_versions_are_those_that_torch_pins():
    assert printed.VERSIONS == ["3.6.0", "3.7.1", "3.8.0", "3.9.0"]


@pytest.mark.parametrize("version", printed.VERSIONS)
@pytest.mark.parametrize("kernel", printed.KERNELS)
def test_every_print_is_read_as_the_same_kernel(monkeypatch, version, kernel):
    module = Module(printed.text(version, kernel))
    assert module.descriptor_boxes() == BOXES[kernel]
    assert [group.num_warps for group in module.warp_groups()] == {"gluon_gemm": [4, 1]}.get(
        kernel, [{"add": 4}.get(kernel, 8)]
    )
    assert len(module.arguments) == len(Module(printed.text("3.6.0", kernel)).arguments)
    found = read(version, kernel, monkeypatch)
    moved = {t.argument: t.loaded + t.stored for one in found.intervals.values() for t in one.traffic}
    assert moved == TILES[kernel]
    assert facts(found) == facts(read("3.6.0", kernel, monkeypatch))


@pytest.mark.skipif(triton.__version__ not in printed.VERSIONS, reason="python -m tests.ir.printed records it")
@pytest.mark.parametrize("kernel", printed.KERNELS)
def test_the_recorded_text_is_what_this_triton_prints(kernel):
    assert named_ttgir(compiled(kernel).asm["ttgir"]) == printed.text(triton.__version__, kernel)
