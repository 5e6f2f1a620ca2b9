"""Silent data corruption (SDC): identical matrix products must give identical bits.

cuBLAS gives the same bits for the same problem on GPUs of one architecture and SM count, if only
one stream is active (cuBLAS documentation, "Results Reproducibility"). The first product is
compared with float64, and every later one with the first, number by number. A tolerance would pass
most defects: few wrong results are NaN, and many differ only in the last digits. The digest of the
first product tells identical GPUs apart if one always computes the same wrong result.

On a GPU the results rotate through its free memory: each is compared when its place is needed
again, so that the memory must have kept it meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.bench.bits import (
    ELEMENTS,
    BitDifferences,
    combined,
    compare_bits,
    digest,
    read_differences,
)
from gpucheck.bench.case import CaseOrder
from gpucheck.bench.kernels.matmul import Matmul, draw_inputs, missing_format, verify_product
from gpucheck.bench.model import Corruption, Verified
from gpucheck.bench.numerics import FORMATS, STORAGES, HostData, output_bytes
from gpucheck.bench.plan import Group, Plan, Resources, fits
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.drivers.gpu import BenchGpu, GpuArray, GpuDevice, GpuFunction, Product
from gpucheck.drivers.host.blas import Blas
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.host.cpu import CpuFacts
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import GpucheckError
from gpucheck.report.text import group_by

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Most products between two reads of the counters, and most reads (if the clock stands still).
_MOST_BATCH, _MOST_BATCHES = 256, 100_000


def stress_product(
    gpu: GpuDevice | None,
    request: BenchRequest,
    clock: Clock,
    cpu: CpuFacts,
    blas: Blas,
    *,
    held: str | None = None,
) -> StressProduct:
    """Plan the heaviest product on a GPU, or on the CPU for None; nothing is allocated yet.

    `held` names the holders of the GPU's memory, if known.

    Raises:
        WrongUseError: the size or seed is invalid, or the size does not fit into memory.
        InconclusiveError: the host has no memory left.
    """
    check, notes = plan_product(None if gpu is None else gpu.facts, request, cpu, held=held)
    order = CaseOrder(
        request=request,
        shape=check.shape,
        dtype=check.dtype,
        data=HostData(request.seed, request.fill),
        cpu=cpu,
        clock=clock,
        blas=blas,
        gpus=() if gpu is None else (gpu,),
    )
    outputs = check.output_bytes // product_bytes(check.shape, check.dtype)
    product = CpuProduct(order) if gpu is None else GpuProduct(gpu, order, outputs)
    return StressProduct(product, check, clock, notes)


def repeat_on_each(
    products: Sequence[StressProduct], seconds: float
) -> tuple[tuple[Corruption, ...], bool]:
    """Repeat on one device after the other, for `seconds` each.

    Return the checks of the devices that began, and whether the user interrupted them.
    """
    begun: list[StressProduct] = []
    interrupted = False
    try:
        for product in products:
            begun.append(product)
            product.begin()
            product.run_for(seconds)
            product.end()
    except KeyboardInterrupt:
        interrupted = True
        begun[-1].end()
    return tuple(product.check for product in begun), interrupted


class StressProduct:
    """Repeated products on one device, for a given time or until the end of a burn.

    `check` is the planned one, then the one so far; `notes` tell the user about the choice of the
    product.
    """

    def __init__(
        self,
        product: GpuProduct | CpuProduct,
        check: Corruption,
        clock: Clock,
        notes: tuple[str, ...] = (),
    ) -> None:
        self._product = product
        self._clock = clock
        self.check = check
        self._batch = 1
        self._product_s = 0.0
        self.notes = notes

    def begin(self) -> None:
        """Multiply for the first time; an error goes into the check's `failure`."""
        if self.check.failure is not None:
            return
        try:
            digest, verified = self._product.prepare()
        except (GpucheckError, MemoryError) as error:
            self._fail(error)
        else:
            self.check = replace(
                self.check,
                digest=digest,
                reference_ok=verified.ok,
                reference_error=verified.error,
                reference_bound=verified.bound,
            )

    def run_for(self, seconds: float) -> float:
        """Repeat for `seconds`, at least once, and return the seconds taken.

        An error ends the product.
        """
        start_s = self._clock()
        try:
            for _ in range(_MOST_BATCHES):
                if self.check.failure is not None:
                    break
                before_s = self._clock()
                self._product_s += self._product.repeat(self._batch)
                self._count(self._batch)
                # Few reads, and yet the time is not exceeded by much.
                if self._clock() - before_s < seconds / 8:
                    self._batch = min(2 * self._batch, _MOST_BATCH)
                if self._clock() - start_s >= seconds:
                    break
        except (GpucheckError, MemoryError) as error:
            self._fail(error)
        taken_s = self._clock() - start_s
        seconds = self.check.seconds + taken_s
        percent = min(100.0, 100 * self._product_s / seconds) if seconds else None
        self.check = replace(self.check, seconds=seconds, product_time_percent=percent)
        return taken_s

    def end(self) -> Corruption:
        """Release the memory and return the check."""
        try:
            self._product.release()
        except GpucheckError as error:
            self._fail(error)
        return self.check

    def _count(self, repeats: int) -> None:
        counts = self._product.differences()
        self.check = replace(
            self.check,
            products=self.check.products + repeats,
            mismatches=counts.count,
            first_index=counts.first,
            largest_ulp=counts.largest_ulp,
            not_finite=counts.nan_count,
        )

    def _fail(self, error: GpucheckError | MemoryError) -> None:
        if self.check.failure is None:
            memory = Failure(
                code="out-of-memory", message="the host does not have enough free memory"
            )
            failure = Failure.of(error) if isinstance(error, GpucheckError) else memory
            self.check = replace(self.check, failure=failure)


def deviating_digests(checks: Sequence[Corruption], model_of: Mapping[str, str]) -> dict[str, str]:
    """Return the devices whose first result differs from identical ones, each with a sentence.

    `model_of` gives the model of each device. Of two identical devices both are named, since one of
    them is wrong. With three or more, the majority is taken to be right. A device may have several
    checks, from separate processes.
    """
    known = [check for check in checks if check.digest is not None and check.device in model_of]
    alike = group_by(known, lambda check: (model_of[check.device], check.dtype, check.shape))
    deviating: dict[str, str] = {}
    for group in alike.values():
        counts = Counter(check.digest for check in group)
        if len(counts) < 2:
            continue
        (usual, most), (_, second) = counts.most_common(2)
        for check in group:
            if most == second:
                deviating[check.device] = (
                    f"its digest is {check.digest}; no digest has a majority, so the wrong one is "
                    "unknown"
                )
            elif check.digest != usual:
                others = {item.device for item in group if item.digest == usual} - {check.device}
                whose = f"{len(others)} identical GPUs have" if others else "other processes have"
                deviating[check.device] = f"its digest is {check.digest}, {whose} {usual}"
    return deviating


def corruption_sentence(check: Corruption) -> str:
    """Return a sentence on a device's products: the error, or that all bits match."""
    total = check.products * check.words
    if check.mismatches:
        ulp = "by a NaN" if check.largest_ulp is None else f"by up to {check.largest_ulp} ULP"
        return (
            f"{check.mismatches} of {total} numbers changed between identical products, "
            f"{ulp}, the first at index {check.first_index}"
        )
    if check.reference_ok is False:
        if check.reference_error is None:
            return "the product holds NaN or infinity"
        return (
            f"the product differs from float64 by {check.reference_error:.2g}; "
            f"the bound is {check.reference_bound or 0:.2g}"
        )
    return f"{check.products} identical products of {check.words} numbers: all bits match"


#: Formats, those that load a GPU most first.
HEAVIEST = ("bfloat16", "float16", "float32")
#: Edges of the matrices: large enough to load the whole device, small enough for most.
_GPU_EDGE, _CPU_EDGE = 8192, 1024
#: Most results in a GPU's memory at once: 256 GiB at the usual edge, little at small ones.
_MOST_OUTPUTS = 2048


# ------------------------------------------------------------------------------ planning


class _ProductKernel(Matmul):
    """Product as `Plan` sees it: one format, one size for every mode, no rows.

    `outputs` is the number of results that memory holds at once, besides the first.
    """

    id = "product"

    def __init__(self, dtype: str, edge: int, outputs: int = 1) -> None:
        self._outputs = outputs
        self.dtypes = MappingProxyType(dict.fromkeys(BenchMode, (dtype,)))
        self.sizes = MappingProxyType(dict.fromkeys(BenchMode, edge))

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the bytes of both factors, the first product, and those compared with it."""
        others = self._outputs * product_bytes(shape, dtype)
        return self.work(shape, dtype).bytes_moved + others


def product_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of one result."""
    m, _, n = shape
    return output_bytes(FORMATS[dtype]) * m * n


def plan_product(
    gpu: BenchGpu | None,
    request: BenchRequest,
    cpu: CpuFacts,
    *,
    held: str | None = None,
) -> tuple[Corruption, tuple[str, ...]]:
    """Choose the product for a GPU, or for the CPU if `gpu` is None.

    Return its check, which has a failure if others hold the memory for it, and notes for the user.
    `held` names the holders of the GPU's memory, if known.

    Raises:
        WrongUseError: the size or seed is invalid, or the size does not fit into memory.
        InconclusiveError: the host has no memory left.
    """
    dtype = "float32" if gpu is None else heaviest_format(gpu)
    product = _ProductKernel(dtype, _CPU_EDGE if gpu is None else _GPU_EDGE)
    resources = Resources(
        with_cpu=gpu is None,
        gpus=() if gpu is None else (gpu,),
        host_bytes=cpu.memory_available_bytes,
        holders={} if gpu is None or held is None else {gpu.uuid or "": held},
    )
    product_request = BenchRequest(kernels=(product.id,), size=request.size, seed=request.seed)
    plan = Plan(product_request, {product.id: product}, resources)
    (group,) = plan.groups
    # Who shares the memory may need more of it.
    outputs = _outputs_in(gpu, group, resources) if gpu is not None and held is None else 1
    check = Corruption(
        device="cpu" if gpu is None else gpu.device,
        gpu_uuid=None if gpu is None else gpu.uuid,
        dtype=dtype,
        shape=group.shape,
        words=group.shape[0] * group.shape[2],
        output_bytes=0 if group.taken else outputs * product_bytes(group.shape, dtype),
        failure=next(iter(group.taken.values()), None),
    )
    return check, () if group.taken else plan.notes


def _outputs_in(gpu: BenchGpu, group: Group, resources: Resources) -> int:
    """Return the number of results that the plan's share of a GPU's free memory holds at once."""
    edge = group.shape[0]

    def is_too_much(outputs: int) -> bool:
        product = _ProductKernel(group.dtype, edge, outputs)
        return not fits(product, group.dtype, edge, resources, (gpu,))

    return max(1, bisect_left(range(1, _MOST_OUTPUTS + 1), True, key=is_too_much))


def heaviest_format(gpu: BenchGpu) -> str:
    """Return the format that loads this GPU most."""
    fitting = (name for name in HEAVIEST if missing_format(FORMATS[name], gpu) is None)
    return next(fitting, "float32")


# ------------------------------------------------------------------------------ products

SOURCE = Path(__file__).with_name("sdc.cu")
_THREADS = 256
_BLOCKS_PER_SM = 4
#: No index yet: any mismatch has a smaller one.
_NOWHERE = 2**64 - 1


class GpuProduct:
    """Products by cuBLAS, compared on the GPU; `outputs` of them lie in its memory at once."""

    def __init__(self, gpu: GpuDevice, order: CaseOrder, outputs: int) -> None:
        self._gpu = gpu
        self._order = order
        self._outputs = outputs
        self._form = FORMATS[order.dtype]
        self._product = Product(math_mode=self._form.math_mode)
        self._arrays: tuple[GpuArray, ...] = ()
        self._oldest: Iterator[GpuArray] = iter(())
        self._differ: GpuFunction | None = None

    def prepare(self) -> tuple[str, Verified]:
        """Put the factors into GPU memory, multiply for the first time, and fill the memory."""
        import numpy as np

        m, _, n = self._order.shape
        storage = STORAGES[self._form.output]
        left, right = (self._gpu.upload(side) for side in draw_inputs(self._order))
        counters = self._gpu.upload(np.array([0, _NOWHERE, 0, 0], dtype=np.uint64))
        first, *others = (self._gpu.allocate((m, n), storage) for _ in range(1 + self._outputs))
        self._arrays = (left, right, first, counters)
        self._oldest = cycle(others)
        self._differ = self._compiled("differ")
        for out in (first, *others):
            # Without this, a product that was not computed would pass as what lay there before.
            self._gpu.poison(out)
            self._gpu.multiply(left, right, out, self._product)
        # The timer is compiled at its first use: not while products are counted.
        self._gpu.span(self._gpu.synchronize, held=False)
        digest = self._digest(first)
        return digest, verify_product(self._order, self._gpu.download(first), form=self._form)

    def _digest(self, array: GpuArray) -> str:
        import numpy as np

        total = self._gpu.upload(np.zeros(1, dtype=np.uint64))
        self._launch(self._compiled("digest"), (array, self._count(), total))
        return f"{int(self._gpu.download(total)[0]):016x}"

    def repeat(self, count: int) -> float:
        """Compare the oldest result and multiply into its place, `count` times.

        Return the seconds that the products take, by the time of one of them.
        """
        left, right, first, counters = self._arrays
        assert self._differ is not None
        seconds = 0.0
        for turn in range(count):
            oldest = next(self._oldest)
            self._launch(self._differ, (first, oldest, self._count(), counters))
            renew = partial(self._gpu.multiply, left, right, oldest, self._product)
            if turn:
                renew()
            else:
                seconds = count * self._gpu.span(renew, held=False).seconds
        self._gpu.synchronize()
        return seconds

    def differences(self) -> BitDifferences:
        """Return the differences so far."""
        return read_differences(self._gpu.download(self._arrays[3]))

    def release(self) -> None:
        """Release the GPU memory."""
        self._arrays, self._oldest = (), iter(())
        self._differ = None
        self._gpu.release()

    def _compiled(self, name: str) -> GpuFunction:
        source = SOURCE.read_text(encoding="utf-8")
        return self._gpu.compile(source, name, {"ELEMENT": ELEMENTS[self._form.output]})

    def _launch(self, function: GpuFunction, arguments: tuple[object, ...]) -> None:
        function(_BLOCKS_PER_SM * self._gpu.facts.sm_count, _THREADS, arguments)

    def _count(self) -> object:
        import numpy as np

        m, _, n = self._order.shape
        return np.int64(m * n)


class CpuProduct:
    """Products by NumPy's BLAS, compared in NumPy as the GPU kernels do."""

    def __init__(self, order: CaseOrder) -> None:
        self._order = order
        self._form = FORMATS[order.dtype]
        self._differences = BitDifferences()
        self._arrays: tuple[HostArray, ...] = ()

    def prepare(self) -> tuple[str, Verified]:
        """Multiply for the first time."""
        import numpy as np

        m, _, n = self._order.shape
        left, right = draw_inputs(self._order)
        first, again = (np.full((m, n), np.nan, dtype=self._order.dtype) for _ in range(2))
        self._arrays = (left, right, first, again)
        np.matmul(left, right, out=first)
        return digest(first, self._form.output), verify_product(self._order, first, form=self._form)

    def repeat(self, count: int) -> float:
        """Multiply and compare `count` times; return the seconds that the products took."""
        import numpy as np

        left, right, first, again = self._arrays
        seconds = 0.0
        for _ in range(count):
            again.fill(np.nan)
            start_s = self._order.clock()
            np.matmul(left, right, out=again)
            seconds += self._order.clock() - start_s
            self._differences = combined(
                self._differences, compare_bits(first, again, self._form.output)
            )
        return seconds

    def differences(self) -> BitDifferences:
        """Return the differences so far."""
        return self._differences

    def release(self) -> None:
        """Drop the arrays."""
        self._arrays = ()
