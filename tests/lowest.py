"""`make test-lowest`: the lower bounds of pyproject.toml, installed, and the tests that use each package.

uv puts them into `.venv-lowest`. torch and what comes with it, gigabytes of the lock, are those of `.venv`, which
stands behind on the path: their range is a matter of Triton's versions.
"""

import importlib.metadata
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-lowest"
PYTHON = ENVIRONMENT / "bin" / "python"
ELSEWHERE = ("torch", "triton", "fa3-fwd")
"""Not installed anew."""

TESTS = {
    "typer, rich": ["tests/test_console.py", "tests/test_cli.py::test_an_unknown_or_missing_word_is_one_sentence"],
    "numpy": ["tests/trace/analyze/test_decode.py", "tests/trace/analyze/test_analysis.py"],
    "pydantic": ["tests/record/test_recorded.py", "tests/bench/test_points.py"],
    "nvidia-ml-py": ["tests/record/test_machine.py", "tests/record/test_device.py"],
    "scipy": ["tests/bench/test_intervals.py"],
    "matplotlib": ["tests/plots/test_fig12.py", "tests/plots/test_power.py", "tests/test_trace_figure.py"],
    "docker": ["tests/test_container.py", "--deselect=tests/test_container.py::test_hadolint_is_clean"],
    "optuna": ["tests/tune/test_search.py"],
    "distributed, cryptography": ["tests/bench/test_spread.py"],
    "zensical, mkdocstrings-python": ["tests/test_site.py"],
}
"""By the package that they use."""


def declared() -> dict[str, Version]:
    """Each package of pyproject.toml -> its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(one) for group in project["optional-dependencies"].values() for one in group]
    wanted += [Requirement(one) for one in project["dependencies"]]
    return {
        one.name: Version(specifier.version)
        for one in wanted
        if one.name not in (*ELSEWHERE, project["name"])
        for specifier in one.specifier
        if specifier.operator in (">=", "==")
    }


def install() -> None:
    """Make the environment anew."""
    uv = ["uv", "--quiet"]
    subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(ENVIRONMENT)], check=True)
    absent = ENVIRONMENT / "elsewhere.txt"
    absent.write_text("".join(f'{name}; python_version < "3"\n' for name in ELSEWHERE))
    install = [
        *uv,
        "pip",
        "install",
        "--python",
        str(PYTHON),
        "--resolution",
        "lowest-direct",
        "--override",
        str(absent),
    ]
    subprocess.run(
        [*install, "--requirements", "pyproject.toml", "--extra", "test", "--extra", "docs"], cwd=ROOT, check=True
    )
    (folder,) = ENVIRONMENT.glob("lib/python*/site-packages")
    (folder / "the-rest.pth").write_text(sysconfig.get_path("purelib") + "\n")


def main() -> int:
    """Install, unless this is that environment, and test."""
    if Path(sys.prefix) != ENVIRONMENT:
        install()
        return subprocess.run([PYTHON, "-m", "tests.lowest", *sys.argv[1:]], cwd=ROOT, check=False).returncode
    import pytest

    for name, lowest in declared().items():
        installed = Version(importlib.metadata.version(name))
        if installed != lowest:
            print(f"{name}>={lowest} is declared, and the lowest that can be installed is {installed}", file=sys.stderr)
            return 1
    tests = [test for group in TESTS.values() for test in group]
    return pytest.main(
        ["-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not gpu and not docker", *tests, *sys.argv[1:]]
    )


if __name__ == "__main__":
    sys.exit(main())
