"""Throughput and memory of training against the batch size, and the knee of the curve.

The steps are those of `train`, with batches from 1 to the given size. The knee is the smallest
batch that reaches nine tenths of the best throughput. A larger batch costs memory and gains little.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from gpucheck.bench.case import Case, CaseOrder
from gpucheck.bench.gpu_training import GpuTraining
from gpucheck.bench.kernels.train import DATA_BYTES, TrainingKernel
from gpucheck.bench.mnist import INPUTS
from gpucheck.bench.model import Conclusion, Fact, Measurement
from gpucheck.bench.request_model import BenchMode
from gpucheck.bench.training import (
    CpuTraining,
    TrainingPlan,
    step_memory_bytes,
)
from gpucheck.drivers.gpu import GpuDevice

#: Share of the best throughput that a batch must reach to be the knee.
KNEE_SHARE = 0.9
_FACTORS = {BenchMode.QUICK: 16, BenchMode.DEFAULT: 8, BenchMode.FULL: 2}


class Batch(TrainingKernel):
    """The kernel `batch`."""

    id = "batch"
    #: Powers of the modes' factors.
    sizes = MappingProxyType(
        {BenchMode.QUICK: 4096, BenchMode.DEFAULT: 4096, BenchMode.FULL: 16384}
    )

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return a data set for each batch size, the reference's float64, and a step's arrays."""
        batches = 16 * 8 * INPUTS * shape[0]
        return 2 * DATA_BYTES + batches + (1 + gpu_count) * step_memory_bytes(shape[0])

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the batches of every size, and the largest step's arrays."""
        return 16 * (4 * INPUTS * shape[0] * 2 + DATA_BYTES // 16)

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return NumPy with all threads at each batch size."""
        return [
            CpuTraining(
                order, TrainingPlan(kernel=self.id, batch=batch), order.cpu.threads, "numpy"
            )
            for batch in batch_sizes(order.shape[0], order.request.mode)
        ]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return the GPU's steps at each batch size."""
        return [
            GpuTraining(order, TrainingPlan(kernel=self.id, batch=batch), gpu, "cublas")
            for batch in batch_sizes(order.shape[0], order.request.mode)
        ]

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        """Return each device's knee."""
        conclusions = []
        for device in dict.fromkeys(row.device for row in rows):
            points = {row.shape[0]: row for row in rows if row.device == device and row.throughput}
            if len(points) > 1:
                conclusions.append(_knee(points))
        return conclusions


def batch_sizes(largest: int, mode: BenchMode) -> list[int]:
    """Return the sweep's batch sizes, from 1 to the largest."""
    sizes, size = [], 1
    while size < largest:
        sizes.append(size)
        size *= _FACTORS[mode]
    return [*sizes, largest]


def _knee(points: dict[int, Measurement]) -> Conclusion:
    best = max(row.speed for row in points.values())
    knee = min(batch for batch, row in points.items() if row.speed >= KNEE_SHARE * best)
    row, memory = points[knee], step_memory_bytes(knee)
    if knee == max(points):
        sentence = f"{row.device}: throughput still grows at batch {knee}, the largest known"
    else:
        share = 100 * row.speed / best
        sentence = (
            f"{row.device}: batch {knee} reaches {share:.0f} % of the best throughput with "
            f"{memory / 2**20:.2g} MiB; larger batches gain little"
        )
    facts: dict[str, Fact] = {"batch": knee, "images_per_s": row.speed, "memory_bytes": memory}
    return Conclusion.of(row, "knee", sentence, **facts)
