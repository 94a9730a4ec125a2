"""Inductor writes its program for an H200 on a machine without a GPU; nothing is compiled further, nothing runs.

torch.compile takes the module in on the `meta` device; its graph is then given tensors that say they are on a GPU
(`FakeTensorMode`), and Inductor is told of an H200 wherever it asks. Attention, whose back end torch chooses on the
GPU, is taken for FLASH_ATTENTION.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.fx_passes import fuse_attention
from torch._inductor.graph import GraphLowering
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._triton import has_triton

from kperf.compat.inductor_graph import noted
from kperf.compat.inductor_program import Program
from kperf.compat.triton.drivers import driver_in_place
from kperf.errors import MeasurementError, first_line


class _Written(Exception):  # noqa: N818
    """The program is there: no need to go on."""


def program_of(
    module: Callable[..., Any], inputs: Sequence[torch.Tensor], properties: object, driver: object
) -> Program:
    """What Inductor writes for a call of `module` with `inputs`, all on the `meta` device.

    For the GPU of `fake_gpu`. Raises `MeasurementError` if it is not one graph.
    """

    def write(graph: torch.fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        for node in graph.graph.nodes:
            if node.target is scaled_dot_product_attention:
                node.target = _flash_attention
        with FakeTensorMode():
            on_gpu = [
                torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
                if isinstance(value, torch.Tensor)
                else value
                for value in given
            ]
        with fake_gpu(properties, driver), torch.no_grad():
            compile_fx(graph, on_gpu)
        raise AssertionError("Inductor wrote no program")

    torch._dynamo.reset()
    with noted() as program, torch.no_grad():
        written: Any = GraphLowering.save_output_code  # `noted`'s

        def stop(code: str) -> None:
            written(code)
            raise _Written

        with patch.object(GraphLowering, "save_output_code", staticmethod(stop)):
            try:
                torch.compile(module, backend=write, fullgraph=True)(*inputs)
            except torch._dynamo.exc.Unsupported as error:
                raise MeasurementError(f"torch.compile breaks its graph: {first_line(error)}") from None
            except Exception as error:
                if not _is_written(error):
                    raise
    return program


def _is_written(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, _Written) or _is_written(error.__cause__ or error.__context__))


def _flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **settings: Any) -> torch.Tensor:
    settings.pop("enable_gqa", None)
    o: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, **settings)[0]
    return o


@contextmanager
def fake_gpu(properties: object, driver: object) -> Iterator[None]:
    """Within it Inductor, and whoever else asks torch, see a Hopper GPU of these properties; Triton asks this driver.

    `properties`: as `torch.cuda.get_device_properties` gives them.
    """
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (torch.cuda, "_lazy_init", lambda: None),
            (torch.cuda, "_exchange_device", lambda _: -1),
            (torch.cuda, "_maybe_exchange_device", lambda _: -1),
            (torch.cuda, "get_rng_state", lambda *_: torch.empty(16, dtype=torch.uint8)),
            (CudaInterface, "is_available", staticmethod(lambda: True)),
            (CudaInterface, "current_device", staticmethod(lambda: 0)),
            (CudaInterface, "get_device_properties", staticmethod(lambda *_: properties)),
            (CudaInterface, "get_compute_capability", staticmethod(lambda *_: 90)),
            (fake_tensor, "init_gpu_context", lambda _: None),
            (fuse_attention, "_sfdp_init", lambda *_: None),  # it makes tensors, and our attention is no pattern
        ):
            stack.enter_context(patch.object(owner, name, value))
        stack.enter_context(driver_in_place(driver))
        stack.enter_context(config.patch(compile_threads=1))
        has_triton.cache_clear()
        stack.callback(has_triton.cache_clear)
        yield
