"""Burn worker: the process that keeps one device under full load.

Its argument is its order, as JSON. It reports `ready`, waits for the common start, and then reports
progress in a line every half second, until it is asked to stop or its parent has gone.
"""

from __future__ import annotations

import json
import os
import select
import sys
from typing import TYPE_CHECKING, Any

from gpucheck.bench.request_model import BenchRequest, Fill
from gpucheck.report.codec import to_plain
from gpucheck.report.errors import GpucheckError

if TYPE_CHECKING:
    from gpucheck.bench.sdc import StressProduct
    from gpucheck.drivers.gpu import GpuDevice

#: Seconds of load between two lines.
_SLICE_S = 0.5


def main() -> int:
    """Serve one parent; return 0, since every failure has been reported."""
    with os.fdopen(os.dup(1), "w", encoding="ascii") as out:
        # Keep the output of libraries out of our lines.
        os.dup2(2, 1)

        def send(document: dict[str, Any]) -> None:
            out.write(json.dumps(document) + "\n")
            out.flush()

        try:
            order = json.loads(sys.argv[1])
            product, name = _open(order)
            _load(product, name, send)
        except GpucheckError as error:
            failure = {"code": error.code, "message": error.message, "remedy": list(error.remedy)}
            send({"part": "failure", "exit_code": int(error.exit_code), **failure})
        except BrokenPipeError:  # the parent has gone: that ends the load
            os._exit(0)
    return 0


def _load(product: StressProduct, name: str, send: Any) -> None:
    from gpucheck.bench.workers import wait_for_start

    product.begin()
    ready = {"name": name, "notes": product.notes, "check": to_plain(product.check)}
    send({"part": "ready", **ready})
    with wait_for_start(os.environ):
        while product.check.failure is None and not _must_stop():
            product.run_for(_SLICE_S)
            send({"part": "progress", "check": to_plain(product.check)})
    send({"part": "end", "check": to_plain(product.end())})


def _must_stop() -> bool:
    """Return whether a message or the end of input has arrived: both mean stop."""
    return bool(select.select([0], [], [], 0)[0])


def _open(order: dict[str, Any]) -> tuple[StressProduct, str]:
    from gpucheck.bench.sdc import stress_product
    from gpucheck.drivers.host.blas import Blas, load_numpy
    from gpucheck.drivers.host.clock import monotonic_s
    from gpucheck.drivers.host.cpu import LinuxCpu

    load_numpy()
    request = BenchRequest(size=order["size"], seed=order["seed"], fill=Fill(order["fill"]))
    cpu = LinuxCpu().facts()
    gpu = None if order["device"] == "cpu" else _gpu(order["device"])
    product = stress_product(gpu, request, monotonic_s, cpu, Blas(), held=order["held"])
    return product, (cpu.model or "cpu") if gpu is None else gpu.facts.name


def _gpu(device: str) -> GpuDevice:
    """Open a GPU; the parent knows its UUID.

    Raises:
        MissingError: it cannot be opened.
        InconclusiveError: another process uses it exclusively.
    """
    from gpucheck.drivers.cupy.device import open_gpus
    from gpucheck.drivers.cupy.errors import BUSY
    from gpucheck.report.errors import InconclusiveError, MissingError

    opened = open_gpus([int(device.removeprefix("gpu:"))])
    if not opened.devices:
        error = InconclusiveError if opened.busy else MissingError
        raise error(
            code=BUSY if opened.busy else "no-gpu",
            message=opened.unavailable or f"there is no {device}",
            remedy=opened.remedy or ("Run: gpucheck detect",),
        )
    return opened.devices[0]


if __name__ == "__main__":
    sys.exit(main())
