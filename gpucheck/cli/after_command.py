"""Line on stderr after a command of the user's that ended badly: what is known of the cause.

It reads what the kernel and the cgroup say, and a file that the command wrote if it is named; the
command's own streams are never touched.
"""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.cli.options import Shared
from gpucheck.cli.terminal import write_message
from gpucheck.drivers.host.cgroups import count_oom_kills
from gpucheck.drivers.host.files import size_of
from gpucheck.drivers.host.kernel_log import NewMessages
from gpucheck.drivers.live import ROOT_VARIABLE
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import format_gib

if TYPE_CHECKING:
    from gpucheck.memlimit.model import RunGpu

#: Ends that a user or a reader asked for: they need no cause.
ENDED_BY_USER = (128 + signal.SIGINT, 128 + signal.SIGPIPE)
#: From this share of its limit on, the limit may have refused the command more memory.
NEAR_THE_LIMIT = 0.9


class AfterCommand:
    """What must be known before a command starts, to say afterwards why it ended."""

    def __init__(self, log: str | None = None) -> None:
        self._root = Path(os.environ.get(ROOT_VARIABLE) or "/")
        self._messages = NewMessages(self._root)
        self._oom_kills = count_oom_kills(self._root)
        self._log = log
        self._log_bytes = 0 if log is None else size_of(Path(log))

    def report(self, exit_code: int, shared: Shared, gpu: RunGpu | None = None) -> None:
        """Write the line, if the command ended badly and is not to be quiet."""
        kernel = self._messages.read()
        if exit_code == 0 or shared.verbosity < 0:
            return
        after = count_oom_kills(self._root)
        both = after is not None and self._oom_kills is not None
        sentence = verdict(
            exit_code,
            kernel=kernel,
            oom_kills=max(0, (after or 0) - (self._oom_kills or 0)) if both else None,
            host_peak_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
            gpu=gpu,
            logged=self._cause_in_log(),
        )
        if sentence is not None:
            write_message(sentence)

    def _cause_in_log(self) -> str | None:
        """Return the cause in what was appended to the log; all of it if the file is a new one."""
        if self._log is None:
            return None
        from gpucheck.detect.log import first_causes, read_log

        skip = self._log_bytes if size_of(Path(self._log)) >= self._log_bytes else 0
        try:
            reading = read_log(self._log, skip_bytes=skip)
        except WrongUseError as error:
            return f"t{error.message.rstrip('.')[1:]}"
        causes, _ = first_causes(reading.matches.values())
        return f"{self._log}:{causes[0].line}: {causes[0].says}" if causes else None


# ----------------------------------------------------------------------------------- the verdict


def verdict(
    exit_code: int,
    *,
    kernel: bytes | None = None,
    oom_kills: int | None = None,
    host_peak_bytes: int | None = None,
    gpu: RunGpu | None = None,
    logged: str | None = None,
) -> str | None:
    """Return what is known of the cause in a sentence; None if a user or a reader asked for it.

    The hardware comes first, then what the command itself wrote, then the kernel's kills for
    memory, then what may be a consequence.

    `kernel` are the kernel's messages in its time, null if they may not be read; `oom_kills` how
    many processes of its cgroup the kernel killed for memory, null if nothing tells. `gpu` is the
    one of which it took most memory. `logged` is the cause in the file that it wrote, as
    `FILE:LINE: cause`.
    """
    hardware, program = _from_kernel(kernel)
    killed = None
    if oom_kills:
        used = f", of which one took up to {format_gib(host_peak_bytes)}" if host_peak_bytes else ""
        count = "a process" if oom_kills == 1 else f"{oom_kills} processes"
        killed = f"the kernel killed {count} of its cgroup for memory{used}"
    causes = [*filter(None, (hardware, logged, killed, _limit_reason(gpu), program))]
    if exit_code in ENDED_BY_USER and not causes:
        return None
    why = "; ".join(causes[:2]) if causes else _nothing(exit_code, kernel, oom_kills)
    return f"the command ended with {_how(exit_code)}: {why}"


def _how(exit_code: int) -> str:
    """Return the code with the signal that it stands for."""
    try:
        return f"{exit_code} ({signal.Signals(exit_code - 128).name})"
    except ValueError:
        return str(exit_code)


def _from_kernel(messages: bytes | None) -> tuple[str | None, str | None]:
    """Return what the kernel said of a GPU in that time: of its hardware, and of a program."""
    if not messages or b"Xid" not in messages:
        return None, None
    from gpucheck.detect.log import Scan, first_causes
    from gpucheck.detect.xids import parse_line

    scan = Scan()
    scan.feed(messages)
    scan.close()
    causes, _ = first_causes(scan.matches.values())
    by_class = {match.class_: f"{match.says} (in its time: {match.excerpt})" for match in causes}
    lines = messages.decode("utf-8", "replace").splitlines()
    numbers = dict.fromkeys(str(xid.number) for line in lines if (xid := parse_line(line)))
    others = f"Xid {', '.join(numbers)} in its time" if numbers else None
    lost = by_class.get("gpu-lost") or by_class.get("ecc")
    return lost, by_class.get("illegal-access") or others


def _limit_reason(gpu: RunGpu | None) -> str | None:
    if gpu is None or gpu.peak_bytes is None or gpu.limit_bytes is None:
        return None
    if gpu.peak_bytes < NEAR_THE_LIMIT * gpu.limit_bytes:
        return None
    return (
        f"it took {format_gib(gpu.peak_bytes)} of its {format_gib(gpu.limit_bytes)} of GPU memory:"
        " the limit may have refused it more"
    )


def _nothing(exit_code: int, kernel: bytes | None, kills: int | None) -> str:
    """Return what was looked for in vain, and what could not be looked at."""
    parts = {"no GPU error in the kernel log": kernel, "no kill for memory": kills}
    unread = {"the kernel log": kernel, "kills for memory": kills}
    checked = [name for name, value in parts.items() if value is not None]
    missing = [name for name, value in unread.items() if value is None]
    facts = [*checked, *([f"not checked: {' and '.join(missing)}"] if missing else [])]
    guess = "somebody sent it that signal" if exit_code > 128 else "its own output says why"
    return f"{guess} ({', '.join(facts)})"
