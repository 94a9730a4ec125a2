"""On a Hopper GPU: the decoder against Proton's own writer, event by event, on a small launch."""

import json
import re

import numpy as np
import pytest

from kperf.attention import overrides
from kperf.attention.variants import Specialization
from kperf.attention.workload import Workload
from kperf.paper import fig11
from kperf.paper.instrumented import RULES
from kperf.record import device
from kperf.trace.analyze.decode import decode
from kperf.trace.analyze.read import decode_launch
from kperf.trace.capture.buffers import Capture, capture
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import read_program
from kperf.trace.instrument.session import Recording

pytestmark = pytest.mark.gpu

SMALL = Workload(batch=1, heads=2, seq_len=512)


def traced_override(variant: str) -> overrides.Override:
    original = overrides.find(variant, Specialization())
    return overrides.Override(original.path, instrument(original.text, rules=RULES), original.entry, original.manifest)


def captured_in(item: fig11.TracedOverride, workload: Workload) -> Capture:
    inputs = fig11.normal_qkv(workload)
    original, traced = (
        fig11.bind(item.original, inputs, workload, text) for text in (item.original.text, item.traced.text)
    )
    return capture(item.name, original, traced, item.traced.recording, rounds=3)


@pytest.mark.parametrize("variant", ["vanilla", "improved"])
def test_decodes_what_protons_own_writer_writes(variant, tmp_path):
    import torch
    import triton.profiler as proton
    from triton.profiler.hooks.instrumentation import InstrumentationHook

    from kperf.attention.implementations import bind_attn_fwd

    override = traced_override(variant)
    program = read_program(override.text, RULES)
    recording = Recording(tuple(sorted(group.first_warp for group in program.groups)), program.total_warps)
    q, k, v = (torch.randn(SMALL.shape, device="cuda").to(torch.bfloat16) for _ in range(3))
    warps = ",".join(map(str, recording.warps))
    mode = (
        f"default:sampling_strategy=selective:sampling_options={warps}:buffer_type=shared"
        f":buffer_size={recording.buffer_bytes}:optimizations=clock32"
    )
    InstrumentationHook.enable_host_buffer = True
    try:
        proton.start(str(tmp_path / "small"), backend="instrumentation", data="trace", mode=mode)
        bind_attn_fwd(q, k, v, False, SMALL.sm_scale, override)()
        torch.cuda.synchronize()
        host = InstrumentationHook.host_buffer.numpy().copy()
    finally:
        proton.finalize()
        InstrumentationHook.enable_host_buffer = False

    header_bytes = 40 + 4 * len(recording.warps)
    records = decode(host[header_bytes:], recording)
    assert records.n_ctas == SMALL.rows // 128
    assert records.lost == 0

    ours = set()
    for cta in range(records.n_ctas):
        in_block = records.cta == cta
        origin = records.cycle[in_block].min()
        for index, warp in enumerate(recording.warps):
            opened = {}
            for i in np.flatnonzero(in_block & (records.warp == index)):
                scope, cycle = int(records.scope[i]), int(records.cycle[i] - origin)
                if records.is_start[i]:
                    opened[scope] = cycle
                else:
                    start = opened.pop(scope)
                    name = program.scopes[scope].name
                    ours.add((int(records.program_id[cta]), int(records.sm[cta]), warp, name, start, cycle - start))
            assert not opened

    written = json.loads(next(tmp_path.glob("small*.chrome_trace")).read_text())["traceEvents"]
    first_start = records.start_ns.min()
    offsets = {int(records.program_id[b]): int(records.start_ns[b] - first_start) for b in range(records.n_ctas)}
    theirs = set()
    for event in written:
        sm, cta = map(int, re.search(r"Core(\d+) CTA(\d+)", event["pid"]).groups())
        warp = int(re.match(r"warp (\d+)", event["tid"]).group(1))
        start = round(event["ts"] * 1000) - offsets[cta]
        theirs.add((cta, sm, warp, event["name"], start, round(event["dur"] * 1000)))
    assert len(theirs) == len(written)
    assert ours == theirs


@pytest.mark.parametrize("variant", [*fig11.VARIANTS, *fig11.ALONE])
def test_every_cta_of_a_launch_is_traced_and_none_of_it_lost(variant):
    item = fig11.subject(variant)
    captured = captured_in(item, SMALL)
    assert len(captured.original_ms) == len(captured.instrumented_ms) == 3
    launch = decode_launch(captured.buffer, item.traced.recording, item.program)
    assert sorted(launch.events.program_id) == list(range(SMALL.rows // 128))
    assert launch.events.lost == 0
    assert set(launch.groups) == {"consumer 0", "consumer 1", "producer"}
    assert len(launch.whole_ctas) == SMALL.rows // 128


def test_a_persistent_cta_is_traced_from_its_first_tile_to_its_last():
    item = fig11.subject("improved_plus")
    several = Workload(batch=2, heads=16, seq_len=4096)
    captured = captured_in(item, several)
    launch = decode_launch(captured.buffer, item.traced.recording, item.program)
    ctas, tiles, iterations = device.sm_count(), several.rows // 128, several.seq_len // 128 - 1
    assert sorted(launch.events.program_id) == list(range(ctas))
    assert launch.events.lost == 0
    assert len(launch.whole_ctas) == ctas
    for group in ("consumer 0", "consumer 1"):
        assert launch.iterations(group) == tiles * iterations
        assert launch.boundaries(group).size == tiles - ctas
