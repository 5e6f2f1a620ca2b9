"""Problems of a loaded kernel module: the wrong flavour, or errors in the kernel log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpucheck.detect.cuda_versions import is_blackwell_or_newer, is_older_than_turing
from gpucheck.detect.machine import KERNEL_LOG, Machine
from gpucheck.drivers.evidence import KernelLogReading
from gpucheck.drivers.readings import PciDeviceReading
from gpucheck.inventory.condition import Trouble
from gpucheck.report.envelope import CheckStatus, Evidence

OPEN_FLAVOUR = ("Install the driver's open flavour (package names end in -open); reboot.",)
PROPRIETARY = (
    "Install the proprietary flavour of a driver branch that still supports this GPU; reboot.",
)
OTHER_BRANCH = (
    "Install a driver branch that supports this GPU (470 is the last for Kepler, 580 for Maxwell,"
    " Pascal and Volta); reboot.",
)
ONE_VERSION = ("Reinstall the driver, all of it as one version; then reboot.",)
COLD_START = (
    "In a virtual machine: stop it and start it again from outside; it may get another GPU.",
    "Power the machine off (not just a reboot) and on again.",
    "Check power cables, riser and temperature; if it happens again, replace the GPU.",
)

#: Driver messages in the kernel log: a pattern, the cause, the meaning, the remedy. A message has
#: several lines, each of which may come alone: a pattern is part of one of them.
#: Source: open-gpu-kernel-modules, messages of nv.c and osapi.c.
LOG_MESSAGES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        r"not supported by open\b",
        "open-module-on-old-gpu",
        "the open module does not support this GPU",
        PROPRIETARY,
    ),
    (
        "requires use of the NVIDIA open kernel modules",
        "proprietary-module-on-new-gpu",
        "this GPU needs the open kernel module",
        OPEN_FLAVOUR,
    ),
    (
        "is not supported by the",
        "gpu-not-supported",
        "this driver release does not support this GPU",
        OTHER_BRANCH,
    ),
    (
        r"supported through the NVIDIA [0-9]+\.xx Legacy drivers",
        "gpu-not-supported",
        "this GPU needs the older driver branch that the driver names",
        OTHER_BRANCH,
    ),
    (
        "probe routine was not called",
        "taken-by-another-driver",
        "another driver had taken the GPU",
        ("Blacklist the other driver (nouveau, nova_core) and reboot.",),
    ),
    (
        "already bound to NovaCore",
        "taken-by-another-driver",
        "the driver nova_core had taken the GPU",
        ("Blacklist nova, nova_core and nova_drm (modprobe.d) and reboot.",),
    ),
    (
        "assigned to your NVIDIA device is invalid|BAR[0-9] is 0M",
        "no-memory-window",
        "the firmware gave the GPU no memory window (BAR)",
        (
            "In a virtual machine: give it more 64-bit MMIO space.",
            "In the BIOS turn on `Above 4G Decoding`, and boot with UEFI.",
            "Or boot with `pci=realloc`.",
        ),
    ),
    ("has fallen off the bus", "fell-off-the-bus", "the GPU has fallen off the bus", COLD_START),
    (
        r"gsp_\w+\.bin failed|No firmware image found",
        "gsp-firmware",
        "the GPU's firmware (GSP) could not be loaded",
        (
            "Install the firmware files of exactly this driver version (they come with it; on"
            " Debian in the package firmware-nvidia-gsp).",
            *ONE_VERSION,
        ),
    ),
    (
        "RmInitAdapter failed",
        "gpu-init-failed",
        "the driver could not initialise the GPU",
        ("Power the machine off and on again.", KERNEL_LOG, *ONE_VERSION),
    ),
)


def line_with(log: KernelLogReading, pattern: str) -> str | None:
    """Return the newest line of the kernel log in which a pattern is found."""
    return next((line for line in reversed(log.lines or ()) if re.search(pattern, line)), None)


def problem_in_log(machine: Machine) -> Trouble | None:
    """Return the problem that the log shows, the most specific one first."""
    log = machine.system.log
    for pattern, cause, meaning, remedy in LOG_MESSAGES:
        line = line_with(log, pattern)
        if line is not None:
            return Trouble(
                CheckStatus.FAIL, meaning, (Evidence(log.source, line),), remedy, cause=cause
            )
    return None


def wrong_flavour(machine: Machine, devices: Sequence[PciDeviceReading]) -> Trouble | None:
    """Return why the loaded flavour, open or proprietary, does not fit one of these GPUs."""
    flavour = machine.system.module.flavour
    if flavour == "open" and any(is_older_than_turing(device.device_id) for device in devices):
        summary = "the open kernel module is loaded, which supports no GPU older than Turing"
        remedy, cause = PROPRIETARY, "open-module-on-old-gpu"
    elif flavour == "proprietary" and any(is_blackwell_or_newer(d.device_id) for d in devices):
        summary = "the proprietary kernel module is loaded, but Blackwell GPUs need the open one"
        remedy, cause = OPEN_FLAVOUR, "proprietary-module-on-new-gpu"
    else:
        return None
    evidence = (Evidence("/proc/driver/nvidia/version", flavour),)
    return Trouble(CheckStatus.FAIL, summary, evidence, remedy, cause=cause)
