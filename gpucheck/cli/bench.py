"""`gpucheck bench`: the same work on the CPU and on the GPU, measured, verified and compared."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import deliver
from gpucheck.cli.shared import Shared, split_words
from gpucheck.core.inventory import complete_host
from gpucheck.core.visibility import gpu_uuid
from gpucheck.models.bench import BenchMode, BenchRequest, Fill, SampleDetail
from gpucheck.models.errors import WrongUseError
from gpucheck.models.report import Answer
from gpucheck.probes.interface import NvmlQuestion, Probes

if TYPE_CHECKING:
    from gpucheck.core.bench.engine import Surroundings
    from gpucheck.models.snapshot import NvmlReading
    from gpucheck.probes.cupy_device import OpenedGpus


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
    require_gpu: Annotated[
        bool, typer.Option("--require-gpu", help="Exit 4 if no GPU can be measured.")
    ] = False,
    shared: Shared,
) -> int:
    """Time the CPU against the GPU, and verify both."""
    if quick and full:
        message = "--quick and --full contradict each other: give one of them."
        raise WrongUseError(code="two-modes", message=message)
    if shared.recording is not None:
        message = "bench measures this machine: it cannot answer from a snapshot (--from)."
        raise WrongUseError(code="bench-from-snapshot", message=message)
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

    def find(probes: Probes) -> Answer:
        return _measure(request, probes, require_gpu=require_gpu, quiet=shared.verbosity < 0)

    gc.enable()
    return deliver("bench", shared, find)


def _measure(request: BenchRequest, probes: Probes, *, require_gpu: bool, quiet: bool) -> Answer:
    from gpucheck.cli.progress import progress_bar
    from gpucheck.core.bench import run_bench
    from gpucheck.core.bench.outcome import conclude
    from gpucheck.probes.blas import ThreadpoolBlas
    from gpucheck.probes.clock import MonotonicClock
    from gpucheck.probes.cpu import LinuxCpu

    reading = probes.nvml(NvmlQuestion())
    host = complete_host(probes.host(), reading)
    with progress_bar(shown=not quiet) as progress:
        result = run_bench(
            request,
            clock=MonotonicClock(),
            cpu=LinuxCpu(),
            blas=ThreadpoolBlas(),
            gpus=_open_gpus(request.devices, probes),
            around=_surroundings(request.devices, reading),
            progress=progress,
        )
    return conclude(result, host, require_gpu=require_gpu)


def _surroundings(devices: tuple[str, ...], reading: NvmlReading) -> Surroundings:
    """Return what NVML told of the GPUs before CUDA opened them, and who will read their sensors.

    NOTE: claims are none yet. Once there are, a GPU held by another goes into `claims`, and the
    ones to be measured are claimed around `run_bench`.
    """
    from gpucheck.core.bench.engine import Surroundings
    from gpucheck.probes.telemetry import NoTelemeter, NvmlTelemeter

    if set(devices) <= {"cpu"}:
        return Surroundings()
    known = {gpu.uuid: gpu for gpu in reading.gpus if gpu.uuid is not None}
    failure = reading.failure
    return Surroundings(
        telemeter=NvmlTelemeter() if failure is None else NoTelemeter(failure.message),
        pci_device_ids={
            uuid: gpu.pci_device_id for uuid, gpu in known.items() if gpu.pci_device_id is not None
        },
        processes={
            uuid: frozenset(process.pid for process in gpu.processes) for uuid, gpu in known.items()
        },
    )


def _open_gpus(devices: tuple[str, ...], probes: Probes) -> OpenedGpus:
    """Open just the GPUs that are asked for: opening one takes memory on it.

    CuPy works in this process, where a hung driver would hang us: a child asks the driver first.
    """
    from gpucheck.probes.cupy_device import OpenedGpus, open_gpus

    wanted = [name for name in devices if name != "cpu"]
    if not wanted:
        return OpenedGpus()
    cuda = probes.cuda()
    if cuda.failure is not None:
        return OpenedGpus(unavailable=f"{cuda.failure.message} (run gpucheck detect)")
    uuids = {item.ordinal: gpu_uuid(item.uuid_hex) for item in cuda.devices if item.uuid_hex}
    numbers = [name.removeprefix("gpu:") for name in wanted]
    if all(number.isascii() and number.isdigit() for number in numbers):
        return open_gpus([int(number) for number in numbers], uuids=uuids)
    return open_gpus(uuids=uuids)
