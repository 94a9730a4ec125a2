"""One image for all tests, built from the real Dockerfile; without an engine the tests are skipped and say why.

KPERF_TEST_BASE names the base image where the pinned one cannot be pulled (a stand-in, see docker/standin.sh).
KPERF_REQUIRE_ENGINE=1, as in CI, makes a missing engine a failure.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest

from kperf import container

TAG = "kperf:test"
BASE = os.environ.get("KPERF_TEST_BASE")


@dataclass(frozen=True)
class Inside:
    """What a command in a container did."""

    status: int
    out: str


@pytest.fixture(scope="session")
def engine() -> Any:
    reason, _ = container.why_no_engine()
    if reason and os.environ.get("KPERF_REQUIRE_ENGINE"):
        pytest.fail(reason, pytrace=False)
    if reason:
        pytest.skip(reason)
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="session")
def built(engine: Any, pytestconfig: pytest.Config) -> container.BuiltImage:
    assert engine.ping()
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nbuilding {TAG} on {BASE or 'the pinned base'}" + (" (a stand-in)" if BASE else ""))
        return container.build(TAG, base=BASE)


@pytest.fixture(scope="session")
def inside(engine: Any, built: container.BuiltImage) -> Any:
    """Run a command in the image as the issue's worst host would: read-only, no network, no capabilities."""

    def run(*command: str, **options: Any) -> Inside:
        settings: dict[str, Any] = {
            "network_mode": "none",
            "read_only": True,
            "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777", "/out": "rw,mode=1777"},
            "environment": {"KPERF_RESULTS": "/out"},
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
        }
        made = engine.containers.create(built.tag, list(command), **(settings | options))
        try:
            made.start()
            status = int(made.wait()["StatusCode"])
            return Inside(status, made.logs().decode())
        finally:
            made.remove(force=True, v=True)

    return run


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A results folder with one small file in it."""
    folder = tmp_path / "results"
    (folder / "h200").mkdir(parents=True)
    (folder / "h200" / "notes.txt").write_text("before\n")
    return folder
