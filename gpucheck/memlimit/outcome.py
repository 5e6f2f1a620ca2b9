"""Outcome of a memory limit: what limits each framework, or why nothing does; peaks of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpucheck.inventory.model import MemoryCap
from gpucheck.memlimit.model import (
    HardGpu,
    HardLimit,
    LimitedRun,
    Mechanism,
    MemoryLimit,
    RunGpu,
    Strength,
    Way,
)
from gpucheck.report.text import binary_bytes, framework_module, group_by, ranges

HOOK = "the import hook"
_CONTEXTS = (
    "its first use of a GPU then makes a CUDA context on each of the {count} GPUs;"
    " --gpu makes fewer visible"
)


class FrameworkOutcome(NamedTuple):
    """Outcome for one framework; `by` is None if nothing limits it, `note` must reach the user.

    `framework` includes the version if known. `installed` is None if unknown. `way` is that of
    the first mechanism. `soft`: what is above the limit is not refused.
    """

    framework: str
    by: str | None
    way: Way
    installed: bool | None
    note: str = ""
    soft: bool = False

    @property
    def is_warning(self) -> bool:
        """Return whether a user who runs it must be warned."""
        missing = self.by is None and self.way is not Way.NOBODY
        return bool(self.installed and self.note and (missing or self.soft or self.by == HOOK))


def framework_outcomes(limit: MemoryLimit) -> tuple[FrameworkOutcome, ...]:
    """Return the outcome for each framework; missing ones only if none is installed."""
    told = (
        item
        for item in limit.mechanisms
        if item.by not in (Way.DRIVER, Way.HARDWARE) or item.applies or is_set(item, limit)
    )
    groups = group_by(told, lambda item: item.framework)
    by_driver = [item for item in limit.mechanisms if item.by is Way.DRIVER and item.applies]
    outcomes = [
        _outcome(group, limit)
        for group in groups.values()
        # If the driver limits every program, none is left without a limit.
        if not (by_driver and group[0].by is Way.NOBODY)
    ]
    if any(item.installed for item in outcomes):
        outcomes = [item for item in outcomes if item.installed or item.way not in _IN_PROGRAMS]
    return tuple(outcomes)


#: Ways that depend on the program's own frameworks.
_IN_PROGRAMS = (Way.ENVIRONMENT, Way.CODE)


def group_by_mechanism(outcomes: Iterable[FrameworkOutcome]) -> list[tuple[str, str]]:
    """Group the frameworks by what limits them; those that may be missing form two groups."""
    groups: dict[str, list[str]] = {}
    for item in outcomes:
        if item.by is not None:
            by_variable = item.way is Way.ENVIRONMENT and item.by != HOOK and not item.installed
            by = "environment variables" if by_variable else item.by
            groups.setdefault(by, []).append(item.framework)
    return [(", ".join(names), by) for by, names in groups.items()]


def is_set(mechanism: Mechanism, limit: MemoryLimit) -> bool:
    """Return whether the result's environment contains the variable of a mechanism."""
    ways = (Way.ENVIRONMENT, Way.DRIVER)
    return mechanism.by in ways and mechanism.mechanism in limit.environment


def _outcome(group: Sequence[Mechanism], limit: MemoryLimit) -> FrameworkOutcome:
    first = group[0]
    module = framework_module(first.framework)
    if limit.software is not None and module in limit.software.for_cpus:
        return FrameworkOutcome(
            _name(first, limit), None, Way.NOBODY, True, "a CPU-only build: uses no GPU"
        )
    others = [item for item in group if item.by is not Way.CODE]
    set_ = next((item for item in others if item.applies or is_set(item, limit)), None)
    hooked = next((item for item in group if item.by_hook), None)
    names = ([set_.mechanism] if set_ else []) + ([HOOK] if hooked else [])
    by = " and ".join(names)
    chosen = set_ or hooked
    return FrameworkOutcome(
        framework=_name(first, limit),
        by=by or None,
        way=first.by,
        installed=first.installed,
        note=_reason_for_none(group) if chosen is None else _note(chosen, by, limit),
        # What one limits only softly, the other may still refuse.
        soft=bool(by)
        and all(item.strength is Strength.SOFT for item in (set_, hooked) if item is not None),
    )


def _name(mechanism: Mechanism, limit: MemoryLimit) -> str:
    known = (limit.software.frameworks if limit.software else None) or {}
    version = known.get(framework_module(mechanism.framework), "")
    return f"{mechanism.framework} {version}".strip()


def _note(chosen: Mechanism, by: str, limit: MemoryLimit) -> str:
    """Return the note on a cap: it is soft, merged or has a cost."""
    merged = chosen.by is Way.ENVIRONMENT and bool(chosen.inherited)
    doubtful = chosen.by is Way.DRIVER and not chosen.applies
    if merged or doubtful or chosen.strength is Strength.SOFT:
        return chosen.reason
    if by == HOOK and chosen.framework == "pytorch" and len(limit.gpus) > 1:
        return _CONTEXTS.format(count=len(limit.gpus))
    return ""


def _reason_for_none(group: Sequence[Mechanism]) -> str:
    """Return why nothing limits it: its own reason, unless it is merely not installed."""
    last = group[-1]
    if last.by is not Way.CODE or last.installed:
        return group[0].reason
    return "nothing limits it without the import hook" if last.setting else last.reason


def caps_of(limit: MemoryLimit) -> tuple[MemoryCap, ...]:
    """Return the cards of a plan of which our cgroup may use only a part."""
    return tuple(
        MemoryCap(
            index=gpu.index or 0,
            memory_limit_bytes=gpu.memory_limit_bytes,
            memory_total_bytes=gpu.memory_total_bytes,
            memory_limit_source=gpu.memory_limit_source or "",
        )
        for gpu in limit.gpus
        if gpu.memory_limit_bytes is not None
    )


# ------------------------------------------------------------------------------------------- a run


def run_line(run: LimitedRun) -> str:
    """Return whether a run kept to the limit, and its peaks; or why that is unknown."""
    if run.peak_bytes is None:
        return f"the peak is unknown: {run.unavailable.get('peak_bytes', 'it was not watched')}"
    peaks = [_peak(gpu) for gpu in run.gpus if gpu.peak_bytes]
    if not peaks:
        return "no process of the command was seen on a GPU"
    stopped = f"; the watcher {run.action} it" if run.action in ("terminated", "killed") else ""
    verdict = {True: "exceeded the limit", False: "within the limit", None: "not judged"}
    return f"{verdict[run.exceeded]}: {', '.join(peaks)}{stopped}"


def _peak(gpu: RunGpu) -> str:
    number = gpu.cuda_index if gpu.index is None else gpu.index
    limit = "" if gpu.limit_bytes is None else f" of {binary_bytes(gpu.limit_bytes)}"
    return f"peak {binary_bytes(gpu.peak_bytes or 0)}{limit} on GPU {number}"


def outcome_lines(run: LimitedRun) -> list[str]:
    """Return how the command ended, and the processes that exceeded the limit."""
    kept = run_line(run)
    lines = [f"The command ended with {run.exit_code}. {kept[0].upper()}{kept[1:]}."]
    for culprit in run.culprits:
        size = binary_bytes(culprit.memory_used_bytes)
        lines.append(
            f"{culprit.name or 'process'} ({culprit.pid}) had {size} when the limit was exceeded"
        )
    if "later_readings" in run.unavailable:
        lines.append(run.unavailable["later_readings"])
    return lines


def hard_sentences(limit: HardLimit) -> tuple[str, str]:
    """Return the limit that the driver enforces, and its end: proof, peak and removal."""
    by = "the kernel (dmem) for the driver" if limit.back_end == "dmem" else "the driver"
    name = limit.cgroup.rpartition("/")[2]
    start = f"{_hard_sizes(limit.gpus)}: enforced by {by}, for every library and child ({name})"
    parts = []
    refused = [
        (gpu.allocated_bytes or 0) + gpu.refused_bytes
        for gpu in limit.gpus
        if gpu.refused_bytes is not None
    ]
    if refused:
        beyond = binary_bytes(max(refused), digits=2)
        parts.append(f"an allocation up to {beyond} was refused with out of memory")
    peaks = [gpu.peak_bytes for gpu in limit.gpus if gpu.peak_bytes is not None]
    unknown = "its peak is unknown"
    parts.append(f"peak {binary_bytes(max(peaks), digits=2)}" if peaks else unknown)
    if limit.removed:
        parts.append("limit and cgroup removed")
    elif limit.left_pids:
        pids = ", ".join(map(str, limit.left_pids[:5]))
        parts.append(f"the limit stays for what still runs (PID {pids}); the next call removes it")
    else:
        parts.append(f"{limit.cgroup} could not be removed; the next call tries again")
    return start, "; ".join(parts)


def _hard_sizes(gpus: Sequence[HardGpu]) -> str:
    """Return the limits with their GPUs: "8.00 GiB on GPU 0"."""
    alike: dict[int, list[int]] = {}
    for gpu in gpus:
        number = gpu.cuda_index if gpu.index is None else gpu.index
        alike.setdefault(gpu.hard_limit_bytes, []).append(number or 0)
    return ", ".join(
        f"{binary_bytes(size, digits=2)} on {'each of GPUs' if indices[1:] else 'GPU'}"
        f" {ranges(indices)}"
        for size, indices in alike.items()
    )
