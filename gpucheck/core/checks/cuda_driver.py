"""Does the CUDA driver start in this environment, and does it see a GPU?"""

from __future__ import annotations

from gpucheck.core.checks.machine import KERNEL_LOG, Machine
from gpucheck.core.inventory import cuda_version
from gpucheck.models.finding import CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import ProbeFailure

ID = "cuda-driver"
LAYER = Layer.CUDA_DRIVER
REQUIRES: tuple[str, ...] = ("pci-device", "kernel-module", "nvml")

VISIBLE = "CUDA_VISIBLE_DEVICES"

#: What helps, by the failure's code.
REMEDIES: dict[str, tuple[str, ...]] = {
    "library-not-found": (
        "On a host: install the NVIDIA driver with its CUDA library.",
        "In a container: set NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
    ),
    "stub-library": ("Remove the directory .../lib64/stubs from LD_LIBRARY_PATH.",),
    "devices-unavailable": ("Set the compute mode to default: sudo nvidia-smi -c 0",),
    "no-device": ("Check that /dev/nvidia* exist and that MIG, if enabled, has an instance.",),
    "system-not-ready": ("Start nvidia-fabricmanager of exactly the driver's version.",),
    "driver-mismatch": ("Reboot; or take libcuda of another version out of the loader path.",),
    "compat-not-supported": ("Take the cuda-compat directory out of LD_LIBRARY_PATH.",),
    "unknown": (
        "Load the memory module: sudo nvidia-modprobe -c0 -u",
        "After suspend: sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
    ),
    "not-initialized": (KERNEL_LOG, "Reboot."),
    "invalid-device": (f"Check {VISIBLE}: gpucheck list",),
    "operating-system": ("Check the permissions of /dev/nvidia* and the limits (ulimit -a).",),
    "function-not-found": ("Install libcuda.so.1 of the driver's own version.",),
    "driver-not-answering": (KERNEL_LOG, "Reboot."),
    "not-recorded": ("Record the machine again: gpucheck snapshot FILE",),
}
#: Failures that leave it open whether CUDA works.
UNDECIDED = frozenset({"driver-not-answering", "cuda-child-died", "not-recorded"})


def check(machine: Machine) -> Finding:
    """Judge what libcuda said in a fresh process with this environment."""
    reading = machine.cuda
    if reading.failure is not None:
        return _failed(reading.failure, machine)
    count = reading.device_count or 0
    if not count:
        return _failed(
            ProbeFailure(code="no-device", message="CUDA starts, but sees no GPU"), machine
        )
    version = "?" if reading.driver_version is None else cuda_version(reading.driver_version)
    plural = "" if count == 1 else "s"
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.OK,
        summary=f"CUDA {version} starts and sees {count} GPU{plural}",
        evidence=(Evidence(source="cuDeviceGetCount", value=str(count)),),
    )


def _failed(failure: ProbeFailure, machine: Machine) -> Finding:
    undecided = failure.code in UNDECIDED
    code = "" if failure.library_code is None else f"CUDA {failure.library_code}"
    evidence = [Evidence(source=failure.function or "libcuda", value=code or failure.code)]
    remedy = REMEDIES.get(failure.code, (KERNEL_LOG,))
    if failure.code == "no-device" and VISIBLE in machine.environment:
        evidence.append(Evidence(source=VISIBLE, value=repr(machine.environment[VISIBLE])))
        remedy = (f"Unset {VISIBLE}, or name a GPU that exists: gpucheck list", *remedy)
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.UNKNOWN if undecided else CheckStatus.FAIL,
        summary=failure.message,
        evidence=tuple(evidence),
        remedy=remedy,
    )
