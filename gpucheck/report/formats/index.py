"""Index format: the GPUs by index, always with the order that gives the indices meaning."""

from __future__ import annotations

from gpucheck.place.model import Placement
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def render(report: Report, view: View) -> str:
    """Return both variables on one line, as `env` takes them."""
    placement = report.result
    if not isinstance(placement, Placement) or not placement.devices:
        return ""
    return " ".join(f"{name}={value}" for name, value in placement.environment.items()) + "\n"
