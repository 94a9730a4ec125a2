import shutil
import subprocess

import pytest

from kperf.record.commit import git_commit


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A clean repository with a package, results, and a file that git ignores."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed, as in the image")
    monkeypatch.delenv("KPERF_COMMIT", raising=False)
    for folder in ("kperf", "results", "plots"):
        (tmp_path / folder).mkdir()
    (tmp_path / "kperf" / "__init__.py").touch()
    (tmp_path / "kperf" / "a.py").write_text("a = 1\n")
    (tmp_path / "results" / "fig12.jsonl").write_text("{}\n")
    (tmp_path / ".gitignore").write_text("*.log\n")
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *identity, *command], cwd=tmp_path, check=True)
    return tmp_path


def test_what_can_change_a_number_changes_the_commit(checkout):
    found = [git_commit(checkout)]
    for name, text in (
        ("kperf/a.py", "a = 2\n"),
        ("kperf/new.py", "b = 1\n"),
        ("kperf/new.py", "b = 2\n"),
        ("kperf/renamed.py", "b = 2\n"),
        ("plots/new.py", ""),
        ("benchmark.py", ""),
    ):
        (checkout / name).write_text(text)
        found.append(git_commit(checkout))
    assert len(set(found)) == len(found)
    assert len(found[0]) == 40
    assert all(name.startswith(f"{found[0]}-dirty-") for name in found[1:])


def test_what_cannot_leaves_it(checkout):
    clean = git_commit(checkout)
    for name in ("results/fig12.jsonl", "results/new.jsonl", "kperf/run.log", "notes.txt"):
        (checkout / name).write_text("new\n")
    assert git_commit(checkout) == clean


def test_without_git_it_is_unknown_or_what_the_image_says(tmp_path, monkeypatch):
    monkeypatch.delenv("KPERF_COMMIT", raising=False)
    assert git_commit(tmp_path) == "unknown"
    monkeypatch.setenv("KPERF_COMMIT", "abc")
    assert git_commit(tmp_path) == "abc"


def test_a_repository_around_an_installed_package_is_not_its_own(checkout):
    """An environment in somebody's checkout, whose git ignores it or not."""
    for name in ("ignored.log", "venv"):
        package = checkout / name / "site-packages"
        (package / "kperf").mkdir(parents=True)
        (package / "kperf" / "__init__.py").touch()
        assert git_commit(package) == "unknown"
    assert len(git_commit(checkout)) == 40
