"""Rows of `gpucheck compare` for tables and other programs: CSV and JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpucheck.bench.ci.model import ComparedRow, RunComparison
from gpucheck.report.envelope import Report
from gpucheck.report.text import View

Value = str | int | float | bool | None

#: Columns of CSV; new ones come last. Both figures are in `unit`, and `ratio` is now over before.
COLUMNS = (
    *("id", "device", "status", "unit", "direction", "before", "now", "ratio", "ratio_low"),
    *("ratio_high", "tolerance_percent", "before_count", "now_count", "class", "reason"),
    *("before_time", "now_time", "before_host", "now_host"),
)


def rows(report: Report, view: View) -> tuple[Sequence[str], list[list[Value]]]:
    """Return the heading of CSV and a row for each that was compared."""
    found = report.result
    if not isinstance(found, RunComparison):
        return COLUMNS, []
    runs: dict[str, Value] = {"before_time": found.first.time, "now_time": found.second.time}
    runs |= {"before_host": found.first.host, "now_host": found.second.host}
    cells = [{**_cells(row), **runs} for row in found.rows]
    return COLUMNS, [[each[column] for column in COLUMNS] for each in cells]


def _cells(row: ComparedRow) -> dict[str, Value]:
    low, high = row.interval or (None, None)
    return {
        "id": row.id,
        "device": row.device,
        "status": row.status.value,
        "unit": row.unit,
        "direction": row.direction.value,
        "before": row.first,
        "now": row.second,
        "ratio": row.ratio,
        "ratio_low": low,
        "ratio_high": high,
        "tolerance_percent": row.tolerance_percent,
        "before_count": row.first_count,
        "now_count": row.second_count,
        "class": None if row.class_ is None else row.class_.value,
        "reason": row.reason,
    }


def records(result: object) -> Iterator[tuple[str, object]]:
    """Yield the lines of a comparison."""
    if isinstance(result, RunComparison):
        yield from (("row", row) for row in result.rows)
