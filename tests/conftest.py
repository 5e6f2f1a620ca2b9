"""What every test may use: the program as a process, a C compiler, and a GPU or a skip."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.runner import runtestprotocol

from tests.command_server import CommandServer, CommandServers, can_serve
from tests.hang_watch import HangWatch, wait_until
from tests.sampling import examples

#: All that a command under test inherits; CUDA_*, NO_COLOR, COLUMNS and the like must not leak in.
INHERITED_VARIABLES = ("HOME", "PATH", "TMPDIR")

#: What changes how a terminal is written to, which GPUs are seen, or how gpucheck behaves.
LEAKING = re.compile(
    r"FORCE_COLOR|NO_COLOR|CLICOLOR(_FORCE)?|COLUMNS|LINES|(COLOR)?TERM|TTY_\w+|JUPYTER_\w+|_TYPER_\w+"
    r"|(GPUCHECK|CUDA|NVIDIA|CUPY|XLA|TF|PYTORCH|FAKE)_\w+"
)

#: Which Pythons have frameworks to hold ours against: the tests' own options, see CONTRIBUTING.
ASKED_OF_THE_TESTS = re.compile(r"GPUCHECK_(\w+_PYTHONS?|TEST_\w+)")

#: Source: linux/prctl.h and linux/capability.h.
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2

#: Whole folders are `slow`, since they start processes or compile, but for these files of theirs:
#: one look at each command and at what the documents show, and the files of a pretended machine.
SLOW_FOLDERS = ("emulator", "end_to_end", "fakes")
QUICK_FILES = (
    "test_documents.py", "test_every_command.py", "test_machine.py", "test_tables.py",
    "test_tree.py",
)  # fmt: skip
#: Elsewhere a test that takes more of a processor than this is named at the end of a run of CI, or
#: with --durations: it wants the mark, or less work. It is no failure, since machines differ.
MOST_CPU_S = 2.0

HANG_WATCH = pytest.StashKey[HangWatch]()

#: The whole suite writes a tenth of it.
LEAST_MEMORY_BYTES = 4 << 30

#: More workers of a parallel run take memory and are hardly faster: many tests start processes.
MOST_WORKERS = 4


# A busy machine is no error: no example has a deadline, and slow generating says nothing. CI looks
# at the same examples each time, so that a change is judged by what it changed; elsewhere every
# run looks at new ones.
hypothesis.settings.register_profile(
    "gpucheck",
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
hypothesis.settings.load_profile("gpucheck")


def use_memory_for_files() -> None:
    """Let temporary folders be in memory: a pretended machine is hundreds of small files.

    TMPDIR and --basetemp decide where they are given.
    """
    memory = Path("/dev/shm")
    with contextlib.suppress(OSError):
        found = os.statvfs(memory)
        is_wide = found.f_bavail * found.f_frsize >= LEAST_MEMORY_BYTES
        if is_wide and not found.f_flag & os.ST_NOEXEC and "TMPDIR" not in os.environ:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


use_memory_for_files()


# Whoever runs the tests under nohup, or in the background of a script, ignores these signals, and
# every process below would inherit that: the tests of signals need them as a terminal gives them.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a process ended and what it wrote."""

    stdout: str
    stderr: str
    code: int

    @property
    def document(self) -> Any:
        """The one JSON document on stdout; anything beside it is an error."""
        return json.loads(self.stdout)


def scrubbed_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment that is the same on every machine, with `extra` on top.

    The active Python is the one that runs the tests, whatever PATH leads to.
    """
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return {**kept, "VIRTUAL_ENV": sys.prefix, "LANG": "C.UTF-8", **(extra or {})}


def drop_root_rights() -> None:
    """Take from the program that is executed next what lets root pass over permissions.

    For `preexec_fn`. Other users have no such rights and nothing to lose.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) and os.geteuid() == 0:
            raise OSError(ctypes.get_errno(), "root's rights cannot be dropped here")


@pytest.fixture(autouse=True, scope="session", name="leaking_variables")
def _leaking_variables() -> Iterator[dict[str, str]]:
    """Take away what would change the tests themselves, and return it: tests/gpu needs its own."""
    leaking = {
        name: value
        for name, value in os.environ.items()
        if LEAKING.fullmatch(name) and not ASKED_OF_THE_TESTS.fullmatch(name)
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in leaking:
            patch.delenv(name)
        yield leaking


@pytest.fixture(scope="session")
def command_servers() -> Iterator[CommandServers]:
    """Return what runs `gpucheck ARGUMENTS` in a fork of a process that has imported it."""
    with CommandServers() as servers:
        yield servers


@pytest.fixture(scope="session")
def gpucheck_command(command_servers: CommandServers) -> Callable[..., Finished]:
    """Run `gpucheck ARGUMENTS` as a process: `gpucheck_command("list", "--json", env={...})`.

    It is a fork that needs no start of its own, unless `real` or the environment asks for one.
    """

    def run(
        *arguments: str | os.PathLike[str],
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        cwd: Path | None = None,
        real: bool = False,
    ) -> Finished:
        environment = scrubbed_environment(env)
        if not real and can_serve(environment, stdin.encode()):
            code, stdout, stderr = command_servers.run(
                arguments,
                environment=environment,
                cwd=cwd,
                stdin=stdin.encode(),
            )
            return Finished(stdout=stdout.decode(), stderr=stderr.decode(), code=code)
        finished = subprocess.run(
            [sys.executable, "-m", "gpucheck", *arguments],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            env=environment,
            cwd=cwd,
            check=False,
        )
        return Finished(stdout=finished.stdout, stderr=finished.stderr, code=finished.returncode)

    return run


@pytest.fixture(scope="session")
def c_compiler() -> str:
    """Return the system's C compiler; CI must have one, elsewhere its tests are skipped."""
    found = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        reason = "no C compiler: the fake driver libraries cannot be built"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Let a worker send one message for a test that passed, not six: that costs as much as pytest.

    Those of setup and teardown are for the JUnit file, the durations and `-v`.
    """
    option = item.config.option
    asked = option.xmlpath or option.durations or option.verbose > 0
    if asked or "PYTEST_XDIST_WORKER" not in os.environ:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Let people debug a test for as long as they like."""
    if HANG_WATCH in config.stash:
        config.stash[HANG_WATCH].end()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the watch for tests that hang."""
    if HANG_WATCH in session.config.stash:
        session.config.stash[HANG_WATCH].close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Watch a test, and note how much of a processor the fixtures took that were made for it."""
    stash = item.config.stash
    if HANG_WATCH not in stash:
        stash[HANG_WATCH] = HangWatch(stash[fault_handler_stderr_fd_key])
    stash[HANG_WATCH].begin()
    yield from noting_cpu(item, "setup_cpu_s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note how much of a processor a test took, with its children and its calls of the command."""
    yield from noting_cpu(item, "cpu_s")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """End the watch over a test after its fixtures: a worker may wait for others then."""
    try:
        yield
    finally:
        item.config.stash[HANG_WATCH].end()


def noting_cpu(item: pytest.Item, name: str) -> Iterator[None]:
    """Keep the processor time of what is done meanwhile as a property of a test."""
    before_s = cpu_s()
    try:
        yield
    finally:
        item.user_properties.append((name, round(cpu_s() - before_s, 3)))


def cpu_s() -> float:
    """Return the processor time of this process, its children and the command servers' calls."""
    return sum(os.times()[:4]) + CommandServer.uncounted_cpu_s


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line each how much was left out, and what took long if that was asked."""
    stats, option = terminalreporter.stats, terminalreporter.config.option
    reasons = [str(report.longrepr) for report in stats.get("skipped", [])]
    if reasons and "s" not in terminalreporter.reportchars:
        terminalreporter.write_line(
            f"{len(reasons)} skipped: they need a GPU or an extra (-rs lists them)"
        )
    count = sum("no C compiler" in reason or "no C++ compiler" in reason for reason in reasons)
    if count:
        terminalreporter.write_line(
            f"{count} tests were left out: there is no compiler for the pretended drivers and the "
            "emulated kernels. Install gcc and g++ (build-essential), and run them again.",
            yellow=True,
        )
    asked = option.durations is not None or os.environ.get("CI") == "true"
    for report in stats.get("passed", []) if asked else ():
        taken_s = dict(report.user_properties).get("cpu_s", 0.0)
        if taken_s > MOST_CPU_S and "slow" not in report.keywords:
            terminalreporter.write_line(
                f"{report.nodeid} took {taken_s} s of a processor: mark it slow, or do less",
                yellow=True,
            )


def has_gpu() -> bool:
    """Return whether there is an NVIDIA device node, or a pretended GPU to rehearse on."""
    is_pretended = "FAKE_MACHINE_FILE" in os.environ
    return is_pretended or any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Share the suite out to the cores, as `-n 2 --dist worksteal` does.

    Named files, `-k`, a debugger and what measures a GPU go on in one process; so does `-n 0`.
    """
    option = config.option
    everything = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    everything |= any(Path(name).is_dir() for name in config.args)
    chosen = option.markexpr == "gpu" or option.keyword or option.collectonly
    watched = option.usepdb or option.capture == "no" or "UPDATE_SNAPSHOTS" in os.environ
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    if not everything or chosen or watched or is_worker or has_gpu():
        return
    if config.pluginmanager.hasplugin("xdist") and option.numprocesses is None:
        cores = len(os.sched_getaffinity(0))
        if cores > 1:
            # One more than cores, since tests wait for processes and deadlines.
            option.numprocesses = min(cores + 1, MOST_WORKERS)
            option.dist = "worksteal"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the bytecode of the tests, and let each worker compile another part of them first.

    To rewrite the assertions of all tests takes twice as long as the rest of collecting them.
    """
    cache = getattr(config, "cache", None)
    if sys.dont_write_bytecode and cache is not None:  # the source folders stay clean
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(cache.mkdir("bytecode"))
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # workers are started with this environment
    worker = getattr(config, "workerinput", None)
    if worker is not None and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        files = sorted(config.rootpath.joinpath("tests").rglob("test_*.py"))
        first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        config.args[:] = map(str, files[first:] + files[:first])


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among the tests: they live to the end, and are most of all objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def is_slow(path: Path) -> bool:
    """Return whether all tests of a file are slow."""
    folder, name = path.parent.name, path.name
    return folder in SLOW_FOLDERS and name.startswith("test_") and name not in QUICK_FILES


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files that `-m "not slow"` leaves out whole."""
    return (config.option.markexpr == "not slow" and is_slow(collection_path)) or None


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole folders `slow`, and skip tests marked `gpu` where there is no NVIDIA device."""
    items.sort(key=lambda item: item.path)  # each worker has collected in an order of its own
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    if has_gpu():
        return
    skip = pytest.mark.skip(reason="no NVIDIA GPU: neither /dev/nvidia[0-9]* nor /dev/dxg exists")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)


@pytest.fixture
def children() -> Callable[[], set[str]]:
    """Return a function that lists the living child processes started during the test.

    Those that were killed get a moment to die.
    """
    before = _living()

    def left_over() -> set[str]:
        wait_until(lambda: _living() <= before)
        return set()

    return left_over


def _living() -> set[str]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread or a child that has just ended
            for pid in (task / "children").read_text().split():
                state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
                # A zombie is dead; only its exit status has not been collected.
                found |= {pid} - ({pid} if state == "Z" else set())
    return found
