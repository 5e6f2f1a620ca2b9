"""Child process that reads the files of one process.

The kernel lets nobody read the mappings of a process that is stuck in a driver with its memory
locked, nor files below a dead network file system: not even SIGKILL ends such a read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpucheck.drivers.host.process_files import read_process
from gpucheck.report.codec import to_plain


def main(root: str, pid: str) -> None:
    """Write what was read in one line."""
    sys.stdout.write(json.dumps(to_plain(read_process(int(pid), Path(root)))) + "\n")
