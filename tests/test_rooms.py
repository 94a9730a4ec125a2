"""The rooms of the package import in one direction."""

import ast
from pathlib import Path

import pytest

KPERF = Path(__file__).resolve().parents[1] / "kperf"

FLOORS = [
    {"errors", "__version__", "console"},
    {"installation", "arch"},
    {"record", "ir"},
    {"trace", "attention"},
    {"bench"},
    {"studies", "integrations", "tune"},
    {"plots"},
    {"paper"},
    {"container", "doctor"},
    {"cli"},
    {"__main__"},
]
"""A room imports itself and rooms of floors above; rooms of one floor do not know each other."""

ALLOWED_BESIDE = {("ir", "record"), ("doctor", "container")}
"""Within a floor: IR is written through `record.files`; the doctor asks the container's engine."""

TRACE_FLOORS = ["instrument", "capture", "analyze"]


def imports(path: Path) -> set[str]:
    """The rooms (and inside `trace` the floors) that a module imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name for name in names if name.split(".")[0] == "kperf"}
        assert "plots" not in [name.split(".")[0] for name in names], f"{path}: in a wheel it is kperf.plots alone"
    return found


def room(name: str) -> str:
    return name.split(".")[1]


def modules() -> list[Path]:
    return sorted([*KPERF.rglob("*.py"), *(KPERF.parent / "plots").glob("*.py")])


def own_room(path: Path) -> str:
    relative = path.relative_to(KPERF.parent).with_suffix("")
    return "plots" if relative.parts[0] == "plots" else relative.parts[1]


@pytest.mark.parametrize("path", [p for p in modules() if p != KPERF / "__init__.py"], ids=lambda p: p.stem)
def test_a_room_imports_only_rooms_above_it(path: Path):
    floors = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    here = own_room(path)
    for name in imports(path):
        there = room(name)
        assert there in floors, f"{path}: {there} has no floor"
        fine = there == here or floors[there] < floors[here] or (here, there) in ALLOWED_BESIDE
        assert fine, f"{path} in {here} imports {name}"


@pytest.mark.parametrize("path", sorted((KPERF / "trace").rglob("*.py")), ids=lambda p: p.stem)
def test_the_trace_goes_from_the_compiler_to_the_launch_to_the_reading(path: Path):
    here = path.relative_to(KPERF / "trace").parts[0]
    for name in imports(path):
        parts = name.split(".")
        if parts[:2] == ["kperf", "trace"] and here in TRACE_FLOORS and parts[2] in TRACE_FLOORS:
            assert TRACE_FLOORS.index(parts[2]) <= TRACE_FLOORS.index(here), f"{path} imports {name}"
