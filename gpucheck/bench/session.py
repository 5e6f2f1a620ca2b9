"""Benchmark session in this process: opens, claims and measures the devices.

`gpucheck bench` and `gpucheck.bench()` both use it.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpucheck.bench.claiming import hold_gpus
from gpucheck.bench.corruption import Repetition, repeat_on_each, repetitions_on
from gpucheck.bench.engine import run_bench
from gpucheck.bench.environment import Surroundings, surroundings_of
from gpucheck.bench.model import BenchRequest, BenchResult
from gpucheck.bench.plan import check_device_names
from gpucheck.bench.scheduler import Progress
from gpucheck.drivers.cupy.device import open_gpus
from gpucheck.drivers.gpu import OpenedGpus
from gpucheck.drivers.host.blas import ThreadpoolBlas, load_numpy
from gpucheck.drivers.host.clock import MonotonicClock
from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.drivers.interface import NvmlQuestion, Probes
from gpucheck.drivers.readings import CudaReading, NvmlReading
from gpucheck.inventory.inventory import HUNG, complete_host
from gpucheck.inventory.visibility import digits_of, gpu_uuid
from gpucheck.place.lease import own_command
from gpucheck.report.envelope import Host
from gpucheck.report.errors import WrongUseError


def say_nothing(label: str, fraction: float, seconds_left: float) -> None:
    """Ignore the progress when no one is watching."""


def check_corruption(seconds: float) -> None:
    """Check the time for repeated products.

    Raises:
        WrongUseError: it is negative, infinite or not a number.
    """
    if not 0 <= seconds < math.inf:
        message = f"Products must be repeated for 0 seconds or more, not {seconds:g}."
        remedy = ("Give seconds, for example --corruption 10.",)
        raise WrongUseError(code="bad-corruption", message=message, remedy=remedy)


@contextmanager
def open_session(
    request: BenchRequest, probes: Probes, environment: Mapping[str, str]
) -> Iterator[Session]:
    """Open the requested GPUs and claim them for the duration of the block.

    CuPy runs in this process, which a hung driver would block: so a child asks the driver first.

    Raises:
        WrongUseError: a name is not a device.
    """
    check_device_names(request.devices)
    load_numpy()
    reading = probes.nvml(NvmlQuestion())
    cuda = None if set(request.devices) <= {"cpu"} else probes.cuda()
    gpus = _opened(request.devices, cuda, reading)
    allowed = frozenset(os.sched_getaffinity(0))
    around = surroundings_of(probes, reading, cuda, environment, allowed)
    uuids = [gpu.facts.uuid for gpu in gpus.devices if gpu.facts.uuid is not None]
    with hold_gpus(uuids, reading, environment, own_command(sys.orig_argv)) as claimed:
        around = replace(around, claims=claimed.others, notes=claimed.notes)
        yield Session(request, complete_host(probes.host(), reading), gpus, around)


class Session:
    """Devices of one benchmark, ready to measure; `host` is their machine."""

    def __init__(
        self, request: BenchRequest, host: Host, gpus: OpenedGpus, around: Surroundings
    ) -> None:
        self.host = host
        self._request = request
        self._gpus = gpus
        self._around = around
        self._clock = MonotonicClock()
        self._cpu = LinuxCpu()
        self._blas = ThreadpoolBlas()

    def measure(
        self,
        *,
        corruption_s: float = 0.0,
        progress: Progress = say_nothing,
        offer: Callable[[Callable[[], BenchResult]], None] | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> BenchResult:
        """Measure, then repeat one product on each device for `corruption_s` seconds.

        `offer` and `announce` are as in `run_bench`.

        Raises:
            WrongUseError: the request is invalid or does not fit into memory.
            MissingError: nothing that it names is on this machine.
            InconclusiveError: the host has too little memory.
        """
        check_corruption(corruption_s)
        repetitions = self._repetitions() if corruption_s else ()
        result = run_bench(
            self._request,
            clock=self._clock,
            cpu=self._cpu,
            blas=self._blas,
            gpus=self._gpus,
            around=self._around,
            progress=progress,
            offer=offer,
            announce=announce,
        )
        if not repetitions or result.interrupted:
            return result
        corruption, interrupted = repeat_on_each(repetitions, corruption_s)
        notes = (note for repetition in repetitions for note in repetition.notes)
        return replace(
            result,
            corruption=corruption,
            interrupted=interrupted,
            notes=tuple(dict.fromkeys((*result.notes, *notes))),
        )

    def _repetitions(self) -> Sequence[Repetition]:
        """Plan the repetitions before measuring, so that a mistake costs no time."""
        return repetitions_on(
            self._gpus.devices,
            self._request,
            with_cpu=bool({"cpu", "all"} & set(self._request.devices)),
            clock=self._clock,
            cpu=self._cpu.facts(),
            blas=self._blas,
            holders=self._around.holders,
        )


def _opened(devices: Sequence[str], cuda: CudaReading | None, reading: NvmlReading) -> OpenedGpus:
    """Open only the requested GPUs: opening one takes memory on it."""
    if cuda is None:
        return OpenedGpus()
    if cuda.failure is not None:
        silent = cuda.failure.code == HUNG
        return OpenedGpus(unavailable=cuda.failure.message, silent=silent)
    # Only NVML's list tells a MIG device's UUID from a GPU's.
    split = [mig.uuid for gpu in reading.gpus for mig in gpu.mig_instances if mig.uuid is not None]
    known = {digits_of(uuid): uuid for uuid in split}
    uuids = {
        item.ordinal: known.get(item.uuid_hex, gpu_uuid(item.uuid_hex))
        for item in cuda.devices
        if item.uuid_hex
    }
    numbers = [name.removeprefix("gpu:") for name in devices if name != "cpu"]
    if all(number.isascii() and number.isdigit() for number in numbers):
        return open_gpus([int(number) for number in numbers], uuids=uuids)
    return open_gpus(uuids=uuids)
