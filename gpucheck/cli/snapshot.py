"""`gpucheck snapshot`: record this machine, to be looked at elsewhere with --from."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpucheck.cli.options import STDOUT, Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.report_file import check_writable
from gpucheck.cli.terminal import write_stderr
from gpucheck.drivers.recorded import Snapshot
from gpucheck.inventory.snapshot import contents, take_snapshot
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.options import flag, option
from gpucheck.report.text import printable


def command(
    *,
    file: Path | None = option(
        "[FILE]", "Where to write it [default: stdout].", group="The recording"
    ),
    redact: bool = flag("--redact", "Replace serials, UUIDs, and host and user names."),
    replace: bool = flag("--replace", "Replace a file that exists."),
    shared: Shared,
) -> int:
    """Record this machine to a file that --from answers from."""
    file = None if file == STDOUT else file
    if file is not None:
        check_writable(file)
        if file.is_file() and not replace:
            raise WrongUseError(
                code="snapshot-exists",
                message=f"The file {str(file)!r} exists already.",
                remedy=("Replace it with --replace, or name another file.",),
            )
    shared = shared._replace(format="json", output=file, private=not redact)
    with machine("snapshot", shared) as probes:
        answer = take_snapshot(probes, redacted=redact)
    code = deliver("snapshot", shared, answer, probes.time())
    if shared.verbosity < 0 or code == ExitCode.WRONG_USE:
        return code
    if shared.output is not None and isinstance(answer.result, Snapshot):
        of = "this machine, redacted," if redact else answer.result.host.name or "this machine"
        write_stderr(printable(f"Recorded {of} in {shared.output}: {contents(answer.result)}."))
        write_stderr("Look at it, on any machine:")
        write_stderr(f"    gpucheck detect --from {shlex.quote(str(shared.output))}")
    if not redact and code == ExitCode.OK:
        write_stderr(_NAMES)
    return code


_NAMES = (
    "It names this host, its users and processes, with their command lines and paths, and"
    " serial numbers and UUIDs. To share a recording, make it with --redact."
)
