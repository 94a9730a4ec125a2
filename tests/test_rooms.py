"""The rooms of the package import in one direction."""

import ast
import importlib.util
from pathlib import Path

import pytest

KPERF = Path(__file__).resolve().parents[1] / "kperf"

FLOORS = [
    {"errors", "__version__", "console"},
    {"installation"},
    {"compat"},
    {"arch"},
    {"record"},
    {"ir"},
    {"trace", "attention"},
    {"report"},
    {"bench", "diagnose"},
    {"api"},
    {"studies", "integrations", "tune"},
    {"plots"},
    {"paper"},
    {"container", "doctor"},
    {"cli"},
    {"__main__"},
]
"""A room imports itself and rooms of floors above; rooms of one floor do not know each other."""

ALLOWED_BESIDE = {("doctor", "container")}
"""Within a floor: the doctor asks the container's engine."""

PUBLIC = {
    "torch", *(f"torch.{name}" for name in (
        "accelerator", "autograd", "autograd.profiler", "backends.cuda", "compiler", "cuda", "cuda.nvtx",
        "cuda.profiler", "library", "nn", "nn.attention", "nn.attention.flex_attention", "nn.attention.varlen",
        "nn.functional", "overrides", "profiler", "utils.cpp_extension", "utils.flop_counter", "version",
    )),
    "triton", "triton.experimental.gluon", "triton.experimental.gluon.language",
    "triton.experimental.gluon.language.nvidia.hopper", "triton.experimental.gluon.language.nvidia.hopper.mbarrier",
    "triton.experimental.gluon.language.nvidia.hopper.tma", "triton.language", "triton.language.extra",
    "triton.profiler", "triton.profiler.proton", "triton.testing", "triton.tools.tensor_descriptor",
}  # fmt: skip
"""The modules of torch and Triton that are documented; what else there is of them is imported by `kperf.compat`."""

TRACE_FLOORS = ["instrument", "capture", "analyze"]

DIAGNOSE_FLOORS = [{"thresholds", "finding"}, {"script"}, {"reading"}, {"analyses"}, {"rule", "page"}, {"rules"}]
"""From what a script launches to the rules; the modules that run the rules lie above all of them."""


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


@pytest.mark.parametrize("path", sorted((KPERF / "diagnose").rglob("*.py")), ids=lambda p: p.stem)
def test_the_diagnosis_goes_from_the_script_to_the_kernel_to_the_rules(path: Path):
    floors = {name: number for number, floor in enumerate(DIAGNOSE_FLOORS) for name in floor}
    top = len(DIAGNOSE_FLOORS)
    here = path.relative_to(KPERF / "diagnose").with_suffix("").parts[0]
    for name in imports(path):
        parts = name.split(".")
        # A rule's registry loads its folder.
        if parts[:2] == ["kperf", "diagnose"] and (here, parts[2]) != ("rule", "rules"):
            assert floors.get(parts[2], top) <= floors.get(here, top), f"{path} imports {name}"


def private(path: Path) -> set[str]:
    """What a module uses of torch and Triton that is not documented, as dotted names."""
    return {name for name in _used(ast.parse(path.read_text())) if not _is_public(name)}


def _used(tree: ast.AST) -> set[str]:
    """Dotted names below `torch` and `triton`: imported, spelled out, or in a string by which a module is looked up."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(_dotted(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.add(node.value)
    return {name for name in found if name.partition(".")[0] in ("torch", "triton")}


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _is_public(name: str) -> bool:
    if f"{name}.".startswith("torch.ops."):  # an operator's name may begin with an underscore
        return True
    if any(part.startswith("_") and not part.endswith("__") for part in name.split(".")):
        return False
    return name in PUBLIC or _module_of(name) in PUBLIC


def _module_of(name: str) -> str:
    """The module among the beginnings of a dotted name, the longest one."""
    while True:
        try:
            if importlib.util.find_spec(name):
                return name
        except (ModuleNotFoundError, ValueError):
            pass
        name = name.rpartition(".")[0]


@pytest.mark.parametrize(
    "path",
    [p for p in modules() if not p.is_relative_to(KPERF / "compat")],
    ids=lambda p: str(p.relative_to(KPERF.parent)),
)
def test_private_interfaces_of_torch_and_triton_are_used_in_compat_alone(path: Path):
    assert private(path) == set()


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("from triton.compiler import CompiledKernel", "triton.compiler.CompiledKernel"),
        ("from triton import knobs", "triton.knobs"),
        ("import triton._C.libtriton as lib", "triton._C.libtriton"),
        ("def f():\n    import torch._inductor.config", "torch._inductor.config"),
        ("import torch\ntorch.cuda._sleep(1)", "torch.cuda._sleep"),
        ("import triton\ntriton.runtime.driver.active", "triton.runtime.driver.active"),
        ("import sys\nsys.modules['torch._inductor.runtime']", "torch._inductor.runtime"),
        ("from torch.utils._triton import has_triton", "torch.utils._triton.has_triton"),
        ("import torch.fx", "torch.fx"),
    ],
)
def test_a_private_interface_is_found_however_it_is_reached(tmp_path, line, name):
    module = tmp_path / "module.py"
    module.write_text(line)
    assert name in private(module)


def test_what_is_documented_is_not_private(tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "import torch, triton.testing\nfrom triton.experimental import gluon\nfrom torch import nn, profiler\n"
        "from triton.tools.tensor_descriptor import TensorDescriptor\ntorch.ops.aten._an_operator(torch.cuda.Event())\n"
        "triton.compile(torch.__version__)\nfrom torch.utils.flop_counter import register_flop_formula\n"
    )
    assert private(module) == set()
