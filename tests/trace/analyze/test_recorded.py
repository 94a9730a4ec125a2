"""Timelines of earlier versions are read as they were recorded: no value is lost, and each has its word of now."""

import json
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.errors import UsageError
from kperf.report.sentences import verdict
from kperf.trace.analyze import version2, version3
from kperf.trace.analyze.facts import concluded
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.recorded import read_timeline

from .version_2 import NAMES, text_of, unpacked

OLD_WORDS = {
    "period_cycles", "blocks", "blocks_per_sm", "plain", "twin", "traced", "plain_ms", "traced_ms", "plain_cycles",
    "records", "records_a_trip", "trip", "trips", "trip_cycles", "per_trip", "own_cycles", "graph", "slack",
    "under_own_products", "under_any_products", "running_blocks", "block_us", "period_pass",
}  # fmt: skip
OLD_VALUES = {"trip": "iteration", "trips": "iterations", "block": "CTA", "products": "MMAs"}
OLD_VALUES |= {"products and loads": "MMAs and loads", 3: 7}


def of_version_3(name):
    """What version 3 wrote of a launch that version 2 recorded; its only pass is joined, so that there is one such."""
    record = version2.upgrade(json.loads(text_of(name)))
    one = record["passes"][0] | {"records_a_trip": 3, "trip_cycles": 1234.5}
    joined = {"one_pass": one, "period_pass": 0, "plain_cycles": 1200.25, "tolerance": 0.02}
    record["passes"] = [one]
    return record | {"joined": joined, "apart": None, "verdict": ["said then"]}


def leaves(value):
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    if isinstance(value, list):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def words(value):
    if isinstance(value, dict):
        names = set() if value.keys() & {"torch", "x_ptr"} else set(value)
        return names | {word for part in value.values() for word in words(part)}
    return {word for part in value for word in words(part)} if isinstance(value, list) else set()


@pytest.mark.parametrize("name", NAMES)
def test_a_timeline_of_version_3_keeps_every_value_and_has_no_old_word(name, tmp_path):
    record = of_version_3(name)
    old = tmp_path / "k.timeline.json"
    old.write_text(json.dumps(record))
    found = read_timeline(old)
    assert found.schema_version == 7
    assert found.verdict == ["said then"]
    assert found.cycles_per_unit.model_dump() == record["period_cycles"]
    assert (found.ctas, found.events.written) == (record["blocks"], record["records"]["written"])
    assert found.overhead.original_ms == record["overhead"]["plain_ms"]
    assert found.overhead.instrumented_ms == record["overhead"]["traced_ms"]
    assert found.resources.original.registers == record["resources"]["plain"]["registers"]
    assert found.resources.instrumented.registers == record["resources"]["twin"]["registers"]
    assert (found.joined.iteration_pass, found.joined.original_cycles) == (0, 1200.25)
    assert (found.passes[0].events_per_iteration, found.joined.one_pass.iteration_cycles) == (3, 1234.5)
    written = json.loads(found.model_dump_json())
    assert not words({name: part for name, part in written.items() if name != "arguments"}) & OLD_WORDS
    gone = Counter(OLD_VALUES.get(leaf, leaf) for leaf in leaves(record)) - Counter(leaves(written))
    assert not {leaf for leaf in gone if leaf != 7}
    assert Timeline.model_validate(written) == found


def test_a_timeline_of_version_4_says_that_its_replay_is_of_one_cta(tmp_path):
    record = version3.upgrade(of_version_3("attention_forward"))
    old = tmp_path / "k.timeline.json"
    old.write_text(json.dumps(record))
    found = read_timeline(old)
    assert (record["schema_version"], found.schema_version) == (4, 7)
    assert (found.bubbles_of, found.replay.together) == ("CTA", 1)
    assert found.replay.cycles == record["replay"]["cycles"]
    words = " ".join(verdict(concluded(found, None)))
    assert "one CTA has no MMA in flight" in words
    assert "together" not in words
    without = version3.upgrade(of_version_3("softmax"))
    old.write_text(json.dumps(without))
    assert read_timeline(old).replay is None


def test_a_recorded_timeline_of_version_2_is_read_in_words_of_now(tmp_path):
    found = read_timeline(unpacked("gemm_1_stage", tmp_path))
    recorded = json.loads(text_of("gemm_1_stage"))
    assert (recorded["schema_version"], recorded["unit"], found.unit) == (2, "trip", "iteration")
    assert {role.duty for role in found.roles} == {"MMAs"}
    assert found.windows[0].shows == "iterations"
    assert [bar.iteration for window in found.windows for bar in window.bars] == [
        bar["trip"] for window in recorded["windows"] for bar in window["bars"]
    ]


@settings(max_examples=60)
@given(data=st.data())
def test_a_damaged_timeline_of_version_3_is_refused_in_one_sentence(data, tmp_path_factory):
    record = of_version_3("softmax")
    place = record
    while True:
        name = data.draw(st.sampled_from(sorted(place)))
        inner = place[name]
        if not isinstance(inner, dict) or not inner or data.draw(st.booleans()):
            break
        place = inner
    if data.draw(st.booleans()):
        del place[name]
    else:
        place[name] = data.draw(st.sampled_from([None, 1, "x", [], {}, [1], {"x": 1}, [[]], [None]]))
    path = tmp_path_factory.mktemp("damaged") / "k.timeline.json"
    path.write_text(json.dumps(record))
    with suppress(UsageError):
        read_timeline(path)


def test_a_timeline_of_version_5_has_no_samples_and_keeps_its_wait_for_loads(tmp_path):
    new = json.loads(read_timeline(unpacked("gemm_1_stage", tmp_path)).model_dump_json())
    record = {name: value for name, value in new.items() if name not in ("samples", "no_samples")}
    record["load_wait"] = {name: value for name, value in new["load_wait"].items() if name != "share_by_events"}
    old = tmp_path / "k.timeline.json"
    old.write_text(json.dumps(record | {"schema_version": 5}))
    found = read_timeline(old)
    assert (found.schema_version, found.samples, found.no_samples) == (7, None, "")
    assert json.loads(found.model_dump_json()) == new
