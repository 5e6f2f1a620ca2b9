"""Which GPUs do the visibility variables leave to a program, entry by entry?"""

from __future__ import annotations

from gpucheck.core.checks.machine import VISIBLE, Machine, count_of
from gpucheck.models.device import EntryStatus, Visibility
from gpucheck.models.finding import About, CheckStatus, Evidence, Finding, Layer

ID = "visibility"
LAYER = Layer.VISIBILITY
REQUIRES: tuple[str, ...] = ("cuda-driver",)

ORDER = "CUDA_DEVICE_ORDER"
ABOUT = About(
    looks_at=(VISIBLE, ORDER, "what CUDA sees with them and without"),
    why="One wrong entry hides every GPU behind it, and an empty value all of them.",
    rules=(
        "fail: CUDA sees GPUs without the variable and none with it",
        "warn: entries of it are dropped",
    ),
    sources=(
        "CUDA Programming Guide, CUDA Environment Variables",
        "MIG User Guide, CUDA Device Enumeration",
    ),
)


def check(machine: Machine) -> Finding:
    """Explain the variable's entries against what the driver says it sees."""
    text = machine.environment.get(VISIBLE)
    seen = machine.cuda.device_count or 0
    if text is None:
        total = machine.nvml.gpu_count
        summary = f"{VISIBLE} is not set: programs see {_of(seen, total)}"
        return _finding(CheckStatus.OK, summary, *_order(machine))
    visibility = machine.visibility
    told = Evidence(source=VISIBLE, value=repr(text))
    evidence = (told, *_entries(visibility), *_order(machine))
    if not seen:
        return _finding(
            CheckStatus.FAIL,
            f"{VISIBLE}={text!r} hides every GPU: {_why(text, visibility)}",
            *evidence,
            remedy=(
                f"Unset it (unset {VISIBLE}), or name a GPU that exists: gpucheck list",
                "A scheduler that set it gave this job no GPU: request one.",
            ),
        )
    dropped = [entry for entry in visibility.entries if entry.status is EntryStatus.DROPPED]
    if dropped:
        return _finding(
            CheckStatus.WARN,
            f"{VISIBLE}={text!r}: {len(dropped)} of its entries dropped,"
            f" programs see {_of(seen, machine.nvml.gpu_count)}",
            *evidence,
            remedy=(f"Correct the entry {dropped[0].text!r}: gpucheck list shows what there is",),
        )
    summary = f"{VISIBLE}={text!r}: programs see {_of(seen, machine.nvml.gpu_count)}"
    return _finding(CheckStatus.OK, summary, *evidence)


def _finding(
    status: CheckStatus, summary: str, *evidence: Evidence, remedy: tuple[str, ...] = ()
) -> Finding:
    return Finding(
        id=ID, layer=LAYER, status=status, summary=summary, evidence=evidence, remedy=remedy
    )


def _of(seen: int, total: int | None) -> str:
    return count_of(seen) if total in (None, 0, seen) else f"{seen} of {count_of(total or 0)}"


def _entries(visibility: Visibility) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(source=f"{VISIBLE} entry {entry.text!r}", value=f"{entry.status}: {entry.reason}")
        for entry in visibility.entries
    )


def _order(machine: Machine) -> tuple[Evidence, ...]:
    if ORDER not in machine.environment:
        return ()
    return (Evidence(source=ORDER, value=repr(machine.environment[ORDER])),)


def _why(text: str, visibility: Visibility) -> str:
    if text == "":
        return "an empty value means none"
    dropped = [entry for entry in visibility.entries if entry.status is EntryStatus.DROPPED]
    if dropped:
        return f"{dropped[0].text!r}: {dropped[0].reason}"
    return "no entry names a GPU that CUDA sees"
