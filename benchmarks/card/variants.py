"""Other ways to compute the softmax of long rows, timed beside the launch that gpucheck chooses.

softmax_variants.cu has three kernels that wait for a card: blocks that prefetch their next row,
clusters of blocks that hold a row together, and 16-bit rows held as they are stored. One goes to
the package if it is clearly faster on a card, and away if not. docs/measurements/softmax.md says
what is expected of each.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.card.bench import Bench, ready
from benchmarks.card.figures import Figure, compete
from benchmarks.card.softmax import FlatSoftmax, Stock
from gpucheck.bench.case import CaseOrder
from gpucheck.bench.gpu_case import ResidentCase
from gpucheck.bench.kernels.softmax import (
    HELD_NUMBERS,
    MOST_THREADS,
    PACK_BYTES,
    THREADS_PER_SM,
    LibrarySoftmax,
    SoftmaxLaunch,
    SoftmaxRows,
    choose_softmax,
    fills,
)
from gpucheck.bench.numerics import FORMATS
from gpucheck.drivers.gpu import GpuDevice
from gpucheck.report.text import count_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Lengths to try with other launches, the most doubtful choice first; all consist of whole packs.
_VARIED = (32768, 262_144, 131_072, 16384, 65536, 4096)
#: Blocks in a cluster that every whole GPU with clusters can place. A MIG instance may lack that
#: many adjacent free SMs, and then has no figure.
_CLUSTERS = (2, 4, 8)
_FIRST_WITH_CLUSTERS = (9, 0)
#: Packs of 16-bit numbers in a thread's registers.
_RAW_PACKS = 8


class VariantSoftmax(FlatSoftmax):
    """Softmax in a given launch of a kernel of softmax.cu or softmax_variants.cu."""

    def __init__(
        self, order: CaseOrder, gpu: GpuDevice, flat: HostArray, launch: SoftmaxLaunch
    ) -> None:
        super().__init__(order, gpu, flat)
        self.launch = launch

    def source(self) -> str:
        """Return softmax.cu with the other kernels behind it."""
        return super().source() + variants_text()


def variants_text() -> str:
    """Return the CUDA source of the kernels that are compiled behind softmax.cu."""
    return Path(__file__).with_name("softmax_variants.cu").read_text(encoding="utf-8")


def variants(bench: Bench) -> None:
    """Time every way to launch long rows, and the array operations."""
    stocks = {dtype: Stock(bench, dtype, more=1) for dtype in ("bfloat16", "float32")}
    facts = bench.gpu.facts
    for columns in _VARIED:
        for dtype, stock in stocks.items():
            if columns > stock.count:
                continue
            rows, itemsize = stock.row_count(columns), FORMATS[dtype].itemsize
            problem = SoftmaxRows(rows=rows, columns=columns, itemsize=itemsize, aligned=True)
            for label, launch in launches(problem, facts.capability, facts.sm_count).items():
                name, order = f"{dtype} {columns}: {label}", bench.order((rows, columns), dtype)
                measure = partial(one_variant, bench, name, order, stock, launch)
                bench.notes.take(name, "B/s", measure)
                bench.gpu.release()
    naive_contrast(bench)


def one_variant(
    bench: Bench, name: str, order: CaseOrder, stock: Stock, launch: SoftmaxLaunch
) -> Figure:
    """Return the rate of one way to launch."""
    flat = stock.numbers(order.shape[1])
    case = ResidentCase(bench.gpu, VariantSoftmax(order, bench.gpu, flat, launch))
    with ready(case) as checked:
        outcome = compete({"ours": case.run})
    return Figure(
        part="variants",
        name=name,
        unit="B/s",
        ours=outcome.rate(case.work.bytes_moved),
        scatter=outcome.scatter,
        verified=checked.ok,
        details={"kernel": launch.name, "grid": launch.grid, **launch.defines},
    )


def launches(
    problem: SoftmaxRows, capability: tuple[int, int], sm_count: int
) -> dict[str, SoftmaxLaunch]:
    """Return the chosen launch and others for the same rows, which consist of whole packs."""
    chosen = choose_softmax(problem)
    found = {"chosen": chosen}
    if chosen.name == "softmax_long":
        held = {name: chosen.defines[name] for name in ("PACKS", "EXACT")}
        for per_sm in (1, 2, 4):
            grid = min(problem.rows, per_sm * sm_count)
            label = f"{count_of(per_sm, 'block')} per SM, prefetching"
            found[label] = variant("softmax_ahead", grid, chosen.block, held)
    # 64 numbers of 16 bits take as many registers as 32 of float32.
    raw = 32 * -(-problem.packs // (32 * _RAW_PACKS))
    if problem.itemsize == 2 and 64 <= raw <= MOST_THREADS:
        packs = -(-problem.packs // raw)
        defines = {"PACKS": packs, "EXACT": int(fills(problem, raw))}
        found["raw packs"] = variant("softmax_raw", problem.rows, raw, defines)
    most = HELD_NUMBERS * problem.itemsize // PACK_BYTES
    for size in _CLUSTERS if capability >= _FIRST_WITH_CLUSTERS else ():
        block = 32 * -(-problem.packs // (32 * most * size))
        if not 64 <= block <= MOST_THREADS:
            continue
        staying = max(1, min(problem.rows, sm_count * (THREADS_PER_SM // block) // size))
        for label, clusters in (("", problem.rows), (" that stay", staying)):
            packs = -(-problem.packs // (size * block))
            defines = {"PACKS": packs, "CLUSTER": size, "PREFETCH": int(bool(label))}
            found[f"clusters of {size}{label}"] = variant(
                "softmax_cluster", size * clusters, block, defines
            )
    return found


def variant(name: str, grid: int, block: int, defines: dict[str, int]) -> SoftmaxLaunch:
    """Return the launch of a kernel of softmax_variants.cu for whole packs."""
    common = {
        name.upper(): 1,
        "BLOCK": block,
        "BLOCKS_PER_SM": THREADS_PER_SM // block,
        "ALIGNED": 1,
    }
    return SoftmaxLaunch(name=name, grid=grid, block=block, defines=common | defines)


def naive_contrast(bench: Bench) -> None:
    """Measure the library's array operations, for contrast with the fused kernel."""
    edge = int(8192 * math.sqrt(bench.share))

    def contrast() -> Figure:
        case = ResidentCase(bench.gpu, LibrarySoftmax(bench.order((edge, edge)), bench.gpu))
        with ready(case) as checked:
            ours = compete({"ours": case.run}).rate(case.work.bytes_moved)
        return Figure(
            part="variants", name="array operations", unit="B/s", ours=ours, verified=checked.ok
        )

    bench.notes.take("array operations", "B/s", contrast)
