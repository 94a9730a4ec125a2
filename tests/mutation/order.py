"""Which test calls which function, and so which test is the first to tell of a change.

Tests are run once on the unchanged tree, with every call of a function of ours noted. For a mutant, the tests that call
the changed function come first, the quick ones before the dear ones, and the others of its room follow: the order
decides what a mutant costs and not whether it is killed.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

OURS = ("kperf", "plots")


class Recorder:
    """A plugin of pytest's: writes {test: {"passed", "seconds", "calls": ["kperf/a.py:12", ...]}} to `path`.

    What is called while a test is set up counts for all tests of its file: fixtures are shared.
    """

    def __init__(self, tree: Path, path: Path) -> None:
        self._tree = tree.resolve()
        self._path = path
        self._calls: dict[str, set[CodeType]] = defaultdict(set)
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Any:
        yield from self._traced(item, _file_of(item.nodeid))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        yield from self._traced(item, item.nodeid)

    def _traced(self, item: pytest.Item, whose: str) -> Any:
        seen = self._calls[whose]

        def trace(frame: FrameType, _event: str, _argument: object) -> None:
            seen.add(frame.f_code)

        begin = time.monotonic()
        before = sys.gettrace()
        sys.settrace(trace)
        threading.settrace(trace)
        yield
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type]
        self._seconds[item.nodeid] += time.monotonic() - begin

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        named = {whose: self._named(codes) for whose, codes in self._calls.items()}
        self._path.write_text(json.dumps({
            test: {
                "passed": test not in self._failed,
                "seconds": seconds,
                "calls": sorted({*named.get(test, ()), *named[_file_of(test)]}),  # a skipped one is not called
            }
            for test, seconds in self._seconds.items()
        }))  # fmt: skip

    def _named(self, codes: set[CodeType]) -> set[str]:
        places = ((Path(code.co_filename).resolve(), code.co_firstlineno) for code in codes)
        inside = ((path.relative_to(self._tree), line) for path, line in places if path.is_relative_to(self._tree))
        return {f"{path}:{line}" for path, line in inside if path.parts[0] in OURS}


class Order:
    """A plugin of pytest's: only the tests in `rank`, by it; those of a file stay together, for its fixtures' sake."""

    def __init__(self, rank: dict[str, tuple[bool, float]]) -> None:
        self._rank = rank

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        known = [item for item in items if item.nodeid in self._rank]
        # A file stands where its quickest of the telling tests does, and comes back later with the others.
        first: dict[tuple[str, bool], float] = {}
        for item in known:
            later, seconds = self._rank[item.nodeid]
            place = _file_of(item.nodeid), later
            first[place] = min(first.get(place, seconds), seconds)

        def rank(item: pytest.Item) -> tuple[bool, float, str, float]:
            later, seconds = self._rank[item.nodeid]
            file = _file_of(item.nodeid)
            return later, first[file, later], file, seconds

        items[:] = sorted(known, key=rank)


def _file_of(test: str) -> str:
    return test.partition("::")[0]
