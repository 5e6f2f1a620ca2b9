"""Softmax at every row length compared with a copy of the same bytes and with torch."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.card.bench import Bench, ready, rivals_of
from benchmarks.card.figures import NO_TIME, Bar, Figure, Timed, compete
from benchmarks.card.rivals import Torch
from gpucheck.bench.case import CaseOrder
from gpucheck.bench.gpu_case import ResidentCase
from gpucheck.bench.kernels.copy import DriverCopy, KernelCopy
from gpucheck.bench.kernels.softmax import GpuSoftmax, verify_softmax
from gpucheck.bench.model import Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.drivers.gpu import GpuDevice

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
#: Bytes from which a row is long, and the factor on the number of long rows.
_LONG_BYTES, _MORE = 2**15, 4
#: Bytes of a result to check on the host.
_CHECKED_BYTES = 2**26
#: Row lengths for which torch compiles its own: each takes seconds, the first half a minute.
_COMPILED = (1024, 4096, 32768, 131_072)
#: Least seconds left for starting a compilation by torch.
_COMPILING_S = 20
#: Least share of the best rival: two kernels at the memory's limit differ by one or two percent in
#: either direction from one run to the next.
_RIVAL_SHARE = 0.97


def sampled_rows(count: int, size_bytes: int) -> HostArray:
    """Return the rows to check on the host, in order, always with the last one.

    They are random, so that no pattern of blocks and lanes can evade them.
    """
    import numpy as np

    wanted = min(count, max(1, count * _CHECKED_BYTES // max(1, size_bytes)))
    drawn = np.random.default_rng(0).choice(count, size=wanted, replace=False)
    return np.unique(np.append(drawn, count - 1))


class FlatSoftmax(GpuSoftmax):
    """Fused softmax on rows of one array, which is drawn once for all row lengths."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice, flat: HostArray) -> None:
        super().__init__(order, gpu)
        self._flat = flat

    def inputs(self) -> tuple[HostArray, ...]:
        """Return the rows."""
        rows, columns = self._order.shape
        return (self._flat[: rows * columns].reshape(rows, columns),)

    def verify(self, out: HostArray) -> Verified:
        """Compare random rows with float64, for about a quarter of a second."""
        rows = sampled_rows(len(out), out.nbytes)
        found = verify_softmax(self.inputs()[0][rows], out[rows], 1.0, self._order.dtype)
        return replace(found, reference=f"{found.reference}, {len(rows)} rows of {len(out)}")


class Stock:
    """Numbers of one format for the rows, and the rate of a copy of the same bytes.

    There are two amounts. Long rows get the larger one: an SM holds one or two at a time, and among
    few rows the last ones, which leave some SMs idle, would count too much.
    """

    def __init__(self, bench: Bench, dtype: str, more: int = _MORE) -> None:
        self._bench = bench
        self._dtype = dtype
        self._form = FORMATS[dtype]
        self._more = more
        self._flats: dict[int, HostArray] = {}
        self._limits: dict[int, float | None] = {}
        self.count = bench.bytes_of_a_side() // self._form.itemsize

    def numbers(self, columns: int) -> HostArray:
        """Return numbers for rows of this length."""
        times = self._times(columns)
        if times not in self._flats:
            self._flats[times] = self._bench.numbers(self._dtype, times * self.count)
        return self._flats[times]

    def limit(self, columns: int) -> float | None:
        """Return the rate of a copy of the numbers for rows of this length, None if it failed."""
        times = self._times(columns)
        if times not in self._limits:
            self._limits[times] = copy_limit(self._bench, self.numbers(columns))
            self._bench.release()
        return self._limits[times]

    def row_count(self, columns: int) -> int:
        """Return the number of rows of this length."""
        return self._times(columns) * self.count // columns

    def _times(self, columns: int) -> int:
        much = self._more * self.count * self._form.itemsize
        affordable = much <= self._bench.gpu.facts.memory_total_bytes // 32
        return self._more if affordable and columns * self._form.itemsize >= _LONG_BYTES else 1


def softmax(bench: Bench) -> None:
    """Compare softmax at all lengths with a copy of the same bytes and with torch."""
    stocks: dict[str, Stock] = {}
    for dtype, lengths in _SOFTMAX_ROUNDS:
        stock = stocks.setdefault(dtype, Stock(bench, dtype))
        for columns in (length for length in lengths if length <= stock.count):
            taken = partial(one_softmax, bench, stock, columns, dtype)
            bench.notes.take(f"{dtype} {columns}", "B/s", taken)
            bench.release()


class _FromFlat:
    """Existing numbers in place of drawn ones."""

    source: HostArray

    def inputs(self) -> tuple[HostArray, ...]:
        """Return them."""
        return (self.source,)


class FlatDriverCopy(_FromFlat, DriverCopy):
    """cudaMemcpy of existing numbers."""


class FlatKernelCopy(_FromFlat, KernelCopy):
    """Our copy of existing numbers."""


def copy_limit(bench: Bench, flat: HostArray) -> float | None:
    """Return the rate of the best copy of these numbers, measured now."""
    import numpy as np

    shape = (flat.nbytes // 4096, 1024)
    source = flat.view(np.uint8)[: 4 * math.prod(shape)].view(np.float32).reshape(shape)
    operations = [make(bench.order(shape), bench.gpu) for make in (FlatDriverCopy, FlatKernelCopy)]
    cases = [ResidentCase(bench.gpu, operation) for operation in operations]
    try:
        for operation, case in zip(operations, cases, strict=True):
            operation.source = source
            case.prepare()
        taken = compete({"driver": cases[0].run, "own": cases[1].run})
    except Exception:  # the rows then have no limit
        traceback.print_exc()
        return None
    finally:
        for case in cases:
            case.release()
    return 8 * math.prod(shape) / min(taken.seconds.values())


def one_softmax(bench: Bench, stock: Stock, columns: int, dtype: str) -> Figure:
    """Return the rate at one row length, with torch's eager and compiled ones."""
    limit, rows = stock.limit(columns), stock.row_count(columns)
    order = bench.order((rows, columns), dtype)
    operation = FlatSoftmax(order, bench.gpu, stock.numbers(columns))

    def compiled(torch: Torch) -> Timed:
        if bench.notes.left_s < _COMPILING_S:
            raise TimeoutError(NO_TIME)
        return torch.compiled_softmax(rows, columns, dtype)

    makers: dict[str, Callable[[Torch], Timed]] = {
        "torch": lambda torch: torch.softmax(rows, columns, dtype)
    }
    if columns in _COMPILED:
        makers["torch.compile"] = compiled
    case = ResidentCase(bench.gpu, operation)
    with ready(case) as checked:
        sides = {"ours": case.run, **rivals_of(bench, makers)}
        outcome = compete(sides)
    least = 0.92 if 1024 <= columns <= 32768 else 0.80 if columns <= 262_144 else 0.0
    aligned = columns * FORMATS[dtype].itemsize % 16 == 0
    limited = [Bar(what="copy", least=least)] if aligned and columns >= 1024 and least else []
    launch = operation.launch
    return Figure(
        part="softmax",
        name=f"{dtype} {columns}",
        unit="B/s",
        ours=outcome.rate(case.work.bytes_moved),
        rivals=outcome.rival_rates(case.work.bytes_moved),
        failures=outcome.failures,
        scatter=outcome.scatter,
        limit=limit,
        limit_name="copy",
        bars=[*limited, *outcome.bars(_RIVAL_SHARE)],
        verified=checked.ok,
        details={"kernel": launch.name, "error": checked.error, "rows": rows, **launch.defines},
    )
