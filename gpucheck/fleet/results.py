"""File of results: a line per node, appended and synced as it comes, so that none is lost.

An interrupted run leaves whole lines, but perhaps for the last one. What was asked already is read
back from it, so that `--resume` asks only the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import host_in, read_documents
from gpucheck.fleet.model import NodeAnswer, Outcome
from gpucheck.report.codec import to_plain
from gpucheck.report.errors import WrongUseError

#: A node with one of these has answered; the others are asked again.
_SETTLED = frozenset({Outcome.OK, Outcome.UNEXPECTED, Outcome.FAILED, Outcome.INCONCLUSIVE})
_SCHEMA = "gpucheck/fleet-node/1"
#: In which the host of a line stands that was cut off early.
_TAIL_BYTES = 1 << 12


def read_earlier(
    path: Path, collected: Collected | None = None
) -> tuple[frozenset[str], str | None]:
    """Return the hosts that have answered, which need not be asked again, and the command.

    `collected` takes over what the file holds.

    Raises:
        WrongUseError: the file cannot be read, or has something else in it than results of one
            command.
    """
    last: dict[str, str] = {}
    verbs: set[str] = set()
    foreign = False
    for entry in read_documents([str(path)] if path.stat().st_size else []):
        line = entry.document or {}
        if line.get("schema") == _SCHEMA and isinstance(line.get("host"), str):
            last[line["host"]] = str(line.get("outcome"))
            verbs.add(str(line.get("command")))
        elif entry.host is None:
            # What is left of a line that a kill cut off near its beginning, or no line of ours.
            foreign = True
            if entry.document is None:
                continue
            break
        if collected is not None:
            collected.add(entry)
    else:
        foreign = foreign and not verbs
    if foreign:
        raise WrongUseError(
            code="no-results",
            message=f"{str(path)!r} is no file of results: it holds something else.",
            remedy=("Name a file that --results has written.",),
        )
    if len(verbs) > 1:
        raise WrongUseError(
            code="mixed-results",
            message=f"{str(path)!r} holds answers to several commands: {', '.join(sorted(verbs))}.",
        )
    settled = frozenset(host for host, outcome in last.items() if outcome in _SETTLED)
    return settled, verbs.pop() if verbs else None


class ResultsFile:
    """Open file of results; each line is on the disk before the next one is asked for.

    No second run may have it open: each would ask what the other asks.

    Raises:
        WrongUseError: it exists and `resume` is not set, another run writes to it, or it cannot be
            written.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= 0 if resume else os.O_CREAT | os.O_EXCL
        try:
            # The answers to `list` hold the command lines of all users of all nodes.
            self._descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            raise WrongUseError(
                code="results-exist",
                message=f"{str(path)!r} exists.",
                remedy=(
                    "Name another file, or ask only the nodes that are not in it:"
                    f" add --resume {path}",
                ),
            ) from None
        except OSError as error:
            message = f"{str(path)!r} cannot be written: {error.strerror}."
            raise WrongUseError(code="results-not-writable", message=message) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            message = f"Another run writes to {str(path)!r}."
            raise WrongUseError(code="results-in-use", message=message) from None
        except OSError:  # a file system without locks
            pass
        self._ends_well = False

    def append(self, answer: NodeAnswer) -> None:
        """Write one answer.

        Raises:
            WrongUseError: the file system is full, or refuses.
        """
        line = json.dumps(to_plain(answer), separators=(",", ":")).encode() + b"\n"
        try:
            if not self._ends_well:
                self._mend_last_line()
                self._ends_well = True
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            message = f"The results cannot be written: {error.strerror}."
            raise WrongUseError(code="results-not-writable", message=message) from None

    def _mend_last_line(self) -> None:
        """End a line that was cut off; one that does not even name its host is taken away."""
        size = os.fstat(self._descriptor).st_size
        end = os.pread(self._descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        _, line_end, last = end.rpartition(b"\n")
        if not last:
            return
        if (line_end or size <= _TAIL_BYTES) and host_in(last) is None:
            os.ftruncate(self._descriptor, size - len(last))
        else:
            os.write(self._descriptor, b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
