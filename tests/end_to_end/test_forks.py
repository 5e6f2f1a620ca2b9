"""A fork of the command server answers as a program that was started, and so do its workers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.end_to_end.conftest import Ended, Pretend, Program


def without_times(ended: Ended) -> Any:
    """Return a run's document without what differs from run to run."""
    return json.loads(re.sub(r"[\d.]+ ms", "some ms", ended.text)) | {"time": None}


@pytest.mark.parametrize("command", ["list", "detect"])
def test_a_fork_says_what_a_started_program_says(
    command: str, program: Program, pretend: Pretend
) -> None:
    env = pretend("mixed-order")

    fork, real = (one(command, "--json", env=env) for one in (program, Program()))

    assert fork.code == real.code
    assert without_times(fork) == without_times(real)


def test_a_fork_finds_the_libraries_of_its_own_machine(program: Program, pretend: Pretend) -> None:
    """The driver's, which the dynamic loader would look for in the server's path."""
    cards = {}
    for machine in ("t4", "h100x8"):
        document = program("list", "--json", env=pretend(machine)).document()
        cards[machine] = {gpu["name"] for gpu in document["result"]["gpus"]}

    assert cards == {"t4": {"Tesla T4"}, "h100x8": {"NVIDIA H100 80GB HBM3"}}
