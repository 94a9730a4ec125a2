import functools
import json
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kperf.errors import UsageError
from kperf.ir import offline
from kperf.plots import lines as plot
from kperf.record import device
from kperf.record.store import RECORDED, RecordStore
from kperf.studies import lines, ncu, sampled
from kperf.studies.hatchet import Tree
from kperf.studies.lines import CostRow, LineRow, ncu_samples, proton_samples
from kperf.studies.records import Run, recorded
from tests.conftest import COMMON, kept

GEMM = Path(sampled.EXAMPLES, "gemm_gluon_ws.py").read_text().splitlines()


@pytest.fixture(scope="module", autouse=True)
def machine_code_is_read_once():
    """For it nvdisasm takes half a second."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lines, "lines_of", functools.cache(lines.lines_of))
        yield


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the script leaves, run on small tensors without a GPU."""
    folder = tmp_path_factory.mktemp("ran")
    plain_randn = torch.randn
    with pytest.MonkeyPatch.context() as patched, offline.noted_launches() as launches:
        patched.setattr(torch, "randn", lambda *shape, **more: plain_randn(*(min(n, 512) for n in shape), **more))
        patched.setattr(torch.cuda, "synchronize", lambda: None)
        patched.setattr(device, "exclusive", nullcontext)
        sampled.main("plain", "1", str(folder))
    assert [launch.name for launch in launches] == list(sampled.KERNELS)
    return folder


def test_the_script_leaves_its_time_and_its_machine_code(ran):
    assert json.loads((ran / "seconds.json").read_text()) > 0
    for kernel in sampled.KERNELS:
        found = lines.lines_of(ran / f"{kernel}.cubin", kernel)
        assert len(found) > 300
        assert {file for file, _ in found} <= {
            "examples/attention.py",
            "examples/gemm_gluon_ws.py",
            "language/standard.py",
        }
    text = " ".join(GEMM[line - 1] for _, line in lines.lines_of(ran / "gemm_gluon.cubin", "gemm_gluon"))
    assert "warpgroup_mma_wait(0" in text
    assert "import argparse" not in text
    with pytest.raises(UsageError, match="unknown profiler nosuch"):
        sampled.main("nosuch", "1", str(ran))


def printed_by_ncu(ran, *, launches=2, extra=0, missing=0):
    """As `--page source --csv` has it: samples only at the first instruction of the line that waits for products."""
    rows = ["==PROF== Disconnected"]
    wait = next(number for number, text in enumerate(GEMM, 1) if "warpgroup_mma_wait(0" in text)
    for _ in range(launches):
        for kernel in sampled.KERNELS:
            rows.append(f'"Kernel Name","{kernel} (2048, 1, 1)x(384, 1, 1)"')
            rows.append(f'"#","Address","Source","{lines._ALL}","{lines._STALLED}","Instructions Executed"')
            found = lines.lines_of(ran / f"{kernel}.cubin", kernel)
            found = found[: len(found) - missing]
            first = next((i for i, (file, line) in enumerate(found) if file.endswith("_ws.py") and line == wait), 0)
            for i in range(len(found)):
                counts = (1_200, 900) if i == first else (0, 0)
                rows.append(f'"{i}","7f{i:x}0","FFMA R1, R2, R3, R4","{counts[0]:,}","{counts[1]}","5"')
            rows += ['"9","7f","@!P0  BRA 0x7f44f97a7bf0","0","0","0"', *['"9","7f","NOP","","","0"'] * 3]
            rows += ['"9","7f","FADD R1, R2, R3","0","0","0"'] * extra
    return "\n".join(rows), wait


def test_ncus_instructions_are_put_on_lines_and_launches_added_up(ran):
    printed, wait = printed_by_ncu(ran)
    found = ncu_samples(printed, ran)
    assert found["gemm_gluon", "examples/gemm_gluon_ws.py", wait] == (2400, 1800)
    assert sum(samples for (kernel, *_), (samples, _) in found.items() if kernel == "gemm_gluon") == 2400


@pytest.mark.parametrize("change", [{"extra": 1}, {"missing": 5}])
def test_another_kernels_instructions_are_refused(ran, change):
    with pytest.raises(UsageError, match="the machine code that ran has"):
        ncu_samples(printed_by_ncu(ran, **change)[0], ran)


@given(
    text=st.text(max_size=300)
    | st.sampled_from(["", '"Kernel Name"', f'"Kernel Name","x"\n"Source","{lines._ALL}"\n1,2'])
)
def test_no_text_of_ncu_is_taken_for_samples(text):
    with pytest.raises(UsageError):
        ncu_samples(text, Path("/nonexistent"))


def tree():
    folder = "/somewhere/examples"
    return Tree("ROOT", {}, [
        Tree("attention_forward", {}, [
            Tree(f"{folder}/attention.py:48@attention_forward", {"num_samples": 90, "num_stalled_samples": 60}),
            Tree(f"{folder}/attention.py:attention_forward@49", {"num_samples": 20, "num_stalled_samples": 10}),
            Tree("/x/triton/language/standard.py:7@", {"num_samples": 5, "num_stalled_samples": 5}),
        ]),
        Tree("gemm_gluon", {"num_samples": 3}),
    ])  # fmt: skip


def written(frames, path):
    """A profile of Proton's."""

    def node(frame):
        return {"frame": {"name": frame.name}, "metrics": frame.metrics, "children": [*map(node, frame.children)]}

    path.write_text(json.dumps([node(frames), {}]))
    return path


def test_protons_frames_are_samples_by_line_of_the_files_that_it_names(tmp_path):
    """Also of a file that is named like an example: it is the user's own."""
    (found,) = lines.read_samples(written(tree(), tmp_path / "mine.hatchet"))
    attention, library = "/somewhere/examples/attention.py", "/x/triton/language/standard.py"
    as_proton_has_them = {
        ("attention_forward", attention, 48): (90, 60),
        ("attention_forward", attention, 49): (20, 10),
    }
    assert proton_samples(tree()) == as_proton_has_them | {("attention_forward", library, 7): (5, 5)}
    once = {("attention_forward", attention, 48): (60, 30), ("attention_forward", attention, 49): (10, 10)}
    assert found.by_place == once | {("attention_forward", library, 7): (5, 0)}
    assert (found.profiler, found.file) == ("Proton", str(tmp_path / "mine.hatchet"))
    mine = Tree(
        "ROOT",
        {},
        [Tree("softmax", {}, [Tree("/home/me/softmax.py:9@softmax", {"num_samples": 4, "num_stalled_samples": 4})])],
    )
    (found,) = lines.read_samples(written(mine, tmp_path / "softmax.hatchet"))
    assert found.of_lines("softmax", "softmax.py") == found.of_lines("softmax", "me/softmax.py") == {9: (4, 0, "")}


def test_a_profile_without_samples_says_how_to_take_some(tmp_path):
    path = written(Tree("ROOT", {}, [Tree("k", {"time (ns)": 1.0})]), tmp_path / "times.hatchet")
    with pytest.raises(UsageError) as refused:
        lines.read_samples(path)
    assert str(refused.value) == (
        f"{path} has no samples by line: "
        'profile with `triton.profiler.start("NAME", backend="cupti", mode="pcsampling")`'
    )


def cost(profiler, launches_s, message=""):
    process_s = None if launches_s is None else launches_s + 5
    return CostRow(
        **COMMON, profiler=profiler, launches=40, launches_s=launches_s, process_s=process_s, message=message
    )


def line(samples=90, stalled=60, number=48, text="    x = tl.load(p) < 3"):
    return LineRow(
        **COMMON, profiler="ncu", kernel="attention_forward", file="examples/attention.py", line=number, text=text,
        samples=samples, stalled=stalled,
    )  # fmt: skip


def rows():
    return [cost("plain", 0.02), cost("proton_sampling", 0.5), cost("ncu", 30.0),
            cost("trace_passes", None, "no such option"), line(), line(10, 0, 49)]  # fmt: skip


def test_a_row_says_what_it_lacks():
    for broken in ({"launches_s": None}, {"launches_s": None, "process_s": None, "message": ""}):
        with pytest.raises(ValidationError, match="both times, or a message"):
            CostRow(**(cost("plain", 1.0).model_dump() | broken))
    with pytest.raises(ValidationError, match="more than there are samples"):
        line(samples=1, stalled=2)


def test_costs_are_told_beside_the_slides_and_lines_with_their_source(console):
    assert lines.factors(rows()) == {"plain": 1, "proton_sampling": 25, "ncu": 1500}
    console.print(lines.costs_table(rows(), "recorded"))
    console.print(lines.annotated(rows(), "ncu", "attention_forward"))
    text = console.export_text()
    assert any("1500.0" in row and "above 1000x" in row for row in text.splitlines())
    assert "no such option" in text
    assert any(
        "90.0%" in row and "x = tl.load(p) < 3" in row and "█" * 12 + "░" * 6 in row for row in text.splitlines()
    )
    page = lines.html_page(rows(), "recorded <here>")
    assert "x = tl.load(p) &lt; 3" in page
    assert "recorded &lt;here&gt;" in page
    assert "rgba(213,94,0,0.70)" in page


def test_every_profiler_gets_a_row_and_a_failure_its_reason(ran, tmp_path, monkeypatch):
    commands = []
    printed = printed_by_ncu(ran)[0]

    def run(command, _limit_s, **_):
        commands.append(command)
        if "auto" in command:
            return subprocess.CompletedProcess(command, 2, "", "kperf: several passes are refused")
        for name in ("seconds.json", *(f"{kernel}.cubin" for kernel in sampled.KERNELS)):
            shutil.copy(ran / name, command[-1])
        if "proton_sampling" in command:
            frames = [
                {"frame": {"name": child.name}, "metrics": child.metrics} for child in tree().children[0].children
            ]
            root = {"frame": {"name": "ROOT"}, "metrics": {}, "children": frames}
            Path(command[-1], "lines.hatchet").write_text(json.dumps([root, {}]))
        return subprocess.CompletedProcess(command, 0, printed, "")

    monkeypatch.setattr(lines.child, "run", run)
    monkeypatch.setattr(ncu, "find", lambda given: Path("/usr/bin/ncu"))
    found = list(lines.measure(COMMON, ncu_path=None))
    costs = {row.profiler: row for row in found if isinstance(row, CostRow)}
    assert list(costs) == list(lines.PROFILERS)
    assert "several passes are refused" in costs["trace_passes"].message
    assert costs["ncu"].launches_s == json.loads((ran / "seconds.json").read_text())
    assert {row.profiler for row in found if isinstance(row, LineRow)} == {"proton_sampling", "ncu"}
    by_proton = [row for row in found if isinstance(row, LineRow) and row.profiler == "proton_sampling"]
    assert {row.file for row in by_proton} == {"examples/attention.py", "language/standard.py"}
    (by_ncu,) = [
        row for row in found if isinstance(row, LineRow) and row.profiler == "ncu" and row.kernel == "gemm_gluon"
    ]
    assert "warpgroup_mma_wait" in by_ncu.text
    trace = next(command for command in commands if "trace" in command)
    assert trace[trace.index("-m", 3) + 1 :][:3] == ["kperf.studies.sampled", "plain", str(lines.LAUNCHES)]
    monkeypatch.setattr(ncu, "find", lambda given: (_ for _ in ()).throw(UsageError("there is no ncu")))
    assert [row.message for row in lines.measure(COMMON, ncu_path=None) if getattr(row, "profiler", "") == "ncu"] == [
        "there is no ncu"
    ]


def test_a_recorded_run_is_shown_and_without_one_a_sentence_says_so(tmp_path, no_gpu, console):
    with pytest.raises(UsageError, match="nothing is recorded of `make lines`"):
        lines.run(console, tmp_path, plot.draw, ncu_path=None, require_gpu=False)
    kept(RecordStore(tmp_path / "h200", "lines", lines.ROWS), rows())
    lines.run(console, tmp_path, plot.draw, ncu_path=None, require_gpu=False)
    assert "recorded on NVIDIA H200" in console.export_text()
    assert "<pre>" in (tmp_path / "h200/lines.html").read_text()
    assert (tmp_path / "h200/lines.png").stat().st_size > 10_000
    assert lines.summary(tmp_path / "h200").numbers["ncu"] == 1500


def test_the_page_of_a_measured_run_is_that_of_its_record(tmp_path, no_gpu, console, monkeypatch):
    """It is versioned: `make lines` without a GPU leaves no other bytes than the run that was recorded."""
    kept(RecordStore(tmp_path / "h200", "lines", lines.ROWS), rows())
    lines.run(console, tmp_path, plot.draw, ncu_path=None, require_gpu=False)
    page = tmp_path / "h200/lines.html"
    of_record = page.read_bytes()
    page.unlink()
    of_rows = recorded(tmp_path / "h200", "lines", lines.ROWS).rows
    measured = Run(tmp_path / "h200", of_rows, "measured on NVIDIA H200, 2026-01-02")
    monkeypatch.setattr(lines, "measured_or_recorded", lambda *_, **__: measured)
    lines.run(console, tmp_path, plot.draw, ncu_path=None, require_gpu=False)
    assert page.read_bytes() == of_record


@pytest.mark.parametrize("gpu", ["h100-80gb-hbm3", "h200"])
def test_the_committed_page_is_what_the_record_gives(gpu):
    found = recorded(RECORDED / gpu, "lines", lines.ROWS)
    assert lines.html_page(lines.as_taken(found.rows), found.stamp) == (RECORDED / gpu / "lines.html").read_text()


def test_the_figure_has_the_same_lines_for_each_profiler_and_their_shares():
    def line(profiler, number, samples, stalled, text="x = 1"):
        told = {"file": "examples/a.py" if text else "language/standard.py", "line": number, "text": text}
        return lines.LineRow(**COMMON, profiler=profiler, kernel="gemm", samples=samples, stalled=stalled, **told)

    fits, long = f"{'y':<61}1", f"{'z':<61}12"
    texts = {8: fits, 9: long}
    rows = [line("pcsampling", n, 10 * n, 5 * n, texts.get(n, "x = 1")) for n in range(1, 10)]
    rows += [line("pcsampling", 170, 50, 10, text=""), line("ncu", 3, 60, 15), line("ncu", 9, 40, 40, long)]
    figure = plot.figure(rows, "recorded on a card")
    _, _, panel = figure.axes
    assert panel.get_title(loc="left") == "gemm"
    texts = {text.get_position(): text.get_text() for text in panel.texts}
    source = [text for (x, _), text in texts.items() if x > 0.26]
    whole = [*(f"{n:>4}  x = 1" for n in range(3, 8)), f"   8  {fits}", f"   9  {long[:61]}…", " 170  (standard.py)"]
    assert source == whole, "those with the largest shares, of 62 letters at most"
    columns = [[text for (x, y), text in texts.items() if x == middle and y >= 0] for middle in (0.065, 0.195)]
    assert columns[0] == [*(f"{n / 50:.0%} (50%)" for n in range(3, 10)), "10% (20%)"]
    assert columns[1] == ["60% (25%)", "-", "-", "-", "-", "-", "40% (100%)", "-"]
    heat = [patch.get_alpha() for patch in panel.patches]
    assert heat[:2] == pytest.approx([0.75 * 0.06 / 0.6, 0.75])  # 6 % of the first's samples, and the most of all
    plt.close(figure)


def test_the_figure_says_how_many_times_as_long_launches_and_process_take():
    figure = plot.figure(rows(), "recorded on a card")
    launches, process, *_ = figure.axes
    assert [text.get_text() for text in launches.texts] == ["1.0 x", "25 x", "1,500 x"]  # without, Proton, ncu
    costs = {row.profiler: row.process_s for row in rows() if isinstance(row, lines.CostRow)}
    wanted = [f"{seconds / costs['plain']:.1f} x" for seconds in costs.values() if seconds]
    assert [text.get_text() for text in process.texts] == wanted
    (legend,) = figure.legends
    assert "ncu 1,500 x" in legend.get_title().get_text()
    plt.close(figure)


def test_of_the_recorded_launches_proton_and_ncu_agree_on_which_samples_had_no_issue():
    """So it is known what Proton's two numbers are: of samples that it counted twice the parts would differ."""
    path = Path(__file__).resolve().parents[2] / "results/h200/lines.jsonl"
    recorded = {one.profiler: one for one in lines.read_samples(path)}
    protons, ncus = recorded["Proton, instruction sampling"].by_place, recorded["ncu, SourceCounters"].by_place
    large = [place for place, (count, _) in ncus.items() if count > 20_000]
    assert len(large) >= 10
    for place in large:
        (samples, stalled), (count, idle) = protons[place], ncus[place]
        assert stalled / samples == pytest.approx(idle / count, abs=0.1), place
