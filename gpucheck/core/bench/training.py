"""The cases of the training kernels: one tower or several, on the processor and on GPUs.

Towers each compute the gradient of their own part of a batch with the same weights; the gradients
are merged into one step. So several towers give what one tower gives on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucheck.core.bench import regression
from gpucheck.core.bench.cpu_case import CpuCase, cpu_label
from gpucheck.core.bench.formats import FORMATS
from gpucheck.core.bench.gpu_case import GpuTimer, gpu_label
from gpucheck.core.bench.kernel import EVENT_SPAN_S, HOST_SPAN_S, CacheFit, CaseLabel, CaseOrder
from gpucheck.core.bench.regression import CLASSES, INPUTS, RATE, WEIGHTS, Dataset
from gpucheck.models.bench import Fact, Verified
from gpucheck.probes.cupy_device import GpuArray, GpuDevice, GpuFunction, Product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

_FLOAT32 = FORMATS["float32"].spec
_BLOCK = 128
_LOGITS = Product()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is trained: the kernel that asks, the images in a step, and how many towers share it.

    `trained` also counts the accuracy after a thousand steps.
    """

    kernel: str
    batch: int
    towers: int = 1
    trained: bool = False

    def label(self, made: CaseLabel) -> CaseLabel:
        """Return the row's label: the shape is a tower's batch, and the towers are a parameter."""
        found = replace(made, shape=(self.batch // self.towers,))
        if self.kernel != "towers":
            return found
        return replace(found, parameters={"towers": self.towers})


class _Training:
    """What the cases share: the data, the walk through its batches, and the checks."""

    def __init__(self, order: CaseOrder, plan: Plan) -> None:
        self._order = order
        self._plan = plan
        self._turn = 0
        self._accuracy: float | None = None
        self._facts: dict[str, Fact] = {}

    def load(self) -> Dataset:
        """Return the group's data."""
        return regression.load_dataset(self._order, self._plan.batch)

    def facts(self) -> dict[str, Fact]:
        """Return where the images come from, and what a step holds in memory."""
        memory = regression.step_memory_bytes(self._plan.batch)
        found: dict[str, Fact] = {"images": self.load().source, "memory_bytes": memory}
        if self._plan.towers > 1:
            found["towers"] = self._plan.towers
        return found | self._facts

    def check(
        self,
        zero: Callable[[], None],
        walk: Callable[[int], None],
        weights: Callable[[], HostArray],
    ) -> Verified:
        """Train from zero and compare; the weights that the timed steps left must be finite."""
        import numpy as np

        left = weights()
        dataset = self.load()
        expected = regression.expected_weights(self._order, dataset, self._plan.batch)
        self._turn = 0
        zero()
        walk(regression.CHECKED_STEPS)
        found = regression.verify_weights(weights(), expected)
        if self._plan.trained and "accuracy" not in self._facts:
            walk(regression.TRAINED_STEPS - regression.CHECKED_STEPS)
            self._facts["accuracy"] = regression.accuracy(dataset, weights())
            self._facts["accuracy_steps"] = regression.TRAINED_STEPS
        if not np.all(np.isfinite(left)):
            return replace(found, error=None, ok=False)
        return found


class CpuTraining(CpuCase):
    """A training step in NumPy with preallocated arrays; its towers work one after the other."""

    walks_memory = False

    def __init__(self, order: CaseOrder, plan: Plan, threads: int, variant: str) -> None:
        label = plan.label(cpu_label(order, plan.kernel, variant, threads, _FLOAT32))
        super().__init__(order, label, regression.step_work(plan.batch))
        self._training = _Training(order, plan)
        self._plan = plan

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return where the images come from, the memory, the accuracy and the towers."""
        simulated: dict[str, Fact] = {"simulated": "yes"} if self._plan.towers > 1 else {}
        return self._training.facts() | simulated

    def prepare(self) -> None:
        """Load the data, cut it into batches and those into towers, and allocate."""
        import numpy as np

        dataset, plan = self._training.load(), self._plan
        part = plan.batch // plan.towers
        self._batches = [
            [
                (dataset.images[low : low + part], dataset.targets[low : low + part])
                for low in range(start, start + plan.batch, part)
            ]
            for start in range(
                0, regression.batch_count(dataset, plan.batch) * plan.batch, plan.batch
            )
        ]
        self._weights = np.zeros((INPUTS, CLASSES), dtype=np.float32)
        self._logits = np.empty((part, CLASSES), dtype=np.float32)
        self._row = np.empty((part, 1), dtype=np.float32)
        self._gradients = np.empty((plan.towers, INPUTS, CLASSES), dtype=np.float32)
        self._merged = np.empty((INPUTS, CLASSES), dtype=np.float32)

    def poison(self) -> None:
        """Start from zero, with NaN in what a step computes."""
        self._weights.fill(0)
        self._gradients.fill(float("nan"))
        self._logits.fill(float("nan"))

    def step(self) -> None:
        """Train on the next batch."""
        import numpy as np

        training = self._training
        towers = self._batches[training._turn % len(self._batches)]
        training._turn += 1
        for gradient, (inputs, targets) in zip(self._gradients, towers, strict=True):
            self._tower(inputs, targets, gradient)
        merged = self._gradients[0]
        if len(self._gradients) > 1:
            merged = np.add.reduce(self._gradients, axis=0, out=self._merged)
        np.multiply(merged, np.float32(RATE / self._plan.batch), out=merged)
        np.subtract(self._weights, merged, out=self._weights)

    def _tower(self, inputs: HostArray, targets: HostArray, gradient: HostArray) -> None:
        """Write the gradient of one tower's images, summed over them."""
        import numpy as np

        logits, row = self._logits, self._row
        np.matmul(inputs, self._weights, out=logits)
        np.maximum.reduce(logits, axis=1, keepdims=True, out=row)
        np.subtract(logits, row, out=logits)
        np.exp(logits, out=logits)
        np.add.reduce(logits, axis=1, keepdims=True, out=row)
        np.divide(logits, row, out=logits)
        np.subtract(logits, targets, out=logits)
        np.matmul(inputs.T, logits, out=gradient)

    def check(self) -> Verified:
        """Compare the weights after a few steps from zero with float64."""

        def walk(steps: int) -> None:
            with self._order.blas.limited(self._threads):
                for _ in range(steps):
                    self.step()

        return self._training.check(
            lambda: self._weights.fill(0), walk, lambda: self._weights.copy()
        )

    def release(self) -> None:
        """Drop the arrays; the data belongs to the group."""
        self._batches = []


class _Tower:
    """One GPU's share of a step: its part of every batch, its weights and its gradient."""

    def __init__(
        self, gpu: GpuDevice, dataset: Dataset, plan: Plan, numbers: Sequence[int]
    ) -> None:
        part = plan.batch // plan.towers
        count = regression.batch_count(dataset, plan.batch)
        self.gpu = gpu
        self.part = part
        self.images, self.targets = [], []
        for number in numbers:
            rows = [
                slice(start * plan.batch + number * part, start * plan.batch + (number + 1) * part)
                for start in range(count)
            ]
            self.images.append(self._uploaded(dataset.images, rows))
            self.targets.append(self._uploaded(dataset.targets, rows))
        self.weights = gpu.allocate((INPUTS, CLASSES))
        self.logits = gpu.allocate((part, CLASSES))
        self.gradients = gpu.allocate((plan.towers * INPUTS, CLASSES))
        source = regression.source_text()
        self._gradient: GpuFunction = gpu.compile(source, "gradient")
        self._merge: GpuFunction = gpu.compile(source, "merge")

    def _uploaded(self, values: HostArray, rows: Sequence[slice]) -> list[GpuArray]:
        """Return this tower's rows of every batch, in one array on the GPU."""
        import numpy as np

        held = self.gpu.upload(np.concatenate([values[part] for part in rows]))
        lows = range(0, self.part * len(rows), self.part)
        return [self.gpu.rows(held, low, low + self.part) for low in lows]

    def slot(self, number: int) -> GpuArray:
        """Return the place of one tower's gradient."""
        return self.gpu.rows(self.gradients, number * INPUTS, (number + 1) * INPUTS)

    def compute(self, which: int, turn: int, out: GpuArray, scale: float) -> None:
        """Enqueue logits, softmax and gradient of one batch: out = scale X' G."""
        import numpy as np

        images, targets = self.images[which], self.targets[which]
        inputs = images[turn % len(images)]
        self.gpu.multiply(inputs, self.weights, self.logits, _LOGITS)
        arguments = (self.logits, targets[turn % len(targets)], np.int64(self.part))
        self._gradient(-(-self.part // _BLOCK), _BLOCK, arguments)
        self.gpu.multiply(inputs, self.logits, out, Product(left_transposed=True, alpha=scale))

    def step(self, turn: int, scale: float) -> None:
        """Enqueue a whole step of a single tower: the second product updates the weights itself."""
        import numpy as np

        inputs = self.images[0][turn % len(self.images[0])]
        self.gpu.multiply(inputs, self.weights, self.logits, _LOGITS)
        targets = self.targets[0][turn % len(self.targets[0])]
        self._gradient(-(-self.part // _BLOCK), _BLOCK, (self.logits, targets, np.int64(self.part)))
        update = Product(left_transposed=True, alpha=-scale, beta=1.0)
        self.gpu.multiply(inputs, self.logits, self.weights, update)

    def merge(self, towers: int) -> None:
        """Enqueue the subtraction of all towers' gradients from the weights."""
        import numpy as np

        arguments = (self.weights, self.gradients, np.int32(towers), np.int64(WEIGHTS))
        self._merge(-(-WEIGHTS // _BLOCK), _BLOCK, arguments)


class _GpuTraining:
    """What the cases on one and on several GPUs share."""

    starved_share = 0.0
    sm_clock_mhz: float | None = None
    cache_fit: CacheFit | None = None

    def __init__(
        self, order: CaseOrder, plan: Plan, gpus: Sequence[GpuDevice], variant: str
    ) -> None:
        self._order = order
        self._plan = plan
        self._gpus = gpus
        self._training = _Training(order, plan)
        self._towers: list[_Tower] = []
        self._scale = RATE / plan.batch
        self.label = plan.label(gpu_label(order, plan.kernel, variant, gpus[0], _FLOAT32))
        self.work = regression.step_work(plan.batch)
        self._used_bytes = 0

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return where the images come from, the memory, the accuracy and the towers."""
        own: dict[str, Fact] = {"gpu_memory_used_bytes": self._used_bytes}
        if self._plan.towers > 1:
            own["simulated"] = "yes" if len(self._gpus) < self._plan.towers else "no"
        return self._training.facts() | own

    def prepare(self) -> None:
        """Put each tower's images on its GPU; one GPU holds them all if there is only one."""
        dataset, plan = self._training.load(), self._plan
        for place, gpu in enumerate(self._gpus):
            numbers = range(plan.towers) if len(self._gpus) == 1 else (place,)
            self._towers.append(_Tower(gpu, dataset, plan, numbers))
        self._used_bytes = self._gpus[0].memory_used_bytes()

    def poison(self) -> None:
        """Start from zero, with NaN in what a step computes."""
        for tower in self._towers:
            tower.gpu.poison(tower.gradients)
            tower.gpu.poison(tower.logits)
        self._zero()

    def _zero(self) -> None:
        import numpy as np

        zeros = np.zeros((INPUTS, CLASSES), dtype=np.float32)
        for tower in self._towers:
            tower.gpu.synchronize()
            tower.gpu.send(zeros, tower.weights)
            tower.gpu.synchronize()

    def step(self) -> None:
        """Enqueue one step."""
        raise NotImplementedError

    def check(self) -> Verified:
        """Compare the weights after a few steps from zero with float64."""
        lead = self._towers[0]

        def walk(steps: int) -> None:
            for _ in range(steps):
                self.step()
            lead.gpu.synchronize()

        return self._training.check(self._zero, walk, lambda: lead.gpu.download(lead.weights))

    def release(self) -> None:
        """Give the GPUs' memory back."""
        self._towers.clear()
        for gpu in self._gpus:
            gpu.release()


class GpuTraining(_GpuTraining):
    """Steps on one GPU, its towers one after the other, timed by events."""

    shortest_span_s = EVENT_SPAN_S

    def __init__(self, order: CaseOrder, plan: Plan, gpu: GpuDevice, variant: str) -> None:
        super().__init__(order, plan, [gpu], variant)
        self._timer = GpuTimer(gpu)

    @property
    def starved_share(self) -> float:  # type: ignore[override]
        """Return the share of the spans in which the GPU may have waited for the host."""
        return self._timer.starved_share

    @property
    def sm_clock_mhz(self) -> float | None:  # type: ignore[override]
        """Return the SMs' real clock in the last run."""
        return self._timer.sm_clock_mhz

    def step(self) -> None:
        """Enqueue one step."""
        training, plan, (tower,) = self._training, self._plan, self._towers
        turn = training._turn
        training._turn += 1
        if plan.towers == 1:
            tower.step(turn, self._scale)
            return
        for number in range(plan.towers):
            tower.compute(number, turn, tower.slot(number), self._scale)
        tower.merge(plan.towers)

    def run(self, loops: int) -> float:
        """Train `loops` steps and return their device time."""

        def enqueue() -> None:
            for _ in range(loops):
                self.step()

        return self._timer.seconds(enqueue)


class MultiGpuTraining(_GpuTraining):
    """Steps on several GPUs, each a tower, timed by the host's clock until the last is done."""

    shortest_span_s = HOST_SPAN_S

    def step(self) -> None:
        """Run one step: gradients at once, gathered and merged by the first, weights sent back."""
        turn = self._training._turn
        self._training._turn += 1
        lead, *others = self._towers
        for number, tower in enumerate(self._towers):
            tower.compute(0, turn, tower.slot(number), self._scale)
        for number, tower in enumerate(others, start=1):
            tower.gpu.synchronize()
            lead.gpu.copy_from(tower.gpu, tower.slot(number), lead.slot(number))
        lead.merge(self._plan.towers)
        lead.gpu.synchronize()
        for tower in others:
            tower.gpu.copy_from(lead.gpu, lead.weights, tower.weights)
        for tower in others:
            tower.gpu.synchronize()

    def run(self, loops: int) -> float:
        """Train `loops` steps and return the time until the last GPU is done."""
        for tower in self._towers:
            tower.gpu.synchronize()
        start_s = self._order.clock.now_s()
        for _ in range(loops):
            self.step()
        return self._order.clock.now_s() - start_s
