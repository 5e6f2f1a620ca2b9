"""The whole program against pretended driver libraries: every fixture here is about that."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_server import CommandServers, can_serve
from tests.conftest import scrubbed_environment
from tests.end_to_end.documents import assert_document, only_document
from tests.end_to_end.sweeping import Forks
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import Machine, load_machine
from tests.fakes.tree import write_tree

Pretend = Callable[..., dict[str, str]]


@pytest.fixture(scope="session")
def pretend(
    c_compiler: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., dict[str, str]]:
    """Return the variables under which programs see a machine: `pretend("h100x8", gpus=64)`.

    Its /proc and /sys are seen as well, unless `tree=False`. `fail`, `hang` and `missing` are
    faults as in tests/fakes/README.md.
    """
    known: dict[str, dict[str, str]] = {}

    def environment(
        machine: str | Machine, *, gpus: int | None = None, tree: bool = True, **faults: list[str]
    ) -> dict[str, str]:
        found = load_machine(machine) if isinstance(machine, str) else machine
        if gpus is not None:
            found = found.with_gpus(gpus)
        found = found.broken(**faults)
        key = f"{tree} {found!r}"
        if key not in known:
            folder = tmp_path_factory.mktemp("machine")
            variables = build_libraries(found, folder / "libraries")
            root = {"GPUCHECK_ROOT": str(write_tree(found, folder / "root"))} if tree else {}
            known[key] = {**variables, **root}
        return dict(known[key])

    return environment


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run of gpucheck ended; stdout and stderr are bytes, as a pipe gets them."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Stdout as UTF-8."""
        return self.stdout.decode("utf-8")

    @property
    def said(self) -> str:
        """Stderr as UTF-8."""
        return self.stderr.decode("utf-8")

    def document(self, name: str = "list") -> Any:
        """Return the one document on stdout, checked in every way that holds for all."""
        assert "Traceback" not in self.said
        found = only_document(self.text)
        assert_document(found, name, self.code)
        return found


class Program:
    """Runs `python -m gpucheck` as a user's shell would, in an environment that is its own."""

    #: Before the module that runs, for a test that must change the program.
    entry: tuple[str, ...] = ("-m", "gpucheck")

    def __init__(self, servers: CommandServers | None = None) -> None:
        self._servers = servers

    def start(
        self, *arguments: str | os.PathLike[str], env: dict[str, str], **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start it in a session of its own, with pipes for stdout and stderr."""
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
        }
        return subprocess.Popen(
            [sys.executable, *self.entry, *arguments],
            env=scrubbed_environment(env),
            **(settings | options),
        )

    def __call__(
        self,
        *arguments: str | os.PathLike[str],
        env: dict[str, str],
        cwd: Path | None = None,
        **options: Any,
    ) -> Ended:
        """Run it to its end.

        It is a fork of the command server, unless its environment or options ask for a real start.
        """
        environment = scrubbed_environment(env)
        if self._servers is not None and not options and can_serve(environment, b""):
            code, out, err = self._servers.run(arguments, environment=environment, cwd=cwd)
            return Ended(code=code, stdout=out, stderr=err)
        options["cwd"] = cwd
        with self.start(*arguments, env=env, **options) as process:
            stdout, stderr = process.communicate()
        return Ended(code=process.returncode, stdout=stdout or b"", stderr=stderr or b"")


def end_session(leader: int) -> None:
    """Kill every process of the session that `leader` began, also when the leader is gone."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture(scope="session")
def program(command_servers: CommandServers) -> Program:
    """Return gpucheck as a user runs it."""
    return Program(command_servers)


class ForkServers(contextlib.ExitStack):
    """One server for each set of symbols that the libraries lack."""

    def __init__(self, pretend: Pretend, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self._pretend = pretend
        self._folders = folders
        self._servers: dict[tuple[str, ...], Forks] = {}

    def on(self, machine: Machine) -> Forks:
        """Return the server whose libraries have the symbols of this machine's."""
        missing = machine.driver.missing
        if missing not in self._servers:
            environment = self._pretend(machine, tree=False)
            server = Forks(environment, self._folders.mktemp("forks"))
            self._servers[missing] = self.enter_context(server)
        return self._servers[missing]


@pytest.fixture(scope="session")
def forks(pretend: Pretend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServers]:
    """Return the probe children by the hundred: `forks.on(machine).nvml(machine.broken(...))`."""
    with ForkServers(pretend, tmp_path_factory) as servers:
        yield servers


@pytest.fixture
def call_log(tmp_path: Path) -> Path:
    """Return the path for FAKE_CALL_LOG."""
    return tmp_path / "calls.log"
