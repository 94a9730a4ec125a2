"""Pages of public kernels that others made faster: counts on docs/sped_up.md, and in docs/sped_up/ a page a collection.

The page of a collection has a short table, and an entry a kernel with all that is recorded of the kernel.
"""

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kperf.diagnose.rule import all_rules
from kperf.record import markdown as md
from kperf.record.files import read_text, write_atomically
from kperf.studies import followed, sped_up
from kperf.studies.public_rows import SHORT_COMMIT, PublicRow, gain, in_order, recorded, stamped

WORDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
"""What the collection of a number is called, and its page."""

HEAD = ("kernel", "author's change", "kperf's advice", "rank", "kperf's first finding")
_OUTPUTS = {"equal bits": "equal bits", "within tolerance": "outputs within tolerance", "different": "other outputs"}
_COLUMNS = (
    "How many times as fast the author's change and kperf's advice make each kernel, and the rank of the finding that "
    "names the fault ([what the columns mean](../sped_up.md#columns)):"
)


def sections(folder: Path) -> dict[str, str]:
    """Tables of docs/sped_up.md and what stands on the page of each collection, by the names of their marks."""
    of_number = collected(folder)
    if not of_number:
        return {}
    found = {}
    for number, rows in of_number.items():
        found[f"collection-{number}"] = _table_and_counts(folder, number, rows)
        found[f"kernels-{number}"] = "\n\n".join(_entries(rows))
    newest_first = dict(reversed(of_number.items()))
    cells = [[_page(number), *sped_up.totals(folder, number, rows)] for number, rows in newest_first.items()]
    found["sped-up"] = "\n".join(md.table(("collection", *sped_up.TOTALS), cells))
    advised = {number: rows for number, rows in newest_first.items() if any(row.follows for row in rows)}
    cells = [[_page(number), *followed.totals(rows)] for number, rows in advised.items()]
    found["followed"] = "\n".join(md.table(("collection", *followed.TOTALS), cells))
    every = followed.of_rules([row for rows in of_number.values() for row in rows])
    rules = [(f"[{rule}](rules/{rule}.md)", *cells) for rule, cells in every.items()]
    found["of-rules"] = "\n".join(md.table(followed.OF_RULES, rules))
    return found


def begin(document: Path, folder: Path) -> None:
    """Write a page for each collection that has none: heading and marks, around which somebody may write.

    document: docs/sped_up.md; for another one there is nothing to do. Raises `UsageError` if it cannot be read, or a
    page cannot be written.
    """
    if "<!-- sped-up -->" not in read_text(document):
        return
    for number in collected(folder):
        word = WORDS[number - 1]
        page = document.with_suffix("") / f"{word}.md"
        if not page.exists():
            table, kernels = (
                f"<!-- {name} -->\n<!-- /{name} -->" for name in (f"collection-{number}", f"kernels-{number}")
            )
            write_atomically(page, f"# {word.capitalize()} collection\n{table}\n\n## Each kernel\n{kernels}\n")


def collected(folder: Path) -> dict[int, list[PublicRow]]:
    """Authors' changes and those that follow findings, by the number of their collection."""
    rows = recorded(folder).rows
    numbers = sorted({row.collection for row in rows if row.faults})
    return {
        number: [row for row in rows if row.collection == number and (row.faults or row.follows)] for number in numbers
    }


def _page(number: int) -> str:
    word = WORDS[number - 1]
    return f"[{word}](sped_up/{word}.md)"


def _table_and_counts(folder: Path, number: int, rows: Sequence[PublicRow]) -> str:
    shown = recorded(folder)
    authors, changes = _authors(rows), [row for row in rows if row.follows]
    links = {name: f"[{title}](#{_anchor(title)})" for name, title in _titles(authors).items()}
    cells = [_cells(row, _followers(rows, row), links[row.name]) for row in authors]
    lines = [stamped(shown, authors), _COLUMNS, "", *md.table(HEAD, cells), ""]
    lines += ["In all:", "", *sped_up.counts(folder, number, authors)]
    if changes:
        lines += ["", f"Changed as kperf advises. {stamped(shown, changes)}", "", *followed.counts(rows)]
    return "\n".join(lines)


def _authors(rows: Sequence[PublicRow]) -> list[PublicRow]:
    return in_order([row for row in rows if row.faults])


def _followers(rows: Sequence[PublicRow], author: PublicRow) -> list[PublicRow]:
    """The changes of a kernel that follow its findings, the first one first."""
    return sorted((row for row in rows if row.follows == author.name), key=lambda row: row.name)


def _cells(row: PublicRow, changes: Sequence[PublicRow], kernel: str) -> tuple[str, ...]:
    """Of a row of the table; of several changes that follow findings the faster that computes the same."""
    best = min(in_order(changes), key=lambda change: change.outputs == "different", default=None)
    first = _rule(row.findings[0].id) if row.findings else "none"
    return kernel, _short(row), _short(best) if best is not None else "-", str(row.rank or "-"), first


def _short(row: PublicRow) -> str:
    speedup = f"{statistics.median(row.ratios):.2f} x"
    return f"{speedup}, {_OUTPUTS[row.outputs]}" if row.outputs == "different" else speedup


def _entries(rows: Sequence[PublicRow]) -> list[str]:
    """All about each kernel, the largest gain of an author first."""
    authors = _authors(rows)
    titles = _titles(authors)
    return [f"### {titles[row.name]}\n{_entry(row, _followers(rows, row))}" for row in authors]


def _titles(authors: Sequence[PublicRow]) -> dict[str, str]:
    """Of each pair a heading that no other has: the kernel's name, with the pair's if several kernels have it."""
    times = Counter(row.kernel for row in authors)
    return {
        row.name: f"`{row.kernel}`" if times[row.kernel] == 1 else f"`{row.kernel}` of {row.name}" for row in authors
    }


def _anchor(title: str) -> str:
    """Of a heading, as code hosts and the site make it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _entry(row: PublicRow, changes: Sequence[PublicRow]) -> str:
    findings = [f"{_rule(one.id)} ({one.severity}, line {one.source.line})" for one in row.findings[: sped_up.NAMED]]
    named = f"named by finding {row.rank}" if row.rank is not None else "not named"
    lines = [
        f"{_source(row)}. Input: {_text(row.shape)}.",
        "",
        f"- **Author's change**, {gain(row)}, {_OUTPUTS[row.outputs]}: {_text(row.change)}",
        f"- **Fault**, {named}: {' or '.join(map(_rule, row.faults))}",
        f"- **First findings**: {', '.join(findings) or 'none'}",
    ]
    lines += [
        f"- **Advice** of {_rule(change.rule)}, {gain(change)}, {_OUTPUTS[change.outputs]}: {_text(change.change)}"
        for change in changes
    ]
    return "\n".join(lines)


def _source(row: PublicRow) -> str:
    """Where the version that was changed stands, with a link: a line at a commit, or an issue."""
    host = f"https://github.com/{row.repository}"
    if row.commit:
        file, _, line = row.source.rpartition(":")
        return f"[{row.repository} {row.commit[:SHORT_COMMIT]}, {row.source}]({host}/blob/{row.commit}/{file}#L{line})"
    issue = re.sub(r"^issue (\d+)", rf"[issue \1]({host}/issues/\1)", row.source)
    return f"{row.repository}, {issue}"


def _rule(name: str) -> str:
    """A rule with a link to its page; an author's words for a fault that no rule looks for stay as they are."""
    return f"[{name}](../rules/{name}.md)" if name in {rule.id for rule in all_rules()} else name


def _text(words: str) -> str:
    """Words of a record, in which `__init__` is no bold print."""
    return words.replace("__", r"\_\_")
