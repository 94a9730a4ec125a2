"""Public kernels before and after a change: which ratio is recorded, which outputs are equal, what the table says."""

import runpy

import pytest
import torch

from kperf.bench import turns
from kperf.errors import UsageError
from kperf.record.store import RecordStore
from kperf.studies import collection_pages, public, sped_up
from kperf.studies.public_rows import ROWS
from kperf.trace.analyze.finding import Finding
from tests.bench.fake_gpu import COLD_MS, Gpu
from tests.conftest import environment, kept
from tests.trace.capture import fake_gpu

COMMON = {"run": "r", "environment": "e", "recorded_at": "2026-11-23T00:00:00Z"}

PAIRS = """
from kperf.studies.public import Pair
from tests.studies.test_public import call

def pair(name, times, **more):
    make = lambda changed: call(name, times[changed], changed)
    return Pair(name, "some/package", "0123456789ab", "src/norm.py:7", "norm", "8 x 8", "num_warps=8", "too-few-warps",
                make, **more)

PAIRS = [pair("twice", (2.0, 1.0)), pair("fails", (1.0, 1.0)), pair("alone", (1.0, 1.05), timed="kernel")]
"""

GPU = Gpu()


def call(name, milliseconds, changed):
    launch = GPU.kernel(f"{name} {'changed' if changed else 'original'}", milliseconds)

    def run():
        launch()
        if name == "fails" and changed:
            raise RuntimeError("it does not compile")
        return torch.full((4,), 1.0 + 1e-6 * changed), None

    return run


@pytest.fixture
def gpu(monkeypatch, h200):
    GPU.ran.clear()
    GPU.stand_in(monkeypatch, turns)
    monkeypatch.setattr(public, "torch", turns.torch)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return GPU


def row(original=2.0, changed=1.0, **more):
    fields = {"name": "norm", "repository": "some/package", "commit": "0123456789ab", "source": "src/norm.py:7"}
    fields |= {"kernel": "norm", "shape": "8 x 8", "change": "num_warps=8", "rule": "too-few-warps", "findings": []}
    fields |= {"timed": "operator", "outputs": "equal bits"}
    fields |= {"original_samples_ms": [original] * 31, "changed_samples_ms": [changed] * 31}
    return ROWS.validate_python(COMMON | fields | more)


def test_both_take_turns_with_a_cold_cache_and_what_fails_is_left_out(tmp_path, gpu, console):
    (tmp_path / "pairs.py").write_text(PAIRS)
    public.run(console, tmp_path / "results", tmp_path / "pairs.py")
    rows = RecordStore(tmp_path / "results" / "h200", "public", ROWS).points()
    assert [(one.name, one.timed, one.outputs) for one in rows] == [
        ("twice", "operator", "within tolerance"), ("alone", "kernel", "within tolerance")
    ]  # fmt: skip
    twice = rows[0]
    assert twice.original_samples_ms == pytest.approx([2.0 + COLD_MS] * public.ROUNDS)
    assert twice.changed_samples_ms == pytest.approx([1.0 + COLD_MS] * public.ROUNDS)
    assert twice.ratios == pytest.approx([2.05 / 1.05] * public.ROUNDS)
    rounds = [one for one in gpu.ran if one.startswith("twice")][-2 * public.ROUNDS :]
    assert rounds[:4] in (
        ["twice original", "twice changed", "twice changed", "twice original"],
        ["twice changed", "twice original", "twice original", "twice changed"],
    )
    text = console.export_text()
    assert "fails: RuntimeError: it does not compile" in text
    assert "1.95 x (1.95 to 1.95)" in text


def test_a_finding_names_its_file_from_the_repository_and_no_folder_of_the_machine(tmp_path, gpu, console, monkeypatch):
    files = "/home/me/checkout/src/norm.py", "/home/me/other.py"
    found = [finding("too-few-warps", 1, 2) | {"source": {"file": file, "line": 8}} for file in files]
    monkeypatch.setattr(public, "findings_of", lambda call, name: list(map(Finding.model_validate, found)))
    (tmp_path / "pairs.py").write_text(PAIRS)
    public.run(console, tmp_path / "results", tmp_path / "pairs.py")
    (first, _) = RecordStore(tmp_path / "results" / "h200", "public", ROWS).points()
    assert [(one.source.file, one.source.line) for one in first.findings] == [("src/norm.py", 8), ("other.py", 8)]


def test_outputs_are_equal_in_bits_or_in_numbers_or_not():
    ones = torch.ones(64, 64, dtype=torch.bfloat16)
    index = torch.arange(4)
    assert public.compared([ones, index, torch.tensor(2.0)], [ones.T, index.clone(), torch.tensor(2.0)]) == "equal bits"
    assert public.compared([ones], [ones * 1.01]) == "within tolerance"
    assert public.compared([ones], [ones * 1.1]) == "different"
    assert public.compared([ones], [ones.float()]) == "different"
    assert public.compared([index], [index + 1]) == "different"
    nan = torch.tensor([1.0, float("nan")])
    assert public.compared([nan], [nan.clone()]) == "equal bits"
    assert public.compared([nan], [torch.ones(2)]) == "different"


def finding(rule, low, high):
    return {
        "id": rule, "severity": "medium", "confidence": "high", "source": {"file": "norm.py", "line": 8},
        "kernel": "norm", "message": "4 warps hold 65536 elements", "evidence": {},
        "advice": "launch with num_warps=32",
        "estimate": {"speedup": 1.3, "low": low, "high": high},
    }  # fmt: skip


def test_the_page_counts_gains_whose_interval_and_outputs_are_good_enough(tmp_path, console):
    wide = [finding("other", 1.0, 9.0), finding("too-few-warps", 1.0, 3.0)]
    rows = [
        row(name="a", kernel="slightly", changed=1.9, rule="", timed="kernel"),
        row(name="b", kernel="wrong", outputs="different", changed=0.1, findings=wide),
        row(name="c", kernel="twice", findings=wide, outputs="within tolerance"),
        row(name="d", kernel="by_hand", rule="", changed=1.5),
        row(name="e", kernel="noisy", rule="", changed_samples_ms=[2.2, 1.0] * 15 + [2.2]),
        row(name="f", kernel="slower", rule="", changed=2.5),
        row(name="g", kernel="guessed", rule="", changed=1.6),
    ]
    kept(RecordStore(tmp_path / "h200", "public", ROWS), rows)
    lines = public.markdown(tmp_path / "h200").splitlines()
    assert lines[0].startswith("Recorded on NVIDIA H200, 2026-11-23")
    assert lines[2:5] == [
        "- 7 changes were timed. By the 95% intervals of the gains, 3 changes make their operator at least 10% "
        "faster (1.25 to 2.00 x), 1 makes it slower (0.80 x), and 2 make it neither faster by 10% nor slower "
        "(0.91 to 1.05 x). 1 change is not "
        "counted, because it changes the operator's outputs.",
        "- `kperf diagnose` reports a finding on 1 of the 3 operators that became at least 10% faster.",
        "- 2 of the 7 changes follow a finding of `kperf diagnose`. By the 95% intervals of the gains, 1 change makes "
        "its operator at least 10% faster (2.00 x), 0 make it slower, and 0 make it neither faster by 10% nor slower. "
        "1 change is not counted, "
        "because it changes the operator's outputs.",
    ]
    assert [line.partition("`")[2].partition("`")[0] for line in lines[8:15]] == [
        "wrong", "twice", "by_hand", "guessed", "slightly", "noisy", "slower"
    ]  # fmt: skip
    assert lines[9] == (
        "| `twice` (some/package 0123456789, src/norm.py:7) | too-few-warps, medium | num_warps=8 | 8 x 8 | 2.0000 "
        "| 1.0000 | 1.3 x (1 to 3) | 2.00 x (2.00 to 2.00) | within tolerance |"
    )
    assert "| none | num_warps=8 | 8 x 8; the kernel alone | 2.0000 | 1.9000 |" in lines[12]
    assert len(lines) == 15
    public.run(console, tmp_path, None)
    assert "2.00 x (2.00 to 2.00)" in console.export_text()


def test_a_fault_is_named_by_its_rule_near_one_of_its_lines():
    found = [finding("other", 1.0, 2.0), finding("too-few-warps", 1.0, 2.0), finding("too-few-warps", 1.0, 2.0)]
    assert row(faults=["too-few-warps"], findings=found).rank == 2
    assert row(faults=["too-few-warps"], findings=found, lines=[7, 8]).rank == 2
    assert row(faults=["too-few-warps"], findings=found, lines=[3]).rank == 2
    assert row(faults=["too-few-warps"], findings=found, lines=[2, 14]).rank is None
    assert row(faults=["row summed twice"], findings=found).rank is None


def test_the_page_counts_whose_fault_the_first_two_findings_name(tmp_path, console):
    third = [finding("other", 1, 2), finding("more", 1, 2), finding("few-bytes-in-flight", 1, 2)]
    rows = [
        row(
            name="a",
            kernel="named",
            faults=["low-occupancy", "too-few-warps"],
            findings=[finding("too-few-warps", 1, 2)],
            commit="",
        ),
        row(name="b", kernel="too_late", faults=["few-bytes-in-flight"], findings=third, changed=1.9),
        row(name="c", kernel="unknown", faults=["row summed twice"], changed=0.5, commit="ab12"),
        row(name="d", kernel="ours", rule="", changed=1.0),
    ]
    kept(RecordStore(tmp_path / "h200", "public", ROWS), rows)
    lines = collection_pages.sections(tmp_path / "h200")["collection-1"].splitlines()
    assert lines[0].startswith("Recorded on NVIDIA H200, 2026-11-23.")
    assert lines[4:8] == [
        "|---|---|---|---|---|",
        "| [`unknown`](#unknown) | 4.00 x | - | - | none |",
        "| [`named`](#named) | 2.00 x | - | 1 | [too-few-warps](../rules/too-few-warps.md) |",
        "| [`too_late`](#too_late) | 1.05 x | - | 3 | other |",
    ]
    assert lines[8:] == [
        "",
        "In all:",
        "",
        "- When each kernel was first measured, kperf's first or second finding named the faults of 1 of 3 kernels.",
        "- By chance the first two findings would name the faults of 0.0 kernels: this is the average if each kernel "
        "had the findings of another kernel.",
        "- No rule of kperf looks for 1 of the 3 faults. 1 of the faults counts as named if any of several rules names "
        "it.",
        "- By the 95% intervals of the gains, 2 changes make their operator at least 10% faster (2.00 to 4.00 x), 0 "
        "make it slower, and 1 makes it neither faster by 10% nor slower (1.05 x).",
        "- When each kernel was first measured, kperf's first or second finding named the faults of 1 of the 2 kernels "
        "that become at least 10% faster.",
    ]
    assert "1 change was timed" in public.markdown(tmp_path / "h200")
    public.run(console, tmp_path, None)
    shown = console.export_text()
    assert "that others made faster" in shown
    assert "before and after a change" in shown


def test_findings_of_other_kernels_name_a_fault_by_chance():
    def of(fault, *found):
        return row(faults=[fault], findings=[finding(rule, 1, 2) for rule in found])

    rows = [of("float64", "scalar-loop"), of("scalar-loop", "float64", "slow-math", "scalar-loop"),
            of("slow-math", "float64", "scalar-loop")]  # fmt: skip
    assert sped_up.by_chance(rows) == 2.5  # 2, 2 and 1 of the two others
    assert sped_up.by_chance(rows[:1]) == 0


def test_the_page_says_what_rules_named_before_they_were_changed(tmp_path):
    store = RecordStore(tmp_path / "h200", "public", ROWS)
    found = [finding("too-few-warps", 1, 2)]
    runs = [("2026-11-22", [row(name="a", faults=["too-few-warps"]), row(name="b", faults=["too-few-warps"])]),
            ("2026-11-24", [row(name="a", faults=["too-few-warps"], findings=found)])]  # fmt: skip
    with store.writer() as writer:
        known = writer.record_environment(environment())
        for day, rows in runs:
            changes = {"environment": known, "run": day, "recorded_at": f"{day}T00:00:00Z"}
            writer.append([ROWS.validate_python(one.model_dump() | changes) for one in rows])
    lines = collection_pages.sections(tmp_path / "h200")["collection-1"].splitlines()
    place = lines.index("In all:")
    assert lines[place + 2 : place + 4] == [
        "- When each kernel was first measured, kperf's first or second finding named the faults of 0 of 2 kernels.",
        "- When each kernel was last measured, kperf's first or second finding named the faults of 1 of 2 kernels.",
    ]


def test_the_page_compares_what_findings_gain_with_what_authors_gained(tmp_path, console):
    """A kernel's faster change counts; one that loses, or computes something else, gains nothing."""
    rows = [
        row(name="a", faults=["slow-math"], changed=0.5),  # 4 x
        row(name="b", faults=["slow-math"], changed=1.0),  # 2 x
        row(name="c", faults=["slow-math"], changed=4.0),  # it loses, as an author's change may
        row(name="d", faults=["slow-math"], changed=0.25),  # 8 x, and nobody could follow a finding
        row(name="a:1", follows="a", kernel="first", changed=1.0),
        row(name="a:2", follows="a", kernel="second", rule="float64", change="also: float32", changed=0.25),
        row(name="b:1", follows="b", kernel="loses", changed=2.5),
        row(name="c:1", follows="c", kernel="wrong", changed=0.5, outputs="different"),
        row(name="ours", kernel="by_hand", changed=0.1),
    ]
    kept(RecordStore(tmp_path / "h200", "public", ROWS), rows)
    sections = public.sections(tmp_path / "h200")
    lines = sections["collection-1"].splitlines()
    place = lines.index("Changed as kperf advises. Recorded on NVIDIA H200, 2026-11-23.")
    assert lines[place + 2 : place + 5] == [
        "- 3 of the 4 kernels were changed as their findings advise, some in two ways: 4 changes. By the 95% intervals "
        "of the gains, 2 changes make their operator at least 10% faster (2.00 to 8.00 x), 1 makes it slower (0.80 x), "
        "and 0 make it neither faster by 10% nor slower. 1 change is not counted, because it changes the operator's "
        "outputs.",
        "- The geometric mean of the 4 kernels' gains is 1.68 x by the faster change of each kernel, 1.19 x by the "
        "first change of each kernel, and 2.83 x by the authors' changes. In these means a kernel counts as 1 x if "
        "nothing was changed, if the change makes it slower, or if the change changes its outputs.",
        "- Their authors made 3 kernels at least 10% faster. 1 of these 3 kernels becomes at least 90% as fast by "
        "kperf's advice as by the author's change.",
    ]
    assert lines[5:9] == [
        "| [`norm` of d](#norm-of-d) | 8.00 x | - | - | none |",
        "| [`norm` of a](#norm-of-a) | 4.00 x | 8.00 x | - | none |",
        "| [`norm` of b](#norm-of-b) | 2.00 x | 0.80 x | - | none |",
        "| [`norm` of c](#norm-of-c) | 0.50 x | 4.00 x, other outputs | - | none |",
    ]
    assert sections["followed"].splitlines()[2:] == [
        "| [first](sped_up/first.md) | 3 of 4 | 1.19 x | 1.68 x | 2.83 x | 1 of 4 |"
    ]
    assert "1 change was timed" in public.markdown(tmp_path / "h200")
    public.run(console, tmp_path, None)
    assert "changed as kperf advises" in console.export_text()


def test_a_rule_has_the_mean_of_what_its_changes_add(tmp_path):
    """A second change counts beside the first; rules of two changes, and other outputs, do not."""
    rows = [
        *(row(name=name, faults=["slow-math"]) for name in "abcd"),
        row(name="a:1", follows="a", kernel="a", rule="float64", changed=0.5),  # 4 x
        row(name="a:2", follows="a", kernel="a2", rule="float64", change="also: float32", changed=0.25),  # 8 x, so 2 x
        row(name="b:1", follows="b", kernel="b", rule="float64", changed=2.0),
        row(name="c:1", follows="c", kernel="c", rule="float64", changed=2.5),  # 0.8 x
        row(name="d:1", follows="d", kernel="d", rule="float64", changed=0.1, outputs="different"),
        row(name="b:2", follows="b", kernel="b2", rule="slow-math", change="also: exp2", changed=1.0),
        row(name="c:2", follows="c", kernel="c2", rule="slow-math", change="also: exp2", changed=1.0),
        row(name="ours", kernel="by_hand", changed=0.1),
    ]
    kept(RecordStore(tmp_path / "h200", "public", ROWS), rows)
    lines = public.sections(tmp_path / "h200")["of-rules"].splitlines()
    assert lines[2:] == ["| [float64](rules/float64.md) | 4 | 1.59 x | 2 | 1 |"]  # (4 * 2 * 1 * 0.8) ** (1 / 4)


def test_a_change_that_follows_findings_keeps_its_rule(tmp_path, console, gpu, monkeypatch):
    pairs = tmp_path / "pairs.py"
    pairs.write_text(PAIRS.replace('timed="kernel")', 'timed="kernel", follows="author")'))
    monkeypatch.setattr(public, "findings_of", lambda call, name: [])
    public.run(console, tmp_path, pairs)
    rows = {one.name: one for one in RecordStore(tmp_path / "h200", "public", ROWS).points()}
    assert (rows["alone"].follows, rows["alone"].rule, rows["alone"].findings) == ("author", "too-few-warps", [])
    assert (rows["twice"].follows, rows["twice"].rule) == ("", "")


def test_all_about_a_kernel_stands_in_its_entry(tmp_path):
    """Where its source is, what its author changed, and each change that follows findings, the first one first."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    found = [finding(rule, 1, 2) for rule in ("too-few-warps", "other", "float64")]
    rows = [
        row(
            name="a",
            commit=commit,
            faults=["float64", "rows summed twice"],
            findings=found,
            change="in __init__",
            outputs="within tolerance",
        ),
        row(name="a:2", follows="a", rule="float64", change="also: float32", changed=0.5),
        row(name="a:1", follows="a", change="num_warps=4", changed=0.25, outputs="different"),
        row(name="b", kernel="asked", commit="", source="issue 12 (before/k.py:7)", faults=["float64"], changed=4.0),
    ]
    kept(RecordStore(tmp_path / "h200", "public", ROWS), rows)
    warps, double = "[too-few-warps](../rules/too-few-warps.md)", "[float64](../rules/float64.md)"
    sections = collection_pages.sections(tmp_path / "h200")
    right = f"| [`norm`](#norm) | 2.00 x | 4.00 x | 3 | {warps} |"  # the faster change computes something else
    assert right in sections["collection-1"].splitlines()
    assert sections["kernels-1"].splitlines() == [
        "### `norm`",
        f"[some/package 0123456789, src/norm.py:7](https://github.com/some/package/blob/{commit}/src/norm.py#L7). "
        "Input: 8 x 8.",
        "",
        r"- **Author's change**, 2.00 x (2.00 to 2.00), outputs within tolerance: in \_\_init\_\_",
        f"- **Fault**, named by finding 3: {double} or rows summed twice",
        f"- **First findings**: {warps} (medium, line 8), other (medium, line 8)",
        f"- **Advice** of {warps}, 8.00 x (8.00 to 8.00), other outputs: num_warps=4",
        f"- **Advice** of {double}, 4.00 x (4.00 to 4.00), equal bits: also: float32",
        "",
        "### `asked`",
        "some/package, [issue 12](https://github.com/some/package/issues/12) (before/k.py:7). Input: 8 x 8.",
        "",
        "- **Author's change**, 0.50 x (0.50 to 0.50), equal bits: num_warps=8",
        f"- **Fault**, not named: {double}",
        "- **First findings**: none",
    ]


def test_a_record_of_our_changes_alone_has_no_page_of_others(tmp_path):
    kept(RecordStore(tmp_path / "h200", "public", ROWS), [row(), row(name="a:1", follows="a")])
    assert list(public.sections(tmp_path / "h200")) == ["public"]


def test_each_collection_has_a_page_of_its_own(tmp_path):
    """A later one was measured before rules were changed because of it. What somebody wrote on a page stays."""
    named = {"faults": ["too-few-warps"], "findings": [finding("too-few-warps", 1, 2)]}
    rows = [
        row(name="a", kernel="first_one", **named),
        row(name="a:1", kernel="first_one", follows="a", changed=0.5),
        row(name="b", kernel="second_one", **named, collection=2),
        row(name="c", kernel="second_too", faults=["float64"], collection=2),
        row(name="ours", kernel="by_hand"),
    ]
    kept(RecordStore(tmp_path / "h200", "public", ROWS), rows)
    page, first, second = (tmp_path / name for name in ("others.md", "others/first.md", "others/second.md"))
    page.write_text("# Others\n<!-- sped-up -->\n<!-- /sped-up -->\n")
    first.parent.mkdir()
    first.write_text("# One\n<!-- collection-1 -->\nold\n<!-- /collection-1 -->\nWhat we learned.\n")
    public.write(page, tmp_path / "h200")
    assert page.read_text().splitlines()[4:-1] == [
        "| [second](sped_up/second.md) | 2 | 1 | 0.0 | 2 | 1 |",
        "| [first](sped_up/first.md) | 1 | 1 | 0.0 | 1 | 1 |",
    ]
    sections = public.sections(tmp_path / "h200")
    table = f"# One\n<!-- collection-1 -->\n{sections['collection-1']}\n<!-- /collection-1 -->"
    assert first.read_text() == f"{table}\nWhat we learned.\n"
    about, kernels = (f"<!-- {name} -->\n{sections[name]}\n<!-- /{name} -->" for name in ("collection-2", "kernels-2"))
    assert second.read_text() == f"# Second collection\n{about}\n\n## Each kernel\n{kernels}\n"
    assert "named the faults of 1 of 2 kernels" in about
    assert [about.count(f"`{name}`") for name in ("first_one", "second_one", "second_too")] == [0, 1, 1]
    assert [sections["public"].count(f"`{name}`") for name in ("first_one", "by_hand")] == [0, 1]
    page.write_text("# Nothing\n")
    first.unlink(), second.unlink()
    with pytest.raises(UsageError, match="has no marks of public, collection-1, kernels-1, collection-2, kernels-2, "):
        public.write(page, tmp_path / "h200")
    assert not second.exists()


def test_of_each_pair_what_was_measured_last_is_shown(tmp_path):
    runs = [("2026-11-22", [row(name="a", kernel="kept"), row(name="b", kernel="measured_again", changed=1.5)]),
            ("2026-11-24", [row(name="b", kernel="measured_again", changed=0.5)])]  # fmt: skip
    store = RecordStore(tmp_path / "h200", "public", ROWS)
    with store.writer() as writer:
        known = writer.record_environment(environment())
        for day, rows in runs:
            changes = {"environment": known, "run": day, "recorded_at": f"{day}T00:00:00Z"}
            writer.append([ROWS.validate_python(one.model_dump() | changes) for one in rows])
    text = public.markdown(tmp_path / "h200")
    assert text.startswith("Recorded on NVIDIA H200, 2026-11-22 to 2026-11-24.\n\n- 2 changes were timed. By the")
    assert "2.0000 | 0.5000 | none | 4.00 x" in text
    assert "2.0000 | 1.0000 | none | 2.00 x" in text
    assert text.count("`measured_again`") == text.count("`kept`") == 1


@pytest.mark.parametrize("text", ["", "PAIRS = 3", "PAIRS = [1]"])
def test_a_file_without_pairs_is_a_sentence(tmp_path, text):
    (tmp_path / "pairs.py").write_text(text)
    with pytest.raises(UsageError, match=r"pairs\.py has no PAIRS: a list of kperf.studies.public.Pair"):
        public.read_pairs(tmp_path / "pairs.py")
    with pytest.raises(UsageError, match=r"there is no file .*missing\.py"):
        public.read_pairs(tmp_path / "missing.py")


COPY = """
import triton, triton.language as tl

@triton.jit
def copy(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))
"""


def test_findings_are_those_of_the_named_kernel_at_its_launch(tmp_path, monkeypatch):
    fake_gpu.install(tmp_path, monkeypatch)
    (tmp_path / "copying.py").write_text(COPY)
    copy = runpy.run_path(str(tmp_path / "copying.py"))["copy"]
    many, few = torch.zeros(1 << 20), torch.zeros(1 << 16)

    def launch(x, block, times=1):
        for _ in range(times):
            copy[(x.numel() // block,)](x, x, block)

    assert [one.id for one in public.findings_of(lambda: launch(many, 128, 2), "copy")] == ["few-bytes-in-flight"]
    assert [one.id for one in public.findings_of(lambda: launch(few, 1 << 11), "copy")] == ["launch-too-small"]
    assert public.findings_of(lambda: launch(many, 128), "other") == []
