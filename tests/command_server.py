"""The command without its start: a process that has imported gpucheck forks for each call.

A fork is a process like any other to what it starts, reads and writes, at a fifth of the price:
most of a call's time goes into importing. What the interpreter itself reads at its start (LANG,
PYTHONUTF8, descriptors that are closed) is for a real process: see `can_serve`. The children of a
fork are forks too: forked_children.py.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import pkgutil
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from tests import forked_children, hang_clock

ROOT = Path(__file__).resolve().parent.parent

#: One message each way; a call's variables and words are far below it.
LONGEST_MESSAGE_BYTES = 1 << 20
#: A pipe holds this much, so that nobody has to write while somebody reads.
LONGEST_STDIN_BYTES = 60_000
#: Read once, at the start of the interpreter or when Typer is imported.
READ_AT_START = (
    "PYTHON", "LC_", "LD_PRELOAD", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "TERMINAL_WIDTH",
    "_TYPER",
)  # fmt: skip
#: What NumPy's OpenBLAS reads when it is loaded.
BLAS_THREADS = "OPENBLAS_NUM_THREADS"
#: `real` starts every process of every test anew.
STARTS = "GPUCHECK_TEST_STARTS"


def can_serve(environment: Mapping[str, str], stdin: bytes) -> bool:
    """Return whether a fork does what a new interpreter would do with this environment."""
    strange = [name for name in environment if name.startswith(READ_AT_START)]
    usual = environment.get("LANG", "C.UTF-8") == "C.UTF-8"
    small = len(stdin) <= LONGEST_STDIN_BYTES
    return usual and small and not {*strange} - {"PYTHONPATH"} and os.environ.get(STARTS) != "real"


class Kind(NamedTuple):
    """What a server is for: commands that need NumPy, with so many threads, and all others."""

    measures: bool
    threads: str | None


def kind_of_server(words: Sequence[object], environment: Mapping[str, str]) -> Kind:
    """Return the kind of server whose forks are this command."""
    strange = any(
        name.startswith(("OMP_", "MKL_", "OPENBLAS_", "GOTO_", "NPY_")) and name != BLAS_THREADS
        for name in environment
    )
    measures = [*words[:1]] == ["bench"] and not strange
    return Kind(measures, environment.get(BLAS_THREADS) if measures else None)


class CommandServers:
    """A server of each kind, 60 MB each, or 90 with NumPy."""

    def __init__(self) -> None:
        self._servers: dict[Kind, CommandServer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.close()

    def run(
        self,
        words: Sequence[str | os.PathLike[str]],
        *,
        environment: Mapping[str, str],
        cwd: Path | None,
        stdin: bytes = b"",
    ) -> tuple[int, bytes, bytes]:
        """Return the exit code, stdout and stderr of `gpucheck WORDS`."""
        kind = kind_of_server(words, environment)
        server = self._servers.get(kind) or self._servers.setdefault(kind, CommandServer(kind))
        request = {
            "words": [os.fspath(word) for word in words],
            "environment": dict(environment),
            "cwd": str(cwd or Path.cwd()),
        }
        return server.run(request, stdin)


class CommandServer:
    """Calls of `python -m gpucheck`, one after the other, each in a session of its own."""

    #: Processor time of all calls whose server lives: the system counts it for us only at its end.
    uncounted_cpu_s: ClassVar[float] = 0.0

    def __init__(self, kind: Kind) -> None:
        self._cpu_s = 0.0
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ}
        threads = {} if kind.threads is None else {BLAS_THREADS: kind.threads}
        module = [sys.executable, "-m", "tests.command_server"]
        self._process = subprocess.Popen(
            [*module, str(theirs.fileno()), "bench" if kind.measures else "others"],
            cwd=ROOT,
            env={**kept, **threads, "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()

    def close(self) -> None:
        """End it."""
        self._ours.close()  # it ends when nobody is there to ask
        self._process.wait()
        CommandServer.uncounted_cpu_s -= self._cpu_s

    def run(self, request: Mapping[str, Any], stdin: bytes) -> tuple[int, bytes, bytes]:
        """Return a call's exit code, stdout and stderr."""
        with contextlib.ExitStack() as descriptors:
            (read_in, write_in), (out, write_out), (err, write_err) = (os.pipe() for _ in range(3))
            for each in (out, err):
                descriptors.callback(os.close, each)
            os.write(write_in, stdin)
            os.close(write_in)
            theirs = [read_in, write_out, write_err]
            socket.send_fds(self._ours, [json.dumps(request).encode("utf-8")], theirs)
            for each in theirs:
                os.close(each)
            stdout, stderr = _read_all((out, err))
            ended = json.loads(self._ours.recv(LONGEST_MESSAGE_BYTES))
            self._cpu_s += ended["cpu_s"]
            CommandServer.uncounted_cpu_s += ended["cpu_s"]
        return ended["code"], stdout, stderr


def _read_all(descriptors: tuple[int, int]) -> tuple[bytes, bytes]:
    read: dict[int, list[bytes]] = {each: [] for each in descriptors}
    with selectors.DefaultSelector() as selector:
        for each in descriptors:
            selector.register(each, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                part = os.read(key.fd, 1 << 16)
                read[key.fd].append(part)
                if not part:
                    selector.unregister(key.fd)
    stdout, stderr = (b"".join(read[each]) for each in descriptors)
    return stdout, stderr


def import_everything() -> None:
    """Import what the commands import, but for NumPy, NVML and numba, and read their tables.

    The first two look at the environment, and numba is an extra.
    """
    for name in ("bench", "cli", "detect", "drivers", "inventory", "memlimit", "place", "report"):
        package = importlib.import_module(f"gpucheck.{name}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if (
                not found.name.endswith(("_child", "compiled_softmax"))
                and ".hook." not in found.name
            ):
                importlib.import_module(found.name)
    for name in ("rich.console", "rich.progress", "rich.table", "typer.main", "typer.core"):
        importlib.import_module(name)
    data = importlib.import_module("gpucheck.data")
    for path in data.FOLDER.glob("*.toml"):
        data.read_table(path.stem)


def become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Make this fork the process that the request describes."""
    os.setsid()
    for number, each in enumerate(descriptors):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    forked_children.look_for_libraries_in(os.environ.get("LD_LIBRARY_PATH", ""))
    time.tzset()
    words = request["words"]
    sys.argv = [str(ROOT / "gpucheck" / "__main__.py"), *words]
    sys.orig_argv = [sys.executable, "-m", "gpucheck", *words]
    given = request["environment"].get("PYTHONPATH")
    # The server's own are this checkout's folder, as where it began and as a module path.
    sys.path[:2] = [request["cwd"], *(given.split(os.pathsep) if given else [])]


def wait_for_a_call(connection: socket.socket) -> None:
    """Fork for each call and tell its code; return in the forks only."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, LONGEST_MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            connection.close()
            become(json.loads(message), descriptors)
            return
        for each in descriptors:
            os.close(each)
        _, status, usage = os.wait4(pid, 0)
        cpu_s = usage.ru_utime + usage.ru_stime
        code = os.waitstatus_to_exitcode(status)
        connection.send(json.dumps({"code": code, "cpu_s": cpu_s}).encode())


def serve(descriptor: int, *, measures: bool) -> None:
    """Serve calls until the other end is closed."""
    import gc

    # A fork that looks for garbage copies every page that it looks at.
    gc.disable()
    import_everything()
    children = forked_children.Children()
    numpy = forked_children.ImportedNumpy() if measures else None
    gc.freeze()
    wait_for_a_call(socket.socket(fileno=descriptor))
    children.install()
    if numpy is not None:
        numpy.install()
    hang_clock.install()
    from gpucheck.__main__ import main

    try:
        main()
    except SystemExit as ended:
        end(ended.code)
        raise


def end(code: object) -> None:
    """End this fork, but for what the interpreter frees at its end: that copies every page.

    Return if something else is to be said than a number, or stdout or stderr cannot be written.
    """
    if not isinstance(code, int):
        return
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as Python does
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):
        return
    os._exit(code)


if __name__ == "__main__":
    serve(int(sys.argv[1]), measures=sys.argv[2] == "bench")
