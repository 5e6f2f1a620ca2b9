"""Starter of a command that must not run before its cgroup has a limit.

`python gated_start_child.py READY GO USER PATH NAME [ARGUMENT ...]` writes one byte to the
descriptor READY, waits for one from GO, becomes the USER (`uid:gid:name`, or `-` for no change) and
then PATH with the words from NAME on. If GO is closed first, the command never starts: gpucheck has
given up, or was killed. Standard library only; it keeps its process id, so it is the command's.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

#: coreutils' codes: not started, not executable, not found.
NOT_STARTED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
#: Python ignores these at start-up, and an ignored signal stays ignored across exec.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def initial_environment() -> dict[bytes, bytes]:
    """Return the environment as it was given: Python may have set LC_CTYPE in it."""
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - no pathlib in the child
            entries = file.read().split(b"\0")
    except OSError:
        return dict(os.environb)
    return {name: value for name, equals, value in (e.partition(b"=") for e in entries) if equals}


def become(user: str) -> None:
    """Give up root's rights for those of a user, with all of that user's groups."""
    uid, gid, name = user.split(":", 2)
    if name:
        os.initgroups(name, int(gid))
    else:
        os.setgroups([int(gid)])
    os.setgid(int(gid))
    os.setuid(int(uid))


def main(words: list[str]) -> int:
    """Wait, and become the command; return the code if that fails."""
    ready, go, user, path, *command = words
    for number in (signal.SIGINT, *_IGNORED_BY_PYTHON):
        signal.signal(number, signal.SIG_DFL)
    os.write(int(ready), b"r")
    os.close(int(ready))
    if os.read(int(go), 1) != b"g":
        return NOT_STARTED
    os.close(int(go))
    environment = initial_environment()
    try:
        if user != "-":
            become(user)
    except OSError as error:
        print(f"gpucheck: The command cannot run as {user}: {error.strerror}.", file=sys.stderr)  # noqa: T201
        return NOT_STARTED
    try:
        os.execve(path, command, environment)
    except OSError as error:
        print(f"gpucheck: {path!a} cannot be executed: {error.strerror}.", file=sys.stderr)  # noqa: T201
        return NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
