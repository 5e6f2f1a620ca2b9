"""CSV format of a GPU list: the document's field names and plain values, absent ones empty."""

from __future__ import annotations

import csv
import io

from gpucheck.inventory.columns import COLUMNS, CSV_COLUMNS
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Report
from gpucheck.report.text import View, printable


def render(report: Report, view: View) -> str:
    """Return the rows; a report without a list gives the heading alone."""
    names = view.columns or CSV_COLUMNS
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if view.header:
        writer.writerow(names)
    gpus = report.result.gpus if isinstance(report.result, Inventory) else ()
    for gpu in gpus:
        writer.writerow(_cell(COLUMNS[name].value(gpu)) for name in names)
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
