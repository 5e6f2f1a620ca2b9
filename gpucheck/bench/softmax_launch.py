"""Launch choice for softmax.cu: kernel, grid, block and macros for a row length on a GPU.

A row stays in registers, 32 numbers in each thread, if a block can hold it (or a cluster of blocks,
from compute capability 9.0 on). It is then read once and written once. That leaves room for 1024
threads on an SM, each with 64 or 128 bytes in flight. An SM of an H200 needs about 36 KiB in flight
to keep its share of the memory busy (5 TB/s, 1 microsecond, 132 SMs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Kernels of softmax.cu, with its number for each.
_KERNELS = {"softmax_short": 1, "softmax_long": 2, "softmax_cluster": 3, "softmax_online": 4}
#: Bytes that a thread moves at once, and numbers of a row that it holds in registers.
PACK_BYTES, HELD_NUMBERS = 16, 32
#: Registers of an SM (architectures 5.0 to 12.1), and the most that a thread may need.
REGISTERS_PER_SM, REGISTERS_PER_THREAD = 65536, 64
#: Threads in a block of softmax_short; the most of any block.
_SHORT_BLOCK, MOST_THREADS = 128, 1024
#: Blocks in a cluster that every whole GPU with clusters can place. A MIG instance or MPS client
#: may lack that many adjacent free SMs.
CLUSTERS = (2, 4, 8)
_FIRST_WITH_CLUSTERS = (9, 0)
#: Packs in each lane up to which more rows share a warp.
_SHARING_PACKS = 4
#: Threads that an SM's registers hold, by whether all rows consist of whole packs; others need
#: more registers. Two blocks of softmax_online have the same number.
_THREADS_PER_SM = {True: REGISTERS_PER_SM // REGISTERS_PER_THREAD, False: 768}
_MOST_GRID = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxLaunch:
    """Kernel of softmax.cu with its grid, block and macros."""

    name: str
    grid: int
    block: int
    defines: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxRows:
    """Rows to compute: their number, length and bytes in a number.

    `aligned` means that all rows, in x and y, begin at multiples of 16 bytes.
    """

    rows: int
    columns: int
    itemsize: int
    aligned: bool

    @property
    def packs(self) -> int:
        """Return the most packs that a row touches."""
        per_pack = PACK_BYTES // self.itemsize
        skew = 0 if self.aligned else per_pack - 1
        return -(-(self.columns + skew) // per_pack)

    @property
    def whole(self) -> bool:
        """Return whether all rows consist of whole packs."""
        return self.aligned and self.columns * self.itemsize % PACK_BYTES == 0


def choose_softmax(
    problem: SoftmaxRows, capability: tuple[int, int], sm_count: int, *, clusters: bool = True
) -> SoftmaxLaunch:
    """Return the launch for rows on a GPU of this compute capability and number of SMs.

    Without `clusters`, rows that no block holds are read twice.
    """
    held = HELD_NUMBERS * problem.itemsize // PACK_BYTES
    if problem.packs <= 32 * held:
        return _short(problem, held)
    threads = _threads(problem.packs, held)
    if threads <= MOST_THREADS:
        return _long(problem, threads, sm_count)
    clusters = clusters and capability >= _FIRST_WITH_CLUSTERS
    if clusters and _threads(problem.packs, 8 * held) <= MOST_THREADS:
        return _cluster(problem, held)
    block = _THREADS_PER_SM[problem.whole] // 2
    grid = min(problem.rows, _resident(problem, block) * sm_count)
    return _launch("softmax_online", problem, grid, block, {})


def _short(problem: SoftmaxRows, held: int) -> SoftmaxLaunch:
    """Give a row the fewest lanes that hold it in a few packs each: short rows share a warp."""
    lanes = next((n for n in (4, 8, 16) if problem.packs <= n * _SHARING_PACKS), 32)
    packs = _packs(problem, lanes)
    assert packs <= held
    grid = -(-problem.rows // (_SHORT_BLOCK // lanes))
    return _launch("softmax_short", problem, grid, _SHORT_BLOCK, {"LANES": lanes, "PACKS": packs})


def _long(problem: SoftmaxRows, threads: int, sm_count: int) -> SoftmaxLaunch:
    """Give a row to a block.

    If only one block fits an SM, nothing else covers its pauses between reading and writing. It
    then serves several rows, and prefetches the next row's data.
    """
    alone = _resident(problem, threads) == 1
    grid = min(problem.rows, sm_count) if alone else problem.rows
    defines = {"PACKS": _packs(problem, threads), "PREFETCH": int(alone)}
    return _launch("softmax_long", problem, grid, threads, defines)


def _cluster(problem: SoftmaxRows, held: int) -> SoftmaxLaunch:
    """Give a row to the fewest blocks with two to an SM, or to eight blocks."""
    blocks = {size: _threads(problem.packs, size * held) for size in CLUSTERS}
    sizes = [size for size, block in blocks.items() if _resident(problem, block) > 1]
    size = min(sizes, default=CLUSTERS[-1])
    threads = blocks[size]
    # A cluster for every row: the number that fits at once depends on the grouping of the SMs.
    grid = size * max(1, min(problem.rows, _MOST_GRID // size))
    defines = {"PACKS": _packs(problem, size * threads), "CLUSTER": size}
    return _launch("softmax_cluster", problem, grid, threads, defines)


def _launch(
    name: str, problem: SoftmaxRows, grid: int, block: int, defines: Mapping[str, int]
) -> SoftmaxLaunch:
    common = {
        "KERNEL": _KERNELS[name],
        "BLOCK": block,
        "BLOCKS_PER_SM": min(16, _resident(problem, block)),
        "ALIGNED": int(problem.whole),
    }
    return SoftmaxLaunch(
        name=name,
        grid=max(1, min(grid, _MOST_GRID)),
        block=block,
        defines=common | dict(defines),
    )


def _threads(packs: int, held: int) -> int:
    """Return the threads that hold so many packs, `held` each, in whole warps."""
    return 32 * -(-packs // (32 * held))


def _packs(problem: SoftmaxRows, threads: int) -> int:
    """Return the packs of a row that each thread holds, at least one."""
    return max(1, -(-problem.packs // threads))


def _resident(problem: SoftmaxRows, threads: int) -> int:
    """Return how many blocks an SM's registers hold at once, at least one."""
    return max(1, _THREADS_PER_SM[problem.whole] // threads)
