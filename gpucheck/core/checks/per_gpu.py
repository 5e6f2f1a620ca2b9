"""How a check that looks at every GPU puts its findings together: one line while all is well.

A check judges one GPU and says None (well), Trouble, or Unread; what is wrong gets a finding for
each GPU, so that a document of many healthy GPUs stays small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpucheck.core.checks.machine import Machine, count_of
from gpucheck.models.evidence import GpuHealthReading
from gpucheck.models.finding import CheckStatus, Evidence, Finding, Layer
from gpucheck.models.snapshot import GpuReading

#: Reasons that say the GPU has no such thing, rather than that it could not be read.
NOT_OFFERED = ("not supported", "does not offer", "too old to ask", "does not count", "no such")


class Trouble(NamedTuple):
    """What is wrong with one GPU; a `status` of OK makes it a remark."""

    status: CheckStatus
    summary: str
    evidence: tuple[Evidence, ...] = ()
    remedy: tuple[str, ...] = ()


class Unread(NamedTuple):
    """Why one GPU could not be judged."""

    reason: str


Judgement = Trouble | Unread | None
Judge = Callable[[GpuReading, GpuHealthReading], Judgement]


def unread(reading: GpuReading | GpuHealthReading, *fields: str) -> Unread | None:
    """Return why one of these fields is null, or None if all of them were read."""
    for name in fields:
        if getattr(reading, name) is None:
            return Unread(reading.unavailable.get(name, "the driver does not tell"))
    return None


def over_gpus(machine: Machine, check_id: str, well: str, judge: Judge) -> list[Finding]:
    """Judge every GPU that answers; `well` says what holds of those that have nothing."""
    if machine.health.failure is not None and not machine.gpus:
        failure = machine.health.failure
        return [_whole(check_id, CheckStatus.UNKNOWN, f"not checked: {failure.message}")]
    judged = [(gpu, judge(gpu, health)) for gpu, health in machine.gpus]
    troubles = [_finding(check_id, gpu, said) for gpu, said in judged if isinstance(said, Trouble)]
    if any(found.status is not CheckStatus.OK for found in troubles):
        return [found for found in troubles if found.status is not CheckStatus.OK]
    if troubles:
        return troubles
    gaps = [said.reason for _, said in judged if isinstance(said, Unread)]
    if len(gaps) < len(judged):
        return [_whole(check_id, CheckStatus.OK, f"{well} ({count_of(len(judged) - len(gaps))})")]
    return [_unread(check_id, gaps)]


def _unread(check_id: str, reasons: list[str]) -> Finding:
    if not reasons:
        return _whole(check_id, CheckStatus.SKIP, "no GPU answers")
    reason = reasons[0]
    if any(word in reason for word in NOT_OFFERED):
        return _whole(check_id, CheckStatus.SKIP, f"not available: {reason}")
    return _whole(check_id, CheckStatus.UNKNOWN, f"not checked: {reason}")


def _whole(check_id: str, status: CheckStatus, summary: str) -> Finding:
    return Finding(id=check_id, layer=Layer.HEALTH, status=status, summary=summary)


def _finding(check_id: str, gpu: GpuReading, trouble: Trouble) -> Finding:
    return Finding(
        id=check_id,
        layer=Layer.HEALTH,
        status=trouble.status,
        summary=f"GPU {gpu.index}: {trouble.summary}",
        evidence=trouble.evidence,
        remedy=trouble.remedy,
        gpu=gpu.uuid,
    )
