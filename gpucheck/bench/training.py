"""Softmax regression on MNIST's shape, 784 pixels to 10 classes: reference, checks, CPU case.

The bias is the weight of an extra input that is always 1. A step is thus two matrix products around
a softmax: logits = X W, G = softmax(logits) - targets, W -= rate / batch * X' G.

Each tower computes the gradient of its part of a batch with the same weights. The gradients are
merged into one step, so several towers give the result of one tower on the whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import CaseLabel, CaseOrder, CpuCase, Work, cpu_label
from gpucheck.bench.mnist import CLASSES, INPUTS, Dataset, load_dataset
from gpucheck.bench.model import Fact, Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.report.text import duration

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

WEIGHTS = INPUTS * CLASSES
RATE = 0.1
#: Different batches that the steps cycle through.
MOST_BATCHES = 64
#: Steps after which the weights are compared with float64, and after which accuracy is counted.
_MOST_CHECKED_STEPS, TRAINED_STEPS = 20, 1000
#: The accuracy may take so many seconds; more would be missing to all other rows. A step is slow
#: where threads wait for each other on a busy machine.
_LONGEST_TRAINED_S = 20.0
#: Most images in the checked steps, unless the fewest steps need more.
_CHECKED_IMAGES, _FEWEST_CHECKED_STEPS = 4096, 3
#: Largest difference of a weight, relative to the typical one. Each step rounds sums of 785 terms;
#: the first steps of small batches differ most (1.4e-4 with NumPy).
_BOUND = 1e-3
#: Largest deviation of an input's ten weights from a zero sum: rounding at the start, and the
#: share of each step if exponentials are off by a millionth.
_SUM_BOUND, _SUM_BOUND_A_STEP = 1e-5, 1e-6 * RATE
_FLOAT32 = FORMATS["float32"].spec


def step_work(batch: int) -> Work:
    """Return a step's work: 4 batch 785 10 operations, the images read twice, the weights thrice.

    Two products of 2 batch 785 10 operations each; the softmax of ten numbers is left out.
    """
    moved = 4 * (2 * batch * INPUTS + 3 * WEIGHTS)
    return Work(flops=4 * batch * WEIGHTS, bytes_moved=moved, unit="image/s", items=batch)


def step_memory_bytes(batch: int) -> int:
    """Return the bytes of a step: images, targets, logits, weights and gradient."""
    return 4 * (batch * (INPUTS + 2 * CLASSES) + 2 * WEIGHTS)


def batch_count(dataset: Dataset, batch: int) -> int:
    """Return how many different batches the steps cycle through."""
    return max(1, min(MOST_BATCHES, len(dataset.images) // batch))


def reference_weights(dataset: Dataset, batch: int, steps: int) -> HostArray:
    """Return the weights after so many steps from zero, in float64."""
    import numpy as np

    weights = np.zeros((INPUTS, CLASSES))
    count = batch_count(dataset, batch)
    images = dataset.images[: count * batch].astype(np.float64)
    for number in range(steps):
        low = number % count * batch
        inputs = images[low : low + batch]
        logits = inputs @ weights
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        raised /= raised.sum(axis=1, keepdims=True)
        raised -= dataset.targets[low : low + batch]
        weights -= RATE / batch * (inputs.T @ raised)
    return weights


def accuracy_of(dataset: Dataset, weights: HostArray) -> float:
    """Return the share of the test images that the weights classify correctly."""
    import numpy as np

    predicted = np.argmax(dataset.test_images @ weights.astype(np.float32), axis=1)
    return float(np.mean(predicted == dataset.test_labels))


def checked_steps(batch: int) -> int:
    """Return how many steps to check: enough, but not half of a short run."""
    return max(_FEWEST_CHECKED_STEPS, min(_MOST_CHECKED_STEPS, _CHECKED_IMAGES // batch))


def verify_weights(weights: HostArray, expected: HostArray) -> Verified:
    """Compare weights after the checked steps with float64, relative to the typical weight."""
    import numpy as np

    size = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    error = float(np.max(np.abs(weights - expected))) / size
    return Verified.of(error, bound=_BOUND, reference="float64 after a few steps from zero")


def verify_sums(weights: HostArray, steps: int) -> Verified:
    """Compare the sum of each input's weights after this many steps from zero with zero.

    The classes' errors of an image sum to zero, so every step preserves the sum. A weight that went
    wrong at any step changes it for good, and so do NaN and infinity. Rounding grows with the size
    of the weights: the steps of several towers together may be too long to converge.
    """
    import numpy as np

    size = max(1.0, float(np.max(np.abs(weights), initial=0.0)))
    error = float(np.max(np.abs(np.sum(weights, axis=1, dtype=np.float64)), initial=0.0))
    bound = _SUM_BOUND
    if math.isfinite(error):
        bound = size * (_SUM_BOUND + steps * _SUM_BOUND_A_STEP)
    return Verified.of(error, bound=bound, reference="the zero sum that every step preserves")


def expected_weights(order: CaseOrder, dataset: Dataset, batch: int) -> HostArray:
    """Return the reference shared by every case of a group with this batch."""

    def make() -> HostArray:
        return reference_weights(dataset, batch, checked_steps(batch))

    return order.data.keep(f"train-reference-{batch}", make)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Training to run: its kernel, the images in a step, and the towers that share them.

    `trained` also counts the accuracy after a thousand steps.
    """

    kernel: str
    batch: int
    towers: int = 1
    trained: bool = False

    def label(self, made: CaseLabel) -> CaseLabel:
        """Return the row's label, with a tower's batch as shape and the towers as a parameter."""
        label = replace(made, shape=(self.batch // self.towers,))
        if self.kernel != "towers":
            return label
        return replace(label, parameters={"towers": self.towers})


class TrainingState:
    """State of a training case: its data, its position in the batches, and its checks."""

    def __init__(self, order: CaseOrder, plan: TrainingPlan) -> None:
        self._order = order
        self._plan = plan
        self.steps_done = 0
        self._facts: dict[str, Fact] = {}

    def load(self) -> Dataset:
        """Return the group's data."""
        return load_dataset(self._order, self._plan.batch)

    def facts(self) -> dict[str, Fact]:
        """Return the source of the images, and the memory of a step."""
        memory = step_memory_bytes(self._plan.batch)
        facts: dict[str, Fact] = {"images": self.load().source, "memory_bytes": memory}
        if self._plan.towers > 1:
            facts["towers"] = self._plan.towers
        return facts | self._facts

    def check(
        self,
        zero: Callable[[], None],
        walk: Callable[[int], None],
        weights: Callable[[], HostArray],
    ) -> Verified:
        """Train from zero and compare; after all other steps the weights must sum to zero.

        The others are the timed steps and those for the accuracy. `steps_done` counts from zero.
        """
        seen = [verify_sums(weights(), self.steps_done)]
        dataset = self.load()
        expected = expected_weights(self._order, dataset, self._plan.batch)
        self.steps_done = 0
        zero()
        steps, start_s = checked_steps(self._plan.batch), self._order.clock()
        walk(steps)
        trained_s = (self._order.clock() - start_s) / steps * TRAINED_STEPS
        seen.insert(0, verify_weights(weights(), expected))
        wanted = self._plan.trained and "accuracy" not in self._facts
        if wanted and trained_s > _LONGEST_TRAINED_S:
            said = f"{TRAINED_STEPS} steps would take {duration(trained_s)}"
            self._facts["accuracy_unavailable"] = said
        elif wanted:
            walk(TRAINED_STEPS - steps)
            trained = weights()
            seen.append(verify_sums(trained, self.steps_done))
            self._facts.pop("accuracy_unavailable", None)
            self._facts |= {
                "accuracy": accuracy_of(dataset, trained),
                "accuracy_steps": TRAINED_STEPS,
                "trained_images": batch_count(dataset, self._plan.batch) * self._plan.batch,
                "tested_images": len(dataset.test_labels),
            }
        return next((item for item in seen if not item.ok), seen[0])


class CpuTraining(CpuCase):
    """Training step in NumPy with preallocated arrays; its towers run one after the other."""

    walks_memory = False

    def __init__(self, order: CaseOrder, plan: TrainingPlan, threads: int, variant: str) -> None:
        label = plan.label(cpu_label(order, plan.kernel, variant, threads, _FLOAT32))
        super().__init__(order, label, step_work(plan.batch))
        self._training = TrainingState(order, plan)
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
            for start in range(0, batch_count(dataset, plan.batch) * plan.batch, plan.batch)
        ]
        self._weights = np.zeros((INPUTS, CLASSES), dtype=np.float32)
        self._logits = np.empty((part, CLASSES), dtype=np.float32)
        self._row = np.empty((part, 1), dtype=np.float32)
        self._gradients = np.empty((plan.towers, INPUTS, CLASSES), dtype=np.float32)
        self._merged = np.empty((INPUTS, CLASSES), dtype=np.float32)

    def poison(self) -> None:
        """Start from zero, with NaN in the results of a step."""
        self._training.steps_done = 0
        self._weights.fill(0)
        self._gradients.fill(float("nan"))
        self._logits.fill(float("nan"))

    def step(self) -> None:
        """Train on the next batch."""
        import numpy as np

        training = self._training
        towers = self._batches[training.steps_done % len(self._batches)]
        training.steps_done += 1
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
