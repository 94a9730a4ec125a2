import json
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from kperf.errors import MeasurementError, UsageError
from kperf.plots import proton as plot
from kperf.record import device
from kperf.record.store import RecordStore
from kperf.studies import hatchet, proton, proton_session
from kperf.studies.hatchet import TIME, Tree, read_tree, rendered, subtract
from kperf.studies.proton import ProtonRow
from kperf.studies.proton_session import KEYS, WORKLOADS
from tests.conftest import COMMON, environment

CUDNN = "cudnn_generated_fort_native_sdpa_sm90_knob_7_64x128x128_4x1x1_kernel0_0"

REAL = """
import sys
from triton.profiler.flags import flags
import triton.profiler as proton
from triton._C.libproton import proton as library
session = library.start(sys.argv[1], "shadow", "tree", "instrumentation", "cuda")
flags.profiling_on = True
with proton.scope("outer", {"flops": 10.0}):
    with proton.scope("inner", {"bytes": 5}):
        pass
library.deactivate(session)
library.finalize(session, "hatchet")
"""


def frame(name, children=(), **metrics):
    return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}


def kernel(name, nanoseconds, count=proton.LAUNCHES, **metrics):
    return frame(name, **{"count": count, "device_id": "0", "device_type": "CUDA", TIME: nanoseconds, **metrics})


def profile(path, nanoseconds, keys=KEYS):
    """As a session of CUPTI writes it."""
    scopes = []
    for place, key in enumerate(keys):
        name = CUDNN if key == "sdpa_cudnn" else f"kernel_of_{key}"
        flops = float(proton.LAUNCHES * WORKLOADS["full"].flops)
        scopes.append(frame(key, [kernel(name, nanoseconds * (1 + place))], flops=flops, bytes=1e9))
    path.write_text(json.dumps([frame("ROOT", scopes, count=0, **{TIME: 0}), {"CUDA": {"0": {"arch": "90"}}}]))


def test_what_proton_writes_is_read(tmp_path):
    subprocess.run([sys.executable, "-c", REAL, tmp_path / "real"], check=True, timeout=280)
    tree = read_tree(tmp_path / "real.hatchet")
    assert tree.name == "ROOT"
    assert tree.child("outer").child("inner").metrics == {"bytes": 5}
    assert tree.total("flops") == 10
    with pytest.raises(UsageError, match="no nosuch in outer"):
        tree.child("outer").child("nosuch")


def test_a_tree_is_told_with_what_each_frame_did_and_two_are_subtracted(tmp_path, console):
    profile(tmp_path / "a.hatchet", 2_000_000, ["fa3", "vanilla"])
    profile(tmp_path / "b.hatchet", 500_000, ["fa3"])
    one, other = (read_tree(tmp_path / f"{name}.hatchet") for name in "ab")
    console.print(rendered(one, proton.COLUMNS))
    text = console.export_text()
    rate = proton.LAUNCHES * WORKLOADS["full"].flops / 2e-3 / 1e12
    assert any(f"{rate:.0f}" in line and "2.000" in line and "fa3" in line for line in text.splitlines())
    difference = subtract(one, other)
    assert difference.child("fa3").total(TIME) == 1_500_000
    assert difference.child("vanilla").total(TIME) == 4_000_000
    assert subtract(other, one).child("vanilla").total(TIME) == -4_000_000


def test_kernels_that_the_metadata_function_launches_are_left_out(tmp_path):
    path = tmp_path / "a.hatchet"
    path.write_text(json.dumps([frame("ROOT", [frame(hatchet.METADATA, [kernel("copy", 5)]), kernel("real", 7)])]))
    assert read_tree(path).total(TIME) == 7


@pytest.mark.parametrize("text", ["", "{}", "[]", "[1]", '[{"frame": {}, "metrics": {}}]', "[" * 100_000])
def test_what_is_no_profile_is_refused(tmp_path, text):
    path = tmp_path / "a.hatchet"
    path.write_text(text)
    with pytest.raises(UsageError, match="no profile of Proton's"):
        read_tree(path)
    with pytest.raises(UsageError, match="is missing"):
        read_tree(tmp_path / "b.hatchet")


def test_the_launch_hook_renames_a_kernel_with_its_configuration():
    metadata = namedtuple("Metadata", "name num_warps shared")("attn_fwd", 12, 164136)
    found = proton_session.described(WORKLOADS["full"], (64, 1, 1), metadata, {})
    assert found == {
        "name": "attn_fwd_<grid:64x1x1>_<warps:12>_<shared:164136>", "flops16": WORKLOADS["full"].flops,
    }  # fmt: skip


def children(tmp_path, *, cli=0):
    def run(command, _limit_s):
        folder = Path(command[-1])
        if "triton.profiler.proton" in command:
            path = Path(command[command.index("-n") + 1])
            path.with_suffix(".hatchet").write_text(json.dumps([frame("ROOT", [kernel("attention_forward", 9000)])]))
            return subprocess.CompletedProcess(command, cli, "An error occurred", "")
        for name, time in (("full", 1_000_000), ("causal", 600_000)):
            profile(folder / f"{name}.hatchet", time, [key for key in KEYS if key != "sdpa_math"])
        reasons = {"sdpa_math": "out of memory"}
        (folder / "reasons.json").write_text(json.dumps({"full": reasons, "causal": {}}))
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "gpu_name", lambda: "NVIDIA H200")


def test_both_sessions_and_the_command_are_recorded(tmp_path, monkeypatch, gpu):
    monkeypatch.setattr(proton.child, "run", children(tmp_path))
    rows = {(row.session, row.implementation): row for row in proton.measure(COMMON, results=tmp_path)}
    first = rows["full", "fa3"]
    assert first.time_us == 1e6 / proton.LAUNCHES / 1e3
    assert first.tflops == pytest.approx(WORKLOADS["full"].flops / 50 / 1e6)
    assert rows["full", "sdpa_cudnn"].kernels == [CUDNN]
    assert rows["full", "sdpa_math"].message == "out of memory"
    assert "no sdpa_math in ROOT" in rows["causal", "sdpa_math"].message
    assert rows["cli", "attention.py"].kernels == ["attention_forward"]
    assert sorted(path.name for path in (tmp_path / "h200/proton").iterdir()) == [
        "causal.hatchet", "cli.hatchet", "full.hatchet",
    ]  # fmt: skip
    monkeypatch.setattr(proton.child, "run", children(tmp_path, cli=1))
    *_, last = proton.measure(COMMON, results=tmp_path)
    assert "An error occurred" in last.message
    monkeypatch.setattr(proton.child, "run", lambda command, _: subprocess.CompletedProcess(command, 1, "", "x"))
    with pytest.raises(MeasurementError, match="under Proton failed: x"):
        list(proton.measure(COMMON, results=tmp_path))


def test_a_recorded_run_is_told(tmp_path, monkeypatch, gpu, no_gpu, console):
    with pytest.raises(UsageError, match="nothing is recorded of `make proton`"):
        proton.run(console, tmp_path, plot.draw, require_gpu=False)
    monkeypatch.setattr(proton.child, "run", children(tmp_path))
    store = RecordStore(tmp_path / "h200", "proton", proton.ROWS)
    with store.writer() as writer:
        known = writer.record_environment(environment())
        writer.append(list(proton.measure(COMMON | {"environment": known}, results=tmp_path)))
    proton.run(console, tmp_path, plot.draw, require_gpu=False)
    text = console.export_text()
    assert f"SDPA cuDNN, full, ran {CUDNN}." in text
    assert "full less causal" in text
    assert "pip install llnl-hatchet" in text
    assert (tmp_path / "h200/proton_tflops.png").stat().st_size > 10_000


def test_the_picture_says_what_is_fastest():
    def row(session, implementation, time_us):
        names = ["kernel"] if time_us else []
        fields = {"launches": 1, "flops": 4 * 10**9, "bytes": 1, "kernels": names, "time_us": time_us}
        return ProtonRow(
            **COMMON, **fields, session=session, implementation=implementation, message="" if time_us else "too slow"
        )

    rows = [
        row("full", "fa3", 10),
        row("full", "improved", 8),
        row("causal", "fa3", 5),
        row("causal", "sdpa_math", None),
    ]
    same = plot.figure([*rows, row("causal", "improved", 4)], "recorded")
    assert "Triton-FA3 Improved is the fastest: 500 TFLOP/s full, 1000 TFLOP/s causal" in title(same)
    other = title(plot.figure(rows, "recorded"))
    assert "full: Triton-FA3 Improved is the fastest, 500 TFLOP/s; causal: FA3 is the fastest, 800 TFLOP/s" in other


def title(figure):
    return " ".join(figure.legends[0].get_title().get_text().split())


def test_a_row_has_a_time_or_a_reason():
    fields = {"session": "full", "implementation": "fa3", "launches": 1, "flops": 1, "bytes": 1}
    with pytest.raises(ValueError, match="a time with the kernels"):
        ProtonRow(**COMMON, **fields, kernels=[], time_us=1.0)
    with pytest.raises(ValueError, match="a time with the kernels"):
        ProtonRow(**COMMON, **fields, kernels=[], time_us=None)


def test_the_root_of_nothing_is_empty():
    assert Tree("", {}).total(TIME) == 0
