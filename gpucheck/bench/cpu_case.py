"""Base classes of processor cases: host clock, threads over rows, cache size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from gpucheck.bench.kernel import HOST_SPAN_S, CacheFit, CaseLabel, CaseOrder, Work
from gpucheck.bench.model import DtypeSpec, Fact
from gpucheck.drivers.host.cpu import cpu_shares, keep_on, running_on

#: Work per thread below which starting a thread costs more than it saves.
_SMALLEST_PART_BYTES = 256 * 1024
#: Handing work to a thread and waiting for it takes 5 to 10 microseconds per thread, one after the
#: other. With this much time per thread, that is at most 2 %.
_SPAN_FOR_A_THREAD_S, _LONGEST_SPAN_S = 500e-6, 50e-3


class CpuCase:
    """Case on the processor; a kernel adds `step` (or a team), `poison` and `check`.

    `walks_memory`: memory limits the speed, so it matters whether the data fits into the cache.
    """

    shortest_span_s = HOST_SPAN_S
    starved_share = 0.0
    sm_clock_mhz: float | None = None
    loop_step = 1
    walks_memory = True

    def __init__(self, order: CaseOrder, label: CaseLabel, work: Work) -> None:
        self._order = order
        self._threads = label.threads or 1
        self.label = label
        self.work = work

    @property
    def cache_fit(self) -> CacheFit | None:
        """Return the walked memory and the last-level cache, if its size is known."""
        cache_bytes = self._order.cpu.last_level_bytes
        if cache_bytes is None or not self.walks_memory:
            return None
        return CacheFit(
            walked_bytes=self.work.bytes_moved, cache_bytes=cache_bytes, cache="last-level cache"
        )

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return no further facts."""
        return {}

    def step(self) -> None:
        """Do the operation once."""
        raise NotImplementedError

    def run(self, loops: int) -> float:
        """Do the operation `loops` times with this case's threads; return the elapsed seconds."""
        now_s, step = self._order.clock.now_s, self.step
        with self._order.blas.limited(self._threads):
            start_s = now_s()
            for _ in range(loops):
                step()
            return now_s() - start_s


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
            others = [self._pool.submit(self._repeat, part, loops) for part in self._others]
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

    def __init__(self, order: CaseOrder, label: CaseLabel, work: Work) -> None:
        super().__init__(order, label, work)
        span_s = min(_SPAN_FOR_A_THREAD_S * self._threads, _LONGEST_SPAN_S)
        self.shortest_span_s = max(HOST_SPAN_S, span_s)
        self._team: Team | None = None

    def gather(self, work: Callable[..., None], parts: Sequence[tuple[object, ...]]) -> None:
        """Start the threads."""
        self._team = Team(work, parts)

    def step(self) -> None:
        """Do the operation once, with a meeting of the threads before and after it."""
        assert self._team is not None
        self._team.run()

    def run(self, loops: int) -> float:
        """Do the operation `loops` times; return the seconds until the last thread was done."""
        assert self._team is not None
        now_s = self._order.clock.now_s
        with self._order.blas.limited(self._threads):
            start_s = now_s()
            self._team.run(loops)
            return now_s() - start_s

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
