import functools
import io
import json
import re
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from kperf.compat.inductor_graph import reached
from kperf.compat.inductor_program import Counts, Kernel, Program
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.plots import inductor as plot
from kperf.record import device
from kperf.record.store import RecordStore
from kperf.studies import inductor, inductor_session, ncu
from kperf.studies.inductor import ROWS, Counters, InductorRow
from tests.conftest import COMMON, kept

NORM, MM = "triton_red_fused__fused_rms_norm_0", "mm"
CEILING_MS = 2 * 8192**3 / 700e12 * 1e3
"""Of 700 TFLOP/s."""


def row(number=0, name=NORM, us=100.0, **changes):
    triton = name.startswith("triton")
    fields = {
        "block": "llama",
        "sizes": {"batch": 1, "seq_len": 8192},
        "number": number,
        "name": name,
        "kind": "triton" if triton else "extern",
        "operands": "" if triton else "8192x4096, 4096x6144",
        "flops": 10**8 if triton else 7 * 10**10,
        "products": 0 if triton else 7 * 10**10,
        "functions": 0,
        "reduced": 0,
        "bytes": 2 * 10**8,
        "kernels": [name if triton else "nvjet_tst_128x256"],
        "launches": 1,
        "samples_us": [us * factor for factor in (0.99, 1.0, 1.02)],
        "ceiling_ms": [CEILING_MS],
        "copy_gb_per_s": 4000.0,
        "rel_error": 3e-3,
        "counters": Counters(flops=10**8 if triton else 5.0, products=0 if triton else 7.1e10, bytes=2.1e8),
    }
    return InductorRow(**COMMON, **(fields | changes))


def rows():
    return [row(), row(1, MM, 110.0), row(2, us=120.0), row(3, "triton_poi_fused_silu_mul_1", flops=300, functions=200)]


def shown(*parts):
    console = WholeConsole(width=200, file=io.StringIO(), record=True)
    for part in parts:
        console.print(part)
    return console.export_text()


def test_the_share_of_the_ceiling_is_of_the_nearer_one():
    memory, products = row(), row(name=MM)
    assert memory.at_ceilings_us == pytest.approx((0.0, 50.0))
    assert memory.share == pytest.approx(0.5)
    assert products.at_ceilings_us == pytest.approx((100.0, 50.0))
    assert products.share == pytest.approx(1.0)
    assert row(samples_us=[], kernels=[], message="why").share is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples_us": []}, "samples of kernels, or a message"),
        ({"message": "why"}, "samples of kernels, or a message"),
        ({"kernels": []}, "samples of kernels, or a message"),
        ({"counters": None}, "ncu's counters, or a message"),
        ({"ncu_message": "why"}, "ncu's counters, or a message"),
        ({"products": 10**9}, "functions and those of reductions are among them"),
        ({"reduced": 10**9}, "functions and those of reductions are among them"),
        ({"ceiling_ms": []}, "ceiling_ms"),
        ({"samples_us": [0.0]}, "samples_us"),
        ({"kind": "cpp"}, "kind"),
    ],
)
def test_a_row_that_contradicts_itself_is_none(changes, words):
    with pytest.raises(ValidationError, match=words):
        row(**changes)


def test_the_table_adds_up_the_launches_of_a_kernel():
    text = shown(inductor.table(rows(), "recorded"))
    assert "0.430 ms of kernels; recorded" in text
    (norm,) = (line for line in text.splitlines() if NORM in line)
    cells = [cell.strip() for cell in norm.strip("│ ").split("│")]
    assert cells[1:] == ["2", "110.0", "51.2%", "0.10", "200.00", "0.9", "1818", "45.5%", "memory"]
    assert "tensor cores" in text
    assert "8192x4096, 4096x6144" in text


def test_what_is_said_is_where_time_goes_and_how_far_ncu_is():
    printed = inductor.sentences(rows())
    assert "llama: 74.4% of its time is in kernels that Inductor wrote, at 46.9% of their ceilings." in printed
    assert "llama: bytes of 2 of 2 kernels that Inductor wrote within 10% of ncu's." in printed  # two have one name
    assert "llama: products of 1 of 1 kernels of libraries within 10% of ncu's." in printed
    assert "llama: FLOPs of 2 of 2 kernels that Inductor wrote within 10% of ncu's." in printed
    off = [row(counters=Counters(flops=10**8, products=0, bytes=1.6e8))]
    line = f"llama: bytes of 0 of 1 kernels that Inductor wrote within 10% of ncu's, not of {NORM} +25.0%."
    assert line in inductor.sentences(off)
    absent = [row(counters=None, ncu_message="there is no ncu")]
    assert "llama: not held against ncu: there is no ncu" in inductor.sentences(absent)


def test_flops_with_functions_or_reductions_are_a_floor():
    def off(counted, **changes):
        return inductor.deviations(row(counters=Counters(flops=counted, products=0, bytes=2e8), **changes))["FLOPs"]

    assert off(2e8) == pytest.approx(-0.5)
    assert off(2e8, functions=10**7) == off(2e8, reduced=10**7) == 0
    assert off(0.5e8, functions=10**7) == pytest.approx(1.0)
    assert inductor.deviations(row(bytes=10**5)) == {}


@pytest.mark.parametrize(
    ("operands", "off"),
    [("9216, 1x3072, 3072x9216", 0.0), ("9216, 64x3072, 3072x9216", -0.875), ("1x24x64x128, 1x24x64x128", -0.875)],
)
def test_the_tensor_cores_compute_eight_rows_of_a_product_of_one(operands, off):
    counters = Counters(flops=0, products=8e8, bytes=2e8)
    assert (
        inductor.deviations(row(operands=operands, flops=10**8, products=10**8, counters=counters))["products"] == off
    )


def test_the_claims_take_the_worst_kernel_that_inductor_wrote(tmp_path):
    assert inductor.summary(tmp_path).numbers == {}
    worse = row(4, "triton_poi_fused_add_2", counters=Counters(flops=1e8, products=0, bytes=2.5e8))
    library = row(5, MM, counters=Counters(flops=1, products=7.7e10, bytes=9e8))
    kept(RecordStore(tmp_path, "inductor", ROWS), (*rows(), worse, library))
    assert inductor.summary(tmp_path).numbers == pytest.approx({"bytes": 0.2, "products": 1 / 11, "FLOPs": 0.0})


def test_each_kernel_that_inductor_wrote_has_its_command(monkeypatch):
    monkeypatch.chdir(inductor.SCRIPT.parents[1])
    first, second = inductor.trace_commands(rows())
    assert first == f"inside: kperf trace --kernel {NORM} examples/transformer_block.py --block llama"
    assert "triton_poi_fused_silu_mul_1" in second


def test_a_pattern_goes_through_kperf_trace_block_by_block(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(
        inductor.child, "run", lambda words, *_, **__: ran.append(words) or SimpleNamespace(returncode=len(ran) - 1)
    )
    inductor._trace(rows(), "triton_red_*", tmp_path)
    ((python, *words),) = ran
    assert python == sys.executable
    assert words[:5] == ["-m", "kperf", "trace", "--kernel", "triton_red_*"]
    assert words[5:7] == ["--out", str(tmp_path / "llama" / "trace")]
    assert words[-2:] == ["--block", "llama"]
    with pytest.raises(MeasurementError, match=r"kperf trace .* failed"):
        inductor._trace(rows(), "triton_red_*", tmp_path)
    with pytest.raises(UsageError, match="no kernel that Inductor wrote fits mm"):
        inductor._trace(rows(), "mm", tmp_path)


def test_every_launch_is_in_a_scope_with_what_it_has_to_do(monkeypatch):
    log = []

    class Scope:
        def __init__(self, name, metrics):
            self.name = name
            log.append((name, metrics))

        def __enter__(self):
            log.append(f"in {self.name}")

        def __exit__(self, *_):
            log.append(f"out {self.name}")

    monkeypatch.setattr(inductor_session, "proton", SimpleNamespace(scope=Scope))
    kernels = [Kernel("a", "triton", "", Counts(8, bytes=16)), Kernel("mm", "extern", "", Counts(9, 9, bytes=3))]
    with inductor_session.scopes(kernels):
        reached(0)
        reached(1)
    reached(0)  # nobody watches
    assert log == [
        ("launch 0", {"flops": 8.0, "bytes": 16.0}), "in launch 0", "out launch 0",
        ("launch 1", {"flops": 9.0, "bytes": 3.0}), "in launch 1", "out launch 1",
    ]  # fmt: skip
    with inductor_session.scopes(kernels):
        reached(1)
        with pytest.raises(IndexError):  # a program that says more than it was noted to have
            reached(2)
    assert log[-1] == "out launch 1"


PROGRAM = Program(
    [
        Kernel(NORM, "triton", "", Counts(100, bytes=10)),
        Kernel(MM, "extern", "8x8, 8x8", Counts(1024, 1024, bytes=30)),
        Kernel("copy", "extern", "8x8", Counts(bytes=20)),
        Kernel("empty", "extern", "", Counts()),
    ],
    "the program",
    {NORM: "the source"},
)


def frame(name, children=(), **metrics):
    return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}


def profile():
    """Of rounds that take 1, 2, 3 us and so on for the norm; the product runs two kernels; the copy none; the last has
    no frame."""
    rounds = [
        frame(
            f"round {place}",
            [
                frame("launch 0", [frame(NORM, count=1, **{"time (ns)": 1000.0 * (place + 1)})], flops=100.0),
                frame("launch 1", [frame("nvjet", count=1, **{"time (ns)": 5000.0}),
                                   frame("splitK", count=2, **{"time (ns)": 500.0})], flops=1024.0),
                frame("launch 2", bytes=20.0),
            ],
        )
        for place in range(inductor.ROUNDS)
    ]  # fmt: skip
    return json.dumps([frame("ROOT", rounds), {"CUDA": {}}])


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """`measure` with a process that has left its files."""

    def profiled(command, limit_s):
        assert command[1:3] == ["-m", "kperf.studies.inductor_session"]
        folder = Path(command[4])
        (folder / "program.json").write_text(json.dumps(asdict(PROGRAM)))
        (folder / "session.json").write_text(json.dumps({"rel_error": 1e-3, "ceiling_ms": [1.5], "copy_gb_per_s": 4e3}))
        (folder / "rounds.hatchet").write_text(profile())

    monkeypatch.setattr(inductor, "under_proton", profiled)
    monkeypatch.setattr(device, "gpu_name", lambda: "NVIDIA H200")
    return lambda given: list(
        inductor.measure(COMMON, results=tmp_path / "results", out=tmp_path / "out", ncu_path=given)
    )


NCU = """#!/bin/sh
echo '"ID","Kernel Name",{columns}'
i=0
while [ $i -lt {rows} ]; do echo "\\"$i\\",\\"k\\",{values}"; i=$((i+1)); done
"""


def fake_ncu(folder, rows, columns=inductor.METRICS):
    values = {metric: str(10**place) for place, metric in enumerate(inductor.METRICS)}
    path = folder / "ncu"
    path.write_text(
        NCU.format(
            rows=rows,
            columns=",".join(f'"{column}"' for column in columns),
            values=",".join(f'\\"{values[column]}\\"' for column in columns),
        )
    )
    path.chmod(0o755)
    return path


def test_a_run_is_read_from_what_its_process_left(measured, tmp_path):
    norm, product, copy, empty, *llama = measured(fake_ncu(tmp_path, rows=4))
    assert [one.block for one in llama] == ["llama"] * 4
    assert norm.samples_us == [float(place + 1) for place in range(inductor.ROUNDS)]
    assert (norm.flops, norm.bytes, norm.kernels, norm.launches) == (100, 10, [NORM], 1)
    assert product.samples_us == [5.5] * inductor.ROUNDS
    assert (product.kernels, product.launches, product.products) == (["nvjet", "splitK"], 3, 1024)
    for absent in (copy, empty):
        assert (absent.samples_us, absent.launches, absent.message) == ([], 0, "Proton saw no kernel of it")
    # fadd 1, fmul 10, ffma 100 twice; products 1000; read 1e4, written 1e5 to DRAM or 32 times 1e6 to L2
    assert norm.counters == Counters(flops=211, products=1000, bytes=1e4 + 32e6)
    assert product.counters == Counters(flops=3 * 211, products=3000, bytes=3 * (1e4 + 32e6))
    assert copy.counters == Counters(flops=0, products=0, bytes=0)
    assert (tmp_path / "out/llama/program.py").read_text() == "the program"
    assert (tmp_path / f"out/dit/{NORM}.py").read_text() == "the source"
    kept = (tmp_path / "results/h200/inductor/dit.hatchet").read_text()
    assert json.loads(kept) == json.loads(profile())
    assert not re.search(r"\n.", kept)  # without white space


def test_what_ncu_lacks_is_said_in_each_row(measured, tmp_path, monkeypatch):
    assert {one.ncu_message for one in measured(fake_ncu(tmp_path, rows=5))} == {"ncu saw 5 kernels where Proton saw 4"}
    lacking = fake_ncu(tmp_path, rows=4, columns=inductor.METRICS[:-1])
    assert {one.ncu_message for one in measured(lacking)} == {f"ncu's table has no {inductor.METRICS[-1]}"}
    monkeypatch.setattr(ncu, "find", lambda given: (_ for _ in ()).throw(UsageError("there is no ncu")))
    assert {one.ncu_message for one in measured(None)} == {"there is no ncu"}


def test_a_profile_is_made_in_turn_with_cublas(monkeypatch, tmp_path):
    log = []
    monkeypatch.setattr(inductor_session, "compiled", lambda name: (PROGRAM, lambda: log.append("block"), 2e-3))
    monkeypatch.setattr(inductor_session, "Ceiling", lambda: SimpleNamespace(graph="cublas"))
    monkeypatch.setattr(inductor_session, "timed_replay", lambda graph, flush: log.append(graph) or (lambda: 1.5))
    monkeypatch.setattr(inductor_session.bandwidth, "measure", lambda: SimpleNamespace(copy_gb_per_s=4200.0))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        inductor_session,
        "proton",
        SimpleNamespace(
            start=lambda path, backend: log.append((Path(path).name, backend)) or 7,
            deactivate=lambda session: log.append("off"),
            activate=lambda session: log.append("on"),
            finalize=lambda session: log.append("end"),
            scope=lambda name, metrics=None: log.append(name) or nullcontext(),
        ),
    )
    inductor_session.main("dit", str(tmp_path))
    first = [("rounds", "cupti"), "off", "cublas", "on", "round 0", "block"]
    assert log[: len(first)] == first
    assert log[-1] == "end"
    assert log.count("block") == log.count("cublas") == inductor_session.ROUNDS
    printed = json.loads((tmp_path / "session.json").read_bytes())
    assert printed == {"rel_error": 2e-3, "ceiling_ms": [1.5] * inductor_session.ROUNDS, "copy_gb_per_s": 4200.0}
    assert inductor.foreign.read_json(tmp_path / "program.json", inductor.PROGRAM, "it") == PROGRAM


class Squared(torch.nn.Module):
    """The product of x with itself, and in bfloat16, if it is `wrong`, with something else."""

    def __init__(self, wrong):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.eye(8, dtype=torch.bfloat16))
        self.wrong = wrong

    def forward(self, x):
        return x @ (self.weights if self.wrong and self.weights.dtype == torch.bfloat16 else x)


def test_what_is_profiled_was_checked_and_is_the_program_that_was_noted(monkeypatch):
    x = torch.full((8, 8), 0.5, dtype=torch.bfloat16)
    made = SimpleNamespace(wrong=False)
    monkeypatch.setattr(inductor_session, "made", lambda *_: (Squared(made.wrong), (x,)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    program, call, error = inductor_session.compiled("dit")
    assert [kernel.name for kernel in program.kernels] == ["mm"]
    assert error < 1e-3
    assert torch.equal(call(), torch.full((8, 8), 2.0, dtype=torch.bfloat16))
    x.resize_(4, 4)  # another program
    with pytest.raises(RuntimeError, match="recompile"):
        call()
    x.resize_(8, 8).fill_(0.5)
    made.wrong = True
    with pytest.raises(MeasurementError, match="the compiled dit model is off by"):
        inductor_session.compiled("dit")


OWN = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU()).bfloat16(), (
        torch.randn(1024, 256, dtype=torch.bfloat16),
    )

def odd():
    return torch.nn.Linear(256, 512), [torch.zeros(1024, 255)]

def nothing():
    return torch.nn.Linear(2, 2)

def numbers():
    return torch.nn.Linear(2, 2), (3,)

def on_gpu():
    return torch.nn.Linear(2, 2, device="cuda"), (torch.zeros(2, 2),)

def failing(size):
    return size
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    (tmp_path / "broken.py").write_text("import torch\nraise ValueError('no weights')\n")
    return path


def test_a_model_of_ones_own_is_listed_without_a_gpu_and_its_sources_are_kept(no_gpu, own, tmp_path):
    text = call(tmp_path / "results", tmp_path / "out", model=f"{own}:model")
    assert "own.py:model: what Inductor writes for an H200" in text
    (product,) = (line for line in text.splitlines() if "addmm" in line)
    assert [cell.strip() for cell in product.split("│")[2:5]] == ["1", "0.27", "0.27"]  # 2 x 1024 x 256 x 512
    assert "triton_poi_fused_gelu_0" in text
    assert (tmp_path / "out/own_model/triton_poi_fused_gelu_0.py").is_file()
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("own.py", "own.py names no function of a file: give file.py:function"),
        ("own.txt:model", "own.txt:model names no function of a file"),
        ("no.py:model", "there is no file .*no.py"),
        ("broken.py:model", "broken.py cannot be imported: ValueError: no weights"),
        ("own.py:models", "own.py has no function models"),
        (
            "own.py:failing",
            r"own.py:failing ended with TypeError: failing\(\) missing 1 required positional argument: 'size'$",
        ),
        ("own.py:on_gpu", "own.py:on_gpu ended with .*; without a GPU it has to leave the device of tensors open$"),
        ("own.py:nothing", r"own.py:nothing gives no module with its inputs: return \(module, \(tensor, ...\)\)"),
        ("own.py:numbers", "own.py:numbers gives inputs that are no tensors"),
        ("own.py:odd", "the model of .*own.py:odd cannot be compiled for its inputs: "),
    ],
)
def test_a_model_that_is_none_is_one_sentence(no_gpu, own, tmp_path, name, words):
    with pytest.raises(UsageError, match=words) as refused:
        call(tmp_path / "results", tmp_path / "out", model=str(tmp_path / name))
    assert "\n" not in str(refused.value)


class Pair(torch.nn.Module):
    def forward(self, x):
        return x @ x, x


def test_a_model_of_ones_own_may_be_as_far_off_as_it_is_without_compilation(monkeypatch):
    torch.compiler.reset()
    x = torch.full((8, 8), 0.5, dtype=torch.bfloat16)
    monkeypatch.setattr(inductor_session, "made", lambda *_: (Squared(True), (x,)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert inductor_session.compiled("own.py:model")[2] > inductor_session.MAX_REL_ERROR
    monkeypatch.setattr(inductor_session, "made", lambda *_: (Pair(), (x,)))
    with pytest.raises(UsageError, match=r"the model of own.py:model returns a tuple: let it return one tensor"):
        inductor_session.compiled("own.py:model")


def test_kernels_of_a_model_of_ones_own_are_traced_by_its_name():
    made = [one.model_copy(update={"block": "own.py:model"}) for one in rows()]
    assert f"inside: kperf trace --kernel {NORM} -m kperf.studies.inductor_session own.py:model run" in (
        inductor.trace_commands(made)
    )


def call(results, out, **settings):
    console = WholeConsole(width=200, file=io.StringIO(), record=True)
    settings = {"trace": None, "ncu_path": None, "require_gpu": False} | settings
    inductor.run(console, results, plot.draw, out=out, **settings)
    return console.export_text()


def test_without_a_gpu_the_program_is_written_and_the_record_drawn(no_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(inductor, "written_without_gpu", functools.cache(inductor.written_without_gpu))
    text = call(tmp_path / "results", tmp_path / "out")
    assert "no time is recorded of `make inductor`" in text
    for block, kernel in (("dit", "triton_poi_fused_cat_gelu"), ("llama", NORM)):
        assert kernel in text
        code = (tmp_path / "out" / block / "program.py").read_text()
        found = {path.stem for path in (tmp_path / "out" / block).glob("triton_*.py")}
        assert found
        assert all(f"{name}.run(" in code for name in found)
    assert "1924.15" in text  # GFLOP of the SwiGLU's first projection, 2 x 8192 x 4096 x 28672
    kept(RecordStore(tmp_path / "results" / "h200", "inductor", ROWS), rows())
    text = call(tmp_path / "results", tmp_path / "out")
    assert "recorded on NVIDIA H200, 2026-01-02" in text
    assert (tmp_path / "results/h200/inductor.png").stat().st_size > 10_000


def test_a_folder_that_cannot_be_made_is_refused_first(no_gpu, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="choose another folder with --out"):
        call(tmp_path, tmp_path / "file" / "out")


def test_what_wants_a_gpu_says_so(no_gpu, tmp_path):
    for settings in ({"require_gpu": True}, {"trace": "*"}):
        with pytest.raises(UsageError, match="there is no GPU"):
            call(tmp_path, tmp_path, **settings)


def test_the_figure_has_a_bar_a_kernel_and_names_what_has_no_time():
    absent = row(4, "copy", samples_us=[], kernels=[], message="Proton saw no kernel of it")
    figure = plot.figure(
        [*rows(), absent, *(one.model_copy(update={"block": "dit"}) for one in rows()[:2])], "recorded"
    )
    upper, lower = figure.axes
    assert [label.get_text() for label in upper.get_yticklabels()] == [
        "red_rms_norm_0 (2 x)", "mm 8192x4096, 4096x6144", "poi_silu_mul_1"
    ]  # fmt: skip
    assert [bar.get_width() for bar in upper.patches[:4]] == pytest.approx([220.0, 100.0, 110.0, 100.0])
    assert len(lower.get_yticklabels()) == 2
    (legend,) = figure.legends
    assert legend.get_title().get_text().startswith("Kernels of compiled blocks over the least time they could take: ")
    assert "llama, copy: Proton saw no kernel of it" in figure.get_supxlabel().replace("\n", " ")


@pytest.mark.gpu
def test_on_a_gpu_all_is_measured_and_bytes_agree_with_ncu(tmp_path):
    text = call(tmp_path / "results", tmp_path / "out", require_gpu=True, trace=NORM)
    assert list((tmp_path / "out" / "llama" / "trace").glob("*.timeline.json"))
    (path,) = (tmp_path / "results").glob("*/inductor.jsonl")
    found = RecordStore(path.parent, "inductor", ROWS).points()
    assert {one.block for one in found} == {*inductor.BLOCKS}
    for one in found:
        if one.kind == "triton":
            assert one.name in one.kernels, "a launch is attributed to its kernel"
        if one.time_us is not None and one.time_us > 20:
            assert 0.05 < (one.share or 0) < 1.25, one  # of what fits into the L2 part is not read from memory
    for one in found:
        off = inductor.deviations(one)
        if one.kind == "triton" and one.bytes > 10**8:
            assert not one.ncu_message, text
            assert abs(off["bytes"]) < inductor.GOAL, (one.name, off)
