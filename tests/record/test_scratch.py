"""Folders of processes that ended in any way: the next run removes what is left, and nothing that is in use."""

import multiprocessing
import os
import signal
import tempfile

import pytest

from kperf.record import scratch
from kperf.record.scratch import Scratch

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def made_by_another(ends):
    """The process has made a folder with a file when this returns; then it does what `ends` does with it."""
    ours, theirs = FORK.Pipe()

    def run():
        made = Scratch("kperf-of-a-test-")
        (made.path / "kernel").mkdir()
        os.utime(made.path, (0, 0))
        theirs.send(made.path)
        ends(made)

    process = FORK.Process(target=run, daemon=True)
    process.start()
    path = ours.recv()
    return process, path


def test_what_a_process_left_that_was_killed_is_removed_by_the_next(folder):
    process, path = made_by_another(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    process.join()
    assert list(folder.iterdir()) == [path]
    mine = Scratch("kperf-of-a-test-")
    assert list(folder.iterdir()) == [mine.path]
    mine.close()
    assert not list(folder.iterdir())


def test_what_a_process_uses_stays_and_so_does_a_folder_of_another_name_or_without_a_lock_yet(folder):
    process, path = made_by_another(lambda _: signal.pause())
    for name in ("kperf-of-a-test-new", "kperf-of-another"):
        (folder / name).mkdir()
    os.utime(folder / "kperf-of-another", (0, 0))
    (folder / "kperf-of-a-test-link").symlink_to(folder / "kperf-of-another")
    os.utime(folder / "kperf-of-a-test-link", (0, 0), follow_symlinks=False)
    Scratch("kperf-of-a-test-").close()
    names = {each.name for each in folder.iterdir()}
    assert names == {path.name, "kperf-of-a-test-new", "kperf-of-another", "kperf-of-a-test-link"}
    assert (path / "kernel").is_dir()
    process.kill()
    process.join()


def test_it_is_removed_when_nobody_has_it_any_more_and_not_by_a_process_that_was_forked(folder):
    def ends(made):
        if (child := os.fork()) == 0:
            made.close()  # the parent's
            os._exit(int(not made.path.exists()))
        assert os.waitpid(child, 0)[1] == 0

    process, path = made_by_another(ends)
    process.join()
    assert process.exitcode == 0
    assert not path.exists()


def test_a_folder_is_made_where_nothing_can_be_locked(folder, monkeypatch):
    """As on some network file systems: there none is removed either."""

    def refuse(*_):
        raise OSError

    left = folder / "kperf-of-a-test-left"
    left.mkdir()
    os.utime(left, (0, 0))
    monkeypatch.setattr(scratch.fcntl, "flock", refuse)
    made = Scratch("kperf-of-a-test-")
    assert made.path.is_dir()
    assert left.is_dir()
    made.close()
    assert not made.path.exists()
