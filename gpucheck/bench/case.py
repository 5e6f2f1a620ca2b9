"""Cases and kernels as the engine sees them, and the base classes of processor cases."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.bench.model import (
    Conclusion,
    DtypeSpec,
    Fact,
    FrameworkUse,
    Measurement,
    Scope,
    Verified,
)
from gpucheck.bench.numerics import HostData
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.drivers.gpu import BenchGpu, GpuDevice
from gpucheck.drivers.host.blas import Blas
from gpucheck.drivers.host.clock import Clock, ThreadClock, thread_times
from gpucheck.drivers.host.cpu import CpuFacts, cpu_shares, keep_on, running_on
from gpucheck.report.errors import system_refusal

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpucheck.bench.frameworks import Framework

    HostArray = NDArray[Any]


#: Shortest span on the host's clock. Reading it costs well under a microsecond, 0.1 % of this.
HOST_SPAN_S = 1e-3
#: Shortest span between CUDA events, which resolve about half a microsecond, on some boards one:
#: 0.2 % of this. Longer spans of a short kernel would exceed the driver's queue (about a thousand).
EVENT_SPAN_S = 500e-6
#: Work per thread below which starting a thread costs more than it saves.
_SMALLEST_PART_BYTES = 256 * 1024
#: Handing work to a thread and waiting for it takes 5 to 10 microseconds per thread, one after the
#: other. With this much time per thread, that is at most 2 %.
_SPAN_FOR_A_THREAD_S, _LONGEST_SPAN_S = 500e-6, 50e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of one operation: floating-point operations, and the fewest bytes it must move.

    `items` counts what `unit` names if that is neither, for example images.
    """

    flops: int
    bytes_moved: int
    unit: str
    items: int = 1

    @property
    def amount(self) -> int:
        """Return the amount that the throughput counts, in `unit` times seconds."""
        return {"B/s": self.bytes_moved, "FLOP/s": self.flops}.get(self.unit, self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLabel:
    """Identity of a case's row; the fields are the row's.

    `framework` is None for gpucheck's own code.
    """

    kernel: str
    variant: str
    device: str
    shape: tuple[int, ...]
    dtype: DtypeSpec
    gpu_uuid: str | None = None
    scope: Scope = Scope.RESIDENT
    threads: int | None = None
    parameters: dict[str, Fact] = field(default_factory=dict)
    framework: FrameworkUse | None = None

    @property
    def id(self) -> str:
        """Return the row's id without the device, stable across versions of gpucheck.

        It holds kernel, variant, framework, form, number format, shape, scope. Framework and
        form are hyphens in gpucheck's own rows.
        """
        shape = "x".join(str(edge) for edge in self.shape)
        made_by = ("-", "-")
        if self.framework is not None:
            made_by = (self.framework.name, self.framework.form)
        return "/".join((self.kernel, self.variant, *made_by, self.dtype.format, shape, self.scope))

    @property
    def text(self) -> str:
        """Return the row in words that fit no other row, for progress, notes and errors."""
        size = "x".join(str(edge) for edge in self.shape)
        parts = [self.kernel, self.dtype.format, size]
        if self.framework is not None:
            parts.append(self.framework.text)
        if self.framework is None or self.variant != self.kernel:
            parts.append(self.variant)
        moved = " with transfers" if self.scope is Scope.END_TO_END else ""
        return " ".join(part for part in parts if part) + f"{moved} on {self.device}"


class Case(ABC):
    """One kernel variant on one device at one shape, ready to measure.

    The engine calls `prepare`, `poison`, `run(1)`, `check`, warms up, then calls `poison` again,
    `run(loops)` many times and `check`, and `release` in every case. A case never warms up,
    averages or prints. `label` is the identity of its row, and `work` is what one operation does.
    `faster_version` tells how to get a faster one, where this run has to do without it.
    """

    label: CaseLabel
    work: Work
    faster_version: str | None = None

    @property
    def compiles(self) -> bool:
        """Return whether the first run compiles, for longer than a budget allows."""
        return False

    @property
    def shortest_span_s(self) -> float:
        """Return the shortest span that this case's clock measures accurately."""
        return HOST_SPAN_S

    @property
    def loop_step(self) -> int:
        """Return the number that a sample's operations should be a multiple of; 1 for any."""
        return 1

    @property
    def walked_and_cache_bytes(self) -> tuple[int, int] | None:
        """Return the memory that a run walks through and the device's last cache, if it matters."""
        return None

    @property
    def least_s(self) -> float | None:
        """Return the seconds that the device needs for an operation at least; None if unknown."""
        return None

    @property
    def starved_share(self) -> float:
        """Return the share of the runs in which the GPU may have waited for the host."""
        return 0.0

    @property
    def sm_clock_mhz(self) -> float | None:
        """Return the real SM clock during the last run; None if there is none."""
        return None

    @property
    def cpu_s(self) -> float | None:
        """Return the CPU time of the last run's longest thread; None where it is not read."""
        return None

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return further results of the last check, with the unit in the key."""
        return {}

    def trial_s(self) -> float | None:
        """Return an operation's seconds as smaller ones show them; None if its work tells them."""
        return None

    @abstractmethod
    def prepare(self) -> None:
        """Allocate inputs and outputs and fill the inputs."""

    @abstractmethod
    def poison(self) -> None:
        """Fill the outputs with NaN, so that an old result cannot pass."""

    @abstractmethod
    def run(self, loops: int) -> float:
        """Run the operation `loops` times and return the elapsed seconds for all of them."""

    @abstractmethod
    def check(self) -> Verified:
        """Compare the output of the last run with float64."""

    @abstractmethod
    def release(self) -> None:
        """Free the memory; may be called even if `prepare` failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOrder:
    """Everything that a kernel needs to make its cases. `gpus` are all that take part.

    `slowdown` is how many times as long a thread takes beside other programs.
    A framework's cases have its `framework`, its `form`, and its `gpu` (None: the processor).
    """

    request: BenchRequest
    shape: tuple[int, ...]
    dtype: str
    data: HostData
    cpu: CpuFacts
    clock: Clock
    blas: Blas
    gpus: Sequence[GpuDevice] = ()
    slowdown: float = 1.0
    thread_times: ThreadClock = thread_times
    framework: Framework | None = None
    form: str = ""
    gpu: BenchGpu | None = None


class Kernel(ABC):
    """One registered kernel: its shapes, its work, its memory, and its cases per device.

    Most kernels take float32 only, and draw no conclusions. `id` is the name on the command line
    and of the file. `dtypes` holds those of each mode; `full` has all that the kernel supports.
    `sizes` holds the problem's size for each mode. `gpus_needed` is 0 if the processor can run it.
    """

    id: str
    dtypes: Mapping[BenchMode, Sequence[str]] = MappingProxyType(
        dict.fromkeys(BenchMode, ("float32",))
    )
    sizes: Mapping[BenchMode, int]
    gpus_needed: int = 0
    #: Memory limits it on a GPU, so fast memory needs a larger size.
    limited_by_memory = False
    #: It only moves memory: its best row is the device's limit for others.
    streams = False
    #: It measures a link between memories, not the memory itself.
    measures_link = False
    #: It uses the BLAS on the processor.
    uses_blas = False
    #: Its rows with transfers move exactly the bytes that they count.
    transfers_all = False
    #: The host's part is in its time on a GPU. Of the others a GPU times by itself what is queued,
    #: and a row of which the host was late to queue something has the doubt `starved`.
    runs_with_host = False

    def validate(self, request: BenchRequest) -> None:  # noqa: B027 - most accept every request
        """Raise WrongUseError for a request that this kernel cannot answer."""

    def cpu_refusal(self, dtype: str) -> str | None:
        """Return why the processor is not measured in this dtype, or None."""
        return None

    def gpu_refusal(self, dtype: str, gpu: BenchGpu) -> str | None:
        """Return why this GPU is not measured in this dtype, or None."""
        return None

    def size_refusal(self, dtype: str, size: int) -> str | None:
        """Return why no GPU is measured at this size in this dtype, or None."""
        return None

    def shape(self, size: int) -> tuple[int, ...]:
        """Return the shape for a problem of this size: (rows, columns) of a square."""
        return (size, size)

    @abstractmethod
    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return the work of one operation at this shape."""

    @abstractmethod
    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the host memory of all cases at this shape together, checks included."""

    @abstractmethod
    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the least GPU memory of all cases at this shape together."""

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return the cases for the processor."""
        return ()

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return the cases for one GPU."""
        return ()

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        """Return the conclusions from the good rows of this kernel."""
        return ()


def least_seconds(cpu: CpuFacts, label: CaseLabel, work: Work) -> float | None:
    """Return the seconds that this processor needs for the work at least; None if unknown."""
    most = most_flops_per_s(cpu, label.dtype)
    return None if most is None else work.flops / most


def thread_counts(cpu: CpuFacts) -> tuple[int, ...]:
    """Return the thread counts to measure: all that can run at once, and one."""
    return (cpu.threads, 1) if cpu.threads > 1 else (1,)


class CpuCase(Case):
    """Case on the processor; a kernel adds its output, `step` (or a team) and `check`.

    `walks_memory`: memory limits the speed, so it matters whether the data fits into the cache.
    """

    walks_memory = True
    cpu_s: float | None = None
    _out: HostArray

    def __init__(self, order: CaseOrder, label: CaseLabel, work: Work) -> None:
        self._order = order
        self._threads = label.threads or 1
        self.label = label
        self.work = work

    @property
    def walked_and_cache_bytes(self) -> tuple[int, int] | None:
        """Return the bytes of an operation and of the last-level cache, if its size is known."""
        cache_bytes = self._order.cpu.last_level_bytes
        if cache_bytes is None or not self.walks_memory:
            return None
        return self.work.bytes_moved, cache_bytes

    @property
    def least_s(self) -> float | None:
        """Return the seconds that all cores together need for the operation at least."""
        return least_seconds(self._order.cpu, self.label, self.work)

    def poison(self) -> None:
        """Fill the output with NaN, so that an old result cannot pass."""
        self._out.fill(math.nan)

    @abstractmethod
    def step(self) -> None:
        """Do the operation once."""

    def repeat(self, loops: int) -> None:
        """Do the operation `loops` times."""
        step = self.step
        for _ in range(loops):
            step()

    def run(self, loops: int) -> float:
        """Do the operation `loops` times with this case's threads; return the elapsed seconds.

        The CPU times are read outside the span that is timed. A thread that is new began at 0. The
        calling thread's alone tells nothing where it may wait for helpers of the BLAS.
        """
        clock, cpu_times, several = self._order.clock, self._order.thread_times, self._threads > 1
        with self._order.blas.limited(self._threads):
            before = cpu_times(several)
            start_s = clock()
            self.repeat(loops)
            elapsed_s = clock() - start_s
            after = cpu_times(several)
        spent = [seconds - before.get(thread, 0.0) for thread, seconds in after.items()]
        known = several or self._order.blas.keeps_to_one
        self.cpu_s = max(spent, default=None) if known else None
        return elapsed_s


class Team:
    """Threads that each work on their own rows; NumPy releases the interpreter's lock.

    `parts` are the arguments of each thread's call; the first part is the calling thread's. Each
    thread repeats on its own, since a meeting after each operation could take longer than a short
    operation. Each thread has its own CPUs: otherwise two threads that wake for a few milliseconds
    at a time may share a CPU for seconds while another idles (seen on Linux 6.18).
    """

    def __init__(self, work: Callable[..., None], parts: Sequence[tuple[object, ...]]) -> None:
        self._work = work
        self._own, *self._others = parts
        self._cpus, *others = cpu_shares(len(parts))
        self._pool = None
        if self._others:
            self._pool = ThreadPoolExecutor(
                max_workers=len(others), initializer=_take_cpus, initargs=(others,)
            )

    def run(self, loops: int = 1) -> None:
        """Work on all parts `loops` times and return when the last one is done."""
        if self._pool is None:
            self._repeat(self._own, loops)
            return
        with running_on(self._cpus):
            try:
                others = [self._pool.submit(self._repeat, part, loops) for part in self._others]
            except RuntimeError as error:
                raise system_refusal(error) or error from None
            self._repeat(self._own, loops)
            for other in others:
                other.result()

    def _repeat(self, part: tuple[object, ...], loops: int) -> None:
        work = self._work
        for _ in range(loops):
            work(*part)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)


def _take_cpus(shares: list[frozenset[int]]) -> None:
    """Pin a new thread to one of the remaining CPU shares."""
    keep_on(shares.pop())


class TeamCase(CpuCase):
    """Case whose rows a team of threads shares; `prepare` calls `gather` with its parts."""

    _team: Team | None = None

    @property
    def shortest_span_s(self) -> float:
        """Return a span that handing the work to the threads adds little to."""
        return max(HOST_SPAN_S, min(_SPAN_FOR_A_THREAD_S * self._threads, _LONGEST_SPAN_S))

    def gather(self, work: Callable[..., None], parts: Sequence[tuple[object, ...]]) -> None:
        """Start the threads."""
        self._team = Team(work, parts)

    def step(self) -> None:
        """Do the operation once, with a meeting of the threads before and after it."""
        assert self._team is not None
        self._team.run()

    def repeat(self, loops: int) -> None:
        """Do the operation `loops` times; return when the last thread is done."""
        assert self._team is not None
        self._team.run(loops)

    def release(self) -> None:
        """End the threads; a kernel drops its arrays too."""
        if self._team is not None:
            self._team.close()
            self._team = None


def row_parts(rows: int, columns: int, threads: int) -> list[slice]:
    """Return the rows of each thread: as equal as possible, none too small for a thread."""
    worth = max(1, rows * columns * 4 // _SMALLEST_PART_BYTES)
    count = max(1, min(threads, rows, worth))
    edges = [rows * number // count for number in range(count + 1)]
    return [slice(low, high) for low, high in pairwise(edges)]


def cpu_label(
    order: CaseOrder, kernel: str, variant: str, threads: int, dtype: DtypeSpec
) -> CaseLabel:
    """Return the label of a row on the processor; one thread of several is in the variant."""
    one_of_several = threads == 1 < order.cpu.threads
    return CaseLabel(
        kernel=kernel,
        variant=f"{variant}-1-thread" if one_of_several else variant,
        device="cpu",
        shape=order.shape,
        dtype=dtype,
        threads=threads,
    )


# Ceiling of a processor's arithmetic: a row that is faster did not compute what it names.
# Operations per second = cores x clock x operations per cycle of the instruction sets in
# /proc/cpuinfo. It is generous, and so nothing to be compared with: every hardware thread counts as
# a core with two fused multiply-add units, at a clock that no processor reaches. (The kernel often
# does not know the highest clock, in a virtual machine never.)

#: Clock above that of every processor (6.2 GHz in 2026).
_HIGHEST_HZ = 6.5e9
#: float32 operations per cycle of a core by instruction set, the newest first: two units of 16, 8
#: and 8 numbers, the last one without fused multiply-add; SSE has one product and one sum of 4.
_PER_CYCLE = MappingProxyType({"avx512f": 64, "avx2": 32, "avx": 16, "sse2": 8})
#: The same in these formats' arithmetic, as a share of float32's. Others may run on other units.
_SHARES = MappingProxyType({"fp32": 1.0, "fp64": 0.5})


def most_flops_per_s(cpu: CpuFacts, dtype: DtypeSpec) -> float | None:
    """Return the ceiling of all usable cores together; None for an unknown processor."""
    sets, share = cpu.instruction_sets, _SHARES.get(dtype.math_mode)
    per_cycle = next((rate for name, rate in _PER_CYCLE.items() if name in sets), None)
    if per_cycle is None or share is None:
        return None
    return cpu.usable_cores * _HIGHEST_HZ * per_cycle * share
