"""The GPUs as UUIDs with commas, just as CUDA_VISIBLE_DEVICES takes them."""

from __future__ import annotations

from gpucheck.models.placement import Placement
from gpucheck.models.report import Report
from gpucheck.render.base import View


def render(report: Report, view: View) -> str:
    """Return one line, or nothing where nothing was chosen."""
    placement = report.result
    if not isinstance(placement, Placement) or not placement.devices:
        return ""
    return placement.environment.get("CUDA_VISIBLE_DEVICES", "") + "\n"
