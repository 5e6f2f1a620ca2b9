"""JSON format, exactly as the schemas in gpucheck/data describe it."""

from __future__ import annotations

import json

from gpucheck.report.codec import to_plain
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
