"""Watcher of a command whose memory NVML reads from a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Ended, Pretend, Program
from tests.end_to_end.documents import assert_document
from tests.end_to_end.limited import (
    GIB,
    WAIT_FOR_A_READING,
    limited,
    with_stand_ins,
)

#: Pretends to take GPU memory beside another user's process, until that has been judged; or until
#: it is stopped, if it is to be.
TAKING = """
import sys
path = os.environ["FAKE_PROCESSES_FILE"]
gib, stranger, wait = map(int, sys.argv[1:])
for size in (gib // 2, gib):
    with open(path + ".draft", "w") as file:
        for pid, used in ((os.getpid(), size), (stranger, 14)):
            file.write(f"0 {pid} 0 -1 {used << 30} 0 0 0 0\\n")
    os.replace(path + ".draft", path)
    if wait:
        wait_for_a_reading()
if wait > 1:
    time.sleep(600)
"""


@pytest.fixture
def machine(pretend: Pretend, tmp_path: Path) -> dict[str, str]:
    """Return a T4 on which stand-ins for all frameworks are installed."""
    return with_stand_ins(pretend("t4"), tmp_path)


class TestWatch:
    @pytest.fixture
    def watched(self, machine: dict[str, str], tmp_path: Path) -> dict[str, str]:
        """Let NVML read processes from a file that the command rewrites."""
        path = tmp_path / "processes"
        path.write_text("")
        log = tmp_path / "calls"
        log.write_text("")
        return machine | {"FAKE_PROCESSES_FILE": str(path), "FAKE_CALL_LOG": str(log)}

    def run(
        self,
        program: Program,
        watched: dict[str, str],
        action: str,
        gib: int,
        tmp_path: Path,
        stranger: int = 1,
    ) -> tuple[Ended, Any]:
        report = tmp_path / "report.json"
        words = ("--watch", action, "-o", str(report), "--json", "--")
        wait = {"off": "0", "warn": "1", "stop": "2" if gib > 4 else "1"}[action]
        script = (sys.executable, "-c", WAIT_FOR_A_READING + TAKING, str(gib), str(stranger), wait)
        ended = limited(program, watched, *words, *script)
        document = json.loads(report.read_text())
        assert_document(document, "memlimit", 0)
        exceeded = [each["code"] for each in document["warnings"]] == ["limit-exceeded"]
        run = document["result"]["run"]
        assert exceeded is bool(run["exceeded"])
        return ended, run

    def test_a_command_within_the_limit(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        ended, run = self.run(program, watched, "stop", 4, tmp_path)

        assert (ended.code, run["exceeded"], run["action"]) == (0, False, None)
        assert "warning" not in ended.said

    def test_a_command_above_it_is_warned_of_and_runs_on(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        ended, run = self.run(program, watched, "warn", 14, tmp_path)

        assert (ended.code, run["exceeded"], run["action"]) == (0, True, "warned")
        assert ended.said.count("above the limit of 4.5 GiB") == 1
        assert run["culprits"][0]["name"].startswith("python")
        assert run["peak_bytes"] == 14 * GIB

    def test_only_a_command_above_the_limit_is_stopped(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        with subprocess.Popen(["sleep", "600"]) as stranger:
            try:
                ended, run = self.run(program, watched, "stop", 12, tmp_path, stranger.pid)
                alive = stranger.poll() is None
            finally:
                stranger.kill()

        assert (ended.code, run["exit_code"], run["action"]) == (143, 143, "terminated")
        # Half of the 12 GiB is above 4.5 GiB and the allowance already: it never got further.
        assert run["peak_bytes"] == 6 * GIB
        assert alive

    def test_a_watch_that_is_off_reads_nothing(
        self, program: Program, watched: dict[str, str], tmp_path: Path
    ) -> None:
        ended, run = self.run(program, watched, "off", 14, tmp_path)

        assert (ended.code, run["peak_bytes"], run["exceeded"]) == (0, None, None)
        assert run["unavailable"]["peak_bytes"] == "--watch off"
        assert "peak" not in ended.said
