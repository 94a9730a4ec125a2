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
        maximum=lambda a, b: torch.maximum(a, torch.as_tensor(b)),
        where=lambda chosen, a, b: torch.where(torch.as_tensor(chosen), torch.as_tensor(a), torch.as_tensor(b)),
        load=load,
        arange=lambda begin, end, _: torch.arange(begin, end),
    )
    found = SimpleNamespace()
    names = {}
    for name, value in vars(module).items():
        if isinstance(value, JITFunction):
            names[name] = FunctionType(value.fn.__code__, names, name, value.fn.__defaults__)
            setattr(found, name, names[name])
        else:
            names[name] = value.value if isinstance(value, gl.constexpr) else value
    names |= {"gl": language, "opaque": lambda x: x.expand(n_programs).clone(), "uniform": lambda x: x}
    return found


class Pointer:
    """Addresses in a tensor of one dimension, from its first element on."""

    def __init__(self, memory, at=0):
        self.memory, self.at = memory, torch.as_tensor(at)
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, step):
        return Pointer(self.memory, self.at + step)


def load(pointer, exists=True, other=0):
    """What lies there; where nothing exists, `other`."""
    exists = torch.as_tensor(exists).expand(pointer.at.shape)
    found = torch.full(pointer.at.shape, other, dtype=pointer.memory.dtype)
    assert bool(((pointer.at >= 0) & (pointer.at < len(pointer.memory)))[exists].all())
    found[exists] = pointer.memory[pointer.at[exists].long()]
    return found


def store(pointer, value, exists=True):
    """Writes what exists."""
    exists = torch.as_tensor(exists).expand(pointer.at.shape)
    assert bool(((pointer.at >= 0) & (pointer.at < len(pointer.memory)))[exists].all())
    pointer.memory[pointer.at[exists].long()] = (
        torch.as_tensor(value).expand(pointer.at.shape)[exists].to(pointer.memory.dtype)
    )


def program_in_python(module, name, n_programs):
    """A @triton.jit kernel of the module, run by Python program after program; tensors are memory."""
    language = SimpleNamespace(
        int32=torch.int32,
        int64=torch.int64,
        float32=torch.float32,
        arange=torch.arange,
        full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
        load=load,
        store=store,
        sum=torch.sum,
        where=torch.where,
    )
    names = {"tl": language}
    for key, value in vars(module).items():
        if isinstance(value, JITFunction):
            names[key] = FunctionType(value.fn.__code__, names, key, value.fn.__defaults__)
        elif key != "tl":
            names[key] = value.value if isinstance(value, gl.constexpr) else value

    def run(*arguments):
        given = [Pointer(one.view(-1)) if isinstance(one, torch.Tensor) else one for one in arguments]
        fixed = getattr(module, name).constexprs
        given = [
            torch.tensor(one) if type(one) is int and place not in fixed else one for place, one in enumerate(given)
        ]
        for number in range(n_programs):
            language.program_id = lambda _, number=number: torch.tensor(number)
            names[name](*given)

    return run
