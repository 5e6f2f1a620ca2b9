"""A request to stop while a call is stuck: a thread sees to it that it is answered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.conftest import scrubbed_environment

#: Never comes back to where an interrupt is raised, as in a call into a driver.
PROGRAM = """
import json, time
from gpucheck.cli import ctrl_c
from gpucheck.cli.ctrl_c import end_on_second_ctrl_c
from gpucheck.drivers.interrupts import REQUESTS, DeferredStops
REQUESTS.listen()
ctrl_c._PATIENCE_S = ctrl_c._GRACE_S = 0.2
def report(result):
    print(json.dumps({"reported": result}))
with end_on_second_ctrl_c(report, on_gpu=False) as offer, DeferredStops():
    offer(lambda: "so far")
    print("begun", flush=True)
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize(
    "requests", [(signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGINT, signal.SIGINT)]
)
def test_a_stuck_call_is_given_up_and_the_result_so_far_reported(
    requests: tuple[signal.Signals, ...],
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=scrubbed_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        assert process.stdout.readline() == "begun\n"
        for place, number in enumerate(requests):
            if place:  # the second Ctrl-C comes once it was offered: signals do not count
                assert (
                    process.stderr.readline()
                    == "gpucheck: finishing the running measurement; Ctrl-C again ends at once\n"
                )
            os.kill(process.pid, number)
        said, _ = process.communicate()
    finally:
        process.kill()
        process.communicate()

    assert process.returncode == 130
    assert json.loads(said) == {"reported": "so far"}
