"""The HTML page of traced kernels: what it shows, and what it does in a real browser.

KPERF_REQUIRE_VIEWER=1, as in CI, makes a missing browser a failure.
"""

import base64
import gzip
import html
import json
import re
import shutil
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kperf.diagnose.engine import found_in
from kperf.errors import UsageError
from kperf.ir import kept
from kperf.ir.kept import of_levels
from kperf.ir.levels import Line
from kperf.ir.locations import Frame
from kperf.record.store import RECORDED
from kperf.report.events import read_typical_cta, trace_beside
from kperf.report.figure import KINDS, timeline_figure
from kperf.report.html import listing, page
from kperf.report.report import read_report
from kperf.report.samples import Samples
from kperf.trace.analyze.models import LineSamples, PcSamples, WhatIf
from tests.command import kperf
from tests.report.browser import npm_package

AXE = "axe-core@4.10.3"
EXAMPLES = RECORDED / "h200" / "examples"
GEMM, SOFTMAX = (EXAMPLES / f"{name}.timeline.json" for name in ("gemm_tma", "softmax"))
KERNEL = "examples/gemm_tma.py"
HOSTILE = "<img src=x onerror=alert(1)> & 'x'"


@pytest.fixture(scope="module")
def text():
    """Of two recorded kernels, one of which has a hostile name."""
    first, second = read_report(GEMM), read_report(SOFTMAX)
    hostile = second.timeline.model_copy(update={"label": HOSTILE, "verdict": [HOSTILE, *second.timeline.verdict]})
    return page([replace(first, ir=ir()), replace(second, timeline=hostile)], RECORDED.parent, [SAMPLES])


SAMPLES = Samples(
    f"Proton {HOSTILE}",
    {
        ("gemm_tma_kernel", "somewhere/examples/gemm_tma.py", 19): (60, 15),
        ("gemm_tma_kernel", "examples/gemm_tma.py", 18): (20, 20),
        ("gemm_tma_kernel", "triton/language/standard.py", 18): (120, 0),
        ("another", "examples/gemm_tma.py", 19): (7, 7),
    },
    "profile.hatchet",
)


def ir(lines=1):
    """A kernel of two levels: two lines of the source, and one of no place."""
    load, dot = (
        Line(text, (Frame("examples/gemm_tma.py", at, 3),)) for text, at in ((f"ld {HOSTILE}", 18), ("mma", 19))
    )
    levels = {"ttgir": [load, dot] * lines, "sass": [dot, Line("EXIT"), load]}
    return of_levels("gemm_tma_kernel", "sm_90a", levels, Path("/elsewhere"))


DRIVE = """<script>{axe}</script><script>
const errors = []
window.addEventListener("error", (event) => errors.push(event.message))
const pause = (milliseconds) => new Promise((then) => setTimeout(then, milliseconds))
const figure = (name) => Bokeh.documents.map((one) => one.get_model_by_name(name)).find(Boolean)
async function drive() {{
  while (document.querySelectorAll(".figure[data-ready]").length < 2) await pause(50)
  const part = document.querySelector(".figure"), range = figure("timeline0").x_range
  const source = figure("timeline0").renderers[0].data_source
  const seen = {{ bounds: [...range.bounds], begin: [range.start, range.end] }}
  const paper = part.querySelector(".paper")
  const press = (key) => paper.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true }}))
  press("+"); seen.zoomed = [range.start, range.end]
  press("ArrowRight"); seen.moved = [range.start, range.end]
  part.querySelector("[data-move=all]").click(); seen.whole = [range.start, range.end]
  press("0"); seen.reset = [range.start, range.end]
  const search = part.querySelector("input")
  search.value = "STORE"; search.dispatchEvent(new Event("input"))
  seen.pale = source.data.alpha.filter((alpha) => alpha < 1).length
  seen.names = source.data.name.filter((_, index) => source.data.alpha[index] === 1)
  seen.count = part.querySelector("output").value
  search.dispatchEvent(new KeyboardEvent("keydown", {{ key: "Enter" }}))
  const first = source.data.name.findIndex((name) => name.includes("store"))
  seen.first = [source.data.left[first], source.data.right[first]]
  seen.jumped = [range.start, range.end]
  const folded = document.querySelector("details:has(.ladder)")
  seen.folded = folded.open; folded.open = true
  const rows = [...folded.querySelectorAll(".pane")].map((pane) => [...pane.querySelectorAll("li")])
  rows[1][1].focus(); seen.lit = rows.map((lines) => lines.map((line) => line.classList.contains("lit")))
  seen.said = folded.querySelector("output").textContent
  rows[1][1].dispatchEvent(new KeyboardEvent("keydown", {{ key: "ArrowRight", bubbles: true }}))
  seen.beside = document.activeElement.textContent
  for (const one of document.querySelectorAll("details")) one.open = true
  seen.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth
  const loaded = performance.getEntriesByType("resource").map((entry) => entry.name)
  seen.fetched = loaded.filter((name) => !name.startsWith("data:"))
  seen.images = document.querySelectorAll("img").length
  const found = await axe.run(document, {{ resultTypes: ["violations"] }})
  seen.violations = found.violations.map((one) => [one.id, one.nodes.map((node) => node.html.slice(0, 120))])
  seen.errors = errors
  document.body.appendChild(document.createElement("textarea")).textContent = JSON.stringify(seen)
}}
drive()
</script></body>"""


@pytest.fixture(scope="module")
def driven(text, tmp_path_factory):
    """What somebody sees who zooms, moves and searches, on a phone's width; and axe-core's violations."""
    folder = tmp_path_factory.mktemp("page")
    with tarfile.open(npm_package(AXE, folder)) as archive:
        axe = archive.extractfile("package/axe.min.js").read().decode()
    (folder / "page.html").write_text(text.replace("</body>", DRIVE.format(axe=axe)))
    chromium = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
        f"--user-data-dir={folder}/profile", "--window-size=500,900", "--virtual-time-budget=20000",
        "--enable-logging=stderr", "--dump-dom", f"file://{folder}/page.html",
    ]  # fmt: skip
    done = subprocess.run(chromium, capture_output=True, text=True, check=True, timeout=280)
    said = re.findall(r'CONSOLE:\d+\] "([^"]*)"', done.stderr)
    seen = re.search(r"<textarea>([^<]+)</textarea>", done.stdout)
    assert seen, f"the page did not get ready: {said}"
    return json.loads(html.unescape(seen.group(1))) | {"console": said}


def test_the_ladder_is_folded_and_links_its_levels(driven):
    assert driven["folded"] is False
    source, ttgir, sass = driven["lit"]
    assert (ttgir, sass, sum(source)) == ([False, True], [True, False, False], 1)
    assert driven["said"] == "Lines: 1 in gemm_tma.py, 1 in ttgir, 1 in sass"
    assert driven["beside"] == "mma"


def cells(text):
    return [html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", text)]


def test_samples_stand_beside_the_source_as_shares_of_their_kernel(text):
    """Of 200 samples of the kernel 60 and 20 fell on its own lines; a file of the same end is the same file."""
    gemm, _ = re.findall(r'<table class="source">.*?</table>', text, re.DOTALL)
    lines = [cells(row) for row in gemm.split("<tr>")[2:]]
    shares = {line[0]: line[-2] for line in lines if line[-2]}
    assert shares == {"18": "10% (100%)", "19": "30% (25%)"}
    assert html.escape(SAMPLES.profiler, quote=False) in text.replace("&#39;", "'")


def test_samples_of_the_trace_itself_stand_beside_the_source_with_what_most_warps_wait_for():
    """A warp that is ready waits for nothing; a line without samples of its own is of no use here."""
    lines = [
        LineSamples(file=KERNEL, line=19, samples=60, not_issued=15, stalls={"selected": 40, "wait": 20}),
        LineSamples(file=KERNEL, line=18, samples=20, not_issued=5, stalls={"not_selected": 20}),
        LineSamples(file=KERNEL, line=17, samples=0, not_issued=0, stalls={}, awaited={"long_scoreboard": 3}),
    ]
    report = read_report(GEMM)
    samples = PcSamples(launches=1, period_cycles=1024, dropped=0, lines=lines)
    shown = page([replace(report, timeline=report.timeline.model_copy(update={"samples": samples}))], RECORDED.parent)
    (table,) = re.findall(r'<table class="source">.*?</table>', shown, re.DOTALL)
    beside = {line[0]: line[-2] for line in (cells(row) for row in table.split("<tr>")[2:]) if line[-2]}
    assert beside == {"19": "75% (25%) wait", "18": "25% (25%)"}
    assert ">GPU, samples</th>" in table


def test_two_profiles_of_one_name_have_a_column_each_and_are_told_apart():
    """Each column is of its own total, also where a folder has a kernel of another file's."""
    few, many = (
        Samples("Proton", {("gemm_tma_kernel", "examples/gemm_tma.py", 18): counts}, file)
        for file, counts in (("few.hatchet", (10, 4)), ("many.hatchet", (1_000, 700)))
    )
    other = Samples("Proton", {("another", "examples/gemm_tma.py", 18): (3, 3)}, "other.hatchet")
    shown = page([read_report(GEMM)], RECORDED.parent, [other, few, many])
    (table,) = re.findall(r'<table class="source">.*?</table>', shown, re.DOTALL)
    (line,) = [row for row in map(cells, table.split("<tr>")[2:]) if row[0] == "18"]
    assert line[-3:-1] == ["100% (40%)", "100% (70%)"]
    assert re.findall(r">([^<>]*, samples)</th>", table) == [
        "Proton (few.hatchet), samples", "Proton (many.hatchet), samples",
    ]  # fmt: skip
    alone = page([read_report(GEMM)], RECORDED.parent, [other, few])
    assert ">Proton, samples</th>" in alone


def test_a_ladder_that_is_too_large_for_the_page_leaves_levels_out_and_says_so():
    report = replace(read_report(GEMM), ir=ir(20_000))
    shown = page([report], RECORDED.parent)
    assert len(shown) < 5_000_000
    assert "ttgir would make this page too large: `kperf ir SCRIPT --level ttgir` shows it" in shown
    assert ">sass</h3>" in shown
    assert ">ttgir</h3>" not in shown


def recorded_elsewhere(report, path, **environment):
    """The same kernel, of another file, with another environment."""
    found = report.timeline.environment.model_copy(update=environment)
    return replace(report, path=Path(path), timeline=report.timeline.model_copy(update={"environment": found}))


LATER = "2026-11-23T10:00:00+00:00"


def test_two_timelines_of_one_kernel_are_before_and_after():
    before = read_report(GEMM)
    overhead = before.timeline.overhead.model_copy(update={"original_ms": 0.75 * before.timeline.overhead.launch_ms})
    after = recorded_elsewhere(before, "after/gemm.timeline.json", recorded_at=LATER)
    after = replace(after, timeline=after.timeline.model_copy(update={"overhead": overhead}))
    shown = page([before, after], RECORDED.parent)
    assert "<h2>Before and after</h2>" in shown
    (row,) = re.findall(r"<tr><th[^>]*>time of a launch, ms</th>(.*?)</tr>", shown)
    assert cells(row) == [f"{before.timeline.overhead.launch_ms:.4f}", f"{overhead.launch_ms:.4f}", "-25.0%"]
    assert "<h2>Side by side</h2>" in page([before, read_report(SOFTMAX)], RECORDED.parent)
    assert "<h2>Facts</h2>" in page([before], RECORDED.parent)


@pytest.mark.parametrize(
    ("folders", "environment", "title"),
    [
        (("out/rank0", "out/rank1"), {"recorded_at": LATER}, "Side by side"),
        (("before/rank0", "after/rank0"), {"recorded_at": LATER}, "Before and after"),
        (("before", "after"), {"recorded_at": LATER}, "Before and after"),
        (("before", "after"), {"recorded_at": LATER, "gpu_uuid": "another"}, "Side by side"),
        (("out", "out"), {}, "Side by side"),  # two compilations, of one run
    ],
)
def test_ranks_gpus_and_compilations_are_no_before_and_after(folders, environment, title):
    first = read_report(GEMM)
    one, other = (f"{folder}/k{number}.timeline.json" for number, folder in enumerate(folders))
    both = [recorded_elsewhere(first, one), recorded_elsewhere(first, other, **environment)]
    assert re.findall(r"<h2>(Side by side|Before and after)</h2>", page(both, RECORDED.parent)) == [title]


def test_kernels_of_one_name_are_told_apart_by_their_files(tmp_path):
    out = tmp_path / "page.html"
    paths = [EXAMPLES / f"{name}.timeline.json" for name in ("gemm_1_stage", "gemm_3_stages", "softmax")]
    assert kperf("report", *paths, "--out", out).returncode == 0
    names = re.findall(r'<h2 id="name\d+">(.*?)</h2>', out.read_text())
    assert names == ["gemm_kernel (gemm_1_stage)", "gemm_kernel (gemm_3_stages)", "softmax_rows"]


def test_samples_of_a_record_come_through_the_command(tmp_path):
    out = tmp_path / "page.html"
    attention = EXAMPLES / "attention_forward.timeline.json"
    assert kperf("report", attention, "--samples", RECORDED / "h200" / "lines.jsonl", "--out", out).returncode == 0
    assert "Proton, instruction sampling, samples</th>" in out.read_text()
    for name, sentence in (("none.hatchet", "is missing"), ("it.txt", "is no file of samples: give a .hatchet")):
        done = kperf("report", attention, "--samples", tmp_path / name, "--out", out)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr


@given(st.binary(max_size=60))
def test_damaged_ir_is_refused_in_a_sentence(tmp_path_factory, tail):
    path = tmp_path_factory.mktemp("ir") / "k.ir.json.gz"
    path.write_bytes(ir().packed()[: -1 - len(tail)] + tail)
    with pytest.raises(UsageError, match="is not the IR of a kernel that kperf wrote: trace the kernel again"):
        kept.read(path)


def test_ir_whose_packing_is_damaged_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "k.ir.json.gz"
    path.write_bytes(ir().packed()[:10] + b"\xff" * 40)
    with pytest.raises(UsageError, match="is not the IR of a kernel that kperf wrote"):
        kept.read(path)


@pytest.mark.parametrize("place", [1, -1])
def test_ir_of_a_place_that_there_is_not_is_refused(tmp_path, place):
    path = tmp_path / "k.ir.json.gz"
    one = {"kernel": "k", "target": "sm_90a", "places": [["f", 1, 1]], "levels": {"ptx": [["ret", [place]]]}}
    path.write_bytes(gzip.compress(json.dumps(one).encode()))
    with pytest.raises(UsageError, match="is not the IR of a kernel"):
        kept.read(path)


def test_the_page_needs_no_network_and_stays_small(text):
    assert len(text) < 5_000_000 * 2
    document = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    outside = re.findall(r"""(?:src|href)=["']?(\w+:[^"' >]{0,40})""", document)
    assert {link.partition(",")[0] for link in outside} == {"data:application/gzip;base64", "https://ui.perfetto.dev"}


def test_the_saved_trace_is_the_recorded_one(text):
    saved = re.findall(r'href="data:application/gzip;base64,([^"]+)"', text)
    recorded = trace_beside(GEMM)
    assert len(saved) == 2
    kept = recorded.read_bytes()
    assert gzip.decompress(base64.b64decode(saved[0])) == (gzip.decompress(kept) if recorded.suffix == ".gz" else kept)


def test_what_files_say_is_text(text):
    assert HOSTILE not in text
    assert html.escape(HOSTILE, quote=False).replace("'", "&#39;") in text


def test_the_list_of_kernels_says_what_is_worst_of_each():
    read = [read_report(EXAMPLES / f"{name}.timeline.json") for name in ("gemm_1_stage", "gemm_3_stages")]
    found = [report.timeline.model_copy(update={"findings": found_in(report.timeline)}) for report in read]
    reports = [replace(report, timeline=timeline) for report, timeline in zip(read, found, strict=True)]
    listed = re.search(r"<nav.*?</nav>", page(reports, RECORDED.parent), flags=re.DOTALL)[0]
    first, second = re.findall(r"<li.*?</li>", listed)
    worst = reports[0].timeline.findings[0]
    assert first.startswith('<li class="high"><a href="#kernel0">')
    assert f'<span class="severity">high</span> {worst.message}</li>' in first
    assert second.endswith("</a>: no finding</li>")


def test_zoom_move_reset_and_the_bounds(driven):
    least, most = driven["bounds"]
    begin, end = driven["begin"]
    assert driven["zoomed"] == pytest.approx([begin + (end - begin) / 4, end - (end - begin) / 4])
    width = (end - begin) / 2
    assert driven["moved"] == pytest.approx([driven["zoomed"][0] + width / 4, driven["zoomed"][1] + width / 4])
    assert driven["whole"] == [least, most]
    assert driven["reset"] == pytest.approx([begin, end])


def test_search_pales_the_others_and_enter_goes_to_a_match(driven):
    stores = [event for event in read_typical_cta(trace_beside(GEMM)).events if "store" in event.name]
    everything = read_typical_cta(trace_beside(GEMM)).events
    assert driven["names"] == [event.name for event in stores]
    assert driven["pale"] == len(everything) - len(stores)
    assert driven["count"] == f"{len(stores)} events"
    start, end = driven["jumped"]
    assert start <= driven["first"][0] <= end


def test_the_console_is_clean_and_nobody_is_shut_out(driven):
    assert driven["errors"] == []
    assert [line for line in driven["console"] if "[bokeh" not in line] == []
    assert driven["violations"] == []
    assert driven["images"] == 0
    assert driven["fetched"] == []
    assert driven["wide"] <= 0, "the page is wider than a phone"


def test_source_lines_have_cycles_and_findings(tmp_path):
    report = read_report(GEMM).timeline
    source = {"file": "kernel.py", "line": 5}
    finding = {
        "id": "x", "severity": "high", "confidence": "low", "source": source, "kernel": "k",
        "message": "found here", "evidence": {}, "advice": "do", "estimate": None,
    }  # fmt: skip
    region = report.regions[0].model_dump() | {"source": source, "per_iteration": 12.0}
    other = report.regions[1].model_dump() | {"source": source | {"line": 6}, "per_iteration": 3.5}
    told = report.model_dump() | {"file": "kernel.py:2", "regions": [region, other, region], "findings": [finding]}
    (tmp_path / "kernel.py").write_text("\n".join(f"line {number}" for number in range(1, 9)))
    lines = listing(type(report).model_validate(told), tmp_path)
    assert [line.number for line in lines] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert lines[4].text == "line 5"
    assert lines[4].cycles == {region["warp_group"]: 24.0}
    assert [one.message for one in lines[4].findings] == ["found here"]
    assert lines[5].cycles == {other["warp_group"]: 3.5}
    assert listing(type(report).model_validate(told), tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"otherData": 1}', '{"otherData": {"blocks": []}, "traceEvents": []}']
)
def test_another_programs_trace_is_refused_in_a_sentence(tmp_path, content):
    path = tmp_path / "a.chrome_trace.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"is not a Chrome trace of kperf: trace the kernel again"):
        read_typical_cta(path)


def test_a_cut_packed_trace_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "a.chrome_trace.json.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:20])
    with pytest.raises(UsageError, match="is not a Chrome trace"):
        read_typical_cta(path)


def test_the_command_writes_a_page_of_a_folder(tmp_path):
    for path in (GEMM, trace_beside(GEMM)):
        shutil.copy(path, tmp_path)
    out = tmp_path / "new" / "page.html"
    done = kperf("report", tmp_path, "--out", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"written: {out} (1 kernel, ")
    assert "gemm_tma_kernel" in out.read_text()


def test_the_command_refuses_an_empty_folder(tmp_path):
    done = kperf("report", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no timeline to report" in done.stderr


def test_markdown_has_a_row_a_kernel(tmp_path):
    out = tmp_path / "page.md"
    assert kperf("report", GEMM, SOFTMAX, "--out", out).returncode == 0
    timeline = read_report(GEMM).timeline
    header, line, gemm, softmax = out.read_text().splitlines()
    assert header.startswith("| kernel | file | time of a launch | SM cycles |")
    assert line == "| --- " * 7 + "|"
    use = f"{timeline.mma_use.sm:.0%}"
    cycles = f"{timeline.cycles_per_unit.median:,.0f} per iteration"
    assert gemm.startswith(f"| gemm_tma_kernel | examples/gemm_tma.py:11 | 1.459 ms | {cycles} | {use} | ")
    assert " per CTA | - | " in softmax


def test_an_unknown_format_is_refused_before_anything_is_read(tmp_path):
    done = kperf("report", tmp_path / "no.timeline.json", "--out", tmp_path / "page.pdf")
    assert (done.returncode, done.stdout) == (2, "")
    assert "page.pdf is of no known format: end its name with .html or .md" in done.stderr


def test_the_same_kernel_of_several_ranks_is_told_apart(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}" / GEMM.name).write_bytes(GEMM.read_bytes())
    done = kperf("report", tmp_path / "rank0", tmp_path / "rank1", "--out", tmp_path / "all.html")
    assert done.returncode == 0
    text = (tmp_path / "all.html").read_text()
    label = read_report(GEMM).timeline.label
    assert re.findall(r"<h2 id=\"name\d\">([^<]*)</h2>", text) == [f"{label} (rank0)", f"{label} (rank1)"]
    assert "<h2>Side by side</h2>" in text
    assert kperf("report", tmp_path / "rank0", "--out", tmp_path / "one.html").returncode == 0
    assert "(rank0)" not in (tmp_path / "one.html").read_text()


def test_a_page_has_what_rules_find_in_a_timeline(tmp_path):
    out = tmp_path / "page.html"
    assert kperf("report", EXAMPLES / "gemm_1_stage.timeline.json", "--out", out).returncode == 0
    found = found_in(read_report(EXAMPLES / "gemm_1_stage.timeline.json").timeline)
    assert [finding.id for finding in found] == ["exposed-loads"]
    assert html.escape(found[0].message).replace("&#x27;", "&#39;") in out.read_text()


def test_a_region_of_several_kinds_has_a_lane_for_each(tmp_path):
    """The lanes lie on the bar, each from its height down, in the colours of the parts; the legend names them all."""
    report = read_report(EXAMPLES / "gemm_1_stage.timeline.json")
    made = timeline_figure(report.cta, report.timeline, "x")
    assert [one.glyph.y for one in made.renderers] == ["row", "row1", "row2"]
    data = made.renderers[0].data_source.data
    mixed = data["name"].index("load a + load b + a @ b issue")
    single = data["name"].index("a @ b wait")
    assert data["words"][mixed] == "issues a load, waits, issues an MMA"
    colours = [data[name][mixed] for name in ("colour", "colour1", "colour2")]
    assert colours == [KINDS[kind][1] for kind in ("load", "wait", "issue")]
    for lane in (1, 2):
        row, middle = data[f"row{lane}"][mixed]
        assert row == data["row"][mixed]
        top, bottom = middle + data[f"height{lane}"][mixed] / 2, middle - data[f"height{lane}"][mixed] / 2
        assert (top, bottom) == pytest.approx((0.4 - 0.8 * lane / 3, -0.4))
        assert data[f"height{lane}"][single] == 0
    legend = page([report], tmp_path).partition('aria-label="Colours"')[2].partition("</ul>")[0]
    assert {"issues a load", "waits", "issues an MMA", "waits for an MMA"} <= set(
        re.findall(r"</span>([^<]+)<", legend)
    )


def test_a_saving_is_said_to_be_of_all_ctas_of_an_sm_or_of_one():
    report = read_report(RECORDED / "h200/examples/attention_forward.timeline.json")
    t = report.timeline
    saving = {"region": "x", "warp_group": "all", "cycles": 90, "low": 80, "high": 99}
    saving |= {"assumed_low": 85, "assumed_high": 95}
    alone, both = (
        t.model_copy(
            update={"what_if": [WhatIf(**saving)], "replay": t.replay.model_copy(update={"together": together})}
        )
        for together in (1, 2)
    )
    shown = [page([replace(report, timeline=one)], RECORDED.parent) for one in (alone, both)]
    assert "if a region took no time in one CTA of those that share an SM, by" in shown[0]
    assert "if a region took no time in all 2 CTAs that share an SM, by" in shown[1]
