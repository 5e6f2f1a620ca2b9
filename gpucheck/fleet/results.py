"""File of results: a line per node, appended and synced as it comes, so that none is lost.

An interrupted run leaves whole lines, but perhaps for the last one. What was asked already is read
back from it, so that `--resume` asks only the rest.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from gpucheck.fleet.collect import Collected
from gpucheck.fleet.documents import read_documents
from gpucheck.fleet.model import NodeAnswer, Outcome
from gpucheck.report.codec import to_plain
from gpucheck.report.errors import WrongUseError

#: A node with one of these has answered; the others are asked again.
_SETTLED = frozenset({Outcome.OK, Outcome.UNEXPECTED, Outcome.FAILED, Outcome.INCONCLUSIVE})


class Earlier(NamedTuple):
    """What a file of results says: the hosts that need not be asked again."""

    settled: frozenset[str]
    verb: str | None


def read_earlier(path: Path, collected: Collected | None = None) -> Earlier:
    """Return the hosts that have answered; `collected` takes over what the file holds.

    Raises:
        WrongUseError: the file cannot be read, or nothing in it is a result.
    """
    last: dict[str, str] = {}
    verbs: set[str] = set()
    for found in read_documents([str(path)]):
        if collected is not None:
            collected.add(found)
        line = found.document or {}
        if line.get("schema") == "gpucheck/fleet-node/1" and isinstance(line.get("host"), str):
            last[line["host"]] = str(line.get("outcome"))
            verbs.add(str(line.get("command")))
    if len(verbs) > 1:
        raise WrongUseError(
            code="mixed-results",
            message=f"{str(path)!r} holds answers to several commands: {', '.join(sorted(verbs))}.",
        )
    settled = frozenset(host for host, outcome in last.items() if outcome in _SETTLED)
    return Earlier(settled, verbs.pop() if verbs else None)


class ResultsFile:
    """Open file of results; each line is on the disk before the next one is asked for.

    Raises:
        WrongUseError: it exists and `resume` is not set, or it cannot be written.
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
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")  # a line that was cut off stays a line of its own

    def append(self, answer: NodeAnswer) -> None:
        """Write one answer.

        Raises:
            WrongUseError: the file system is full, or refuses.
        """
        line = json.dumps(to_plain(answer), separators=(",", ":")).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            message = f"The results cannot be written: {error.strerror}."
            raise WrongUseError(code="results-not-writable", message=message) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
