"""The indexing of a Gluon kernel as Python, on tensors of torch: an element a block of the grid."""

from types import FunctionType, SimpleNamespace

import torch
from triton.experimental.gluon import language as gl
from triton.runtime.jit import JITFunction


def in_python(module, n_programs):
    """The module's @gluon.jit functions, run by Python as blocks 0 .. n_programs - 1 of a grid, all at once."""
    language = SimpleNamespace(
        constexpr=gl.constexpr,
        int32=torch.int32,
        program_id=lambda _: torch.arange(n_programs),
        num_programs=lambda _: torch.tensor(n_programs),
        cdiv=lambda a, b: -(-a // b),
        minimum=torch.minimum,
        maximum=torch.maximum,
        where=lambda chosen, a, b: torch.where(torch.as_tensor(chosen), torch.as_tensor(a), torch.as_tensor(b)),
    )
    found = SimpleNamespace()
    names = {}
    for name, value in vars(module).items():
        if isinstance(value, JITFunction):
            names[name] = FunctionType(value.fn.__code__, names, name, value.fn.__defaults__)
            setattr(found, name, names[name])
        else:
            names[name] = value.value if isinstance(value, gl.constexpr) else value
    names |= {"gl": language, "opaque": lambda x: x.expand(n_programs).clone()}
    return found
