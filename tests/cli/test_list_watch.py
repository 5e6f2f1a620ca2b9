"""The screen of `list --watch`: its keys, its end and its last picture."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator

import pytest

from gpucheck.cli import list_watch as module
from gpucheck.cli.list_watch import live_screen, pauses
from gpucheck.cli.options import Shared
from gpucheck.report.errors import ExitCode
from tests.fakes.reports import list_report


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal as standard input; yields the end that presses its keys."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, closefd=True) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield ours
    os.close(ours)


def mode(terminal: int) -> int:
    flags: int = termios.tcgetattr(terminal)[3]
    return flags & (termios.ICANON | termios.ECHO | termios.ISIG)


@pytest.mark.parametrize(("keys", "ends"), [(b"q", True), (b"xQ", True), (b"x\n", False)])
def test_q_ends_it(keyboard: int, keys: bytes, ends: bool) -> None:
    with pauses() as wait:
        assert wait(0.01) is False
        os.write(keyboard, keys)
        # A key reaches us through the kernel's queue, which is late on a busy machine.
        assert wait(300 if ends else 0.05) is ends


@pytest.mark.parametrize("end", [None, KeyboardInterrupt, ValueError])
def test_the_terminal_is_as_before(keyboard: int, end: type[BaseException] | None) -> None:
    before = mode(keyboard)

    def run() -> None:
        with pauses() as wait:
            wait(0.01)
            # Single keys without echo, but Ctrl-C is still a signal.
            assert mode(keyboard) == termios.ISIG
            if end is not None:
                raise end

    if end is None:
        run()
    else:
        with pytest.raises(end):
            run()

    assert mode(keyboard) == before


def test_in_the_background_the_terminal_is_left_alone(
    keyboard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_in_foreground", lambda terminal: False)
    before = mode(keyboard)
    os.write(keyboard, b"q\n")

    with pauses() as wait:
        assert wait(0.01) is False
        assert mode(keyboard) == before


def test_without_a_terminal_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)

    with pauses() as wait:
        assert wait(0.01) is False


def test_the_last_picture_stays(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)

    def run() -> None:
        with live_screen(Shared()) as show:
            show(list_report(), {})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()

    [*_, last] = capsys.readouterr().out.rpartition("2026-01-02 ")
    assert "node1 · driver" in last
    assert "LOST" in last
    assert "ends" not in last


def test_a_driver_that_stays_silent_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures: list[str] = []
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr(
        "rich.live.Live.update", lambda _self, picture, **_: pictures.append(str(picture))
    )
    silent = list_report()._replace(exit_code=ExitCode.INCONCLUSIVE)
    words = "It has been so since 2026-01-02"

    with live_screen(Shared()) as show:
        show(silent, {})
        show(silent, {})
        show(list_report(), {})

    begins, once, twice, again = (" ".join(each.split()) for each in pictures)
    assert begins == "asking the driver · Ctrl-C ends"
    assert words not in once + again
    assert words in twice
    assert "(2 times). What to do: gpucheck detect" in twice
