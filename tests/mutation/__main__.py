"""`make mutants`: do the tests fail when the program is wrong?

Each mutant is one small change of a copy of the tree. Those of mutants.toml are named one by one with the tests that
must kill them; a seeded sample of what `generate` can change is run against the tests of its file. Torch, Triton and
pytest are imported once, and each mutant is a fork.
"""

import argparse
import contextlib
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from multiprocessing.connection import wait
from pathlib import Path

from tests.mutation.generate import Mutant, mutants

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
CACHE = ROOT / ".pytest_cache" / "mutants"
"""Compiled kernels of the unchanged tree; each mutant works on a copy, so that none leaves a wrong kernel behind."""
PRELOADED = ("torch", "triton", "triton.experimental.gluon", "scipy.stats", "matplotlib.pyplot", "pytest", "hypothesis",
             "pydantic", "typer", "rich.console", "docker", "pynvml")  # fmt: skip
FORK = multiprocessing.get_context("fork")
PASSING = 0.85
PATIENCE = 3.0
"""A mutant that takes this many times as long as the unchanged tests is in a loop, which is a failure."""


@dataclass(frozen=True)
class Job:
    """A mutant, or the unchanged tree, and the tests that are to say so."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    name: str
    listed: bool = False


Limits = dict[tuple[str, ...], float]
"""Seconds for some tests."""


@dataclass
class Slot:
    """A copy of the tree in which one process at a time tests one change."""

    tree: Path
    job: Job | None = None
    process: multiprocessing.context.ForkProcess | None = None
    unchanged: bytes = b""
    """The file of the mutant as it was."""
    begun: float = 0.0
    limit: float = field(default=600.0)

    @property
    def log(self) -> Path:
        """What pytest said."""
        return self.tree.with_suffix(".log")


def main() -> int:
    """Status 0: all listed and enough generated are killed; 1: not; 2: the list is stale, or tests fail as it is."""
    options = _options()
    record = tomllib.loads(LIST.read_text())
    listed, stale = _listed(record["mutant"], options.only)
    for sentence in stale:
        print(f"mutants.toml: {sentence}", file=sys.stderr)
    sample = _sample(record["tests_of"], options)
    for name in PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory(prefix="kperf-mutants-") as folder:
        slots = [Slot(_copy_of_tree(Path(folder) / f"tree{number}")) for number in range(options.workers)]
        limits, broken = {}, set()
        # First the unchanged tree: it has to pass, its times are limits, and it compiles what the others find.
        unchanged = [Job(None, tests, "unchanged") for tests in dict.fromkeys(job.tests for job in listed + sample)]
        for job, code, seconds, said in _run(unchanged, slots, {}):
            if code:
                broken.add(job.tests)
                print(f"the unchanged tree fails {' '.join(job.tests)}:\n{said}", file=sys.stderr)
            if options.verbose:
                print(f"unchanged: {' '.join(job.tests)} in {seconds:.1f} s", flush=True)
            limits[job.tests] = 10 + PATIENCE * seconds
        jobs = [job for job in listed + sample if job.tests not in broken]
        ends = []
        for job, code, *_ in _run(jobs, slots, limits):
            verdict = "killed" if code else "SURVIVED"
            ends.append((job, bool(code)))
            if not code or options.verbose:
                print(f"{verdict}: {job.name}", flush=True)
    return max(_score(ends), 2 if stale or broken else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants OPTIONS=", description=__doc__)
    parser.add_argument("--sample", type=int, default=120, help="how many generated mutants; 0: the list alone")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--only", default="*", help="files like this")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--verbose", action="store_true", help="name those that were killed, too")
    return parser.parse_args()


def _listed(entries: list[dict], only: str) -> tuple[list[Job], list[str]]:
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
            mutant = Mutant(entry["file"], line, start, start + len(old), entry["old"], entry["new"])
            jobs.append(Job(mutant, tuple(entry["tests"]), f"{entry['name']} ({entry['file']}:{line})", listed=True))
    return jobs, stale


def _sample(tests_of: dict[str, list[str]], options: argparse.Namespace) -> list[Job]:
    """A sample of the generated mutants of the files under test, with the tests of the first pattern that fits."""
    jobs = []
    for pattern, tests in tests_of.items():
        for path in sorted(ROOT.glob(pattern)):
            file = str(path.relative_to(ROOT))
            if path.name != "__init__.py" and fnmatch(file, options.only):
                jobs += [Job(mutant, tuple(tests), str(mutant)) for mutant in mutants(ROOT, file)]
    random.Random(options.seed).shuffle(jobs)
    return jobs[: options.sample]


def _copy_of_tree(tree: Path) -> Path:
    """What git knows or would add, beside the same environment and history."""
    listing = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    for name in listing.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    git = subprocess.run(
        ["git", "rev-parse", "--absolute-git-dir"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    (tree / ".git").write_text(f"gitdir: {git.stdout}")
    (tree / ".venv").symlink_to(ROOT / ".venv")
    return tree


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def _run(
    jobs: list[Job], slots: list[Slot], limits: dict[tuple[str, ...], float]
) -> Iterator[tuple[Job, int, float, str]]:
    """(job, exit status, seconds, what was said) as they end; a status other than 0 is a test that failed."""
    waiting = list(reversed(jobs))
    while waiting or any(slot.job for slot in slots):
        for slot in slots:
            if slot.job is None and waiting:
                _start(slot, waiting.pop(), limits)
        busy = [slot for slot in slots if slot.job]
        wait([slot.process.sentinel for slot in busy], timeout=1)
        for slot in busy:
            late = time.monotonic() - slot.begun > slot.limit
            if late or slot.process.exitcode is not None:
                yield _end(slot)


def _start(slot: Slot, job: Job, limits: dict[tuple[str, ...], float]) -> None:
    slot.job, slot.begun = job, time.monotonic()
    slot.limit = limits.get(job.tests, slot.limit)
    cache = slot.tree.with_suffix(".cache")
    if job.mutant:
        path = slot.tree / job.mutant.file
        slot.unchanged = path.read_bytes()
        path.write_bytes(job.mutant.apply(slot.unchanged))
        shutil.copytree(CACHE, cache, copy_function=os.link)  # Triton and we replace files, and never write into one
    else:
        CACHE.mkdir(parents=True, exist_ok=True)
        cache = CACHE
    slot.process = multiprocessing.get_context("fork").Process(
        target=_test, args=(slot.tree, slot.log, cache, job.tests)
    )
    slot.process.start()


def _end(slot: Slot) -> tuple[Job, int, float, str]:
    job, process = slot.job, slot.process
    code = 1 if process.exitcode is None else process.exitcode
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with what its tests have started
    process.join()
    if job.mutant:
        (slot.tree / job.mutant.file).write_bytes(slot.unchanged)
        shutil.rmtree(slot.tree.with_suffix(".cache"))
    slot.job = None
    return job, code, time.monotonic() - slot.begun, slot.log.read_text()[-3000:]


def _test(tree: Path, log: Path, cache: Path, tests: tuple[str, ...]) -> None:
    """In the fork: pytest in the copy, with none of our modules imported from here."""
    os.setsid()
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "kperf", "plots")]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(place for place in sys.path if Path(place or ".").resolve() != ROOT)]
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "TRITON_CACHE_DIR": str(cache)}
    os.chdir(tree)
    import pytest

    options = ["-x", "-q", "-p", "no:xdist", "--hypothesis-seed=0", "-m", "not gpu and not docker", f"--rootdir={tree}"]
    code = pytest.main([*options, *tests])
    os._exit(int(code))


def _score(ends: list[tuple[Job, bool]]) -> int:
    """Print both scores."""
    listed = [killed for job, killed in ends if job.listed]
    sample = [killed for job, killed in ends if not job.listed]
    print(f"listed: {sum(listed)} of {len(listed)} killed")
    if sample:
        print(f"generated: {sum(sample)} of {len(sample)} killed, {sum(sample) / len(sample):.0%}")
    return 0 if all(listed) and sum(sample) >= PASSING * len(sample) else 1


if __name__ == "__main__":
    sys.exit(main())
