"""Softmax at every row length beside a copy and torch, and the other ways to launch it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.card.bench import Bench, ready, rivals_of
from benchmarks.card.figures import Bar, Figure, Timed, compete
from benchmarks.card.rivals import Torch
from gpucheck.core.bench.data import HostData
from gpucheck.core.bench.formats import FORMATS, encode
from gpucheck.core.bench.gpu_case import ResidentCase
from gpucheck.core.bench.kernel import CaseOrder
from gpucheck.core.bench.kernels.copy import DriverCopy, KernelCopy
from gpucheck.core.bench.kernels.softmax import (
    GpuSoftmax,
    LibrarySoftmax,
    launch_for,
    verify_softmax,
)
from gpucheck.core.bench.softmax_launch import CLUSTERS, SoftmaxLaunch
from gpucheck.models.bench import Verified
from gpucheck.probes.gpu import GpuDevice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Row lengths: those with a bar first, then those that share a warp, that no SM holds, that lie
#: anywhere.
_BARRED = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072, 262_144)
_FURTHER = (64, 256, 4097, 524_288)
_SOFTMAX_ROUNDS = (
    ("float32", _BARRED),
    ("bfloat16", _BARRED),
    ("float32", _FURTHER),
    ("bfloat16", _FURTHER),
    ("float16", (4096, 32768)),
)
#: Seconds that must be left for a compilation by torch to be begun.
_COMPILING_S = 40


class FlatSoftmax(GpuSoftmax):
    """The fused softmax on rows cut from one array, which is drawn once for all row lengths."""

    def __init__(
        self,
        order: CaseOrder,
        gpu: GpuDevice,
        flat: HostArray,
        launch: SoftmaxLaunch | None = None,
    ) -> None:
        super().__init__(order, gpu, launch)
        self._flat = flat

    def inputs(self) -> tuple[HostArray, ...]:
        """Return the rows."""
        rows, columns = self._order.shape
        return (self._flat[: rows * columns].reshape(rows, columns),)

    def verify(self, out: HostArray) -> Verified:
        """Compare with float64."""
        return verify_softmax(self.inputs()[0], out, 1.0, self._order.dtype)


def softmax(bench: Bench) -> None:
    """Compare softmax at all lengths with a copy of the same bytes and with torch."""
    for dtype, lengths in _SOFTMAX_ROUNDS:
        size = FORMATS[dtype].itemsize
        count = bench.bytes_of_a_side() // size
        flat = encode(HostData(0).normal("rows", (count,)), FORMATS[dtype])
        limit = copy_limit(bench, count * size)
        for columns in (length for length in lengths if length <= count):
            shape = (count // columns, columns)
            name = f"{dtype} {columns}"
            rows = Rows(name=name, shape=shape, dtype=dtype, flat=flat)
            bench.notes.take(name, "B/s", partial(one_softmax, bench, rows, limit))
            bench.release()


def copy_limit(bench: Bench, nbytes: int) -> float | None:
    """Return the rate of the best copy of so many bytes, measured here and now."""
    shape = (max(nbytes // 4096, 1), 1024)
    try:
        cases = [
            ResidentCase(bench.gpu, make(bench.order(shape), bench.gpu))
            for make in (DriverCopy, KernelCopy)
        ]
        with ready(cases[0]), ready(cases[1]):
            taken = compete({"driver": cases[0].run, "own": cases[1].run})
    except Exception:  # the rows then have no limit to be held against
        return None
    return 8 * math.prod(shape) / min(taken.seconds.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of one figure: cut from `flat`, which all of one format share."""

    name: str
    shape: tuple[int, int]
    dtype: str
    flat: HostArray


def one_softmax(bench: Bench, given: Rows, limit: float | None) -> Figure:
    """Return the rate at one row length, beside torch's eager and compiled ones."""
    (rows, columns), dtype = given.shape, given.dtype
    operation = FlatSoftmax(bench.order(given.shape, dtype), bench.gpu, given.flat)
    makers: dict[str, Callable[[Torch], Timed]] = {
        "torch": lambda torch: torch.softmax(rows, columns, dtype)
    }
    if bench.notes.left_s > _COMPILING_S:
        makers["torch.compile"] = lambda torch: torch.compiled_softmax(rows, columns, dtype)
    case = ResidentCase(bench.gpu, operation)
    with ready(case) as checked:
        sides = {"ours": case.run, **rivals_of(bench, makers)}
        outcome = compete(sides)
    rivals = outcome.rival_rates(case.work.bytes_moved)
    least = 0.92 if 1024 <= columns <= 32768 else 0.80 if columns <= 262_144 else 0.0
    aligned = columns * FORMATS[dtype].itemsize % 16 == 0
    limited = [Bar(what="copy", least=least)] if aligned and columns >= 1024 and least else []
    launch = launch_for(bench.order(given.shape, dtype), bench.gpu)
    return Figure(
        part="softmax",
        name=given.name,
        unit="B/s",
        ours=outcome.rate(case.work.bytes_moved),
        rivals=rivals,
        failures=outcome.failures,
        limit=limit,
        limit_name="copy",
        bars=[*limited, *(Bar(what=rival, least=1.0) for rival in rivals)],
        verified=checked.ok,
        details={"kernel": launch.name, "error": checked.error, "rows": rows, **launch.defines},
    )


def variants(bench: Bench) -> None:
    """Try the other ways to launch long rows: which one the choice should be is decided here."""
    for dtype in ("float32", "bfloat16"):
        size = FORMATS[dtype].itemsize
        count = bench.bytes_of_a_side() // size
        flat = encode(HostData(0).normal("rows", (count,)), FORMATS[dtype])
        for columns in (32768, 16384, 65536, 4096):
            shape = (count // columns, columns)
            if not shape[0]:
                continue
            chosen = launch_for(bench.order(shape, dtype), bench.gpu)
            for label, launch in other_launches(chosen, shape, bench.gpu, size).items():
                name = f"{dtype} {columns}: {label}"
                rows = Rows(name=name, shape=shape, dtype=dtype, flat=flat)
                bench.notes.take(name, "B/s", partial(one_variant, bench, rows, launch))
                bench.gpu.release()
    naive_contrast(bench)


def one_variant(bench: Bench, given: Rows, launch: SoftmaxLaunch) -> Figure:
    """Return the rate of one way to launch."""
    order = bench.order(given.shape, given.dtype)
    case = ResidentCase(bench.gpu, FlatSoftmax(order, bench.gpu, given.flat, launch))
    with ready(case) as checked:
        ours = compete({"ours": case.run}).rate(case.work.bytes_moved)
    return Figure(
        part="variants",
        name=given.name,
        unit="B/s",
        ours=ours,
        verified=checked.ok,
        details={"kernel": launch.name, "grid": launch.grid, **launch.defines},
    )


def other_launches(
    chosen: SoftmaxLaunch, shape: tuple[int, int], gpu: GpuDevice, itemsize: int
) -> dict[str, SoftmaxLaunch]:
    """Return the chosen launch and the other ones that hold the same rows."""
    rows, packs = shape[0], -(-shape[1] * itemsize // 16)
    held, sms = 2 * itemsize, gpu.facts.sm_count
    found = {"chosen": chosen}
    if chosen.name == "softmax_long":
        ahead = {**chosen.defines, "PREFETCH": 1}
        plain = {**chosen.defines, "PREFETCH": 0}
        found["a block a row"] = replace(chosen, grid=rows, defines=plain)
        for per_sm in (1, 2, 4):
            label = f"{per_sm} blocks per SM, asking ahead"
            grid = min(rows, per_sm * sms)
            found[label] = replace(chosen, grid=grid, defines=ahead)
    major = int(gpu.facts.compute_capability.partition(".")[0])
    for size in CLUSTERS if major >= 9 else ():
        block = 32 * -(-packs // (32 * held * size))
        if 64 <= block <= 1024:
            defines = {**chosen.defines, "KERNEL": 3, "CLUSTER": size, "BLOCK": block}
            defines |= {"PACKS": held, "BLOCKS_PER_SM": max(1, min(16, 1024 // block))}
            found[f"clusters of {size}"] = SoftmaxLaunch(
                name="softmax_cluster",
                grid=size * rows,
                block=block,
                defines={**defines, "PREFETCH": 0},
            )
    return found


def naive_contrast(bench: Bench) -> None:
    """Show what the library's array operations reach: the contrast to the fused kernel."""
    edge = int(8192 * math.sqrt(bench.share))

    def contrast() -> Figure:
        case = ResidentCase(bench.gpu, LibrarySoftmax(bench.order((edge, edge)), bench.gpu))
        with ready(case) as checked:
            ours = compete({"ours": case.run}).rate(case.work.bytes_moved)
        return Figure(
            part="variants", name="array operations", unit="B/s", ours=ours, verified=checked.ok
        )

    bench.notes.take("array operations", "B/s", contrast)
