"""`detect --log`: the first cause in a log, and whether it is still there, as a user asks."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import termios
import time
from array import array
from pathlib import Path

from tests.end_to_end.conftest import Program

LOGS = Path(__file__).parents[1] / "data" / "logs" / "open"
SCREEN = """\
lost-gpu: recorded example, not this machine
node08 · driver 535.247.01 · CUDA 12.2

✗ train.log:2: the GPU has fallen off the bus
    kernel: NVRM: Xid (PCI:0000:2a:00): 79, pid='<unknown>', name=<unknown>, GPU
    has fallen off the bus.
"""


def test_the_cause_stands_first_with_its_line_and_remedy(program: Program, tmp_path: Path) -> None:
    log = (LOGS / "lost-xid79.log").read_bytes().replace(b"0000:44:00", b"0000:2a:00")
    (tmp_path / "train.log").write_bytes(log)

    asked = ("detect", "--log", "train.log", "--from", "example:lost-gpu")
    shown = program(*asked, env={}, cwd=tmp_path)
    document = program(*asked, "--json", env={}, cwd=tmp_path).document("log")

    assert shown.code == 1
    assert shown.text.startswith(SCREEN)
    assert "    still there: yes (" in shown.text
    assert "are consequences: illegal-access, nccl-network" in shown.text
    assert document["exit_code"] == 1
    cause = document["result"]["cause"]
    assert (cause["rule"], cause["class"], cause["line"]) == ("fallen-off-the-bus", "gpu-lost", 2)
    assert document["result"]["live"]["seen"] == "yes"
    assert document["result"]["remedy"][0].startswith("Power the machine off")


def test_a_pipe_is_read_and_a_log_without_a_cause_is_well(program: Program) -> None:
    with (LOGS / "none-done.log").open("rb") as log:
        shown = program("detect", "--log", "-", "--format", "line", env={}, stdin=log)

    assert (shown.code, shown.said) == (0, "")
    assert shown.text == "OK standard input: no known cause in 5 lines\n"


def test_ctrl_c_ends_a_pipe_without_an_end_with_what_it_had(program: Program) -> None:
    asked = ("detect", "--log", "-", "--json")
    with program.start(*asked, env={}, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        # The second piece is read after the first was taken in.
        for piece in (b"step 1\nRuntimeError: CUDA out of memory\n", b"step 2\n"):
            process.stdin.write(piece)
            process.stdin.flush()
            while bytes_waiting(process.stdin.fileno()):
                assert process.poll() is None
                time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        out, said = (stream.read() for stream in (process.stdout, process.stderr) if stream)
        code = process.wait()

    document = json.loads(out)
    assert (code, document["exit_code"], document["error"]["code"]) == (130, 130, "interrupted")
    assert document["result"]["cause"]["line"] == 2
    assert said.startswith(b"gpucheck: Interrupted after ")


def bytes_waiting(descriptor: int) -> int:
    """Return how many bytes are in a pipe that nobody has read yet."""
    count = array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
