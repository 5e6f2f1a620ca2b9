"""Start of commands, with real processes and real signals."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpucheck.drivers.child import inherited_descriptors
from gpucheck.place.exec import (
    environment_before,
    exec_command,
    only_inheritable,
    split_command,
    start_first,
    supervise,
)
from gpucheck.report.errors import CommandNotFoundError, LaunchError, NotExecutableError
from tests.place.command_driver import (
    COUNTING_CHILD,
    DRIVER,
    WAYS,
    Session,
    driver,
    environment,
    finish,
    python,
    sessions,
)


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    with sessions() as start:
        yield start


class TestSplitCommand:
    def test_without_dashes_there_is_no_command(self) -> None:
        assert split_command(["place", "/gpu:0"]) == (["place", "/gpu:0"], None)

    def test_the_first_bare_dashes_split(self) -> None:
        own, command = split_command(["place", "--", "echo", "--", "-x"])

        assert own == ["place"]
        assert command == ["echo", "--", "-x"]

    def test_dashes_with_more_behind_them_do_not_split(self) -> None:
        assert split_command(["--json", "--=x"]) == (["--json", "--=x"], None)

    def test_nothing_after_the_dashes_is_wrong(self) -> None:
        with pytest.raises(LaunchError, match="no command after") as caught:
            split_command(["memlimit", "30%", "--"])

        assert caught.value.exit_code == 125


@pytest.mark.parametrize("way", WAYS)
class TestBothWays:
    @pytest.mark.parametrize("code", [0, 3, 255])
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

    @pytest.mark.parametrize(
        ("first", "mode"),
        [("#!/bin/sh\necho first\n", 0o644), ("#!/no/such/interpreter\n", 0o755), ("", 0o755)],
        ids=["no-permission", "no-interpreter", "no-program"],
    )
    def test_a_file_that_cannot_run_is_passed_over_in_path(
        self, way: str, tmp_path: Path, first: str, mode: int
    ) -> None:
        second = "#!/bin/sh\necho second\n"
        for name, text, its_mode in (("first", first, mode), ("second", second, 0o755)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "tool").write_text(text)
            (tmp_path / name / "tool").chmod(its_mode)
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


class TestFailures:
    @pytest.fixture(params=[exec_command, supervise], ids=["exec", "supervise"])
    def start(self, request: pytest.FixtureRequest) -> Callable[..., object]:
        return request.param  # type: ignore[no-any-return]

    @pytest.mark.parametrize("name", ["no-such-command-here", "./no-such-file", "", "/no/such"])
    def test_what_does_not_exist(self, start: Callable[..., object], name: str) -> None:
        with pytest.raises(CommandNotFoundError) as caught:
            start([name], {"PATH": "/usr/bin:/bin"})

        assert caught.value.exit_code == 127

    def test_an_empty_name_is_called_that(self, start: Callable[..., object]) -> None:
        with pytest.raises(CommandNotFoundError, match="an empty string"):
            start([""], {"PATH": "/usr/bin:/bin"})

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

    @pytest.mark.parametrize("search", ["", ":/usr/bin", "/usr/bin:"])
    def test_an_empty_entry_of_path_is_the_current_directory(
        self,
        start: Callable[..., object],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        search: str,
    ) -> None:
        (tmp_path / "tool").touch(mode=0o644)
        monkeypatch.chdir(tmp_path)

        with pytest.raises(NotExecutableError, match=r"'\./tool'"):
            start(["tool"], {"PATH": search})

    @pytest.mark.parametrize("content", [b"", b"not a program", b"\x7fELF broken"])
    def test_a_file_that_is_no_program_is_not_given_to_a_shell(
        self, start: Callable[..., object], tmp_path: Path, content: bytes
    ) -> None:
        file = tmp_path / "tool"
        file.write_bytes(content)
        file.chmod(0o755)

        with pytest.raises(NotExecutableError) as caught:
            start([str(file)], {"PATH": "/bin"})

        assert "#!/bin/sh" in caught.value.remedy[0]

    def test_more_words_than_the_kernel_takes(self, start: Callable[..., object]) -> None:
        with pytest.raises(NotExecutableError) as caught:
            start(["/bin/true", "x" * (1 << 18)], {})

        assert "ARG_MAX" in caught.value.remedy[0]

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
        # Not `true`: a process that becomes it in place of the error ends these tests well.
        with pytest.raises(LaunchError, match="not open"):
            start(["false"], {"PATH": "/usr/bin:/bin"}, keep_descriptors=[987])

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


@pytest.mark.parametrize("way", ["exec_command", "supervise"])
def test_only_the_kept_descriptors_reach_the_command(way: str) -> None:
    source = f"""
    import os, sys
    from gpucheck.place.exec import exec_command
    from gpucheck.place.exec import supervise
    kept, leaked = os.open("/dev/null", 0), os.open("/dev/null", 0)
    os.set_inheritable(leaked, True)
    os.environ.update(KEPT=str(kept), LEAKED=str(leaked))
    code = {way}(sys.argv[1:], dict(os.environ), keep_descriptors=[kept])
    sys.exit(code)
    """
    listing = "test -e /proc/self/fd/$KEPT && ! test -e /proc/self/fd/$LEAKED && echo right"

    done = subprocess.run(
        python(source, "sh", "-c", listing),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "right\n"


def test_inherited_descriptors_are_those_that_an_exec_hands_on() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)

    inherited = inherited_descriptors()

    os.close(reader)
    os.close(writer)
    assert reader in inherited
    assert writer not in inherited
    assert inherited.isdisjoint({0, 1, 2})


def test_exec_keeps_the_process_id() -> None:
    process = subprocess.Popen(
        driver("exec", ["sh", "-c", "echo $$"]),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    output, _ = process.communicate()

    assert int(output) == process.pid


# ------------------------------------------------------------------------------ the environment


@pytest.mark.parametrize(
    ("now", "first", "after"),
    [
        ("C.UTF-8", b"A=b\0PATH=/bin\0", None),
        ("C.UTF-8", b"", None),
        ("C.UTF-8", b"A=b\0LC_CTYPE=C\0", "C"),
        ("C.UTF-8", b"LC_CTYPE=\0", ""),
        ("C.UTF-8", b"LC_CTYPE=C.UTF-8\0A=b\0", "C.UTF-8"),
        ("UTF-8", b"XLC_CTYPE=POSIX\0", None),
        ("de_DE.UTF-8", b"", "de_DE.UTF-8"),
        ("C.UTF-8", b"LC_CTYPE=\xff\0", "\udcff"),
    ],
)
def test_the_locale_is_what_it_was_before_python_started(
    tmp_path: Path, now: str, first: bytes, after: str | None
) -> None:
    entries = tmp_path / "environ"
    entries.write_bytes(first)

    found = environment_before({"LC_CTYPE": now, "A": "b"}, entries)

    assert found.pop("A") == "b"
    assert found == ({} if after is None else {"LC_CTYPE": after})


def test_without_the_variable_nothing_is_looked_at(tmp_path: Path) -> None:
    assert environment_before({"A": "b"}, tmp_path) == {"A": "b"}


def test_what_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    environment = {"LC_CTYPE": "C.UTF-8"}

    assert environment_before(environment, tmp_path / "none") == environment


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EAGAIN, "no-process"),
        (errno.ENOMEM, "no-process"),
        (errno.EIO, "command-not-executable"),
    ],
)
def test_a_kernel_that_starts_no_process_has_its_own_code(number: int, code: str) -> None:
    def start(path: str) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.raises(LaunchError) as caught:
        start_first(["true"], {"PATH": "/usr/bin:/bin"}, start)

    assert caught.value.code == code
    assert os.strerror(number) in caught.value.message


def test_the_standard_streams_stay_inheritable() -> None:
    before = [os.get_inheritable(fd) for fd in range(3)]

    with only_inheritable(()):
        assert [os.get_inheritable(fd) for fd in range(3)] == before
