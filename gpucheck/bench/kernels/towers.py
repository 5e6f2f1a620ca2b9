"""Data-parallel training: towers share a batch, and their gradients are merged into one step.

The steps are those of `train`, with the size as each tower's batch. With several GPUs, each is a
tower, measured alone and then all at once. Both are launched step by step and timed by the host, so
that their ratio shows the scaling and not the method. A single GPU or the CPU simulates the towers
one after the other, and the result says so. The result must equal that of one tower on the whole
batch, and is checked against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from gpucheck.bench.case import Case, CaseOrder
from gpucheck.bench.gpu_training import GpuTraining, MultiGpuTraining
from gpucheck.bench.kernels.train import DATA_BYTES, TrainingKernel
from gpucheck.bench.mnist import INPUTS
from gpucheck.bench.model import Conclusion, Measurement
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.training import (
    CpuTraining,
    TrainingPlan,
    step_memory_bytes,
)
from gpucheck.drivers.gpu import GpuDevice
from gpucheck.report.errors import WrongUseError

_MOST_TOWERS = 64


class Towers(TrainingKernel):
    """The kernel `towers`."""

    id = "towers"
    sizes = MappingProxyType({BenchMode.QUICK: 512, BenchMode.DEFAULT: 1024, BenchMode.FULL: 4096})

    def validate(self, request: BenchRequest) -> None:
        """Refuse an invalid number of towers, and an unusable data file.

        Raises:
            WrongUseError: fewer than two, more than any machine has GPUs for, or an unusable file.
        """
        super().validate(request)
        if not 2 <= request.towers <= _MOST_TOWERS:
            raise WrongUseError(
                code="bad-towers",
                message=f"Towers must be 2 to {_MOST_TOWERS}, not {request.towers}.",
                remedy=("Give the number to simulate, for example --towers 4.",),
            )

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return two data sets, the reference's float64, and a step's arrays."""
        batches = 4 * 8 * INPUTS * shape[0]
        step = step_memory_bytes(shape[0])
        return 3 * DATA_BYTES + batches + (2 + gpu_count) * step

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the batches of both cases, and their steps' arrays."""
        return 2 * DATA_BYTES + 4 * step_memory_bytes(shape[0])

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return the cases of a single tower and of the simulated towers."""
        threads = order.cpu.threads
        return [
            CpuTraining(order, plan, threads, _name(plan.towers))
            for plan in self._plans(order, order.request.towers)
        ]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return this GPU alone; for the first GPU also all at once, or the simulated towers."""
        count = len(order.gpus)
        both = single, many = self._plans(order, count if count > 1 else order.request.towers)
        if count == 1:
            return [GpuTraining(order, plan, gpu, _name(plan.towers), fused=True) for plan in both]
        cases = [MultiGpuTraining(order, single, [gpu], _name(1), fused=True)]
        if gpu is order.gpus[0]:
            cases.append(MultiGpuTraining(order, many, order.gpus, _name(many.towers), fused=True))
        return cases

    def _plans(self, order: CaseOrder, towers: int) -> tuple[TrainingPlan, TrainingPlan]:
        batch = order.shape[0]
        return (
            TrainingPlan(kernel=self.id, batch=batch),
            TrainingPlan(kernel=self.id, batch=batch * towers, towers=towers),
        )

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        """Return the scaling efficiency of each group of towers.

        There is none without the figure of each GPU alone: their sum would be too small.
        """
        alone = {
            row.device: row.throughput.value
            for row in rows
            if row.throughput is not None and row.parameters.get("towers") == 1
        }
        gpu_count = sum(device != "cpu" for device in alone)
        return [
            _scaling(row, alone)
            for row in rows
            if row.throughput is not None
            and row.parameters.get("towers") != 1
            and row.device in alone
            and (row.facts.get("simulated") == "yes" or row.parameters["towers"] == gpu_count)
        ]


def _name(towers: int) -> str:
    return "1-tower" if towers == 1 else f"{towers}-towers"


def _scaling(row: Measurement, alone: dict[str, float]) -> Conclusion:
    """Compare towers with the throughput of their devices alone.

    For towers on separate GPUs: T(N) / sum of T_i(alone). Simulated towers share a device, so the
    ideal is that device's own throughput. The missing part is the cost of merging.
    """
    towers = int(row.parameters["towers"])
    if row.facts.get("simulated") == "yes":
        share = row.speed / alone[row.device]
        why = "the larger batch outweighs" if share > 1 else "the rest is"
        sentence = (
            f"{row.device}: {towers} towers simulated on one device reach {share:.0%} of one "
            f"tower's throughput; {why} the cost of merging, and this is not scaling"
        )
    else:
        gpus = {name: value for name, value in alone.items() if name.startswith("gpu:")}
        share = row.speed / sum(gpus.values())
        slowest = min(gpus, key=lambda name: gpus[name])
        sentence = (
            f"{towers} towers at once reach {share:.0%} of the GPUs' throughput alone: one GPU "
            "merges them, one after the other, so the rest is no measure of the machine; the "
            f"slowest alone is {slowest}"
        )
    simulated = str(row.facts.get("simulated"))
    return Conclusion.of(
        row, "scaling", sentence, towers=towers, efficiency=share, simulated=simulated
    )
