"""CSV format: the rows of the document as plain values, absent ones empty."""

from __future__ import annotations

import csv
import io

from gpucheck.report.documents import open_mapping
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable


def render(report: Report, view: View) -> str:
    """Return the rows; a report without any gives the heading alone."""
    heading, rows = open_mapping("rows", report.command)(report, view)
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
    if not isinstance(value, str):
        return value
    text = printable(value)
    # A spreadsheet would take it for a formula; this is its own mark of a text.
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
