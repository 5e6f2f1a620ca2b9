"""`gpucheck show`: a saved document shown again, as its command would show it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpucheck.cli.commands import FOR_PEOPLE, TO_EVALUATE, formats_of, load_documents
from gpucheck.cli.list import known_fields
from gpucheck.cli.options import Shared
from gpucheck.cli.outlets import chart_remedy, chosen_chart, plan_drawings, tell_missing_charts
from gpucheck.cli.output import check_shared, codes_in_table
from gpucheck.cli.report_file import write_file
from gpucheck.cli.terminal import (
    closed_pipe,
    view_for,
    write_message,
    write_messages,
    write_stderr,
    write_stdout,
)
from gpucheck.drivers.host.files import MOST_JSON_BYTES, read_file
from gpucheck.report.documents import DOCUMENTS
from gpucheck.report.envelope import Report
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.formats import open_format
from gpucheck.report.options import flag, option, words
from gpucheck.report.saved import DocumentError, SavedDocument, read_document
from gpucheck.report.text import View, printable

STDIN = "-"
#: So many fields that this version does not know are named.
MOST_IGNORED = 5


def command(
    *,
    file: str = option(
        "FILE", "A JSON document of gpucheck, or its gzip (-: stdin).", ..., group="The document"
    ),
    processes: bool = flag("--processes, -p", "Show who used the GPUs.", group="A list of GPUs"),
    select: tuple[str, ...] = words("--select FIELD,...", "Columns of the table or CSV."),
    shared: Shared,
) -> int:
    """Show a saved JSON document again, as a table or otherwise."""
    check_shared(shared, "show")
    columns = known_fields(select, "--select") or None
    report, plain, ignored = _read(file)
    check_shared(shared, report.command, _formats(report))
    if shared.outlets.html is not None and "html" not in _formats(report):
        message = f"{report.schema} has no page."
        raise WrongUseError(code="no-page", message=message)
    if (processes or columns) and report.command != "list":
        message = f"--processes and --select are for a list, and this is {report.schema}."
        raise WrongUseError(code="not-a-list", message=message)

    view = view_for(shared, saved=origin(report), processes=processes, columns=columns)
    view = view._replace(chart_remedy=chart_remedy())
    with _consistent(file):
        text = _shown(report, plain, shared.format, view)
        if shared.outlets.plot is not None:  # what has no such chart is not shown either
            chosen_chart(report, view, shared.outlets.chart)
        for write in plan_drawings(report, shared.outlets, view)[1]:
            write()
    try:
        if shared.output is None:
            write_stdout(text)
        else:
            write_file(shared.output, text)
    except BrokenPipeError:
        closed_pipe()
    _say(report, ignored, shared)
    if (shared.outlets.html is not None or shared.format == "html") and shared.verbosity >= 0:
        tell_missing_charts(report, view)
    return int(ExitCode.OK)


@contextmanager
def _consistent(file: str) -> Iterator[None]:
    """Say that values contradict each other, each of which is right by itself.

    Raises:
        WrongUseError: something could not be drawn from them.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"is damaged: its values contradict each other ({type(error).__name__})"
        raise _unusable(file, problem) from None


def _formats(report: Report) -> list[str]:
    """Return the formats of this document; the list of detect's checks has no verdict."""
    formats = [name for name in formats_of(report.command) if name not in TO_EVALUATE]
    if report.command == "detect":
        from gpucheck.detect.model import Catalogue

        if isinstance(report.result, Catalogue):
            return [name for name in formats if name in formats_of("error")]
    return formats


def _read(file: str) -> SavedDocument:
    """Return the document of a file that has a view.

    Raises:
        WrongUseError: it cannot be read, or there is nothing in it to show.
    """
    try:
        content = read_file("/dev/stdin" if file == STDIN else Path(file), MOST_JSON_BYTES)
        document = read_document(content, MOST_JSON_BYTES, load_documents())
    except OSError as error:
        raise _unusable(file, f"cannot be read: {error.strerror}") from None
    except DocumentError as error:
        raise _unusable(file, error.problem, error.remedy) from None
    if document[0].command == "snapshot":
        named = "FILE" if file == STDIN else file
        raise _unusable(
            file,
            "is a snapshot, from which commands answer",
            (
                f"Show its GPUs with: gpucheck list --from {named}",
                f"Or find what is wrong with: gpucheck detect --from {named}",
            ),
        )
    return document


def _unusable(file: str, problem: str, remedy: tuple[str, ...] = ()) -> WrongUseError:
    named = "on standard input" if file == STDIN else repr(file)
    message = f"The document {named} {problem}."
    return WrongUseError(code="document-unusable", message=message, remedy=remedy)


def origin(report: Report) -> str:
    """Return the sentence that marks a saved document: whose it is, of when, and how it ended."""
    time = report.time.replace("T", " ").replace("Z", " UTC")
    recorded = ", answered from a recording" if report.host.recorded else ""
    return (
        f"Saved {report.command} document of {report.host.name or 'an unknown machine'}, {time},"
        f" gpucheck {report.tool.version}{recorded}: {_ended(report)}"
    )


def _ended(report: Report) -> str:
    how = f"{report.status.value} (exit code {int(report.exit_code)})"
    # A screen says itself why an answer is bad, unless there is none.
    if report.error is None or report.result is not None:
        return how
    return f"{how}; {report.error.message}"


def _shown(report: Report, plain: Mapping[str, Any], format_: str, view: View) -> str:
    """Return the text of a document."""
    if format_ == "json":
        # As the json format writes it: without blanks for a program.
        indent, separators = (2, None) if view.indented else (None, (",", ":"))
        # What this version does not know may hold 1e999, which has no form in JSON.
        return f"{json.dumps(plain, indent=indent, separators=separators, allow_nan=False)}\n"
    if DOCUMENTS[report.command].view is None:
        return f"{printable(origin(report))}\n"
    return open_format(format_)(report, view)


def _say(report: Report, ignored: Sequence[str], shared: Shared) -> None:
    """Write what the document's command wrote to stderr, and what is left out of it here."""
    shown = shared.format == "table" and shared.output is None
    if shared.format not in FOR_PEOPLE and shared.verbosity >= 0:
        write_stderr(printable(f"gpucheck: {origin(report)}"))
    has_table = shown and report.result is not None
    shown_codes = codes_in_table(report) if has_table or shared.format == "line" else ()
    write_messages(report, verbosity=shared.verbosity, without=shown_codes)
    if ignored and shared.verbosity > 0:
        some = ", ".join(ignored[:MOST_IGNORED])
        more = len(ignored) - MOST_IGNORED
        and_more = f" and {more} more" if more > 0 else ""
        write_message(f"this version does not know, and leaves out: {some}{and_more}")
