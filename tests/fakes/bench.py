"""Stand-ins for what the benchmark touches: clock, processor, BLAS, cases, and a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpucheck.core.bench.data import HostData
from gpucheck.core.bench.kernel import CacheFit, CaseLabel, CaseOrder, Work
from gpucheck.models.bench import BenchGpu, DtypeSpec, Verified
from gpucheck.models.errors import GpucheckError
from gpucheck.probes.blas import BlasFacts
from gpucheck.probes.cpu import CpuFacts, CpuLoad
from gpucheck.probes.cupy_device import GpuArray, GpuFunction, Span

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

FLOAT32 = DtypeSpec(input="float32", accumulate="float32", output="float32", math_mode="fp32")
RIGHT = Verified(error=1e-7, bound=1e-5, ok=True, reference="scripted")
WRONG = Verified(error=0.5, bound=1e-5, ok=False, reference="scripted")


class FakeClock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_s(self) -> float:
        """Return the scripted time."""
        return self.seconds


@dataclass
class FakeCpu:
    """A processor with scripted facts and an idle or a busy host."""

    cores: int = 2
    memory_available_bytes: int | None = 2**34
    busy_s: Iterator[float] = field(default_factory=lambda: iter(()))

    def facts(self) -> CpuFacts:
        """Return the scripted facts."""
        return CpuFacts(
            model="Fake CPU",
            logical_cores=self.cores,
            usable_cores=self.cores,
            quota_cores=None,
            l2_bytes=2**20,
            last_level_bytes=2**20,
            memory_available_bytes=self.memory_available_bytes,
        )

    def load(self) -> CpuLoad:
        """Return the next scripted reading, an idle one when the script is over."""
        return CpuLoad(load_average_1m=0.0, busy_s=next(self.busy_s, 0.0), steal_s=0.0, own_s=0.0)

    def peak_memory_bytes(self) -> int | None:
        """Return a fixed number."""
        return 2**27


class FakeBlas:
    """A BLAS that notes the limits it was given."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def read(self) -> BlasFacts | None:
        """Return scripted facts."""
        return BlasFacts(name="fakeblas", version="1.0", architecture=None, threads=2)

    def limited(self, threads: int) -> AbstractContextManager[object]:
        """Note the limit."""
        self.limits.append(threads)
        return nullcontext()


def label(device: str = "cpu", variant: str = "scripted") -> CaseLabel:
    """Return a label for a case without a kernel behind it."""
    return CaseLabel(kernel="fake", variant=variant, device=device, shape=(8,), dtype=FLOAT32)


class FakeCase:
    """A case that takes the scripted seconds for one operation, one after the other.

    An exception in the script is raised at its place. `checks` are the answers of `check`; the last
    one is repeated.
    """

    work = Work(flops=100, bytes_moved=100, unit="FLOP/s")
    shortest_span_s = 1e-3
    starved_share = 0.0
    cache_fit: CacheFit | None = None

    def __init__(
        self,
        script: Iterable[float | BaseException],
        clock: FakeClock | None = None,
        *,
        label: CaseLabel | None = None,
        checks: Iterable[Verified | BaseException] = (RIGHT,),
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.label = label or _DEFAULT_LABEL
        self.runs: list[int] = []
        self.events: list[str] = []
        self._script = iter(script)
        self._clock = clock
        self._checks = list(checks)
        self._prepare = prepare

    def prepare(self) -> None:
        """Do what the script says."""
        self.events.append("prepare")
        if self._prepare is not None:
            self._prepare()

    def poison(self) -> None:
        """Note it."""
        self.events.append("poison")

    def run(self, loops: int) -> float:
        """Return the next scripted time, times the loops."""
        self.runs.append(loops)
        self.events.append("run")
        step = next(self._script)
        if isinstance(step, BaseException):
            raise step
        if self._clock is not None:
            self._clock.seconds += step * loops
        return step * loops

    def check(self) -> Verified:
        """Return the next scripted answer."""
        self.events.append("check")
        answer = self._checks.pop(0) if len(self._checks) > 1 else self._checks[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def release(self) -> None:
        """Note it."""
        self.events.append("release")


_DEFAULT_LABEL = label()


class FakeArray:
    """GPU memory that is host memory."""

    def __init__(self, values: HostArray) -> None:
        self.values = values

    @property
    def nbytes(self) -> int:
        """Return the size in bytes."""
        return int(self.values.nbytes)


class FakeGpu:
    """A GPU that computes with NumPy and takes the scripted seconds for each operation.

    `failures` maps a method's name to the errors it raises, one at each call, until none is left.
    """

    cupy_version = "0.0-fake"

    def __init__(
        self,
        clock: FakeClock,
        *,
        cuda_index: int = 0,
        operation_s: float = 1e-4,
        l2_bytes: int = 2**20,
        memory_free_bytes: int = 2**33,
        float32_math: str = "fp32",
        failures: dict[str, list[GpucheckError]] | None = None,
        wrong_by: float = 0.0,
    ) -> None:
        self._clock = clock
        self._operation_s = operation_s
        self._failures = failures or {}
        self._wrong_by = wrong_by
        self._pending = 0
        self.launches: list[tuple[int, int]] = []
        self.released = 0
        self.facts = BenchGpu(
            cuda_index=cuda_index,
            uuid=f"GPU-{cuda_index:08d}",
            name="Fake GPU",
            compute_capability="9.0",
            sm_count=132,
            l2_bytes=l2_bytes,
            memory_total_bytes=2**34,
            memory_free_bytes=memory_free_bytes,
            float32_math=float32_math,
        )

    def allocate(self, shape: tuple[int, ...]) -> GpuArray:
        """Allocate host memory."""
        self._may_fail("allocate")
        return FakeArray(np.zeros(shape, dtype=np.float32))

    def upload(self, host: HostArray) -> GpuArray:
        """Copy."""
        self._may_fail("upload")
        return FakeArray(host.copy())

    def clone(self, array: GpuArray) -> GpuArray:
        """Copy."""
        return FakeArray(_values(array).copy())

    def download(self, array: GpuArray) -> HostArray:
        """Copy."""
        self._may_fail("download")
        return _values(array).copy()

    def poison(self, array: GpuArray) -> None:
        """Fill with NaN."""
        _values(array).fill(np.nan)

    def matmul(self, left: GpuArray, right: GpuArray, out: GpuArray) -> None:
        """Multiply with NumPy."""
        self._may_fail("matmul")
        np.matmul(_values(left), _values(right), out=_values(out))
        _values(out).flat[0] += self._wrong_by
        self._pending += 1

    def compile(self, source: str, name: str) -> GpuFunction:
        """Return a softmax in NumPy for any kernel of softmax.cu that the source defines."""
        self._may_fail("compile")
        assert name.rsplit("_", 1)[0] in source

        def launch(grid: int, block: int, args: tuple[object, ...]) -> None:
            source_array, out, _, _, factor = args
            self.launches.append((grid, block))
            scaled = _values(source_array).astype(np.float64) * (float(str(factor)) * np.log(2))
            raised = np.exp(scaled - scaled.max(axis=1, keepdims=True))
            _values(out)[...] = raised / raised.sum(axis=1, keepdims=True) + self._wrong_by
            self._pending += 1

        return launch

    def span(self, enqueue: Callable[[], None]) -> Span:
        """Run it and return the scripted time of what was enqueued."""
        self._may_fail("span")
        self._pending = 0
        enqueue()
        self.synchronize_cost(self._pending)
        return Span(seconds=self._pending * self._operation_s, starved=False)

    def synchronize_cost(self, operations: int) -> None:
        """Let the clock run on by so many operations."""
        self._clock.seconds += operations * self._operation_s

    def pinned(self, shape: tuple[int, ...]) -> HostArray:
        """Allocate host memory."""
        return np.zeros(shape, dtype=np.float32)

    def send(self, host: HostArray, array: GpuArray) -> None:
        """Copy, in the time of one operation."""
        _values(array)[...] = host
        self.synchronize_cost(1)

    def fetch(self, array: GpuArray, host: HostArray) -> None:
        """Copy, in the time of two operations: the kernel before it is waited for as well."""
        host[...] = _values(array)
        self.synchronize_cost(2)

    def synchronize(self) -> None:
        """Do nothing: everything has run."""

    def release(self) -> None:
        """Count it."""
        self.released += 1

    def _may_fail(self, method: str) -> None:
        waiting = self._failures.get(method)
        if waiting:
            raise waiting.pop(0)


def _values(array: object) -> HostArray:
    assert isinstance(array, FakeArray)
    return array.values


def order(
    shape: tuple[int, ...], *, clock: FakeClock | None = None, temperature: float = 0.7
) -> CaseOrder:
    """Return an order for a kernel's cases on the fake processor."""
    return CaseOrder(
        shape=shape,
        temperature=temperature,
        data=HostData(0),
        cpu=FakeCpu().facts(),
        clock=clock or FakeClock(),
        blas=FakeBlas(),
    )
