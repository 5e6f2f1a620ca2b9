"""Output of a command: reports, warnings, errors, exit codes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpucheck.cli.commands import (
    COMMANDS,
    OF_OPTIONS,
    PROGRAM_OPTIONS,
    RUNS_A_COMMAND,
    formats_of,
    load_documents,
)
from gpucheck.cli.options import SHARED, Context, Shared, arguments_of, collect_shared, own_options
from gpucheck.cli.report_file import PRIVATE, check_writable, write_file
from gpucheck.cli.terminal import (
    closed_pipe,
    view_for,
    write_failure,
    write_message,
    write_messages,
    write_stderr,
    write_stdout,
    write_warnings,
)
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.report.documents import open_view
from gpucheck.report.envelope import DRIVER_LIBRARY, TOOL, Answer, Failure, Report, status_of
from gpucheck.report.errors import (
    ExitCode,
    GpucheckError,
    LaunchError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.formats import FORMATS, open_format
from gpucheck.report.host import Host
from gpucheck.report.text import (
    View,
    did_you_mean,
    example_mark,
    step_on_recording,
)

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpucheck.drivers.interface import Probes

T = TypeVar("T")
COMMAND_AFTER_DASHES = "To run it as a command, put -- before it."
#: Larger documents are a burden to who gathers them by the thousand.
MOST_GATHERED_BYTES = 200_000
ISSUES = "Please report it with the lines above and the file of: gpucheck report ticket.tar.gz"


class Answered(int):
    """Exit code of a command that has already reported everything.

    Typer gives a bare 130 for an interrupt while it parses the command line, which nobody has
    reported yet.
    """


def requested_document(arguments: Sequence[str]) -> str | None:
    """Return `json` or `jsonl` if a document is wanted so, also when the rest cannot be parsed."""
    for word, after in pairwise([*arguments, ""]):
        option, equals, value = word.partition("=")
        name = value if equals else after
        if word == "--json" or (option == "--format" and name in ("json", "jsonl")):
            return "json" if word == "--json" else name
    return None


def wrap(command: str, answer: Answer, *, time: str, strict: bool = False) -> Report:
    """Put an answer into the envelope of its command."""
    code = answer.exit_code
    doubtful = code is ExitCode.INCONCLUSIVE or (code is ExitCode.OK and bool(answer.warnings))
    if strict and doubtful:
        code = ExitCode.BAD
    return Report(
        command=command,
        schema=f"gpucheck/{command}/1",
        tool=TOOL,
        time=time,
        host=answer.host,
        exit_code=code,
        status=status_of(code, warnings=bool(answer.warnings)),
        error=answer.error,
        warnings=answer.warnings,
        result=answer.result,
    )


def write_report(report: Report, shared: Shared, view: View) -> Report:
    """Write a report to its file or to stdout, and return it.

    If the file cannot be written after all, the report goes to stdout, with that failure in it.
    """
    render = open_format(shared.format)
    text = render(report, view)
    if shared.format == "json" and len(text) > MOST_GATHERED_BYTES and shared.verbosity >= 0:
        _advise_summary(report, len(text))
    if shared.output is None:
        write_stdout(text)
        return report
    try:
        write_file(shared.output, text, mode=PRIVATE if shared.private else None)
    except WrongUseError as error:
        code = error.exit_code
        status = status_of(code, warnings=False)
        report = report._replace(exit_code=code, status=status, error=Failure.of(error))
        write_stdout(render(report, view))
    return report


def _advise_summary(report: Report, size: int) -> None:
    """Name what makes a large document of bench small, unless it was asked for."""
    rows = getattr(report.result, "measurements", ())
    if report.command == "bench" and any(row.samples_s for row in rows):
        text = f"the document has {size / 1000:.0f} KB; --samples summary leaves single samples out"
        write_message(f"warning: {text}")


def _mark_example(shared: Shared) -> None:
    """Say that an example answers, where no table says it."""
    mark = example_mark(shared.recording)
    if mark is not None and shared.verbosity >= 0:
        write_stderr(f"gpucheck: {mark}")


def check_shared(shared: Shared, command: str, formats: Sequence[str] | None = None) -> None:
    """Refuse a format that the command does not have, or an output file that cannot be written."""
    formats = formats_of(command) if formats is None else formats
    if shared.format not in formats:
        known = ", ".join(name for name in FORMATS if name in formats)
        raise WrongUseError(
            code="unknown-format",
            message=f"{'this answer' if command in OF_OPTIONS else command} has no format"
            f" {shared.format!r}; it has {known}."
            f" {did_you_mean(shared.format, formats)}".strip(),
        )
    if shared.output is not None:
        check_writable(shared.output)


@contextmanager
def machine(command: str, shared: Shared, formats: Sequence[str] | None = None) -> Iterator[Probes]:
    """Open the machine, or the snapshot of --from, that a command answers from.

    `formats` are those of this answer, where they differ from the command's.
    """
    from gpucheck.drivers import open_probes

    check_shared(shared, command, formats)
    note = None
    if shared.recording is None:
        probes = open_probes(deadline_s=shared.deadline_s, wakes=shared.wakes)
    else:
        from gpucheck.cli.examples import open_recording

        probes, note = open_recording(shared.recording, os.environ)
    if note is not None and shared.verbosity >= 0:
        write_message(note)
    try:
        yield probes
    except GpucheckError as error:
        error.host = probes.host()  # the machine that was read: with --from another one
        error.document = command
        if shared.recording is not None:
            steps = (step_on_recording(step, shared.recording) for step in error.remedy)
            error.remedy = tuple(steps)
        _mark_example(shared)
        raise
    finally:
        probes.close()


def deliver(
    command: str,
    shared: Shared,
    answer: Answer,
    time: str,
    **view_changes: Any,
) -> int:
    """Publish an answer, unless a request to stop came before it, and return the exit code."""
    if answer.exit_code is not ExitCode.INTERRUPTED:
        REQUESTS.raise_lost()
    REQUESTS.settle()
    return publish(command, shared, answer, time, **view_changes)


def publish(command: str, shared: Shared, answer: Answer, time: str, **view_changes: Any) -> int:
    """Write the report of an answer, what is beside it, and messages; return the exit code."""
    report = wrap(command, answer, time=time, strict=shared.strict)
    view, outlets = view_for(shared, **view_changes), shared.outlets
    writes = list[Callable[[], None]]()
    if any(outlets) or shared.format == "html":
        from gpucheck.cli.outlets import chart_remedy, plan_drawings, write_for_ci

        view = view._replace(chart_remedy=chart_remedy())
        report, writes = plan_drawings(report, outlets, view)
    try:
        report = write_report(report, shared, view)
    except BrokenPipeError:
        closed_pipe()
    if any(outlets):
        writes.insert(0, partial(write_for_ci, report, outlets))
    for write in writes:
        report = _after(write, report)
    shown = shared.format == "table" and shared.output is None and report.result is not None
    if not shown:
        _mark_example(shared)
    # A line for monitors comes alone, too.
    shown_codes = codes_in_table(report) if shown or shared.format == "line" else ()
    verbosity = shared.verbosity
    if report.exit_code is not answer.exit_code:
        verbosity = max(verbosity, 0)  # a warning by which --strict fails is said with -q, too
    write_messages(report, verbosity=verbosity, without=shown_codes, source=view.source)
    if (outlets.html or shared.format == "html") and shared.verbosity >= 0:
        from gpucheck.cli.outlets import tell_missing_charts

        tell_missing_charts(report, view)
    return int(report.exit_code)


def _after(write: Callable[[], None], report: Report) -> Report:
    """Write a file beside the report; return the report, with the failure if there is one."""
    try:
        write()
    except WrongUseError as error:
        from gpucheck.cli.outlets import failed

        return failed(report, error)
    return report


def codes_in_table(report: Report) -> Collection[str]:
    """Return the codes of the error and the warnings that the table itself shows."""
    shown_codes = getattr(open_view(report.command), "shown_codes", None)
    codes: Collection[str] = () if shown_codes is None else shown_codes(report)
    return codes


def call_command(
    function: Callable[..., int], command: str, values: Mapping[str, Any], **call: Any
) -> int:
    """Call a command's function with the values of its options, and those that all have.

    `call` is how it was called, as `Shared` has it. What ends without an answer is written beside
    the report that there is not.
    """
    own = own_options(function)
    given = {name: item.default for name, item in SHARED.items()} | {"github": False}
    given |= {name: value for name, value in values.items() if name not in own}
    shared = collect_shared(**arguments_of(collect_shared, given))._replace(**call)
    outlets = shared.outlets
    if any(outlets):
        from gpucheck.cli.outlets import check_outlets

        check_outlets(outlets, shared.output, COMMANDS[command].charts)
    try:
        return function(**arguments_of(function, values), shared=shared)
    except (GpucheckError, KeyboardInterrupt) as error:
        if any(outlets):
            from gpucheck.cli.outlets import write_failure_beside

            if isinstance(error, KeyboardInterrupt):
                REQUESTS.settle()
            write_failure_beside(failure_report(command, error), outlets)
        raise


def now() -> str:
    """Return the current time in UTC to the second."""
    from datetime import UTC, datetime

    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ----------------------------------------------------------------- with a command after --


def machine_for_child(command: str, shared: Shared) -> AbstractContextManager[Probes]:
    """Open the machine to find out what a command of the user's should run with."""
    if shared.format == "json" and shared.output is None and shared.verbosity >= 0:
        write_stderr("gpucheck: the JSON report needs --output FILE: stdout belongs to the command")
    return machine(command, shared, ("table", "json"))


def check_runnable(answer: Answer, shared: Shared, kind: type[T]) -> T:
    """Write the warnings of an answer that a command should run with, and return its result.

    Raises:
        LaunchError: there is no answer; nothing was started.
    """
    hidden = () if shared.verbosity > 0 else (DRIVER_LIBRARY,)
    write_warnings(notice for notice in answer.warnings if notice.code not in hidden)
    if not isinstance(answer.result, kind):
        failure = answer.error or Failure(code="no-answer", message="There is no answer.")
        raise failure.as_error(LaunchError)
    return answer.result


def save(command: str, shared: Shared, answer: Answer) -> None:
    """Write the report on a finished command to the file of --output, if there is one.

    A failure to write goes to stderr: stdout and the exit code belong to the command.
    """
    report = wrap(command, answer, time=now(), strict=shared.strict)
    if shared.output is None:
        return
    try:
        write_file(shared.output, open_format(shared.format)(report, view_for(shared)))
    except WrongUseError as error:
        write_failure(Failure.of(error))


def refuse_recording(shared: Shared) -> None:
    """Refuse --from with a command: commands run on this machine."""
    if shared.recording is not None:
        message = "--from answers from a snapshot, and no command can run on one."
        raise WrongUseError(code="command-with-snapshot", message=message)


# ---------------------------------------------------------------------------------- errors


def failure_report(command: str | None, error: GpucheckError | KeyboardInterrupt) -> Report:
    """Return the report of an error or an interrupt that left no answer."""
    from gpucheck.drivers.host.environment import read_host

    if isinstance(error, KeyboardInterrupt):
        host, code = None, ExitCode.INTERRUPTED
        failure = Failure(code="interrupted", message="Interrupted.")
    else:
        host, code, failure = error.host, error.exit_code, Failure.of(error)
        command = error.document or command
    host = host or read_host(Path("/"), os.environ)
    answer = Answer(result=None, exit_code=code, host=host, error=failure)
    if command is None or command not in load_documents():
        command = "error"
    return wrap(command, answer, time=now())


def fail(context: Context, error: GpucheckError) -> int:
    """Report an error: a sentence on stderr, and a document on stdout if JSON is wanted.

    With a command of the user's, every failure before it starts is 125, 126 or 127, and stdout
    belongs to that command.
    """
    REQUESTS.settle()
    if context.child is None:
        _write_error_document(context, error)
    write_failure(Failure.of(error))
    if context.child is None or isinstance(error, LaunchError):
        return int(error.exit_code)
    return int(ExitCode.LAUNCH_FAILED)


def _write_error_document(context: Context, error: GpucheckError | KeyboardInterrupt) -> None:
    if context.document is None or sys.stdout is None:
        return
    try:
        write_stdout(open_format(context.document)(failure_report(context.command, error), View()))
    except BrokenPipeError:
        closed_pipe()
    except WrongUseError as second:  # the exit code stays that of the first error
        write_message(second.message)


def interrupted(context: Context) -> int:
    """Answer a request to stop."""
    REQUESTS.settle()
    if context.child is None:
        _write_error_document(context, KeyboardInterrupt())
    write_message("interrupted")
    return int(ExitCode.INTERRUPTED)


def bug(context: Context, error: Exception) -> int:
    """Report a bug of gpucheck itself: the only traceback that a user ever sees."""
    import traceback

    write_stderr("".join(traceback.format_exception(error)).rstrip())
    mine = GpucheckError(
        code="internal-error",
        message=f"This is a bug in gpucheck ({type(error).__name__}).",
        remedy=(ISSUES,),
    )
    return fail(context, mine)


def usage_error(error: Exception, words: Sequence[str] = ()) -> WrongUseError:
    """Turn the parser's complaint about these words into ours."""
    describe = getattr(error, "format_message", None)
    text = " ".join(str(describe() if describe else error).split())
    option = str(getattr(error, "option_name", ""))
    if re.fullmatch(r"-[0-9.]", option):
        word = next((word for word in words if word.startswith(option)), option)[:40]
        text = f"{word!r} is negative, but amounts and devices are not; write {word[1:]!r}"
    else:
        text = _with_question(error, text)
    own = " ".join(("gpucheck", *(word for word in words[:1] if word in COMMANDS)))
    where = getattr(getattr(error, "ctx", None), "command_path", own)
    see = f"See: {where} --help"
    amount = amount_in_two(words) if "extra argument" in text else None
    if amount is not None:
        text = f"An amount is one word: write {amount}"
    elif "extra argument" in text and where == "gpucheck":
        text = f"{text.rstrip('.')}. {_OPTIONS_LAST}"
    forgotten = "extra argument" in text and where.rpartition(" ")[2] in RUNS_A_COMMAND
    return WrongUseError(
        code="usage",
        message=text if text.endswith((".", "?")) else f"{text}.",
        remedy=(COMMAND_AFTER_DASHES, see) if forgotten else (see,),
    )


def amount_in_two(words: Sequence[str]) -> str | None:
    """Return a number and its unit as one word, if they are two."""
    from gpucheck.report.units import BYTES_PER_UNIT

    for number, unit in pairwise(words):
        if _NUMBER.fullmatch(number) and (unit == "%" or unit.lower() in BYTES_PER_UNIT):
            return number + unit
    return None


_OPTIONS_LAST = "Options stand after the command's name."
#: Option that a command (or a certain one) does not have -> what there is instead.
_INSTEAD = {
    "--color": "Set NO_COLOR=1 or FORCE_COLOR=1.",
    "--no-color": "Set NO_COLOR=1.",
    "--from": "A snapshot cannot answer what this command asks.",
    "--list-examples": "It stands alone: gpucheck --list-examples.",
    "--live": "Write --watch SECONDS.",
    "--sweep": "One run measures one size: --size N.",
    "memlimit --framework": "Write --code FRAMEWORK.",
}
#: Command of other tools that gpucheck does not have -> what there is instead.
_COMMAND_INSTEAD = {
    "version": "gpucheck --version",
    "status": "gpucheck",
    "info": "gpucheck",
    "doctor": "gpucheck detect",
}
#: Name of an option's value in --help -> the value in words.
_VALUES = {"SECONDS": "seconds", "N": "a whole number"}
_NOT_A_NUMBER = re.compile(r"(?P<word>'[^']*') is not a valid (float|int|integer)\.?$")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?|\.[0-9]+")
_PARSERS_QUESTION = re.compile(r"\s*(\(Possible options: .*\)|Did you mean .*\?)$")
_ONE_OF = re.compile(r"(?P<word>'[^']*') is not one of (?P<known>'.*'(, '.*')*)\.?$")


def _with_question(error: Exception, text: str) -> str:
    """Ask "Did you mean ...?" in our words where the parser does not know a word."""
    kind = type(error).__name__
    fact = _PARSERS_QUESTION.sub("", text)
    context = getattr(error, "ctx", None)
    if kind == "NoSuchOption":
        word = str(getattr(error, "option_name", ""))
        items = context.command.params if context is not None else ()
        known = [name for item in items for name in (*item.opts, *item.secondary_opts)]
        known += PROGRAM_OPTIONS if getattr(context, "command_path", "") == "gpucheck" else ()
        fact = f"No such option: {word}"
        own = f"{getattr(context, 'info_name', '')} {word}"
        suggestion = (
            _INSTEAD.get(own)
            or _INSTEAD.get(word)
            or did_you_mean(word, [name for name in known if name.startswith("--")])
        )
        if not suggestion and hasattr(getattr(context, "command", None), "commands"):
            suggestion = _OPTIONS_LAST
    elif text.startswith("Missing command") and context is not None:
        return f"{context.info_name} needs one of: {', '.join(context.command.commands)}"
    elif (match := re.search(r"No such command '(.*)'", fact)) and context is not None:
        instead = _COMMAND_INSTEAD.get(match[1])
        likely = did_you_mean(match[1], context.command.commands)
        suggestion = f"Write {instead}." if instead else likely
    elif match := _NOT_A_NUMBER.search(fact):
        option = re.search(r"'(--[a-z-]+)'", fact)
        value = _VALUES.get(str(getattr(getattr(error, "param", None), "metavar", "")), "a number")
        return f"{option[1]} takes {value}, not {match['word']}" if option else text
    elif match := _ONE_OF.search(fact):
        suggestion = did_you_mean(match["word"].strip("'"), re.findall("'(.*?)'", match["known"]))
    else:
        return text
    return f"{fact.rstrip('.')}. {suggestion}".rstrip()


def wrong_platform() -> MissingError:
    """Say that this is not Linux; its host is not read, which takes Linux too."""
    error = MissingError(
        code="not-linux",
        message=f"gpucheck runs on Linux and WSL 2, not on {sys.platform}.",
    )
    error.host = Host(os=sys.platform, python=sys.version.partition(" ")[0])
    return error
