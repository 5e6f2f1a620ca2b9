"""`gpucheck snapshot`: record this machine, to be looked at elsewhere with --from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import Shared, deliver, machine
from gpucheck.cli.report_file import check_writable
from gpucheck.cli.terminal import write_stderr
from gpucheck.inventory.snapshot import take_snapshot
from gpucheck.report.errors import ExitCode, WrongUseError


@with_shared_options
def command(
    *,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to write it [default: stdout].")
    ] = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Replace serials, UUIDs, and host and user names.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file that exists.")] = False,
    shared: Shared,
) -> int:
    """Record this machine to a file that --from answers from."""
    if file is not None and shared.output is not None:
        message = "Give the snapshot's file once: as FILE or with --output."
        raise WrongUseError(code="two-files", message=message)
    shared = shared._replace(output=file or shared.output, private=not redact)
    if shared.output is not None:
        check_writable(shared.output)
    # --output replaces, as in every command.
    if file is not None and file.is_file() and not replace:
        raise WrongUseError(
            code="snapshot-exists",
            message=f"The file {str(file)!r} exists already.",
            remedy=("Replace it with --replace, or name another file.",),
        )
    with machine("snapshot", shared) as probes:
        answer = take_snapshot(probes, redacted=redact)
    code = deliver("snapshot", shared, answer, probes.time())
    if shared.output is not None and shared.verbosity >= 0 and code != ExitCode.WRONG_USE:
        write_stderr(f"Recorded. Look at it with: gpucheck list --from {shared.output}")
    if not redact and shared.verbosity >= 0 and code == ExitCode.OK:
        write_stderr(
            "It names this host, its users and processes, with their command lines and paths, and"
            " serial numbers and UUIDs. To share a recording, make it with --redact."
        )
    return code
