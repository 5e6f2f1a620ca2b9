"""How far a run is: one line on a terminal of any width, and nothing anywhere else."""

from __future__ import annotations

import re
import sys
from io import StringIO

import pytest

from gpucheck.cli.progress import progress_bar

LABEL = "matmul 1024x1024x1024 blas-1-thread on cpu"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def lines(screen: StringIO) -> list[str]:
    """Return what was drawn, one text for each time."""
    colourless = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\r", colourless)
    return [line.strip() for line in re.split(r"[\r\n]+", plain) if line.strip()]


@pytest.mark.parametrize("width", [30, 44, 80, 200])
def test_a_terminal_shows_what_runs_and_how_long_it_takes_at_most(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")

    with progress_bar(shown=True) as report:
        report(LABEL, 0.25, 12.3)
        report(LABEL, 0.9, 400.0)
        report(LABEL, 1.0, 0.0)

    drawn = lines(screen)
    assert max(map(len, drawn)) <= width
    assert any(line.startswith("matmul") and line.endswith("at most 12 s left") for line in drawn)
    assert any(line.endswith("at most 7 min left") for line in drawn)
    assert any(line.endswith("time is up, finishing") for line in drawn)


@pytest.mark.parametrize(("screen", "shown"), [(StringIO(), True), (Terminal(), False)])
def test_nothing_is_written_where_nobody_watches(
    screen: StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", screen)

    with progress_bar(shown=shown) as report:
        report(LABEL, 0.5, 3.0)

    assert screen.getvalue() == ""
