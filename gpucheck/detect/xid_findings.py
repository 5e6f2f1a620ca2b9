"""Findings of Xids: one for each number and GPU, with NVIDIA's action beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from gpucheck.detect import health_validation
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding
from gpucheck.detect.remedies import for_gpu
from gpucheck.detect.xids import (
    CATALOGUE,
    Guide,
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

_STATUS = {Judgement.FAIL: CheckStatus.FAIL, Judgement.WARN: CheckStatus.WARN}
#: The errors of one number on one GPU, by the two.
_Groups = Mapping[tuple[int, str], Sequence[Xid]]


def judge_lines(machine: Machine, finding: Callable[..., Finding]) -> list[Finding]:
    """Judge the errors in the kernel log; `finding` makes one of the check."""
    log = machine.system.log
    now = _grouped(parse_lines(log.lines or (), log.ages_s))
    before = _grouped(parse_lines(log.earlier.lines or (), log.earlier.ages_s))
    bad = [
        _judge(machine, finding, xids, before.get(key, ()))
        for key, xids in now.items()
        if guide(key[0]).judgement is not Judgement.NOTE
    ]
    if bad:
        return sorted(bad, key=lambda found: found.status is not CheckStatus.FAIL)
    parts = [_notes(machine, now) if now else f"no Xid in {log.source}"]
    parts += _not_come_back(machine, before)
    shown = [Evidence(log.source, xids[-1].line) for xids in now.values()]
    shown += [Evidence(log.earlier.source, xids[-1].line) for xids in before.values()]
    return [finding(CheckStatus.OK, "; ".join(parts), *shown)]


def _grouped(xids: Iterable[Xid]) -> _Groups:
    groups: dict[tuple[int, str], list[Xid]] = {}
    for xid in xids:
        groups.setdefault((xid.number, xid.pci_bus_id), []).append(xid)
    return groups


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


def _judge(
    machine: Machine,
    finding: Callable[..., Finding],
    xids: Sequence[Xid],
    before: Sequence[Xid],
) -> Finding:
    number, pci_bus_id = xids[-1].number, xids[-1].pci_bus_id
    gpu = next((gpu for gpu in machine.nvml.gpus if gpu.pci_bus_id == pci_bus_id), None)
    facts = _guide(_worst(xids))
    steps = (facts.remedy,)
    return finding(
        _STATUS[facts.judgement],
        _sentence(_name(machine, pci_bus_id), xids, came_back=bool(before)),
        *_evidence(machine, xids, before),
        remedy=steps if gpu is None else for_gpu(gpu.index, steps),
        gpu=gpu.uuid if gpu else None,
        cause=f"xid-{number}",
    )


def _worst(xids: Sequence[Xid]) -> Xid:
    """Return the last line that calls its error fatal, else the last one."""
    return next((xid for xid in reversed(xids) if xid.fatal), xids[-1])


def _guide(xid: Xid) -> Guide:
    return guide(xid.number, fatal=xid.fatal)


def _sentence(name: str, xids: Sequence[Xid], *, came_back: bool) -> str:
    """Return which error, how often, when, whose, and what to do by us and by NVIDIA."""
    last = _worst(xids)
    facts = _guide(last)
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
    log, worst = machine.system.log, _worst(xids)
    facts = _guide(worst)
    yield Evidence(log.source, worst.line)
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
