"""Did the driver report GPU errors (Xid) in the kernel log?"""

from __future__ import annotations

from functools import partial

from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.report.envelope import CheckStatus

ID = "xid"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)

#: How the driver begins the line of an error.
BEGIN = "NVRM: Xid ("


def check(machine: Machine) -> list[Finding]:
    """Judge the lines, with one finding for each number and GPU."""
    log = machine.system.log
    if log.lines is None:
        reason = log.unavailable or machine.system.unavailable or "the kernel log was not recorded"
        summary = f"errors in the kernel log not checked: {reason}"
        return [_finding(CheckStatus.UNKNOWN, summary, cause="not-read")]
    if not any(BEGIN in line for line in (*log.lines, *(log.earlier.lines or ()))):
        return [_finding(CheckStatus.OK, f"no GPU error (Xid) in {log.source}")]
    # Most logs have none, and the table with what judges them takes time to load.
    from gpucheck.detect.xids import judge_lines

    return judge_lines(machine, _finding)
