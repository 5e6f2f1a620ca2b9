"""What a kernel is to the engine: a case that runs `loops` times and checks its own result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gpucheck.core.bench.data import HostData
from gpucheck.models.bench import BenchMode, BenchRequest, DtypeSpec, Fact, Scope, Verified
from gpucheck.probes.blas import BlasDoor
from gpucheck.probes.clock import Clock
from gpucheck.probes.cpu import CpuFacts
from gpucheck.probes.cupy_device import GpuDevice

#: A host clock and a call cost well under a microsecond: 1 ms makes them less than 0.1 %.
HOST_SPAN_S = 1e-3
#: CUDA events resolve about half a microsecond, on some boards one: less than 0.2 % of this. Longer
#: spans would need more launches of a short kernel than the driver queues (about a thousand).
EVENT_SPAN_S = 500e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one operation does: floating-point operations, and the fewest bytes it must move."""

    flops: int
    bytes_moved: int
    unit: str

    @property
    def amount(self) -> int:
        """Return what the throughput counts, in `unit` times seconds."""
        return self.bytes_moved if self.unit == "B/s" else self.flops


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLabel:
    """Which row a case fills; the fields are the row's."""

    kernel: str
    variant: str
    device: str
    shape: tuple[int, ...]
    dtype: DtypeSpec
    gpu_uuid: str | None = None
    scope: Scope = Scope.RESIDENT
    threads: int | None = None
    parameters: dict[str, Fact] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return a short name for the progress line."""
        size = "x".join(str(edge) for edge in self.shape)
        return f"{self.kernel} {size} {self.variant} on {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFit:
    """How much memory the timed loop walks through, against the cache that could hold it."""

    walked_bytes: int
    cache_bytes: int
    cache: str


class Case(Protocol):
    """One kernel variant on one device at one shape, ready to be measured.

    The engine calls `prepare`, `poison`, `run(1)`, `check`, then `run(loops)` many times, then
    `check` again, and `release` whatever happened. A case never warms up, averages or prints.
    """

    @property
    def label(self) -> CaseLabel:
        """Return which row this case fills."""
        ...

    @property
    def work(self) -> Work:
        """Return what one operation does."""
        ...

    @property
    def shortest_span_s(self) -> float:
        """Return the shortest span that this case's clock measures well enough."""
        ...

    @property
    def cache_fit(self) -> CacheFit | None:
        """Return how the walked memory compares with the cache, where it matters."""
        ...

    @property
    def starved_share(self) -> float:
        """Return the share of the runs in which the GPU may have waited for the host."""
        ...

    def prepare(self) -> None:
        """Allocate inputs and outputs and fill the inputs."""
        ...

    def poison(self) -> None:
        """Fill the outputs with NaN, so that a result left over from before cannot pass."""
        ...

    def run(self, loops: int) -> float:
        """Run the operation `loops` times and return the elapsed seconds for all of them."""
        ...

    def check(self) -> Verified:
        """Compare the output of the last run with float64."""
        ...

    def release(self) -> None:
        """Give the memory back; may be called without `prepare` having succeeded."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOrder:
    """What a kernel needs to know to make its cases."""

    shape: tuple[int, ...]
    temperature: float
    data: HostData
    cpu: CpuFacts
    clock: Clock
    blas: BlasDoor


class Kernel(Protocol):
    """One registered kernel: its shapes, its work, its memory, and its cases per device."""

    @property
    def id(self) -> str:
        """Return the kernel's name, as on the command line and in the file name."""
        ...

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Return the input dtypes that it can measure."""
        ...

    @property
    def sizes(self) -> Mapping[BenchMode, int]:
        """Return the problem's edge for each mode."""
        ...

    def validate(self, request: BenchRequest) -> None:
        """Raise WrongUseError for a request that this kernel cannot answer."""
        ...

    def shape(self, size: int) -> tuple[int, ...]:
        """Return the shape for a problem of edge `size`."""
        ...

    def work(self, shape: tuple[int, ...]) -> Work:
        """Return what one operation at this shape does."""
        ...

    def host_bytes(self, shape: tuple[int, ...], gpu_count: int) -> int:
        """Return the host memory that all cases at this shape take together, checks included."""
        ...

    def device_bytes(self, shape: tuple[int, ...]) -> int:
        """Return the least GPU memory that the cases at this shape take together."""
        ...

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return the cases for the processor."""
        ...

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return the cases for one GPU."""
        ...


def thread_counts(cpu: CpuFacts) -> tuple[int, ...]:
    """Return the thread counts to measure: all that can run at once, and one."""
    return (cpu.threads, 1) if cpu.threads > 1 else (1,)
