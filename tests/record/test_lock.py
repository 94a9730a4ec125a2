"""One process at a time measures on a GPU."""

import multiprocessing
import os
import signal
from types import SimpleNamespace

import pytest

from kperf.errors import UsageError
from kperf.record import device

FORK = multiprocessing.get_context("fork")


def hold(path, pipe):
    with device.locked(path, "taken"):
        pipe.send("held")
        pipe.recv()


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock."""
    ours, its = FORK.Pipe()
    process = FORK.Process(target=hold, args=(tmp_path / "gpu.lock", its))
    process.start()
    assert ours.recv() == "held"
    yield process
    process.kill()
    process.join()


def test_one_process_at_a_time_and_a_killed_one_gives_it_back(tmp_path, holder):
    with pytest.raises(UsageError, match="taken"), device.locked(tmp_path / "gpu.lock", "taken"):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    for _ in range(2):
        with device.locked(tmp_path / "gpu.lock", "taken"):
            pass


def test_a_lock_that_another_user_made_can_be_taken(tmp_path):
    path = tmp_path / "gpu.lock"
    path.write_text("")
    path.chmod(0o444)
    with device.locked(path, "taken"):
        pass


def test_a_link_in_its_place_is_a_sentence(tmp_path):
    (tmp_path / "gpu.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="remove it"), device.locked(tmp_path / "gpu.lock", "taken"):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_two_gpus_are_two_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "LOCKS", tmp_path)

    def take(uuid):
        monkeypatch.setattr(device.torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid=uuid))
        return device.exclusive()

    with take("a"), take("b"):
        with pytest.raises(UsageError, match="GPU a"), take("a"):
            pass
        assert len(list(tmp_path.iterdir())) == 2
