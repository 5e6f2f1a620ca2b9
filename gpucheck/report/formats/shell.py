"""Shell format: the result's environment as `export` lines, for `eval "$(gpucheck … shell)"`."""

from __future__ import annotations

import shlex

from gpucheck.memlimit.model import MemoryLimit
from gpucheck.place.model import Placement
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def render(report: Report, view: View) -> str:
    """Return a line for each variable; no result gives no text."""
    result = report.result
    if isinstance(result, Placement) and not result.devices:
        return ""
    if not isinstance(result, Placement | MemoryLimit):
        return ""
    return "".join(
        f"export {name}={shlex.quote(value)}\n" for name, value in result.environment.items()
    )
