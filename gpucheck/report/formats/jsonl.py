"""JSON lines: a line for each row of a document, and one at the end for the run.

Each line stands alone, for log shippers and for tools that read tables (`jq`, DuckDB, pandas): it
says which document it is from, and what it is. The fields of a row are those of the document's
schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpucheck.report.codec import to_plain
from gpucheck.report.documents import open_mapping
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def render(report: Report, view: View) -> str:
    """Return the lines; without a result there is that of the run alone."""
    return "".join(
        json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in _lines(report)
    )


def _lines(report: Report) -> Iterator[dict[str, object]]:
    head: dict[str, object] = {
        "schema": report.schema,
        "time": report.time,
        "host": report.host.name,
    }
    records = open_mapping("records", report.command)
    if records is not None and report.result is not None:
        for kind, record in records(report.result):
            yield {**head, "record": kind, **to_plain(record)}
    yield {
        **head,
        "record": "run",
        "version": report.tool.version,
        "driver_version": report.host.driver_version,
        "status": report.status.value,
        "exit_code": int(report.exit_code),
        "error": to_plain(report.error),
        "warnings": to_plain(report.warnings),
    }
