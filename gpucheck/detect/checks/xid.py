"""Did the driver report GPU errors (Xid) in the kernel log?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.report.envelope import CheckStatus

ID = "xid"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)

ABOUT = About(
    looks_at=(
        "/dev/kmsg, /var/log/kern.log, /var/log/messages: lines `NVRM: Xid` of this boot",
        "/var/log/kern.log, /var/log/messages: those of earlier boots, to say if one came back",
    ),
    why="The driver's own record of errors; the number tells a broken GPU from a faulty program.",
    rules=(
        "fail: 46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 158: NVIDIA's action is a "
        "reset, a restart of the machine, or work on the links",
        "11, 13, 25, 31, 32, 37, 43, 45, 69, 80, 106, 107, 108, 121, 137 and 162 are errors of "
        "programs, or nothing at all: only noted",
        "fail: a line of 144 to 150 (NVLink 5) that says Fatal, but for two of the reasons why a "
        "link goes down; else they warn",
        "warn: any other number; gpucheck/data/xid.toml has each with NVIDIA's actions, and the "
        "reason where it is judged otherwise",
        "the lines of one number on one GPU are one finding; 3 minutes of silence end a burst",
        "unknown: the log may not be read, which is not the same as an empty log",
    ),
    sources=(
        "NVIDIA XID Errors: Analyzing Xid Errors with the Xid Catalog (Ampere and newer)",
        "DCGM's list of devastating Xids: 48, 64, 74, 79, 95, 119, 120, 140",
    ),
    causes=("xid-N",),
)

#: How the driver begins the line of an error.
BEGIN = "NVRM: Xid ("


def check(machine: Machine) -> list[Finding]:
    """Judge the lines, with one finding for each number and GPU."""
    log = machine.system.log
    if log.lines is None:
        reason = log.unavailable or machine.system.unavailable or "the kernel log was not recorded"
        return [_finding(CheckStatus.UNKNOWN, f"not checked: {reason}", cause="not-read")]
    if not any(BEGIN in line for line in (*log.lines, *(log.earlier.lines or ()))):
        return [_finding(CheckStatus.OK, f"no Xid in {log.source}")]
    # Most logs have none, and the table with what judges them takes time to load.
    from gpucheck.detect.xids import judge_lines

    return judge_lines(machine, _finding)
