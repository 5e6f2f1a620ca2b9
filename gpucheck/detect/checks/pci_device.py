"""Does the kernel see an NVIDIA GPU on the PCI bus, without any driver?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding, report_cause
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import PciDetailReading
from gpucheck.drivers.readings import PciDeviceReading
from gpucheck.inventory.without_nvml import SWITCHED_OFF, describe_others, fitting_steps
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of

ID = "pci-device"
LAYER = Layer.PCI
REQUIRES: tuple[str, ...] = ()

_finding = partial(make_finding, ID, LAYER)
_report = partial(report_cause, ID, LAYER)

SOURCE = "/sys/bus/pci/devices/*/vendor"
SUSPENDED = "suspended"
NO_GPU = "no-gpu-on-the-bus"
FELL_OFF = "fell-off-the-bus"


def check(machine: Machine) -> Finding:
    """Find the display controllers of vendor 0x10de, and whether they still answer."""
    devices = machine.kernel.pci_devices
    if machine.is_wsl:
        return _skip("WSL2: the GPU belongs to Windows and is not on this PCI bus")
    if machine.is_jetson:
        return _skip("Jetson: the GPU is part of the processor and on no PCI bus")
    if devices is None:
        evidence = Evidence(SOURCE, machine.kernel.pci_unavailable or "unreadable")
        return _report("bus-not-readable", evidence, status=CheckStatus.UNKNOWN)
    return _found(machine, devices) if devices else _none(machine)


def _skip(summary: str) -> Finding:
    return _finding(CheckStatus.SKIP, summary)


def _none(machine: Machine) -> Finding:
    evidence = Evidence(SOURCE, "no 0x10de display controller")
    profile = machine.system.platform.prime_profile
    if profile in SWITCHED_OFF:
        return _report("gpu-switched-off", evidence, Evidence("/etc/prime-discrete", profile))
    finding = _report(NO_GPU, evidence)
    platform = machine.system.platform
    return finding._replace(
        summary=f"{finding.summary}{describe_others(platform)}",
        remedy=fitting_steps(finding.remedy, platform.hypervisor),
    )


def gone_gpus(machine: Machine) -> list[str]:
    """Return the bus ids of the GPUs whose registers read as all ones, though they do not sleep."""
    on_bus = {device.pci_bus_id for device in machine.kernel.pci_devices or ()}
    return [
        detail.pci_bus_id
        for detail in machine.system.pci
        if detail.pci_bus_id in on_bus and detail.answers is False and not _sleeps(detail)
    ]


def _found(machine: Machine, devices: tuple[PciDeviceReading, ...]) -> Finding:
    details = {detail.pci_bus_id: detail for detail in machine.system.pci}
    gone = gone_gpus(machine)
    if gone:
        return _gone(gone, len(devices))
    return _finding(
        CheckStatus.OK,
        f"{count_of(len(devices), 'NVIDIA GPU')} on the PCI bus",
        *(
            Evidence(
                f"/sys/bus/pci/devices/{device.pci_bus_id}",
                f"device {device.device_id or 'of unknown id'}"
                + f", {SUSPENDED}" * _sleeps(details.get(device.pci_bus_id)),
            )
            for device in devices
        ),
    )


def _sleeps(detail: PciDetailReading | None) -> bool:
    return detail is not None and detail.runtime_status == SUSPENDED


def _gone(gone: list[str], count: int) -> Finding:
    every = len(gone) == count
    words = ", ".join(gone)
    return _report(
        FELL_OFF,
        *(Evidence(f"/sys/bus/pci/devices/{bus_id}/config", "ff ff ff ff") for bus_id in gone),
        status=CheckStatus.FAIL if every else CheckStatus.WARN,
        summary=f"{words} ({len(gone)} of {count_of(count)}) fell off the bus",
    )
