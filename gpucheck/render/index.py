"""Index format: the GPUs by index, always with the order that gives the indices meaning."""

from __future__ import annotations

from gpucheck.models.placement import Placement
from gpucheck.models.report import Report
from gpucheck.render.base import View


def render(report: Report, view: View) -> str:
    """Return both variables on one line, as `env` takes them."""
    placement = report.result
    if not isinstance(placement, Placement) or not placement.devices:
        return ""
    return " ".join(f"{name}={value}" for name, value in placement.environment.items()) + "\n"
