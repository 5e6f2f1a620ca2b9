"""Findings of a check of every GPU: one line if all are healthy.

A check judges one GPU: None (healthy), Trouble, or Unread. Each GPU with trouble gets a finding of
its own, so that a document of many healthy GPUs stays small.
"""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.detect.checks.advice import for_gpu
from gpucheck.detect.checks.machine import Machine, count_of
from gpucheck.detect.model import Finding, Layer
from gpucheck.drivers.evidence import GpuHealthReading
from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.condition import GONE, Judgement, Trouble, Unread, unread
from gpucheck.inventory.inventory import HUNG
from gpucheck.report.envelope import CheckStatus

#: Parts of the reasons for what a GPU does not have, as opposed to what could not be read.
NOT_OFFERED = (
    "not supported",
    "does not offer",
    "too old to ask",
    "does not count",
    "no such",
    "has no fan",
    "no link is up",
)


Judge = Callable[[GpuReading, GpuHealthReading], Judgement]


#: Imported from here by the checks.
__all__ = ["Judge", "Judgement", "Trouble", "Unread", "over_gpus", "unread"]


def over_gpus(machine: Machine, check_id: str, well: str, judge: Judge) -> list[Finding]:
    """Judge every GPU that answers; `well` is the summary for healthy GPUs."""
    # Of a lost GPU only the trouble found before counts; gpu-lost reports the loss.
    judged = [
        (gpu, said)
        for gpu, health in machine.gpus
        if isinstance(said := judge(gpu, health), Trouble) or not _is_lost(health)
    ]
    troubles = [_finding(check_id, gpu, said) for gpu, said in judged if isinstance(said, Trouble)]
    if any(found.status is not CheckStatus.OK for found in troubles):
        return [found for found in troubles if found.status is not CheckStatus.OK]
    failure = machine.health.failure
    if failure is not None:
        # Nothing is known about the GPUs that were not reached, whatever the others answered.
        summary = f"not checked: {failure.message}"
        cause = HUNG if failure.code == HUNG else "not-read"
        return [_whole(check_id, CheckStatus.UNKNOWN, summary, cause=cause)]
    gaps = [(gpu.index, said.reason) for gpu, said in judged if isinstance(said, Unread)]
    unread_ones = [(index, reason) for index, reason in gaps if not _is_not_offered(reason)]
    if unread_ones:
        names = ", ".join(str(index) for index, _ in unread_ones)
        where = "" if len(unread_ones) == len(judged) else f" on GPU {names}"
        summary = f"not checked{where}: {unread_ones[0][1]}"
        return [_whole(check_id, CheckStatus.UNKNOWN, summary, cause="not-read")]
    if troubles:
        return troubles
    if len(gaps) < len(judged):
        return [_whole(check_id, CheckStatus.OK, f"{well} ({count_of(len(judged) - len(gaps))})")]
    summary = f"not available: {gaps[0][1]}" if gaps else "no GPU answers"
    return [_whole(check_id, CheckStatus.SKIP, summary)]


def _is_lost(health: GpuHealthReading) -> bool:
    return health.failure is not None and health.failure.library_code in GONE


def _is_not_offered(reason: str) -> bool:
    return any(word in reason for word in NOT_OFFERED)


def _whole(
    check_id: str, status: CheckStatus, summary: str, *, cause: str | None = None
) -> Finding:
    return Finding(id=check_id, layer=Layer.HEALTH, status=status, summary=summary, cause=cause)


def _finding(check_id: str, gpu: GpuReading, trouble: Trouble) -> Finding:
    return Finding(
        id=check_id,
        layer=Layer.HEALTH,
        status=trouble.status,
        summary=f"GPU {gpu.index}: {trouble.summary}",
        evidence=trouble.evidence,
        remedy=for_gpu(gpu.index, trouble.remedy),
        gpu=gpu.uuid,
        cause=trouble.cause,
    )
