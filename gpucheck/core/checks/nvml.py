"""Does the driver answer through NVML, and for every GPU?"""

from __future__ import annotations

import re

from gpucheck.core.checks.device_nodes import START_WITH_GPUS
from gpucheck.core.checks.machine import KERNEL_LOG, Machine, count_of
from gpucheck.core.inventory import UNDECIDED
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import NvmlReading, ProbeFailure

ID = "nvml"
LAYER = Layer.NVML
REQUIRES: tuple[str, ...] = ("pci-device", "kernel-module", "device-nodes")

LIBRARY = "libnvidia-ml.so.1"
ABOUT = About(
    looks_at=(
        f"{LIBRARY}: nvmlInit and every GPU's readings, in a child process with a deadline",
        "if it refuses: the library's file, /sys/module/nvidia/version, and whether the device"
        " files can be opened",
    ),
    why="It is how every tool learns of the GPUs; its error codes tell most broken drivers apart.",
    rules=(
        "fail: it cannot be loaded or refuses, or no GPU answers",
        "warn: some GPUs do not answer, or the PCI bus has more than it lists",
        "unknown: no answer within the deadline",
    ),
    sources=("NVML API Reference: nvmlReturn_t", "NVIDIA Container Toolkit, Troubleshooting"),
)

REBOOT = "Reboot."
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
    "driver-not-answering": (KERNEL_LOG, REBOOT),
    "timeout": (KERNEL_LOG, REBOOT),
    "irq-issue": (KERNEL_LOG, REBOOT),
    "binding-missing": ("Install the Python package nvidia-ml-py.",),
    "binding-too-old": ("Upgrade the Python package nvidia-ml-py.",),
    "no-gpu": ("With a scheduler: request a GPU.", KERNEL_LOG),
    "gpu-not-found": ("With a scheduler: request a GPU.", KERNEL_LOG),
    "not-recorded": ("Record the machine again: gpucheck snapshot FILE",),
}
#: Codes after which it is worth knowing whether the device files can be opened at all.
OPEN_AFTER = frozenset({"unknown", "no-permission", "operating-system", "no-gpu", "gpu-not-found"})

CGROUP_LOST = (
    "Recreate the container (a systemd reload on the host took its devices away).",
    "So that it lasts: use CDI (--device nvidia.com/gpu=all), or the host's Docker with"
    " native.cgroupdriver=cgroupfs.",
)
_VERSION = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)")


def check(machine: Machine) -> Finding:
    """Judge the NVML reading."""
    reading = machine.nvml
    failure = reading.failure
    if failure is None and not reading.gpu_count:
        failure = ProbeFailure(code="no-gpu", message="NVML answers, but lists no GPU")
    if failure is not None:
        return _failed(machine, failure)
    return _answered(machine, reading)


# ------------------------------------------------------------------------------ refused


def _failed(machine: Machine, failure: ProbeFailure) -> Finding:
    undecided = failure.code in UNDECIDED
    code = "" if failure.library_code is None else f"NVML {failure.library_code}"
    said = Evidence(source=failure.function or "NVML", value=code or failure.code)
    remedy = REMEDIES.get(failure.code, (KERNEL_LOG,))
    summary, more = failure.message, tuple[Evidence, ...]()
    explain = {
        "library-not-found": _no_library,
        "version-mismatch": _two_versions,
        "operating-system": _blocked,
    }.get(failure.code)
    if explain is not None:
        summary, more, remedy = explain(machine, failure)
    elif failure.code in OPEN_AFTER:
        summary, more, remedy = _perhaps_refused(machine, failure, remedy)
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.UNKNOWN if undecided else CheckStatus.FAIL,
        summary=summary,
        evidence=(said, *more),
        remedy=remedy,
    )


Explanation = tuple[str, tuple[Evidence, ...], tuple[str, ...]]


def _no_library(machine: Machine, failure: ProbeFailure) -> Explanation:
    found = [lib for lib in machine.system.libraries.found if lib.name == LIBRARY]
    evidence = tuple(Evidence(source=lib.path, value="present, not loaded") for lib in found)
    name = "NVIDIA_DRIVER_CAPABILITIES"
    capabilities = machine.environment.get(name)
    if machine.is_wsl:
        return (
            f"{LIBRARY} of the Windows driver is not in the loader's path",
            evidence,
            (
                "Put /usr/lib/wsl/lib into it: unset LD_LIBRARY_PATH, or add the folder to it.",
                "If the folder is empty: update the NVIDIA driver in Windows, then: wsl --shutdown",
            ),
        )
    if machine.is_container and capabilities is not None and not _has(capabilities, "utility"):
        told = Evidence(source=name, value=repr(capabilities))
        return (
            f"{LIBRARY} is missing: the container was started without the `utility` capability",
            (*evidence, told),
            (f"Start the container with {name}=compute,utility.",),
        )
    if machine.is_container:
        return (
            f"{LIBRARY} is missing: the container was started without GPUs",
            evidence,
            START_WITH_GPUS,
        )
    if found:
        return (
            f"{LIBRARY} is on disk, but the loader does not find or take it",
            evidence,
            ("Renew the loader's list: sudo ldconfig", "Reinstall the driver's libraries."),
        )
    return failure.message, evidence, REMEDIES[failure.code]


def _has(capabilities: str, wanted: str) -> bool:
    words = {word.strip() for word in capabilities.split(",")}
    return bool(words & {wanted, "all"})


def _two_versions(machine: Machine, failure: ProbeFailure) -> Explanation:
    loaded = machine.kernel.module_version
    path = machine.nvml.library_path or next(
        (
            f"{LIBRARY}.{lib.version}"
            for lib in machine.system.libraries.found
            if lib.name == LIBRARY and lib.version
        ),
        None,
    )
    version = _VERSION.search(path or "")
    summary = failure.message
    if version is not None or loaded is not None:
        mine = version[1] if version else "unknown"
        summary = (
            f"the driver's library is version {mine}, but the loaded kernel module is"
            f" version {loaded or 'unknown'}"
        )
    evidence = [Evidence(source="/sys/module/nvidia/version", value=loaded or "unreadable")]
    if path is not None:
        evidence.append(Evidence(source=LIBRARY, value=path))
    remedy = [
        "Reboot, so that the kernel module of the installed driver is loaded.",
        "Or stop all that uses the GPU, then: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset"
        " nvidia; sudo modprobe nvidia",
    ]
    if machine.is_container:
        remedy.insert(0, "Restart the container: the host's driver was upgraded under it.")
    return summary, tuple(evidence), tuple(remedy)


def _blocked(machine: Machine, failure: ProbeFailure) -> Explanation:
    if not machine.is_wsl:
        return _perhaps_refused(machine, failure, REMEDIES[failure.code])
    return (
        "Windows blocks the access to the GPU",
        (),
        (
            "In Windows: update the NVIDIA driver; then: wsl --update; wsl --shutdown",
            "Do not install a Linux NVIDIA driver in WSL2; remove one that is there.",
            "The GPU must be in WDDM mode, not TCC (in Windows: nvidia-smi -dm 0).",
        ),
    )


def _perhaps_refused(
    machine: Machine, failure: ProbeFailure, remedy: tuple[str, ...]
) -> Explanation:
    """Try to open the device files: a cgroup shows only there."""
    refused = [opening for opening in machine.openings if opening.error is not None]
    evidence = tuple(
        Evidence(source=f"open {opening.path}", value=opening.error or "") for opening in refused
    )
    if not any(opening.error == "EPERM" for opening in refused):
        return failure.message, evidence, remedy
    if machine.is_container:
        return (
            "the container may no longer open the GPU's device files: its device cgroup lost them",
            evidence,
            CGROUP_LOST,
        )
    if "SLURM_JOB_ID" in machine.environment:
        return (
            "this Slurm job may not open the GPU's device files",
            evidence,
            ("Ask Slurm for GPUs: --gpus=1 (or --gres=gpu:1).",),
        )
    return "the system refuses to open the GPU's device files", evidence, remedy


# ------------------------------------------------------------------------------ answered


def _answered(machine: Machine, reading: NvmlReading) -> Finding:
    silent = [gpu for gpu in reading.gpus if gpu.failure is not None]
    count = reading.gpu_count or 0
    first = silent[0].failure if silent else None
    status = CheckStatus.OK
    remedy: tuple[str, ...] = ()
    evidence = [
        Evidence(source=f"NVML, GPU {gpu.index}", value=gpu.failure.message)
        for gpu in silent
        if gpu.failure is not None
    ]
    on_bus = len(machine.kernel.pci_devices or ())
    if first is not None:
        status = CheckStatus.FAIL if len(silent) == count else CheckStatus.WARN
        summary = f"{len(silent)} of {count} GPUs do not answer: {first.message}"
        remedy = REMEDIES.get(first.code, (KERNEL_LOG,))
    elif on_bus > count and not machine.is_container:
        status = CheckStatus.WARN
        summary = f"NVML lists {count_of(count)}, but {on_bus} are on the PCI bus"
        evidence.append(Evidence(source="nvmlDeviceGetCount", value=str(count)))
        remedy = (KERNEL_LOG, "Power the machine off and on again.")
    else:
        summary = f"driver {reading.driver_version or '?'} answers for {count_of(count)}"
    return Finding(
        id=ID,
        layer=LAYER,
        status=status,
        summary=summary,
        evidence=tuple(evidence),
        remedy=remedy,
    )
