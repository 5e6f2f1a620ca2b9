"""Command lines of processes, read by a child.

The kernel reads them from the memory of the process. Where that is locked by a thread that is stuck
in a driver, the reader sleeps as long, and nothing ends it.
"""

from __future__ import annotations

import json
import sys

from gpucheck.drivers.child import Child, ChildDiedError, ChildError, ChildSilentError

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

#: A file in memory is read in microseconds, a child starts in a tenth of a second.
DEADLINE_S = 3.0
#: So many processes are given up, each with a child that may never end; then the rest is.
MOST_GIVEN_UP = 2
MOST_BYTES = 1 << 20


def read_in_time(
    pids: Iterable[int], proc: str, child: Child | None = None, *, deadline_s: float = DEADLINE_S
) -> tuple[dict[int, str], bool]:
    """Return the command lines that could be read, by process, and whether one was given up.

    Words are separated by NUL. `child` is one that already runs and answers such requests, as that
    of NVML does; it is of no more use after a process was given up.
    """
    texts: dict[int, str] = {}
    left = list(pids)
    given_up = 0
    while left and given_up < MOST_GIVEN_UP:
        try:
            reader = Child(__name__) if child is None else child
        except ChildDiedError:
            return texts, True
        try:
            for document in _answers(reader, {"command_lines": left, "proc": proc}, deadline_s):
                left.remove(document["pid"])
                if document["text"] is not None:
                    texts[document["pid"]] = document["text"]
        except ChildError as error:
            reader.abandon()
            given_up += 1
            del left[: isinstance(error, ChildSilentError)]
        if child is None:
            reader.close()
        child = None
    return texts, given_up > 0


def _answers(child: Child, request: dict[str, Any], deadline_s: float) -> Iterator[dict[str, Any]]:
    """Yield a document for each process of the request.

    Raises:
        ChildSilentError: one did not come in time.
        ChildDiedError: the child ended.
    """
    child.ask(request)
    while True:
        document = child.next_document(deadline_s)
        if document is None:
            raise ChildSilentError(deadline_s)
        if document["part"] != "command":
            return
        yield document


def answer(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the command line of each process of a request; null if it cannot be read."""
    for pid in request["command_lines"]:
        try:
            with open(f"{request['proc']}/{pid}/cmdline", "rb") as file:  # noqa: PTH123
                text = file.read(MOST_BYTES).decode("utf-8", "replace")
        except OSError:
            text = None
        yield {"part": "command", "pid": pid, "text": text}


def main() -> None:
    """Answer requests from standard input until it ends."""
    for line in sys.stdin:
        for document in answer(json.loads(line)):
            _write(document)
        _write({"part": "end"})


def _write(document: dict[str, Any]) -> None:
    """Write one line at once: the next process may never be read."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
