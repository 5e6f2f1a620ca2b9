"""Training step on a GPU: its images there, its kernels, and one tower's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gpucheck.bench import regression
from gpucheck.bench.regression import CLASSES, INPUTS, WEIGHTS, Dataset
from gpucheck.bench.training import Plan
from gpucheck.drivers.gpu import GpuArray, GpuDevice, GpuFunction, Product

#: Threads in a block of train.cu's kernels: `gradient` and `merge`, `forward`, `project`.
_BLOCK, _FORWARD_BLOCK, _PROJECT_BLOCK = 128, 128, 512
#: Lanes of a warp: `forward` gives each image one warp, `project` each warp this many inputs.
_WARP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A tower's images of one step, their targets, and the place for their errors."""

    images: GpuArray
    targets: GpuArray
    errors: GpuArray
    size: int


class _Arithmetic(Protocol):
    """Arithmetic of a batch's gradient."""

    def enqueue(
        self, batch: _Batch, weights: GpuArray, out: GpuArray, scale: float, *, added: bool
    ) -> None:
        """Enqueue out = scale X' G, or out += scale X' G, with G = softmax(X W) - targets."""
        ...


class _Fused:
    """Two launches of train.cu, without a library: a graph can replay any number of steps."""

    def __init__(self, gpu: GpuDevice) -> None:
        source = regression.source_text()
        self._forward: GpuFunction = gpu.compile(source, "forward")
        self._project: GpuFunction = gpu.compile(source, "project")

    def enqueue(
        self, batch: _Batch, weights: GpuArray, out: GpuArray, scale: float, *, added: bool
    ) -> None:
        """Enqueue both."""
        import numpy as np

        rows = np.int64(batch.size)
        arguments = (batch.images, weights, batch.targets, batch.errors, rows)
        self._forward(-(-batch.size * _WARP // _FORWARD_BLOCK), _FORWARD_BLOCK, arguments)
        projected = (batch.images, batch.errors, out, np.float32(scale), np.int32(added), rows)
        self._project(-(-INPUTS // _WARP), _PROJECT_BLOCK, projected)


class _Cublas:
    """Two cuBLAS products around a kernel of train.cu; CuPy does not capture cuBLAS."""

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu = gpu
        self._gradient: GpuFunction = gpu.compile(regression.source_text(), "gradient")

    def enqueue(
        self, batch: _Batch, weights: GpuArray, out: GpuArray, scale: float, *, added: bool
    ) -> None:
        """Enqueue all three; the second product adds the result itself."""
        import numpy as np

        self._gpu.multiply(batch.images, weights, batch.errors)
        arguments = (batch.errors, batch.targets, np.int64(batch.size))
        self._gradient(-(-batch.size // _BLOCK), _BLOCK, arguments)
        product = Product(left_transposed=True, alpha=scale, beta=1.0 if added else 0.0)
        self._gpu.multiply(batch.images, batch.errors, out, product)


class Tower:
    """One GPU's share of a step: its part of every batch, its weights and its gradient.

    `numbers` are the towers that it computes, `batches` the number of batches that it holds.
    """

    def __init__(
        self,
        gpu: GpuDevice,
        dataset: Dataset,
        plan: Plan,
        numbers: Sequence[int],
        *,
        fused: bool,
        batches: int,
    ) -> None:
        self.gpu = gpu
        self.part = plan.batch // plan.towers
        self.arithmetic: _Arithmetic = _Fused(gpu) if fused else _Cublas(gpu)
        # Towers of one GPU may run at the same time, so each has its own place for its errors.
        self.errors = gpu.allocate((self.part * len(numbers), CLASSES))
        self.batches = [
            self._uploaded(dataset, plan, number, place, batches)
            for place, number in enumerate(numbers)
        ]
        self.weights = gpu.allocate((INPUTS, CLASSES))
        self.gradients = gpu.allocate((plan.towers * INPUTS, CLASSES))
        self._merge: GpuFunction = gpu.compile(regression.source_text(), "merge")

    def _uploaded(
        self, dataset: Dataset, plan: Plan, number: int, place: int, count: int
    ) -> list[_Batch]:
        """Return a tower's rows of every batch, in one array on the GPU."""
        import numpy as np

        part, gpu = self.part, self.gpu
        lows = [start * plan.batch + number * part for start in range(count)]
        images, targets = (
            gpu.upload(np.concatenate([values[low : low + part] for low in lows]))
            for values in (dataset.images, dataset.targets)
        )
        errors = gpu.rows(self.errors, place * part, (place + 1) * part)
        return [
            _Batch(
                images=gpu.rows(images, low, low + part),
                targets=gpu.rows(targets, low, low + part),
                errors=errors,
                size=part,
            )
            for low in range(0, part * count, part)
        ]

    def slot(self, number: int) -> GpuArray:
        """Return the place of one tower's gradient."""
        return self.gpu.rows(self.gradients, number * INPUTS, (number + 1) * INPUTS)

    def compute(self, which: int, turn: int, out: GpuArray, scale: float) -> None:
        """Enqueue one tower's gradient of one batch: out = scale X' G."""
        batches = self.batches[which]
        batch = batches[turn % len(batches)]
        self.arithmetic.enqueue(batch, self.weights, out, scale, added=False)

    def step(self, turn: int, scale: float) -> None:
        """Enqueue a whole step of a single tower, which updates the weights itself."""
        batch = self.batches[0][turn % len(self.batches[0])]
        self.arithmetic.enqueue(batch, self.weights, self.weights, -scale, added=True)

    def merge(self, towers: int) -> None:
        """Enqueue the subtraction of all towers' gradients from the weights."""
        import numpy as np

        arguments = (self.weights, self.gradients, np.int32(towers), np.int64(WEIGHTS))
        self._merge(-(-WEIGHTS // _BLOCK), _BLOCK, arguments)
