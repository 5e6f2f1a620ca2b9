"""Softmax along rows with a temperature, y = exp(x / T) / sum(exp(x / T)).

For (rows, columns): each element is read once and written once (8 bytes in float32), and costs 5
floating-point operations (maximum, subtraction, exponential, addition, product), an exponential
counted as one.
The throughput is in bytes: memory limits a good softmax, not arithmetic.

On the CPU NumPy is limited by its passes over memory and by temporaries (a plain version reaches a
tenth of a copy), so `softmax_rows` works on blocks of rows that stay in the cache, writes in
place, and gives each thread its own rows: NumPy lets go of the interpreter lock inside its loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.core.bench.cpu_case import CpuCase, Team, cpu_label, row_parts
from gpucheck.core.bench.formats import FORMATS, decode, encode
from gpucheck.core.bench.gpu_case import EndToEndCase, ResidentCase, gpu_label
from gpucheck.core.bench.kernel import Case, CaseOrder, KernelBase, Work, thread_counts
from gpucheck.models.bench import BenchGpu, BenchMode, BenchRequest, Verified
from gpucheck.models.errors import WrongUseError
from gpucheck.probes.clock import Clock
from gpucheck.probes.cupy_device import GpuArray, GpuDevice, GpuFunction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: The formats that softmax.cu has, by the number that it knows them by.
_ELEMENTS = {"float32": 0, "float16": 1, "bfloat16": 2}
_LOG2_E = 1.4426950408889634
_BOUND = 1e-5
#: Beyond these, 1 / T leaves the range in which float32 keeps its full precision.
_COLDEST, _HOTTEST = 1e-30, 1e30
#: Rows compared element by element with float64; of the others the sums are compared.
_CHECKED_ROWS = 64
#: A row whose maximum lies further below its block's, in powers of two, is scaled by its own
#: maximum: its terms' relative error is about the distance times 4e-8, and its smaller terms would
#: fall out of float32's range.
_DEEPEST_ROW = 30.0
#: Rows summed at once by the check: bounds its memory.
_SUMMED_ROWS = 512
#: A row longer than this is worked on in pieces; longer chains of additions lose accuracy.
_LONGEST_PIECE = 32768


class Softmax(KernelBase):
    """The kernel `softmax`."""

    id = "softmax"
    dtypes = MappingProxyType(
        {
            BenchMode.QUICK: ("float32",),
            BenchMode.DEFAULT: ("float32", "bfloat16"),
            BenchMode.FULL: tuple(_ELEMENTS),
        }
    )
    sizes = MappingProxyType({BenchMode.QUICK: 2048, BenchMode.DEFAULT: 4096, BenchMode.FULL: 8192})

    def validate(self, request: BenchRequest) -> None:
        """Refuse a temperature that is not a positive number well inside float32's range.

        Raises:
            WrongUseError: it is zero, negative, not a number, or so extreme that 1 / T is inexact.
        """
        if not _COLDEST <= request.temperature <= _HOTTEST:
            raise WrongUseError(
                code="bad-temperature",
                message="softmax needs a temperature between 1e-30 and 1e30, "
                f"not {request.temperature:g}",
                remedy=("choose a positive temperature; 1 is the plain softmax",),
            )

    def cpu_refusal(self, dtype: str) -> str | None:
        """Refuse the 16-bit formats: NumPy converts them number by number."""
        if dtype == "float32":
            return None
        return f"NumPy has no fair {dtype} softmax: it converts every number by itself"

    def gpu_refusal(self, dtype: str, gpu: BenchGpu) -> str | None:
        """Refuse nothing: the kernel handles the 16-bit formats as their bits on every GPU."""
        return None

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 5 operations for each element, and its bytes twice."""
        elements = shape[0] * shape[1]
        moved = 2 * FORMATS[dtype].itemsize * elements
        return Work(flops=5 * elements, bytes_moved=moved, unit="B/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return input, outputs, the naive version's temporaries, each GPU's pinned copies."""
        rows, columns = shape
        arrays = 1 + 3 + 3 + 3 * gpu_count
        return arrays * 4 * rows * columns + 4 * 8 * min(rows, _CHECKED_ROWS) * columns

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return three sets of buffers, one for each case, and the plain version's temporaries."""
        return 3 * self.work(shape, dtype).bytes_moved + 8 * shape[0] * shape[1]

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return the blocked version with all threads and with one, and the plain one."""
        blocked = [BlockedSoftmax(order, threads) for threads in thread_counts(order.cpu)]
        return [*blocked, NaiveSoftmax(order)]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return the fused kernel in place and with pinned transfers, and the library's way."""
        operation = GpuSoftmax(order, gpu)
        cases: list[Case] = [
            ResidentCase(gpu, operation),
            EndToEndCase(gpu, operation, order.clock),
        ]
        if order.dtype == "float32":
            cases.append(ResidentCase(gpu, LibrarySoftmax(order, gpu)))
        return cases


class _CpuSoftmax(CpuCase):
    """What both CPU versions share: buffers and check."""

    def __init__(self, order: CaseOrder, variant: str, threads: int) -> None:
        label = cpu_label(order, "softmax", variant, threads, FORMATS["float32"].spec)
        label = replace(label, parameters={"temperature": order.request.temperature})
        super().__init__(order, label, Softmax().work(order.shape, "float32"))

    def prepare(self) -> None:
        """Draw the input and allocate the output."""
        import numpy as np

        self._source = draw_input(self._order)
        self._out = np.empty_like(self._source)

    def poison(self) -> None:
        """Fill the output with NaN."""
        self._out.fill(math.nan)

    def check(self) -> Verified:
        """Compare the output with float64."""
        return verify_softmax(self._source, self._out, self._order.request.temperature)

    def release(self) -> None:
        """Drop the output; the input belongs to the group."""
        import numpy as np

        self._out = self._source = np.empty(0, dtype=np.float32)


class NaiveSoftmax(_CpuSoftmax):
    """The softmax that most people write: whole arrays, four temporaries, one thread."""

    def __init__(self, order: CaseOrder) -> None:
        super().__init__(order, "naive", 1)
        self.label = replace(self.label, variant="naive")

    def step(self) -> None:
        """Compute once."""
        import numpy as np

        scaled = self._source / np.float32(self._order.request.temperature)
        raised = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        self._out = raised / raised.sum(axis=1, keepdims=True)


class BlockedSoftmax(_CpuSoftmax):
    """Blocks of rows that fit the cache, a preallocated output, threads over parts of the rows."""

    def __init__(self, order: CaseOrder, threads: int) -> None:
        super().__init__(order, "blocked", threads)
        self._team: Team | None = None

    def prepare(self) -> None:
        """Draw the input, allocate the output, start the threads, choose the exponential."""
        super().prepare()
        scaling = choose_scaling(self._order.clock, self._order.request.temperature)
        rows, columns = self._order.shape
        block = rows_per_block(columns, self._order.cpu.l2_bytes)
        parts = [
            (self._source[part], self._out[part], scaling, block)
            for part in row_parts(rows, columns, self._threads)
        ]
        self._team = Team(softmax_rows, parts)

    def step(self) -> None:
        """Compute once."""
        assert self._team is not None
        self._team.run()

    def release(self) -> None:
        """Drop the output and end the threads."""
        super().release()
        if self._team is not None:
            self._team.close()
            self._team = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """An exponential and the factor that makes it exp(x / T): exp with 1/T, exp2 with log2(e)/T."""

    raise_to: Callable[..., object]
    factor: float
    deepest: float


def choose_scaling(clock: Clock, temperature: float) -> Scaling:
    """Return exp2 or exp, whichever this NumPy computes faster on this processor.

    NumPy has a vector exp2 for AVX-512 only (there it is twice as fast as exp), but a vector exp
    for more processors.
    """
    import numpy as np

    values = np.linspace(-8, 0, 65536, dtype=np.float32)
    out = np.empty_like(values)

    def seconds(function: Callable[..., object]) -> float:
        spans = []
        for _ in range(5):
            start_s = clock.now_s()
            function(values, out=out)
            spans.append(clock.now_s() - start_s)
        return min(spans)

    if seconds(np.exp2) <= seconds(np.exp):
        return Scaling(np.exp2, _LOG2_E / temperature, _DEEPEST_ROW)
    return Scaling(np.exp, 1 / temperature, _DEEPEST_ROW / _LOG2_E)


def rows_per_block(columns: int, l2_bytes: int | None) -> int:
    """Return how many rows fill twice one core's L2 (1 MiB where unknown), at least one.

    NOTE: twice, not half: each NumPy call between two turns of the interpreter lock gets longer,
    which gains two threads 9 % (7.9 for 8.7 ms at 4096x4096); the L3 holds what the L2 does not.
    """
    return max(1, 2 * (l2_bytes or 2**20) // max(4 * columns, 1))


def softmax_rows(source: HostArray, out: HostArray, scaling: Scaling, block: int) -> None:
    """Write softmax(source / T) of each row into `out`, both (rows, columns) float32.

    A row that holds NaN or +inf, or nothing but -inf, becomes NaN, as the formula says.
    """
    import numpy as np

    # NaN rows are answers here, not accidents; the settings are this thread's own.
    with np.errstate(all="ignore"):
        if source.shape[1] > _LONGEST_PIECE:
            for row, written in zip(source, out, strict=True):
                _softmax_long_row(row, written, scaling)
            return
        for low in range(0, source.shape[0], block):
            _softmax_block(source[low : low + block], out[low : low + block], scaling)


def _softmax_block(source: HostArray, out: HostArray, scaling: Scaling) -> None:
    """Compute a block of rows that fits the cache.

    NOTE: one maximum for the whole block where the rows' maxima lie close together: subtracting
    one number costs NumPy less than half of subtracting a column from every row.
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
    """Compute one row in pieces that fit the cache; the sum of the pieces is kept in float64."""
    import numpy as np

    factor, top, total = np.float32(scaling.factor), np.maximum.reduce(source), 0.0
    for low in range(0, source.shape[0], _LONGEST_PIECE):
        piece = out[low : low + _LONGEST_PIECE]
        np.subtract(source[low : low + _LONGEST_PIECE], top, out=piece)
        np.multiply(piece, factor, out=piece)
        scaling.raise_to(piece, out=piece)
        total += float(np.add.reduce(piece))
    np.multiply(out, np.float32(1 / total), out=out)


class _GpuSoftmax:
    """What both GPU versions share: the row, the input, and the check."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice, variant: str) -> None:
        self._order = order
        self._gpu = gpu
        form = FORMATS[order.dtype]
        self.output_storage = form.storage
        self.output_shape = order.shape
        self.work = Softmax().work(order.shape, order.dtype)
        spec = replace(form.spec, accumulate="float32", math_mode="fp32")
        label = gpu_label(order, "softmax", variant, gpu, spec)
        self.label = replace(label, parameters={"temperature": order.request.temperature})

    def inputs(self) -> tuple[HostArray, ...]:
        """Return the input on the host, as it is stored."""
        return (draw_input(self._order),)

    def verify(self, out: HostArray) -> Verified:
        """Compare an output with float64."""
        order = self._order
        return verify_softmax(draw_input(order), out, order.request.temperature, order.dtype)


class GpuSoftmax(_GpuSoftmax):
    """The fused CUDA kernel in softmax.cu: each row is read once and written once."""

    captured = True

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        super().__init__(order, gpu, "fused")
        self._function: GpuFunction | None = None
        self._launch = choose_launch(*order.shape)

    def compile(self) -> None:
        """Compile the kernel for this GPU, once."""
        import numpy as np

        if self._function is None:
            defines = {"ELEMENT": _ELEMENTS[self._order.dtype]}
            self._function = self._gpu.compile(source_text(), self._launch.name, defines)
            rows, columns = self._order.shape
            factor = np.float32(_LOG2_E / self._order.request.temperature)
            self._sizes = (np.int64(rows), np.int64(columns), factor)

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue one launch; `compile` comes first."""
        assert self._function is not None
        self._function(self._launch.grid, self._launch.block, (inputs[0], out, *self._sizes))


class LibrarySoftmax(_GpuSoftmax):
    """The softmax in CuPy's array operations: what most people write, and what fusing gains."""

    captured = False

    def __init__(self, order: CaseOrder, gpu: GpuDevice) -> None:
        super().__init__(order, gpu, "naive")

    def compile(self) -> None:
        """Do nothing: CuPy compiles its kernels at their first use."""

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        """Enqueue CuPy's kernels."""
        self._gpu.softmax(inputs[0], out, self._order.request.temperature)


@dataclass(frozen=True, slots=True)
class Launch:
    """Which of softmax.cu's kernels to launch, and how."""

    name: str
    grid: int
    block: int


def source_text() -> str:
    """Return the CUDA source."""
    return Path(__file__).with_name("softmax.cu").read_text(encoding="utf-8")


def choose_launch(rows: int, columns: int) -> Launch:
    """Return the kernel for a row length: a warp's registers, a block's, or two passes.

    Packs of four need rows that start at multiples of 16 bytes.
    """
    if columns <= 1024:
        values = next(count for count in (1, 2, 4, 8, 16, 32) if columns <= 32 * count)
        return Launch(f"softmax_warp_{values}", -(-rows // 8), 256)
    for values, block in ((8, 256), (16, 256), (16, 512), (16, 1024), (32, 1024)):
        if columns <= values * block:
            kind = "packed" if columns % 4 == 0 else "block"
            return Launch(f"softmax_{kind}_{values}", rows, block)
    return Launch("softmax_online", rows, 1024)


def draw_input(order: CaseOrder) -> HostArray:
    """Return the input as it is stored, the same array for every case of a group."""

    def make() -> HostArray:
        return encode(order.data.normal("softmax", order.shape), FORMATS[order.dtype])

    return order.data.once(f"softmax-{order.dtype}", make)


def verify_softmax(
    source: HostArray, out: HostArray, temperature: float, dtype: str = "float32"
) -> Verified:
    """Compare sampled rows with float64, and every row's sum with 1.

    The error is the larger of: the sampled rows' ||out - reference|| / ||reference|| (the worst
    row), and the largest |sum - 1|. In a 16-bit format every number of the output is rounded.
    """
    import numpy as np

    rows = np.unique(np.linspace(0, len(source) - 1, _CHECKED_ROWS).astype(np.int64))
    raised = decode(source[rows], dtype).astype(np.float64) / temperature
    raised = np.exp(raised - raised.max(axis=1, keepdims=True))
    raised /= raised.sum(axis=1, keepdims=True)
    written = decode(out[rows], dtype)
    difference = np.linalg.norm(written - raised, axis=1) / np.linalg.norm(raised, axis=1)
    sums = np.abs(_row_sums(out, dtype) - 1)
    worst = max(float(np.max(difference)), float(np.max(sums)))
    finite = math.isfinite(float(np.sum(difference) + np.sum(sums)))
    bound = _BOUND + (2 * FORMATS[dtype].roundoff if dtype != "float32" else 0.0)
    return Verified(
        error=worst if finite else None,
        bound=bound,
        ok=finite and worst <= bound,
        reference=f"float64 on {len(rows)} rows, and the sum of every row",
    )


def _row_sums(out: HostArray, dtype: str) -> HostArray:
    """Return the sum of every row in float64, a block of rows at a time to bound the memory."""
    import numpy as np

    if not len(out):
        return np.zeros(0)
    blocks = (out[low : low + _SUMMED_ROWS] for low in range(0, len(out), _SUMMED_ROWS))
    sums = [decode(block, dtype).sum(axis=1, dtype=np.float64) for block in blocks]
    return np.concatenate(sums)
