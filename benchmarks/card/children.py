"""Child processes of the suite, with a log for their output and a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
#: Extra time of a part's process before it is killed, for starting and cleaning up.
GRACE_S = 30
#: Seconds between two polls of a child.
_LOOK_S = 2.0
#: Seconds for a killed child to exit; one that hangs in the driver is abandoned.
_GONE_S = 2.0


class StoppedError(Exception):
    """The suite was asked to stop."""


def stop_when_asked() -> None:
    """Turn SIGTERM into an error, so that the figures so far are still reported."""

    def stop(number: int, frame: object) -> None:
        for asked in (signal.SIGTERM, signal.SIGINT):
            signal.signal(asked, signal.SIG_IGN)  # let the report be written
        raise StoppedError

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """End of a child: its code (None if it was killed) and its last line of output."""

    code: int | None
    said: str

    @property
    def how(self) -> str:
        """Return the end in words."""
        if self.code is None:
            return "it hung, or its time was over"
        return f"code {self.code}" if self.code >= 0 else f"signal {-self.code}"


class Children:
    """Runner of one child at a time, from the checkout, with its output in a log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        log.write_bytes(b"")

    def python(
        self, words: Sequence[str], seconds: float, hangs: Callable[[], bool] | None = None
    ) -> Ended:
        """Run this Python with these arguments."""
        return self.run([sys.executable, *words], seconds, hangs)

    def run(
        self, command: Sequence[str], seconds: float, hangs: Callable[[], bool] | None = None
    ) -> Ended:
        """Run a program for a limited time, or until `hangs` returns true."""
        with self._log.open("ab") as log:
            log.write(f"\n$ {' '.join(command)}\n".encode())
            begin = log.tell()
            log.flush()
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=CHECKOUT,
                    env=environment(),
                    start_new_session=True,
                )
            except OSError as error:
                return Ended(code=127, said=str(error))
            try:
                code = _waited_for(process, seconds, hangs)
            finally:
                _kill_group(process)
        return Ended(code=code, said=self._last_line(begin))

    def _last_line(self, begin: int) -> str:
        with self._log.open("rb") as log:
            log.seek(begin)
            lines = log.read().decode(errors="replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "no word")


def _waited_for(
    process: subprocess.Popen[bytes], seconds: float, hangs: Callable[[], bool] | None
) -> int | None:
    """Return the child's exit code, None if it did not end in time."""
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        try:
            return process.wait(timeout=min(_LOOK_S, left_s))
        except subprocess.TimeoutExpired:
            if hangs is not None and hangs():
                break
    return None


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of the child and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    end_s = time.monotonic() + _GONE_S
    while process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.05)


def environment() -> Mapping[str, str]:
    """Return this process' environment with the checkout on the path."""
    path = os.pathsep.join(filter(None, (str(CHECKOUT), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Compile one kernel at a time: torch's compiler pool would outlive a killed child.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # Keep this Python's plugins out of the tests.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
