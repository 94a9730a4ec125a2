"""Which waits have records: all of them, or as few as leave the assembler free."""

import re

import pytest

from kperf.attention.overrides import TTGIR_DIR
from kperf.paper.instrumented import RULES
from kperf.trace.instrument.events import instrument

CONSUMER = {
    ("vanilla", "fine"): ["wait Q full", "wait K full", "QK wait", "wait V full", "PV wait"],
    # V is waited for after the softmax, which the assembler mixes with that wait, and PV is recorded from its issue on.
    ("vanilla", "coarse"): ["wait Q full", "wait K full", "QK wait", "PV issue + PV wait"],
    ("improved", "fine"): ["wait Q full", "wait K full", "QK wait", "wait K full", "wait V full", "QK wait", "PV wait",
                           "wait V full", "PV wait"],
    # Nothing is issued between the waits for QK and PV.
    ("improved", "coarse"): ["wait Q full", "wait K full", "QK wait", "wait K full", "wait V full", "QK wait + PV wait",
                             "wait V full", "PV wait"],
}  # fmt: skip


@pytest.mark.parametrize(("variant", "detail"), CONSUMER)
def test_the_regions_of_a_consumer(variant, detail):
    text = (TTGIR_DIR / variant / "d128_bf16_full.ttgir").read_text()
    probes = re.findall(r'record (start|end) "(.*?)"', instrument(text, detail=detail, rules=RULES))
    groups = []
    for probe, name in probes:
        if name.startswith("lifetime"):
            groups += [[]] if probe == "start" else []
        else:
            groups[-1].append((probe, name))
    *consumers, producer = groups
    assert len(consumers) == 2
    for consumer in consumers:
        assert [name for probe, name in consumer if probe == "start"] == CONSUMER[variant, detail]
    assert {name for _, name in producer} == {"wait K empty", "wait V empty"}
    for group in groups:  # a region ends before the next one begins
        assert [probe for probe, _ in group] == ["start", "end"] * (len(group) // 2)


def test_coarse_joins_as_many_waits_as_there_are():
    text = (TTGIR_DIR / "improved" / "d128_bf16_full.ttgir").read_text()
    waits = re.compile(r"^( *)(%\w+)(.* = | = )(ttng\.warp_group_dot_wait .*\n)", re.MULTILINE)
    number = iter(range(100))
    thrice = waits.sub(
        lambda found: found[0] + "".join(f"{found[1]}%again{next(number)}{found[3]}{found[4]}" for _ in range(2)), text
    )
    assert thrice.count("warp_group_dot_wait") == 3 * text.count("warp_group_dot_wait")
    records = [instrument(module, detail="coarse").count("proton.record") for module in (text, thrice)]
    assert records[0] == records[1]
