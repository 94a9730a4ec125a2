"""On a Hopper GPU: scripts give what they give under `python`, and their kernels are traced."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kperf.trace.analyze.recorded import read_timeline

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[3]

GEMM = """
import hashlib, sys, torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def gemm(a_desc, b_desc, c_desc, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles = tl.cdiv(N, BN)
    row = tl.program_id(0) // tiles * BM
    column = tl.program_id(0) % tiles * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), num_stages=3):
        acc = tl.dot(a_desc.load([row, k * BK]), b_desc.load([column, k * BK]).T, acc)
    c_desc.store([row, column], acc.to(tl.bfloat16))

SIZE = 4096
torch.manual_seed(0)
a, b, c = (torch.randn(SIZE, SIZE, device="cuda").bfloat16() for _ in range(3))
boxes = (128, 64), (256, 64), (128, 256)
descriptors = [TensorDescriptor.from_tensor(tensor, list(box)) for tensor, box in zip((a, b, c), boxes)]

def run():
    gemm[(SIZE // 128 * (SIZE // 256),)](*descriptors, SIZE, SIZE, 128, 256, 64, num_warps=8)
    return c

def tell(what):
    torch.cuda.synchronize()
    print(what, hashlib.sha256(c.view(torch.int16).cpu().numpy().tobytes()).hexdigest())
"""

MANY_WAYS = (
    GEMM
    + """
print(sys.argv[1:], input())
for _ in range(12): run()
tell("default stream")
streams = [torch.cuda.Stream() for _ in range(2)]
for stream in streams:
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream): run()
tell("other streams")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): run()
a.mul_(2)
graph.replay()
tell("a graph")
sys.exit(5)
"""
)

COMPILED = """
import torch
torch.manual_seed(0)
norm, linear = torch.nn.LayerNorm(2048).cuda().bfloat16(), torch.nn.Linear(2048, 2048).cuda().bfloat16()
block = torch.compile(lambda x: torch.nn.functional.gelu(linear(norm(x))) + x)
x = torch.randn(8192, 2048, device="cuda").bfloat16()
with torch.no_grad():
    for _ in range(5): y = block(x)
print(float(y.float().sum()))
"""


def both_ways(folder: Path, text: str, *options: str) -> list[subprocess.CompletedProcess[str]]:
    (folder / "it.py").write_text(text)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    ways = [["it.py", "x"], ["-m", "kperf", "trace", *options, "it.py", "x"]]
    return [
        subprocess.run(
            [sys.executable, *way],
            cwd=folder,
            env=environment,
            input="a line\n",
            capture_output=True,
            text=True,
            check=False,
        )
        for way in ways
    ]


def instrumented(folder: Path) -> list[Path]:
    """Files that a launch would load and that name Proton's operations or what they become.

    Left out are the self-check's own kernel, and listings of machine code, which are kept under keys of their own.
    """
    words = (b"proton.record", b"globaltimer", b"kperf-overrides")
    own = {path.parent for path in [*folder.rglob("*_ten_lines*"), *folder.rglob("nvdisasm-*")]}
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent not in own]
    assert files
    return [path for path in files if any(word in path.read_bytes() for word in words)]


def test_streams_and_graphs_give_what_they_give(tmp_path):
    plain, traced = both_ways(tmp_path, MANY_WAYS, "--ctas", "all")  # a sample's CTAs share their SM with others
    assert traced.stdout.startswith(plain.stdout)
    assert "['x'] a line" in traced.stdout
    assert plain.returncode == traced.returncode == 5
    assert not instrumented(tmp_path / "triton")
    timeline = read_timeline(tmp_path / "kperf-trace/gemm.timeline.json")
    assert timeline.ctas == 4096 // 128 * (4096 // 256)
    assert timeline.events.lost == 0
    assert 0.7 < timeline.overhead.ratio < 1.3  # the assembler may even do better with records
    assert timeline.cycles_per_unit.median == pytest.approx(1024, rel=0.1)
    for suffix in ("png", "pdf", "chrome_trace.json"):
        assert (tmp_path / f"kperf-trace/gemm.{suffix}").stat().st_size > 1000


def test_an_instrumented_kernel_writes_what_the_original_kernel_writes(tmp_path):
    plain, checked = both_ways(tmp_path, GEMM + "run(); tell('once')", "--check")
    assert checked.stdout.startswith(plain.stdout)
    assert checked.returncode == 0
    assert "Checked: its instrumented kernel writes what the original kernel writes, bit for bit." in checked.stdout


LONG = GEMM.replace("SIZE = 4096", "SIZE = 8192") + "for _ in range(40): run()\ntell('sampled')"


def test_sampled_ctas_write_the_same_bits_in_the_original_time_and_each_is_at_its_slot(tmp_path):
    plain, checked = both_ways(tmp_path, LONG, "--ctas", "sampled", "--check")
    assert checked.stdout.startswith(plain.stdout)
    assert checked.returncode == 0, checked.stderr
    assert "Checked: its instrumented kernel writes what the original kernel writes, bit for bit." in checked.stdout
    timeline = read_timeline(tmp_path / "kperf-trace/gemm.timeline.json")  # reading checks that parts are the sample's
    assert timeline.sampled is not None, timeline.why_all
    assert timeline.sampled.ctas == 8192 // 128 * (8192 // 256)
    assert timeline.ctas == timeline.sampled.recorded == -(-(timeline.sampled.ctas - 5) // 17)
    assert timeline.events.lost == 0
    assert 0.95 < timeline.overhead.ratio < 1.05
    # 128 iterations a CTA, of which 132 are there at once: what is left of a launch is their beginnings and ends.
    iterations_ms = timeline.cycles_per_unit.median * 128 * timeline.sampled.ctas / 132 / timeline.clock_mhz / 1e3
    assert 0.8 < iterations_ms / timeline.overhead.original_ms < 1.02


NORM = """
import hashlib, torch, triton, triton.language as tl

@triton.jit
def norm(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.load(x_ptr + row * columns + start + tl.arange(0, BLOCK)).to(tl.float32)
    mean = tl.sum(total, 0) / columns
    for start in range(0, columns, BLOCK):
        place = row * columns + start + tl.arange(0, BLOCK)
        tl.store(y_ptr + place, tl.load(x_ptr + place).to(tl.float32) - mean)

torch.manual_seed(0)
x = torch.randn(8192, 16384, device="cuda").bfloat16()
y = torch.empty_like(x)
for _ in range(60): norm[(8192,)](x, y, 16384, 1024, num_warps=4)
print("norm", hashlib.sha256(y.view(torch.int16).cpu().numpy().tobytes()).hexdigest())
"""


def test_a_kernel_that_all_events_disturb_is_read_from_sampled_ctas_and_its_sms_from_all(tmp_path):
    plain, traced = both_ways(tmp_path, NORM)
    assert traced.stdout.startswith(plain.stdout)
    assert traced.returncode == 0, traced.stderr
    timeline = read_timeline(tmp_path / "kperf-trace/norm.timeline.json")
    assert timeline.all_ctas is not None, timeline.why_all or timeline.overhead
    assert (timeline.sampled.ctas, timeline.ctas) == (8192, -(-(8192 - 5) // 17))
    assert abs(timeline.overhead.ratio - 1) < abs(timeline.all_ctas.overhead.ratio - 1)
    assert timeline.sms.sms == torch.cuda.get_device_properties(0).multi_processor_count
    assert timeline.sms.most_resident <= timeline.all_ctas.resources.occupancy
    moved = {part.argument: (part.loaded_bytes, part.stored_bytes) for part in timeline.memory.traffic}
    size = 8192 * 16384 * 2
    assert moved == {"x": (2 * size, 0), "y": (0, size)}
    assert timeline.recorded_by["memory.traffic"] == timeline.recorded_by["sms"] == "all CTAs"
    assert timeline.recorded_by["regions"] == "sampled CTAs"


def test_compiled_models_are_reached(tmp_path):
    plain, traced = both_ways(tmp_path, COMPILED)
    assert traced.stdout.startswith(plain.stdout)
    assert traced.returncode == 0, traced.stderr
    assert list((tmp_path / "kperf-trace").glob("triton_*.timeline.json"))
    assert not instrumented(tmp_path / "triton")
    assert not instrumented(tmp_path / "inductor")
