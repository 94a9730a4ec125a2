"""docs/proof.md and the pages below it: totals of the proof set, its kernels, and the held-out ones."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from kperf.diagnose.rule import all_rules
from kperf.paper.proof import (
    BY_HAND,
    CLOSE,
    FASTER,
    ROWS,
    SLOWER,
    ProofRow,
    cells,
    in_order,
    is_close,
    is_inside,
    recorded_run,
    scripts,
    sentences,
    slower,
)
from kperf.record import markdown as md
from kperf.record.store import RecordStore

COUNTED_HEAD = ("", "proof set", "held out")
COUNTED = (
    "kernels with a fault",
    "faults that the first or second finding names",
    "clean kernels with a finding of severity high",
    "advised changes that were timed",
    f"of these changes, at least {FASTER - 1:.0%} faster",
    "of these changes, slower",
    "median of the measured gains",
    f"estimated gains within a factor of {CLOSE} of the measured gain",
    "measured gains in the interval of the estimate",
)
HEAD = ("kernel and line", "fault", "rank, severity", "estimated gain", "measured gain")
SLOWER_HEAD = ("kernel and line", "finding", *HEAD[2:])
SETS = "Sets of held-out kernels, each recorded before a rule was changed because of one of its kernels"
SETS_HEAD = ("recorded on", "GPU", "faults in the set", "faults that the first or second finding names")
_FAULTS_OF_A_SET = 16
_KERNELS = "../../tests/diagnose/kernels"
"""The proof set as pages in docs/proof/ link it."""


def sections(folder: Path, kernels: Path) -> dict[str, str]:
    """What the pages show, by the names of their marks; `kernels`: the folder of the proof set.

    Raises `UsageError` for a broken record, and for a folder without kernels.
    """
    known, held_out = (recorded_run(folder, held_out=part) for part in (False, True))
    parts = _counts(known.rows), _counts(held_out.rows)
    set_by_set = [f"{SETS}:", "", *md.table(SETS_HEAD, sets(folder.parent))]
    return {
        "proof": "\n".join([_sentence(known.stamp), "", *md.table(COUNTED_HEAD, zip(COUNTED, *parts, strict=True))]),
        "kernels": "\n".join(_about(known.stamp, known.rows, kernels)),
        "held-out": "\n".join([*_about(held_out.stamp, held_out.rows, kernels), "", *set_by_set]),
    }


def _counts(rows: Sequence[ProofRow]) -> list[str]:
    """Of each of `COUNTED`."""
    faulty = [row for row in rows if not row.is_clean]
    clean = [row for row in rows if row.is_clean and row.kernels]
    gains = [row.gain for row in faulty if row.gain is not None]
    estimated = [row for row in faulty if row.off is not None]
    return [
        str(len(faulty)),
        str(_named(faulty)),
        f"{sum(bool(row.severe) for row in clean)} of {len(clean)}",
        str(len(gains)),
        str(sum(gain.speedup >= FASTER for gain in gains)),
        str(sum(gain.is_slower for gain in gains)),
        f"{statistics.median(gain.speedup for gain in gains):.2f} x" if gains else "none",
        f"{sum(map(is_close, estimated))} of {len(estimated)}",
        f"{sum(map(is_inside, estimated))} of {len(estimated)}",
    ]


def _named(rows: Sequence[ProofRow]) -> int:
    return sum(row.rank is not None and row.rank <= 2 for row in rows)


def _sentence(stamp: str) -> str:
    return f"{stamp[0].upper()}{stamp[1:]}."


def _about(stamp: str, rows: Sequence[ProofRow], kernels: Path) -> list[str]:
    """A row a faulty kernel, totals in sentences, and what becomes slower."""
    places = {path.stem: f"{_KERNELS}/{path.relative_to(kernels)}" for path in scripts(kernels, [])}
    faulty = [_narrow(cells(row), places) for row in in_order(rows) if not row.is_clean]
    lines = [_sentence(stamp), "", *md.table(HEAD, faulty), "", "In all:", "", *(f"- {one}" for one in sentences(rows))]
    if made_slower := slower(rows):
        lines += ["", f"{SLOWER}:", "", *md.table(SLOWER_HEAD, [_narrow(row, places) for row in made_slower])]
    return lines


def _narrow(row: Sequence[str], places: dict[str, str]) -> tuple[str, ...]:
    """A row of `kperf proof` in fewer columns, with links; without a measured gain why there is none."""
    name, rule, line, rank, severity, estimated, gain, change = row
    kernel = f"[{name}:{line}]({places[name]}#L{line})" if name in places else f"{name}:{line}"
    linked = f"[{rule}](../rules/{rule}.md)" if rule in {one.id for one in all_rules()} else rule
    measured = gain if change == BY_HAND else f"{gain}, by {change}" if gain else change
    return kernel, linked, ", ".join(filter(None, (rank, severity))), estimated, measured


def sets(results: Path) -> list[tuple[str, ...]]:
    """A row of each set of held-out kernels that was recorded on any GPU, the first one first.

    A run of fewer kernels is of those that failed in another one. Raises `UsageError` for a broken record.
    """
    of_run: dict[str, list[ProofRow]] = {}
    gpus: dict[str, str] = {}
    for file in results.glob("*/diagnose.jsonl"):
        store = RecordStore(file.parent, "diagnose", ROWS)
        environments = store.environments()
        for row in store.points():
            if row.is_held_out and not row.is_clean:
                of_run.setdefault(row.run, []).append(row)
                gpus[row.run] = environments[row.environment].gpu
    whole = [rows for rows in of_run.values() if len(rows) >= _FAULTS_OF_A_SET]
    return [
        (rows[0].recorded_at[:10], gpus[rows[0].run], str(len(rows)), str(_named(rows)))
        for rows in sorted(whole, key=lambda rows: rows[0].recorded_at)
    ]
