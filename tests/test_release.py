"""A release: one version in every file that names it, and its changes under its heading."""

import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMED = {
    "pyproject.toml": r'^version = "(.+)"$',
    "kperf/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "Dockerfile": r'org\.opencontainers\.image\.version="(.+?)"',
    "CHANGELOG.md": r"^## (\d.*)$",
}


def versions(root):
    return {name: re.findall(words, (root / name).read_text(), re.MULTILINE)[:1] for name, words in NAMED.items()}


@pytest.fixture
def release(tmp_path):
    for name in (*NAMED, ".ci/release"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return lambda *words: subprocess.run(
        [".ci/release", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )


def test_every_file_names_the_version_of_the_newest_release():
    assert len(set(map(tuple, versions(ROOT).values()))) == 1


def test_a_release_is_one_command(release, tmp_path):
    before = (ROOT / "CHANGELOG.md").read_text().partition("## Unreleased\n")[2]
    done = release("12.3.4")
    assert done.stdout == "12.3.4: commit it, tag it v12.3.4, then `make dist`\n", done.stderr
    assert set(map(tuple, versions(tmp_path).values())) == {("12.3.4",)}
    today = datetime.now(UTC).date().isoformat()
    assert f"\ndate-released: {today}\n" in (tmp_path / "CITATION.cff").read_text()
    head, _, changes = (tmp_path / "CHANGELOG.md").read_text().partition("## 12.3.4\n")
    assert head.endswith("## Unreleased\n\n")
    assert changes == before


@pytest.mark.parametrize("words", [(), ("12.3",), ("v1.2.3",), ("0.1.0",)])
def test_what_is_no_new_version_is_refused_and_changes_nothing(release, tmp_path, words):
    done = release(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("make release: ")
    assert done.stderr.count("\n") == 1
    assert versions(tmp_path) == versions(ROOT)
