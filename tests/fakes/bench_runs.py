"""Synthetic benchmark processes: documents by the dozen, with chosen faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.processes import run_of
from gpucheck.bench.model import (
    BenchResult,
    Doubt,
    Measurement,
    Telemetry,
    Verified,
)
from gpucheck.bench.workers import WorkerAnswer, WorkerDevice, worker_devices
from gpucheck.inventory.model import Gpu
from gpucheck.report.codec import to_plain
from gpucheck.report.envelope import Failure
from gpucheck.report.host import Host
from tests.fakes.bench_results import (
    BFLOAT16,
    environment,
    gpu,
    measurement,
    sensors,
    uuid_of,
)

HOST = Host(name="node17", driver_version="580.95.05", cuda_driver_version="13.0")


def row(device: str, speed: float, **changes: Any) -> Measurement:
    """Return a product of bfloat16 numbers at `speed` FLOP/s."""
    seconds = 2.0 * 4096**3 / speed
    given: dict[str, Any] = {
        "variant": "cublas",
        "dtype": BFLOAT16,
        "shape": (4096, 4096, 4096),
        "threads": None,
        "time_s": seconds,
        "median_s": seconds,
        "round_medians_s": (),
        "verified": Verified(error=1e-3, bound=1e-2, ok=True, reference="float64"),
    }
    found = measurement("matmul", speed, device=device, unit="FLOP/s")
    return replace(found, **(given | changes))


def document(
    device: str,
    speed: float,
    *,
    rows: Sequence[Measurement] | None = None,
    readings: Mapping[str, Any] | None = None,
    doubts: Sequence[str] = (),
    exit_code: int = 0,
    error: Failure | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Return one worker's output."""
    where = environment()
    telemetry = None
    if device != "cpu":
        where = environment([gpu(device, board=None)], cublas_version="12.9.0")
        known = sensors(device, reading_count=200, vbios_version="96.00", ecc_mode=True)
        telemetry = Telemetry(gpus=(replace(known, **(readings or {})),))
    doubted = tuple(Doubt(code=code, message=code, next="look") for code in doubts)
    given = rows if rows is not None else (row(device, speed, doubts=doubted),)
    result = BenchResult(
        measurements=tuple(given), comparisons=(), environment=where, telemetry=telemetry
    )
    return {
        "schema": "gpucheck/bench/1",
        "tool": {"name": "gpucheck", "version": "0.1.0"},
        "time": "2026-11-21T03:32:00Z",
        "host": to_plain(HOST),
        "status": "ok",
        "exit_code": exit_code,
        "error": to_plain(error),
        "warnings": [],
        "result": to_plain(replace(result, **changes)),
    }


Script = Callable[[WorkerDevice, int, bool], WorkerAnswer]


class FakeWorkers:
    """Workers that return what a script returns: `script(order, number, sequential)` per process.

    `number` counts the processes of a device, over all rounds.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.rounds: list[tuple[tuple[WorkerDevice, ...], bool, float]] = []
        self._counts: dict[str, int] = {}

    def round(
        self, orders: Sequence[WorkerDevice], *, sequential: bool, deadline_s: float
    ) -> Sequence[WorkerAnswer]:
        """Return the script's answers."""
        self.rounds.append((tuple(orders), sequential, deadline_s))
        return [self._answer(order, sequential) for order in orders]

    def _answer(self, order: WorkerDevice, sequential: bool) -> WorkerAnswer:
        number = self._counts.get(order.device, 0)
        self._counts[order.device] = number + 1
        return self._script(order, number, sequential)


def gpus(count: int) -> tuple[Gpu, ...]:
    """Return an inventory of so many GPUs, on two NUMA nodes."""
    return tuple(
        Gpu(
            index=number,
            cuda_index=number,
            visible=True,
            uuid=uuid_of(f"gpu:{number}"),
            name="NVIDIA H100 80GB HBM3",
            cpu_affinity="0-3" if number < count / 2 else "4-7",
        )
        for number in range(count)
    )


def runs_of(
    speeds: Mapping[str, Sequence[float]], *, together: bool = True, **changes: Any
) -> tuple[ProcessRun, ...]:
    """Return a process for each speed of each device."""
    targets = worker_devices(list(speeds), gpus(8))
    return tuple(
        run_of(
            document(worker.device, speed, **changes),
            worker,
            number,
            together=together,
        )
        for worker in targets
        for number, speed in enumerate(speeds[worker.device])
    )
