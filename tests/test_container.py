"""What the container's client does without an engine: errors, archives, bringing results home. See also docker/."""

import errno
import fcntl
import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from kperf import container
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError

ROOT = Path(__file__).resolve().parents[1]


def archive(members: dict[str, bytes | str]) -> list[bytes]:
    """A tar archive in pieces, as an engine sends it; a str is a symbolic link's target."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    data = packed.getvalue()
    return [data[start : start + 700] for start in range(0, len(data), 700)]


class FakeContainer:
    """A stopped container that was started for `results` and has `files` in its volume."""

    short_id = "c0ffee"

    def __init__(self, results: Path, files: dict[str, bytes]) -> None:
        seeded = json.dumps(container._pack(results, io.BytesIO()))
        self.labels = {"kperf.results": str(results), "kperf.seeded": seeded}
        self.files = files
        self.removed = False

    def get_archive(self, path: str) -> tuple[list[bytes], dict]:
        assert path == "/results"
        return archive({f"results/{name}": content for name, content in self.files.items()}), {}

    def remove(self, **options: bool) -> None:
        assert options == {"v": True, "force": True}
        self.removed = True


def bring_home(made: FakeContainer) -> str:
    said = io.StringIO()
    container._bring_home(made, WholeConsole(file=said, width=200))
    return said.getvalue()


def test_no_engine(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(UsageError, match=r"no Docker engine answers at unix:///nowhere/docker\.sock: `sudo systemctl"):
        container.build()
    assert container.why_no_engine()[0].startswith("no Docker engine answers")


@contextmanager
def unprivileged():
    """As root, act as `nobody` for a while: root may open any socket."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission(monkeypatch, tmp_path_factory):
    folder = Path("/tmp") / f"kperf-{os.getpid()}"  # short enough for a socket's name, open to `nobody`
    folder.mkdir(mode=0o755)
    path = folder / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        with unprivileged(), pytest.raises(UsageError, match=r"you may not use the Docker engine .*usermod -aG docker"):
            container.run(["true"], Path("/tmp"))
    path.unlink()
    folder.rmdir()


def test_errors_of_the_command_line_are_one_sentence():
    environment = os.environ | {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    command = [sys.executable, "-m", "kperf", "image", "run", "make", "fig12"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"kperf: no Docker engine answers at .*\n", done.stderr)


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]',
         UsageError, "install nvidia-container-toolkit"),
        ("OCI runtime create failed: runc create failed: error running hook: exit status 1, stdout: , stderr: "
         "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, update your driver: unknown",
         UsageError, "the NVIDIA container toolkit cannot use the driver (requirement error: unsatisfied condition: "
         "cuda>=13.0, update your driver): check it with nvidia-smi"),
        ("write /var/lib/docker/tmp/x: no space left on device", UsageError, "docker system prune"),
        ("conflict: something else", MeasurementError, "the Docker engine refused: conflict: something else"),
    ],
)  # fmt: skip
def test_refusals_of_the_engine(said, kind, message):
    error = container._refused(said)
    assert type(error) is kind
    assert message in str(error)


def test_build_progress_and_failure():
    events = [
        {"stream": "Step 1/3 : FROM base\n"},
        {"stream": " ---> 123\n"},
        {"stream": "Step 2/3 : RUN pip install wheels\n"},
        *({"stream": f"line {number}\n"} for number in range(40)),
        {"error": "The command returned a non-zero code: 1"},
    ]
    said = io.StringIO()
    with pytest.raises(MeasurementError) as failure:
        container._follow_build(events, WholeConsole(file=said, width=120))
    assert said.getvalue() == "[1/3] FROM base 0 s\n"
    lines = str(failure.value).splitlines()
    assert lines[0] == "the build failed at [2/3] RUN pip install wheels"
    assert lines[1:] == [f"line {number}" for number in range(25, 40)] + ["The command returned a non-zero code: 1"]


def test_a_base_that_cannot_be_pulled():
    events = [{"stream": "Step 1/3 : FROM base\n"}, {"error": "no such host"}]
    with pytest.raises(UsageError, match=r"the base image cannot be had \(no such host\): .* with --base"):
        container._follow_build(events, WholeConsole(file=io.StringIO()))


def test_a_results_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is not a folder that you can write: name another with --results"):
        container.run(["true"], tmp_path / "file")


def test_results_come_home_whole(tmp_path):
    (tmp_path / "same").write_bytes(b"same")
    (tmp_path / "old").write_bytes(b"1\n")
    made = FakeContainer(tmp_path, {"same": b"same", "old": b"1\n2\n", "h200/new": b"x"})
    untouched = (tmp_path / "same").stat().st_mtime_ns
    assert bring_home(made) == ""
    assert (tmp_path / "old").read_bytes() == b"1\n2\n"
    assert (tmp_path / "h200/new").read_bytes() == b"x"
    assert (tmp_path / "same").stat().st_mtime_ns == untouched
    assert made.removed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h200", "old", "same"]


def test_a_file_that_changed_on_both_sides_is_kept_twice(tmp_path):
    (tmp_path / "points").write_bytes(b"1\n")
    made = FakeContainer(tmp_path, {"points": b"1\ntheirs\n"})
    (tmp_path / "points").write_bytes(b"1\nmine\n")
    assert bring_home(made) == "points changed here and in the container: the container's is points.c0ffee\n"
    assert (tmp_path / "points").read_bytes() == b"1\nmine\n"
    assert (tmp_path / "points.c0ffee").read_bytes() == b"1\ntheirs\n"


def test_records_appended_on_both_sides_are_merged(tmp_path):
    seed, mine, theirs = b'{"point": 0}\n', b'{"point": 1}\n', b'{"point": 2}\n{"point": 3}\n'
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200/points.jsonl").write_bytes(seed)
    (tmp_path / "h200/environment.json").write_text('{"a": 1}')
    files = {"h200/points.jsonl": seed + theirs, "h200/new.jsonl": theirs, "h200/environment.json": b'{"a": 1, "b": 2}'}
    made = FakeContainer(tmp_path, files)
    (tmp_path / "h200/points.jsonl").write_bytes(seed + mine)
    (tmp_path / "h200/new.jsonl").write_bytes(mine)
    (tmp_path / "h200/environment.json").write_text('{"a": 1, "c": 3}')
    for _ in range(2):  # the second time as after a client that died before it removed the container
        assert bring_home(made) == ""
        assert (tmp_path / "h200/points.jsonl").read_bytes() == seed + mine + theirs
        assert (tmp_path / "h200/new.jsonl").read_bytes() == mine + theirs
        assert json.loads((tmp_path / "h200/environment.json").read_text()) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (b"0\n1", b"0\n2\n"),  # torn here: what comes after it would be lost
        (b"9\n1\n", b"0\n2\n"),  # rewritten here
        (b"0\n1\n", b"2\n"),  # cut in the container
        (b"", b"0\n2\n"),  # emptied here
    ],
)
def test_records_that_cannot_be_merged_are_kept_twice(tmp_path, mine, theirs):
    (tmp_path / "points.jsonl").write_bytes(b"0\n")
    made = FakeContainer(tmp_path, {"points.jsonl": theirs})
    (tmp_path / "points.jsonl").write_bytes(mine)
    assert "the container's is points.jsonl.c0ffee" in bring_home(made)
    assert (tmp_path / "points.jsonl").read_bytes() == mine
    assert (tmp_path / "points.jsonl.c0ffee").read_bytes() == theirs


def test_a_store_that_is_being_measured_into_is_left_alone(tmp_path):
    path = tmp_path / "points.jsonl"
    path.write_bytes(b"0\n")
    made = FakeContainer(tmp_path, {"points.jsonl": b"0\n2\n"})
    with path.open("ab") as measuring:
        fcntl.flock(measuring, fcntl.LOCK_EX)
        assert "the container's is points.jsonl.c0ffee" in bring_home(made)
        measuring.write(b"1\n")
    assert path.read_bytes() == b"0\n1\n"


HOLDS_A_TURN = """
import sys, time
from pathlib import Path
from kperf.console import WholeConsole
from kperf import container
with container._turn(Path(sys.argv[1]), WholeConsole()):
    print("mine", flush=True)
    input()
    time.sleep(0.1)
    print("over", flush=True)
"""


def test_two_runs_into_one_folder_take_turns(tmp_path):
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS_A_TURN, tmp_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout.readline() == b"mine\n"

    class EndsTheOther(io.StringIO):
        def write(self, text):
            other.stdin.write(b"\n")
            other.stdin.flush()
            return super().write(text)

    said = EndsTheOther()
    with container._turn(tmp_path, WholeConsole(file=said, width=200)):
        os.set_blocking(other.stdout.fileno(), False)
        assert other.stdout.read() == b"over\n"
    assert other.wait(timeout=200) == 0
    assert said.getvalue() == f"another run into {tmp_path} is under way: waiting for its end\n"


def test_a_container_that_could_not_be_seeded_brings_nothing_home(tmp_path, monkeypatch):
    """Its volume was too small: the cut files in it are no results."""
    (tmp_path / "points.jsonl").write_bytes(b"0\n")
    made = FakeContainer(tmp_path, {"points.jsonl": b""})

    def put_archive(*_):
        raise container.APIError("no space left on device", explanation="no space left on device")

    made.put_archive = put_archive
    containers = SimpleNamespace(list=lambda **_: [], create=lambda *_, **__: made)
    images = SimpleNamespace(get=lambda _: SimpleNamespace(id="sha256:1"))
    engine = SimpleNamespace(containers=containers, images=images, info=lambda: {"MemTotal": 10**9}, close=lambda: None)
    monkeypatch.setattr(container.docker, "from_env", lambda **_: engine)
    with pytest.raises(UsageError, match="the disk of the Docker engine is full and nothing was started"):
        container.run(["true"], tmp_path, gpus="none")
    assert (tmp_path / "points.jsonl").read_bytes() == b"0\n"
    assert made.removed


@pytest.mark.parametrize("memory", ["0", "5m", "10000g", "-1"])
def test_a_limit_that_limits_nothing_or_too_much_is_one_sentence(memory):
    with pytest.raises(UsageError, match=f"--memory {memory} is not between 6m and the engine's 16 GB"):
        container._memory_limit(memory, 16 * 10**9)


def test_a_limit_as_docker_writes_it():
    assert container._memory_limit("1g", 16 * 10**9) == 1 << 30
    assert container._memory_limit(None, 10**9) == 8 * 10**8


def test_a_file_that_changed_only_here_stays(tmp_path):
    (tmp_path / "points").write_bytes(b"1\n")
    made = FakeContainer(tmp_path, {"points": b"1\n"})
    (tmp_path / "points").write_bytes(b"1\nmine\n")
    assert bring_home(made) == ""
    assert (tmp_path / "points").read_bytes() == b"1\nmine\n"


def test_a_full_disk_leaves_the_results_in_the_container(tmp_path, monkeypatch):
    made = FakeContainer(tmp_path, {"points": b"1\n"})

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(container, "write_atomically", full)
    with pytest.raises(MeasurementError, match=r"No space left on device\): they are safe in container c0ffee"):
        bring_home(made)
    assert not made.removed


@given(
    st.dictionaries(
        st.text(st.sampled_from("ab./~\\\n é"), min_size=1, max_size=12),
        st.one_of(st.binary(max_size=4), st.sampled_from(["/etc/passwd", "..", "a"])),
        max_size=5,
    )
)
def test_nothing_in_an_archive_leaves_the_folder(tmp_path_factory, members):
    outside = tmp_path_factory.mktemp("outside")
    folder = outside / "folder"
    folder.mkdir()
    with suppress(tarfile.TarError, OSError):  # refused as a whole
        container._unpack(archive(members), folder)
    assert list(outside.iterdir()) == [folder]
    assert not [path for path in folder.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("name", ["../over", "in/../../over", "{outside}/over"])
def test_no_name_in_an_archive_leads_out_of_the_folder(tmp_path, name):
    folder = tmp_path / "folder"
    folder.mkdir()
    with suppress(tarfile.TarError):
        container._unpack(archive({name.format(outside=tmp_path): b"1"}), folder)
    assert list(tmp_path.iterdir()) == [folder]


def test_what_goes_in_belongs_to_the_images_user(tmp_path):
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200/points").write_bytes(b"1\n")
    (tmp_path / "h200/points").chmod(0o400)
    (tmp_path / ".container-half").mkdir()
    (tmp_path / ".container-half/points").write_bytes(b"half")
    packed = io.BytesIO()
    container._pack(tmp_path, packed)
    with tarfile.open(fileobj=packed) as tar:
        members = {member.name: (member.uid, member.gid, member.mode & 0o600) for member in tar}
    assert members == {"h200": (1000, 1000, 0o600), "h200/points": (1000, 1000, 0o600)}


def test_output_goes_to_the_stream_it_came_from_in_any_pieces(capfdbinary):
    container._copy_output([(b"\xe2\x94", None), (b"\x80\n", None), (None, b"err\n"), (b"\xff\n", None)])
    assert capfdbinary.readouterr() == ("─\n".encode() + b"\xff\n", b"err\n")


def test_an_engine_that_stops_answering_leaves_the_results_in_the_container(tmp_path):
    made = FakeContainer(tmp_path, {"points": b"1\n"})

    def break_off(_: str) -> None:
        raise requests.ConnectionError

    made.get_archive = break_off
    with pytest.raises(requests.ConnectionError):
        bring_home(made)
    assert not made.removed


def test_a_container_of_an_earlier_run_that_still_measures_is_named():
    running = SimpleNamespace(status="running", short_id="c0ffee")
    engine = SimpleNamespace(containers=SimpleNamespace(list=lambda **_: [running]))
    with pytest.raises(UsageError, match="end it with `docker stop c0ffee`"):
        container._collect_earlier(engine, Path("/results"), WholeConsole())


@pytest.mark.parametrize("name", ["Dockerfile", "docker/osdi25.dockerfile", "docker/rocm.dockerfile"])
def test_hadolint_is_clean(name):
    linter = Path(sys.executable).with_name("hadolint")
    linted = subprocess.run([linter, "--no-color", ROOT / name], capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_the_image_for_amd_takes_all_of_the_lock_but_torch_and_what_is_nvidias(tmp_path):
    text = (ROOT / "docker/rocm.dockerfile").read_text()
    (program,) = re.findall(r"RUN awk '(.*)' requirements/lock.txt", text)
    lock = ROOT / "requirements/lock.txt"
    kept = subprocess.run(["awk", program, lock], capture_output=True, text=True, check=True).stdout
    assert not kept.startswith("#")

    def names(text):
        return set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))

    left_out = names(lock.read_text()) - names(kept)
    assert {"torch", "fa3-fwd", "nvidia-cublas", "nvidia-cudnn-cu13", "cuda-bindings"} <= left_out
    assert all(name in ("torch", "fa3-fwd") or name.startswith(("nvidia-", "cuda-")) for name in left_out)
    assert {"triton", "optuna", "nvidia-ml-py", "numpy"} <= names(kept)
    assert kept.count("--hash") > len(names(kept))
