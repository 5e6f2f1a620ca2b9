"""Does the CUDA driver start in this environment, and does it see a GPU?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpucheck.detect.checks.nvml import OLD_CONTAINER, has_capability, refused_openings
from gpucheck.detect.findings import (
    line_with,
    make_finding,
    make_trouble,
    report_cause,
    set_variables,
)
from gpucheck.detect.machine import VISIBLE, Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.remedies import install_libraries, start_with_gpus
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
LIBRARY = "libcuda.so.1"
_report = partial(report_cause, ID, LAYER, library=LIBRARY)

#: The loader's message for a missing file, as opposed to a broken one.
MISSING = "cannot open shared object file"
SYSTEM_FOLDERS = ("/usr/lib", "/lib")
#: Failures that leave it open whether CUDA works.
UNDECIDED = frozenset({"driver-not-answering", "cuda-child-died", "not-recorded"})
#: Source: nvml.h (NVML_GPU_FABRIC_STATE_*): not started, in progress.
FABRIC_NOT_SET_UP = (1, 2)
ON_THE_BUS = "PCI class 0x0680 of vendor 0x10de"
HMM_BUG = "request_free_mem_region"
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
    return _report(
        "gpu-left-out",
        *works.evidence,
        Evidence("nvmlDeviceGetCount", str(total)),
        *(Evidence(f"NVML, GPU {gpu.index}", gpu.uuid or "") for gpu in gpus),
        status=CheckStatus.WARN,
        works=works.summary,
        total=total,
        names=names,
        them="it" if len(gpus) == 1 else "them",
        uuid=gpus[0].uuid,
        index=gpus[0].index,
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
    finding = EXPLAIN.get(failure.code, _plain)(machine, failure)
    return finding._replace(
        status=CheckStatus.UNKNOWN if failure.code in UNDECIDED else CheckStatus.FAIL,
        evidence=(*evidence, *finding.evidence),
    )


# ------------------------------------------------------------------------------ explanations


def _plain(machine: Machine, failure: ProbeFailure) -> Finding:
    if failure.library_code in MPS_CODES:
        name = "CUDA_MPS_PIPE_DIRECTORY"
        variable = set_variables(machine, name) or (Evidence(name, "unset"),)
        return _report(failure.code, *variable, summary=failure.message)
    return _report(failure.code, summary=failure.message)


def _no_library(machine: Machine, failure: ProbeFailure) -> Finding:
    name = "NVIDIA_DRIVER_CAPABILITIES"
    capabilities = machine.environment.get(name)
    if machine.is_wsl and not machine.is_container:
        return _report("wsl-library-path")
    if machine.is_container and capabilities and not has_capability(capabilities, "compute"):
        return _report("container-without-compute", *set_variables(machine, name))
    if machine.is_container and machine.nvml.failure is not None:
        return _report("container-without-gpus", remedy=start_with_gpus(machine))
    if machine.kernel.module_loaded and not machine.is_container and MISSING in failure.message:
        return _report(
            failure.code,
            summary=f"{LIBRARY} is not installed, though the driver's kernel module is loaded",
            remedy=(install_libraries(machine),),
        )
    return _plain(machine, failure)


def _no_device(machine: Machine, failure: ProbeFailure) -> Finding:
    plain = _plain(machine, failure)
    variable = set_variables(machine, VISIBLE)
    if variable:
        first = f"Unset {VISIBLE}, or name a GPU that exists: gpucheck list"
        return plain._replace(evidence=variable, remedy=(first, *plain.remedy))
    closed = [cap for cap in machine.system.nodes.caps if cap.accessible is False]
    if closed and any(gpu.mig_instances for gpu in machine.nvml.gpus):
        files = (Evidence(cap.path, f"mode {cap.mode}, owner {cap.owner}") for cap in closed)
        return _report("mig-not-permitted", *files)
    refused = refused_openings(machine)
    if "SLURM_JOB_ID" in machine.environment:
        slurm = make_trouble(ID, "slurm-without-gpus")
        return plain._replace(
            cause=slurm.cause, evidence=refused, remedy=(*slurm.remedy, *plain.remedy)
        )
    if any(item.value == "EPERM" for item in refused) and machine.is_container:
        return _report("device-cgroup-lost", *refused)
    return plain._replace(evidence=refused)


def _too_old(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain error 35, which means a driver that is too old, or none at all."""
    plain = _plain(machine, failure)
    version = machine.cuda.driver_version
    reported = Evidence("cuDriverGetVersion", "?" if version is None else str(version))
    if version != 0:
        without = tuple(step for step in plain.remedy if "cuda-compat" not in step)
        possible = not machine.is_wsl and not any(
            "GeForce" in (gpu.name or "") for gpu in machine.nvml.gpus
        )
        return plain._replace(evidence=(reported,), remedy=plain.remedy if possible else without)
    return _report("no-driver", reported)


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
    evidence = list(set_variables(machine, "LD_LIBRARY_PATH"))
    if machine.kernel.module_version is not None:
        loaded = Evidence("/sys/module/nvidia/version", machine.kernel.module_version)
        evidence.append(loaded)
    if own is not None:
        evidence.append(Evidence("the driver's own", own.path))
    finding = _report(failure.code, *evidence, summary=failure.message)
    # The system's own folders hold the driver's library: there the module is old.
    if folder and not folder.startswith(SYSTEM_FOLDERS):
        first = f"Remove {folder} from LD_LIBRARY_PATH (and from /etc/ld.so.conf.d)."
        # The table's step for a stub or a compatibility library only lacks the folder's name.
        rest = finding.remedy if failure.code == "driver-mismatch" else finding.remedy[1:]
        return finding._replace(remedy=(first, *rest))
    if failure.code == "driver-mismatch" and machine.is_container:
        return finding._replace(remedy=OLD_CONTAINER)
    return finding


def _unknown(machine: Machine, failure: ProbeFailure) -> Finding:
    bug = _hmm_bug(machine)
    if bug is not None:
        return bug
    refused = refused_openings(machine)
    if any(item.value == "EPERM" for item in refused) and machine.is_container:
        return _report("device-cgroup-lost", *refused)
    finding = _report(failure.code, *refused, summary=failure.message)
    return finding._replace(remedy=(*finding.remedy, *HMM_UNSEEN * _may_be_hmm(machine)))


def _refused_by_system(machine: Machine, failure: ProbeFailure) -> Finding:
    return _plain(machine, failure)._replace(evidence=refused_openings(machine))


def _not_ready(machine: Machine, failure: ProbeFailure) -> Finding:
    """Explain 802 and 919: the fabric manager, confidential computing, or a kernel bug."""
    bug = _hmm_bug(machine)
    if bug is not None:
        return bug
    switches = machine.system.nvswitches
    waiting = [gpu for gpu, health in machine.gpus if health.fabric_state in FABRIC_NOT_SET_UP]
    if switches or waiting:
        return _fabric(machine, switches, waiting)
    finding = _report("system-not-ready", Evidence(ON_THE_BUS, "no NVSwitch"))
    *steps, last = finding.remedy
    remedy = (*steps, *HMM_UNSEEN * _may_be_hmm(machine), last)
    return finding._replace(remedy=remedy, cause=failure.code)


def _fabric(machine: Machine, switches: int, waiting: Sequence[GpuReading]) -> Finding:
    version = machine.nvml.driver_version or machine.kernel.module_version
    evidence = [Evidence(ON_THE_BUS, f"{switches} NVSwitches")]
    if waiting:
        names = ", ".join(str(gpu.index) for gpu in waiting)
        evidence.append(Evidence("nvmlDeviceGetGpuFabricInfoV: not completed", names))
    version = f", {version}" if version else ""
    finding = _report("fabric-not-ready", *evidence, version=version)
    # From the fourth generation on, the switches are reached through InfiniBand devices: the last
    # step is for these.
    return finding._replace(remedy=finding.remedy[:-1]) if switches else finding


def _hmm_bug(machine: Machine) -> Finding | None:
    """Recognise the kernels on which nvidia-uvm cannot find room for its memory map."""
    line = line_with(machine.system.log, HMM_BUG)
    if line is None:
        return None
    return _report("hmm-and-address-randomisation", Evidence(machine.system.log.source, line))


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
