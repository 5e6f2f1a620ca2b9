"""Does the CUDA driver start in this environment, and does it see a GPU?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpucheck.detect.checks.nvml import (
    CGROUP_LOST,
    CGROUP_LOST_SUMMARY,
    OLD_CONTAINER,
    SLURM,
    WSL_PATH,
    has_capability,
)
from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import KERNEL_LOG, REBOOT, UPGRADE, VISIBLE, Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.module_problems import line_with
from gpucheck.detect.remedies import IN_A_VM, for_gpu, install_libraries, start_with_gpus
from gpucheck.drivers.evidence import NodeReading
from gpucheck.drivers.readings import CudaReading, GpuReading, ProbeFailure
from gpucheck.inventory.inventory import cuda_version
from gpucheck.inventory.visibility import apply_rules, digits_of, is_mig
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "cuda-driver"
LAYER = Layer.CUDA_DRIVER
REQUIRES: tuple[str, ...] = (
    "pci-device", "kernel-module", "device-nodes", "uvm-node", "nvml", "mig-mode",
)  # fmt: skip

_finding = partial(make_finding, ID, LAYER)
_fail = partial(_finding, CheckStatus.FAIL)

LIBRARY = "libcuda.so.1"

#: The loader's message for a missing file, as opposed to a broken one.
MISSING = "cannot open shared object file"
SYSTEM_FOLDERS = ("/usr/lib", "/lib")
MPS = (
    "Restart the MPS daemon: echo quit | nvidia-cuda-mps-control; nvidia-cuda-mps-control -d",
    "Or stop it: echo quit | nvidia-cuda-mps-control (programs also run without the daemon)",
)
#: Source: CUDA Compatibility, forward compatibility: data centre GPUs on Linux alone.
COMPAT = "On data centre GPUs: the package cuda-compat lets an older driver run newer CUDA."
#: Remedies by the failure's code.
REMEDIES: dict[str, tuple[str, ...]] = {
    "library-not-found": (
        "On a host: install the NVIDIA driver with its CUDA library.",
        "In a container: set NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
    ),
    "stub-library": ("Remove the directory .../lib64/stubs from LD_LIBRARY_PATH.",),
    "insufficient-driver": (UPGRADE, "Or use a build for an older CUDA.", COMPAT),
    "newer-driver-needed": (UPGRADE, "Or use a build for an older CUDA."),
    "out-of-memory": ("See which programs use the memory: gpucheck list --processes",),
    "devices-unavailable": (
        "See which program holds it, then wait or ask: gpucheck list --processes",
        "Set the compute mode to default: sudo nvidia-smi -c 0",
        KERNEL_LOG,
    ),
    "no-device": (
        KERNEL_LOG,
        "In a virtual machine: a vGPU needs a profile with CUDA (series C or Q) and a licence.",
        REBOOT,
    ),
    "not-licensed": ("Check the licence server of the virtual GPU (nvidia-gridd).",),
    "ecc-uncorrectable": ("Reset the GPU: sudo nvidia-smi --gpu-reset", KERNEL_LOG),
    "library-broken": ("Reinstall the driver's libraries, all of one version.",),
    "not-permitted": ("Check the permissions of /dev/nvidia*; in a container, its devices.",),
    "system-not-ready": (KERNEL_LOG,),
    "fabric-not-ready": (KERNEL_LOG,),
    "driver-mismatch": ("Reboot, so that the kernel module of the installed driver is loaded.",),
    "compat-not-supported": ("Remove the cuda-compat directory from LD_LIBRARY_PATH.",),
    "mps-connection-failed": MPS,
    "mps-rpc-failure": MPS,
    "mps-not-ready": (
        "Wait and try again: the server is starting, recovering, or ending another user's client.",
        *MPS,
    ),
    "mps-client-terminated": MPS,
    "mps-too-many-clients": ("End programs that use MPS, then try again.",),
    "mps-no-connections": ("End programs that use MPS, then try again.",),
    "unknown": (
        "Load the memory module: sudo nvidia-modprobe -c0 -u",
        "After suspend: sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
    ),
    "not-initialized": (KERNEL_LOG, REBOOT),
    "invalid-device": (f"Check {VISIBLE}: gpucheck list",),
    "operating-system": ("Check the permissions of /dev/nvidia* and the limits (ulimit -a).",),
    "function-not-found": ("Install the libcuda.so.1 of the driver's own version.",),
    "driver-not-answering": (KERNEL_LOG, REBOOT),
    "not-recorded": ("Record the machine again: gpucheck snapshot FILE",),
}
#: Failures that leave it open whether CUDA works.
UNDECIDED = frozenset({"driver-not-answering", "cuda-child-died", "not-recorded"})
#: Source: nvml.h (NVML_GPU_FABRIC_STATE_*): not started, in progress.
FABRIC_NOT_SET_UP = (1, 2)
ON_THE_BUS = "PCI class 0x0680 of vendor 0x10de"
HMM_BUG = "request_free_mem_region"
_HMM = (
    "Write `options nvidia_uvm uvm_disable_hmm=1` into /etc/modprobe.d/nvidia-uvm.conf, then:"
    " sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm",
)
HMM_UNSEEN = (
    "If the kernel log has `request_free_mem_region() err -34`: write"
    " `options nvidia_uvm uvm_disable_hmm=1` into /etc/modprobe.d/nvidia-uvm.conf and reboot.",
)
#: Source: cuda.h (CUDA_ERROR_MPS_*).
MPS_CODES = range(805, 811)


def check(machine: Machine) -> Finding:
    """Judge libcuda's answer in a fresh process with this environment."""
    reading = machine.cuda
    failure = reading.failure
    if failure is None and not reading.device_count:
        failure = ProbeFailure(code="no-device", message="CUDA starts, but sees no GPU")
    if failure is None:
        return _left_out(machine) or _works(reading)
    if failure.code == "no-device" and VISIBLE in machine.environment:
        without = machine.cuda_unrestricted
        if without.failure is None and without.device_count:
            return _works(without, f" without {VISIBLE}")
    return _failed(failure, machine)


def _works(reading: CudaReading, where: str = "") -> Finding:
    version = "?" if reading.driver_version is None else cuda_version(reading.driver_version)
    count = reading.device_count or 0
    evidence = [Evidence("cuDeviceGetCount", str(count))]
    if reading.library_path is not None:
        evidence.append(Evidence(LIBRARY, reading.library_path))
    return _finding(
        CheckStatus.OK, f"CUDA {version} starts and sees {count_of(count)}{where}", *evidence
    )


def _left_out(machine: Machine) -> Finding | None:
    """Name the GPUs that by the rules should be visible, and are not.

    Not judged: MIG (CUDA counts instances), a lost GPU and one with a prohibiting compute mode,
    which have checks of their own; and devices that CUDA does not name.
    """
    visible = _visible_by_the_rules(machine)
    seen = {device.uuid_hex for device in machine.cuda.devices}
    if visible is None or None in seen:
        return None
    gpus = [
        gpu
        for gpu in machine.nvml.gpus
        if gpu.uuid in visible
        and digits_of(gpu.uuid or "") not in seen
        and gpu.index not in machine.lost
        and gpu.compute_mode != "prohibited"
    ]
    # A device with another UUID in NVML may be one of them.
    strangers = seen - {digits_of(gpu.uuid) for gpu in machine.nvml.gpus if gpu.uuid}
    if len(gpus) <= len(strangers):
        return None
    names = ", ".join(f"GPU {gpu.index} ({gpu.pci_bus_id})" for gpu in gpus)
    if strangers:
        names = f"{len(gpus) - len(strangers)} of {names}"
    works = _works(machine.cuda)
    total = len(machine.nvml.gpus)
    return works._replace(
        status=CheckStatus.WARN,
        summary=f"{works.summary} of {total}: it leaves out {names}, and nothing hides"
        f" {'it' if len(gpus) == 1 else 'them'}",
        evidence=(
            *works.evidence,
            Evidence("nvmlDeviceGetCount", str(total)),
            *(Evidence(f"NVML, GPU {gpu.index}", gpu.uuid or "") for gpu in gpus),
        ),
        remedy=(
            f"Check it alone: {VISIBLE}={gpus[0].uuid} gpucheck detect",
            KERNEL_LOG,
            *for_gpu(gpus[0].index, ("Reset it: sudo nvidia-smi --gpu-reset",)),
        ),
        cause="gpu-left-out",
    )


def _visible_by_the_rules(machine: Machine) -> tuple[str, ...] | None:
    """Return the UUIDs that a program should see; None if only the driver knows."""
    nvml = machine.nvml
    gpus = [gpu for gpu in nvml.gpus if gpu.failure is None]
    if nvml.failure is not None or any(is_mig(gpu) for gpu in gpus):
        return None
    text = machine.environment.get(VISIBLE)
    if text is None:
        # All of them, in whatever order.
        return tuple(gpu.uuid for gpu in gpus if gpu.uuid)
    order = machine.environment.get("CUDA_DEVICE_ORDER")
    return apply_rules(text, order, gpus, driver_version=nvml.driver_version).visible


def _failed(failure: ProbeFailure, machine: Machine) -> Finding:
    code = "" if failure.library_code is None else f"CUDA {failure.library_code}"
    evidence = [Evidence(failure.function or "libcuda", code or failure.code)]
    if machine.cuda.library_path is not None:
        evidence.append(Evidence(LIBRARY, machine.cuda.library_path))
    found = EXPLAIN.get(failure.code, _plain)(machine, failure)
    return found._replace(
        status=CheckStatus.UNKNOWN if failure.code in UNDECIDED else CheckStatus.FAIL,
        evidence=(*evidence, *found.evidence),
    )


# ------------------------------------------------------------------------------ explanations


def _plain(machine: Machine, failure: ProbeFailure) -> Finding:
    remedy = REMEDIES.get(failure.code, (KERNEL_LOG,))
    if failure.library_code in MPS_CODES:
        remedy = REMEDIES.get(failure.code, MPS)
        name = "CUDA_MPS_PIPE_DIRECTORY"
        variable = _variable(machine, name) or (Evidence(name, "unset"),)
        return _fail(failure.message, *variable, remedy=remedy, cause=failure.code)
    return _fail(failure.message, remedy=remedy, cause=failure.code)


def _variable(machine: Machine, name: str) -> tuple[Evidence, ...]:
    text = machine.environment.get(name)
    return () if text is None else (Evidence(name, repr(text)),)


def _no_library(machine: Machine, failure: ProbeFailure) -> Finding:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    capabilities = machine.environment.get(name)
    if machine.is_wsl and not machine.is_container:
        return _fail(
            f"{LIBRARY} of the Windows driver is not in the loader's path",
            remedy=WSL_PATH,
            cause="wsl-library-path",
        )
    if machine.is_container and capabilities and not has_capability(capabilities, "compute"):
        return _fail(
            f"{LIBRARY} is missing: the container was started without the `compute` capability",
            *_variable(machine, name),
            remedy=(f"Start the container with {name}=compute,utility",),
            cause="container-without-compute",
        )
    if machine.is_container and machine.nvml.failure is not None:
        return _fail(
            f"{LIBRARY} is missing in this container",
            remedy=start_with_gpus(machine),
            cause="container-without-gpus",
        )
    if machine.kernel.module_loaded and not machine.is_container and MISSING in failure.message:
        return _fail(
            f"{LIBRARY} is not installed, though the driver's kernel module is loaded",
            remedy=(install_libraries(machine),),
            cause=failure.code,
        )
    return _plain(machine, failure)


def _no_device(machine: Machine, failure: ProbeFailure) -> Finding:
    plain = _plain(machine, failure)
    variable = _variable(machine, VISIBLE)
    if variable:
        first = f"Unset {VISIBLE}, or name a GPU that exists: gpucheck list"
        return plain._replace(evidence=variable, remedy=(first, *plain.remedy))
    closed = [cap for cap in machine.system.nodes.caps if cap.accessible is False]
    if closed and any(gpu.mig_instances for gpu in machine.nvml.gpus):
        return _mig_denied(closed)
    if "SLURM_JOB_ID" in machine.environment:
        return plain._replace(
            cause="slurm-without-gpus", evidence=_refused(machine), remedy=(*SLURM, *plain.remedy)
        )
    refused = _refused(machine)
    if any(item.value == "EPERM" for item in refused) and machine.is_container:
        return _fail(CGROUP_LOST_SUMMARY, *refused, remedy=CGROUP_LOST, cause="device-cgroup-lost")
    return plain._replace(evidence=refused)


def _mig_denied(closed: Sequence[NodeReading]) -> Finding:
    return _fail(
        "this user may not use the MIG instances: no permission for their access files",
        *(Evidence(cap.path, f"mode {cap.mode}, owner {cap.owner}") for cap in closed),
        remedy=(
            "Ask the administrator for access: /proc/driver/nvidia-caps/mig-minors lists the files"
            " of each instance",
            "In a container: pass the instance (docker run --gpus 'device=0:0', or its UUID).",
        ),
        cause="mig-not-permitted",
    )


def _refused(machine: Machine) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(f"open {path}", error)
        for path, error in machine.openings.items()
        if error is not None
    )


def _too_old(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain error 35, which means a driver that is too old, or none at all."""
    plain = _plain(machine, failure)
    version = machine.cuda.driver_version
    reported = Evidence("cuDriverGetVersion", "?" if version is None else str(version))
    if version != 0:
        without = tuple(step for step in plain.remedy if step != COMPAT)
        possible = not machine.is_wsl and not any(
            "GeForce" in (gpu.name or "") for gpu in machine.nvml.gpus
        )
        return plain._replace(evidence=(reported,), remedy=plain.remedy if possible else without)
    return _fail(
        f"there is no driver behind {LIBRARY} (its version reads as 0)",
        reported,
        remedy=REMEDIES["library-not-found"],
        cause="no-driver",
    )


def _unavailable(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain error 46: a program has the GPU to itself, or no program may have it."""
    plain = _plain(machine, failure)
    modes = [gpu for gpu in machine.nvml.gpus if gpu.compute_mode not in (None, "default")]
    evidence = tuple(
        Evidence(f"nvmlDeviceGetComputeMode, GPU {gpu.index}", str(gpu.compute_mode))
        for gpu in modes
    )
    known = [gpu.compute_mode for gpu in machine.nvml.gpus]
    if modes or not known or None in known:
        return plain._replace(evidence=evidence)
    # The modes are not the reason.
    return plain._replace(
        evidence=(Evidence("nvmlDeviceGetComputeMode", "default on every GPU"),),
        remedy=tuple(step for step in plain.remedy if "compute mode" not in step),
    )


def _wrong_library(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain errors 34, 803 and 804: another libcuda comes before the driver's own."""
    path = machine.cuda.library_path
    folder = (path or "").rpartition("/")[0]
    own = next(
        (
            lib
            for lib in machine.system.libraries.found
            if lib.name == LIBRARY and lib.kind in ("driver", "wsl") and lib.path != path
        ),
        None,
    )
    evidence = list(_variable(machine, "LD_LIBRARY_PATH"))
    if machine.kernel.module_version is not None:
        loaded = Evidence("/sys/module/nvidia/version", machine.kernel.module_version)
        evidence.append(loaded)
    if own is not None:
        evidence.append(Evidence("the driver's own", own.path))
    remedy = REMEDIES[failure.code]
    # The system's own folders hold the driver's library: there the module is old.
    if folder and not folder.startswith(SYSTEM_FOLDERS):
        remedy = (f"Remove {folder} from LD_LIBRARY_PATH (and from /etc/ld.so.conf.d).",)
    elif failure.code == "driver-mismatch" and machine.is_container:
        return _fail(failure.message, *evidence, remedy=OLD_CONTAINER, cause=failure.code)
    if failure.code == "driver-mismatch":
        remedy = (*dict.fromkeys((*remedy, *REMEDIES[failure.code])),)
    if failure.code == "compat-not-supported":
        remedy = (*remedy, "Or upgrade the driver: then no compatibility library is needed.")
    return _fail(failure.message, *evidence, remedy=remedy, cause=failure.code)


def _unknown(machine: Machine, failure: ProbeFailure) -> Finding:
    bug = _hmm_bug(machine)
    if bug is not None:
        return bug
    refused = _refused(machine)
    if any(item.value == "EPERM" for item in refused) and machine.is_container:
        return _fail(CGROUP_LOST_SUMMARY, *refused, remedy=CGROUP_LOST, cause="device-cgroup-lost")
    remedy = (*REMEDIES[failure.code], *HMM_UNSEEN * _may_be_hmm(machine))
    return _fail(failure.message, *refused, remedy=remedy, cause=failure.code)


def _refused_by_system(machine: Machine, failure: ProbeFailure) -> Finding:
    return _plain(machine, failure)._replace(evidence=_refused(machine))


def _not_ready(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain 802 and 919: the fabric manager, confidential computing, or a kernel bug."""
    bug = _hmm_bug(machine)
    if bug is not None:
        return bug
    switches = machine.system.nvswitches
    waiting = [gpu for gpu, health in machine.gpus if health.fabric_state in FABRIC_NOT_SET_UP]
    if switches or waiting:
        return _fabric(machine, switches, waiting)
    return _fail(
        "the system is not ready: confidential computing or a fabric manager is not set up",
        Evidence(ON_THE_BUS, "no NVSwitch"),
        remedy=(
            f"{IN_A_VM}with confidential computing, sudo nvidia-smi conf-compute -srs 1",
            "On NVSwitch machines: start nvidia-fabricmanager, in exactly the driver's version.",
            *HMM_UNSEEN * _may_be_hmm(machine),
            KERNEL_LOG,
        ),
        cause=failure.code,
    )


def _fabric(machine: Machine, switches: int, waiting: Sequence[GpuReading]) -> Finding:
    version = machine.nvml.driver_version or machine.kernel.module_version
    evidence = [Evidence(ON_THE_BUS, f"{switches} NVSwitches")]
    if waiting:
        names = ", ".join(str(gpu.index) for gpu in waiting)
        evidence.append(Evidence("nvmlDeviceGetGpuFabricInfoV: not completed", names))
    remedy = [
        "Start it: sudo systemctl start nvidia-fabricmanager",
        f"Its version must be exactly the driver's{f', {version}' if version else ''}.",
        "Read its log: journalctl -u nvidia-fabricmanager",
    ]
    if not switches:
        # From the fourth generation on, the switches are reached through InfiniBand devices.
        remedy.append(
            "On HGX B200 and newer it also needs the package nvlsm and the module ib_umad; on"
            " racks such as GB200 NVL72 it runs in the switch trays: ask the operator of the rack."
        )
    return _fail(
        "the NVSwitch fabric is not ready: the fabric manager does not run, or its version is not"
        " the driver's",
        *evidence,
        remedy=tuple(remedy),
        cause="fabric-not-ready",
    )


def _hmm_bug(machine: Machine) -> Finding | None:
    """Recognise the kernels on which nvidia-uvm cannot find room for its memory map."""
    line = line_with(machine.system.log, HMM_BUG)
    if line is None:
        return None
    return _fail(
        "nvidia-uvm met a known conflict with the kernel's address randomisation",
        Evidence(machine.system.log.source, line),
        remedy=(*_HMM, "Or boot with `nokaslr`."),
        cause="hmm-and-address-randomisation",
    )


def _may_be_hmm(machine: Machine) -> bool:
    """Return whether that bug is possible, although the log may not be read."""
    avoided = "nokaslr" in machine.system.platform.boot_parameters
    switched_off = machine.system.module.hmm_disabled is not False
    return machine.system.log.lines is None and not avoided and not switched_off


EXPLAIN = {
    "library-not-found": _no_library,
    "no-device": _no_device,
    "insufficient-driver": _too_old,
    "devices-unavailable": _unavailable,
    "stub-library": _wrong_library,
    "driver-mismatch": _wrong_library,
    "compat-not-supported": _wrong_library,
    "system-not-ready": _not_ready,
    "fabric-not-ready": _not_ready,
    "unknown": _unknown,
    "operating-system": _refused_by_system,
    "not-permitted": _refused_by_system,
}
