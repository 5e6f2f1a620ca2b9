"""Stop requests: raised, deferred, ignored, and too late; each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import scrubbed_environment

BEGIN = """
import os, signal, sys
from gpucheck.drivers.interrupts import REQUESTS, DeferredStops
def send(number):
    os.kill(os.getpid(), number)
    for _ in range(10_000):  # time enough to run a handler
        pass
"""


def said(text: str) -> tuple[str, int]:
    """Run a program that must write no errors; return its output and exit code."""
    finished = subprocess.run(
        [sys.executable, "-c", BEGIN + text],
        env=scrubbed_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.stderr == ""
    return finished.stdout.strip(), finished.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_is_an_interrupt(number: signal.Signals) -> None:
    text = f"""
REQUESTS.listen()
try:
    send({int(number)})
except KeyboardInterrupt:
    print("interrupted")
"""

    assert said(text) == ("interrupted", 0)


def test_one_that_somebody_decided_to_ignore_stays_ignored() -> None:
    text = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
REQUESTS.listen()
send(signal.SIGHUP)
with DeferredStops():
    send(signal.SIGHUP)
print(signal.getsignal(signal.SIGHUP).name)
"""

    assert said(text) == ("SIG_IGN", 0)


def test_a_program_that_uses_the_package_keeps_its_handlers() -> None:
    text = """
heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
before = [signal.getsignal(number) for number in (1, 2, 15)]
with DeferredStops():
    send(signal.SIGTERM)
    assert heard == []
assert heard == [signal.SIGTERM]
assert [signal.getsignal(number) for number in (1, 2, 15)] == before
with DeferredStops():
    send(signal.SIGHUP)  # what nobody answers ends the program, now as ever
"""

    assert said(text) == ("", -signal.SIGHUP)


def test_one_held_back_comes_behind_the_block_also_of_blocks_in_blocks() -> None:
    text = """
REQUESTS.listen()
try:
    with DeferredStops():
        with DeferredStops():
            send(signal.SIGTERM)
        print("inner", end=" ")
    print("never")
except KeyboardInterrupt:
    print("interrupted")
"""

    assert said(text) == ("inner interrupted", 0)


def test_a_thread_has_nothing_to_hold_back() -> None:
    text = """
import threading
def work():
    with DeferredStops():
        print("worked")
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

    assert said(text) == ("worked", 0)


def test_only_a_person_asks_twice() -> None:
    # A closing terminal and its session send one of each: the clean-up is not interrupted.
    text = """
REQUESTS.listen()
for numbers in ((signal.SIGTERM, signal.SIGHUP), (signal.SIGTERM, signal.SIGINT)):
    REQUESTS.listen()
    try:
        send(numbers[0])
    except KeyboardInterrupt:
        try:
            send(numbers[1])
            print("once", end=" ")
        except KeyboardInterrupt:
            print("twice")
"""

    assert said(text) == ("once twice", 0)


def test_one_that_python_swallowed_is_raised_later_and_not_shown() -> None:
    text = """
REQUESTS.listen()
class Finalized:
    def __del__(self):
        send(signal.SIGINT)
Finalized()
try:
    REQUESTS.raise_lost()
except KeyboardInterrupt:
    print("interrupted")
REQUESTS.raise_lost()
"""

    assert said(text) == ("interrupted", 0)


def test_an_answer_is_given_whole_but_not_for_ever() -> None:
    text = """
REQUESTS.listen()
REQUESTS.settle()
send(signal.SIGTERM)
print("whole", flush=True)
send(signal.SIGTERM)
print("never")
"""

    assert said(text) == ("whole", 130)
