"""How commands are run, with real processes, real signals and a real terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpucheck.core import launch
from gpucheck.models.errors import CommandNotFoundError, LaunchError, NotExecutableError

DEADLINE_S = 30.0

#: Runs a command line the way the program does: `WAY`, then the command.
DRIVER = """
import os, sys
from gpucheck.core import launch
from gpucheck.models.errors import LaunchError
way, *command = sys.argv[1:]
try:
    if way == "replace":
        launch.replace(command, dict(os.environ))
    ticks = []
    on_tick = ticks.append if way == "supervise-ticking" else None
    sys.exit(launch.supervise(command, dict(os.environ), on_tick=on_tick, tick_s=0.01))
except LaunchError as error:
    print(error.message, file=sys.stderr)
    sys.exit(error.exit_code)
"""

#: A child that writes one line for each signal it gets, and ends on SIGTERM with code 7.
COUNTING_CHILD = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, (signal.Signals(number).name + "\\n").encode())
    if number == signal.SIGTERM:
        os._exit(7)
for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGCONT"):
    signal.signal(getattr(signal, name), note)
os.write(1, b"ready %d\\n" % os.getpid())
while True:
    time.sleep(60)
"""

WAYS = ["replace", "supervise", "supervise-ticking"]
BESIDE = ["supervise", "supervise-ticking"]


def python(source: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(source), *arguments]


def driver(way: str, command: list[str]) -> list[str]:
    return python(DRIVER, way, *command)


def environment(**extra: str) -> dict[str, str]:
    root = str(Path(launch.__file__).parents[2])
    return {"PATH": os.environ["PATH"], "PYTHONPATH": root, "LANG": "C.UTF-8", **extra}


def finish(way: str, command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    defaults: dict[str, object] = {"env": environment(), "capture_output": True}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        driver(way, command),
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **{**defaults, **options},
    )


class Session:
    """A running driver whose output is read line by line."""

    def __init__(self, way: str, command: list[str], **options: object) -> None:
        self.process = subprocess.Popen(  # type: ignore[call-overload]
            driver(way, command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment(),
            text=True,
            start_new_session=True,
            **options,
        )

    def line(self) -> str:
        return str(self.process.stdout.readline()).strip()

    def rest(self) -> list[str]:
        return str(self.process.stdout.read()).split()

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self) -> int:
        return int(self.process.wait(DEADLINE_S))


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    opened: list[Session] = []

    def start(way: str, command: list[str], **options: object) -> Session:
        opened.append(Session(way, command, **options))
        return opened[-1]

    yield start
    for each in opened:
        if each.process.poll() is None:
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.stdout.close()
        each.process.wait(DEADLINE_S)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class TestSplitCommand:
    def test_without_dashes_there_is_no_command(self) -> None:
        assert launch.split_command(["place", "/gpu:0"]) == (["place", "/gpu:0"], None)

    def test_the_first_bare_dashes_split(self) -> None:
        own, command = launch.split_command(["place", "--", "echo", "--", "-x"])

        assert own == ["place"]
        assert command == ["echo", "--", "-x"]

    def test_dashes_with_more_behind_them_do_not_split(self) -> None:
        assert launch.split_command(["--json", "--=x"]) == (["--json", "--=x"], None)

    def test_nothing_after_the_dashes_is_wrong(self) -> None:
        with pytest.raises(LaunchError, match="no command after") as caught:
            launch.split_command(["memlimit", "30%", "--"])

        assert caught.value.exit_code == 125


@pytest.mark.parametrize("way", WAYS)
class TestBothWays:
    @pytest.mark.parametrize("code", [0, 1, 3, 125, 255])
    def test_the_exit_code_is_the_commands(self, way: str, code: int) -> None:
        assert finish(way, ["sh", "-c", f"exit {code}"]).returncode == code

    def test_streams_pass_through(self, way: str) -> None:
        done = finish(way, ["sh", "-c", "cat; echo err >&2"], input="in and out")

        assert done.stdout == "in and out"
        assert done.stderr == "err\n"

    def test_what_was_printed_before_comes_first(self, way: str) -> None:
        source = "import sys; sys.stdout.write('before '); " + DRIVER.strip().replace(
            "\nimport", "import", 1
        )
        done = subprocess.run(
            python(source, way, "echo", "after"),
            env=environment(),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

        assert done.stdout == "before after\n"

    def test_arguments_are_not_touched_by_a_shell(self, way: str) -> None:
        odd = ["$HOME", "a b", "", "*", "\udcff", "--"]

        done = finish(way, python("import sys; print(ascii(sys.argv[1:]))", *odd))

        assert done.stdout.strip() == ascii(odd)

    def test_path_is_that_of_the_new_environment(self, way: str, tmp_path: Path) -> None:
        tool = tmp_path / "only-here"
        tool.write_text("#!/bin/sh\necho found\n")
        tool.chmod(0o755)

        done = finish(way, ["only-here"], env=environment(PATH=f"{tmp_path}:/usr/bin:/bin"))

        assert done.stdout == "found\n"

    def test_a_file_that_cannot_run_is_passed_over_in_path(self, way: str, tmp_path: Path) -> None:
        for name, mode in (("first", 0o644), ("second", 0o755)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "tool").write_text(f"#!/bin/sh\necho {name}\n")
            (tmp_path / name / "tool").chmod(mode)
        search = f"{tmp_path}/first:{tmp_path}/second:/usr/bin:/bin"

        assert finish(way, ["tool"], env=environment(PATH=search)).stdout == "second\n"

    def test_the_command_has_default_signals_and_no_mask(self, way: str) -> None:
        done = finish(way, ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])

        values = {line.split(":")[0]: int(line.split()[1], 16) for line in done.stdout.splitlines()}
        bits = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD)
        assert values["SigBlk"] == 0
        assert all(values["SigIgn"] & (1 << (number - 1)) == 0 for number in bits)

    def test_a_mask_that_the_caller_set_is_kept(self, way: str) -> None:
        def block() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

        done = finish(way, ["grep", "^SigBlk", "/proc/self/status"], preexec_fn=block)

        assert int(done.stdout.split()[1], 16) == 1 << (signal.SIGUSR2 - 1)

    def test_an_interrupt_ignored_by_the_caller_stays_ignored(self, way: str) -> None:
        def ignore() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

        done = finish(way, ["grep", "^SigIgn", "/proc/self/status"], preexec_fn=ignore)

        assert int(done.stdout.split()[1], 16) & (1 << (signal.SIGINT - 1))

    def test_terminated_alone_the_command_gets_the_signal(
        self, way: str, session: Callable[..., Session]
    ) -> None:
        running = session(way, python(COUNTING_CHILD))
        assert running.line().startswith("ready")

        for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT):
            running.send(number)
            assert running.line() == number.name
        running.send(signal.SIGTERM)

        assert running.rest() == ["SIGTERM"]
        assert running.wait() == 7

    def test_a_signal_to_the_whole_group_arrives_once(
        self, way: str, session: Callable[..., Session]
    ) -> None:
        running = session(way, python(COUNTING_CHILD))
        assert running.line().startswith("ready")

        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGINT):
            os.killpg(running.process.pid, number)
            assert running.line() == number.name
        running.send(signal.SIGTERM)

        assert running.rest() == ["SIGTERM"]
        assert running.wait() == 7


class TestLaunchFailures:
    @pytest.fixture(params=[launch.replace, launch.supervise], ids=["replace", "supervise"])
    def start(self, request: pytest.FixtureRequest) -> Callable[..., object]:
        return request.param  # type: ignore[no-any-return]

    @pytest.mark.parametrize("name", ["no-such-command-here", "./no-such-file", "", "/no/such"])
    def test_what_does_not_exist(self, start: Callable[..., object], name: str) -> None:
        with pytest.raises(CommandNotFoundError) as caught:
            start([name], {"PATH": "/usr/bin:/bin"})

        assert caught.value.exit_code == 127

    def test_nothing_is_found_without_a_directory_in_path(
        self, start: Callable[..., object], tmp_path: Path
    ) -> None:
        file = tmp_path / "file"
        file.touch()

        with pytest.raises(CommandNotFoundError):
            start(["true"], {"PATH": f"{file}:{tmp_path}/missing"})

    def test_a_file_without_execute_permission(
        self, start: Callable[..., object], tmp_path: Path
    ) -> None:
        file = tmp_path / "tool"
        file.write_text("#!/bin/sh\n")

        for name, path in ((str(file), "/bin"), ("tool", str(tmp_path))):
            with pytest.raises(NotExecutableError, match="Permission denied") as caught:
                start([name], {"PATH": path})
            assert caught.value.exit_code == 126

    @pytest.mark.parametrize("content", [b"", b"not a program", b"\x7fELF broken"])
    def test_a_file_that_is_no_program_is_not_given_to_a_shell(
        self, start: Callable[..., object], tmp_path: Path, content: bytes
    ) -> None:
        file = tmp_path / "tool"
        file.write_bytes(content)
        file.chmod(0o755)

        with pytest.raises(NotExecutableError):
            start([str(file)], {"PATH": "/bin"})

    def test_a_directory(self, start: Callable[..., object], tmp_path: Path) -> None:
        with pytest.raises(NotExecutableError):
            start([str(tmp_path)], {})

    def test_a_script_whose_interpreter_is_missing(
        self, start: Callable[..., object], tmp_path: Path
    ) -> None:
        file = tmp_path / "tool"
        file.write_text("#!/no/such/interpreter\n")
        file.chmod(0o755)

        with pytest.raises(CommandNotFoundError, match="interpreter"):
            start([str(file)], {})

    @pytest.mark.parametrize(
        ("command", "variables"),
        [(["true", "a\0b"], {}), (["true"], {"A=B": "c"}), (["true"], {"A": "\0"}), ([], {})],
    )
    def test_what_no_system_call_would_take(
        self, start: Callable[..., object], command: list[str], variables: dict[str, str]
    ) -> None:
        with pytest.raises(LaunchError) as caught:
            start(command, {"PATH": "/usr/bin:/bin", **variables})

        assert caught.value.exit_code == 125

    def test_a_descriptor_that_is_not_open(self, start: Callable[..., object]) -> None:
        with pytest.raises(LaunchError, match="not open"):
            start(["true"], {"PATH": "/usr/bin:/bin"}, keep_descriptors=[987])

    def test_afterwards_everything_is_as_before(self, start: Callable[..., object]) -> None:
        reader, writer = os.pipe()
        os.set_inheritable(reader, True)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, set())
        handlers = [signal.getsignal(n) for n in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT)]

        with pytest.raises(CommandNotFoundError):
            start(["/no/such"], {}, keep_descriptors=[writer])

        assert os.get_inheritable(reader)
        assert not os.get_inheritable(writer)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, set()) == mask
        after = [signal.getsignal(n) for n in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGINT)]
        assert after == handlers
        os.close(reader)
        os.close(writer)

    def test_a_message_shows_control_characters(self, start: Callable[..., object]) -> None:
        with pytest.raises(CommandNotFoundError) as caught:
            start(["\x1b[31m\n"], {"PATH": "/bin"})

        assert caught.value.message.isprintable()


@pytest.mark.parametrize("way", ["replace", "supervise"])
def test_only_the_kept_descriptors_reach_the_command(way: str) -> None:
    source = f"""
    import os, sys
    from gpucheck.core import launch
    kept, leaked = os.open("/dev/null", 0), os.open("/dev/null", 0)
    os.set_inheritable(leaked, True)
    os.environ.update(KEPT=str(kept), LEAKED=str(leaked))
    code = launch.{way}(sys.argv[1:], dict(os.environ), keep_descriptors=[kept])
    sys.exit(code)
    """
    listing = "test -e /proc/self/fd/$KEPT && ! test -e /proc/self/fd/$LEAKED && echo right"

    done = subprocess.run(
        python(source, "sh", "-c", listing),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert done.stdout == "right\n"


def test_inherited_descriptors_are_those_that_an_exec_hands_on() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)

    inherited = launch.inherited_descriptors()

    os.close(reader)
    os.close(writer)
    assert reader in inherited
    assert writer not in inherited
    assert inherited.isdisjoint({0, 1, 2})


def test_replace_keeps_the_process_id() -> None:
    process = subprocess.Popen(
        driver("replace", ["sh", "-c", "echo $$"]),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    output, _ = process.communicate(timeout=DEADLINE_S)

    assert int(output) == process.pid


class TestSupervise:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
    def test_a_child_ended_by_a_signal(self, number: signal.Signals) -> None:
        done = finish("supervise", ["sh", "-c", f"ulimit -c 0; kill -{number.value} $$"])

        assert done.returncode == 128 + number

    def test_the_child_ends_when_the_reader_of_its_pipe_has_gone(self) -> None:
        pipe = subprocess.Popen(
            driver("supervise", ["sh", "-c", "yes; exit $?"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        assert pipe.stdout is not None
        pipe.stdout.readline()
        pipe.stdout.close()

        assert pipe.wait(DEADLINE_S) == 128 + signal.SIGPIPE

    def test_ticks_come_with_the_childs_process_id(self) -> None:
        seen: list[int] = []

        code = launch.supervise(
            ["sleep", "0.3"], dict(os.environ), on_tick=seen.append, tick_s=0.01
        )

        assert code == 0
        assert len(set(seen)) == 1
        assert seen[0] not in (0, os.getpid())

    def test_a_failing_tick_waits_for_the_child_and_is_raised_once(self, tmp_path: Path) -> None:
        calls: list[int] = []

        def fail(pid: int) -> None:
            calls.append(pid)
            raise RuntimeError("broken watcher")

        with pytest.raises(RuntimeError, match="broken watcher"):
            launch.supervise(
                ["sh", "-c", f"sleep 0.2; touch {tmp_path}/ended"],
                dict(os.environ),
                on_tick=fail,
                tick_s=0.01,
            )

        assert (tmp_path / "ended").exists()
        assert len(calls) == 1

    def test_a_tick_may_end_the_child(self) -> None:
        code = launch.supervise(
            ["sleep", "60"],
            dict(os.environ),
            on_tick=lambda pid: os.kill(pid, signal.SIGTERM),
            tick_s=0.01,
        )

        assert code == 128 + signal.SIGTERM

    def test_the_child_stays_in_our_process_group(self) -> None:
        show = python("import os; print(os.getpgrp())")

        process = subprocess.Popen(
            driver("supervise", show),
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        output, _ = process.communicate(timeout=DEADLINE_S)

        assert int(output) == process.pid

    def test_a_child_that_signals_its_own_group_gets_it_once(
        self, session: Callable[..., Session]
    ) -> None:
        source = COUNTING_CHILD.replace("while True:", "os.kill(0, signal.SIGUSR1)\nwhile True:")
        running = session("supervise", python(source))
        assert running.line().startswith("ready")
        assert running.line() == "SIGUSR1"

        running.send(signal.SIGTERM)

        assert running.rest() == ["SIGTERM"]

    def test_stopped_and_continued_alone_is_passed_on(
        self, session: Callable[..., Session]
    ) -> None:
        running = session("supervise", python(COUNTING_CHILD))
        child = int(running.line().split()[1])

        os.kill(child, signal.SIGSTOP)
        eventually(lambda: state_of(child) == "T")
        running.send(signal.SIGCONT)

        assert running.line() == "SIGCONT"
        running.send(signal.SIGTERM)
        assert running.rest() == ["SIGTERM"]
        assert running.wait() == 7

    def test_no_process_is_left_behind(self, session: Callable[..., Session]) -> None:
        running = session("supervise", ["sh", "-c", "echo here; cat /proc/$PPID/task/*/children"])
        assert running.line() == "here"
        children = [int(pid) for pid in running.rest()]

        running.wait()

        assert len(children) == 2
        assert not any(Path(f"/proc/{pid}").exists() for pid in children)

    def test_killed_itself_it_leaves_no_witness(self, session: Callable[..., Session]) -> None:
        command = ["sh", "-c", "cat /proc/$PPID/task/*/children; echo; exec sleep 2"]
        running = session("supervise", command)
        children = [int(pid) for pid in running.line().split()]

        running.send(signal.SIGKILL)

        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))

    def test_an_exit_code_is_known_although_the_caller_ignores_its_children(self) -> None:
        def ignore() -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        assert finish("supervise", ["sh", "-c", "exit 5"], preexec_fn=ignore).returncode == 5


#: A job-control shell in small: runs a command in a foreground group of its own on the terminal
#: (its standard input) and reports what happens to the job on standard error.
SMALL_SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
def say(text):
    os.write(2, (text + "\\n").encode())
terminal = os.open(sys.argv[1], os.O_RDWR)
say("open")
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(terminal, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    for fd in (0, 1):
        os.dup2(terminal, fd)
    os.execv(sys.argv[2], sys.argv[2:])
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        say("ended %d" % os.waitstatus_to_exitcode(status))
        break
    say("stopped " + signal.Signals(os.WSTOPSIG(status)).name)
    os.tcsetpgrp(terminal, os.getpgrp())
    sys.stdin.readline()
    os.tcsetpgrp(terminal, job)
    os.killpg(job, signal.SIGCONT)
"""


class Terminal:
    """A command on a terminal of its own, below a small shell with job control."""

    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        name = os.ttyname(theirs)
        self.shell = subprocess.Popen(
            python(SMALL_SHELL, name, *command),
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
            start_new_session=True,
        )
        self._seen = ""
        assert self.job_event() == "open"
        os.close(theirs)

    def type(self, key: bytes) -> None:
        os.write(self._ours, key)

    def until(self, text: str, *, times: int = 1) -> None:
        while self._seen.count(text) < times:
            self._seen += os.read(self._ours, 4096).decode()

    def rest(self) -> str:
        try:
            while part := os.read(self._ours, 4096).decode():
                self._seen += part
        except OSError:  # a terminal without any other end reports EIO
            pass
        return self._seen

    def job_event(self) -> str:
        assert self.shell.stderr is not None
        return self.shell.stderr.readline().strip()

    def foreground(self) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write("\n")
        self.shell.stdin.flush()

    def close(self) -> None:
        os.close(self._ours)
        if self.shell.poll() is None:
            self.shell.kill()
        self.shell.communicate(timeout=DEADLINE_S)


@pytest.fixture
def terminal() -> Iterator[Callable[[list[str]], Terminal]]:
    opened: list[Terminal] = []

    def start(command: list[str]) -> Terminal:
        opened.append(Terminal(command))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize("way", WAYS)
class TestOnATerminal:
    def test_an_interrupt_from_the_keyboard_arrives_once(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        screen = terminal(driver(way, python(COUNTING_CHILD)))
        screen.until("ready")

        screen.type(b"\x03")
        screen.until("SIGINT")
        screen.type(b"\x1c")
        screen.until("SIGQUIT")
        os.kill(self.child(screen), signal.SIGTERM)

        assert screen.job_event() == "ended 7"
        assert screen.rest().count("SIGINT") == 1
        assert screen.rest().count("SIGQUIT") == 1

    def test_a_child_that_dies_of_the_interrupt(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        screen = terminal(driver(way, ["sh", "-c", "echo ready; exec sleep 60"]))
        screen.until("ready")

        screen.type(b"\x03")

        expected = f"ended {-signal.SIGINT}" if way == "replace" else f"ended {128 + signal.SIGINT}"
        assert screen.job_event() == expected

    def test_stopped_from_the_keyboard_and_continued(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        screen = terminal(driver(way, python(COUNTING_CHILD)))
        screen.until("ready")

        for times in (1, 2, 3):
            screen.type(b"\x1a")
            assert screen.job_event() == "stopped SIGTSTP"
            eventually(lambda: state_of(self.child(screen)) == "T")
            screen.foreground()
            # A stop discards a continuation that the program has not seen yet.
            screen.until("SIGCONT", times=times)
        os.kill(self.child(screen), signal.SIGTERM)

        assert screen.job_event() == "ended 7"
        assert screen.rest().count("SIGCONT") == 3

    def test_a_program_that_stops_itself_after_tidying_the_screen(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        source = """
        import os, signal
        def leave(number, frame):
            os.write(1, b"tidied\\n")
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            os.write(1, b"back\\n")
            os._exit(4)
        signal.signal(signal.SIGTSTP, leave)
        os.write(1, b"ready\\n")
        while True:
            signal.pause()
        """
        screen = terminal(driver(way, python(source)))
        screen.until("ready")

        screen.type(b"\x1a")

        assert screen.job_event() == "stopped SIGTSTP"
        screen.foreground()
        assert screen.job_event() == "ended 4"
        assert screen.rest().count("tidied") == 1

    def test_a_program_that_ignores_the_stop_key_goes_on(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        source = """
        import signal, sys
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        print("ready", flush=True)
        sys.exit(len(sys.stdin.readline().strip()))
        """
        screen = terminal(driver(way, python(source)))
        screen.until("ready")

        screen.type(b"\x1a")
        screen.type(b"abc\n")

        assert screen.job_event() == "ended 3"

    def test_the_childs_terminal_is_its_own(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        show = "import os; print(os.isatty(0), os.isatty(1), os.tcgetpgrp(0) == os.getpgrp())"

        screen = terminal(driver(way, python(show)))

        assert screen.job_event() == "ended 0"
        assert "True True True" in screen.rest()

    @staticmethod
    def child(screen: Terminal) -> int:
        screen.until("\n")
        return int(screen._seen.split("ready ")[1].split()[0])
