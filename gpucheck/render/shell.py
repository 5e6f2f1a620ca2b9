"""Shell format: the result's environment as `export` lines, for `eval "$(gpucheck … shell)"`."""

from __future__ import annotations

import shlex

from gpucheck.models.memory import MemoryLimit
from gpucheck.models.placement import Placement
from gpucheck.models.report import Report
from gpucheck.render.base import View


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
