"""Training of a softmax regression from 784 pixels to 10 classes: images per second.

Batches of 100 and a learning rate of 0.1, as in tutorials. A step of batch b takes 4 b 785 10
operations (two products; the bias is a constant input). The accuracy is counted after 1000 steps
from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from gpucheck.bench.case import Case, CaseOrder, Kernel, Work, thread_counts
from gpucheck.bench.gpu_training import CopiedTraining, GpuTraining
from gpucheck.bench.mnist import INPUTS, check_data_file
from gpucheck.bench.model import Conclusion, Measurement
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.training import (
    CpuTraining,
    TrainingPlan,
    step_memory_bytes,
    step_work,
)
from gpucheck.drivers.gpu import GpuDevice

#: Bytes of the largest generated data set, or of MNIST, as float32.
DATA_BYTES = 4 * INPUTS * 70_000


class TrainingKernel(Kernel):
    """Base of the kernels that train: their size is the batch."""

    uses_blas = True

    def validate(self, request: BenchRequest) -> None:
        """Refuse a data file that cannot be used.

        Raises:
            WrongUseError: it cannot be read, or is not MNIST.
        """
        check_data_file(request)

    def shape(self, size: int) -> tuple[int, ...]:
        """Return the batch."""
        return (size,)

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return a step's work."""
        return step_work(shape[0])


class Train(TrainingKernel):
    """The kernel `train`."""

    id = "train"
    sizes = MappingProxyType(dict.fromkeys(BenchMode, 100))

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the data twice, the batches in float64, and a step's arrays."""
        data = 2 * DATA_BYTES + 8 * INPUTS * shape[0] * 2
        return data + (1 + gpu_count) * 2 * step_memory_bytes(shape[0])

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return the batches of two cases, and the arrays of all steps."""
        return 2 * DATA_BYTES + 4 * step_memory_bytes(shape[0])

    def cpu_cases(self, order: CaseOrder) -> Sequence[Case]:
        """Return NumPy with all threads and with one."""
        plan = TrainingPlan(kernel=self.id, batch=order.shape[0], trained=True)
        return [CpuTraining(order, plan, count, "numpy") for count in thread_counts(order.cpu)]

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return steps as one graph, as launches with cuBLAS, and with a batch sent each time."""
        plan = TrainingPlan(kernel=self.id, batch=order.shape[0], trained=True)
        return [
            GpuTraining(order, plan, gpu, "fused", fused=True),
            GpuTraining(order, plan, gpu, "cublas"),
            CopiedTraining(order, plan, gpu, "copied"),
        ]

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        """Return each device's accuracy, and the images that it was trained on."""
        conclusions: dict[str, Conclusion] = {}
        for row in rows:
            accuracy = row.facts.get("accuracy")
            if isinstance(accuracy, float) and row.device not in conclusions:
                conclusions[row.device] = _learnt(row, accuracy)
        return list(conclusions.values())


def _learnt(row: Measurement, accuracy: float) -> Conclusion:
    source, steps = str(row.facts.get("images")), row.facts.get("accuracy_steps", 0)
    trained, tested = row.facts.get("trained_images"), row.facts.get("tested_images")
    images = f"{trained} images from the file"
    if source != "file":
        images = f"{trained} {source} images (--data takes MNIST)"
    sentence = (
        f"{row.device}: {accuracy:.1%} accuracy on {tested} test images after {steps} "
        f"steps on {images}"
    )
    return Conclusion.of(row, "accuracy", sentence, accuracy=accuracy, steps=steps, images=source)
