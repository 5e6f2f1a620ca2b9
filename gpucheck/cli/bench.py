"""`gpucheck bench`: the same work on the CPU and on the GPU, measured, verified and compared."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.burning import BurnLimit, BurnSeconds, run_burn_command
from gpucheck.cli.gating import check_alone, run_with_profile
from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import deliver, report_now
from gpucheck.cli.repeating import repeat
from gpucheck.cli.reporting import Github, Junit, open_outlets
from gpucheck.cli.saving import (
    AgainstBaseline,
    AllowDifference,
    Processes,
    Save,
    UpdateBaseline,
    open_saving,
)
from gpucheck.cli.shared import Shared, split_words
from gpucheck.core.inventory import complete_host
from gpucheck.core.visibility import digits_of, gpu_uuid
from gpucheck.models.bench import BenchMode, BenchRequest, Fill, SampleDetail
from gpucheck.models.errors import WrongUseError
from gpucheck.models.report import Answer
from gpucheck.probes.interface import NvmlQuestion, Probes

if TYPE_CHECKING:
    from gpucheck.core.bench.surroundings import Surroundings
    from gpucheck.models.bench import BenchResult
    from gpucheck.models.snapshot import CudaReading, NvmlReading
    from gpucheck.probes.blas import BlasDoor
    from gpucheck.probes.clock import Clock
    from gpucheck.probes.cpu import CpuProbe
    from gpucheck.probes.gpu import OpenedGpus


@with_shared_options
def command(
    *,
    kernels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KERNEL...]",
            help="matmul, softmax, copy, triad, transfer, launch, train, batch, towers, p2p "
            "[default: all].",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device", "-d", metavar="LIST", help="cpu, gpu, gpu:N or all [default: all]."
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", metavar="N", help="Edge of the square problem; when training, the batch."
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(
            "--dtype",
            metavar="LIST",
            help="float64, float32, tf32, float16, bfloat16, int8 [default: by kernel].",
        ),
    ] = None,
    fill: Annotated[
        Fill, typer.Option("--fill", help="What the arrays hold; zeros show the power headroom.")
    ] = Fill.NORMAL,
    towers: Annotated[
        int, typer.Option("--towers", metavar="N", help="Towers to simulate on one device.")
    ] = 2,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", metavar="FILE", help="MNIST in IDX or NPZ to train on, not generated images."
        ),
    ] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", metavar="T", help="Softmax temperature.")
    ] = 0.7,
    quick: Annotated[bool, typer.Option("--quick", help="Answer within about 10 seconds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Be thorough: about 5 minutes.")] = False,
    budget: Annotated[
        float | None, typer.Option("--budget", metavar="SECONDS", help="Time for measuring.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the random data.")] = 0,
    samples: Annotated[
        SampleDetail, typer.Option("--samples", help="Samples in the JSON document.")
    ] = SampleDetail.ALL,
    corruption: Annotated[
        float,
        typer.Option(
            "--corruption",
            metavar="SECONDS",
            help="Repeat one product this long and compare the results bit for bit.",
        ),
    ] = 0.0,
    save: Save = None,
    update_baseline: UpdateBaseline = False,
    baseline: AgainstBaseline = None,
    allow_difference: AllowDifference = None,
    processes: Processes = None,
    junit: Junit = None,
    github: Github = None,
    burn: BurnSeconds = None,
    burn_limit: BurnLimit = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="NAME|FILE", help="Measure and judge what this profile says."
        ),
    ] = None,
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Exit 4 if no GPU can be measured.")
    ] = False,
    shared: Shared,
) -> int:
    """Time the CPU against the GPU, and verify both."""
    _check(shared, quick=quick, full=full)
    request = BenchRequest(
        kernels=tuple(kernels or ()),
        devices=split_words(device) or ("all",),
        size=size,
        dtypes=split_words(dtype),
        mode=BenchMode.QUICK if quick else BenchMode.FULL if full else BenchMode.DEFAULT,
        budget_s=budget,
        seed=seed,
        samples=samples,
        temperature=temperature,
        fill=fill,
        towers=towers,
        data_file=None if data is None else str(data),
    )
    gc.enable()
    quiet = shared.verbosity < 0
    outlets = open_outlets(junit, github=github)
    with outlets.guarded("bench"):
        saving = open_saving(
            save,
            update=update_baseline,
            baseline=baseline,
            allow_difference=allow_difference,
            processes=processes,
        )
        if profile is not None:
            check_alone(request, corruption_s=corruption, processes=processes, burn=burn)
            return run_with_profile(profile, split_words(device), shared, saving, outlets)
        if burn is not None:
            return run_burn_command(request, shared, outlets, seconds=burn, limit_c=burn_limit)

        def find(probes: Probes) -> Answer:
            if saving.repeats:
                return repeat(request, probes, saving, corruption_s=corruption, quiet=quiet)
            return _measure(
                *(request, probes),
                require_gpu=require_gpu,
                quiet=quiet,
                corruption_s=corruption,
                finish=lambda answer: report_now("bench", shared, answer, outlets.write),
            )

        return deliver("bench", shared, find, also=outlets.write)


def _check(shared: Shared, *, quick: bool, full: bool) -> None:
    """Refuse what contradicts itself, and a snapshot, which cannot be measured."""
    if quick and full:
        message = "--quick and --full contradict each other: give one of them."
        raise WrongUseError(code="two-modes", message=message)
    if shared.recording is not None:
        message = "bench measures this machine: it cannot answer from a snapshot (--from)."
        raise WrongUseError(code="bench-from-snapshot", message=message)


def _measure(
    request: BenchRequest,
    probes: Probes,
    *,
    require_gpu: bool,
    quiet: bool,
    corruption_s: float,
    finish: Callable[[Answer], None],
) -> Answer:
    """Measure in this process. `finish` reports an answer when this function cannot return it."""
    from gpucheck.cli.progress import progress_bar
    from gpucheck.cli.stuck import ending_when_stuck
    from gpucheck.core.bench import run_bench
    from gpucheck.core.bench.claiming import hold_gpus
    from gpucheck.core.bench.outcome import conclude
    from gpucheck.core.picking import own_command
    from gpucheck.probes.blas import ThreadpoolBlas
    from gpucheck.probes.clock import MonotonicClock
    from gpucheck.probes.cpu import LinuxCpu
    from gpucheck.probes.turn import wait_for_turn

    reading = probes.nvml(NvmlQuestion())
    host = complete_host(probes.host(), reading)
    cuda = None if set(request.devices) <= {"cpu"} else probes.cuda()
    gpus = _open_gpus(request.devices, cuda, reading)
    around = _surroundings(probes, reading, cuda)
    clock, cpu, blas = MonotonicClock(), LinuxCpu(), ThreadpoolBlas()
    uuids = [gpu.facts.uuid for gpu in gpus.devices if gpu.facts.uuid is not None]
    claims = hold_gpus(uuids, reading, os.environ, own_command(sys.orig_argv))

    def end(result: BenchResult) -> None:
        finish(conclude(result, host, require_gpu=require_gpu))

    with (
        claims as claimed,
        wait_for_turn(os.environ),
        progress_bar(shown=not quiet) as progress,
        ending_when_stuck(end) as offer,
    ):
        around = replace(around, claims=claimed.others, notes=claimed.notes)
        result = run_bench(
            request,
            clock=clock,
            cpu=cpu,
            blas=blas,
            gpus=gpus,
            around=around,
            progress=progress,
            offer=offer,
        )
        if corruption_s > 0 and not result.interrupted:
            result = _with_corruption(result, request, gpus, corruption_s, (clock, cpu, blas))
    return conclude(result, host, require_gpu=require_gpu)


def _with_corruption(
    result: BenchResult,
    request: BenchRequest,
    gpus: OpenedGpus,
    seconds: float,
    doors: tuple[Clock, CpuProbe, BlasDoor],
) -> BenchResult:
    from gpucheck.core.bench.corruption import check_devices

    clock, cpu, blas = doors
    with_cpu = bool({"cpu", "all"} & set(request.devices))
    checks = check_devices(
        request,
        gpus.devices,
        with_cpu=with_cpu,
        seconds=seconds,
        clock=clock,
        cpu=cpu.facts(),
        blas=blas,
    )
    return replace(result, corruption=checks)


def _surroundings(probes: Probes, reading: NvmlReading, cuda: CudaReading | None) -> Surroundings:
    """Return what is known of the GPUs before CUDA opened them, and who reads their sensors."""
    from gpucheck.core.bench.surroundings import Surroundings, holders_of, nearness, variables_of
    from gpucheck.core.choice_rank import cpus_in
    from gpucheck.probes.telemetry import NoTelemeter, NvmlTelemeter

    variables = variables_of(os.environ)
    if cuda is None:
        return Surroundings(variables=variables)
    kernel = probes.kernel()
    known = {gpu.uuid: gpu for gpu in reading.gpus if gpu.uuid is not None}
    affinity = {item.pci_bus_id: item.cpu_affinity or "" for item in kernel.pci_devices or ()}
    next_to = {uuid: cpus_in(affinity.get(gpu.pci_bus_id or "", "")) for uuid, gpu in known.items()}
    near, far = nearness(next_to, frozenset(os.sched_getaffinity(0)))
    failure = reading.failure
    owners = probes.identify({one.pid for gpu in known.values() for one in gpu.processes})
    holders = {uuid: holders_of(gpu.processes, owners) for uuid, gpu in known.items()}
    return Surroundings(
        telemeter=NvmlTelemeter() if failure is None else NoTelemeter(failure.message),
        pci_device_ids={
            uuid: gpu.pci_device_id for uuid, gpu in known.items() if gpu.pci_device_id is not None
        },
        processes={
            uuid: frozenset(process.pid for process in gpu.processes) for uuid, gpu in known.items()
        },
        near_cpus=near,
        far=far,
        holders={uuid: text for uuid, text in holders.items() if text is not None},
        integrated={
            gpu_uuid(item.uuid_hex): item.integrated
            for item in cuda.devices
            if item.uuid_hex and item.integrated is not None
        },
        variables=variables,
    )


def _open_gpus(
    devices: tuple[str, ...], cuda: CudaReading | None, reading: NvmlReading
) -> OpenedGpus:
    """Open just the GPUs that are asked for: opening one takes memory on it.

    CuPy works in this process, where a hung driver would hang us: a child asks the driver first.
    """
    from gpucheck.probes.cupy_device import open_gpus
    from gpucheck.probes.gpu import OpenedGpus

    wanted = [name for name in devices if name != "cpu"]
    if cuda is None:
        return OpenedGpus()
    if cuda.failure is not None:
        return OpenedGpus(unavailable=cuda.failure.message)
    # A MIG device has a UUID of its own kind, which only NVML's list tells from a GPU's.
    split = [mig.uuid for gpu in reading.gpus for mig in gpu.mig_instances if mig.uuid is not None]
    known = {digits_of(uuid): uuid for uuid in split}
    uuids = {
        item.ordinal: known.get(item.uuid_hex, gpu_uuid(item.uuid_hex))
        for item in cuda.devices
        if item.uuid_hex
    }
    numbers = [name.removeprefix("gpu:") for name in wanted]
    if all(number.isascii() and number.isdigit() for number in numbers):
        return open_gpus([int(number) for number in numbers], uuids=uuids)
    return open_gpus(uuids=uuids)
