"""Common base of a card's measurement: the card, PyTorch, and prepared cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from benchmarks.card.figures import Figure, Notebook, Timed, compete
from benchmarks.card.machine import is_encrypted
from benchmarks.card.rivals import Torch
from gpucheck.bench.case import Case, CaseOrder
from gpucheck.bench.model import Verified
from gpucheck.bench.numerics import FORMATS, HostData, encode
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.roofline import with_board
from gpucheck.drivers.gpu import GpuDevice
from gpucheck.drivers.host.blas import Blas
from gpucheck.drivers.host.clock import monotonic_s
from gpucheck.drivers.host.cpu import LinuxCpu

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Random numbers that are drawn, and repeated in larger arrays. An odd number, so that no two rows
#: of such an array are the same.
_DRAWN = 2**23 - 1
#: Bytes per second of a PCIe lane of each generation, without its line coding.
_LANE_GB_PER_S = MappingProxyType({1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Equipment of a part. `share` shrinks all sizes, for a trial without a real card."""

    gpus: tuple[GpuDevice, ...]
    torch: Torch | None
    notes: Notebook
    share: float = 1.0

    @property
    def gpu(self) -> GpuDevice:
        """Return the first GPU."""
        return self.gpus[0]

    def bytes_of_a_side(self) -> int:
        """Return the size of an input that no L2 holds: at least four times as large, 256 MiB."""
        return int(max(2**28, 4 * self.gpu.facts.l2_bytes) * self.share)

    def order(self, shape: tuple[int, ...], dtype: str = "float32") -> CaseOrder:
        """Return an order for gpucheck's cases at T = 1, as torch computes."""
        return CaseOrder(
            request=BenchRequest(temperature=1.0),
            shape=shape,
            dtype=dtype,
            data=HostData(0),
            cpu=LinuxCpu().facts(),
            clock=monotonic_s,
            blas=Blas(),
            gpus=self.gpus,
        )

    def numbers(self, dtype: str, count: int) -> HostArray:
        """Return random numbers as stored in a format; those of an earlier call come again."""
        import numpy as np

        return np.resize(_drawn_numbers(dtype, min(_DRAWN, self.bytes_of_a_side())), count)

    def datasheet(self, dtype: str | None = None) -> float | None:
        """Return the card's peak for products in a format, or that of its memory for None."""
        board = with_board(self.gpu.facts).board
        if board is None:
            return None
        return board.bytes_per_s if dtype is None else board.flops_per_s.get(dtype)

    def link_rate(self) -> float | None:
        """Return the bytes per second of the card's PCIe link, None if it does not limit copies.

        A chip-to-chip link is another one, and confidential computing encrypts. None also if NVML
        does not report it.
        """
        if self.gpu.facts.is_linked_chip_to_chip:
            return None
        try:
            from pynvml import (
                nvmlDeviceGetHandleByUUID,
                nvmlDeviceGetMaxPcieLinkGeneration,
                nvmlDeviceGetMaxPcieLinkWidth,
                nvmlInit,
            )

            nvmlInit()
            if is_encrypted():
                return None
            handle = nvmlDeviceGetHandleByUUID(self.gpu.facts.uuid)
            lane = _LANE_GB_PER_S[nvmlDeviceGetMaxPcieLinkGeneration(handle)]
            return float(1e9 * lane * nvmlDeviceGetMaxPcieLinkWidth(handle))
        except Exception:  # no NVML, no such GPU, a generation to come: then there is no limit
            return None

    def release(self) -> None:
        """Release the GPU memory of both sides."""
        self.gpu.release()
        if self.torch is not None:
            self.torch.release()


@cache
def _drawn_numbers(dtype: str, count: int) -> HostArray:
    wide = "float64" if dtype == "float64" else "float32"
    return encode(HostData(0).normal("numbers", (count,), wide), FORMATS[dtype])


@contextmanager
def ready(case: Case) -> Iterator[Verified]:
    """Prepare a case, run it once on poisoned outputs, check it, and release it at the end."""
    try:
        case.prepare()
        case.poison()
        case.run(1)
        yield case.check()
    except BaseException:
        with suppress(Exception):  # report the first error
            case.release()
        raise
    case.release()


def repeated(gpu: GpuDevice, once: Callable[[], None]) -> Timed:
    """Return the timer of the work of `once`, one by one, queued behind a waiting GPU."""

    def timed(loops: int) -> float:
        def enqueue() -> None:
            for _ in range(loops):
                once()

        return gpu.span(enqueue).seconds

    return timed


def rivals_of(bench: Bench, makers: Mapping[str, Callable[[Torch], Timed]]) -> dict[str, Timed]:
    """Return torch's timers, or none without torch.

    Work that torch cannot set up (unsupported format, no memory) fails when it is timed.
    """
    if bench.torch is None:
        return {}
    return {name: _made(make, bench.torch) for name, make in makers.items()}


def _made(make: Callable[[Torch], Timed], torch: Torch) -> Timed:
    try:
        return make(torch)
    except Exception as error:
        problem = error

    def failing(loops: int) -> float:
        raise problem

    return failing


def timed_case(case: Case, part: str, name: str, unit: str, work: float = 1.0) -> Figure:
    """Return a case's rate, or its seconds for the unit `s`."""
    with ready(case) as checked:
        seconds = compete({"ours": case.run}).ours
    return Figure(
        part=part,
        name=name,
        unit=unit,
        ours=seconds if unit == "s" else work / seconds,
        verified=checked.ok,
        details=dict(case.facts),
    )
