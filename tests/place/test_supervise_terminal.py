"""Commands on a real terminal: keys, job control, the whole screen, the window's size."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hang_watch import wait_until
from tests.place.command_driver import (
    COUNTING_CHILD,
    WAYS,
    driver,
    environment,
    python,
    state_of,
)
from tests.terminal import Terminal

#: Shows its size and the keys it gets on the whole screen, until it gets a q.
FULL_SCREEN = """
import curses, signal, sys
signal.alarm(1000)  # without its terminal it would go on for ever
def show(screen):
    screen.timeout(50)  # a signal just before the wait for a key must not be slept over
    screen.addstr(0, 0, "size %d %d" % screen.getmaxyx())
    while True:
        try:
            key = screen.get_wch()
        except curses.error:
            continue
        screen.clear()
        if key == "q":
            return
        if key == curses.KEY_RESIZE:
            curses.update_lines_cols()
            screen.addstr(0, 0, "size %d %d" % screen.getmaxyx())
        else:
            screen.addstr(1, 0, "key %s" % key)
curses.wrapper(show)
sys.exit(3)
"""


@pytest.fixture
def terminal() -> Iterator[Callable[[list[str]], Terminal]]:
    opened: list[Terminal] = []

    def start(command: list[str]) -> Terminal:
        opened.append(Terminal(command, environment(TERM="xterm")))
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
        child = self.child(screen)

        screen.type(b"\x03")
        screen.until("SIGINT")
        screen.type(b"\x1c")
        screen.until("SIGQUIT")
        os.kill(child, signal.SIGTERM)

        assert screen.job_event() == "ended 7"
        assert screen.rest().count("SIGINT") == 1
        assert screen.rest().count("SIGQUIT") == 1

    def test_a_child_that_dies_of_the_interrupt(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        screen = terminal(driver(way, ["sh", "-c", "echo ready; exec sleep 60"]))
        screen.until("ready")

        screen.type(b"\x03")

        expected = f"ended {-signal.SIGINT}" if way == "exec" else f"ended {128 + signal.SIGINT}"
        assert screen.job_event() == expected

    def test_stopped_from_the_keyboard_and_continued(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        screen = terminal(driver(way, python(COUNTING_CHILD)))
        child = self.child(screen)

        for times in (1, 2, 3):
            screen.type(b"\x1a")
            assert screen.job_event() == "stopped SIGTSTP"
            wait_until(lambda: state_of(child) == "T")
            screen.foreground()
            # A stop discards a continuation that the program has not seen yet.
            screen.until("SIGCONT", times=times)
        os.kill(child, signal.SIGTERM)

        assert screen.job_event() == "ended 7"
        assert screen.rest().count("SIGCONT") == 3

    def test_a_program_that_stops_itself_after_tidying_the_screen(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        source = """
        import os, signal, time
        def leave(number, frame):
            os.write(1, b"tidied\\n")
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTSTP)
            os.write(1, b"back\\n")
            os._exit(4)
        signal.signal(signal.SIGTSTP, leave)
        os.write(1, b"ready\\n")
        while True:
            time.sleep(0.05)  # a signal just before a long sleep would be slept over
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

    def test_a_new_size_of_the_window_arrives_once(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        screen = terminal(driver(way, python(COUNTING_CHILD)))
        child = self.child(screen)

        for times in (1, 2):
            screen.resize(30 + times, 90)
            screen.until("SIGWINCH", times=times)
        os.kill(child, signal.SIGTERM)

        assert screen.job_event() == "ended 7"
        assert screen.rest().count("SIGWINCH") == 2

    def test_a_program_with_the_whole_screen(
        self, way: str, terminal: Callable[[list[str]], Terminal]
    ) -> None:
        screen = terminal(driver(way, python(FULL_SCREEN)))
        screen.until("size 24 80")

        screen.resize(30, 100)
        screen.until("size 30 100")
        screen.type(b"x")
        screen.until("key x")
        screen.type(b"\x1a")
        while not screen.has_news(1.0):  # curses ignores the stop key while it draws
            screen.type(b"\x1a")
        assert screen.job_event() == "stopped SIGTSTP"
        screen.foreground()
        while not screen.has_news(0.2):  # curses throws away what is typed while it comes back
            screen.type(b"q")

        assert screen.job_event() == "ended 3"
        # It left the whole screen, entered it again when it was continued, and left it in the end.
        assert screen.rest().count("\x1b[?1049l") == 2

    def test_a_hang_up_of_the_terminal_reaches_it(
        self, way: str, terminal: Callable[[list[str]], Terminal], tmp_path: Path
    ) -> None:
        source = """
        import os, signal, sys, time
        def leave(number, frame):
            open(sys.argv[1], "w").close()
            os._exit(0)
        signal.signal(signal.SIGHUP, leave)
        os.write(1, b"ready\\n")
        while True:
            time.sleep(0.05)
        """
        screen = terminal(driver(way, python(source, str(tmp_path / "left"))))
        screen.until("ready")

        os.killpg(os.tcgetpgrp(screen.ours), signal.SIGHUP)

        wait_until((tmp_path / "left").exists)

    @staticmethod
    def child(screen: Terminal) -> int:
        """Read the child's first line: a key that signals throws away what nobody has read."""
        screen.until("ready")
        screen.until("\n")
        return int(screen.seen.split("ready ")[1].split()[0])
