"""Calls of one operator of TritonBench-G, on inputs of the benchmark's own.

TritonBench (https://github.com/thunlp/TritonBench) collects 184 Triton operators of public repositories, its channel G.
Each is a module in `OPERATORS`, whose second part, behind a line of number signs, tests it; a class in `INPUTS` makes
inputs of growing size and calls it.
"""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

OPERATORS = Path("data/TritonBench_G_v1")
INPUTS = Path("performance_metrics/perf_G/golden_metrics")
MOST_BYTES = 32 << 20
"""Of an operator's inputs: activations of 4096 tokens of 4096 bfloat16 numbers."""
_TESTS = b"\n" + 100 * b"#"


def names(checkout: Path) -> list[str]:
    """The operators of a checkout of TritonBench that have inputs."""
    inputs = {path.stem.removesuffix("_perf") for path in (checkout / INPUTS).glob("*_perf.py")}
    return sorted(inputs & {path.stem for path in (checkout / OPERATORS).glob("*.py")})


def files_of(checkout: Path, name: str) -> tuple[Path, Path]:
    """An operator's own, and the one that makes its inputs."""
    return checkout / OPERATORS / f"{name}.py", checkout / INPUTS / f"{name}_perf.py"


def call(checkout: str, name: str) -> None:
    """Call an operator twice, on the largest of its inputs that take at most `MOST_BYTES`, or on the smallest."""
    operator, inputs = files_of(Path(checkout), name)
    sys.modules["TritonBench_v1"] = ModuleType("TritonBench_v1")
    _import(f"TritonBench_v1.{name}", operator)
    sys.path.insert(0, str(inputs.parents[1]))  # its base class is there
    benchmark = _import(f"{name}_perf", inputs).performance_metrics()
    torch.set_default_device("cuda")  # inputs are made where they are used: the largest are gigabytes
    benchmark.get_input_tensors()
    torch.set_default_device(None)
    made = benchmark.input_tensors
    chosen = max((one for one in made if size(one) <= MOST_BYTES), key=size, default=min(made, key=size))
    benchmark.input_tensors = made = None
    moved = benchmark.to_cuda(chosen)
    for _ in range(2):  # at a second launch `--try` times what the first one's timeline advises
        benchmark.call_op(moved)


class _WithoutTests(SourceFileLoader):
    """Of a file the part before its tests, whose lines keep their numbers; no bytecode is read or written."""

    def get_code(self, fullname: str) -> CodeType:
        """As `Loader`."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path).partition(_TESTS)[0], path)


def _import(name: str, path: Path) -> ModuleType:
    """A module of a file by another name than the file's."""
    loader = _WithoutTests(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # as it has a loader
    module = sys.modules[name] = module_from_spec(spec)
    loader.exec_module(module)
    return module


def size(inputs: Any) -> int:
    """Bytes of the tensors in tuples, lists and dicts."""
    match inputs:
        case torch.Tensor():
            return inputs.numel() * inputs.element_size()
        case dict():
            return sum(map(size, inputs.values()))
        case tuple() | list():
            return sum(map(size, inputs))
    return 0
