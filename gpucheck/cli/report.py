"""`gpucheck report`: what a ticket needs of this machine, in one archive or folder."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import Shared, deliver, machine, wrap, write_message
from gpucheck.cli.report_file import PRIVATE, check_writable, write_file, write_folder
from gpucheck.cli.terminal import is_watched, status_line, view_for, write_stderr, write_stdout
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.formats import open_format
from gpucheck.report.text import printable

SUFFIXES = (".tar.gz", ".tgz")
#: The folder within an archive.
FOLDER = "gpucheck-report"
#: What is meant as a file, and is no archive that we write.
_FILES = frozenset((".bz2", ".gz", ".html", ".json", ".tar", ".txt", ".xz", ".zip", ".zst"))
_YES = ("", "y", "yes")


@with_shared_options
def command(
    *,
    path: Annotated[
        Path, typer.Argument(metavar="DIR|FILE.tar.gz", help="The folder or archive to write.")
    ],
    bench: Annotated[bool, typer.Option("--bench", help="Measure for about 10 s, too.")] = False,
    no_redact: Annotated[
        bool, typer.Option("--no-redact", help="Keep names, paths, serial numbers and UUIDs.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a report.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write it without a question.")] = False,
    shared: Shared,
) -> int:
    """Write what a ticket needs into one archive: detect, list, a snapshot."""
    from gpucheck.cli.report_parts import MachineReport, ReportFile, archive, gather

    if bench and shared.recording is not None:
        message = "--bench measures this machine: it cannot be given with --from."
        raise WrongUseError(code="bench-from-snapshot", message=message)
    _check(path, replace=replace)
    gc.enable()
    with machine("report", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
        parts, counts = gather(probes, redacted=not no_redact, bench=bench, tell=tell)
        host, time = probes.host(), probes.time()
    if not no_redact:
        host = host._replace(name=None)
    result = MachineReport(
        path=str(path),
        redacted=counts,
        files=tuple(
            ReportFile(name, len(part.content), part.about, part.error)
            for name, part in parts.items()
        ),
    )
    answer = Answer(result=result, host=host)
    shown = shared.format == "table" and shared.output is None
    text = open_format("table")(wrap("report", answer, time=time), view_for(shared))
    if shown:
        write_stdout(text)
    if not yes and not _agreed(None if shown else text):
        write_message("Nothing was written.")
        return int(ExitCode.BAD)

    files = {name: part.content for name, part in parts.items()}
    mode = PRIVATE if no_redact else None
    if _is_archive(path):
        write_file(path, archive(files, time, folder=FOLDER), mode=mode)
    else:
        write_folder(path, files, mode=mode)
    if shared.verbosity >= 0:
        what = "Look at it, then attach it" if not no_redact else "It is for people you trust"
        write_stderr(printable(f"Wrote {path}. {what}."))
    return int(ExitCode.OK) if shown else deliver("report", shared, answer, time)


def _is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def _check(path: Path, *, replace: bool) -> None:
    """Check where the report is to be written, before anything is read.

    Raises:
        WrongUseError: it cannot be written there, or would replace something.
    """
    from gpucheck.cli.report_parts import ABOUT, README

    if _is_archive(path):
        check_writable(path)
        if path.exists() and not replace:
            raise _exists(path)
        return
    if path.name in ("", "..") or path.suffix in _FILES or path.is_symlink():
        message = f"A report is a new folder or a file that ends with .tar.gz, not {str(path)!r}."
        raise WrongUseError(code="report-name", message=message)
    if path.exists() and not path.is_dir():
        raise WrongUseError(code="report-name", message=f"{str(path)!r} is no folder.")
    check_writable(path.with_name(f"{path.name}.draft"))
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    ours = {README, *(f"{name}.{form}" for name in ABOUT for form in ("json", "txt", "html"))}
    if names - ours:
        message = f"The folder {str(path)!r} has other files, which a report would remove."
        raise WrongUseError(
            code="report-exists", message=message, remedy=("Name a folder that is not there.",)
        )
    if names and not replace:
        raise _exists(path)


def _exists(path: Path) -> WrongUseError:
    return WrongUseError(
        code="report-exists",
        message=f"There is a report at {str(path)!r} already.",
        remedy=("Replace it with --replace, or give another name.",),
    )


def _agreed(text: str | None) -> bool:
    """Ask a person whether to write what is shown; a program is not asked."""
    if not (is_watched() and sys.stdin is not None and sys.stdin.isatty()):
        return True
    if text is not None:
        write_stderr(text)
    sys.stderr.write("Write it? [Y/n] ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() in _YES
