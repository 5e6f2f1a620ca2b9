"""Training cases on GPUs: a step's kernels, one tower's share, and the cases that time them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gpucheck.bench.case import Case, CaseOrder
from gpucheck.bench.gpu_case import EventCase, gpu_label
from gpucheck.bench.mnist import CLASSES, INPUTS, Dataset
from gpucheck.bench.model import Fact, Scope, Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.training import (
    RATE,
    WEIGHTS,
    TrainingPlan,
    TrainingState,
    batch_count,
    step_work,
)
from gpucheck.drivers.gpu import GpuArray, GpuDevice, GpuFunction, Product

#: Threads in a block of train.cu's kernels: `gradient` and `merge`, `forward`, `project`.
_BLOCK, _FORWARD_BLOCK, _PROJECT_BLOCK = 128, 128, 512
#: Lanes of a warp: `forward` gives each image one warp, `project` each warp this many inputs.
_WARP = 32
_FLOAT32 = FORMATS["float32"].spec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """A tower's images of one step, their targets, and the place for their errors."""

    images: GpuArray
    targets: GpuArray
    errors: GpuArray
    size: int


class _Fused:
    """Gradient in two launches of train.cu, without a library: a graph can replay any steps."""

    def __init__(self, gpu: GpuDevice) -> None:
        source = _source()
        self._forward: GpuFunction = gpu.compile(source, "forward")
        self._project: GpuFunction = gpu.compile(source, "project")

    def enqueue(
        self, batch: _Batch, weights: GpuArray, out: GpuArray, scale: float, *, added: bool
    ) -> None:
        """Enqueue out = scale X' G, or out += scale X' G, with G = softmax(X W) - targets."""
        import numpy as np

        rows = np.int64(batch.size)
        arguments = (batch.images, weights, batch.targets, batch.errors, rows)
        self._forward(-(-batch.size * _WARP // _FORWARD_BLOCK), _FORWARD_BLOCK, arguments)
        projected = (batch.images, batch.errors, out, np.float32(scale), np.int32(added), rows)
        self._project(-(-INPUTS // _WARP), _PROJECT_BLOCK, projected)


class _Cublas:
    """Gradient in two cuBLAS products and a kernel of train.cu; CuPy does not capture cuBLAS."""

    def __init__(self, gpu: GpuDevice) -> None:
        self._gpu = gpu
        self._gradient: GpuFunction = gpu.compile(_source(), "gradient")

    def enqueue(
        self, batch: _Batch, weights: GpuArray, out: GpuArray, scale: float, *, added: bool
    ) -> None:
        """Enqueue the same; the second product adds the result itself."""
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
        plan: TrainingPlan,
        numbers: Sequence[int],
        *,
        fused: bool,
        batches: int,
    ) -> None:
        self.gpu = gpu
        self.part = plan.batch // plan.towers
        self.arithmetic = _Fused(gpu) if fused else _Cublas(gpu)
        # Towers of one GPU may run at the same time, so each has its own place for its errors.
        self.errors = gpu.allocate((self.part * len(numbers), CLASSES))
        self.batches = [
            self._uploaded(dataset, plan, number, place, batches)
            for place, number in enumerate(numbers)
        ]
        self.weights = gpu.allocate((INPUTS, CLASSES))
        self.gradients = gpu.allocate((plan.towers * INPUTS, CLASSES))
        self._merge: GpuFunction = gpu.compile(_source(), "merge")

    def _uploaded(
        self, dataset: Dataset, plan: TrainingPlan, number: int, place: int, count: int
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

    def compute(self, which: int, step_number: int, out: GpuArray, scale: float) -> None:
        """Enqueue one tower's gradient of one batch: out = scale X' G."""
        batches = self.batches[which]
        batch = batches[step_number % len(batches)]
        self.arithmetic.enqueue(batch, self.weights, out, scale, added=False)

    def step(self, step_number: int, scale: float) -> None:
        """Enqueue a whole step of a single tower, which updates the weights itself."""
        batch = self.batches[0][step_number % len(self.batches[0])]
        self.arithmetic.enqueue(batch, self.weights, self.weights, -scale, added=True)

    def merge(self, towers: int) -> None:
        """Enqueue the subtraction of all towers' gradients from the weights."""
        import numpy as np

        arguments = (self.weights, self.gradients, np.int32(towers), np.int64(WEIGHTS))
        self._merge(-(-WEIGHTS // _BLOCK), _BLOCK, arguments)


class _GpuTraining(Case):
    """Base of the cases on one GPU and on several; the host's clock times most of them."""

    def __init__(
        self,
        order: CaseOrder,
        plan: TrainingPlan,
        gpus: Sequence[GpuDevice],
        variant: str,
        *,
        fused: bool = False,
    ) -> None:
        self._fused = fused
        self._order = order
        self._plan = plan
        self._gpus = gpus
        self._training = TrainingState(order, plan)
        self._towers: list[Tower] = []
        self._scale = RATE / plan.batch
        self.label = plan.label(gpu_label(order, plan.kernel, variant, gpus[0].facts, _FLOAT32))
        self.work = step_work(plan.batch)
        self._used_bytes = 0

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return the source of the images, the memory, the accuracy and the towers."""
        own: dict[str, Fact] = {"gpu_memory_used_bytes": self._used_bytes}
        if self._plan.towers > 1:
            own["simulated"] = "yes" if len(self._gpus) < self._plan.towers else "no"
        return self._training.facts() | own

    def prepare(self) -> None:
        """Put each tower's images on its GPU; a single GPU holds all of them."""
        dataset, plan = self._training.load(), self._plan
        for place, gpu in enumerate(self._gpus):
            numbers = range(plan.towers) if len(self._gpus) == 1 else (place,)
            tower = Tower(
                gpu, dataset, plan, numbers, fused=self._fused, batches=self._batches_held(dataset)
            )
            self._towers.append(tower)
        self._used_bytes = self._gpus[0].memory_used_bytes()

    def _batches_held(self, dataset: Dataset) -> int:
        """Return how many batches stay on the GPU: all that the steps use."""
        return batch_count(dataset, self._plan.batch)

    def poison(self) -> None:
        """Start from zero, with NaN in the results of a step."""
        for tower in self._towers:
            tower.gpu.poison(tower.gradients)
            tower.gpu.poison(tower.errors)
        self._training.steps_done = 0
        self._zero()

    def _zero(self) -> None:
        import numpy as np

        zeros = np.zeros((INPUTS, CLASSES), dtype=np.float32)
        for tower in self._towers:
            tower.gpu.synchronize()
            tower.gpu.send(zeros, tower.weights)
            tower.gpu.synchronize()

    @abstractmethod
    def step(self) -> None:
        """Enqueue one step."""

    def run(self, loops: int) -> float:
        """Train `loops` steps and return the time until the last GPU has finished."""
        for gpu in self._gpus:
            gpu.synchronize()
        start_s = self._order.clock()
        for _ in range(loops):
            self.step()
        return self._order.clock() - start_s

    def check(self) -> Verified:
        """Compare the weights after a few steps from zero with float64."""
        lead = self._towers[0]

        def walk(steps: int) -> None:
            for _ in range(steps):
                self.step()
            lead.gpu.synchronize()

        return self._training.check(self._zero, walk, lambda: lead.gpu.download(lead.weights))

    def release(self) -> None:
        """Release the GPUs' memory."""
        self._towers.clear()
        for gpu in self._gpus:
            gpu.release()


class GpuTraining(EventCase, _GpuTraining):
    """Steps on one GPU that holds all data, with a stream for each tower, timed by events.

    Fused steps are replayed as one graph: the host does nothing between two steps.
    """

    def __init__(
        self,
        order: CaseOrder,
        plan: TrainingPlan,
        gpu: GpuDevice,
        variant: str,
        *,
        fused: bool = False,
    ) -> None:
        EventCase.__init__(self, gpu)
        _GpuTraining.__init__(self, order, plan, [gpu], variant, fused=fused)

    @property
    def sm_clock_mhz(self) -> float | None:
        """Return the measured SM clock of the last run."""
        return self._timer.sm_clock_mhz

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return the common facts, and how the launches reached the GPU."""
        return {**super().facts, "launched_as": "graph" if self._fused else "stream"}

    @property
    def loop_step(self) -> int:
        """Return the number of batches if a graph replays the steps, so that one graph will do."""
        if not self._fused:
            return 1
        return batch_count(self._training.load(), self._plan.batch)

    def step(self) -> None:
        """Enqueue one step."""
        step_number = self._training.steps_done
        self._training.steps_done += 1
        self._enqueue(step_number)

    def _enqueue(self, step_number: int) -> None:
        plan, (tower,) = self._plan, self._towers
        if plan.towers == 1:
            tower.step(step_number, self._scale)
            return
        works = [
            partial(tower.compute, number, step_number, tower.slot(number), self._scale)
            for number in range(plan.towers)
        ]
        tower.gpu.side_by_side(works)
        tower.merge(plan.towers)

    def run(self, loops: int) -> float:
        """Train `loops` steps and return their device time."""
        first = self._training.steps_done % len(self._towers[0].batches[0])
        self._training.steps_done += loops

        def enqueue() -> None:
            for step_number in range(first, first + loops):
                self._enqueue(step_number)

        return self._timer.seconds(enqueue, (first, loops) if self._fused else None)

    def release(self) -> None:
        """Drop the graphs and release the GPU's memory."""
        self._timer.clear()
        super().release()


class CopiedTraining(_GpuTraining):
    """Steps for which the host sends a batch each time and waits, as in tutorials.

    Timed by the host's clock, since such a program waits for it. The arithmetic is the fused one,
    so the loss against `GpuTraining` comes from the data transfers.
    """

    def __init__(self, order: CaseOrder, plan: TrainingPlan, gpu: GpuDevice, variant: str) -> None:
        super().__init__(order, plan, [gpu], variant, fused=True)
        self.label = replace(self.label, scope=Scope.END_TO_END)

    def _batches_held(self, dataset: Dataset) -> int:
        """Return 1: every batch is sent to the same place."""
        return 1

    def step(self) -> None:
        """Send a batch from ordinary memory, train on it, and wait."""
        (tower,), dataset, size = self._towers, self._training.load(), self._plan.batch
        low = self._training.steps_done % batch_count(dataset, size) * size
        self._training.steps_done += 1
        (held,) = tower.batches[0]
        tower.gpu.send(dataset.images[low : low + size], held.images)
        tower.gpu.send(dataset.targets[low : low + size], held.targets)
        tower.step(0, self._scale)
        tower.gpu.synchronize()


class MultiGpuTraining(_GpuTraining):
    """Steps on several GPUs, each a tower, timed by the host until the last has finished.

    One GPU is timed in the same way, as the reference for several.
    """

    _is_direct = True

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return the common facts, that the host launches each step, and the gradients' route."""
        facts = {**super().facts, "launched_as": "stream", "timed_by": "host"}
        if len(self._gpus) > 1:
            facts["route"] = "direct" if self._is_direct else "through the host"
        return facts

    def prepare(self) -> None:
        """Put each tower's images on its GPU, and enable direct copies where possible."""
        super().prepare()
        lead, *others = self._gpus
        reached = [
            sender.reaches(to) for gpu in others for sender, to in ((lead, gpu), (gpu, lead))
        ]
        self._is_direct = all(reached)

    def step(self) -> None:
        """Run one step: gradients in parallel; the first GPU merges them and sends weights back."""
        step_number = self._training.steps_done
        self._training.steps_done += 1
        lead, *others = self._towers
        for number, tower in enumerate(self._towers):
            tower.compute(0, step_number, tower.slot(number), self._scale)
        for number, tower in enumerate(others, start=1):
            tower.gpu.synchronize()
            lead.gpu.copy_from(tower.gpu, tower.slot(number), lead.slot(number))
        lead.merge(self._plan.towers)
        lead.gpu.synchronize()
        for tower in others:
            tower.gpu.copy_from(lead.gpu, lead.weights, tower.weights)
        for tower in others:
            tower.gpu.synchronize()


def _source() -> str:
    """Return the CUDA source of a training step."""
    return (Path(__file__).parent / "kernels" / "train.cu").read_text(encoding="utf-8")
