"""Device selection of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.drivers.cupy.errors import BUSY
from gpucheck.drivers.gpu import GpuDevice, OpenedGpus
from gpucheck.report.errors import InconclusiveError, MissingError, WrongUseError


def asked_devices(devices: Sequence[str], gpus: OpenedGpus) -> tuple[bool, Sequence[GpuDevice]]:
    """Return whether to measure the processor, and which GPUs to measure.

    Raises:
        WrongUseError: a name is not a device.
        MissingError: none of them is on this machine.
        InconclusiveError: the driver does not answer, or another process has exclusive use of the
            GPU.
    """
    check_device_names(devices)
    known = {f"gpu:{gpu.facts.cuda_index}": gpu for gpu in gpus.devices}
    with_cpu, chosen = False, {}
    for name in devices:
        if name in ("cpu", "all"):
            with_cpu = True
        if name in ("gpu", "all"):
            chosen.update(known)
        elif name in known:
            chosen[name] = known[name]
    if not with_cpu and not chosen:
        error = InconclusiveError if gpus.silent or gpus.busy else MissingError
        raise error(
            code=BUSY if gpus.busy else "no-gpu",
            message=f"No GPU can be measured: {(gpus.unavailable or 'none found').rstrip('.')}.",
            remedy=(
                *(gpus.remedy or ("Run: gpucheck detect",)),
                "Measure the processor instead: --device cpu",
            ),
        )
    return with_cpu, list(chosen.values())


def check_device_names(devices: Sequence[str]) -> None:
    """Check the device names before any device is used.

    Raises:
        WrongUseError: a name is not a device.
    """
    for name in devices:
        if name not in ("cpu", "gpu", "all") and not _is_gpu_name(name):
            raise WrongUseError(
                code="bad-device",
                message=f"bench does not know the device {name!r}.",
                remedy=("Choose from: cpu, gpu, gpu:0 (and so on), all.",),
            )


def _is_gpu_name(name: str) -> bool:
    return name.startswith("gpu:") and name[4:].isascii() and name[4:].isdigit()
