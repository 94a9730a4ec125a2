"""The list of mistakes fits the program, and what is generated is a program too."""

import ast
import functools
import hashlib
import tomllib
from argparse import Namespace

import pytest

from tests.mutation import __main__ as mutation
from tests.mutation.generate import Mutant, function_at, mutants
from tests.mutation.order import Order

RECORD = tomllib.loads(mutation.LIST.read_text())


def test_each_known_mistake_still_has_its_place_and_its_tests():
    jobs, stale = mutation._known(RECORD["mutant"], "*")
    assert stale == []
    assert len({job.name for job in jobs}) == len(RECORD["mutant"])
    for job in jobs:
        ast.parse(job.mutant.apply((mutation.ROOT / job.mutant.file).read_bytes()))
    named = {path for job in [*RECORD["mutant"], *RECORD["room"]] for path in job["tests"]}
    assert [path for path in named if not (mutation.ROOT / path).exists()] == []


def test_a_sample_is_of_every_room_the_same_for_a_seed_and_without_equivalents(monkeypatch):
    generated = functools.cache(mutation.mutants)
    monkeypatch.setattr(mutation, "mutants", generated)

    def sample(seed, equivalents):
        rooms, unused = mutation._rooms(RECORD["room"], equivalents, "*")
        assert unused == []
        return mutation._sample(rooms, 5 * len(rooms), seed)

    equivalents = RECORD.get("equivalent", [])
    first = sample(1, equivalents)
    generated.cache_clear()
    rooms = [job.room for job in first]
    assert [rooms.count(room["name"]) for room in RECORD["room"]] == [5] * len(RECORD["room"])
    assert [job.mutant for job in sample(1, equivalents)] == [job.mutant for job in first]
    assert [job.mutant for job in sample(2, equivalents)] != [job.mutant for job in first]
    one = first[0].mutant
    line = (mutation.ROOT / one.file).read_text().splitlines()[one.line - 1].strip()
    named = {"file": one.file, "line": line, "old": one.old, "new": one.new}
    assert one not in [job.mutant for job in sample(1, [*equivalents, named])]
    gone = named | {"line": "no such line"}
    _, unused = mutation._rooms(RECORD["room"], [gone], "*")
    assert len(unused) == 1


def test_each_generated_change_is_another_program_in_its_own_function(tmp_path):
    (tmp_path / "it.py").write_text(
        "LIMIT = 3\n\n\n@cache\ndef f(a: int = 0) -> int:\n    if a < LIMIT and not a:\n        raise E('1 < 2')\n"
        "    return max(a, 1) + (\n        2)\n"
    )
    source = (tmp_path / "it.py").read_bytes()
    found = mutants(tmp_path, "it.py")
    assert {(it.line, it.old, it.new) for it in found} >= {
        (1, "3", "4"), (6, "<", "<="), (6, "and", "or"), (6, "not", ""), (7, "raise E('1 < 2')", "pass"),
        (8, "max", "min"), (8, "+", "-"), (9, "2", "3"),
    }  # fmt: skip
    assert {it.function for it in found} == {0, 4}
    assert [function_at(source, line) for line in (1, 5, 9)] == [0, 4, 4]
    plain = ast.dump(ast.parse(source))
    assert all(ast.dump(ast.parse(it.apply(source))) != plain for it in found)


@pytest.mark.parametrize("asked", [["a.py::1", "a.py::2", "b.py::1", "b.py::2", "c.py::1"]])
def test_tests_that_call_what_is_changed_come_first_and_files_stay_together(asked):
    rank = {"a.py::1": (True, 0.1), "a.py::2": (False, 5.0), "b.py::1": (False, 2.0), "b.py::2": (False, 9.0)}
    items = [Namespace(nodeid=name) for name in asked]
    Order(rank).pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["b.py::1", "b.py::2", "a.py::2", "a.py::1"]


def test_a_run_that_was_cut_off_goes_on_and_changed_tests_judge_anew(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    for name in ("a", "b"):
        (tree / name).mkdir(parents=True)
        (tree / name / f"test_{name}.py").write_text("one")
    killed = mutation.Job(Mutant("it.py", 1, 0, 0, 1, "1", "2"), ("a",), "killed")
    survived = mutation.Job(Mutant("it.py", 1, 0, 0, 1, "1", "3"), ("b/test_b.py",), "survived")
    started = []

    def run(jobs, _slots, _calls):
        for job in jobs:
            started.append(job)
            yield job, int(job is killed), 1.0, ""

    monkeypatch.setattr(mutation, "_run", run)
    monkeypatch.setattr(mutation, "ENDS", tmp_path / "ends.jsonl")

    def judged(depends=b"program"):
        return mutation._judged([killed, survived], [mutation.Slot(tree)], {}, hashlib.sha256(depends))

    assert next(judged()) == (killed, True, 1.0)
    assert list(judged()) == list(judged()) == [(killed, True, 1.0), (survived, False, 1.0)]
    assert started == [killed, survived]
    (tree / "b" / "test_b.py").write_text("another")
    assert len(list(judged())) == 2
    assert started == [killed, survived, survived]
    assert len(list(judged(b"another program"))) == 2
    assert len(started) == 5


def test_the_score_is_of_each_seed_and_room_and_known_mistakes_are_apart():
    a, b, c = (mutation.Job(None, (), name, room) for name, room in (("a", "known"), ("b", "bench"), ("c", "plots")))
    ends = {a: True, b: True, c: False}
    assert mutation._score([a], {2: [b, c], 3: [b]}, ends) == [
        "The tests notice 1 of 1 known mistakes.",
        "The tests notice 1 of 2 generated changes (seed 2), 50%: bench: 1 of 1; plots: 0 of 1.",
        "The tests notice 1 of 1 generated changes (seed 3), 100%: bench: 1 of 1.",
    ]
