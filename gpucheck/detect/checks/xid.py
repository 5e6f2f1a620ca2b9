"""Did the driver report GPU errors (Xid) in the kernel log?"""

from __future__ import annotations

import re
from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.detect.remedies import for_gpu
from gpucheck.report.envelope import CheckStatus, Evidence

ID = "xid"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)

ABOUT = About(
    looks_at=("/dev/kmsg, /var/log/kern.log, /var/log/messages: lines `NVRM: Xid` of this boot",),
    why="The driver's own record of errors; the number tells a broken GPU from a faulty program.",
    rules=(
        "fail: 48, 62, 64, 74, 79, 95, 119, 120, 140; warn: 63, 94 and any other hardware error",
        "13, 31, 43, 45 and 68 are program errors: only noted",
        "unknown: the log may not be read, which is not the same as an empty log",
    ),
    sources=(
        "NVIDIA XID Errors",
        "DCGM's list of devastating Xids: 48, 64, 74, 79, 95, 119, 120, 140",
    ),
    causes=("xid-N",),
)

RESET = "Stop what runs on it, then: sudo nvidia-smi --gpu-reset"
#: The meaning of the numbers. Source: NVIDIA XID Errors.
MEANING: dict[int, str] = {
    48: "a memory error that could not be corrected",
    62: "an internal processor of the GPU halted",
    63: "a row or page of memory was marked to be replaced",
    64: "a row or page of memory could not be replaced",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    92: "many corrected memory errors",
    94: "a memory error that hit one program",
    95: "a memory error that hit every program",
    109: "the GPU could not switch between programs in time",
    119: "the GPU's own processor (GSP) did not answer in time",
    120: "an error of the GPU's own processor (GSP)",
    136: "NVLink training failed",
    140: "a memory error that was not recovered from",
    143: "the GPU could not be initialised",
    154: "the driver asks for a recovery",
}
#: The remedy for severe ones. Source: NVIDIA XID Errors, recommended actions.
SEVERE: dict[int, str] = {
    48: RESET,
    62: RESET,
    64: RESET,
    74: "Check the NVLink bridges and switches; then ask the vendor.",
    79: "Power the machine off and on again; check power and temperature.",
    95: RESET,
    119: RESET,
    120: RESET,
    140: RESET,
}
#: The remedy for others. Source: the same.
STEPS: dict[int, str] = {
    63: "When nothing runs on it: sudo nvidia-smi --gpu-reset",
    92: "Watch it: gpucheck detect --only ecc-errors,row-remapping",
    94: "Restart the program that it hit.",
    **dict.fromkeys((109, 136, 143, 155, 156, 158), RESET),
    154: "See what it asks for: gpucheck detect --only recovery-action",
}
#: Errors of programs rather than of GPUs.
OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})
_LINE = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<bus>[0-9a-fA-F:.]+)\)?[^:]*: (?P<number>[0-9]+)")


def check(machine: Machine) -> list[Finding]:
    """Judge the lines, with one finding for each number and GPU."""
    log = machine.system.log
    if log.lines is None:
        reason = log.unavailable or machine.system.unavailable or "the kernel log was not recorded"
        return [_whole(CheckStatus.UNKNOWN, f"not checked: {reason}")]
    found = {key: line for line in log.lines if (key := _parse(line)) is not None}
    bad = [
        _judge(machine, number, pci_bus_id, Evidence(log.source, line))
        for (number, pci_bus_id), line in found.items()
        if number not in OF_PROGRAMS
    ]
    if bad:
        return sorted(bad, key=lambda finding: finding.status is not CheckStatus.FAIL)
    if found:
        numbers = ", ".join(sorted({str(number) for number, _ in found}))
        return [_whole(CheckStatus.OK, f"only program errors (Xid {numbers})")]
    return [_whole(CheckStatus.OK, f"no Xid in {log.source}")]


def _parse(line: str) -> tuple[int, str] | None:
    """Return the error's number and the GPU's bus id, if a line has one."""
    match = _LINE.search(line)
    if match is None:
        return None
    bus = match["bus"].lower().rstrip(".:")
    domain, _, rest = bus.partition(":")
    name = f"{domain[-4:]}:{rest}" if rest.count(":") else bus
    return int(match["number"]), name if "." in name else f"{name}.0"


def _whole(status: CheckStatus, summary: str) -> Finding:
    cause = "not-read" if status is CheckStatus.UNKNOWN else None
    return _finding(status, summary, cause=cause)


def _judge(machine: Machine, number: int, pci_bus_id: str, evidence: Evidence) -> Finding:
    gpu = next((gpu for gpu in machine.nvml.gpus if gpu.pci_bus_id == pci_bus_id), None)
    name = pci_bus_id if gpu is None else f"GPU {gpu.index}"
    severe = SEVERE.get(number)
    meaning = MEANING.get(number)
    known = severe or STEPS.get(number)
    steps = (known or "Look the number up in NVIDIA's list of XID errors.",)
    return _finding(
        CheckStatus.WARN if severe is None else CheckStatus.FAIL,
        f"{name}: Xid {number} in the kernel log" + (f": {meaning}" if meaning else ""),
        evidence,
        remedy=steps if gpu is None else for_gpu(gpu.index, steps),
        gpu=gpu.uuid if gpu else None,
        cause=f"xid-{number}",
    )
