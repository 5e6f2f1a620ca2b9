"""Does the driver answer through NVML, and for every GPU?"""

from __future__ import annotations

from gpucheck.core.checks.machine import KERNEL_LOG, Machine
from gpucheck.core.inventory import UNDECIDED
from gpucheck.models.finding import CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import NvmlReading, ProbeFailure

ID = "nvml"
LAYER = Layer.NVML
REQUIRES: tuple[str, ...] = ("pci-device", "kernel-module")

#: What helps, by the failure's code.
REMEDIES: dict[str, tuple[str, ...]] = {
    "library-not-found": (
        "On a host: install the NVIDIA driver.",
        "In a container: start it with GPUs (docker run --gpus all) and the `utility` capability.",
    ),
    "driver-not-loaded": ("Load the module: sudo modprobe nvidia",),
    "version-mismatch": (
        "Reboot, so that the kernel module of the installed driver is loaded.",
        "In a container: restart it after the host's driver was upgraded.",
    ),
    "no-permission": ("Join the group that owns /dev/nvidia* (often `video` or `render`).",),
    "operating-system": (
        "WSL2: update the Windows driver, then: wsl --update",
        "In a container: the device cgroup may block the GPU; recreate the container.",
    ),
    "unknown": ("In a container that worked before: recreate it (its device cgroup was lost).",),
    "insufficient-power": ("Attach the GPU's external power cables.",),
    "gpu-is-lost": ("Power the machine off and on again; if it comes back, replace the GPU.",),
    "reset-required": ("Stop what runs on the GPU, then: sudo nvidia-smi --gpu-reset",),
    "corrupted-inforom": ("Ask the vendor of the GPU to mend its InfoROM or to replace it.",),
    "driver-not-answering": (KERNEL_LOG, "Reboot."),
    "timeout": (KERNEL_LOG, "Reboot."),
    "irq-issue": (KERNEL_LOG, "Reboot."),
    "binding-missing": ("Install the Python package nvidia-ml-py.",),
    "binding-too-old": ("Upgrade the Python package nvidia-ml-py.",),
    "no-gpu": ("With a scheduler: request a GPU.", KERNEL_LOG),
    "gpu-not-found": ("With a scheduler: request a GPU.", KERNEL_LOG),
    "not-recorded": ("Record the machine again: gpucheck snapshot FILE",),
}


def check(machine: Machine) -> Finding:
    """Judge the NVML reading."""
    reading = machine.nvml
    failure = reading.failure
    if failure is None and not reading.gpu_count:
        failure = ProbeFailure(code="no-gpu", message="NVML answers, but lists no GPU")
    if failure is not None:
        return _failed(failure)
    return _answered(reading)


def _failed(failure: ProbeFailure) -> Finding:
    undecided = failure.code in UNDECIDED
    code = "" if failure.library_code is None else f"NVML {failure.library_code}"
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.UNKNOWN if undecided else CheckStatus.FAIL,
        summary=failure.message,
        evidence=(Evidence(source=failure.function or "NVML", value=code or failure.code),),
        remedy=REMEDIES.get(failure.code, (KERNEL_LOG,)),
    )


def _answered(reading: NvmlReading) -> Finding:
    silent = [gpu for gpu in reading.gpus if gpu.failure is not None]
    count = reading.gpu_count or 0
    first = silent[0].failure if silent else None
    status = CheckStatus.OK
    if first is not None:
        status = CheckStatus.FAIL if len(silent) == count else CheckStatus.WARN
        summary = f"{len(silent)} of {count} GPUs do not answer: {first.message}"
    else:
        summary = f"driver {reading.driver_version or '?'} answers for {count} GPU"
        summary += "" if count == 1 else "s"
    return Finding(
        id=ID,
        layer=LAYER,
        status=status,
        summary=summary,
        evidence=tuple(
            Evidence(source=f"NVML, GPU {gpu.index}", value=gpu.failure.message)
            for gpu in silent
            if gpu.failure is not None
        ),
        remedy=() if first is None else REMEDIES.get(first.code, (KERNEL_LOG,)),
    )
