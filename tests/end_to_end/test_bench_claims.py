"""`gpucheck bench` claims what it measures, on a pretended card, and says who else holds it."""

from __future__ import annotations

import getpass
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.libraries import cupy_environment
from tests.fakes.machine import load_machine

SHORT = ("--device", "gpu:0", "--size", "64", "--quick", "--budget", "1", "--json")


@pytest.fixture(name="environment")
def _environment(pretend: Pretend, tmp_path: Path) -> dict[str, str]:
    return {
        **pretend(load_machine("h100x8").with_small_memories(), gpus=1),
        **cupy_environment("slow launch=20 kernel=100", time="modelled"),
        "GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims"),
    }


def claims(program: Program, environment: dict[str, str]) -> list[dict[str, Any]]:
    result = program("place", "--claims", "--json", env=environment).document("claims")["result"]
    found: list[dict[str, Any]] = result["claims"]
    return found


def test_the_card_is_held_while_it_is_measured_and_free_afterwards(
    program: Program, environment: dict[str, str]
) -> None:
    long = ("--device", "gpu:0", "--budget", "60", "--json")
    with program.start("bench", "copy", *long, env=environment) as process:
        while not (held := claims(program, environment)):
            time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        process.communicate()

    assert process.returncode == 130
    assert "bench copy" in held[0]["command"]
    assert claims(program, environment) == []


def test_a_card_that_somebody_holds_is_measured_with_the_doubt_said(
    program: Program, environment: dict[str, str]
) -> None:
    wait = ("place", "/gpu:0", "--", sys.executable, "-c", "input()")
    with program.start(*wait, env=environment, stdin=-1) as holder:
        while not claims(program, environment):
            time.sleep(0.2)
        ended = program("bench", "copy", *SHORT, env=environment)
        holder.communicate(b"\n")

    rows = ended.document("bench")["result"]["measurements"]
    assert ended.code == 0
    assert rows
    for row in rows:
        (doubt,) = [doubt for doubt in row["doubts"] if doubt["code"] == "gpu-claimed"]
        assert f"held by {getpass.getuser()} ({Path(sys.executable).name})" in doubt["message"]
