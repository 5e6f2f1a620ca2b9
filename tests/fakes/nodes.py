"""Synthetic nodes of H100 in the profile `acceptance`: drawn figures, real gates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from gpucheck.bench.boards import load_boards
from gpucheck.bench.ci.gates import judge, settled
from gpucheck.bench.ci.limits import expected_of, scale_of
from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.profile_model import Aggregate, Check, Profile
from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.ci.run_data import RunData
from gpucheck.bench.ci.verdicts import exit_status
from gpucheck.bench.model import Corruption, Gate, Measurement, Telemetry, Throughput
from gpucheck.bench.roofline import board_from
from gpucheck.drivers.gpu import Board
from tests.fakes.bench_results import (
    BFLOAT16,
    FLOAT32,
    environment,
    gpu,
    measurement,
    result_of,
    run_of,
    sensors,
    uuid_of,
)
from tests.fakes.gates import node

#: Checks of each GPU.
CHECKS = 4


@cache
def _profile() -> Profile:
    return load_profile("acceptance")


@cache
def _board() -> Board:
    return board_from(next(one for one in load_boards() if one.name == "H100 SXM"))


@cache
def _row(check_id: str, device: str) -> tuple[Measurement, float]:
    """Return a row of a check's kind, and the throughput that the profile expects of an H100."""
    check = next(one for one in _profile().checks if one.id == check_id)
    expected = (expected_of(check, _board()) or 0.0) * scale_of(check.unit)
    product = check.kernel == "matmul"
    found = measurement(
        check.kernel,
        expected,
        device=device,
        unit="FLOP/s" if product else "B/s",
        variant=check.variant or "memcpy",
        dtype=BFLOAT16 if check.dtype == "bfloat16" else FLOAT32,
        shape=(8192, 8192, 8192) if product else (8192, 8192),
    )
    return found, expected


class AcceptanceNode:
    """A node whose GPUs reach what the profile expects of them, times their factors.

    `logs` are the logarithms of those, by GPU, check and process.
    """

    def __init__(self, logs: Sequence[Sequence[Sequence[float]]]) -> None:
        self._logs = logs
        self._checks = [one for one in _profile().checks if one.per is Aggregate.DEVICE]

    def judged(self) -> tuple[int, tuple[Gate, ...]]:
        """Return the exit code and the gates, after as many processes as it takes."""
        plan = _profile().run
        for processes in range(plan.processes, plan.max_processes + 1):
            gates = judge(self.data(processes))
            if settled(gates):
                break
        return int(exit_status(gates)[0]), gates

    def data(self, processes: int) -> RunData:
        """Return what so many processes brought."""
        runs = [run for number in range(processes) for run in self._repeat(number)]
        return RunData(profile=_profile(), node=node(len(self._logs)), runs=runs)

    def _repeat(self, number: int) -> list[ProcessRun]:
        return [
            self._process(at, number, together=together)
            for together in (False, True)
            for at in range(len(self._logs))
        ]

    def _process(self, at: int, number: int, *, together: bool) -> ProcessRun:
        device = f"gpu:{at}"
        rows = [
            self._measured(check, device, log[number])
            for check, log in zip(self._checks, self._logs[at], strict=True)
            if check.together is together
        ]
        repeated = Corruption(
            device=device, gpu_uuid=uuid_of(device), products=9, words=64, reference_ok=True
        )
        result = replace(
            result_of(*rows, corruption=(repeated,)),
            environment=environment([gpu(device, _board())]),
            telemetry=Telemetry(gpus=(sensors(device),)),
        )
        return run_of(result, number, device, together=together)

    def _measured(self, check: Check, device: str, log: float) -> Measurement:
        row, expected = _row(check.id, device)
        speed = expected * math.exp(log)
        return replace(
            row,
            time_s=1e9 / speed,
            round_medians_s=(1e9 / speed,),
            throughput=Throughput(value=speed, unit=row.throughput.unit if row.throughput else ""),
        )
