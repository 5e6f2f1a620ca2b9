"""Causes of CUDA's 802, not ready: NVLink fabric, confidential computing, or a kernel bug."""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.detect.checks.advice import IN_A_VM
from gpucheck.detect.checks.machine import KERNEL_LOG, Machine
from gpucheck.detect.checks.module_trouble import line_with
from gpucheck.detect.checks.reason import Reason
from gpucheck.drivers.readings import GpuReading, ProbeFailure
from gpucheck.report.envelope import Evidence

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


def not_ready(machine: Machine, failure: ProbeFailure) -> Reason:
    """Explain 802: the fabric manager, confidential computing, or a kernel bug."""
    bug = hmm_bug(machine)
    if bug is not None:
        return bug
    switches = machine.system.nvswitches
    waiting = [gpu for gpu, health in machine.gpus if health.fabric_state in FABRIC_NOT_SET_UP]
    if switches or waiting:
        return _fabric(machine, switches, waiting)
    return Reason(
        failure.code,
        "the system is not ready: confidential computing or a fabric manager is not set up",
        (Evidence(source=ON_THE_BUS, value="no NVSwitch"),),
        (
            f"{IN_A_VM}with confidential computing, sudo nvidia-smi conf-compute -srs 1",
            "On NVSwitch machines: start nvidia-fabricmanager, in exactly the driver's version.",
            *HMM_UNSEEN * may_be_hmm(machine),
            KERNEL_LOG,
        ),
    )


def _fabric(machine: Machine, switches: int, waiting: Sequence[GpuReading]) -> Reason:
    version = machine.nvml.driver_version or machine.kernel.module_version
    evidence = [Evidence(source=ON_THE_BUS, value=f"{switches} NVSwitches")]
    if waiting:
        names = ", ".join(str(gpu.index) for gpu in waiting)
        evidence.append(Evidence(source="nvmlDeviceGetGpuFabricInfoV: not completed", value=names))
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
    return Reason(
        "fabric-not-ready",
        "the NVSwitch fabric is not ready: the fabric manager does not run, or its version is not"
        " the driver's",
        tuple(evidence),
        tuple(remedy),
    )


def hmm_bug(machine: Machine) -> Reason | None:
    """Recognise the kernels on which nvidia-uvm cannot find room for its memory map."""
    line = line_with(machine.system.log, HMM_BUG)
    if line is None:
        return None
    return Reason(
        "hmm-and-address-randomisation",
        "nvidia-uvm met a known conflict with the kernel's address randomisation",
        (Evidence(source=machine.system.log.source, value=line),),
        (*_HMM, "Or boot with `nokaslr`."),
    )


def may_be_hmm(machine: Machine) -> bool:
    """Return whether that bug is possible, although the log may not be read."""
    avoided = "nokaslr" in machine.system.platform.boot_parameters
    switched_off = machine.system.module.hmm_disabled is not False
    return machine.system.log.lines is None and not avoided and not switched_off
