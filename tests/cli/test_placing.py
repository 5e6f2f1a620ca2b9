"""What `gpucheck place --wait` says while it waits."""

from __future__ import annotations

import pytest

from gpucheck.cli.placing import _reporter
from gpucheck.cli.shared import Shared
from gpucheck.core.claims import Waiting

REASON = "1 GPU is asked for and 0 fit."


def said(capsys: pytest.CaptureFixture[str], *waits: tuple[int, float], verbosity: int = 0) -> str:
    report = _reporter(Shared(verbosity=verbosity))
    for ahead, waited_s in waits:
        report(Waiting(ahead=ahead, waited_s=waited_s, reason=REASON))
    return capsys.readouterr().err


def test_a_line_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, (2, 0), (2, 0.1), (1, 5), (1, 59), (0, 59.5), (0, 60)) == (
        f"gpucheck: waiting, 2 are before us: {REASON}\n"
        f"gpucheck: waiting, 1 is before us: {REASON}\n"
        f"gpucheck: waiting, next in line: {REASON}\n"
    )


def test_else_a_line_each_minute(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, *((0, float(waited_s)) for waited_s in range(180))).splitlines()

    assert lines == [
        f"gpucheck: waiting, next in line: {REASON}",
        f"gpucheck: waiting for 1 min, next in line: {REASON}",
        f"gpucheck: waiting for 2 min, next in line: {REASON}",
    ]


def test_nothing_where_quiet_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, (2, 0), (1, 5), verbosity=-1) == ""
