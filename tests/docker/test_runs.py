"""Running in the image through the Docker SDK: the figures, the results, and every way a run can end badly."""

import functools
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kperf import container
from kperf.cli.app import console
from kperf.console import of_standard_output
from kperf.container import BuiltImage
from kperf.errors import MeasurementError, UsageError
from kperf.record.store import RECORDED
from tests.command import kperf

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]


def start_client(built: BuiltImage, results: Path, script: str) -> subprocess.Popen[str]:
    """`kperf image run` as a process of its own, once its container has said "ready"."""
    command = [sys.executable, "-m", "kperf", "image", "run", "--image", built.tag, "--results", str(results)]
    client = subprocess.Popen(
        [*command, "bash", "-c", f"echo measured >> /results/h200/notes.txt; echo ready; {script}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert client.stdout.readline() == "ready\n"
    return client


def left_over(engine: Any, results: Path) -> list[Any]:
    return engine.containers.list(all=True, filters={"label": f"kperf.results={results}"})


def test_figures_equal_those_made_outside(built: BuiltImage, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A static run in the image draws the committed figures from the recorded runs, byte for byte."""
    results = tmp_path / "results"
    for source in RECORDED.rglob("*"):
        if source.is_file() and source.suffix not in {".png", ".pdf"}:
            target = results / source.relative_to(RECORDED)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    recorded = {path.relative_to(results) for path in results.rglob("*") if path.is_file()}

    assert container.run(["make", "figures"], results, image=built.tag, gpus="none") == 0
    assert "recorded on" in capfd.readouterr().out

    drawn = {path.relative_to(results) for path in results.rglob("*") if path.is_file()} - recorded
    assert {name.name for name in drawn} >= {"fig11.png", "fig11.pdf", "fig12.png", "fig12.pdf"}
    committed = {name for name in drawn if (RECORDED / name).is_file()}
    assert {name.name for name in committed} >= {"fig11.png", "fig12.png", "tune.png"}
    different = [name for name in sorted(committed) if (results / name).read_bytes() != (RECORDED / name).read_bytes()]
    assert different == []


def test_claims_equal_those_made_outside(
    built: BuiltImage, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # none goes in there
    monkeypatch.setattr(console, "width", of_standard_output().width)
    assert container.run(["kperf", "claims"], tmp_path / "results", image=built.tag, gpus="none") == 0
    within = capfd.readouterr().out
    assert within == kperf("claims").stdout
    assert within.strip()


def test_environment_record_names_the_image(
    built: BuiltImage, recorded: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import os; from kperf.record.commit import git_commit; print(os.environ['KPERF_IMAGE_ID'], git_commit())"
    assert container.run(["python", "-c", program], recorded, image=built.tag, gpus="none") == 0
    image_id, commit = capfd.readouterr().out.split()
    assert image_id == built.id
    assert len(commit.partition("-dirty-")[0]) == 40


def test_results_go_in_and_come_back_with_the_exit_status(
    built: BuiltImage, engine: Any, recorded: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = (
        "cd /results; cat h200/notes.txt; echo after >> h200/notes.txt; mkdir new; id -u > new/uid; echo oh >&2; exit 3"
    )
    assert container.run(["bash", "-c", script], recorded, image=built.tag, gpus="none") == 3
    streams = capfd.readouterr()
    assert streams.out == "before\n"
    assert streams.err == "oh\n"
    assert (recorded / "h200/notes.txt").read_text() == "before\nafter\n"
    assert (recorded / "new/uid").read_text() == "1000\n"
    assert left_over(engine, recorded) == []
    assert [path for path in recorded.iterdir() if path.name.startswith(".")] == []


def test_a_container_has_no_network_no_capability_and_a_read_only_root(
    built: BuiltImage, recorded: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "ls /sys/class/net; grep -E 'CapEff|NoNewPrivs' /proc/self/status; touch /opt/kperf/x || echo refused"
    container.run(["bash", "-c", script], recorded, image=built.tag, gpus="none")
    assert capfd.readouterr().out.split() == ["lo", "CapEff:", "0000000000000000", "NoNewPrivs:", "1", "refused"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_the_container_and_keeps_the_results(
    built: BuiltImage, engine: Any, recorded: Path, number: signal.Signals
) -> None:
    client = start_client(built, recorded, "exec sleep 600")
    client.send_signal(number)
    assert client.wait(timeout=60) == 130
    assert (recorded / "h200/notes.txt").read_text() == "before\nmeasured\n"
    assert left_over(engine, recorded) == []


def test_a_killed_container_is_an_error_and_keeps_the_results(built: BuiltImage, engine: Any, recorded: Path) -> None:
    client = start_client(built, recorded, "exec sleep 600")
    (running,) = left_over(engine, recorded)
    running.kill()
    assert client.wait(timeout=60) == 1
    assert "kperf: the container was ended from outside" in client.stdout.read()
    assert (recorded / "h200/notes.txt").read_text() == "before\nmeasured\n"


def test_a_container_out_of_memory_is_an_error(built: BuiltImage, recorded: Path) -> None:
    hungry = "a = [bytearray(2**24) for _ in range(64)]"
    with pytest.raises(MeasurementError, match=r"ran out of its 0\.3 GB of memory: raise --memory"):
        container.run(["python", "-c", hungry], recorded, image=built.tag, gpus="none", memory="256m")


def test_a_client_that_dies_loses_nothing(
    built: BuiltImage, engine: Any, recorded: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    client = start_client(built, recorded, "exec sleep 600")
    client.kill()
    client.wait()
    (orphan,) = left_over(engine, recorded)
    with pytest.raises(UsageError, match="of an earlier run is still measuring into"):
        container.run(["true"], recorded, image=built.tag, gpus="none")
    orphan.stop(timeout=1)
    assert container.run(["cat", "/results/h200/notes.txt"], recorded, image=built.tag, gpus="none") == 0
    assert capfd.readouterr().out == "before\nmeasured\n"
    assert left_over(engine, recorded) == []


def test_a_file_that_changed_on_both_sides_is_kept_twice(built: BuiltImage, recorded: Path) -> None:
    client = start_client(built, recorded, "sleep 3")
    notes = recorded / "h200/notes.txt"
    notes.write_text("mine\n")
    assert client.wait(timeout=60) == 0
    assert notes.read_text() == "mine\n"
    (theirs,) = notes.parent.glob("notes.txt.*")
    assert theirs.read_text() == "before\nmeasured\n"


def test_two_runs_at_once_lose_no_line(built: BuiltImage, engine: Any, recorded: Path) -> None:
    """Into one folder, while a process here appends as well: every side's lines are there afterwards."""
    points = recorded / "h200/points.jsonl"
    points.write_text('{"by": "before"}\n')
    command = [sys.executable, "-m", "kperf", "image", "run", "--image", built.tag, "--results", str(recorded)]
    clients = [
        subprocess.Popen(
            [*command, "bash", "-c", f"""echo '{{"by": "{name}"}}' >> /results/h200/points.jsonl; sleep 1"""]
        )
        for name in ("one", "two", "three")
    ]
    time.sleep(1)
    with points.open("a") as stream:
        stream.write('{"by": "here"}\n')
    assert [client.wait(timeout=120) for client in clients] == [0, 0, 0]
    lines = points.read_text().splitlines()
    assert sorted(lines) == sorted(f'{{"by": "{name}"}}' for name in ("before", "one", "two", "three", "here"))
    assert [path.name for path in points.parent.iterdir() if path.name.startswith("points")] == ["points.jsonl"]
    assert left_over(engine, recorded) == []


def test_the_shell_brings_its_results_back(built: BuiltImage, recorded: Path) -> None:
    command = [sys.executable, "-m", "kperf", "image", "shell", "--image", built.tag, "--results", str(recorded)]
    typed = "echo typed >> /results/h200/notes.txt; exit 5\n"
    assert subprocess.run(command, input=typed, text=True, check=False).returncode == 5
    assert (recorded / "h200/notes.txt").read_text() == "before\ntyped\n"


@pytest.mark.usefixtures("engine")
def test_no_such_image(recorded: Path) -> None:
    with pytest.raises(UsageError, match="there is no image kperf:nowhere: run `make image`"):
        container.run(["true"], recorded, image="kperf:nowhere")


def test_a_limit_that_docker_does_not_know(built: BuiltImage, recorded: Path) -> None:
    with pytest.raises(UsageError, match=r"Docker does not take that: .*memory \(lots\)"):
        container.run(["true"], recorded, image=built.tag, gpus="none", memory="lots")


def test_a_gpu_without_the_toolkit(built: BuiltImage, engine: Any, recorded: Path) -> None:
    if container.why_no_engine()[1] is None:
        pytest.skip("this engine has the NVIDIA container toolkit")
    with pytest.raises(UsageError, match="install nvidia-container-toolkit"):
        container.run(["true"], recorded, image=built.tag, gpus="all")
    assert left_over(engine, recorded) == []


def test_a_failing_build_names_the_step_and_its_last_lines(built: BuiltImage, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {built.tag}\nRUN true\nRUN echo clue; false\n")
    with pytest.raises(MeasurementError) as failure:
        container.build("kperf:broken", context=tmp_path)
    assert str(failure.value).startswith("the build failed at [3/3] RUN echo clue; false\n")
    assert "\nclue\n" in str(failure.value)


def test_a_full_disk_in_a_build_is_a_sentence(built: BuiltImage, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {built.tag}\nRUN echo wheels > /dev/full\n")
    with pytest.raises(UsageError, match=r"the disk of the Docker engine is full at .*: free some with"):
        container.build("kperf:broken", context=tmp_path)


def test_a_quiet_container_outlives_the_clients_read_timeout(
    built: BuiltImage, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "_engine", functools.partial(container._engine, timeout=2))
    start = time.monotonic()
    assert container.run(["sleep", "5"], recorded, image=built.tag, gpus="none") == 0
    assert time.monotonic() - start > 5
