"""Did the driver report GPU errors (Xid) in the kernel log?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from gpucheck.detect import health_validation
from gpucheck.detect.findings import make_finding
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import About, Finding, Layer
from gpucheck.detect.remedies import for_gpu
from gpucheck.detect.xids import (
    CATALOGUE,
    Judgement,
    Xid,
    guide,
    how_long_ago,
    how_often,
    parse_lines,
    which_processes,
)
from gpucheck.drivers.host.kernel_log import MOST_OF_AN_XID
from gpucheck.report.envelope import CheckStatus, Evidence

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
        "11, 13, 25, 31, 32, 37, 43, 45, 69, 80, 106, 107, 108, 121 and 137 are errors of "
        "programs, or nothing at all: only noted",
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

_STATUS = {Judgement.FAIL: CheckStatus.FAIL, Judgement.WARN: CheckStatus.WARN}
#: The errors of one number on one GPU, by the two.
_Groups = Mapping[tuple[int, str], Sequence[Xid]]


def check(machine: Machine) -> list[Finding]:
    """Judge the lines, with one finding for each number and GPU."""
    log = machine.system.log
    if log.lines is None:
        reason = log.unavailable or machine.system.unavailable or "the kernel log was not recorded"
        return [_whole(CheckStatus.UNKNOWN, f"not checked: {reason}")]
    now = _grouped(parse_lines(log.lines, log.ages_s))
    before = _grouped(parse_lines(log.earlier.lines or (), log.earlier.ages_s))
    bad = [
        _judge(machine, key, xids, before)
        for key, xids in now.items()
        if guide(key[0]).judgement is not Judgement.NOTE
    ]
    if bad:
        return sorted(bad, key=lambda finding: finding.status is not CheckStatus.FAIL)
    parts = [_notes(machine, now) if now else f"no Xid in {log.source}"]
    parts += _not_come_back(machine, before)
    shown = [Evidence(log.source, xids[-1].line) for xids in now.values()]
    shown += [Evidence(log.earlier.source, xids[-1].line) for xids in before.values()]
    return [_finding(CheckStatus.OK, "; ".join(parts), *shown)]


def _grouped(xids: Iterable[Xid]) -> _Groups:
    groups: dict[tuple[int, str], list[Xid]] = {}
    for xid in xids:
        groups.setdefault((xid.number, xid.pci_bus_id), []).append(xid)
    return groups


def _whole(status: CheckStatus, summary: str) -> Finding:
    cause = "not-read" if status is CheckStatus.UNKNOWN else None
    return _finding(status, summary, cause=cause)


def _notes(machine: Machine, now: _Groups) -> str:
    """Return the last of several errors that are not the GPU's, and the numbers of the others."""
    (number, pci_bus_id), xids = [*now.items()][-1]
    sentence = _sentence(_name(machine, pci_bus_id), xids, came_back=False)
    others = sorted({other for other, _ in now} - {number})
    also = f"; also Xid {', '.join(map(str, others))}" if others else ""
    return f"only program errors: {sentence}{also}"


def _not_come_back(machine: Machine, before: _Groups) -> Iterable[str]:
    """Yield the errors of earlier boots that would be a finding today."""
    for (number, pci_bus_id), xids in before.items():
        if guide(number).judgement is Judgement.NOTE:
            continue
        when = how_long_ago(xids)
        what = f"Xid {number} {how_often(xids, MOST_OF_AN_XID)}" + (f", {when}," if when else "")
        yield f"before the last boot: {what} on {_name(machine, pci_bus_id)}; not seen again since"


def _name(machine: Machine, pci_bus_id: str) -> str:
    gpu = next((gpu for gpu in machine.nvml.gpus if gpu.pci_bus_id == pci_bus_id), None)
    return pci_bus_id if gpu is None else f"GPU {gpu.index}"


def _judge(machine: Machine, key: tuple[int, str], xids: Sequence[Xid], before: _Groups) -> Finding:
    number, pci_bus_id = key
    gpu = next((gpu for gpu in machine.nvml.gpus if gpu.pci_bus_id == pci_bus_id), None)
    facts = guide(number)
    steps = (facts.remedy,)
    return _finding(
        _STATUS[facts.judgement],
        _sentence(_name(machine, pci_bus_id), xids, came_back=key in before),
        *_evidence(machine, xids, before.get(key, ())),
        remedy=steps if gpu is None else for_gpu(gpu.index, steps),
        gpu=gpu.uuid if gpu else None,
        cause=f"xid-{number}",
    )


def _sentence(name: str, xids: Sequence[Xid], *, came_back: bool) -> str:
    """Return which error, how often, when, whose, and what to do by us and by NVIDIA."""
    last = xids[-1]
    facts = guide(last.number)
    often = f" {how_often(xids, MOST_OF_AN_XID)}" if len(xids) > 1 else ""
    again = "it came back after the last boot" if came_back else None
    parts = [
        f"{name}: Xid {last.number} ({facts.meaning}){often}",
        *(part for part in (how_long_ago(xids), which_processes(xids), again) if part),
    ]
    action = facts.action if last.asked is None else f"it asks for: {last.asked}"
    nvidia = f" (NVIDIA: {facts.immediate})" if facts.immediate else ""
    return f"{', '.join(parts)}: {action}{nvidia}"


def _evidence(machine: Machine, xids: Sequence[Xid], before: Sequence[Xid]) -> Iterable[Evidence]:
    """Yield the last line, NVIDIA's actions beside it, and what earlier boots show."""
    log, facts = machine.system.log, guide(xids[-1].number)
    yield Evidence(log.source, xids[-1].line)
    if facts.nvidia is not None:
        yield Evidence(CATALOGUE, facts.nvidia)
    if facts.because is not None:
        yield Evidence("gpucheck/data/xid.toml", f"{facts.judgement}, because {facts.because}")
    critical = health_validation.of_xid(xids[-1].number)
    if critical is not None:
        yield Evidence(health_validation.NAME, critical)
    if before:
        yield Evidence(f"{log.earlier.source}, before this boot", before[-1].line)
    elif log.earlier.lines is None:
        reason = log.earlier.unavailable or "not recorded"
        yield Evidence("earlier boots", f"not read, so it is unknown if it came back: {reason}")
