"""Whatever a measurement may leave behind, a killed one, a failed one, one by another version, is told and drawn."""

import copy
import json
import shutil

import matplotlib.pyplot as plt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from kperf.errors import UsageError
from kperf.paper import llama_block, tritonbench, varlen
from kperf.plots import accuracy as plot_accuracy
from kperf.plots import inductor as plot_inductor
from kperf.plots import lines as plot_lines
from kperf.plots import proton as plot_proton
from kperf.plots import timers as plot_timers
from kperf.plots.style import content
from kperf.record.store import RECORDED, RecordStore
from kperf.studies import accuracy, foreign, hatchet, inductor, lines, ncu, proton, timers
from tests.command import kperf


def _lines(rows):
    lines.costs_table(rows, "s")
    for profiler, kernel in lines._sampled(rows):
        lines.annotated(rows, profiler, kernel)
    lines.html_page(rows, "s")
    return lambda: plot_lines.figure(rows, "s")


def _timers(rows):
    timers.table(rows, "s")
    timers.sentences(rows)
    return lambda: plot_timers.figure(rows, "s")


def _proton(rows):
    proton.table(rows, "s")
    proton.sentences(rows)
    return lambda: plot_proton.figure(rows, "s")


def _accuracy(rows):
    accuracy.tables(rows, "s")
    accuracy.sentences(rows, [])
    return lambda: plot_accuracy.figure(rows, [], "s")


def _inductor(rows):
    for block in {row.block for row in rows}:
        inductor.table([row for row in rows if row.block == block], "s")
    inductor.sentences(rows)
    inductor.trace_commands(rows)
    return lambda: plot_inductor.figure(rows, "s")


def _tritonbench(rows):
    tritonbench.table(rows, "s")
    tritonbench.sentences(rows)


def _llama(rows):
    llama_block.table(rows, "s")
    llama_block.sentences(rows)


def _varlen(rows):
    varlen.table(rows, "s")
    varlen.sentences(rows)


WITHOUT_TIME = {"status": "failed", "samples_ms": [], "places": [], "ceiling_ms": [], "device_states": []}
TOLD = {
    "lines": (lines.ROWS, _lines, {"launches_s": None, "process_s": None}),
    "timers": (timers.ROWS, _timers, {"samples_us": []}),
    "proton": (proton.ROWS, _proton, {"time_us": None, "kernels": []}),
    "accuracy": (accuracy.ROWS, _accuracy, {}),
    "inductor": (inductor.ROWS, _inductor, {"samples_us": [], "kernels": []}),
    "tritonbench": (tritonbench.ROWS, _tritonbench, {}),
    "llama-block": (TypeAdapter(llama_block.BlockRow), _llama, WITHOUT_TIME),
    "varlen": (TypeAdapter(varlen.VarlenRow), _varlen, WITHOUT_TIME),
}
"""Record -> its type, all that is told of it (returns what draws it), and the fields of a row without a measurement."""

WORDS = st.sampled_from(["nosuch", "", "$x$", "$\\frac{", "[/b]", "a b", "é" * 300, "plain", "copy"])
NUMBERS = st.sampled_from([0, 1, 2, 1e-300, 1e300, (1 << 63) - 1, -1])


def recorded(name):
    """A few rows of each sort: the rest is the same again."""
    layout = {"llama-block": llama_block.ROWS, "varlen": varlen.ROWS}.get(name) or TOLD[name][0]
    folder = max(RECORDED.glob(f"*/{name}.jsonl")).parent
    rows = [row.model_dump(mode="json") for row in RecordStore(folder, name, layout).points()]
    return rows[:: max(len(rows) // 24, 1)]


@st.composite
def changed(draw, name):
    """Some of the recorded rows, each perhaps without a measurement, of another name, or with another number."""
    adapter, _, unmeasured = TOLD[name]
    rows = []
    for row in draw(st.lists(st.sampled_from(recorded(name)), min_size=1, max_size=6)):
        made = copy.deepcopy(row)
        kind = draw(st.sampled_from(["as it is", "unmeasured", "word", "number"]))
        if kind == "unmeasured":
            made |= {key: value for key, value in unmeasured.items() if key in made}
            made["message"] = draw(WORDS.filter(bool))
        elif kind == "word":
            made[draw(st.sampled_from([key for key, value in row.items() if type(value) is str]))] = draw(WORDS)
        elif kind == "number":
            key = draw(st.sampled_from([key for key, value in row.items() if type(value) in (int, float)]))
            made[key] = draw(NUMBERS)
        try:
            rows.append(adapter.validate_python(made))
        except ValidationError:
            rows.append(adapter.validate_python(row))
    return rows


@pytest.mark.parametrize("name", TOLD)
@settings(max_examples=30, derandomize=True)
@given(data=st.data())
def test_any_rows_are_told(name, data):
    TOLD[name][1](data.draw(changed(name)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in TOLD if name not in {"tritonbench", "llama-block", "varlen"}])
@settings(max_examples=3, derandomize=True)
@given(data=st.data())
def test_any_rows_are_drawn(name, data):
    figure = TOLD[name][1](data.draw(changed(name)))()
    assert content(figure, "png", dpi=20)
    plt.close(figure)


def plain_failed(rows):
    failed = {"launches_s": None, "process_s": None, "message": "it cost $5, then $10"}
    return [row | (failed if row["what"] == "cost" and row["profiler"] == "plain" else {}) for row in rows]


def no_samples(rows):
    return [row | ({"samples": 0, "stalled": 0} if row["what"] == "line" else {}) for row in rows]


def renamed(field):
    return lambda rows: [row | {field: f"{row[field]}$[/b]"} if field in row else row for row in rows]


def without_time(rows):
    return [row | {"time_us": None, "kernels": [], "message": "it broke at $x_{"} for row in rows]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "command", "change"),
    [
        ("lines", "lines", plain_failed),
        ("lines", "lines", no_samples),
        ("lines", "lines", lambda rows: [row for row in rows if row["what"] == "cost"]),
        ("lines", "lines", lambda rows: [row for row in rows if row["what"] == "line"]),
        ("lines", "lines", renamed("profiler")),
        ("timers", "timers", renamed("timer")),
        ("timers", "timers", renamed("operation")),
        ("timers", "timers", lambda rows: [row | {"samples_us": [], "message": "$\\frac{"} for row in rows]),
        ("proton", "proton", without_time),
        ("proton", "proton", lambda rows: [row for row in rows if row["session"] == "cli"]),
        ("proton", "proton", renamed("implementation")),
        ("tritonbench", "tritonbench-compare", lambda rows: rows[:3]),
        ("accuracy", "accuracy", renamed("instruction")),
        ("accuracy", "accuracy", lambda rows: [row for row in rows if row["what"] == "launch"]),
    ],
)
def test_a_command_ends_well_with_what_a_bad_run_left(tmp_path, name, command, change, unrendered):
    folder = tmp_path / "h200"
    folder.mkdir()
    shutil.copy(RECORDED / "h200/environment.json", folder)
    if name == "accuracy":  # of models it reads timelines
        shutil.copytree(RECORDED / "h200/fig11", folder / "fig11", ignore=shutil.ignore_patterns("*.png", "*.pdf"))
    rows = [json.loads(line) for line in (RECORDED / "h200" / f"{name}.jsonl").read_text().splitlines()]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in change(rows)))
    done = kperf(command, "--results", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "recorded on NVIDIA H200" in done.stdout


@pytest.mark.parametrize("digits", [20, 400])
def test_a_number_of_many_digits_is_refused_in_a_sentence(tmp_path, digits):
    (tmp_path / "h200").mkdir()
    row = next(line for line in (RECORDED / "h200/lines.jsonl").read_text().splitlines() if '"samples"' in line)
    broken = json.loads(row) | {"samples": int("9" * digits)}
    (tmp_path / "h200/lines.jsonl").write_text(json.dumps(broken) + "\n")
    done = kperf("lines", "--results", tmp_path)
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"line 1 is not a recorded point: {'9' * 20}... is no number that anything here counts\n"
    )


KEYS = st.sampled_from(["frame", "name", "metrics", "children", "time (ns)", "x"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**400) | st.text(max_size=5)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@settings(max_examples=100)
@given(found=JSON)
def test_what_proton_or_a_process_of_ours_writes_is_read_or_refused(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("foreign") / "it.json"
    path.write_text(json.dumps(found))
    frame = {"frame": {"name": "root"}, "metrics": {"time (ns)": found, "more": found}, "children": []}
    beside = path.with_suffix(".hatchet")
    beside.write_text(json.dumps([frame]))
    for read in (
        lambda: foreign.read_json(path, TypeAdapter(foreign.Positive), "it"),
        lambda: foreign.read_json(path, foreign.Json, "it"),
        lambda: foreign.read_json(path, inductor.PROGRAM, "it"),
        lambda: hatchet.read_tree(path),
        lambda: lines.proton_samples(hatchet.read_tree(beside)),
    ):
        try:
            read()
        except UsageError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "", "1e999", "one", "1_0x"])
def test_ncus_numbers_are_finite(text):
    with pytest.raises(UsageError, match=f"ncu printed '{text}' where a number belongs"):
        ncu.metrics(f'"ID","m"\n"","ns"\n"0","{text}"\n', ["m"])


def test_ncus_table_has_every_metric_of_every_kernel():
    table = '==PROF== it runs\n"ID","a","b"\n"","ns","%"\n"0","1,234.5","2"\n"1","3"\n'
    assert ncu.metrics(table, ["a"]) == [{"a": 1234.5}, {"a": 3.0}]
    with pytest.raises(UsageError, match="ncu's table has no b"):
        ncu.metrics(table, ["a", "b"])
    with pytest.raises(UsageError, match="ncu printed what is no table: field larger than"):
        ncu.metrics(f'"ID","a"\n"0","{"9" * 200_000}"\n', ["a"])


@pytest.mark.parametrize("found", [None, "nan", "inf", "slow", [1]])
def test_tritonbenchs_numbers_are_finite(found):
    with pytest.raises(tritonbench.MeasurementError, match="tritonbench has no latency of sdpa"):
        tritonbench.value({"tritonbench_flash_attention_fwd[x_(8, 16)-sdpa]_latency": found}, "sdpa", "latency")
