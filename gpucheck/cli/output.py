"""The only place that writes to the user: reports, warnings and errors, and their exit codes."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucheck.models.errors import (
    ExitCode,
    GpucheckError,
    InconclusiveError,
    LaunchError,
    MissingError,
    WrongUseError,
)
from gpucheck.models.report import Answer, Failure, Notice, Report, status_of
from gpucheck.render import FORMATS, open_format
from gpucheck.render.base import View, printable

if TYPE_CHECKING:
    from typing import TextIO

    from gpucheck.cli.shared import Shared
    from gpucheck.probes.interface import Probes

STDOUT = "standard output"
ISSUES = "Please report it with the lines above and the output of: gpucheck snapshot --redact"


class Context(NamedTuple):
    """What is known of an invocation before its options are parsed.

    `child` is a command of the user's to run, and `keep` the descriptors that our caller left
    open for it. With it stdout is that command's alone, so there is no document on it.
    """

    command: str | None
    json: bool
    child: tuple[str, ...] | None = None
    keep: frozenset[int] = frozenset()


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether the document is wanted as JSON, also when the rest cannot be parsed."""
    return any(
        word in ("--json", "--format=json") or (word, after) == ("--format", "json")
        for word, after in pairwise([*arguments, ""])
    )


# ---------------------------------------------------------------------------------- streams


def write_stdout(text: str) -> None:
    """Write the report; characters that the locale lacks are escaped rather than fatal.

    Raises:
        BrokenPipeError: whoever read it has gone.
        WrongUseError: it is closed, or what it leads to is full.
    """
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise _unwritable(STDOUT, "it is closed")
    encoding = stream.encoding or "ascii"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_stdout()
        raise _unwritable(STDOUT, error.strerror or str(error)) from None


def write_stderr(line: str) -> None:
    """Write one line of comment; a closed or full stderr never ends the program."""
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        encoding = stream.encoding or "ascii"
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        stream.flush()


def closed_pipe() -> int:
    """End quietly after `| head`: whoever closed the pipe has read enough."""
    _give_up_stdout()
    return int(ExitCode.OK)


def _give_up_stdout() -> None:
    # Python flushes stdout once more at exit; there must be something to flush into.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def view_for(shared: Shared, **changes: Any) -> View:
    """Describe the place where the report will be seen."""
    import shutil

    to_file = shared.output is not None
    environment = os.environ
    stream: TextIO | None = sys.stdout
    on_terminal = not to_file and stream is not None and stream.isatty()
    terminal = on_terminal and environment.get("TERM") != "dumb"
    color = terminal or (bool(environment.get("FORCE_COLOR")) and not to_file)
    view = View(
        width=max(20, shutil.get_terminal_size((80, 24)).columns),
        color=color and not environment.get("NO_COLOR"),
        unicode=to_file or _writes_unicode(stream),
        verbosity=shared.verbosity,
    )
    return view._replace(**changes)


def _writes_unicode(stream: TextIO | None) -> bool:
    encoding = stream.encoding if stream is not None else None
    return (encoding or "").lower().replace("-", "") == "utf8"


# ---------------------------------------------------------------------------------- files


def check_writable(path: Path) -> None:
    """Refuse an output file that cannot be written before anything is measured.

    Raises:
        WrongUseError: it is a directory, or its directory is missing or not writable.
    """
    directory = path.parent
    problem = None
    if path.is_dir():
        problem = "it is a directory"
    elif not directory.is_dir():
        problem = f"there is no directory {str(directory)!r}"
    elif not _is_special(path) and not os.access(directory, os.W_OK | os.X_OK):
        problem = f"the directory {str(directory)!r} is not writable"
    if problem is not None:
        raise _unwritable(repr(str(path)), problem)


def _unwritable(place: str, problem: str) -> WrongUseError:
    return WrongUseError(
        code="output-not-writable",
        message=f"The report cannot be written to {place}: {problem}.",
        remedy=("Name a file in a directory that you may write to.",),
    )


def _is_special(path: Path) -> bool:
    """Return whether it is a device or pipe, which must be written to and never be replaced."""
    return path.exists() and not path.is_file()


def write_file(path: Path, text: str) -> None:
    """Write the report in one step: the file is the old one or the new one, never half of it.

    Raises:
        WrongUseError: the file system refused.
    """
    try:
        if _is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        # A link stays one: the file it leads to is replaced.
        target = path.resolve()
        # Beside the file, so that the rename stays in one file system; O_EXCL follows no link.
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(repr(str(path)), error.strerror or str(error)) from None


# ---------------------------------------------------------------------------------- reports


def wrap(command: str, answer: Answer, *, time: str, strict: bool = False) -> Report:
    """Put an answer into the envelope of its command."""
    code = answer.exit_code
    doubtful = code is ExitCode.INCONCLUSIVE or (code is ExitCode.OK and bool(answer.warnings))
    if strict and doubtful:
        code = ExitCode.BAD
    return Report(
        command=command,
        schema=f"gpucheck/{command}/1",
        time=time,
        host=answer.host,
        exit_code=code,
        status=status_of(code, warnings=bool(answer.warnings)),
        error=answer.error,
        warnings=answer.warnings,
        result=answer.result,
    )


def emit(report: Report, shared: Shared, view: View) -> Report:
    """Write a report where it belongs, and return it.

    If the file fails after all it goes to stdout rather than nowhere, with that failure in it.
    """
    render = open_format(shared.format)
    if shared.output is None:
        write_stdout(render(report, view))
        return report
    try:
        write_file(shared.output, render(report, view))
    except WrongUseError as error:
        failure = Failure(code=error.code, message=error.message, remedy=error.remedy)
        code = error.exit_code
        status = status_of(code, warnings=False)
        report = report._replace(exit_code=code, status=status, error=failure)
        write_stdout(render(report, view))
    return report


def comment(report: Report, *, quiet: bool = False) -> None:
    """Say on stderr what went wrong and what should be known besides the report."""
    if report.error is not None:
        write_failure(report.error)
    if not quiet:
        write_warnings(report.warnings)


def write_failure(failure: Failure) -> None:
    """Write an error and its remedies."""
    write_stderr(f"gpucheck: {printable(failure.message)}")
    for step in failure.remedy:
        write_stderr(f"  {printable(step)}")


def write_warnings(notices: Iterable[Notice]) -> None:
    """Write the warnings, a line each."""
    for notice in notices:
        write_stderr(f"gpucheck: warning: {printable(notice.message)}")


def check_shared(shared: Shared, formats: Sequence[str], command: str) -> None:
    """Refuse a format that the command does not have, or an output that cannot be written."""
    if shared.format not in formats:
        known = ", ".join(name for name in FORMATS if name in formats)
        raise WrongUseError(
            code="unknown-format",
            message=f"{command} has no format {shared.format!r}; it has {known}.",
        )
    if shared.output is not None:
        check_writable(shared.output)


def deliver(
    command: str,
    shared: Shared,
    find: Callable[[Probes], Answer],
    *,
    formats: Sequence[str] = ("table", "json"),
    **view_changes: Any,
) -> int:
    """Open the machine, let `find` answer, render the report, and return the exit code."""
    from gpucheck.probes import open_probes

    check_shared(shared, formats, command)
    probes = open_probes(shared.recording, deadline_s=shared.deadline_s)
    try:
        answer = find(probes)
        report = wrap(command, answer, time=probes.time(), strict=shared.strict)
    finally:
        probes.close()
    try:
        report = emit(report, shared, view_for(shared, **view_changes))
    except BrokenPipeError:
        closed_pipe()
    comment(report, quiet=shared.verbosity < 0)
    return int(report.exit_code)


def find_only(command: str, shared: Shared, find: Callable[[Probes], Answer]) -> Answer:
    """Find out, without a report on stdout, what a command of the user's is to be run with.

    Raises:
        GpucheckError: there is no answer to run it with; nothing was started.
    """
    from gpucheck.probes import open_probes

    check_shared(shared, ("table", "json"), command)
    probes = open_probes(deadline_s=shared.deadline_s)
    try:
        answer = find(probes)
    finally:
        probes.close()
    write_warnings(answer.warnings)
    if answer.result is None:
        failure = answer.error or Failure(code="no-answer", message="There is no answer.")
        raise LaunchError(code=failure.code, message=failure.message, remedy=failure.remedy)
    return answer


def save(command: str, shared: Shared, answer: Answer) -> None:
    """Write the report about a command that has run to the file of --output, if there is one.

    If that fails it is said on stderr: stdout and the exit code are the command's.
    """
    from datetime import UTC, datetime

    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = wrap(command, answer, time=time, strict=shared.strict)
    if shared.output is None:
        return
    try:
        write_file(shared.output, open_format(shared.format)(report, view_for(shared)))
    except WrongUseError as error:
        write_failure(Failure(code=error.code, message=error.message, remedy=error.remedy))


def refuse_recording(shared: Shared) -> None:
    """A command runs on this machine: what a snapshot of another one says is no help."""
    if shared.recording is not None:
        message = "--from answers from a snapshot: a command cannot be run on that."
        raise WrongUseError(code="command-with-snapshot", message=message)


# ---------------------------------------------------------------------------------- failures


def _answer_of(error: GpucheckError) -> Answer:
    from gpucheck.probes.environment import read_host

    failure = Failure(code=error.code, message=error.message, remedy=error.remedy)
    host = read_host(Path("/"), os.environ)
    return Answer(result=None, exit_code=error.exit_code, host=host, error=failure)


def fail(context: Context, error: GpucheckError) -> int:
    """Report an error: a sentence on stderr, and a document on stdout if JSON is wanted.

    With a command of the user's, every failure before it starts is 125, 126 or 127, and stdout
    is that command's alone.
    """
    answer = _answer_of(error)
    if context.child is not None:
        write_failure(answer.error or Failure(code="", message=str(error)))
        return int(error.exit_code if isinstance(error, LaunchError) else ExitCode.LAUNCH_FAILED)
    _write_error_document(context, answer)
    write_failure(answer.error or Failure(code="", message=str(error)))
    return int(error.exit_code)


def _write_error_document(context: Context, answer: Answer) -> None:
    if not context.json or sys.stdout is None:
        return
    from datetime import UTC, datetime

    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = wrap(context.command or "error", answer, time=time)
    try:
        write_stdout(open_format("json")(report, View()))
    except BrokenPipeError:
        closed_pipe()


def interrupted(context: Context) -> int:
    """Answer Ctrl-C."""
    error = InconclusiveError(code="interrupted", message="Interrupted.")
    answer = _answer_of(error)._replace(exit_code=ExitCode.INTERRUPTED)
    if context.child is None:
        _write_error_document(context, answer)
    write_stderr("gpucheck: interrupted")
    return int(ExitCode.INTERRUPTED)


def bug(context: Context, error: Exception) -> int:
    """Show a defect of gpucheck itself: the only traceback a user ever sees."""
    import traceback

    write_stderr("".join(traceback.format_exception(error)).rstrip())
    mine = GpucheckError(
        code="internal-error",
        message=f"This is a bug in gpucheck ({type(error).__name__}).",
        remedy=(ISSUES,),
    )
    return fail(context, mine)


def usage_error(error: Exception) -> WrongUseError:
    """Turn the parser's complaint into ours."""
    describe = getattr(error, "format_message", None)
    text = str(describe() if describe else error).strip().replace("\n", " ")
    where = getattr(getattr(error, "ctx", None), "command_path", "gpucheck")
    return WrongUseError(
        code="usage",
        message=text if text.endswith((".", "?")) else f"{text}.",
        remedy=(f"See: {where} --help",),
    )


def wrong_platform() -> MissingError:
    """Say that this is not Linux."""
    return MissingError(
        code="not-linux",
        message=f"gpucheck runs on Linux and WSL2, not on {sys.platform}.",
    )
