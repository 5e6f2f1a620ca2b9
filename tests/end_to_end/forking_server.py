"""Child program: for each line of JSON it forks, and the fork runs one of the probe children.

A fork is a fresh process to the pretended libraries (they read their machine once a process) at a
hundredth of the price of a new interpreter: that is what lets a sweep try every fault there is.
"""

import contextlib
import gc
import io
import json
import os
import sys
import traceback

# Before the forks, so that it is paid for once. The library is loaded after, in each of them.
import pynvml  # noqa: F401

from gpucheck.drivers.cuda import worker as cuda_worker
from gpucheck.drivers.nvml import worker as nvml_worker


def run_child(request: dict) -> None:
    """Be the child of `request["child"]` with its variables; answers go to standard output."""
    for name, value in request["variables"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if request["child"] == "cuda":
        cuda_worker.main()
        return
    if request["child"] == "launch":
        cuda_worker.main("every")
        return
    sys.stdin = io.StringIO(json.dumps(request["question"]) + "\n")
    nvml_worker.main("")


def main() -> None:
    """Answer until standard input ends; after each answer comes a line `{"status": N}`."""
    # A fork that looks for garbage copies every page that it looks at.
    gc.disable()
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            with contextlib.suppress(BaseException):
                try:
                    run_child(json.loads(line))
                    code = 0
                except BaseException:
                    traceback.print_exc()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        os.write(1, json.dumps({"status": os.waitstatus_to_exitcode(status)}).encode() + b"\n")


if __name__ == "__main__":
    main()
