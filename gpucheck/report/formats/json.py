"""JSON, exactly as the schemas in gpucheck/data describe it: a document, or a line for each row.

Each of the lines stands alone, for log shippers and for tools that read tables (`jq`, DuckDB,
pandas): it says which document it is from, and what it is. The fields of a row are those of the
document's schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpucheck.report.codec import to_plain
from gpucheck.report.documents import open_mapping
from gpucheck.report.envelope import Report
from gpucheck.report.text import View


def document(report: Report) -> dict[str, object]:
    """Return the envelope with its result as plain values."""
    return {
        "schema": report.schema,
        "tool": report.tool._asdict(),
        "time": report.time,
        "host": to_plain(report.host),
        "status": report.status.value,
        "exit_code": int(report.exit_code),
        "error": to_plain(report.error),
        "warnings": to_plain(report.warnings),
        "result": to_plain(report.result),
    }


def render(report: Report, view: View) -> str:
    """Return ASCII JSON, which survives every locale and pipe: one short line, or indented."""
    indent, separators = (2, None) if view.indented else (None, (",", ":"))
    text = json.dumps(document(report), allow_nan=False, indent=indent, separators=separators)
    return text + "\n"


def render_lines(report: Report, view: View) -> str:
    """Return JSON lines: one for each row, and one at the end for the run."""
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
