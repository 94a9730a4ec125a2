"""`make mutants`: do the tests fail when the program is wrong?

Each mutant is one small change of a copy of the tree. Those of mutants.toml are named one by one with the tests that
must kill them; of what `generate` can change, a seeded sample of each room is run against the tests of that room, but
for changes that change nothing (`[[equivalent]]`, each with its reason). Torch, Triton and pytest are imported once,
each mutant is a fork, and the tests that call the changed function come first (`order`). What a run has judged is kept:
one that was cut off goes on where it was, and one after a change of some tests judges again what these are run against.
"""

import argparse
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from kperf.record.files import write_between_marks
from tests.mutation.generate import Mutant, function_at, mutants
from tests.mutation.order import Order, Recorder

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
DOCUMENT = ROOT / "CONTRIBUTING.md"
CACHE = ROOT / ".pytest_cache" / "mutants"
"""Compiled kernels of the unchanged tree, of which each mutant works on a copy, so that none leaves a wrong kernel
behind; and, under a hash of all that it may depend on, what each test file called and how each mutant ended."""
ENDS = CACHE / "ends.jsonl"
PRELOADED = ("torch", "triton", "triton.experimental.gluon", "scipy.stats", "matplotlib.pyplot", "pytest", "hypothesis",
             "pydantic", "typer", "rich.console", "docker", "pynvml")  # fmt: skip
FORK = multiprocessing.get_context("fork")
PASSING = 0.85
NO_TESTS = 5
"""Pytest's exit status where it found none."""
PATIENCE = 3.0
"""A mutant that takes this many times as long as the unchanged tests is in a loop, which is a failure."""

Calls = dict[str, dict[str, Any]]
"""What `order.Recorder` found, for each test."""


@dataclass(frozen=True)
class Job:
    """A mutant, or the unchanged tree, and the tests (files and folders) that are to say so."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    name: str
    room: str = "known"
    calls: Path | None = None
    """Where it is written, of the unchanged tree, which test calls what."""


@dataclass
class Slot:
    """A copy of the tree in which one process at a time tests one change."""

    tree: Path
    job: Job | None = None
    process: multiprocessing.context.ForkProcess | None = None
    unchanged: bytes = b""
    """The file of the mutant as it was."""
    begun: float = 0.0
    limit_s: float = 0.0

    def beside(self, suffix: str) -> Path:
        """Where the process leaves something: what pytest said, and what it compiled."""
        return self.tree.with_suffix(suffix)


def main() -> int:
    """Status 0: all known and enough generated are killed; 1: not; 2: the list is stale, or tests fail as it is."""
    options, begun = _options(), time.monotonic()
    record = tomllib.loads(LIST.read_text())
    known, stale = _known(record["mutant"], options.only)
    rooms, unused = _rooms(record["room"], record.get("equivalent", []), options.only)
    samples = {seed: _sample(rooms, options.sample, seed) for seed in options.seed}
    for sentence in stale + unused:
        print(f"mutants.toml: {sentence}", file=sys.stderr)
    for name in PRELOADED:
        __import__(name)
    jobs = list(dict.fromkeys([*known, *(job for sample in samples.values() for job in sample)]))
    with tempfile.TemporaryDirectory(prefix="kperf-mutants-") as folder:
        slots = [Slot(_copy_of_tree(Path(folder) / f"tree{number}")) for number in range(options.workers)]
        depends = _depends(slots[0].tree)
        calls = _calls(jobs, slots, depends)
        broken = [test for test, found in calls.items() if not found["passed"]]
        for test in broken:
            print(f"the unchanged tree fails {test}", file=sys.stderr)
        ends = {}
        for job, killed, seconds in _judged(jobs, slots, calls, depends):
            ends[job] = killed
            if not killed or options.verbose:
                print(f"{'killed' if killed else 'SURVIVED'}: {job.name} ({seconds:.0f} s)", flush=True)
    lines = _score(known, samples, ends)
    print("\n".join([*lines, f"in {(time.monotonic() - begun) / 60:.0f} minutes with {options.workers} workers"]))
    if options.write:
        write_between_marks(DOCUMENT, "mutants", "\n".join(lines))
    enough = all(ends[job] for job in known) and all(_share(sample, ends) >= PASSING for sample in samples.values())
    return 2 if stale or unused or broken else 0 if enough else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants OPTIONS=", description=__doc__)
    parser.add_argument("--sample", type=int, default=40, help="how many generated mutants a seed; 0: the known alone")
    parser.add_argument("--seed", type=int, nargs="+", default=[2, 3], help="of a sample each")
    parser.add_argument("--only", default="*", help="files like this")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="name those that were killed, too")
    parser.add_argument("--write", action="store_true", help=f"put the score into {DOCUMENT.name}")
    return parser.parse_args()


def _known(entries: list[dict], only: str) -> tuple[list[Job], list[str]]:
    """The jobs of the list, and a sentence for each entry that no longer fits its file."""
    jobs, stale = [], []
    for entry in entries:
        path, old = ROOT / entry["file"], entry["old"].encode()
        source = path.read_bytes() if path.is_file() else b""
        if (count := source.count(old)) != 1:
            stale.append(f"{entry['name']!r}: {entry['file']} holds its old text {count} times")
        elif fnmatch(entry["file"], only):
            start = source.index(old)
            line = source.count(b"\n", 0, start) + 1
            place = function_at(source, line)
            mutant = Mutant(entry["file"], line, place, start, start + len(old), entry["old"], entry["new"])
            jobs.append(Job(mutant, tuple(entry["tests"]), f"{entry['name']} ({entry['file']}:{line})"))
    return jobs, stale


def _rooms(rooms: list[dict], equivalents: list[dict], only: str) -> tuple[list[list[Job]], list[str]]:
    """All generated mutants, by room, and a sentence for each equivalent that is none of them any more."""
    named = {(it["file"], it["line"], it["old"], it["new"]) for it in equivalents}
    met, found = set(), []
    for room in rooms:
        jobs = []
        paths = {path for pattern in room["files"] for path in ROOT.glob(pattern) if path.name != "__init__.py"}
        for file in sorted(str(path.relative_to(ROOT)) for path in paths):
            lines = (ROOT / file).read_text().splitlines()
            for mutant in mutants(ROOT, file):
                identity = (file, lines[mutant.line - 1].strip(), mutant.old, mutant.new)
                if identity in named:
                    met.add(identity)
                elif fnmatch(file, only):
                    jobs.append(Job(mutant, tuple(room["tests"]), str(mutant), room["name"]))
        if jobs:
            found.append(jobs)
    unused = [f"{file} has no line {line!r} with {old} to change into {new}" for file, line, old, new in named - met]
    return found, unused


def _sample(rooms: list[list[Job]], count: int, seed: int) -> list[Job]:
    """As many of each room."""
    jobs = []
    for number, room in enumerate(rooms):
        share = count // len(rooms) + (number < count % len(rooms))
        shuffled = room.copy()
        random.Random(f"{seed} {room[0].room}").shuffle(shuffled)
        jobs += shuffled[:share]
    return jobs


def _copy_of_tree(tree: Path) -> Path:
    """What git knows or would add, beside the same environment and history."""
    for name in _listed():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    git = subprocess.run(
        ["git", "rev-parse", "--absolute-git-dir"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    (tree / ".git").write_text(f"gitdir: {git.stdout}")
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def _files() -> list[str]:
    return [name for name in _listed() if (ROOT / name).is_file()]


def _listed() -> list[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return [name for name in listing.stdout.decode().split("\0") if name and os.path.lexists(ROOT / name)]


def _depends(tree: Path) -> Any:
    """A hash, to be gone on with, of what every test may depend on: the tree without tests, documents and this room."""
    depends = hashlib.sha256()
    for name in sorted(_files()):
        path = tree / name
        if not path.name.startswith("test_") and path.suffix != ".md" and LIST.parent.name != path.parent.name:
            depends.update(name.encode() + path.read_bytes())
    return depends


def _digest(depends: Any, *contents: bytes) -> str:
    digest = depends.copy()
    for content in contents:
        digest.update(content)
    return str(digest.hexdigest())


def _test_files(tree: Path, tests: Iterable[str]) -> list[str]:
    """The test files of files and folders."""
    paths = (tree / test for test in dict.fromkeys(tests))
    expanded = (sorted(path.rglob("test_*.py")) if path.is_dir() else [path] for path in paths)
    return list(dict.fromkeys(str(path.relative_to(tree)) for some in expanded for path in some))


def _calls(jobs: Sequence[Job], slots: list[Slot], depends: Any) -> Calls:
    """What each test of the jobs calls on the unchanged tree; each test file is run once and remembered."""
    tree = slots[0].tree
    files = _test_files(tree, (test for job in jobs for test in job.tests))
    remembered = {file: CACHE / f"{_digest(depends, (tree / file).read_bytes())}.calls.json" for file in files}
    missing = [Job(None, (file,), file, calls=path) for file, path in remembered.items() if not path.is_file()]
    for job, _, seconds, said in _run(missing, slots, {}):
        if not remembered[job.name].is_file():
            raise SystemExit(f"pytest itself ends on the unchanged tree, at {job.name}:\n{said}")
        print(f"unchanged: {job.name} in {seconds:.0f} s", flush=True)
    found = [json.loads(path.read_text()) for path in remembered.values() if path.is_file()]
    return {test: what for tests in found for test, what in tests.items()}


def _judged(jobs: Sequence[Job], slots: list[Slot], calls: Calls, depends: Any) -> Iterator[tuple[Job, bool, float]]:
    """(job, whether it was killed, seconds), first of those that ended so on the same tree before, then as they end."""
    tree = slots[0].tree
    keys = {
        job: _digest(
            depends,
            *((tree / file).read_bytes() for file in _test_files(tree, job.tests)),
            f"{job.mutant.file} {job.mutant.start} {job.mutant.end} {job.mutant.new}".encode(),
        )
        for job in jobs
    }
    lines = ENDS.read_text().splitlines() if ENDS.is_file() else []
    ended = {end["mutant"]: end for end in map(json.loads, lines)}
    for job in jobs:
        if end := ended.get(keys[job]):
            yield job, end["killed"], end["seconds"]
    for job, code, seconds, _ in _run([job for job in jobs if keys[job] not in ended], slots, calls):
        killed = code not in (0, NO_TESTS)
        with ENDS.open("a") as stream:
            stream.write(json.dumps({"mutant": keys[job], "killed": killed, "seconds": seconds}) + "\n")
        yield job, killed, seconds


def _rank(job: Job, calls: Calls) -> dict[str, tuple[bool, float]]:
    """For each test that may tell of a mutant: whether it does not call what is changed, and its seconds."""
    place = f"{job.mutant.file}:{job.mutant.function}"
    return {
        test: (bool(job.mutant.function) and place not in found["calls"], found["seconds"])
        for test, found in calls.items()
        if found["passed"] and any(test.startswith((f"{path}/", f"{path}::")) for path in job.tests)
    }


def _run(jobs: Sequence[Job], slots: list[Slot], calls: Calls) -> Iterator[tuple[Job, int, float, str]]:
    """(job, exit status, seconds, what was said) as they end; a status other than 0 is a test that failed."""
    waiting = list(reversed(jobs))
    while waiting or any(slot.job for slot in slots):
        for slot in slots:
            if slot.job is None and waiting:
                _start(slot, waiting.pop(), calls)
        busy = [slot for slot in slots if slot.job]
        wait([slot.process.sentinel for slot in busy], timeout=1)
        for slot in busy:
            late = time.monotonic() - slot.begun > slot.limit_s
            if late or slot.process.exitcode is not None:
                yield _end(slot)


def _start(slot: Slot, job: Job, calls: Calls) -> None:
    slot.job, slot.begun = job, time.monotonic()
    kernels = CACHE / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    if job.mutant:
        path = slot.tree / job.mutant.file
        slot.unchanged = path.read_bytes()
        path.write_bytes(job.mutant.apply(slot.unchanged))
        # Triton and we replace files, and never write into one.
        shutil.copytree(kernels, slot.beside(".cache"), copy_function=os.link)
        rank = _rank(job, calls)
        slot.limit_s = 10 + PATIENCE * sum(seconds for _, seconds in rank.values())
        plugin: object = Order(rank)
    else:
        slot.limit_s = 600.0
        plugin = Recorder(slot.tree, job.calls)
    slot.process = FORK.Process(target=_test, args=(slot, plugin))
    slot.process.start()


def _end(slot: Slot) -> tuple[Job, int, float, str]:
    job, process = slot.job, slot.process
    code = 1 if process.exitcode is None else process.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what its tests have started
    process.join()
    if job.mutant:
        (slot.tree / job.mutant.file).write_bytes(slot.unchanged)
        shutil.rmtree(slot.beside(".cache"))
    slot.job = None
    return job, code, time.monotonic() - slot.begun, slot.beside(".log").read_text()[-3000:]


def _test(slot: Slot, plugin: object) -> None:
    """In the fork: pytest in the copy, with none of our modules imported from here."""
    os.setsid()
    stream = os.open(slot.beside(".log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "kperf")]:
        del sys.modules[name]
    sys.path[:] = [str(slot.tree), *(place for place in sys.path if Path(place or ".").resolve() != ROOT)]
    sys.dont_write_bytecode = True
    cache = slot.beside(".cache") if slot.job.mutant else CACHE / "kernels"
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "TRITON_CACHE_DIR": str(cache)}
    os.chdir(slot.tree)
    import pytest

    options = ["-q", "-p", "no:xdist", "--hypothesis-seed=0", "-m", "not gpu and not docker", f"--rootdir={slot.tree}"]
    options += ["-x"] if slot.job.mutant else []
    code = pytest.main([*options, *slot.job.tests], plugins=[plugin])
    os._exit(int(code))


def _score(known: Sequence[Job], samples: Mapping[int, Sequence[Job]], ends: Mapping[Job, bool]) -> list[str]:
    """How many were killed: of the known mistakes, and of each seed's sample, in all and by room."""
    lines = [f"The tests notice {sum(ends[job] for job in known)} of {len(known)} known mistakes."]
    for seed, sample in samples.items():
        rooms: dict[str, list[bool]] = {}
        for job in sample:
            rooms.setdefault(job.room, []).append(ends[job])
        shares = "; ".join(f"{room}: {sum(killed)} of {len(killed)}" for room, killed in rooms.items())
        noticed, share = sum(ends[job] for job in sample), _share(sample, ends)
        if sample:
            lines.append(
                f"The tests notice {noticed} of {len(sample)} generated changes (seed {seed}), {share:.0%}: {shares}."
            )
    return lines


def _share(sample: Sequence[Job], ends: Mapping[Job, bool]) -> float:
    return sum(ends[job] for job in sample) / len(sample) if sample else 1.0


if __name__ == "__main__":
    sys.exit(main())
