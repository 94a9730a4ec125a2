"""How the threads of a warp ask for the elements of a tensor of pointers: bytes, sectors, requests."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.reading.operations import STORES
from kperf.diagnose.thresholds import SECTOR_BYTES, VECTOR_BYTES
from kperf.ir.layouts import TensorType
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value


@dataclass(frozen=True)
class Access:
    """A load or a store of a tensor of pointers, and how the threads of a warp ask for it.

    tensor: of pointers. used_bytes, sectors: of all requests of a CTA together, distinct bytes that are used in a
    request and sectors of 32 bytes that it touches. tile_bytes, tile_sectors: as if the cache kept every sector.
    asked_bytes: those of the tile that its mask lets through; all of them where the mask is data, of few CTAs, or ends
    at an argument, whose number at the launch is not known.
    thread_bytes: consecutive bytes that a thread could ask for at once. requests: of a CTA. requests_of_runs: whether
    the distinct elements of each request lie side by side, however few they are.
    """

    operation: Operation
    tensor: TensorType
    value: Value
    used_bytes: int
    sectors: int
    tile_sectors: int
    tile_bytes: int
    asked_bytes: int
    thread_bytes: int
    requests: int
    requests_of_runs: bool

    @property
    def sector_use(self) -> float:
        """Used share of the bytes that move, request by request."""
        return self.used_bytes / max(self.sectors * SECTOR_BYTES, 1)

    @property
    def has_neighbours(self) -> bool:
        """Whether along one dimension of the tile each element lies beside the last one in memory."""
        return self.contiguous is not None

    @property
    def contiguous(self) -> int | None:
        """The dimension of the tile along which each element lies beside the last one in memory; None without one."""
        numbers = self.value.numbers
        long = (axis for axis, length in enumerate(numbers.shape) if length > 1)
        return next((axis for axis in long if np.all(np.diff(numbers, axis=axis) == self.tensor.bytes)), None)

    @property
    def is_even(self) -> bool:
        """Whether along each dimension all steps are equal and lead to other addresses, as in a tile of a tensor."""
        numbers = self.value.numbers
        steps = [np.diff(numbers, axis=axis) for axis, length in enumerate(numbers.shape) if length > 1]
        return all(bool(np.all(step == step.flat[0])) and step.flat[0] != 0 for step in steps)

    @property
    def tile_sector_use(self) -> float:
        """Used share of the bytes that move from device memory if the cache keeps what neighbours use."""
        return self.tile_bytes / max(self.tile_sectors * SECTOR_BYTES, 1)


def read_access(op: Operation, pointers: TensorType, value: Value, places: NDArray[np.int64], asked: int) -> Access:
    """The access of a load or store.

    value: its addresses. places: where in the tile each element of a thread lies, [warp, register, lane, dimension].
    asked: distinct elements that its mask lets through.
    """
    addresses = value.numbers[tuple(np.moveaxis(places, -1, 0))]  # [warp, register, lane]
    run = run_of(addresses, pointers.bytes, aligned=True)
    if value.loaded:  # where its first sector begins is not known: no alignment counts against it
        addresses = addresses - addresses.min() % SECTOR_BYTES
    stored = op.name in STORES  # by the first of the warps that hold the same elements
    requests = _requests(np.unique(addresses, axis=0) if stored else addresses, run)
    used, sectors, runs = _moved(requests, pointers.bytes)
    distinct = np.unique(addresses)
    return Access(
        op,
        pointers,
        value,
        used,
        sectors,
        len(np.unique(distinct // SECTOR_BYTES)),
        len(distinct) * pointers.bytes,
        asked * pointers.bytes,
        run * pointers.bytes,
        len(requests),
        runs,
    )


def run_of(addresses: NDArray[np.int64], size: int, *, aligned: bool) -> int:
    """Registers of a thread that are neighbours in memory, at most 16 bytes: a power of two.

    addresses: in bytes, of (warp, register, lane), of elements of `size` bytes. aligned: each run begins at a multiple
    of its bytes.
    """
    run = 1
    while run * 2 * size <= VECTOR_BYTES and addresses.shape[1] % (run * 2) == 0:
        groups = addresses.reshape(addresses.shape[0], -1, run * 2, addresses.shape[2])
        consecutive = np.all(np.diff(groups, axis=2) == size)
        if not consecutive or (aligned and np.any(groups[:, :, 0, :] % (run * 2 * size))):
            break
        run *= 2
    return run


def _requests(addresses: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Addresses, in order, by request of a CTA: one a warp and `run` registers."""
    return np.sort(addresses.reshape(addresses.shape[0] * addresses.shape[1] // run, run * addresses.shape[2]), axis=1)


def _moved(requests: NDArray[np.int64], size: int) -> tuple[int, int, bool]:
    """Bytes used, and sectors touched, of requests, and whether what each of them uses lies side by side."""
    distinct = 1 + np.count_nonzero(np.diff(requests, axis=1), axis=1)
    sectors = 1 + np.count_nonzero(np.diff(requests // SECTOR_BYTES, axis=1), axis=1)
    runs = bool(np.all(requests[:, -1] - requests[:, 0] == (distinct - 1) * size))
    return int(distinct.sum()) * size, int(sectors.sum()), runs
