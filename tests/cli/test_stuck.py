"""Signals while a benchmark runs: each is heard as a Ctrl-C, and only while it runs."""

from __future__ import annotations

import os
import signal

import pytest

from gpucheck.cli.stuck import ending_when_stuck
from gpucheck.models.bench import BenchResult


def never(result: BenchResult) -> None:
    raise AssertionError(result)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_request_to_end_is_an_interrupt_while_the_block_runs(number: signal.Signals) -> None:
    before = signal.getsignal(number)

    with pytest.raises(KeyboardInterrupt), ending_when_stuck(never):
        os.kill(os.getpid(), number)

    assert signal.getsignal(number) is before


def test_a_request_that_somebody_decided_to_ignore_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_when_stuck(never):
            os.kill(os.getpid(), signal.SIGHUP)
            heard = signal.getsignal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)

    assert heard is signal.SIG_IGN
