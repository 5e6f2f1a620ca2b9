"""Benchmark session in this process: opens, claims and measures the devices.

`gpucheck bench` and `gpucheck.bench()` both use it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from numbers import Real

from gpucheck.bench.environment import cards_by_uuid, run_environment_of
from gpucheck.bench.frameworks import open_frameworks, use_gpus
from gpucheck.bench.model import (
    NO_TIME,
    NOTHING_SETTLED,
    BenchResult,
    Corruption,
    is_wrong,
    shared_fields,
)
from gpucheck.bench.plan import MEMORY_TAKEN, NO_GPU, check_device_names, select_devices
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.run import Bench
from gpucheck.bench.sampler import CLOCK_STUCK, CaseState
from gpucheck.bench.scheduler import Progress
from gpucheck.bench.sdc import (
    StressProduct,
    corruption_sentence,
    repeat_on_each,
    stress_product,
)
from gpucheck.drivers.cupy.device import open_gpus
from gpucheck.drivers.cupy.errors import BUSY
from gpucheck.drivers.gpu import BenchGpu, OpenedGpus
from gpucheck.drivers.host.blas import Blas, load_numpy
from gpucheck.drivers.host.clock import monotonic_s
from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.python.framework_bench import LACKS
from gpucheck.drivers.readings import HUNG, CudaDeviceReading, CudaReading, NvmlReading, NvmlRequest
from gpucheck.inventory.inventory import complete_host
from gpucheck.inventory.visibility import digits_of, gpu_uuid
from gpucheck.inventory.without_nvml import explain_absence
from gpucheck.place.claim_store import ClaimStore, Target
from gpucheck.place.claims import (
    Acquisition,
    ClaimOptions,
    NamedSelector,
    enclosing_ids,
    open_store,
    own_command,
)
from gpucheck.place.model import ProcessState
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    check_argument,
    check_seconds,
)
from gpucheck.report.host import Host

#: Errors that do not judge the device: no time was left, others hold it or its memory, or the
#: host's clock cannot be trusted, a framework has no such kernel.
_UNKNOWN = frozenset({NO_TIME, MEMORY_TAKEN, BUSY, CLOCK_STUCK, LACKS})
_UNSETTLED = Notice(
    code=NOTHING_SETTLED,
    message="no row has an interval (±), so no figure is settled: give more time (--budget).",
)


def bench_here(
    request: BenchRequest, probes: Probes, *, corruption_s: float, require_gpu: bool
) -> BenchResult:
    """Measure in this process and close the probes.

    Raises:
        GpucheckError: as `gpucheck.bench` documents.
        KeyboardInterrupt: the user interrupted it.
    """
    try:
        check_argument("require_gpu", require_gpu, "True or False", bool)
        with open_session(request, probes, os.environ, require_gpu=require_gpu) as bench:
            result = measure(bench, corruption_s=corruption_s)
    finally:
        probes.close()
    if result.interrupted:
        # The user wanted to end the calling program.
        raise KeyboardInterrupt
    return result


def check_corruption(seconds: float) -> None:
    """Check the time for repeated products.

    Raises:
        WrongUseError: it is negative, over a week or not a number.
    """
    check_argument("corruption_s", seconds, "seconds", Real)
    name, remedy = "A search for corruption", ("Give seconds, for example --corruption 10.",)
    check_seconds(name, seconds, least=0, code="bad-corruption", remedy=remedy)


@contextmanager
def open_session(
    request: BenchRequest,
    probes: Probes,
    environment: Mapping[str, str],
    *,
    require_gpu: bool = False,
) -> Iterator[Bench]:
    """Open the requested GPUs and claim them for the duration of the block, which measures them.

    CuPy runs in this process, which a hung driver would block: so a child asks the driver first.

    Raises:
        WrongUseError: a name is not a device.
        MissingError: a GPU is required and none can be measured.
        InconclusiveError: the same, but the driver does not answer, or others hold the GPU.
    """
    check_device_names(request.devices)
    load_numpy()
    on_gpus = not set(request.devices) <= {"cpu"}
    if on_gpus:
        probes.start_cuda()
    reading = probes.nvml(NvmlRequest())
    cuda = probes.cuda() if on_gpus else None
    gpus = _opened(request, cuda, reading, probes)
    facts = [*(gpu.facts for gpu in gpus.devices), *gpus.for_frameworks]
    if require_gpu and not facts:
        error = InconclusiveError if gpus.silent or gpus.busy else MissingError
        reason = (gpus.unavailable or "no GPU was requested").rstrip(".")
        raise error(
            code="gpu-required",
            message=f"A GPU is required, but none can be measured: {reason}.",
            remedy=gpus.remedy or ("Run: gpucheck detect",),
        )
    allowed = frozenset(os.sched_getaffinity(0))
    run_environment = run_environment_of(probes, reading, cuda, environment, allowed)
    threads = LinuxCpu().facts().threads
    uuids = [gpu.uuid for gpu in facts if gpu.uuid is not None]
    with (
        open_frameworks(request, environment, threads=threads, gpus=facts) as frameworks,
        hold_gpus(uuids, reading, environment, own_command(sys.orig_argv)) as (others, notes),
    ):
        host = complete_host(probes.host(), reading)
        yield Bench(
            request=request,
            clock=monotonic_s,
            cpu=LinuxCpu(children=frameworks.pids),
            blas=Blas(),
            gpus=gpus,
            run_environment=replace(run_environment, claims=others, notes=notes, host=host),
            frameworks=frameworks,
        )


def measure(
    bench: Bench,
    *,
    corruption_s: float = 0.0,
    progress: Progress = lambda label, fraction, seconds_left: None,
    watch: Callable[[Sequence[CaseState]], None] | None = None,
    offer: Callable[[Callable[[], BenchResult]], None] | None = None,
) -> BenchResult:
    """Measure, then repeat one product on each device for `corruption_s` seconds.

    `progress`, `watch` and `offer` are as in `Bench.run`.

    Raises:
        WrongUseError: the request is invalid or does not fit into memory.
        MissingError: nothing that it names is on this machine.
        InconclusiveError: the host has too little memory.
    """
    check_corruption(corruption_s)
    products: Sequence[StressProduct] = ()
    if corruption_s:
        # Planned before measuring, so that a mistake costs no time.
        processors = [None] if {"cpu", "all"} & set(bench.request.devices) else []
        holders = bench.run_environment.holders
        products = [
            stress_product(
                *(gpu, bench.request, bench.clock, bench.cpu.facts(), bench.blas),
                held=None if gpu is None else holders.get(gpu.facts.uuid or ""),
            )
            for gpu in (*processors, *bench.gpus.devices)
        ]
    result = bench.run(progress, watch, offer)
    unchecked = _unchecked(bench.request, bench.gpus) if corruption_s else ()
    if not (products or unchecked) or result.interrupted:
        return result
    corruption, interrupted = repeat_on_each(products, corruption_s)
    notes = (note for product in products for note in product.notes)
    return replace(
        result,
        corruption=(*corruption, *unchecked),
        interrupted=interrupted,
        notes=tuple(dict.fromkeys((*result.notes, *notes))),
    )


def _unchecked(request: BenchRequest, gpus: OpenedGpus) -> Sequence[Corruption]:
    """Return why nothing is repeated on the chosen GPUs that only frameworks can open."""
    if not gpus.for_frameworks:
        return ()
    reason = (gpus.unavailable or "gpucheck cannot open it").rstrip(".")
    failure = Failure(
        code=NO_GPU,
        message=f"no product can be repeated for --corruption: {reason}",
        remedy=gpus.remedy,
    )
    _, chosen = select_devices(request.devices, gpus)
    return [Corruption(device=gpu.device, gpu_uuid=gpu.uuid, failure=failure) for gpu in chosen]


def _opened(
    request: BenchRequest, cuda: CudaReading | None, reading: NvmlReading, probes: Probes
) -> OpenedGpus:
    """Open only the requested GPUs: opening one takes memory on it.

    Where none can be opened, the driver's facts about them are for frameworks: PyTorch, TensorFlow
    and JAX need no CuPy.
    """
    if cuda is None:
        return OpenedGpus()
    if cuda.failure is not None:
        silent = cuda.failure.code == HUNG
        reason, steps = explain_absence(cuda.failure, probes) or (cuda.failure.message, ())
        return OpenedGpus(unavailable=reason, remedy=steps, silent=silent)
    # Only NVML's list tells a MIG device's UUID from a GPU's.
    split = [mig.uuid for gpu in reading.gpus for mig in gpu.mig_instances if mig.uuid is not None]
    known = {digits_of(uuid): uuid for uuid in split}
    uuids = {
        item.ordinal: known.get(item.uuid_hex, gpu_uuid(item.uuid_hex))
        for item in cuda.devices
        if item.uuid_hex
    }
    numbers = [name.removeprefix("gpu:") for name in request.devices if name != "cpu"]
    named = all(number.isascii() and number.isdigit() for number in numbers)
    opened = open_gpus([int(number) for number in numbers] if named else None, uuids=uuids)
    if opened.devices:
        return opened
    shown = [item for item in cuda.devices if not named or str(item.ordinal) in numbers]
    opened = replace(opened, names=tuple(item.name for item in shown if item.name is not None))
    if opened.busy or not use_gpus(request.frameworks):
        return opened
    facts = (_driver_gpu(item, uuids.get(item.ordinal), reading) for item in shown)
    return replace(opened, for_frameworks=tuple(gpu for gpu in facts if gpu is not None))


def _driver_gpu(item: CudaDeviceReading, uuid: str | None, reading: NvmlReading) -> BenchGpu | None:
    """Return a GPU as the driver describes it; None if that is not enough to measure it."""
    total = item.memory_total_bytes
    if not (total and item.name and item.compute_capability and item.sm_count):
        return None
    if item.l2_bytes is None:
        return None
    board = cards_by_uuid(reading).get(uuid or "")
    free = None if board is None else board.memory_free_bytes
    return BenchGpu(
        **shared_fields(item, BenchGpu),
        cuda_index=item.ordinal,
        uuid=uuid,
        memory_free_bytes=total if free is None else min(free, total),
        float32_math="fp32",
        clock_sm_max_mhz=None if board is None else board.clock_sm_max_mhz,
    )


@contextmanager
def hold_gpus(
    uuids: Sequence[str], reading: NvmlReading, environment: Mapping[str, str], command: str
) -> Iterator[tuple[dict[str, str], tuple[str, ...]]]:
    """Claim the GPUs that no other process holds, for the duration of the block.

    Yield the claims of other processes, by UUID, and notes for the report. As in `place`, nothing
    is claimed inside a scheduler's allocation. If claims are impossible, a note says so: measuring
    does not depend on them.
    """
    others: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    with ExitStack() as kept:
        try:
            options = ClaimOptions(command=command)
            store = open_store(options, environment) if uuids else None
            if store is not None:
                enclosing = enclosing_ids(environment) | _own_ids(store)
                for uuid in uuids:
                    target = target_of(uuid, reading)
                    if target is not None:
                        reason = _claim(target, store, options, enclosing, kept)
                        others.update({} if reason is None else {uuid: reason})
        except GpucheckError as error:
            notes = (f"the GPUs are not claimed: {error.message}",)
        yield others, notes


def _own_ids(store: ClaimStore) -> frozenset[str]:
    """Return the ids of this process's own claims: `gpucheck.bench` inside `gpucheck.place`."""
    with store.mutex() as locked:
        held = locked.held()
    return frozenset(
        item.claim_id
        for item in held
        if item.claim_id is not None
        and item.user_id == os.geteuid()
        and item.holder.pid == os.getpid()
        and item.holder.process is ProcessState.RUNNING
    )


def _claim(
    target: Target,
    store: ClaimStore,
    options: ClaimOptions,
    enclosing: frozenset[str],
    kept: ExitStack,
) -> str | None:
    """Claim one GPU; return the reason if another process holds it, else None."""
    selector = NamedSelector(possible=(target,))
    try:
        lease = Acquisition(store, options, selector, enclosing=enclosing).run()
    except BadAnswerError:
        return selector.blocked.get(target.uuid, "held by another process")
    kept.callback(lease.close)
    return None


def target_of(uuid: str, reading: NvmlReading) -> Target | None:
    """Return the card or MIG instance to claim for a device's CUDA UUID, None if unknown to NVML.

    CUDA gives 128 bits for both kinds without a prefix, so only the digits are compared.
    """
    for gpu in reading.gpus:
        if gpu.uuid is None:
            continue
        if digits_of(gpu.uuid) == digits_of(uuid):
            return Target(card=gpu.uuid)
        for instance in gpu.mig_instances:
            if instance.uuid is not None and digits_of(instance.uuid) == digits_of(uuid):
                return Target(card=gpu.uuid, instance=instance.uuid)
    return None


def conclude(result: BenchResult, host: Host) -> Answer:
    """Return the result with its exit code: 130 interrupted, 1 failed, 3 unknown, 4, else 0.

    A row without convergence or time is 0 with its doubt if other rows of its device have figures.
    It is 3 if a device has no figure or repeated product because no time was left or others hold it
    or its memory, if a GPU is busy with another process, or if the clock stands still. A wrong
    result, or any other error of a row or a repetition, is 1. A GPU on which gpucheck itself cannot
    repeat a product is 4. Without an interval in any row there is a warning.
    """
    code, failure = _judge(result)
    timed = [row for row in result.measurements if row.time_s is not None]
    warnings = (_UNSETTLED,) if timed and all(row.ci95_s is None for row in timed) else ()
    return Answer(result=result, exit_code=code, host=host, error=failure, warnings=warnings)


def _judge(result: BenchResult) -> tuple[ExitCode, Failure | None]:
    if result.interrupted:
        measured = sum(row.time_s is not None for row in result.measurements)
        count = len(result.measurements)
        seconds = result.environment.duration_s
        message = (
            f"Interrupted after {seconds:.{1 if seconds < 9.95 else 0}f} s: "
            f"{measured} {'row' if measured == 1 else 'rows'} of {count} measured."
        )
        return ExitCode.INTERRUPTED, Failure(code="interrupted", message=message)
    errors = [row.error for row in result.measurements if row.error is not None]
    for error in errors:
        if error.code not in _UNKNOWN:
            return ExitCode.BAD, error
    for row in result.measurements:
        if is_wrong(row.verified):
            message = f"{row.kernel} on {row.device} computed a wrong result ({row.variant})."
            return ExitCode.BAD, Failure(code="wrong-result", message=message)
    refused = None
    if result.environment.gpus and result.environment.gpu_unavailable is not None:
        message = f"Not every GPU could be measured: {result.environment.gpu_unavailable}."
        remedy = result.environment.gpu_remedy or ("Run: gpucheck detect",)
        refused = Failure(code="gpu-refused", message=message, remedy=remedy)
    if refused is not None and not result.environment.gpu_silent:
        return ExitCode.BAD, refused
    corrupt = next((check for check in result.corruption if check.is_corrupt), None)
    if corrupt is not None:
        message = f"Silent data corruption on {corrupt.device}: {corruption_sentence(corrupt)}."
        remedy = ("Take it out of service and test it: gpucheck bench --burn 600",)
        return ExitCode.BAD, Failure(code="silent-corruption", message=message, remedy=remedy)
    undone = [check.failure for check in result.corruption if check.failure is not None]
    for failure in undone:
        if failure.code not in _UNKNOWN:
            return (ExitCode.MISSING if failure.code == NO_GPU else ExitCode.BAD), failure
    stuck = next((error for error in errors if error.code == CLOCK_STUCK), None)
    unknown = stuck or _without_figures(result) or next(iter(undone), None) or refused
    return (ExitCode.OK, None) if unknown is None else (ExitCode.INCONCLUSIVE, unknown)


def _without_figures(result: BenchResult) -> Failure | None:
    """Return why a device has no figures, None if every device has some."""
    errors = [row.error for row in result.measurements if row.error is not None]
    if errors and all(row.time_s is None for row in result.measurements):
        message = f"Nothing was measured: {errors[0].message.rstrip('.')}."
        return Failure(code="nothing-measured", message=message, remedy=errors[0].remedy)
    for device in dict.fromkeys(row.device for row in result.measurements):
        rows = [row for row in result.measurements if row.device == device]
        errors = [row.error for row in rows if row.error is not None]
        if errors and all(row.time_s is None for row in rows):
            return errors[0]
    return None
