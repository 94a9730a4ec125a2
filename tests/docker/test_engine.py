"""An engine that ends in the middle of a run: one of our own, with an image of a shell and little else."""

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from kperf import container

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


class Engine:
    """`dockerd` with its own folder and socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/socket"

    def start(self) -> Any:
        """Start it and wait for its answer; returns a client."""
        (self.folder / "pid").unlink(missing_ok=True)
        options = {"data-root": "data", "exec-root": "exec", "pidfile": "pid"}
        # In a network of its own: of the machine's it would take away the bridge that another engine uses.
        command = ["unshare", "--net", "dockerd", "--host", self.address, "--bridge", "none", "--iptables=false"]
        for name, place in options.items():
            command += [f"--{name}", str(self.folder / place)]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(200):
            try:
                client = docker.DockerClient(self.address)
                client.ping()
            except (docker.errors.DockerException, OSError):
                assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.1)
            else:
                return client
        raise AssertionError("dockerd did not come up")

    def stop(self) -> None:
        """As `systemctl stop docker` does: it ends its containers and goes."""
        self.process.terminate()
        self.process.wait(timeout=60)


def shell_image(programs: tuple[str, ...] = ("/bin/sh", "/bin/cat", "/bin/sleep")) -> bytes:
    """This machine's shell with the libraries it needs, and a folder for results, as a tar archive."""
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout.split()
    files = {*programs, *(word for word in linked if word.startswith("/") and not word.endswith(":"))}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", dereference=True) as tar:
        for name in files:
            tar.add(name, arcname=name.lstrip("/"))
        folder = tarfile.TarInfo("results")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o777
        tar.addfile(folder)
    return packed.getvalue()


@pytest.fixture
def own_engine(engine: Any) -> Iterator[Engine]:
    assert engine.ping()
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("to start an engine wants root and dockerd")
    folder = Path(tempfile.mkdtemp(prefix="kperf-", dir="/tmp"))  # short: its sockets' names have an end
    started = Engine(folder)
    try:
        started.start().api.import_image_from_data(
            shell_image(), repository="shell", tag="test", changes=["USER 1000:1000"]
        )
        yield started
    finally:
        for left in started.start().containers.list(all=True) if started.process.poll() is not None else ():
            left.remove(force=True, v=True)
        started.stop()
        shutil.rmtree(folder)


def test_an_engine_that_is_stopped_in_mid_run_is_one_sentence_and_the_next_run_brings_the_results(
    own_engine: Engine, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", own_engine.address)
    notes = recorded / "h200/notes.txt"
    script = "echo measured >> /results/h200/notes.txt; echo ready; exec sleep 600"
    command = [sys.executable, "-m", "kperf", "image", "run", "--image", "shell:test", "--gpus", "none"]
    client = subprocess.Popen(
        [*command, "--results", str(recorded), "sh", "-c", script],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout.readline() == "ready\n"
    own_engine.stop()
    _, said = client.communicate(timeout=60)
    assert client.returncode == 1
    assert said.count("\n") == 1
    # How far it came with them before it went is its own affair.
    assert re.match(
        r"kperf: (the Docker engine stopped answering: start it and run again; .* safe in it, and the next run brings"
        r"|the results could not be brought to .* safe in container .* run again"
        r"|the container was ended from outside; run the command again)",
        said,
    )

    other = own_engine.start()
    assert container.run(["sh", "-c", "exit 3"], recorded, image="shell:test", gpus="none") == 3
    assert notes.read_text() == "before\nmeasured\n"
    assert other.containers.list(all=True) == []
