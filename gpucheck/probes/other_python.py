"""Runs one of our single files in another Python, with a deadline and without waiting for ever."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

#: A child that is not stuck in the kernel is gone this soon after the kill.
_REAP_S = 1.0


class Interpreter(NamedTuple):
    """A Python and what it was told: `isolated` (-I, -E) reads no PYTHON*, `bare` (-S) no site."""

    path: str
    isolated: bool = False
    bare: bool = False


class OtherPythonError(Exception):
    """The interpreter could not be started, or did not answer in time."""


def run_script(
    interpreter: Interpreter,
    script: str,
    *arguments: str,
    environment: Mapping[str, str],
    deadline_s: float,
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that a file beside this one writes, a line each, as they come.

    What else is on its stdout is passed over. At the end, or when the caller has enough, it is
    killed; one that is stuck in the kernel is left behind.

    Raises:
        OtherPythonError: it cannot be started, or is not at its end after `deadline_s`.
    """
    import subprocess

    options = ["-I"] * interpreter.isolated + ["-S"] * interpreter.bare
    path = str(Path(__file__).with_name(script))
    try:
        child = subprocess.Popen(
            [interpreter.path, *options, path, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, ValueError) as error:
        raise OtherPythonError(str(error)) from None
    if child.stdout is None:
        raise AssertionError  # pragma: no cover - a pipe was asked for
    try:
        yield from _documents(child.stdout.fileno(), deadline_s)
    finally:
        child.stdout.close()
        child.kill()
        _reap(child.pid)
        child.returncode = 0  # so that Popen does not wait for it either


def _reap(pid: int) -> None:
    end = time.monotonic() + _REAP_S
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.001)


def _documents(descriptor: int, deadline_s: float) -> Iterator[dict[str, Any]]:
    end = time.monotonic() + deadline_s
    buffer = b""
    while True:
        line, separator, rest = buffer.partition(b"\n")
        if separator:
            buffer = rest
            document = _object(line)
            if document is not None:
                yield document
            continue
        if not select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
            problem = f"no answer within {deadline_s:g} s"
            raise OtherPythonError(problem)
        chunk = os.read(descriptor, 1 << 16)
        if not chunk:
            return
        buffer += chunk


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
