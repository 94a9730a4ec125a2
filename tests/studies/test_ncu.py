"""What ncu's rules say, read from the details page that it prints as CSV."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kperf.errors import UsageError
from kperf.studies import ncu
from tests.paper.fake_ncu import HEADER

COMMON = {"Process ID": "4711", "Kernel Name": "k", "CC": "9.0"}


def page(*rows, columns=HEADER, before="", after=""):
    """`rows` of cells by column; those of metrics have no rule's columns, as ncu prints them."""
    text = io.StringIO()
    table = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    table.writerow(columns)
    for row in rows:
        cells = [str((COMMON | row).get(column, "")) for column in columns]
        table.writerow(cells if "Rule Name" in row else cells[: len(columns) - 4])
    return f"{before}{text.getvalue()}{after}"


def rule(name, text="Something.", number=0, **more):
    return {"ID": number, "Rule Name": name, "Rule Type": "OPT", "Rule Description": text, **more}


def test_rules_are_read_beside_metrics_in_the_order_of_launches():
    text = page(
        {"ID": 10, "Kernel Name": "later", "Metric Name": "Duration", "Metric Value": "1,234.00"},
        rule("B", number=10, **{"Kernel Name": "later"}),
        rule("A", "It waits 15.9 cycles, e. g. for L1TEX.  See gemm.py:20\nfor more.",
             **{"Estimated Speedup Type": "global", "Estimated Speedup": "1,034.5"}),
        rule("A", "No more", **{"Rule Type": "INF"}),
        before="==PROF== Connected to process 4711\nwarming up\n",
        after="==PROF== Disconnected from process 4711\n",
    )  # fmt: skip
    (first, found), (second, later) = ncu.rules(text)
    assert (first, second) == ("k", "later")
    assert [one.model_dump() for one in found] == [
        {"rule": "A", "kind": "OPT", "text": "It waits 15.9 cycles, e", "names_line": True, "scope": "global",
         "percent": 1034.5},
        {"rule": "A", "kind": "INF", "text": "No more", "names_line": False, "scope": "", "percent": None},
    ]  # fmt: skip
    assert [one.rule for one in later] == ["B"]


def test_an_older_ncu_has_no_estimates():
    columns = [name for name in HEADER if not name.startswith("Estimated")]
    (_, (found,)), *_ = ncu.rules(page(rule("A"), columns=columns))
    assert (found.rule, found.scope, found.percent) == ("A", "", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==PROF== nothing", "ncu printed no table"),
        (page(), "ncu's table has no rules"),
        (page({"ID": 0, "Metric Name": "Duration"}), "ncu's table has no rules"),
        (page({"ID": 0}, columns=("ID", "Kernel Name", "Metric Name")), "ncu's table has no rules"),
        (page(rule("A", **{"Estimated Speedup Type": "galactic"})), "'galactic' as the type of an estimated speedup"),
        (page(rule("A", **{"Estimated Speedup": "much"})), "'much' where a number belongs"),
        (page(rule("A", **{"Estimated Speedup": "inf"})), "'inf' where a number belongs"),
    ],
)
def test_what_is_no_page_of_rules_is_refused_in_a_sentence(text, words):
    with pytest.raises(UsageError, match=words):
        ncu.rules(text)


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=20)
ESTIMATES = st.one_of(st.none(), st.floats(0, 1e6).map(lambda one: round(one, 2)))


@given(
    st.lists(st.tuples(st.integers(0, 12), CELLS.filter(bool), CELLS, st.sampled_from(["global", "local"]), ESTIMATES))
)
def test_any_rules_come_back(rows):
    found = ncu.rules(page(*(
        rule(name, text, number, **{"Estimated Speedup Type": scope if percent is not None else "",
                                    "Estimated Speedup": f"{percent:,}" if percent is not None else ""})
        for number, name, text, scope, percent in rows
    ))) if rows else []  # fmt: skip
    in_order = sorted(rows, key=lambda row: row[0])
    read = [one for _, of_kernel in found for one in of_kernel]
    assert [(one.rule, one.percent) for one in read] == [(name, percent) for _, name, _, _, percent in in_order]
    assert len(found) == len({number for number, *_ in rows})


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    try:
        assert ncu.rules(f'"ID","Kernel Name","Rule Name"\n{text}')
    except UsageError as error:
        assert str(error).startswith("ncu")


def test_the_version_is_asked_for(tmp_path):
    program = tmp_path / "ncu"
    program.write_text("#!/bin/sh\necho 'NVIDIA (R)'\necho 'Version 2025.3.1.0 (build 1) (public-release)'\n")
    program.chmod(0o755)
    assert ncu.version(program) == "2025.3.1.0"
    with pytest.raises(UsageError, match="does not run"):
        ncu.version(tmp_path)


def test_a_table_of_a_command_that_failed_will_do_where_a_part_is_wanted(tmp_path):
    program = tmp_path / "ncu"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{page(rule('A'))}END\necho '==ERROR== it returned 9'\nexit 9\n")
    program.chmod(0o755)
    assert len(ncu.rules(ncu.run(program, [], ["true"], page="details", in_part=True))) == 1
    with pytest.raises(UsageError, match="ncu failed: it returned 9"):
        ncu.run(program, [], ["true"], page="details")
    program.write_text("#!/bin/sh\necho '==ERROR== it returned 9'\nexit 9\n")
    with pytest.raises(UsageError, match="ncu failed: it returned 9"):
        ncu.run(program, [], ["true"], page="details", in_part=True)
