"""Supervision of a command: forwarded signals, ticks, and no leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from gpucheck.place import exec as module
from gpucheck.place.exec import supervise
from tests.hang_watch import is_running, wait_until
from tests.place.command_driver import (
    COUNTING_CHILD,
    Session,
    driver,
    environment,
    finish,
    python,
    sessions,
    state_of,
)

#: What a signal that was sent by `kill` says of itself.
FROM_A_PROCESS = signal.struct_siginfo((signal.SIGUSR2, 0, 0, 0, 0, 0, 0))


@pytest.fixture
def session() -> Iterator[Callable[..., Session]]:
    with sessions() as start:
        yield start


@pytest.fixture
def line() -> Iterator[tuple[int, int]]:
    """A pipe by which a tick ends the command, which otherwise waits."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


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

        assert pipe.wait() == 128 + signal.SIGPIPE

    def test_ticks_come_with_the_childs_process_id(self, line: tuple[int, int]) -> None:
        reader, writer = line
        seen: list[int] = []
        at_s: list[float] = []

        def tick(pid: int) -> None:
            seen.append(pid)
            at_s.append(time.monotonic())
            os.write(writer, b"\n" if len(seen) == 3 else b"")

        code = supervise(
            ["sh", "-c", f"read word </proc/self/fd/{reader}"],
            dict(os.environ),
            on_tick=tick,
            tick_s=0.01,
            keep_descriptors=[reader],
        )

        assert code == 0
        assert len(seen) >= 3
        assert len(set(seen)) == 1
        assert seen[0] not in (0, os.getpid())
        # Never sooner: between them nobody computes.
        assert all(later - earlier >= 0.01 for earlier, later in pairwise(at_s))

    def test_a_failing_tick_waits_for_the_child_and_is_raised_once(
        self, tmp_path: Path, line: tuple[int, int]
    ) -> None:
        reader, writer = line
        calls: list[int] = []

        def fail(pid: int) -> None:
            calls.append(pid)
            os.write(writer, b"\n")
            raise RuntimeError("broken watcher")

        with pytest.raises(RuntimeError, match="broken watcher"):
            supervise(
                ["sh", "-c", f'read word </proc/self/fd/{reader}; sleep 0.1; touch "$1"', "sh",
                 str(tmp_path / "ended")],
                dict(os.environ),
                on_tick=fail,
                tick_s=0.01,
                keep_descriptors=[reader],
            )  # fmt: skip

        assert (tmp_path / "ended").exists()
        assert len(calls) == 1

    def test_a_tick_may_end_the_child(self) -> None:
        code = supervise(
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
        output, _ = process.communicate()

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
        wait_until(lambda: state_of(child) == "T")
        running.send(signal.SIGCONT)

        assert running.line() == "SIGCONT"
        running.send(signal.SIGTERM)
        assert running.rest() == ["SIGTERM"]
        assert running.wait() == 7

    def test_a_stop_and_a_continuation_of_ours_alone_are_shared(
        self, session: Callable[..., Session]
    ) -> None:
        running = session("supervise", python(COUNTING_CHILD))
        child = int(running.line().split()[1])
        # Whoever is in a group without a parent outside it is not stopped by SIGTSTP.
        running.send(signal.SIGSTOP)
        wait_until(lambda: state_of(running.process.pid) == "T")
        # It has written its line, and may not be asleep yet.
        wait_until(lambda: state_of(child) == "S")

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

    def test_killed_itself_it_leaves_no_probe(self, session: Callable[..., Session]) -> None:
        words = "echo $$; cat /proc/$PPID/task/*/children; echo; exec sleep 600"
        running = session("supervise", ["sh", "-c", words])
        own = int(running.line())
        probes = {int(pid) for pid in running.line().split()} - {own}

        running.send(signal.SIGKILL)

        try:
            assert len(probes) == 1
            wait_until(lambda: not any(is_running(pid) for pid in probes))
        finally:
            os.kill(own, signal.SIGKILL)

    def test_a_probe_that_is_late_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def late(questions: int, answers: int) -> None:
            os.read(questions, 1)
            time.sleep(0.5)  # longer than one look
            os.write(answers, b"1")
            os._exit(0)

        monkeypatch.setattr(module, "_run_probe", late)

        with module._GroupSignalProbe() as probe:
            assert probe.saw(FROM_A_PROCESS)

    @pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
    def test_a_probe_that_cannot_answer_is_not_waited_for(self, number: signal.Signals) -> None:
        with module._GroupSignalProbe() as probe:
            assert probe._pid is not None
            os.kill(probe._pid, number)

            assert not probe.saw(FROM_A_PROCESS)
            assert probe._line is None

    def test_an_exit_code_is_known_although_the_caller_ignores_its_children(self) -> None:
        def ignore() -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        assert finish("supervise", ["sh", "-c", "exit 5"], preexec_fn=ignore).returncode == 5


def test_we_stop_by_the_default_action_and_give_the_handler_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    during: list[object] = []

    def kill(pid: int, number: int) -> None:
        during.append((pid, number, signal.getsignal(number)))

    def handler(number: int, frame: object) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "kill", kill)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    before = signal.signal(signal.SIGTSTP, handler)
    try:
        module._stop_ourselves(signal.SIGTSTP)

        assert during == [(os.getpid(), signal.SIGTSTP, signal.SIG_DFL)]
        assert signal.getsignal(signal.SIGTSTP) is handler
        assert signal.SIGTSTP in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGTSTP, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
