"""Which kernel of softmax.cu fits a row length on a GPU, and with what grid, block and macros.

A row stays in registers, 32 numbers in each thread, as long as a block (or, from compute
capability 9.0 on, a cluster of blocks) can hold it: then it is read once and written once. That
leaves room for 1024 threads on an SM, each with 64 or 128 bytes under way. An SM of an H200 needs
about 36 KiB of them to keep its share of the memory busy (5 TB/s, 1 microsecond, 132 SMs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: softmax.cu's kernels by the number that it knows them by.
_KERNELS = {"softmax_short": 1, "softmax_long": 2, "softmax_cluster": 3, "softmax_online": 4}
#: Bytes that a thread moves at once, and numbers of a row that one holds in its registers.
PACK_BYTES, HELD_NUMBERS = 16, 32
#: Registers of an SM (all architectures from 5.0 to 12.1), and those that a thread may need.
REGISTERS_PER_SM, REGISTERS_PER_THREAD = 65536, 64
#: Threads in a block of softmax_short; the most of any block.
_SHORT_BLOCK, MOST_THREADS = 128, 1024
#: Blocks in a cluster that every whole GPU with clusters can place; a MIG instance or MPS client
#: may not have so many free SMs side by side.
CLUSTERS = (2, 4, 8)
_FIRST_WITH_CLUSTERS = (9, 0)
#: Packs in each lane up to which more rows share a warp.
_SHARING_PACKS = 4
#: Threads that an SM's registers hold, by whether all rows are made of whole packs: others need
#: more registers. Two blocks of softmax_online are as many.
_THREADS_PER_SM = {True: REGISTERS_PER_SM // REGISTERS_PER_THREAD, False: 768}
_MOST_GRID = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxLaunch:
    """One of softmax.cu's kernels, its grid and block, and the macros to compile it with."""

    name: str
    grid: int
    block: int
    defines: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxRows:
    """The rows: how many, of how many numbers, of how many bytes each.

    `aligned` says that all of them, in x and y, begin at multiples of 16 bytes.
    """

    rows: int
    columns: int
    itemsize: int
    aligned: bool

    @property
    def packs(self) -> int:
        """Return how many packs a row touches at most."""
        per_pack = PACK_BYTES // self.itemsize
        skew = 0 if self.aligned else per_pack - 1
        return -(-(self.columns + skew) // per_pack)

    @property
    def whole(self) -> bool:
        """Return whether all rows are made of whole packs."""
        return self.aligned and self.columns * self.itemsize % PACK_BYTES == 0


def choose_softmax(
    problem: SoftmaxRows, capability: tuple[int, int], sm_count: int, *, clusters: bool = True
) -> SoftmaxLaunch:
    """Return the launch for rows on a GPU of this compute capability with so many SMs.

    Without `clusters` rows that no block holds are read twice.
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
    """Give a row to as few lanes as hold it in a few packs each: short rows share a warp."""
    lanes = next((n for n in (4, 8, 16) if problem.packs <= n * _SHARING_PACKS), 32)
    packs = _packs(problem, lanes)
    assert packs <= held
    grid = -(-problem.rows // (_SHORT_BLOCK // lanes))
    return _launch("softmax_short", problem, grid, _SHORT_BLOCK, {"LANES": lanes, "PACKS": packs})


def _long(problem: SoftmaxRows, threads: int, sm_count: int) -> SoftmaxLaunch:
    """Give a row to a block.

    Where only one fits an SM, nothing else covers its pauses between reading and writing: it stays
    for several rows and asks for the next one's data in good time.
    """
    alone = _resident(problem, threads) == 1
    grid = min(problem.rows, sm_count) if alone else problem.rows
    defines = {"PACKS": _packs(problem, threads), "PREFETCH": int(alone)}
    return _launch("softmax_long", problem, grid, threads, defines)


def _cluster(problem: SoftmaxRows, held: int) -> SoftmaxLaunch:
    """Give a row to the fewest blocks of which two fit an SM, or to eight."""
    blocks = {size: _threads(problem.packs, size * held) for size in CLUSTERS}
    sizes = [size for size, block in blocks.items() if _resident(problem, block) > 1]
    size = min(sizes, default=CLUSTERS[-1])
    threads = blocks[size]
    # A cluster for every row: how many fit the GPU at once depends on how its SMs are grouped.
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
    """Return the packs that each of so many threads holds of a row, at least one."""
    return max(1, -(-problem.packs // threads))


def _resident(problem: SoftmaxRows, threads: int) -> int:
    """Return how many blocks of so many threads an SM's registers hold at once, at least one."""
    return max(1, _THREADS_PER_SM[problem.whole] // threads)
