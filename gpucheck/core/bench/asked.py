"""Which devices a benchmark is asked for, of those that are there."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.models.errors import InconclusiveError, MissingError, WrongUseError
from gpucheck.probes.cupy_errors import BUSY
from gpucheck.probes.gpu import GpuDevice, OpenedGpus


def asked_devices(devices: Sequence[str], gpus: OpenedGpus) -> tuple[bool, Sequence[GpuDevice]]:
    """Return whether the processor is asked for, and the GPUs that are.

    Raises:
        WrongUseError: a name that is none.
        MissingError: nothing of it is on this machine.
        InconclusiveError: the driver does not answer whether there is a GPU, or another process has
            it for itself.
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
            message=f"No GPU can be measured: {(gpus.unavailable or 'none is here').rstrip('.')}.",
            remedy=(
                *(gpus.remedy or ("Run: gpucheck detect",)),
                "Measure the processor: --device cpu",
            ),
        )
    return with_cpu, list(chosen.values())


def check_device_names(devices: Sequence[str]) -> None:
    """Refuse what is no device, before anything is asked of one.

    Raises:
        WrongUseError: a name that is none.
    """
    for name in devices:
        if name not in ("cpu", "gpu", "all") and not _is_gpu_name(name):
            raise WrongUseError(
                code="bad-device",
                message=f"bench does not understand the device {name!r}.",
                remedy=("Choose from: cpu, gpu, gpu:0 (and so on), all.",),
            )


def _is_gpu_name(name: str) -> bool:
    return name.startswith("gpu:") and name[4:].isascii() and name[4:].isdigit()
