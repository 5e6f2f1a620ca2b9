"""Training cases: what CPU and GPU share, and the CPU cases.

Each tower computes the gradient of its part of a batch with the same weights. The gradients are
merged into one step, so several towers give the result of one tower on the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucheck.bench import regression
from gpucheck.bench.cpu_case import CpuCase, cpu_label
from gpucheck.bench.formats import FORMATS
from gpucheck.bench.kernel import CaseLabel, CaseOrder
from gpucheck.bench.model import Fact, Verified
from gpucheck.bench.regression import CLASSES, INPUTS, RATE, Dataset

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

_FLOAT32 = FORMATS["float32"].spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Training to run: its kernel, the images in a step, and the towers that share them.

    `trained` also counts the accuracy after a thousand steps.
    """

    kernel: str
    batch: int
    towers: int = 1
    trained: bool = False

    def label(self, made: CaseLabel) -> CaseLabel:
        """Return the row's label, with a tower's batch as shape and the towers as a parameter."""
        found = replace(made, shape=(self.batch // self.towers,))
        if self.kernel != "towers":
            return found
        return replace(found, parameters={"towers": self.towers})


class Training:
    """State of a training case: its data, its position in the batches, and its checks."""

    def __init__(self, order: CaseOrder, plan: Plan) -> None:
        self._order = order
        self._plan = plan
        self.turn = 0
        self._accuracy: float | None = None
        self._facts: dict[str, Fact] = {}

    def load(self) -> Dataset:
        """Return the group's data."""
        return regression.load_dataset(self._order, self._plan.batch)

    def facts(self) -> dict[str, Fact]:
        """Return the source of the images, and the memory of a step."""
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
        """Train from zero and compare; after all other steps the weights must sum to zero.

        The others are the timed steps and those for the accuracy. `turn` counts steps since zero.
        """
        seen = [regression.verify_sums(weights(), self.turn)]
        dataset = self.load()
        expected = regression.expected_weights(self._order, dataset, self._plan.batch)
        self.turn = 0
        zero()
        steps = regression.checked_steps(self._plan.batch)
        walk(steps)
        seen.insert(0, regression.verify_weights(weights(), expected))
        if self._plan.trained and "accuracy" not in self._facts:
            walk(regression.TRAINED_STEPS - steps)
            trained = weights()
            seen.append(regression.verify_sums(trained, self.turn))
            self._facts["accuracy"] = regression.accuracy(dataset, trained)
            self._facts["accuracy_steps"] = regression.TRAINED_STEPS
            batches = regression.batch_count(dataset, self._plan.batch)
            self._facts["trained_images"] = batches * self._plan.batch
            self._facts["tested_images"] = len(dataset.test_labels)
        return next((one for one in seen if not one.ok), seen[0])


class CpuTraining(CpuCase):
    """Training step in NumPy with preallocated arrays; its towers run one after the other."""

    walks_memory = False

    def __init__(self, order: CaseOrder, plan: Plan, threads: int, variant: str) -> None:
        label = plan.label(cpu_label(order, plan.kernel, variant, threads, _FLOAT32))
        super().__init__(order, label, regression.step_work(plan.batch))
        self._training = Training(order, plan)
        self._plan = plan

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return the source of the images, the memory, the accuracy and the towers."""
        simulated: dict[str, Fact] = {"simulated": "yes"} if self._plan.towers > 1 else {}
        return self._training.facts() | simulated

    def prepare(self) -> None:
        """Load the data, split it into batches and these into towers, and allocate."""
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
        """Start from zero, with NaN in the results of a step."""
        self._training.turn = 0
        self._weights.fill(0)
        self._gradients.fill(float("nan"))
        self._logits.fill(float("nan"))

    def step(self) -> None:
        """Train on the next batch."""
        import numpy as np

        training = self._training
        towers = self._batches[training.turn % len(self._batches)]
        training.turn += 1
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
