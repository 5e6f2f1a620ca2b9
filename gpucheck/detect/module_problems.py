"""Problems of a loaded kernel module: the wrong flavour, or errors in the kernel log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpucheck.detect.cuda_versions import is_blackwell_or_newer, is_older_than_turing
from gpucheck.detect.findings import make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.drivers.evidence import KernelLogReading
from gpucheck.drivers.readings import PciDeviceReading
from gpucheck.inventory.condition import Trouble
from gpucheck.report.envelope import CheckStatus, Evidence

#: Driver messages in the kernel log: a pattern, and the cause. A message has several lines, each of
#: which may come alone: a pattern is part of one of them.
#: Source: open-gpu-kernel-modules, messages of nv.c and osapi.c.
LOG_MESSAGES: tuple[tuple[str, str], ...] = (
    (r"not supported by open\b", "open-module-on-old-gpu"),
    ("requires use of the NVIDIA open kernel modules", "proprietary-module-on-new-gpu"),
    ("is not supported by the", "gpu-not-supported"),
    (r"supported through the NVIDIA [0-9]+\.xx Legacy drivers", "gpu-of-an-older-branch"),
    ("probe routine was not called", "taken-by-another-driver"),
    ("already bound to NovaCore", "taken-by-nova-core"),
    ("assigned to your NVIDIA device is invalid|BAR[0-9] is 0M", "no-memory-window"),
    ("has fallen off the bus", "fell-off-the-bus"),
    (r"gsp_\w+\.bin failed|No firmware image found", "gsp-firmware"),
    ("RmInitAdapter failed", "gpu-init-failed"),
)


def line_with(log: KernelLogReading, pattern: str) -> str | None:
    """Return the newest line of the kernel log in which a pattern is found."""
    return next((line for line in reversed(log.lines or ()) if re.search(pattern, line)), None)


def problem_in_log(machine: Machine) -> Trouble | None:
    """Return the problem that the log shows, the most specific one first."""
    log = machine.system.log
    for pattern, cause in LOG_MESSAGES:
        line = line_with(log, pattern)
        if line is not None:
            evidence = Evidence(log.source, line)
            return make_trouble("kernel-module", cause, evidence, status=CheckStatus.FAIL)
    return None


def wrong_flavour(machine: Machine, devices: Sequence[PciDeviceReading]) -> Trouble | None:
    """Return why the loaded flavour, open or proprietary, does not fit one of these GPUs."""
    flavour = machine.system.module.flavour
    if flavour == "open" and any(is_older_than_turing(device.device_id) for device in devices):
        summary = "the open kernel module is loaded, which supports no GPU older than Turing"
        cause = "open-module-on-old-gpu"
    elif flavour == "proprietary" and any(is_blackwell_or_newer(d.device_id) for d in devices):
        summary = "the proprietary kernel module is loaded, but Blackwell GPUs need the open one"
        cause = "proprietary-module-on-new-gpu"
    else:
        return None
    evidence = Evidence("/proc/driver/nvidia/version", flavour)
    trouble = make_trouble("kernel-module", cause, evidence, status=CheckStatus.FAIL)
    return trouble._replace(summary=summary)
