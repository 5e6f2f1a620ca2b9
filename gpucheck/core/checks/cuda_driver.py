"""Does the CUDA driver start in this environment, and does it see a GPU?"""

from __future__ import annotations

from gpucheck.core.checks.device_nodes import START_WITH_GPUS
from gpucheck.core.checks.machine import KERNEL_LOG, VISIBLE, Machine, count_of
from gpucheck.core.inventory import cuda_version
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import CudaReading, ProbeFailure

ID = "cuda-driver"
LAYER = Layer.CUDA_DRIVER
REQUIRES: tuple[str, ...] = (
    "pci-device", "kernel-module", "device-nodes", "uvm-node", "nvml", "mig-mode",
)  # fmt: skip

LIBRARY = "libcuda.so.1"
ABOUT = About(
    looks_at=(
        f"{LIBRARY}: cuDriverGetVersion, cuInit, cuDeviceGetCount, in a child with a deadline",
        "the file that the loader took for it (/proc/self/maps of the child)",
        f"once more without {VISIBLE}, if that is set and no GPU is seen",
    ),
    why="Every CUDA program begins with these calls, in the same environment.",
    rules=(
        "fail: it cannot be loaded, refuses to start, or sees no GPU though nothing hides them",
        "unknown: no answer within the deadline",
    ),
    sources=(
        "CUDA Driver API: CUresult",
        "CUDA Toolkit Release Notes 12.9 to 13.x, known issues (KASLR and HMM)",
        "NVIDIA Fabric Manager User Guide (802)",
    ),
)

REMOVE_FROM_PATH = "Take {folder} out of LD_LIBRARY_PATH (and out of /etc/ld.so.conf.d)."
MPS = (
    "Restart the MPS daemon: echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d",
    "Or do without it: unset CUDA_MPS_PIPE_DIRECTORY",
)
#: What helps, by the failure's code.
REMEDIES: dict[str, tuple[str, ...]] = {
    "library-not-found": (
        "On a host: install the NVIDIA driver with its CUDA library.",
        "In a container: set NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
    ),
    "stub-library": ("Remove the directory .../lib64/stubs from LD_LIBRARY_PATH.",),
    "insufficient-driver": ("Upgrade the driver, or use a build for an older CUDA.",),
    "newer-driver-needed": ("Upgrade the driver, or use a build for an older CUDA.",),
    "out-of-memory": ("See who has the memory: gpucheck list --processes",),
    "devices-unavailable": ("Set the compute mode to default: sudo nvidia-smi -c 0",),
    "no-device": ("Check that /dev/nvidia* exist and that MIG, if enabled, has an instance.",),
    "not-licensed": ("Check the licence server of the virtual GPU (nvidia-gridd).",),
    "ecc-uncorrectable": ("Reset the GPU: sudo nvidia-smi --gpu-reset", KERNEL_LOG),
    "library-broken": ("Reinstall the driver's libraries, all of one version.",),
    "not-permitted": ("Check the permissions of /dev/nvidia*; in a container, its devices.",),
    "system-not-ready": ("Start nvidia-fabricmanager of exactly the driver's version.",),
    "driver-mismatch": ("Reboot; or take libcuda of another version out of the loader path.",),
    "compat-not-supported": ("Take the cuda-compat directory out of LD_LIBRARY_PATH.",),
    "mps-connection-failed": MPS,
    "mps-not-ready": MPS,
    "mps-too-many-clients": ("End programs that use MPS, then try again.",),
    "mps-no-connections": ("End programs that use MPS, then try again.",),
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
HMM_BUG = "request_free_mem_region"

Explanation = tuple[str, tuple[Evidence, ...], tuple[str, ...]]


def check(machine: Machine) -> Finding:
    """Judge what libcuda said in a fresh process with this environment."""
    reading = machine.cuda
    failure = reading.failure
    if failure is None and not reading.device_count:
        failure = ProbeFailure(code="no-device", message="CUDA starts, but sees no GPU")
    if failure is None:
        return _works(reading)
    if failure.code == "no-device" and VISIBLE in machine.environment:
        without = machine.cuda_unrestricted
        if without.failure is None and without.device_count:
            return _works(without, f" without {VISIBLE}")
    return _failed(failure, machine)


def _works(reading: CudaReading, where: str = "") -> Finding:
    version = "?" if reading.driver_version is None else cuda_version(reading.driver_version)
    count = reading.device_count or 0
    evidence = [Evidence(source="cuDeviceGetCount", value=str(count))]
    if reading.library_path is not None:
        evidence.append(Evidence(source=LIBRARY, value=reading.library_path))
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.OK,
        summary=f"CUDA {version} starts and sees {count_of(count)}{where}",
        evidence=tuple(evidence),
    )


def _failed(failure: ProbeFailure, machine: Machine) -> Finding:
    undecided = failure.code in UNDECIDED
    code = "" if failure.library_code is None else f"CUDA {failure.library_code}"
    evidence = [Evidence(source=failure.function or "libcuda", value=code or failure.code)]
    if machine.cuda.library_path is not None:
        evidence.append(Evidence(source=LIBRARY, value=machine.cuda.library_path))
    explain = EXPLAIN.get(failure.code)
    summary, more, remedy = (
        explain(machine, failure)
        if explain is not None
        else (failure.message, (), REMEDIES.get(failure.code, (KERNEL_LOG,)))
    )
    return Finding(
        id=ID,
        layer=LAYER,
        status=CheckStatus.UNKNOWN if undecided else CheckStatus.FAIL,
        summary=summary,
        evidence=(*evidence, *more),
        remedy=remedy,
    )


# ------------------------------------------------------------------------------ explanations


def _no_library(machine: Machine, failure: ProbeFailure) -> Explanation:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    capabilities = machine.environment.get(name)
    words = {word.strip() for word in (capabilities or "").split(",")}
    if machine.is_wsl:
        return (
            f"{LIBRARY} of the Windows driver is not in the loader's path",
            (),
            (
                "Put /usr/lib/wsl/lib into it: unset LD_LIBRARY_PATH, or add the folder to it.",
                "If the folder is empty: update the NVIDIA driver in Windows, then: wsl --shutdown",
            ),
        )
    if machine.is_container and capabilities is not None and not words & {"compute", "all"}:
        return (
            f"{LIBRARY} is missing: the container was started without the `compute` capability",
            (Evidence(source=name, value=repr(capabilities)),),
            (f"Start the container with {name}=compute,utility.",),
        )
    if machine.is_container and machine.nvml.failure is not None:
        return f"{LIBRARY} is missing in this container", (), START_WITH_GPUS
    return failure.message, (), REMEDIES[failure.code]


def _no_device(machine: Machine, failure: ProbeFailure) -> Explanation:
    remedy = REMEDIES[failure.code]
    if VISIBLE in machine.environment:
        told = Evidence(source=VISIBLE, value=repr(machine.environment[VISIBLE]))
        first = f"Unset {VISIBLE}, or name a GPU that exists: gpucheck list"
        return failure.message, (told,), (first, *remedy)
    if "SLURM_JOB_ID" in machine.environment:
        remedy = ("Ask Slurm for GPUs: --gpus=1 (or --gres=gpu:1).", *remedy)
    return failure.message, _refused(machine), remedy


def _refused(machine: Machine) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(source=f"open {opening.path}", value=opening.error)
        for opening in machine.openings
        if opening.error is not None
    )


def _wrong_library(machine: Machine, failure: ProbeFailure) -> Explanation:
    """34, 803, 804: another libcuda than the driver's own comes first."""
    path = machine.cuda.library_path
    own = next(
        (
            lib
            for lib in machine.system.libraries.found
            if lib.name == LIBRARY and lib.kind in ("driver", "wsl") and lib.path != path
        ),
        None,
    )
    evidence = [Evidence(source="LD_LIBRARY_PATH", value=repr(machine.environment[name]))
                for name in ("LD_LIBRARY_PATH",) if name in machine.environment]  # fmt: skip
    if machine.kernel.module_version is not None:
        loaded = Evidence(source="/sys/module/nvidia/version", value=machine.kernel.module_version)
        evidence.append(loaded)
    if own is not None:
        evidence.append(Evidence(source="the driver's own", value=own.path))
    remedy = list(REMEDIES[failure.code])
    if path is not None:
        remedy.insert(0, REMOVE_FROM_PATH.format(folder=path.rpartition("/")[0] or "/"))
    if failure.code == "compat-not-supported":
        remedy.append("Or upgrade the driver: then no compatibility library is needed.")
    return failure.message, tuple(evidence), tuple(remedy)


def _not_ready(machine: Machine, failure: ProbeFailure) -> Explanation:
    """802: the fabric manager, confidential computing, or a kernel bug."""
    bug = _hmm_bug(machine)
    if bug is not None:
        return bug
    switches = machine.system.nvswitches
    if switches:
        version = machine.nvml.driver_version or machine.kernel.module_version
        return (
            "the NVSwitch fabric is not ready: the fabric manager does not run, or is of another"
            " version than the driver",
            (Evidence(source="PCI class 0x0680 of vendor 0x10de", value=f"{switches} NVSwitches"),),
            (
                "Start it: sudo systemctl start nvidia-fabricmanager",
                f"It must be of exactly the driver's version{f' {version}' if version else ''}.",
            ),
        )
    return (
        "the system is not ready: the fabric manager or confidential computing is not set up",
        (),
        (
            *REMEDIES[failure.code],
            "In confidential computing: sudo nvidia-smi conf-compute -srs 1",
            KERNEL_LOG,
        ),
    )


def _hmm_bug(machine: Machine) -> Explanation | None:
    """Recognise the kernels on which nvidia-uvm cannot find room for its memory map."""
    line = next((line for line in machine.system.log.lines or () if HMM_BUG in line), None)
    if line is None:
        return None
    return (
        "nvidia-uvm met a known conflict with the kernel's address randomisation",
        (Evidence(source=machine.system.log.source, value=line),),
        (
            "Put `options nvidia_uvm uvm_disable_hmm=1` into /etc/modprobe.d/nvidia-uvm.conf, then:"
            " sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
            "Or boot with `nokaslr`.",
        ),
    )


def _unknown(machine: Machine, failure: ProbeFailure) -> Explanation:
    bug = _hmm_bug(machine)
    if bug is not None:
        return bug
    refused = _refused(machine)
    if any(item.value == "EPERM" for item in refused) and machine.is_container:
        return (
            "the container may no longer open the GPU's device files: its device cgroup lost them",
            refused,
            ("Recreate the container.",),
        )
    return failure.message, refused, REMEDIES[failure.code]


def _refused_by_system(machine: Machine, failure: ProbeFailure) -> Explanation:
    return failure.message, _refused(machine), REMEDIES[failure.code]


EXPLAIN = {
    "library-not-found": _no_library,
    "no-device": _no_device,
    "stub-library": _wrong_library,
    "driver-mismatch": _wrong_library,
    "compat-not-supported": _wrong_library,
    "system-not-ready": _not_ready,
    "unknown": _unknown,
    "operating-system": _refused_by_system,
    "not-permitted": _refused_by_system,
}
