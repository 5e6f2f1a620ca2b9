"""Silent data corruption (SDC): identical matrix products must give identical bits.

cuBLAS gives the same bits for the same problem on GPUs of one architecture and SM count, if only
one stream is active (cuBLAS documentation, "Results Reproducibility"). The first product is
compared with float64, and every later one with the first, number by number. A tolerance would pass
most defects: few wrong results are NaN, and many differ only in the last digits. The digest of the
first product tells identical GPUs apart if one always computes the same wrong result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpucheck.bench.case import CaseOrder
from gpucheck.bench.corruption_model import Corruption
from gpucheck.bench.data import HostData
from gpucheck.bench.model import BenchRequest
from gpucheck.bench.repeated_product import PlannedProduct, plan_product
from gpucheck.bench.repeaters import CpuRepeater, GpuRepeater, Repeater
from gpucheck.drivers.gpu import GpuDevice
from gpucheck.drivers.host.blas import BlasDoor
from gpucheck.drivers.host.clock import Clock
from gpucheck.drivers.host.cpu import CpuFacts
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import GpucheckError

#: Most products between two reads of the counters, and most reads (if the clock stands still).
_MOST_BATCH, _MOST_BATCHES = 256, 100_000


def repetitions_on(
    gpus: Sequence[GpuDevice],
    request: BenchRequest,
    *,
    with_cpu: bool,
    clock: Clock,
    cpu: CpuFacts,
    blas: BlasDoor,
    holders: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Repetition, ...]:
    """Plan the repetition of one product on each device; nothing is allocated yet.

    `holders` names the holders of a GPU's memory, by UUID.

    Raises:
        WrongUseError: the size or seed is invalid, or the size does not fit into memory.
        InconclusiveError: the host has no memory left.
    """
    found = [repetition_on(None, request, clock=clock, cpu=cpu, blas=blas)] if with_cpu else []
    for gpu in gpus:
        held = holders.get(gpu.facts.uuid or "")
        found.append(repetition_on(gpu, request, clock=clock, cpu=cpu, blas=blas, held=held))
    return tuple(found)


def repetition_on(
    gpu: GpuDevice | None,
    request: BenchRequest,
    *,
    clock: Clock,
    cpu: CpuFacts,
    blas: BlasDoor,
    held: str | None = None,
) -> Repetition:
    """Plan the repetition of the heaviest product on a GPU, or on the CPU for None.

    `held` names the holders of the GPU's memory, if known.

    Raises:
        WrongUseError: the size or seed is invalid, or the size does not fit into memory.
        InconclusiveError: the host has no memory left.
    """
    planned = plan_product(None if gpu is None else gpu.facts, request, cpu, held=held)
    order = CaseOrder(
        request=request,
        shape=planned.shape,
        dtype=planned.dtype,
        data=HostData(request.seed, request.fill),
        cpu=cpu,
        clock=clock,
        blas=blas,
        gpus=() if gpu is None else (gpu,),
    )
    if gpu is None:
        return Repetition(CpuRepeater(order), planned, clock, device="cpu")
    device = f"gpu:{gpu.facts.cuda_index}"
    repeater = GpuRepeater(gpu, order)
    return Repetition(repeater, planned, clock, device=device, gpu_uuid=gpu.facts.uuid)


def repeat_on_each(
    repetitions: Sequence[Repetition], seconds: float
) -> tuple[tuple[Corruption, ...], bool]:
    """Repeat on one device after the other, for `seconds` each.

    Return the checks of the devices that began, and whether the user interrupted them.
    """
    begun: list[Repetition] = []
    interrupted = False
    try:
        for repetition in repetitions:
            begun.append(repetition)
            repetition.begin()
            repetition.run_for(seconds)
            repetition.end()
    except KeyboardInterrupt:
        interrupted = True
        begun[-1].end()
    return tuple(repetition.check for repetition in begun), interrupted


class Repetition:
    """Repeated products on one device, for a given time or until the end of a burn.

    `notes` tell the user about the choice of the product.
    """

    def __init__(
        self,
        repeater: Repeater,
        planned: PlannedProduct,
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
            dtype=planned.dtype,
            shape=planned.shape,
            words=planned.shape[0] * planned.shape[2],
            failure=planned.taken,
        )
        self._batch = 1
        self.notes = planned.notes

    @property
    def check(self) -> Corruption:
        """Return the check so far."""
        return self._check

    def begin(self) -> None:
        """Multiply for the first time; an error goes into the check's `failure`."""
        if self._check.failure is not None:
            return
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
        """Repeat for `seconds`, at least once, and return the seconds taken.

        An error ends the repetition.
        """
        start_s = self._clock.now_s()
        try:
            for _ in range(_MOST_BATCHES):
                if self._check.failure is not None:
                    break
                before_s = self._clock.now_s()
                self._repeater.repeat(self._batch)
                self._count(self._batch)
                # Few reads, and yet the time is not exceeded by much.
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
        """Release the memory and return the check."""
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
            memory = Failure(
                code="out-of-memory", message="the host does not have enough free memory"
            )
            failure = Failure.of(error) if isinstance(error, GpucheckError) else memory
            self._check = replace(self._check, failure=failure)


def is_corrupt(check: Corruption) -> bool:
    """Return whether a device computed wrong: changed bits, or a first result off float64."""
    return check.mismatches > 0 or check.reference_ok is False


def deviating_digests(checks: Sequence[Corruption], model_of: Mapping[str, str]) -> dict[str, str]:
    """Return the devices whose first result differs from identical ones, each with a sentence.

    `model_of` gives the model of each device. Of two identical devices both are named, since one of
    them is wrong. With three or more, the majority is taken to be right. A device may have several
    checks, from separate processes.
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
                found[check.device] = (
                    f"its digest is {check.digest}; no digest has a majority, so the wrong one is "
                    "unknown"
                )
            elif check.digest != usual:
                others = {one.device for one in group if one.digest == usual} - {check.device}
                whose = f"{len(others)} identical GPUs have" if others else "other processes have"
                found[check.device] = f"its digest is {check.digest}, {whose} {usual}"
    return found


def corruption_sentence(check: Corruption) -> str:
    """Return one sentence on a device's products: the error, or that all bits match."""
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
