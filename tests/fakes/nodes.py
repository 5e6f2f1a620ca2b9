"""Synthetic nodes of eight H100 in the profile `acceptance`: drawn figures, real gates."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache

from gpucheck.bench.boards import load_table
from gpucheck.bench.ci.gates import exit_status, judge, settled
from gpucheck.bench.ci.limits import expected_of, scale_of
from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.profile_model import Aggregate, Check, Profile
from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.ci.run_data import RunData
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

GPUS = 8
#: What one process adds to a GPU's own factor.
PROCESS_NOISE = 0.01


@cache
def _profile() -> Profile:
    return load_profile("acceptance")


@cache
def _board() -> Board:
    return board_from(next(one for one in load_table().boards if one.name == "H100 SXM"))


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
    """A node whose healthy GPUs reach in the mean just what the profile expects of them.

    They differ by a normal factor of the standard deviation `spread`, the same in each check if
    `common`, else another in each; the first is slower than that by `slower_percent`.
    """

    def __init__(
        self, dice: random.Random, spread: float, slower_percent: float, *, common: bool
    ) -> None:
        self._dice = dice
        self._checks = [one for one in _profile().checks if one.per is Aggregate.DEVICE]
        self._own: dict[tuple[str, str], float] = {}
        for at in range(GPUS):
            slower = math.log(1 - slower_percent / 100) if at == 0 else 0.0
            alike = dice.gauss(0.0, spread)
            for check in self._checks:
                own = alike if common else dice.gauss(0.0, spread)
                self._own[f"gpu:{at}", check.id] = slower + own

    def judged(self) -> tuple[int, tuple[Gate, ...]]:
        """Return the exit code and the gates, after as many processes as it takes."""
        plan, runs = _profile().run, list[ProcessRun]()
        for number in range(plan.max_processes):
            runs += self._repeat(number)
            if number + 1 < plan.processes:
                continue
            gates = judge(RunData(profile=_profile(), node=node(GPUS), runs=runs))
            if settled(gates):
                break
        return int(exit_status(gates)[0]), gates

    def _repeat(self, number: int) -> list[ProcessRun]:
        return [
            self._process(f"gpu:{at}", number, together=together)
            for together in (False, True)
            for at in range(GPUS)
        ]

    def _process(self, device: str, number: int, *, together: bool) -> ProcessRun:
        rows = [
            self._measured(check, device) for check in self._checks if check.together is together
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

    def _measured(self, check: Check, device: str) -> Measurement:
        row, expected = _row(check.id, device)
        own = self._own[device, check.id] + self._dice.gauss(0.0, PROCESS_NOISE)
        speed = expected * math.exp(own)
        return replace(
            row,
            time_s=1e9 / speed,
            round_medians_s=(1e9 / speed,),
            throughput=Throughput(value=speed, unit=row.throughput.unit if row.throughput else ""),
        )
