"""Outcome of a limited command, one line for each fact."""

from __future__ import annotations

from gpucheck.memlimit.model import LimitedRun
from gpucheck.report.unit_text import binary_bytes


def peak_lines(run: LimitedRun) -> list[str]:
    """Return the peak on each GPU that was used, or why there is none."""
    if run.peak_bytes is None:
        return [f"peak unknown: {run.unavailable.get('peak_bytes', 'it was not watched')}"]
    lines = []
    for gpu in run.gpus:
        if gpu.peak_bytes:
            limit = "" if gpu.limit_bytes is None else f" of {binary_bytes(gpu.limit_bytes)}"
            over = ", exceeded" if gpu.exceeded else ""
            number = gpu.index if gpu.cuda_index is None else gpu.cuda_index
            lines.append(f"GPU {number}: peak {binary_bytes(gpu.peak_bytes)}{limit}{over}")
    return lines or ["no process of the command was seen on a GPU"]


def outcome_lines(run: LimitedRun) -> list[str]:
    """Return how the command ended, its peaks, and the processes that exceeded the limit."""
    done = f"; the watcher {run.action} it" if run.action in ("terminated", "killed") else ""
    lines = [f"The command ended with {run.exit_code}{done}.", *peak_lines(run)]
    for each in run.culprits:
        size = binary_bytes(each.memory_used_bytes)
        lines.append(
            f"{each.name or 'process'} ({each.pid}) had {size} when the limit was exceeded"
        )
    if "later_readings" in run.unavailable:
        lines.append(run.unavailable["later_readings"])
    return lines
