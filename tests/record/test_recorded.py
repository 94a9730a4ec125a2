"""The recorded runs in another results folder: whole or not at all, and put back where they were cut."""

import errno
import os
import shutil

import pytest

from kperf.bench.points import Store
from kperf.errors import UsageError
from kperf.record import recorded, store
from kperf.record.store import RECORDED, recorded_folder
from tests.command import kperf

NAMES = {path.relative_to(RECORDED) for path in RECORDED.rglob("*") if path.is_file()}


def held(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_one_command_puts_back_what_was_cut_and_leaves_the_rest(tmp_path):
    results = tmp_path / "not yet" / "results"
    assert len(recorded.restore(results)) == len(NAMES)
    assert held(results) == held(RECORDED)
    assert recorded.damage(results) is None

    lines = (RECORDED / "h200/fig12.jsonl").read_bytes()
    (results / "h200/fig12.jsonl").write_bytes(b"")
    (results / "h200/fig12.png").write_bytes((RECORDED / "h200/fig12.png").read_bytes()[:4096])
    (results / "h200/tune.jsonl").write_bytes((RECORDED / "h200/tune.jsonl").read_bytes() + b"{}\n")
    (results / "h200/environment.json").unlink()
    assert "h200/fig12.jsonl is empty or cut short (and 1 more): `python -m kperf restore --results" in recorded.damage(
        results
    )
    done = kperf("restore", "--results", results)
    assert done.returncode == 0
    assert {line.removeprefix(f"restored {results}/h200/") for line in done.stdout.splitlines()} == {
        "fig12.jsonl",
        "fig12.png",
        "environment.json",
    }
    assert (results / "h200/fig12.jsonl").read_bytes() == lines
    assert (results / "h200/tune.jsonl").read_bytes().endswith(b"{}\n")
    assert held(results).keys() == NAMES


def test_there_is_room_for_every_line_so_that_none_is_read_twice():
    lines = sum(path.read_bytes().count(b"\n") for path in RECORDED.rglob("*.jsonl"))
    assert 1000 < lines <= store._parsed.cache_info().maxsize


def test_records_that_end_with_a_line_are_older_not_cut(tmp_path):
    (tmp_path / "h200").mkdir()
    lines = (RECORDED / "h200/fig12.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "h200/fig12.jsonl").write_bytes(b"".join(lines[:3]))
    assert recorded.damage(tmp_path) is None
    (tmp_path / "h200/fig12.jsonl").write_bytes(b"".join(lines[:3])[:-5])
    assert "cut short" in recorded.damage(tmp_path)


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("mine")
    copy, copied = shutil.copyfile, []

    def full_at_the_third(source, target):
        copied.append(source)
        if len(copied) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return copy(source, target)

    monkeypatch.setattr(recorded.shutil, "copyfile", full_at_the_third)
    with pytest.raises(UsageError, match=r"MB\) cannot be put into .*No space left.*give it a larger volume"):
        recorded.restore(tmp_path)
    assert held(tmp_path).keys() == {(tmp_path / "mine").relative_to(tmp_path)}


def test_a_gpus_own_folder_holds_no_copy_of_all(tmp_path):
    recorded.restore(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=f"h200 holds the runs of one GPU: name the folder around it, {tmp_path}$"):
        recorded.restore(tmp_path / "h200")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("inside", ["", "h200", "h200/examples", "a copy", "h200/../h200"])
def test_the_record_itself_is_gits_to_restore_and_holds_no_copy_of_itself(inside):
    before = set(RECORDED.rglob("*"))
    with pytest.raises(UsageError, match="`git checkout -- results` restores them; name a folder outside of it"):
        recorded.restore(RECORDED / inside)
    assert set(RECORDED.rglob("*")) == before


def test_a_link_into_the_record_is_the_record(tmp_path):
    (tmp_path / "results").symlink_to(RECORDED / "h200")
    with pytest.raises(UsageError, match="is where the recorded runs are kept"):
        recorded.restore(tmp_path / "results")


@pytest.mark.parametrize("name", ["fig12.jsonl", "environment.json"])
@pytest.mark.parametrize("make", ["a folder", "a pipe", "a device"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, make, name):
    path = tmp_path / "h200" / name
    path.parent.mkdir()
    records = Store(path.parent)
    if make == "a folder":
        path.mkdir()
    elif make == "a pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    read = records.points if name == "fig12.jsonl" else records.environments
    with pytest.raises(UsageError, match=f"{path} cannot be read: "):
        read()
    if name == "fig12.jsonl":
        assert recorded_folder(tmp_path) == path.parent  # and no other is drawn in its place
        with pytest.raises(UsageError, match="cannot be written"), records.writer():
            pass
