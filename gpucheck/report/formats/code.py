"""Code format: a memory limit as lines of Python, for `gpucheck memlimit 30% --code FRAMEWORK`."""

from __future__ import annotations

from gpucheck.memlimit.model import MemoryLimit
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def render(report: Report, view: View) -> str:
    """Return the lines, ready to paste."""
    limit = report.result
    if limit is None:
        return ""
    if not isinstance(limit, MemoryLimit):
        raise TypeError(type(limit).__name__)
    return limit.code or ""
