"""Format of github-action-benchmark: a list of figures for its charts and alerts.

The action reads all entries of a file in one direction, so ours are times of one operation, and
its tool is `customSmallerIsBetter`. Throughput says the same and stands beside it. The unit is
always the same: older releases compare the bare numbers of two runs. Source: the action's
src/extract.ts, src/normalizeUnit.ts and src/extractRangeInfo.ts.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from gpucheck.report.envelope import Report
from gpucheck.report.formats import open_mapping
from gpucheck.report.text import View, printable

#: Microseconds: matrix products and launches are both readable numbers.
UNIT = "us"


class Figure(NamedTuple):
    """One entry: the time of an operation, how far a further run may be off it, and notes."""

    name: str
    seconds: float
    plus_minus_s: float | None
    notes: tuple[str, ...]


def render(report: Report, view: View) -> str:
    """Return the list; an empty one, which the action refuses, if nothing was measured."""
    mapping = open_mapping("figures", report.command)
    figures = [] if mapping is None or report.result is None else mapping(report.result)
    entries = [_entry(figure) for figure in figures]
    return json.dumps(entries, allow_nan=False, indent=2) + "\n"


def _entry(figure: Figure) -> dict[str, object]:
    entry: dict[str, object] = {
        "name": printable(figure.name),
        "unit": UNIT,
        "value": _microseconds(figure.seconds),
    }
    if figure.plus_minus_s is not None:
        entry["range"] = f"± {_microseconds(figure.plus_minus_s)}"
    if figure.notes:
        entry["extra"] = "\n".join(printable(note) for note in figure.notes)
    return entry


def _microseconds(seconds: float) -> float:
    return float(f"{seconds * 1e6:.6g}")
