"""Process of a Dask cluster for the tests: a scheduler, or a worker that is a node of its own.

`python dask_node.py scheduler` and `python dask_node.py worker ADDRESS NAME [VERSION]` print
their address. Certificates come from Dask's variables. A worker calls itself NAME, as a machine
would, and may pretend to be of another VERSION of the engine. With TIME_IS_UP in the environment,
the time of a command that it runs is up as soon as there is a line in the file of that name.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def tell(address: str) -> None:
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


async def scheduler() -> None:
    from distributed import Scheduler

    secure = "DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in os.environ
    address = f"{'tls' if secure else 'tcp'}://127.0.0.1:0"
    async with Scheduler(host=address, dashboard=False) as server:
        tell(server.address)
        await server.finished()


async def worker(address: str, name: str) -> None:
    from distributed import Worker

    platform.node = lambda: name
    # A second thread: a command that hangs must not keep the heartbeat of others.
    async with Worker(
        address,
        nthreads=2,
        name=f"{name}-0",
        host="127.0.0.1",
        resources={"GPU": 1},
        dashboard=False,
    ) as server:
        tell(server.address)
        await server.finished()


def pretend(version: str) -> None:
    real = importlib.metadata.version
    importlib.metadata.version = lambda name: version if name == "distributed" else real(name)


def be_out_of_time_with(file: Path) -> None:
    communicate = subprocess.Popen.communicate

    def wait(process: Any, given: Any = None, timeout: float | None = None) -> Any:
        if timeout is not None:
            while not (file.exists() and file.read_text().endswith("\n")):
                time.sleep(0.05)
            timeout = 0
        return communicate(process, given, timeout)

    subprocess.Popen.communicate = wait


if __name__ == "__main__":
    if sys.argv[1] == "scheduler":
        asyncio.run(scheduler())
    else:
        if len(sys.argv) > 4:
            pretend(sys.argv[4])
        if "TIME_IS_UP" in os.environ:
            be_out_of_time_with(Path(os.environ["TIME_IS_UP"]))
        asyncio.run(worker(sys.argv[2], sys.argv[3]))
