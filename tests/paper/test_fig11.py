"""`make fig11` without a GPU: from recorded timelines, and in one sentence where there are none."""

import functools
import itertools
import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import knobs

from kperf.arch import SM_90A
from kperf.attention import overrides
from kperf.attention.variants import Specialization
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.paper import fig11, instrumented
from kperf.paper.claims import evaluate, read_claims
from kperf.paper.instrumented import RULES
from kperf.plots import fig11 as plot
from kperf.record.store import Environment
from kperf.report import chrome
from kperf.report.sentences import between, verdict
from kperf.studies import models
from kperf.studies import overhead as costs
from kperf.trace.analyze import read
from kperf.trace.analyze.models import About, Overhead, Pass
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture.buffers import Capture
from kperf.trace.capture.passes import built
from kperf.trace.capture.traced import compile_orders
from kperf.trace.instrument.probes import find_probes, probed_kernel
from kperf.trace.instrument.program import read_program
from tests.trace.analyze.synthetic import encode, is_persistent, simulate

pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("unrendered", "compiled_once")]

SUBJECT = functools.cache(fig11.subject)
"""It is read from committed files, and compiled for its order of instructions."""


@pytest.fixture
def compiled_once(monkeypatch):
    monkeypatch.setattr(fig11, "subject", SUBJECT)


FIELDS = {
    "kernel", "file", "grid", "ctas_per_sm", "resources", "view", "roles", "regions", "unit", "cycles_per_unit",
    "bound", "what_if", "passes", "overhead", "events", "verdict", "environment", "workload", "confidence", "mma_use",
    "unit_of_compute", "residency", "findings",
}  # fmt: skip

ENVIRONMENT = Environment(
    gpu="NVIDIA Test", gpu_uuid="u", compute_capability="9.0", driver="1", cuda="13.0", max_sm_mhz=1980,
    max_memory_mhz=3201, power_limit_w=700.0, torch="2", triton="3", cudnn="9", fa3_fwd=None, flash_attn=None,
    python="3.11", platform="Linux", image=None, git_commit="c", command_line="kperf fig11",
    recorded_at="2026-01-02T03:04:05+00:00",
)  # fmt: skip


OF_KIND = {"tensor": 650, "arithmetic": 2600, "issue": 200, "store": 700}
"""Cycles for which the tensor cores suffice, if the consumers take turns; everything else takes 60."""


def simulated(program, **changed):
    cycles = {interval.name: OF_KIND.get(interval.kind, 60) for interval in program.intervals.values()} | changed
    tiles = 2 if is_persistent(program) else 1
    return [simulate(program, 6, cycles, delay=1700, clock=170_000 * number, tiles=tiles) for number in range(2)]


def record(folder, variant, **changed):
    original = overrides.find(variant, Specialization())
    traced, program = instrumented.find(original)
    ctas = simulated(program, **changed)
    launch = read.decode_launch(encode(ctas, traced.recording, sms=1), traced.recording, program)
    overhead = Overhead(original_ms=1.0, instrumented_ms=1.02, ratio=1.02)
    orders = read.sass_order(compile_orders(instrumented.subject_of(original), traced))
    timeline = read.pipeline(
        launch,
        About(
            kernel="attn_fwd",
            label=original.manifest.label,
            file="attn_fwd.py:1",
            ttgir_sha256=original.sha256,
            grid=(2,),
            ctas_per_sm=1,
            resources=None,
            workload="small",
            environment=ENVIRONMENT,
            overhead=overhead,
            passes=[Pass(regions=["*"], overhead=overhead, sass_order=orders)],
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{variant}.timeline.json").write_text(timeline.model_dump_json())
    exported = chrome.export(launch, timeline.clock_mhz, {"variant": variant})
    (folder / f"{variant}.chrome_trace.json").write_text(exported.text)
    return timeline


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("results")
    for variant in fig11.VARIANTS:
        record(root / "test" / "fig11", variant)
    return root


def test_the_figure_is_drawn_from_the_recorded_files_and_says_so(results, no_gpu, console):
    fig11.run(console, results, file=None, rounds=15, require_gpu=False)
    said = console.export_text()
    assert "static: the figure is drawn from recorded timelines; there is no GPU" in said
    assert "recorded on NVIDIA Test, 2026-01-02" in said
    assert "an iteration takes" in said
    assert "Triton-FA3 Improved+: no timeline in" in said
    drawn = {path.name for path in (results / "test").glob("*.p*")}
    assert drawn == {"fig11.pdf", "fig11.png"}


def test_ours_has_a_picture_of_its_own_once_it_is_recorded(results, tmp_path, no_gpu, console):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    assert record(tmp_path / "test/fig11", "improved_plus").tile_boundary_cycles is not None
    fig11.run(console, tmp_path, file=None, rounds=15, require_gpu=False)
    said = console.export_text()
    assert "no timeline in" not in said
    assert "from a tile to the next" in said
    assert (tmp_path / "test/fig11_improved_plus.png").exists()
    paths = [tmp_path / f"test/fig11/{name}.timeline.json" for name in ("vanilla", "improved_plus")]
    shown = [[window.shows for window in read_timeline(path).windows] for path in paths]
    assert shown == [["iterations"], ["iterations", "tile boundary"]]


def test_a_timeline_of_another_override_is_drawn_and_said_to_be(results, tmp_path, no_gpu, console):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "test/fig11/improved.timeline.json"
    timeline = read_timeline(path)
    path.write_text(timeline.model_copy(update={"ttgir_sha256": "0" * 64}).model_dump_json())
    fig11.run(console, tmp_path, file=None, rounds=15, require_gpu=False)
    said = [line for line in console.export_text().splitlines() if "recorded of an earlier override" in line]
    assert len(said) == 1
    assert said[0].startswith("Triton-FA3 Improved: ")


def test_the_timeline_has_the_agreed_fields(results):
    timeline = json.loads((results / "test/fig11/vanilla.timeline.json").read_text())
    assert timeline.keys() >= FIELDS
    assert timeline["cycles_per_unit"].keys() == {"median", "p5", "p95"}
    samples = {"original_samples_ms", "instrumented_samples_ms"}
    assert timeline["overhead"].keys() == {"original_ms", "instrumented_ms", "ratio"} | samples
    assert timeline["schema_version"] == 7
    assert timeline["events"]["lost"] == 0


def test_the_verdict_is_made_of_the_numbers(results):
    timelines = [read_timeline(results / f"test/fig11/{name}.timeline.json") for name in fig11.VARIANTS]
    said = [line for timeline in timelines for line in verdict(timeline)] + between(*timelines)
    assert any(f"{timelines[0].iteration.cycles:.0f} cycles" in line for line in said)
    assert any("cycles of arithmetic under MMAs" in line for line in said)
    assert any("within 5 %" in line for line in said)
    for timeline in timelines:
        assert timeline.what_if
        best = timeline.what_if[0]
        interval = f"{best.cycles:.0f} ({best.low:.0f} to {best.high:.0f})"
        assert any(f"{interval} cycles less without {best.region}" in line for line in verdict(timeline))
        assert any("if no load took any time" in line for line in verdict(timeline))
    unexplained = timelines[0].replay.model_copy(update={"cycles": 2 * timelines[0].replay.measured_cycles})
    doubtful = verdict(timelines[0].model_copy(update={"replay": unexplained}))
    assert any("not to be relied on" in line for line in doubtful)
    assert not any("cycles less without" in line for line in doubtful)


def test_one_schedule_is_predicted_from_the_others_stage_times(results, tmp_path, console):
    claim = next(claim for claim in read_claims() if claim.id == "improved-predicted-from-vanilla")
    found = evaluate(claim, results / "test")
    subjects = [fig11.subject(name) for name in fig11.VARIANTS]
    fig11.report(console, results / "test", subjects, measured=False)
    said = re.search(r"Improved: from stage times measured in Triton-FA3 .* ([-+][\d.]+)% of", console.export_text())
    assert abs(float(said.group(1))) / 100 == pytest.approx(found.value, abs=1e-3)
    assert not found.other_override
    (tmp_path / "fig11").mkdir()
    for name in fig11.VARIANTS:
        without_graph = json.loads((results / f"test/fig11/{name}.timeline.json").read_text()) | {"replay": None}
        (tmp_path / f"fig11/{name}.timeline.json").write_text(json.dumps(without_graph))
    assert evaluate(claim, tmp_path).verdict == "not recorded whole"


def test_a_timeline_whose_regions_are_joined_predicts_nothing_and_ends_nothing(results, tmp_path, console):
    """As joined passes may leave it: softmax is one region with the waits for MMAs."""
    shutil.copytree(results / "test", tmp_path, dirs_exist_ok=True)
    path = tmp_path / "fig11/vanilla.timeline.json"
    document = json.loads(path.read_text())
    for region in document["regions"]:
        region["kind"] = "tensor" if region["kind"] == "arithmetic" else region["kind"]
    path.write_text(json.dumps(document))
    fig11.report(console, tmp_path, [fig11.subject(name) for name in fig11.VARIANTS], measured=False)
    said = console.export_text()
    assert (
        "Triton-FA3 Improved: nothing is predicted from Triton-FA3: the measured kernel has no region of arith" in said
    )
    assert "Triton-FA3: from stage times measured in Triton-FA3 Improved" in said
    claim = next(claim for claim in read_claims() if claim.id == "improved-predicted-from-vanilla")
    assert evaluate(claim, tmp_path).verdict == "not recorded whole"
    stages = [(one.kernel, one.source) for one in models.predictions(tmp_path) if one.model == "stages"]
    assert stages == [("vanilla", "stage times of improved")]


def fake_capture(name, original, traced, recording, rounds):
    assert {(original, ""), (traced, recording.lowering.key)} <= PROVEN, f"{name} is launched unproven"
    program = read_program(traced, RULES)
    if any(scope.name.startswith(("start of", "end of")) for scope in program.scopes):
        ctas = of_a_pass(original, traced)
    else:
        ctas = simulated(program)
    return Capture(encode(ctas, recording, sms=1), [1.0] * rounds, [1.02] * rounds)


def of_a_pass(original, traced):
    """The records that a pass keeps of the finest instrumented kernel's, and lifetimes."""
    all_probes, probed = probes_and_probed(original, traced)
    lifetimes = [
        [scope.number for scope in program.scopes if scope.name.startswith("lifetime")]
        for program in (all_probes.program, probed.program)
    ]
    number = {of: probe for probe, of in probed.probes.items()}
    number |= {(a, start): (b, start) for a, b in zip(*lifetimes, strict=True) for start in (True, False)}
    return [
        [[(*number[scope, start], clock) for scope, start, clock in warp if (scope, start) in number] for warp in cta]
        for cta in simulated(all_probes.program)
    ]


@functools.cache
def probes_and_probed(original, traced):
    all_probes = find_probes(original, RULES)
    for places in itertools.chain.from_iterable(instrumented.spread(all_probes, number) for number in (100, 2)):
        if (probed := probed_kernel(all_probes, places)).text == traced:
            return all_probes, probed
    raise AssertionError("another text than a pass's")


PROVEN = set()
"""The texts that were, with the way in which their records were to be lowered."""


def proven(pairs):
    PROVEN.update((item.text, knobs.compilation.instrumentation_mode) for item, _ in pairs)


@pytest.fixture
def gpu(monkeypatch, tmp_path_factory):
    PROVEN.clear()
    monkeypatch.setattr(fig11, "several", lambda _compile, items: [None] * len(items))
    monkeypatch.setattr(fig11, "prove_launched", proven)
    monkeypatch.setattr("kperf.record.device.LOCKS", tmp_path_factory.mktemp("locks"))
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda: SimpleNamespace(uuid="fake"))
    monkeypatch.setattr("kperf.record.device.why_static", lambda: None)
    monkeypatch.setattr("kperf.record.device.gpu_name", lambda: "NVIDIA Test")
    monkeypatch.setattr("kperf.record.device.sm_count", lambda: 132)
    monkeypatch.setattr("kperf.record.device.environment", lambda: ENVIRONMENT)
    monkeypatch.setattr(fig11, "normal_qkv", lambda workload: ())
    monkeypatch.setattr(fig11, "bind", lambda original, inputs, workload, text: text)  # nothing is launched
    monkeypatch.setattr(fig11, "capture", fake_capture)


def test_a_run_on_a_gpu_writes_every_file(tmp_path, monkeypatch, gpu, console):
    first_three = dict(list(costs.CHOICES.items())[:3])
    too_much = {
        "ring that does not fit": costs._recording(bytes_per_warp=32768),
        "no such region": costs._instrumented("nothing"),
    }
    monkeypatch.setattr(costs, "CHOICES", too_much | first_three)
    monkeypatch.setattr(costs, "in_session", lambda *_: lambda: None)
    monkeypatch.setattr(costs, "allocated", nullcontext)
    monkeypatch.setattr(
        costs, "time_in_turn", lambda calls, rounds: [[1.0 + 0.01 * i] * rounds for i in range(len(calls))]
    )
    fig11.run(console, tmp_path, file=None, rounds=10, require_gpu=True, with_costs=True, passes="1")
    written = {path.name for path in (tmp_path / "test" / "fig11").iterdir()}
    kinds = ("timeline.json", "chrome_trace.json")
    assert written == {f"{variant}.{kind}" for variant in (*fig11.VARIANTS, *fig11.ALONE) for kind in kinds} | {
        f"{variant}.costs.json" for variant in fig11.VARIANTS
    }
    pictures = {path.name for path in (tmp_path / "test").glob("*.png")}
    assert pictures == {"fig11.png", "fig11_improved_plus.png"}
    for variant in ("vanilla", "improved_plus"):
        found = read_timeline(tmp_path / f"test/fig11/{variant}.timeline.json")
        original = found.resources.original
        assert (found.ctas_per_sm, original.registers, original.spilled_bytes) == (1, 168, 0)
        assert found.resources.instrumented.shared_bytes >= original.shared_bytes
        assert found.bound.dtype == "bf16"
    said = console.export_text()
    assert "measured on NVIDIA Test" in said
    assert [said.count(f"{choice}: left out: ") for choice in too_much] == [2, 2]
    first, *others = json.loads((tmp_path / "test/fig11/vanilla.costs.json").read_text())
    assert first["choice"] == "as recorded"
    assert first["ratio"] == pytest.approx(1.01)
    assert len(others) == 2


@pytest.mark.parametrize("passes", ["auto", "2"])
def test_several_passes_are_joined_and_drawn_and_the_chrome_trace_is_of_one(
    tmp_path, monkeypatch, gpu, passes, console
):
    """To the last line; instrumented kernels compile for seconds, so those of `auto` count as like the original."""
    options = {} if passes == "auto" else {"passes": passes}  # which is what is done where nothing is said
    if passes == "auto":
        monkeypatch.setattr(
            instrumented, "builder", lambda subject: lambda some: [built(subject.compile(subject.text))] * len(some)
        )
    monkeypatch.setattr(fig11, "VARIANTS", ("vanilla",))
    monkeypatch.setattr(fig11, "ALONE", ())
    fig11.run(console, tmp_path, file=None, rounds=10, require_gpu=True, **options)
    timeline = read_timeline(tmp_path / "test/fig11/vanilla.timeline.json")
    said = console.export_text()
    original = overrides.find("vanilla", Specialization())
    chosen = instrumented.read_passes(original).passes
    assert len(timeline.passes) == (len(chosen) if passes == "auto" else 2)
    all_probes = find_probes(original.text, RULES)
    named = {name for one in timeline.passes for name in one.regions}
    assert named == {name for places in instrumented.spread(all_probes, 100) for name in all_probes.named(places)}
    assert timeline.apart is None
    agree = len(timeline.passes) - len(timeline.joined.left_out)
    assert f"joined from {agree} of {len(timeline.passes)} passes that agree" in said
    assert "single CTAs, tile boundaries and all outside of the main loop are from one launch" in said
    events = json.loads((tmp_path / "test/fig11/vanilla.chrome_trace.json").read_text())
    assert events["otherData"]["passes"] == "one, with all events"
    inside = [region for region in timeline.regions if region.warp_group == "consumer 0" and region.per_iteration]
    assert [region.name for region in inside] == [
        "wait K full", "QK issue", "QK wait", "softmax", "wait V full", "PV issue", "PV wait"
    ]  # fmt: skip
    assert sum(region.per_iteration for region in inside) == pytest.approx(timeline.cycles_per_unit.median)
    assert all(region.passes for region in inside)


def test_passes_that_cannot_be_joined_leave_the_launch_with_all_events(tmp_path, monkeypatch, gpu):
    """As where a pass has no iteration."""

    def in_passes(item, *_):
        return replace(item, passes=instrumented.Passes(find_probes(item.original.text, RULES), []))

    def join(*_):
        raise UsageError("the trace has no iteration of a main loop: trace a longer sequence")

    monkeypatch.setattr(fig11, "in_passes", in_passes)
    monkeypatch.setattr(fig11, "join", join)
    monkeypatch.setattr(fig11, "VARIANTS", ("vanilla",))
    monkeypatch.setattr(fig11, "ALONE", ())
    fig11.run(WholeConsole(quiet=True), tmp_path, file=None, rounds=10, require_gpu=True)
    timeline = read_timeline(tmp_path / "test/fig11/vanilla.timeline.json")
    assert timeline.verdict[-1] == (
        "One pass, for several cannot be joined: the trace has no iteration of a main loop: trace a longer sequence."
    )
    assert timeline.cycles_per_unit.median > 0


def test_what_is_no_number_of_passes_is_refused(tmp_path):
    for wanted in ("0", "-1", "many", "1.5", ""):
        with pytest.raises(UsageError, match="is no number of passes"):
            fig11.run(WholeConsole(quiet=True), tmp_path, file=None, rounds=10, require_gpu=False, passes=wanted)


def test_a_capture_that_fails_leaves_what_was_recorded(results, tmp_path, monkeypatch, gpu):
    recorded = {path.name: path.read_bytes() for path in (results / "test/fig11").iterdir()}
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)

    def fails_at_the_second(name, *arguments):
        if f"/{fig11.VARIANTS[1]}/" in name:
            raise MeasurementError("computes something else")
        return fake_capture(name, *arguments)

    monkeypatch.setattr(fig11, "capture", fails_at_the_second)
    with pytest.raises(MeasurementError):
        fig11.run(WholeConsole(quiet=True), tmp_path, file=None, rounds=10, require_gpu=True, passes="1")
    assert {path.name: path.read_bytes() for path in (tmp_path / "test/fig11").iterdir()} == recorded


def test_a_persons_own_file_never_overwrites_a_variants(results, tmp_path, gpu):
    recorded = {path.name: path.read_bytes() for path in (results / "test/fig11").iterdir()}
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    (tmp_path / "test/fig11.png").write_bytes(b"both variants")
    path = tmp_path / "vanilla.ttgir"
    path.write_text(overrides.find("vanilla", Specialization()).text)
    fig11.run(WholeConsole(quiet=True), tmp_path, file=path, rounds=10, require_gpu=False, passes="1")
    found = {path.name: path.read_bytes() for path in (tmp_path / "test/fig11").iterdir()}
    assert found.keys() - recorded.keys() == {f"override_vanilla.{kind}.json" for kind in ("timeline", "chrome_trace")}
    assert recorded.items() <= found.items()
    assert (tmp_path / "test/fig11.png").read_bytes() == b"both variants"
    assert (tmp_path / "test/fig11_override_vanilla.png").exists()


def test_without_a_recording_it_says_what_to_do(tmp_path, no_gpu):
    with pytest.raises(UsageError, match="holds no recorded fig11"):
        fig11.run(WholeConsole(quiet=True), tmp_path, file=None, rounds=15, require_gpu=False)


@pytest.mark.parametrize(
    "options",
    [
        {"require_gpu": True, "file": None},
        {"require_gpu": False, "file": overrides.TTGIR_DIR / "vanilla/d128_bf16_full.ttgir"},
    ],
)
def test_what_needs_a_gpu_says_so(tmp_path, monkeypatch, options):
    monkeypatch.setattr("kperf.record.device.why_static", lambda: "Test is sm_80, and the kernels need Hopper")
    with pytest.raises(UsageError, match="need Hopper"):
        fig11.run(WholeConsole(quiet=True), tmp_path, rounds=15, **options)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[]",
        "null",
        "1",
        '{"schema_version": 4}',
        '{"schema_version": 3}',
        '{"schema_version": 1}',
        "not JSON",
        "[" * 100_000,
    ],
)
def test_a_broken_timeline_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "some.timeline.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a timeline") as error:
        read_timeline(path)
    assert "\n" not in str(error.value)


def test_a_key_that_holds_a_lines_end_is_still_one_sentence(results, tmp_path):
    timeline = json.loads((results / "test/fig11/vanilla.timeline.json").read_text())
    path = tmp_path / "vanilla.timeline.json"
    path.write_text(json.dumps(timeline | {"arguments": {"\n": None}}))
    with pytest.raises(UsageError, match=r"^[^\n]*arguments\. : Input should be a valid string\); record it again$"):
        read_timeline(path)


@settings(max_examples=50)
@given(data=st.data())
def test_a_damaged_timeline_is_read_or_refused_in_one_sentence(results, tmp_path, data):
    timeline = json.loads((results / "test/fig11/vanilla.timeline.json").read_text())
    place = timeline
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)
    damage = st.recursive(scalars, lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=5), some))
    if place:
        place[key] = data.draw(damage)
    path = tmp_path / "vanilla.timeline.json"
    path.write_text(json.dumps(timeline))
    try:
        read_timeline(path)
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.rendered
def test_a_kernel_without_mmas_is_drawn_and_one_without_iterations_refused(results, tmp_path):
    timeline = read_timeline(results / "test/fig11/vanilla.timeline.json")
    (window,) = timeline.windows
    bare = window.model_copy(update={"bars": [bar for bar in window.bars if bar.track == "warps"]})
    written = plot.draw([timeline.model_copy(update={"windows": [bare]})], "made up", tmp_path / "fig11")
    assert all(path.stat().st_size > 10_000 for path in written)
    with pytest.raises(UsageError, match="no iteration"):
        plot.draw([timeline.model_copy(update={"windows": []})], "made up", tmp_path / "fig11")


def test_a_persons_own_file_is_traced_plain_or_with_records(tmp_path):
    original = overrides.find("vanilla", Specialization())
    for text in (original.text, instrumented.find(original)[0].text):
        path = tmp_path / "mine.ttgir"
        path.write_text(text)
        item = fig11.subject_from_file(path)
        assert item.original.text == original.text
        assert "proton.record" in item.traced.text


def test_a_file_that_is_another_kernel_is_refused(tmp_path):
    path = tmp_path / "mine.ttgir"
    path.write_text(overrides.find("vanilla", Specialization()).text.replace("@attn_fwd", "@other"))
    with pytest.raises(UsageError, match="holds the kernel other"):
        fig11.subject_from_file(path)


WAIT = "      ttng.wait_barrier %14, %c0_i32, %true : !ttg.memdesc<1xi64, #shared1, #smem, mutable>\n"
"""The first operation in the partition of a consumer of vanilla."""


def write_with(path, added):
    text = overrides.find("vanilla", Specialization()).text
    assert WAIT in text
    path.write_text(text.replace(WAIT, added + WAIT, 1))
    return path


def a_buffer(kilobytes):
    kind = f"!ttg.memdesc<{4 * kilobytes}x128xbf16, #shared, #smem, mutable>"
    return f"      %big = ttg.local_alloc : () -> {kind}\n      ttg.local_dealloc %big : {kind}\n"


@pytest.mark.parametrize(
    ("added", "said"),
    [(WAIT.replace("wait_barrier %14, %c0_i32, %true", "tc_gen5_commit %14"), "not compile for sm_90a: Instruction"),
     (a_buffer(128), "cannot be launched")],
    ids=["Blackwell's instruction", "too much shared memory"],
)  # fmt: skip
def test_a_file_that_cannot_be_traced_is_refused_before_anything_runs(tmp_path, monkeypatch, gpu, added, said):
    monkeypatch.setattr(fig11, "capture", lambda *_: pytest.fail("ran"))
    path = write_with(tmp_path / "mine.ttgir", added)
    with pytest.raises(UsageError, match=said) as error:
        fig11.run(WholeConsole(quiet=True), tmp_path, file=path, rounds=10, require_gpu=False, passes="1")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("kilobytes", "memory"), [(16, "shared"), (64, "global")])
def test_records_go_where_the_file_itself_leaves_room_for_them(tmp_path, kilobytes, memory):
    item = fig11.subject_from_file(write_with(tmp_path / "mine.ttgir", a_buffer(kilobytes)))
    assert item.original.entry.shared_bytes > fig11.subject("vanilla").original.entry.shared_bytes
    assert item.traced.recording.memory == memory
    beside = item.traced.recording.buffer_bytes if memory == "shared" else 0
    assert item.original.entry.shared_bytes + beside <= SM_90A.cta_shared_bytes
