"""Softmax along rows with a temperature, y = exp(x / T) / sum(exp(x / T)).

For (rows, columns): each element is read once and written once (8 bytes in float32). It costs 5
floating-point operations: maximum, subtraction, exponential (counted as one), addition and product.

The throughput is in bytes: memory limits a good softmax, not arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import (
    Case,
    CaseOrder,
    Kernel,
    TeamCase,
    Work,
    cpu_label,
    row_parts,
    thread_counts,
)
from gpucheck.bench.gpu_case import (
    EndToEndCase,
    GpuOperation,
    ResidentCase,
    gpu_label,
    pinned_bytes,
)
from gpucheck.bench.model import Conclusion, Fact, Measurement, Scope, Verified
from gpucheck.bench.numerics import (
    FORMATS,
    block_count,
    block_weights,
    block_width,
    decode,
    encode,
    fresh_array,
    sums_over_columns,
)
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.drivers.cupy.install import command, installation
from gpucheck.drivers.gpu import GpuArray, GpuDevice, GpuFunction
from gpucheck.drivers.host.clock import Clock, monotonic_s
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import rate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Formats of softmax.cu, with its number for each.
_ELEMENTS = {"float32": 0, "float16": 1, "bfloat16": 2}
#: Our kernels are off by at most 3e-6 of each number; in a block a few errors may add up.
_BOUND = 2e-5
#: Numbers below this share of a row's typical number are compared with that share.
_SMALLEST = 1e-3
#: Fact of a row on the processor: exponentials per second of one thread in its cache.
EXPONENTIALS = "exp_per_s"
#: Outside these, 1 / T leaves the range of full float32 precision.
_COLDEST, _HOTTEST = 1e-30, 1e30
_FLOAT16_HALF_STEP = 2.0**-25
#: Rows checked at once, to bound the memory.
_SUMMED_ROWS = 64
#: Compiling takes two seconds of a processor: too long for a quick run where other programs make a
#: thread take so many times as long.
_CROWDED = 5.0
#: Why nothing was compiled then.
_CROWDED_OUT = "other programs left no time to compile it; run it when the machine is idle"


class Softmax(Kernel):
    """The kernel `softmax`."""

    id = "softmax"
    limited_by_memory = True
    transfers_all = True
    dtypes = MappingProxyType(
        {
            BenchMode.QUICK: ("float32",),
            BenchMode.DEFAULT: ("float32", "bfloat16"),
            BenchMode.FULL: tuple(_ELEMENTS),
        }
    )
    sizes = MappingProxyType({BenchMode.QUICK: 2048, BenchMode.DEFAULT: 4096, BenchMode.FULL: 8192})

    def validate(self, request: BenchRequest) -> None:
        """Refuse a temperature that is not positive or not well inside float32's range.

        Raises:
            WrongUseError: it is zero, negative, not a number, or so extreme that 1 / T is inexact.
        """
        if not _COLDEST <= request.temperature <= _HOTTEST:
            raise WrongUseError(
                code="bad-temperature",
                message="softmax needs a temperature between 1e-30 and 1e30, "
                f"not {request.temperature:g}.",
                remedy=("Choose a positive temperature; 1 gives the plain softmax.",),
            )

    def cpu_refusal(self, dtype: str) -> str | None:
        """Refuse 16-bit formats, which NumPy converts one number at a time."""
        if dtype == "float32":
            return None
        return f"NumPy converts each {dtype} number by itself, which is no fair comparison"

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 5 operations for each element, and its bytes twice."""
        elements = shape[0] * shape[1]
        moved = 2 * FORMATS[dtype].itemsize * elements
        return Work(flops=5 * elements, bytes_moved=moved, unit="B/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return input, outputs, what the naive version keeps, each GPU's pinned copies."""
        rows, columns = shape
        array_bytes = 4 * rows * columns
        stored = FORMATS[dtype].itemsize * rows * columns
        pinned = gpu_count * (2 * pinned_bytes(stored) + array_bytes)
        checked = 4 * 8 * min(rows, _SUMMED_ROWS) * columns + 16 * rows * block_count(columns)
        return (1 + 3 + 2) * array_bytes + pinned + checked

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return three sets of buffers, one for each case, and the plain version's temporaries."""
        return 3 * self.work(shape, dtype).bytes_moved + 8 * shape[0] * shape[1]

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return the best version with all threads and with one, and the plain one.

        The best is compiled by numba; without it, and in a quick run on a crowded processor, NumPy
        works on blocks.
        """
        crowded = order.request.mode is BenchMode.QUICK and order.slowdown > _CROWDED
        softmax_rows = _CROWDED_OUT if crowded else compiled_rows()
        best: list[Case] = [
            BlockedSoftmax(order, threads, softmax_rows)
            if isinstance(softmax_rows, str)
            else FusedSoftmax(order, threads, *softmax_rows)
            for threads in thread_counts(order.cpu)
        ]
        return [*best, NaiveSoftmax(order)]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return the fused kernel, resident and with pinned transfers, and CuPy's operations."""
        operation = GpuSoftmax(order, gpu)
        cases: list[Case] = [
            ResidentCase(gpu, operation),
            EndToEndCase(gpu, operation, order.clock),
        ]
        if order.dtype == "float32":
            cases.append(ResidentCase(gpu, LibrarySoftmax(order, gpu)))
        return cases

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        """Say what decides the speed of a softmax, with the figures of this run."""
        plain = [row for row in rows if row.dtype.format == "float32"]
        gpu = _fastest(row for row in plain if row.device != "cpu" and row.scope is Scope.RESIDENT)
        cpu = _fastest(row for row in plain if row.device == "cpu")
        code = "memory-decides"
        text = "softmax reads and writes each number once, so memory's bandwidth decides its speed"
        if gpu is not None:
            moved = _fastest(
                row for row in plain if (row.device, row.scope) == (gpu.device, Scope.END_TO_END)
            )
            places = (("where the data stays", gpu), ("with both ways over PCIe", moved))
            known = [(where, row) for where, row in places if row is not None]
            text += f": {gpu.device} makes " + ", ".join(
                f"{rate(row.speed, 'B/s')} {where}" for where, row in known
            )
            if cpu is not None:
                text += f", this processor {rate(cpu.speed, 'B/s')}"
                if moved is not None and moved.speed < cpu.speed:
                    text += ": the way there costs more than it saves"
        elif cpu is not None:
            if cpu.percent_of_peak is not None:
                code = "exponentials-decide"
            text = _processor_limit(cpu, text)
            text += (
                "; a GPU gains little: PCIe, which the data crosses twice, is slower than memory"
            )
        else:
            return ()
        device = "cpu" if gpu is None else gpu.device
        return (Conclusion(kernel=self.id, device=device, code=code, sentence=text),)


def _processor_limit(cpu: Measurement, by_memory: str) -> str:
    """Return the sentence on the limit of a processor's softmax, with this run's speeds."""
    of_copy, of_exponentials = cpu.percent_of_copy, cpu.percent_of_peak
    speed = rate(cpu.speed, "B/s")
    copy = f", a copy {rate(100 * cpu.speed / of_copy, 'B/s')}" if of_copy else ""
    if of_exponentials is None:
        return f"{by_memory}: this processor makes {speed}{copy}"
    possible = rate(100 * cpu.speed / of_exponentials, "B/s")
    return (
        "softmax reads and writes each number once, but this processor's exponentials decide "
        f"its speed, not memory: {speed} of {possible}{copy}"
    )


def _fastest(rows: Iterable[Measurement]) -> Measurement | None:
    return max(rows, key=attrgetter("speed"), default=None)


class _CpuSoftmax(TeamCase):
    """Base of the CPU versions: buffers and check."""

    def __init__(self, order: CaseOrder, variant: str, threads: int) -> None:
        label = cpu_label(order, "softmax", variant, threads, FORMATS["float32"].spec)
        label = replace(label, parameters={"temperature": order.request.temperature})
        super().__init__(order, label, Softmax().work(order.shape, "float32"))
        self._exponentials_per_s = 0.0

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return how fast exponentials are in the cache, another limit than memory."""
        known = self._exponentials_per_s
        return {EXPONENTIALS: known} if known else {}

    def exponentials(self) -> Sequence[Callable[[HostArray, HostArray], object]]:
        """Return the ways to raise an array that this version knows."""
        import numpy as np

        return np.exp, np.exp2

    def prepare(self) -> None:
        """Draw the input and allocate the output."""

        self._source = draw_input(self._order)
        self._out = fresh_array(self._order.shape, "float32")

    def check(self) -> Verified:
        """Compare the output with float64; the first time, also time the exponentials."""
        if not self._exponentials_per_s:
            clock, times = self._order.clock, _TIMED_EXPONENTIALS
            best_s = min(fastest_s(clock, way, times) for way in self.exponentials())
            self._exponentials_per_s = _CACHED_NUMBERS / best_s if best_s > 0 else 0.0
        return verify_order(self._order, self._out)

    def release(self) -> None:
        """Drop the output and end the threads; the input belongs to the group."""
        import numpy as np

        self._out = self._source = np.empty(0, dtype=np.float32)
        super().release()


class NaiveSoftmax(_CpuSoftmax):
    """Plain softmax: one operation on whole arrays after the other, one thread.

    The arrays between the operations are kept from one run to the next. Those of a program that
    drops them are new pages at first, which take the kernel longer than the softmax takes.
    """

    def __init__(self, order: CaseOrder) -> None:
        super().__init__(order, "naive", 1)
        self.label = replace(self.label, variant="naive")

    def prepare(self) -> None:
        """Draw the input, allocate all other arrays, and use the calling thread alone."""
        super().prepare()
        self._scaled, self._shifted = (fresh_array(self._order.shape, "float32") for _ in range(2))
        self.gather(self._compute, [()])

    def poison(self) -> None:
        """Fill every array but the input with NaN."""
        for array in (self._scaled, self._shifted, self._out):
            array.fill(math.nan)

    def _compute(self) -> None:
        import numpy as np

        temperature, scaled, shifted = self._order.request.temperature, self._scaled, self._shifted
        np.divide(self._source, np.float32(temperature), out=scaled)
        np.subtract(scaled, scaled.max(axis=1, keepdims=True), out=shifted)
        raised = np.exp(shifted, out=scaled)
        np.divide(raised, raised.sum(axis=1, keepdims=True), out=self._out)

    def release(self) -> None:
        """Drop all arrays."""
        super().release()
        self._scaled = self._shifted = self._out


class BlockedSoftmax(_CpuSoftmax):
    """Softmax in blocks of rows that fit the cache, split among threads."""

    def __init__(self, order: CaseOrder, threads: int, faster_version: str | None = None) -> None:
        super().__init__(order, "blocked", threads)
        self.faster_version = faster_version
        self._scaling: Scaling | None = None

    def prepare(self) -> None:
        """Draw the input, allocate the output, start the threads, choose the exponential once."""
        super().prepare()
        if self._scaling is None:
            self._scaling = choose_scaling(self._order.clock, self._order.request.temperature)
        rows, columns = self._order.shape
        block = rows_per_block(columns, self._order.cpu.l2_bytes)
        parts = [
            (self._source[part], self._out[part], self._scaling, block)
            for part in row_parts(rows, columns, self._threads)
        ]
        self.gather(softmax_rows, parts)


class FusedSoftmax(_CpuSoftmax):
    """Softmax that reads and writes each row once, compiled by numba, split among threads."""

    def __init__(
        self, order: CaseOrder, threads: int, work: Callable[..., None], compile_s: float
    ) -> None:
        super().__init__(order, "fused", threads)
        self._compiled = work
        self._compile_s = compile_s

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return also the seconds that the compilation took, which no sample contains."""
        return {**super().facts, "compile_s": self._compile_s}

    def exponentials(self) -> Sequence[Callable[[HostArray, HostArray], object]]:
        """Return also this version itself, whose exponentials may be the fastest."""
        compiled = self._compiled
        return *super().exponentials(), lambda source, out: compiled(source, out, LOG2_E)

    def prepare(self) -> None:
        """Draw the input, allocate the output, start the threads."""
        super().prepare()
        rows, columns = self._order.shape
        factor = LOG2_E / self._order.request.temperature
        parts = [
            (self._source[part], self._out[part], factor)
            for part in row_parts(rows, columns, self._threads)
        ]
        self.gather(self._compiled, parts)


class _GpuSoftmax(GpuOperation):
    """Base of the GPU versions: label, input and check."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice, variant: str) -> None:
        self._order = order
        self._gpu = gpu
        form = FORMATS[order.dtype]
        self.output_storage = form.storage
        self.output_shape = order.shape
        self.work = Softmax().work(order.shape, order.dtype)
        spec = replace(form.spec, accumulate="float32", math_mode="fp32")
        label = gpu_label(order, "softmax", variant, gpu.facts, spec)
        self.label = replace(label, parameters={"temperature": order.request.temperature})

    def inputs(self) -> tuple[HostArray, ...]:
        """Return the input on the host, as it is stored."""
        return (draw_input(self._order),)

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        return verify_order(self._order, out)


class GpuSoftmax(_GpuSoftmax):
    """Fused CUDA kernel of softmax.cu, in one launch."""

    captured = True

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        super().__init__(order, gpu, "fused")
        self._function: GpuFunction | None = None
        self.launch = launch_for(order)

    def source(self) -> str:
        """Return the CUDA source of the kernel."""
        return source_text()

    def compile(self) -> None:
        """Compile the kernel for this GPU, once."""
        if self._function is None:
            defines = {"ELEMENT": _ELEMENTS[self._order.dtype], **self.launch.defines}
            self._function = self._gpu.compile(self.source(), self.launch.name, defines)

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one launch; `compile` comes first."""
        import numpy as np

        assert self._function is not None
        rows, columns = self._order.shape
        factor = np.float32(LOG2_E / self._order.request.temperature)
        sizes = (np.int64(rows), np.int64(columns), factor)
        self._function(self.launch.grid, self.launch.block, (inputs[0], out, *sizes))


class LibrarySoftmax(_GpuSoftmax):
    """Softmax in CuPy's array operations, as most people write it; shows what fusing gains."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        super().__init__(order, gpu, "naive")

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue CuPy's kernels."""
        self._gpu.softmax(inputs[0], out, self._order.request.temperature)


@cache
def compiled_rows() -> tuple[Callable[..., None], float] | str:
    """Return the softmax that numba compiled and the seconds that took, or how to get it.

    It is compiled once per process, before anything is measured.
    """
    if find_spec("numba") is None:
        return command(installation(), "cpu")
    try:
        began_s = monotonic_s()
        from gpucheck.bench.compiled_softmax import compiled

        return compiled(), monotonic_s() - began_s
    except Exception as error:  # each version of numba, LLVM and NumPy fails in its own way
        reason = str(error).strip().partition("\n")[0]
        return f"numba does not work here ({type(error).__name__}: {reason})"


def source_text() -> str:
    """Return the CUDA source."""
    return Path(__file__).with_name("softmax.cu").read_text(encoding="utf-8")


def launch_for(order: CaseOrder) -> SoftmaxLaunch:
    """Return the launch for an order's rows, contiguous in separate arrays."""
    rows, columns = order.shape
    itemsize = FORMATS[order.dtype].itemsize
    # CUDA aligns allocations to 256 bytes, so the row length decides.
    aligned = columns * itemsize % PACK_BYTES == 0
    return choose_softmax(
        SoftmaxRows(rows=rows, columns=columns, itemsize=itemsize, aligned=aligned)
    )


def draw_input(order: CaseOrder) -> HostArray:
    """Return the input as it is stored, the same array for every case of a group."""

    def make() -> HostArray:
        return encode(order.data.normal("softmax", order.shape), FORMATS[order.dtype])

    size_bytes = math.prod(order.shape) * FORMATS[order.dtype].itemsize
    return order.data.once(f"softmax-{order.shape}-{order.dtype}", make, size_bytes)


def verify_order(order: CaseOrder, out: HostArray) -> Verified:
    """Compare an order's output with float64; the right sums are computed once for all cases."""
    source, temperature = draw_input(order), order.request.temperature
    name = f"softmax-reference-{order.shape}-{order.dtype}-{temperature}"
    right = order.data.keep(name, lambda: right_sums(source, temperature, order.dtype))
    return verify_softmax(source, out, temperature, order.dtype, right=right)


def right_sums(
    source: HostArray, temperature: float, dtype: str = "float32"
) -> tuple[HostArray, HostArray]:
    """Return the blocks' weighted sums of the right result, in float64, and the blocks' sizes.

    A size is the root of the block's sum of squares, and at least a thousandth of the size of a
    typical block of the row. Smaller numbers are compared with this floor.
    """
    import numpy as np

    columns = source.shape[1]
    weights, ones, width = block_weights(columns), np.ones(columns), block_width(columns)
    sums, sizes = [], []
    for low in range(0, len(source), _SUMMED_ROWS):
        raised = decode(source[low : low + _SUMMED_ROWS], dtype).astype(np.float64) / temperature
        raised = np.exp(raised - raised.max(axis=1, keepdims=True))
        raised /= raised.sum(axis=1, keepdims=True)
        sums.append(sums_over_columns(raised, weights, width))
        squares = sums_over_columns(np.square(raised), ones, width)
        even = squares.sum(axis=1, keepdims=True) * width / columns
        sizes.append(np.sqrt(np.maximum(squares, _SMALLEST**2 * even)))
    return np.concatenate(sums), np.concatenate(sizes)


def verify_softmax(
    source: HostArray,
    out: HostArray,
    temperature: float,
    dtype: str = "float32",
    *,
    right: tuple[HostArray, HostArray] | None = None,
) -> Verified:
    """Compare every number of every row with float64, by weighted sums over blocks of columns.

    The error is the largest deviation of a block's sum, relative to the block's size. `right` is
    the result of `right_sums` for this source, if the caller has it.
    """
    import numpy as np

    sums, sizes = right or right_sums(source, temperature, dtype)
    weights, width = block_weights(source.shape[1]), block_width(source.shape[1])
    parts = (out[low : low + _SUMMED_ROWS] for low in range(0, len(out), _SUMMED_ROWS))
    values = np.concatenate(
        [
            sums_over_columns(decode(part, dtype).astype(np.float64), weights, width)
            for part in parts
        ]
    )
    bound = _BOUND + 3 * FORMATS[dtype].roundoff * (dtype != "float32")
    # Below its normal numbers float16 has a fixed step; numbers of long rows lie there.
    step = _FLOAT16_HALF_STEP if dtype == "float16" else 0.0
    least = 3 * step * math.sqrt(width) / bound
    worst = float(np.max(np.abs(values - sums) / (sizes + least)))
    return Verified.of(
        worst, bound=bound, reference="float64, weighted sums over blocks of every row"
    )


LOG2_E = 1.4426950408889634
# ------------------------------------------------------------------------------ NumPy
# A plain version is slowed by its passes and temporaries, and reaches a tenth of a copy. This one
# works in place on blocks of rows that stay in the cache. Each thread has its own rows: NumPy
# releases the interpreter lock inside its loops.

#: Largest distance of a row's maximum below its block's, in powers of two. Beyond it the row is
#: scaled by its own maximum: the relative error of its terms is about the distance times 4e-8, and
#: small terms would leave float32's range.
_DEEPEST_ROW = 30.0
#: Numbers that fit with their exponentials into every core's L2, and how often these are timed for
#: a limit: a millisecond or two.
_CACHED_NUMBERS, _TIMED_EXPONENTIALS = 32768, 30
#: Longer rows are split into pieces: longer chains of additions lose accuracy.
_LONGEST_PIECE = 32768


@dataclass(frozen=True, slots=True)
class Scaling:
    """Exponential function, and its factor for exp(x / T): exp with 1/T, exp2 with log2(e)/T."""

    raise_to: Callable[..., object]
    factor: float
    deepest: float


def choose_scaling(clock: Clock, temperature: float) -> Scaling:
    """Return exp2 or exp, whichever this NumPy computes faster on this CPU.

    NumPy has a vector exp2 for AVX-512 only, where it is twice as fast as exp, but a vector exp for
    more CPUs.
    """
    import numpy as np

    if fastest_s(clock, np.exp2) <= fastest_s(clock, np.exp):
        return Scaling(np.exp2, LOG2_E / temperature, _DEEPEST_ROW)
    return Scaling(np.exp, 1 / temperature, _DEEPEST_ROW / LOG2_E)


def fastest_s(clock: Clock, way: Callable[[HostArray, HostArray], object], times: int = 5) -> float:
    """Return the shortest of several times in which a way raises numbers in a core's own cache."""
    import numpy as np

    source = np.linspace(-8, 0, _CACHED_NUMBERS, dtype=np.float32).reshape(16, -1)
    out, spans = np.empty_like(source), []
    for _ in range(times):
        start_s = clock()
        way(source, out)
        spans.append(clock() - start_s)
    return min(spans)


def rows_per_block(columns: int, l2_bytes: int | None) -> int:
    """Return how many rows fill twice one core's L2 (1 MiB where unknown), at least one.

    NOTE: twice, not half: each NumPy call then holds off the interpreter lock for longer, which
    gains two threads 9 % (7.9 instead of 8.7 ms at 4096x4096). The L3 holds what the L2 does not.
    """
    return max(1, 2 * (l2_bytes or 2**20) // max(4 * columns, 1))


def softmax_rows(source: HostArray, out: HostArray, scaling: Scaling, block: int) -> None:
    """Write softmax(source / T) of each row into `out`, both (rows, columns) float32.

    A row becomes NaN, as in the formula, if it holds NaN or +inf, or only -inf.
    """
    import numpy as np

    # NaN rows are valid answers here; the settings apply to this thread only.
    with np.errstate(all="ignore"):
        if source.shape[1] > _LONGEST_PIECE:
            for row, written in zip(source, out, strict=True):
                _softmax_long_row(row, written, scaling)
            return
        for low in range(0, source.shape[0], block):
            _softmax_block(source[low : low + block], out[low : low + block], scaling)


def _softmax_block(source: HostArray, out: HostArray, scaling: Scaling) -> None:
    """Compute a block of rows that fits the cache.

    NOTE: one maximum serves the whole block if the rows' maxima lie close together. Subtracting one
    number takes NumPy less than half the time of subtracting a column from every row.
    """
    import numpy as np

    if source.shape[1] == 0:
        return
    factor = np.float32(scaling.factor)
    highest = np.maximum.reduce(source, axis=1)
    top = np.maximum.reduce(highest)
    spread = (float(top) - float(np.minimum.reduce(highest))) * scaling.factor
    if spread <= scaling.deepest:  # False for NaN too
        np.subtract(source, top, out=out)
    else:
        np.subtract(source, highest[:, None], out=out)
    np.multiply(out, factor, out=out)
    scaling.raise_to(out, out=out)
    # NOTE: einsum adds along rows twice as fast as sum(); its chains are short enough here.
    total = np.einsum("ij->i", out)
    np.divide(np.float32(1), total, out=total)
    np.multiply(out, total[:, None], out=out)


def _softmax_long_row(source: HostArray, out: HostArray, scaling: Scaling) -> None:
    """Compute one row in pieces that fit the cache, with the sum of the pieces in float64."""
    import numpy as np

    factor, top, total = np.float32(scaling.factor), np.maximum.reduce(source), 0.0
    for low in range(0, source.shape[0], _LONGEST_PIECE):
        piece = out[low : low + _LONGEST_PIECE]
        np.subtract(source[low : low + _LONGEST_PIECE], top, out=piece)
        np.multiply(piece, factor, out=piece)
        scaling.raise_to(piece, out=piece)
        total += float(np.add.reduce(piece))
    np.multiply(out, np.float32(1 / total), out=out)


# ------------------------------------------------------------------- launch of softmax.cu
# The length of the rows decides the kernel. Registers hold a row where they can, 32 numbers in each
# thread, so that it is read once and written once:
#
#   up to 1024 numbers   softmax_short    a warp holds a row, or some of its lanes a short one
#   up to 32768          softmax_long     a block of up to 1024 threads holds a row
#   longer               softmax_online   no block holds a row, so that it is read twice
#
# Rows that begin anywhere touch one pack more, and change kernels a few numbers earlier.

#: Bytes that a thread moves at once, and numbers of a row that it holds in registers.
PACK_BYTES, HELD_NUMBERS = 16, 32
#: Threads that an SM holds at once: each may take 64 of its 65536 registers (architectures 5.0 to
#: 12.1), which no kernel exceeds.
THREADS_PER_SM = 1024
#: Threads in a block of softmax_short; the most of any block.
_SHORT_BLOCK, MOST_THREADS = 128, 1024
#: Packs in each lane up to which more rows share a warp.
_SHARING_PACKS = 4
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

    `aligned` means that all rows begin and end at multiples of 16 bytes.
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


def choose_softmax(problem: SoftmaxRows) -> SoftmaxLaunch:
    """Return the launch for these rows, which is the same on every GPU."""
    held = HELD_NUMBERS * problem.itemsize // PACK_BYTES
    if problem.packs <= 32 * held:
        # The fewest lanes that hold a row in a few packs each.
        lanes = next((n for n in (4, 8, 16) if problem.packs <= n * _SHARING_PACKS), 32)
        grid = -(-problem.rows // (_SHORT_BLOCK // lanes))
        defines = {"LANES": lanes, "PACKS": _packs(problem, lanes)}
        return _launch("softmax_short", problem, grid, _SHORT_BLOCK, defines)
    threads = 32 * -(-problem.packs // (32 * held))
    if threads <= MOST_THREADS:
        defines = {"PACKS": _packs(problem, threads), "EXACT": int(fills(problem, threads))}
        return _launch("softmax_long", problem, problem.rows, threads, defines)
    # Two blocks to an SM: one reads while the other waits at a barrier.
    return _launch("softmax_online", problem, problem.rows, THREADS_PER_SM // 2, {})


def _packs(problem: SoftmaxRows, threads: int) -> int:
    """Return the packs of a row that each thread holds, at least one."""
    return max(1, -(-problem.packs // threads))


def fills(problem: SoftmaxRows, threads: int) -> bool:
    """Return whether an aligned row fills every pack of each thread, as powers of two do."""
    return problem.aligned and problem.packs == threads * _packs(problem, threads)


def _launch(
    name: str, problem: SoftmaxRows, grid: int, block: int, defines: Mapping[str, int]
) -> SoftmaxLaunch:
    common = {
        name.upper(): 1,
        "BLOCK": block,
        "BLOCKS_PER_SM": THREADS_PER_SM // block,
        "ALIGNED": int(problem.aligned),
    }
    return SoftmaxLaunch(
        name=name,
        grid=max(1, min(grid, _MOST_GRID)),
        block=block,
        defines=common | dict(defines),
    )
