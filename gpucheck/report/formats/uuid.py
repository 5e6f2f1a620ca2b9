"""UUID format: the GPUs as CUDA_VISIBLE_DEVICES takes them, with commas."""

from __future__ import annotations

from gpucheck.place.model import Placement
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def render(report: Report, view: View) -> str:
    """Return one line; no chosen GPU gives no text."""
    placement = report.result
    if not isinstance(placement, Placement) or not placement.devices:
        return ""
    return placement.environment.get("CUDA_VISIBLE_DEVICES", "") + "\n"
