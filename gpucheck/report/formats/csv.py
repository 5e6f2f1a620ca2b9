"""CSV format: the rows of the command's view as plain values, absent ones empty."""

from __future__ import annotations

import csv
import io

from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable
from gpucheck.report.views import open_view


def render(report: Report, view: View) -> str:
    """Return the rows; a report without any gives the heading alone."""
    heading, rows = open_view(report.command).rows(report, view)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if view.header:
        writer.writerow(heading)
    for row in rows:
        writer.writerow(_cell(value) for value in row)
    return text.getvalue()


def _cell(value: str | int | float | bool | None) -> str | int | float:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _as_text(printable(value)) if isinstance(value, str) else value


def _as_text(text: str) -> str:
    """Mark text that a spreadsheet would take for a formula with its own text mark."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
