"""Silent corruption: identical matrix products must give identical bits, here and on every twin.

cuBLAS gives the same bits for the same problem on the same architecture with as many SMs, as long
as one stream is at work (cuBLAS documentation, "Results Reproducibility"). So the first product is
held against float64, and every later one against the first, number by number. A tolerance would
pass most of what breaks: few wrong results are NaN, and many differ in the last digits only. The
digest of the first product tells twins apart where a GPU computes the same wrong thing each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpucheck.core.bench.bits import ELEMENTS, Differences, differences, digest, joined, read_found
from gpucheck.core.bench.data import HostData
from gpucheck.core.bench.formats import FORMATS, STORAGES, Format
from gpucheck.core.bench.kernel import CaseOrder
from gpucheck.core.bench.kernels.matmul import draw_inputs, missing_format, verify_product
from gpucheck.core.bench.record import as_failure
from gpucheck.models.bench import BenchRequest, Verified
from gpucheck.models.corruption import Corruption
from gpucheck.models.errors import GpucheckError
from gpucheck.models.report import Failure
from gpucheck.probes.blas import BlasDoor
from gpucheck.probes.clock import Clock
from gpucheck.probes.cpu import CpuFacts
from gpucheck.probes.gpu import GpuArray, GpuDevice, GpuFunction, Product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: The formats in the order in which they load a GPU most.
HEAVIEST = ("bfloat16", "float16", "float32")
SOURCE = Path(__file__).with_name("corruption.cu")
_THREADS = 256
_BLOCKS_PER_SM = 8
#: "No index": the first mismatch can only be before it.
_NOWHERE = 2**64 - 1
#: Edges of the matrices: large enough to load all of the device, small enough to fit any.
_GPU_EDGE, _CPU_EDGE = 8192, 1024
#: Products between two looks at the counters, and looks at most (for a clock that stands still).
_MOST_BATCH, _MOST_BATCHES = 256, 100_000


class Repeater(Protocol):
    """Repeats one product on one device and compares every result with the first."""

    @property
    def format_name(self) -> str:
        """Return the format of the product."""
        ...

    def prepare(self) -> tuple[str, Verified]:
        """Multiply for the first time; return the digest, and how far it is from float64."""
        ...

    def repeat(self, count: int) -> None:
        """Multiply and compare so many times, and wait for the end of it."""
        ...

    def differences(self) -> Differences:
        """Return what the comparisons found so far."""
        ...

    def release(self) -> None:
        """Give the memory back."""
        ...


class GpuRepeater:
    """The products by cuBLAS, compared where they are."""

    def __init__(self, gpu: GpuDevice, order: CaseOrder) -> None:
        self._gpu = gpu
        self._order = order
        self._form = FORMATS[order.dtype]
        self._product = Product(math_mode=self._form.math_mode)
        self._arrays: tuple[GpuArray, ...] = ()
        self._differ: GpuFunction | None = None

    @property
    def format_name(self) -> str:
        """Return the format of the product."""
        return self._form.name

    def prepare(self) -> tuple[str, Verified]:
        """Put the factors into GPU memory and multiply for the first time."""
        import numpy as np

        m, _, n = self._order.shape
        storage = STORAGES[self._form.output]
        left, right = (self._gpu.upload(side) for side in draw_inputs(self._order))
        first, again = (self._gpu.allocate((m, n), storage) for _ in range(2))
        found = self._gpu.upload(np.array([0, _NOWHERE, 0, 0], dtype=np.uint64))
        self._arrays = (left, right, first, again, found)
        self._differ = self._compiled("differ")
        self._gpu.poison(first)
        self._gpu.multiply(left, right, first, self._product)
        digest = self._digest(first)
        return digest, verify_product(self._order, self._gpu.download(first), form=self._form)

    def _digest(self, array: GpuArray) -> str:
        import numpy as np

        total = self._gpu.upload(np.zeros(1, dtype=np.uint64))
        self._launch(self._compiled("digest"), (array, self._count(), total))
        return f"{int(self._gpu.download(total)[0]):016x}"

    def repeat(self, count: int) -> None:
        """Multiply and compare so many times."""
        left, right, first, again, found = self._arrays
        assert self._differ is not None
        for _ in range(count):
            # A product that is not computed at all must not pass as the one before it.
            self._gpu.poison(again)
            self._gpu.multiply(left, right, again, self._product)
            self._launch(self._differ, (first, again, self._count(), found))
        self._gpu.synchronize()

    def differences(self) -> Differences:
        """Return what the comparisons found so far."""
        return read_found(self._gpu.download(self._arrays[4]))

    def release(self) -> None:
        """Give the GPU memory back."""
        self._arrays = ()
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


class CpuRepeater:
    """The products by NumPy's BLAS, compared by the twin of the GPU's kernels."""

    def __init__(self, order: CaseOrder) -> None:
        self._order = order
        self._form = FORMATS[order.dtype]
        self._found = Differences()
        self._arrays: tuple[HostArray, ...] = ()

    @property
    def format_name(self) -> str:
        """Return the format of the product."""
        return self._form.name

    def prepare(self) -> tuple[str, Verified]:
        """Multiply for the first time."""
        import numpy as np

        m, _, n = self._order.shape
        left, right = draw_inputs(self._order)
        first, again = (np.full((m, n), np.nan, dtype=self._order.dtype) for _ in range(2))
        self._arrays = (left, right, first, again)
        np.matmul(left, right, out=first)
        return digest(first, self._form.output), verify_product(self._order, first, form=self._form)

    def repeat(self, count: int) -> None:
        """Multiply and compare so many times."""
        import numpy as np

        left, right, first, again = self._arrays
        for _ in range(count):
            again.fill(np.nan)
            np.matmul(left, right, out=again)
            self._found = joined(self._found, differences(first, again, self._form.output))

    def differences(self) -> Differences:
        """Return what the comparisons found so far."""
        return self._found

    def release(self) -> None:
        """Drop the arrays."""
        self._arrays = ()


def heaviest_format(gpu: GpuDevice) -> Format:
    """Return the format whose product loads this GPU most."""
    fitting = [
        FORMATS[name] for name in HEAVIEST if missing_format(FORMATS[name], gpu.facts) is None
    ]
    return fitting[0] if fitting else FORMATS["float32"]


def check_devices(
    request: BenchRequest,
    gpus: Sequence[GpuDevice],
    *,
    with_cpu: bool,
    seconds: float,
    clock: Clock,
    cpu: CpuFacts,
    blas: BlasDoor,
) -> tuple[Corruption, ...]:
    """Repeat one product on each device for so many seconds, and say what differed."""
    found = []
    for gpu in (*((None,) if with_cpu else ()), *gpus):
        repetition = repetition_on(gpu, request, clock=clock, cpu=cpu, blas=blas)
        repetition.begin()
        repetition.run_for(seconds)
        found.append(repetition.end())
    return tuple(found)


def repetition_on(
    gpu: GpuDevice | None,
    request: BenchRequest,
    *,
    clock: Clock,
    cpu: CpuFacts,
    blas: BlasDoor,
) -> Repetition:
    """Return the repetition of the heaviest product on a GPU, on the processor for None."""
    form = FORMATS["float32"] if gpu is None else heaviest_format(gpu)
    edge = request.size or (_CPU_EDGE if gpu is None else _fitting_edge(gpu, form))
    order = CaseOrder(
        request=request,
        shape=(edge, edge, edge),
        dtype=form.name,
        data=HostData(request.seed, request.fill),
        cpu=cpu,
        clock=clock,
        blas=blas,
        gpus=() if gpu is None else (gpu,),
    )
    if gpu is None:
        return Repetition(CpuRepeater(order), order, clock, device="cpu")
    device = f"gpu:{gpu.facts.cuda_index}"
    repeater = GpuRepeater(gpu, order)
    return Repetition(repeater, order, clock, device=device, gpu_uuid=gpu.facts.uuid)


def _fitting_edge(gpu: GpuDevice, form: Format) -> int:
    """Return the largest power of two of which four matrices take at most half the free memory."""
    edge = _GPU_EDGE
    while edge > _CPU_EDGE and 4 * form.itemsize * edge**2 > gpu.facts.memory_free_bytes / 2:
        edge //= 2
    return edge


class Repetition:
    """One device's repeated products on their way, for a stretch of time or for long."""

    def __init__(
        self,
        repeater: Repeater,
        order: CaseOrder,
        clock: Clock,
        *,
        device: str,
        gpu_uuid: str | None = None,
    ) -> None:
        self._repeater = repeater
        self._clock = clock
        self._check = Corruption(
            device=device,
            gpu_uuid=gpu_uuid,
            dtype=order.dtype,
            shape=order.shape,
            words=order.shape[0] * order.shape[2],
        )
        self._batch = 1

    @property
    def check(self) -> Corruption:
        """Return what was found so far."""
        return self._check

    def begin(self) -> None:
        """Multiply for the first time; what the device refuses stands in the check's `failure`."""
        try:
            digest, verified = self._repeater.prepare()
        except (GpucheckError, MemoryError) as error:
            self._fail(error)
        else:
            self._check = replace(
                self._check,
                digest=digest,
                reference_ok=verified.ok,
                reference_error=verified.error,
                reference_bound=verified.bound,
            )

    def run_for(self, seconds: float) -> float:
        """Repeat for so long, at least once; return the seconds it took.

        After an error there is nothing more to repeat.
        """
        start_s = self._clock.now_s()
        try:
            for _ in range(_MOST_BATCHES):
                if self._check.failure is not None:
                    break
                before_s = self._clock.now_s()
                self._repeater.repeat(self._batch)
                self._count(self._batch)
                # Few comparisons reach the host, and yet none of the time is overdrawn by much.
                if self._clock.now_s() - before_s < seconds / 8:
                    self._batch = min(2 * self._batch, _MOST_BATCH)
                if self._clock.now_s() - start_s >= seconds:
                    break
        except (GpucheckError, MemoryError) as error:
            self._fail(error)
        taken_s = self._clock.now_s() - start_s
        self._check = replace(self._check, seconds=self._check.seconds + taken_s)
        return taken_s

    def end(self) -> Corruption:
        """Give the memory back and return what was found."""
        try:
            self._repeater.release()
        except GpucheckError as error:
            self._fail(error)
        return self._check

    def _count(self, repeats: int) -> None:
        found = self._repeater.differences()
        self._check = replace(
            self._check,
            products=self._check.products + repeats,
            mismatches=found.count,
            first_index=found.first,
            largest_ulp=found.largest_ulp,
            not_finite=found.nan_count,
        )

    def _fail(self, error: GpucheckError | MemoryError) -> None:
        if self._check.failure is None:
            memory = Failure(code="out-of-memory", message="the host has not enough free memory")
            failure = as_failure(error) if isinstance(error, GpucheckError) else memory
            self._check = replace(self._check, failure=failure)


def is_corrupt(check: Corruption) -> bool:
    """Return whether a device computed wrong: bits that changed, or a first result off float64."""
    return check.mismatches > 0 or check.reference_ok is False


def deviating_digests(checks: Sequence[Corruption], model_of: Mapping[str, str]) -> dict[str, str]:
    """Return the devices whose first result differs from their twins', with a sentence for each.

    `model_of` says which devices are identical, by device. With two of a kind both are named: one
    of them is wrong. Most of three or more are taken to be right.
    """
    groups: dict[tuple[object, ...], list[Corruption]] = {}
    for check in checks:
        if check.digest is not None and check.device in model_of:
            key = (model_of[check.device], check.dtype, check.shape)
            groups.setdefault(key, []).append(check)
    found: dict[str, str] = {}
    for group in groups.values():
        counts = Counter(check.digest for check in group)
        if len(counts) < 2:
            continue
        (usual, most), (_, second) = counts.most_common(2)
        for check in group:
            if most == second:
                found[check.device] = f"its digest is {check.digest}, and no digest has a majority"
            elif check.digest != usual:
                found[check.device] = (
                    f"its digest is {check.digest}, that of {most} identical GPUs is {usual}"
                )
    return found


def corruption_sentence(check: Corruption) -> str:
    """Say what is wrong with a device's products, or that nothing is."""
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
            f"the product is {check.reference_error:.2g} off float64, "
            f"allowed is {check.reference_bound or 0:.2g}"
        )
    return f"{check.products} identical products of {check.words} numbers: every bit the same"
