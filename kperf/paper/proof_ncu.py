"""`kperf proof --beside-ncu`: what the rules of `ncu --set full` say of the kernels of the proof set. A row a kernel.

Many kernels share a process, as its start takes seconds: the process runs each script once, and then the script's last
launch again, which ncu profiles. The kernels that a broken process has left go into the next one.
"""

import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import Field, TypeAdapter
from rich.console import Console

from kperf.console import agreeing
from kperf.errors import UsageError
from kperf.paper import proof
from kperf.paper.ncu_causes import CAUSES, WITHOUT_RULE
from kperf.paper.ncu_causes import names as names_cause
from kperf.paper.proof import KernelRow, about_script, scripts
from kperf.record import markdown as md
from kperf.record.files import from_json_once
from kperf.record.store import Frozen, RecordStore, recorded_folder
from kperf.studies import ncu
from kperf.studies.ncu import Rule
from kperf.studies.records import Common, folder_of, measured_or_recorded, stamp

NAME = "ncu_rules"
SESSION = (sys.executable, "-m", "kperf.paper.proof_ncu_session")
_BEGIN_WITHIN_S = 100.0
"""A process begins no script later: ncu prints its table when the process has ended. Another one goes on."""
_LIMIT_S = 400.0
"""Of such a process. A kernel takes some 40 passes, each a launch after its memory is put back."""
_OPTIONS = ("--set", "full", "--nvtx", "--print-nvtx-rename", "kernel")
"""A launch is in an NVTX range with the name of its script, and ncu prints that as its kernel's."""
FIRST = 2
"""How many of ncu's rules stand beside our findings."""
LARGE = 20.0
"""An estimate that a user would follow: percent of a kernel's time."""


class Answer(Frozen):
    """A line of the process: a script has begun, or is over. why: it is not profiled. took_s: of the launch."""

    name: str
    is_over: bool
    why: str = ""
    took_s: float = Field(default=0.0, ge=0)


class NcuRow(KernelRow):
    """A kernel under `ncu --set full`.

    ncu: its version. rules: what each says, in the order of the page. why: why there are none. took_s: of the profiled
    launch, with all passes.
    """

    ncu: str
    rules: list[Rule] = Field(default_factory=list)
    why: str = ""
    took_s: float = Field(default=0.0, ge=0)

    @property
    def first(self) -> list[Rule]:
        """The rules with the largest estimates, whatever their scope, as ncu's own summary has them."""
        estimated = [rule for rule in self.rules if rule.percent]
        return sorted(estimated, key=lambda rule: -(rule.percent or 0))[:FIRST]

    @property
    def names_cause(self) -> bool:
        """Whether one of the first rules names the planted fault."""
        return names_cause(self.fault, self.first)

    @property
    def names_cause_anywhere(self) -> bool:
        """Whether any rule does, with an estimate or without."""
        return names_cause(self.fault, self.rules)

    @property
    def largest_global(self) -> float:
        """The largest estimate of the kernel's whole time, percent; 0 without one."""
        return max((rule.percent or 0 for rule in self.rules if rule.scope == "global"), default=0)


ROWS: TypeAdapter[NcuRow] = TypeAdapter(NcuRow)


def run(
    console: Console, results: Path, kernels: Path, names: Sequence[str], *, ncu_path: Path | None, require_gpu: bool
) -> None:
    """Profile the kernels of a folder (or those of these names), or show what is recorded without a GPU.

    Raises `UsageError` if the folder has none, or none of a name, if nothing is recorded, and if ncu profiles nothing.
    """
    found = measured_or_recorded(
        console,
        results,
        NAME,
        ROWS,
        partial(measure, console, results, kernels, names, ncu_path),
        require_gpu=require_gpu,
        in_children=True,
        command="proof OPTIONS=--beside-ncu",
    )
    for line in sentences(newest(RecordStore(found.folder, NAME, ROWS).points())):
        console.print(line, highlight=False)


def measure(
    console: Console, results: Path, kernels: Path, names: Sequence[str], ncu_path: Path | None, common: Common
) -> Iterator[NcuRow]:
    """The row of each script; of one that is not profiled why. Faulty kernels come first.

    What an earlier run profiled with this GPU, software and commit is left out, unless it is named.
    """
    program = ncu.find(ncu_path)
    version, left = ncu.version(program), scripts(kernels, names)
    if not names and (known := _profiled_before(folder_of(results), common["environment"])):
        before = len(left)
        left = [path for path in left if path.stem not in known]
        console.print(f"{before - len(left)} of {before} kernels are recorded: name those to be profiled again")
    has_profiled = False
    while left:
        outcomes, left = _profiled(program, left, has_profiled)
        for path, (rules, why, took_s) in outcomes.items():
            row = NcuRow(**common, **about_script(path), ncu=version, rules=rules, why=why, took_s=took_s)
            has_profiled |= bool(rules)
            console.print(one_line(row), highlight=False)
            yield row


def _profiled_before(folder: Path, environment: str) -> set[str]:
    """Names of kernels whose rules are recorded in what differs from this environment in card and host alone."""
    store = RecordStore(folder, NAME, ROWS)
    known = store.environments()
    same = {name for name, other in known.items() if other.setting == known[environment].setting}
    return {row.name for row in store.points() if row.rules and row.environment in same}


_Outcome = tuple[list[Rule], str, float]


def _profiled(program: Path, paths: Sequence[Path], has_profiled: bool) -> tuple[dict[Path, _Outcome], list[Path]]:
    """What came of scripts in one process, and the scripts that are to go into another one.

    Raises `UsageError` if ncu itself does not work: no script is to blame, and before it has not profiled a kernel.
    """
    profiled: list[tuple[str, list[Rule]]] = []
    with tempfile.TemporaryDirectory(prefix="kperf-proof-") as folder:
        file = Path(folder) / "answers.jsonl"
        why = "ncu printed nothing of it"
        try:
            command: list[str | Path] = [*SESSION, str(_BEGIN_WITHIN_S), file, *paths]
            profiled = ncu.rules(ncu.run(program, _OPTIONS, command, _LIMIT_S, page="details", in_part=True))
        except UsageError as error:
            why = str(error)
        answers = read_answers(file)
    if not (profiled or has_profiled or any(answer.why or not answer.is_over for answer in answers.values())):
        raise UsageError(why)
    found = _by_script(profiled, answers)
    outcomes: dict[Path, _Outcome] = {}
    again = []
    for path in paths:
        answer = answers.get(path.stem)
        if answer is not None and answer.is_over and (answer.why or path.stem in found):
            outcomes[path] = found.get(path.stem, []), answer.why, answer.took_s
        elif answer is not None and not answer.is_over:
            outcomes[path] = [], f"the process ended meanwhile: {why}", 0.0
        else:
            again.append(path)
    if not outcomes:  # another process would do no better
        return {path: ([], why, 0.0) for path in again}, []
    return outcomes, again


def _by_script(profiled: Sequence[tuple[str, list[Rule]]], answers: Mapping[str, Answer]) -> dict[str, list[Rule]]:
    """Rules by the script's name, which ncu prints as the kernel's; else each launch that was profiled has its kernel.

    Raises `UsageError` where neither is so.
    """
    if {name for name, _ in profiled} <= set(answers):
        return dict(profiled)
    launched = [name for name, answer in answers.items() if answer.is_over and not answer.why]
    if len(launched) != len(profiled):
        raise UsageError(f"ncu printed {len(profiled)} kernels of {len(launched)} launches, and not their NVTX ranges")
    return {name: rules for name, (_, rules) in zip(launched, profiled, strict=True)}


def read_answers(file: Path) -> dict[str, Answer]:
    """The last that a process wrote of each script; a line that it was killed in is left out."""
    lines = file.read_bytes().splitlines(keepends=True) if file.is_file() else []
    answers = [Answer.model_validate(from_json_once(line)) for line in lines if line.endswith(b"\n")]
    return {answer.name: answer for answer in answers}


def newest(rows: Sequence[NcuRow]) -> list[NcuRow]:
    """Of each kernel the last row that ncu profiled, else its first, in order."""
    return proof.newest_of_each(rows, lambda row: bool(row.rules))


def one_line(row: NcuRow) -> str:
    """What is printed as a kernel ends."""
    what = ", ".join(map(in_words, row.first)) or row.why or "no estimate"
    return f"{row.kind}/{row.name}: {what} ({row.took_s:.1f} s)"


def in_words(rule: Rule) -> str:
    """A rule and its estimate."""
    return f"{rule.rule} {rule.percent:.0f} % {rule.scope}".rstrip()


def sentences(rows: Sequence[NcuRow]) -> list[str]:
    """The totals: how many causes ncu names, what it says of clean kernels, what it could not profile."""
    faulty = [row for row in rows if not row.is_clean and row.rules]
    clean = [row for row in rows if row.is_clean and row.rules]
    missing = [f"{row.name} ({row.why.rstrip('.')})" for row in rows if not row.rules]
    lines = []
    if faulty:
        first = sum(row.names_cause for row in faulty)
        anywhere = sum(row.names_cause_anywhere for row in faulty)
        lines.append(
            f"ncu profiled {len(faulty)} faulty {agreeing(len(faulty), 'kernel', 'kernels')}. For {first} of the "
            f"{len(faulty)}, one of the {FIRST} rules with the largest estimated speedups names the fault. For "
            f"{anywhere} of the {len(faulty)}, at least one rule of ncu names the fault."
        )
    if clean:
        large = [row.name for row in clean if row.largest_global >= LARGE]
        lines.append(
            f"ncu estimates that {len(large)} of {len(clean)} clean kernels could take at least {LARGE:.0f} % less time"
            f"{': ' + ', '.join(large) if large else ''}."
        )
    if faulty or clean:
        with_line = sum(any(rule.names_line for rule in row.rules) for row in (*faulty, *clean))
        took_s = statistics.median(row.took_s for row in (*faulty, *clean))
        lines.append(
            f"The text of ncu's rules names a line of Python for {with_line or 'none'} of the "
            f"{len(faulty) + len(clean)} kernels. To profile one launch, ncu takes {took_s:.1f} s in the median."
        )
    return [*lines, f"ncu could not profile {', '.join(missing)}."] if missing else lines


HEAD = ("kernel, fault", "rank", "named by ncu", "ncu's first rules")
_JUDGED = ("fault", "rule of ncu", "why the rule names the fault")
_NOT_JUDGED = ("fault", "why no rule of ncu names the fault")


def sections(folder: Path) -> dict[str, str]:
    """What docs/proof/ncu.md shows, by the names of its marks: what is recorded, and the judgement that it rests on.

    folder: of the GPU whose findings the page shows. Where ncu was not run on that one, another GPU's record stands
    beside them. Raises `UsageError` for a broken record.
    """
    judged = [
        (fault, f"{cause.rule} `{cause.says}`" if cause.says else cause.rule, cause.why)
        for fault in sorted(CAUSES)
        for cause in CAUSES[fault]
    ]
    without = md.table(_NOT_JUDGED, sorted(WITHOUT_RULE.items()))
    return {"ncu": "\n".join(_recorded(folder)), "ncu-causes": "\n".join([*md.table(_JUDGED, judged), "", *without])}


def _recorded(folder: Path) -> list[str]:
    """Totals, and a row a faulty kernel."""
    file = f"{NAME}.jsonl"
    if not any(folder.parent.glob(f"*/{file}")):
        return ["Nothing is recorded yet: `kperf proof --beside-ncu` records it on a Hopper GPU."]
    store = RecordStore(recorded_folder(folder.parent, file, holds=folder.samefile), NAME, ROWS)
    rows = newest(store.points())
    found = proof.recorded_run(folder, held_out=False)
    came_from, versions = stamp(store, rows, "Recorded"), sorted({row.ncu for row in rows})
    ranks = {row.name: str(row.rank or "-") for row in found.rows}
    cells = [_cells(row, ranks.get(row.name, "")) for row in rows if not row.is_clean]
    beside = f"What kperf found is {found.stamp}."
    lines = [f"{came_from}, ncu {', '.join(versions)}. {beside}", "", *(f"- {line}" for line in sentences(rows)), ""]
    return [*lines, *md.table(HEAD, cells)]


def _cells(row: NcuRow, rank: str) -> tuple[str, ...]:
    verdict = "yes" if row.names_cause else "further down" if row.names_cause_anywhere else "no" if row.rules else ""
    first = "<br>".join(map(in_words, row.first)) or row.why.partition(":")[0] or "no estimate"
    return f"{row.name}<br>{row.fault}", rank, verdict, first
