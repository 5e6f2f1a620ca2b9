"""Formats of plain lines: CSV, and what a view writes to copy, to evaluate or for monitors."""

from __future__ import annotations

import csv
import io

from gpucheck.report.documents import open_mapping, open_view
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import Renderer, View, printable

#: The longest line of `--format line`, in bytes.
LONGEST_LINE = 80


def rows(report: Report, view: View) -> str:
    """Return a document's rows as CSV; a report without any gives the heading alone."""
    heading, table = open_mapping("rows", report.command)(report, view)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if view.header:
        writer.writerow(heading)
    for row in table:
        writer.writerow(_cell(value) for value in row)
    return text.getvalue()


def _cell(value: str | int | float | bool | None) -> str | int | float:
    """Return a plain value as CSV has it: nothing for an absent one."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return value
    text = printable(value)
    # A spreadsheet would take it for a formula; this is its own mark of a text.
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def _lines(name: str) -> Renderer:
    """Return the format of this name; no result gives no text."""

    def render(report: Report, view: View) -> str:
        if report.result is None:
            return ""
        text: str = open_view(report.command).LINES[name](report.result)
        return text

    return render


def line(report: Report, view: View) -> str:
    """Return the status and a sentence for monitors, in at most 80 bytes of ASCII and a newline.

    What was found before an interrupt is said; any other failure is itself the sentence.
    """
    failure, result = report.error, report.result
    interrupted = report.exit_code is ExitCode.INTERRUPTED and result is not None
    if failure is None or interrupted:
        summary = str(open_view(report.command).line(result))
        summary = f"interrupted; {summary}" if interrupted else summary
    else:
        summary = failure.message
    text = printable(f"{report.status.value.upper()} {summary}", unicode=False)
    fitting = text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 3]}..."
    return f"{fitting}\n"


#: Lines of Python, for `gpucheck memlimit 30% --code FRAMEWORK`.
code = _lines("code")
#: The GPUs as CUDA_VISIBLE_DEVICES takes them, with commas.
uuid = _lines("uuid")
#: CUDA's numbers of the GPUs, with commas.
index = _lines("index")
#: Both variables on a line for `env`: the numbers, and the order that gives them meaning.
env = _lines("env")
#: `export` lines, for `eval "$(gpucheck … --format shell)"`.
shell = _lines("shell")
#: Unhealthy nodes, one a line with its reason, for a scheduler.
nodes = _lines("nodes")
