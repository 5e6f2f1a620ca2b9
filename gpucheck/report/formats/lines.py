"""Formats of lines to copy or to evaluate, which the view of a command writes."""

from __future__ import annotations

from gpucheck.report.envelope import Report
from gpucheck.report.text import View
from gpucheck.report.views import open_view


def code(report: Report, view: View) -> str:
    """Return lines of Python, for `gpucheck memlimit 30% --code FRAMEWORK`."""
    return _lines("code", report)


def uuid(report: Report, view: View) -> str:
    """Return the GPUs as CUDA_VISIBLE_DEVICES takes them, with commas."""
    return _lines("uuid", report)


def index(report: Report, view: View) -> str:
    """Return the GPUs by index, with the order that gives the indices meaning."""
    return _lines("index", report)


def shell(report: Report, view: View) -> str:
    """Return `export` lines, for `eval "$(gpucheck … --format shell)"`."""
    return _lines("shell", report)


def _lines(name: str, report: Report) -> str:
    """Return the text; no result gives no text."""
    if report.result is None:
        return ""
    text: str = open_view(report.command).LINES[name](report.result)
    return text
