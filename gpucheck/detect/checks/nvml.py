"""Does the driver answer through NVML, and for every GPU?"""

from __future__ import annotations

import re
from functools import partial

from gpucheck.detect.cuda_versions import parse_version
from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import KERNEL_LOG, REBOOT, Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.module_problems import COLD_START, problem_in_log, wrong_flavour
from gpucheck.detect.remedies import IN_A_CONTAINER, for_gpu, install_libraries, start_with_gpus
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.inventory.inventory import UNDECIDED
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "nvml"
LAYER = Layer.NVML
REQUIRES: tuple[str, ...] = ("pci-device", "kernel-module", "device-nodes")

_finding = partial(make_finding, ID, LAYER)
_fail = partial(_finding, CheckStatus.FAIL)

LIBRARY = "libnvidia-ml.so.1"

#: The libraries were upgraded, and the module in the kernel was not.
RELOAD = (
    "Reboot, so that the kernel module of the installed driver is loaded.",
    "Or stop everything that uses the GPU, then: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset"
    " nvidia; sudo modprobe nvidia",
    "To prevent this: exclude the driver's packages from unattended upgrades.",
)
#: Remedies by the failure's code.
REMEDIES: dict[str, tuple[str, ...]] = {
    "library-not-found": (
        "On a host: install the NVIDIA driver.",
        "In a container: start it with GPUs (docker run --gpus all) and the `utility` capability.",
    ),
    "driver-not-loaded": ("Load the module: sudo modprobe nvidia",),
    "version-mismatch": RELOAD,
    "no-permission": ("Join the group that owns /dev/nvidia* (often `video` or `render`).",),
    "operating-system": (
        "In a container: the device cgroup may block the GPU; recreate the container.",
        "On a host: a cgroup or a security module may block /dev/nvidia*: read the system log"
        " (SELinux, AppArmor).",
        KERNEL_LOG,
    ),
    "unknown": (KERNEL_LOG, REBOOT),
    "insufficient-power": ("Attach the GPU's external power cables.",),
    "gpu-is-lost": COLD_START,
    "reset-required": ("Stop what runs on the GPU, then: sudo nvidia-smi --gpu-reset",),
    "corrupted-inforom": ("Ask the GPU's vendor to repair its InfoROM or to replace the GPU.",),
    "driver-not-answering": (KERNEL_LOG, REBOOT),
    "timeout": (KERNEL_LOG, REBOOT),
    "irq-issue": (KERNEL_LOG, REBOOT),
    "binding-missing": ("Install the Python package nvidia-ml-py.",),
    "binding-too-old": ("Upgrade the Python package nvidia-ml-py.",),
    "no-gpu": (f"{IN_A_CONTAINER}start it with GPUs (docker run --gpus all).", KERNEL_LOG, REBOOT),
    "gpu-not-found": (
        f"{IN_A_CONTAINER}start it with GPUs (docker run --gpus all).",
        KERNEL_LOG,
        REBOOT,
    ),
    "not-recorded": ("Record the machine again: gpucheck snapshot FILE",),
}
CGROUP_LOST_SUMMARY = (
    "the container may no longer open the GPU's device files: its device cgroup lost them"
)
SLURM = ("Request GPUs from Slurm: --gpus=1 (or --gres=gpu:1).",)
WSL_PATH = (
    "Add /usr/lib/wsl/lib to it: unset LD_LIBRARY_PATH, or add the folder to that variable.",
    "If the folder is empty: update the NVIDIA driver in Windows, then: wsl --shutdown",
)
#: The host's driver was upgraded, and the container still has the libraries of the one before.
OLD_CONTAINER = (
    "Recreate the container: it holds libraries of a driver that its host no longer runs.",
    "If that does not help, the image has them: remove the driver's libraries from the image.",
)
CGROUP_LOST = (
    "Recreate the container (a systemd reload on the host removed its devices).",
    "To prevent this: use CDI (--device nvidia.com/gpu=all), or the host's Docker with"
    " native.cgroupdriver=cgroupfs.",
)
_VERSION = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)")


def check(machine: Machine) -> Finding:
    """Judge the NVML reading."""
    reading = machine.nvml
    failure = reading.failure
    if failure is None and not reading.gpu_count:
        failure = ProbeFailure(code="no-gpu", message="NVML answers, but lists no GPU")
    if failure is None:
        return _answered(machine, reading)
    if machine.is_jetson and failure.code == "library-not-found":
        return _finding(CheckStatus.SKIP, "Jetson: its driver comes without NVML")
    return _failed(machine, failure)


# ------------------------------------------------------------------------------ refused


def _failed(machine: Machine, failure: ProbeFailure) -> Finding:
    code = "" if failure.library_code is None else f"NVML error {failure.library_code}"
    error = Evidence(failure.function or "NVML", code or failure.code)
    found = EXPLAIN.get(failure.code, _plain)(machine, failure)
    answering = [str(gpu.index) for gpu in machine.nvml.gpus if gpu.failure is None]
    others = Evidence("GPUs that answer", ", ".join(answering))
    return found._replace(
        status=CheckStatus.UNKNOWN if failure.code in UNDECIDED else CheckStatus.FAIL,
        evidence=(error, *found.evidence, *(others,) * bool(answering)),
    )


def _plain(machine: Machine, failure: ProbeFailure) -> Finding:
    remedy = REMEDIES.get(failure.code, (KERNEL_LOG,))
    return _fail(failure.message, remedy=remedy, cause=failure.code)


def _no_library(machine: Machine, failure: ProbeFailure) -> Finding:
    found = [lib for lib in machine.system.libraries.found if lib.name == LIBRARY]
    evidence = tuple(Evidence(lib.path, "present, not loaded") for lib in found)
    if machine.is_container:
        return _no_library_in_container(machine, evidence)
    if machine.is_wsl:
        return _fail(
            f"{LIBRARY} of the Windows driver is not in the loader's path",
            *evidence,
            remedy=WSL_PATH,
            cause="wsl-library-path",
        )
    if found:
        return _fail(
            f"{LIBRARY} is on disk, but the loader does not find or accept it",
            *evidence,
            remedy=(
                "Refresh the loader's cache: sudo ldconfig",
                "Reinstall the driver's libraries.",
            ),
            cause="library-not-in-the-path",
        )
    if machine.kernel.module_loaded:
        return _fail(
            f"{LIBRARY} is not installed, though the driver's kernel module is loaded",
            remedy=(install_libraries(machine),),
            cause=failure.code,
        )
    return _plain(machine, failure)


def _no_library_in_container(machine: Machine, evidence: tuple[Evidence, ...]) -> Finding:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    capabilities = machine.environment.get(name)
    if capabilities is not None and not has_capability(capabilities, "utility"):
        return _fail(
            f"{LIBRARY} is missing: the container was started without the `utility` capability",
            *evidence,
            Evidence(name, repr(capabilities)),
            remedy=(f"Start the container with {name}=compute,utility",),
            cause="container-without-utility",
        )
    return _fail(
        f"{LIBRARY} is missing: the container was started without GPUs",
        *evidence,
        remedy=start_with_gpus(machine),
        cause="container-without-gpus",
    )


def has_capability(capabilities: str, wanted: str) -> bool:
    """Return whether NVIDIA_DRIVER_CAPABILITIES contains this capability."""
    words = {word.strip() for word in capabilities.split(",")}
    return bool(words & {wanted, "all"})


def _two_versions(machine: Machine, failure: ProbeFailure) -> Finding:
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
    if version is not None and loaded == version[1]:
        summary = (
            "NVML reports that the driver's library and the loaded kernel module differ in version,"
            f" but both read as {loaded}"
        )
    evidence = [Evidence("/sys/module/nvidia/version", loaded or "unreadable")]
    if path is not None:
        evidence.append(Evidence(LIBRARY, path))
    remedy = REMEDIES[failure.code]
    if machine.is_container and _is_older(version[1] if version else None, loaded):
        remedy = OLD_CONTAINER
    return _fail(summary, *evidence, remedy=remedy, cause=failure.code)


def _is_older(library: str | None, module: str | None) -> bool:
    """Return whether the library is from an older driver; True if either is unknown."""
    mine, theirs = parse_version(library), parse_version(module)
    return mine is None or theirs is None or mine < theirs


def _blocked(machine: Machine, failure: ProbeFailure) -> Finding:
    if not machine.is_wsl:
        return _perhaps_refused(machine, failure)
    return _fail(
        "Windows blocks access to the GPU",
        remedy=(
            "In Windows: update the NVIDIA driver; then: wsl --update; wsl --shutdown",
            "Do not install a Linux NVIDIA driver in WSL2; remove one that is there.",
            "The GPU must be in WDDM mode, not TCC (in Windows: nvidia-smi -dm 0).",
        ),
        cause="windows-blocks",
    )


def _no_gpu(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain a running driver without a GPU: it could not start them, or may not show them."""
    refused = _perhaps_refused(machine, failure)
    if refused.cause != failure.code:
        return refused
    if "SLURM_JOB_ID" in machine.environment:
        return refused._replace(remedy=(*SLURM, *refused.remedy))
    devices = machine.kernel.pci_devices or ()
    trouble = wrong_flavour(machine, devices) or problem_in_log(machine)
    if trouble is None:
        return refused
    return _fail(
        f"{failure.message}: {trouble.summary}",
        *trouble.evidence,
        remedy=trouble.remedy,
        cause=trouble.cause,
    )


def _perhaps_refused(machine: Machine, failure: ProbeFailure) -> Finding:
    """Open the device files: only that shows a refusing cgroup."""
    refused = {path: error for path, error in machine.openings.items() if error is not None}
    evidence = tuple(Evidence(f"open {path}", error) for path, error in refused.items())
    plain = _plain(machine, failure)._replace(evidence=evidence)
    if failure.code == "no-permission":
        plain = plain._replace(summary="NVML refuses this user (no permission)")
    if failure.code == "unknown" and machine.is_container:
        before = f"If it worked before: {CGROUP_LOST[0][0].lower()}{CGROUP_LOST[0][1:]}"
        plain = plain._replace(remedy=(before, *CGROUP_LOST[1:], *plain.remedy))
    if "EPERM" not in refused.values():
        return plain
    if machine.is_container:
        return _fail(CGROUP_LOST_SUMMARY, *evidence, remedy=CGROUP_LOST, cause="device-cgroup-lost")
    if "SLURM_JOB_ID" in machine.environment:
        return _fail(
            "this Slurm job may not open the GPU's device files",
            *evidence,
            remedy=SLURM,
            cause="slurm-without-gpus",
        )
    summary = "the system refuses to open the GPU's device files"
    return plain._replace(cause="device-cgroup", summary=summary)


EXPLAIN = {
    "library-not-found": _no_library,
    "version-mismatch": _two_versions,
    "operating-system": _blocked,
    "unknown": _perhaps_refused,
    "no-permission": _perhaps_refused,
    "no-gpu": _no_gpu,
    "gpu-not-found": _no_gpu,
}


# ------------------------------------------------------------------------------ answered


def _answered(machine: Machine, reading: NvmlReading) -> Finding:
    silent = [gpu for gpu in reading.gpus if gpu.failure is not None]
    count = reading.gpu_count or 0
    first = silent[0].failure if silent else None
    # GPUs of another driver belong to kernel-module; a container sees its host's bus.
    on_bus = [d for d in machine.kernel.pci_devices or () if d.driver in (None, "nvidia")]
    if first is not None:
        return _finding(
            CheckStatus.FAIL if len(silent) == count else CheckStatus.WARN,
            f"{len(silent)} of {count_of(count)} {'does' if len(silent) == 1 else 'do'} not answer:"
            f" {first.message}",
            *(
                Evidence(f"NVML, GPU {gpu.index}", gpu.failure.message)
                for gpu in silent
                if gpu.failure is not None
            ),
            remedy=for_gpu(silent[0].index, REMEDIES.get(first.code, (KERNEL_LOG,))),
            cause=first.code,
        )
    if len(on_bus) > count and not machine.is_container:
        return _fewer(machine, count, len(on_bus))
    uuids = [gpu.uuid for gpu in reading.gpus if gpu.uuid]
    same = [gpu for gpu in reading.gpus if uuids.count(gpu.uuid or "") > 1]
    if same:
        names = " and ".join(str(gpu.index) for gpu in same)
        return _finding(
            CheckStatus.WARN,
            f"GPUs {names} report the same UUID: no program can name one of them",
            *(Evidence(f"NVML, GPU {gpu.index}", gpu.uuid or "") for gpu in same),
            remedy=("Ask the vendor: a UUID is made from the serial number.",),
            cause="same-uuid",
        )
    return _finding(
        CheckStatus.OK, f"driver {reading.driver_version or '?'} answers for {count_of(count)}"
    )


def _fewer(machine: Machine, count: int, on_bus: int) -> Finding:
    trouble = problem_in_log(machine)
    return _finding(
        CheckStatus.WARN,
        f"NVML lists {count_of(count)}, but {on_bus} are on the PCI bus"
        + (f": {trouble.summary}" if trouble else ""),
        Evidence("nvmlDeviceGetCount", str(count)),
        Evidence("/sys/bus/pci/devices", str(on_bus)),
        *(trouble.evidence if trouble else ()),
        remedy=trouble.remedy if trouble else (KERNEL_LOG, "Power the machine off and on again."),
        cause=trouble.cause if trouble else "gpus-missing",
    )
