"""Shared parts of the `gpucheck memlimit` tests: a machine with stand-ins, and a run on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import Ended, Program

GIB = 1 << 30
STAND_INS = Path(__file__).parents[1] / "data" / "frameworks"
#: The total of the pretended T4, and 30 % of it.
TOTAL, LIMIT = 16106127360, 4831838208
TORCH = "import torch; torch.empty(1, device='cuda'); print('done')"
#: Waits, in a command under memlimit, until a whole reading of NVML has been judged. A reading asks
#: twice, first for the number of processes: the fourth call from now belongs to a reading after
#: one that began from now.
WAIT_FOR_A_READING = """
import os, re, time
def wait_for_a_reading():
    def calls():
        with open(os.environ["FAKE_CALL_LOG"]) as file:
            name = "^nvmlDeviceGetComputeRunningProcesses[^ ]* 0$"
            return len(re.findall(name, file.read(), re.MULTILINE))
    before = calls()
    while calls() < before + 4:
        time.sleep(0.05)
"""


def with_stand_ins(machine: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the machine with stand-ins for all frameworks, which note what they are told."""
    return {
        **machine,
        "PYTHONPATH": str(STAND_INS),
        "PYTHONDONTWRITEBYTECODE": "1",
        "STUB_LOG": str(folder / "events.jsonl"),
        "STUB_TOTAL_BYTES": str(TOTAL),
    }


def events(machine: dict[str, str]) -> list[list[Any]]:
    """Return what the stand-ins noted, without process ids."""
    log = Path(machine["STUB_LOG"])
    return [json.loads(line)[1:] for line in log.read_text().splitlines()] if log.exists() else []


def limited(program: Program, machine: dict[str, str], *words: str, **options: Any) -> Ended:
    """Run `gpucheck memlimit 30% WORDS`."""
    return program("memlimit", "30%", *words, env=machine, **options)
