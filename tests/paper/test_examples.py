"""`make examples` with and without a GPU: what is traced, lowered, drawn, told and kept."""

import gzip
import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from kperf import installation
from kperf.errors import MeasurementError, UsageError
from kperf.ir import offline
from kperf.paper import examples
from kperf.record.files import write_between_marks
from tests.conftest import environment
from tests.test_trace_figure import imbalance, memory, pipeline


@pytest.fixture
def recorded(tmp_path) -> Path:
    """Results with three recorded examples, one a view."""
    folder = tmp_path / "h200" / "examples"
    folder.mkdir(parents=True)
    for name, make in (("vector_add", memory), ("gemm_tma", pipeline), ("moe", imbalance)):
        (folder / f"{name}.timeline.json").write_text(make().model_dump_json())
    return tmp_path


def test_every_script_is_an_example_and_every_name_is_given_once():
    # `make llama-block` runs the one, and `make inductor` the other.
    shown_apart = {examples.SCRIPTS / name for name in ("llama_block.py", "transformer_block.py")}
    assert {script.path for script in examples.EXAMPLES} | shown_apart == set(examples.SCRIPTS.glob("*.py"))
    assert len(set(examples.names())) == len(examples.names())


def test_without_a_gpu_kernels_are_lowered_and_the_record_is_drawn(console, no_gpu, recorded):
    examples.run(console, recorded, only=["gemm_tma"], require_gpu=False)
    said = console.export_text()
    assert "gemm_tma: registers 154 -> " in said
    assert "CTAs an SM 1 -> 1" in said
    assert "Over 1 example, events make a launch 5.0% slower on average, and 5.0% slower at most (gemm_tma)." in said
    assert "An iteration takes 2190 cycles" in said
    assert f"examples: recorded on {environment().gpu}, {environment().recorded_at[:10]}" in said
    assert "+5.0%" in said
    assert (recorded / "h200" / "examples" / "gemm_tma.png").stat().st_size > 10_000
    assert not (recorded / "h200" / "examples" / "moe.png").exists()


def one_pixel(figure, stream, format, **_):
    Image.new("RGB", (1, 1)).save(stream, format)


def test_all_recorded_examples_make_a_gallery_and_a_table(console, no_gpu, recorded, monkeypatch):
    monkeypatch.setattr(offline, "launched_by", lambda script, small: [])
    monkeypatch.setattr(Figure, "savefig", one_pixel)
    with pytest.raises(MeasurementError, match="examples failed: vector_add"):
        examples.run(console, recorded, only=[], require_gpu=False)
    page = (recorded / "h200" / "examples" / "gallery.html").read_text()
    assert re.findall('<img src="([^"]+)"', page) == ["vector_add.png", "gemm_tma.png", "moe.png"]
    assert page.count("<article>") == 3
    said = console.export_text()
    assert "imbalance" in said
    assert "Over 3 examples, events make a launch 5.0% slower on average" in said


def test_the_page_is_filled_from_the_records(recorded):
    page = recorded / "artifact.md"
    page.write_text("before\n<!-- examples -->\nold\n<!-- /examples -->\nafter\n")
    write_between_marks(page, "examples", examples.markdown(recorded / "h200"))
    text = page.read_text()
    assert text.startswith(
        "before\n<!-- examples -->\n## vector_add\n\n    kperf trace --kernel add examples/vector_add.py\n"
    )
    assert text.endswith("<!-- /examples -->\nafter\n")
    assert "## moe\n\n    kperf trace --kernel experts_gemm examples/moe.py\n" in text
    assert "old" not in text


def test_sentences_of_the_page_name_their_example(recorded):
    text = examples.markdown(recorded / "h200")
    assert "- An iteration of `gemm_tma` takes 2190 cycles; " in text
    assert "\n- The slowest CTA of `moe`, number " in text
    assert "Confidence in the reading of `moe` is high. Events change the time of a launch of `moe` by +5.0%." in text
    for section in text.split("## ")[1:-1]:
        name, *lines = section.splitlines()
        readings = [line for line in lines if line.startswith("- ")]
        assert len(readings) == 3
        assert all(f"`{name}`" in line for line in readings), readings


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("The SM has an MMA in flight.", "In `moe` an SM has an MMA in flight."),
        ("A CTA has 8 KB of loads in flight.", "In `moe` a CTA has 8 KB of loads in flight."),
        ("MMAs wait.", "In `moe` MMAs wait."),
    ],
)
def test_a_sentence_without_a_subject_of_its_own_begins_with_its_example(line, named):
    assert examples._with_name(line, "moe") == named


def test_what_is_no_example_is_refused(console, tmp_path):
    with pytest.raises(UsageError, match="there is no example gem; there are vector_add, "):
        examples.run(console, tmp_path, only=["gem"], require_gpu=False)


def test_without_a_checkout_there_are_no_scripts(console, tmp_path, monkeypatch):
    monkeypatch.setattr(installation, "CHECKOUT", None)
    with pytest.raises(UsageError, match="examples/, is not in the installed package: run this in a checkout"):
        examples.run(console, tmp_path, only=[], require_gpu=False)


def test_with_a_gpu_each_script_goes_through_kperf_trace(console, tmp_path, monkeypatch, in_a_fork, h200):
    # On the fake GPU nothing is computed: the script finds itself wrong, and prints so; its record is kept.
    monkeypatch.setattr(examples, "KPERF", (*in_a_fork, "-m", "tests.trace.capture.fake_gpu"))
    small = examples.Script("gemm_tma.py", {"gemm_tma": "gemm_tma_kernel"}, ("--size", "512"))
    monkeypatch.setattr(examples, "EXAMPLES", (small,))
    with pytest.raises(MeasurementError, match=r"gemm_tma.py --size 512 ended with exit status 1"):
        examples.run(console, tmp_path, only=[], require_gpu=True)
    kept = {path.name for path in (tmp_path / "h200" / "examples").iterdir()}
    assert kept == {"gallery.html", *(f"gemm_tma{suffix}" for suffix in examples.FILES)}
    packed = (tmp_path / "h200/examples/gemm_tma.chrome_trace.json.gz").read_bytes()
    assert json.loads(gzip.decompress(packed))["traceEvents"]
    assert packed == gzip.compress(gzip.decompress(packed), mtime=0)  # the same bytes whenever it is packed
    assert "pipeline" in console.export_text()


def test_launches_are_noted_and_the_driver_is_given_back():
    from triton.compiler import CompiledKernel
    from triton.runtime import driver

    before = driver._active, driver._default, CompiledKernel.run
    (launch,) = offline.launched_by(examples.SCRIPTS / "split_k.py", ["--size", "128", "--k", "2048", "--splits", "4"])
    assert (launch.name, launch.grid) == ("gemm_split_k", (1, 4, 1))
    assert launch.kernel.metadata.target.arch == 90
    assert (driver._active, driver._default, CompiledKernel.run) == before
