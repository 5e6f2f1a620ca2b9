"""Softmax regression on MNIST's shape, 784 pixels to 10 classes: data, step and reference.

The bias is the weight of an extra input that is always 1. A step is thus two matrix products around
a softmax: logits = X W, G = softmax(logits) - targets, W -= rate / batch * X' G.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.bench.kernel import CaseOrder, Work
from gpucheck.bench.mnist import Mnist, read_mnist
from gpucheck.bench.model import BenchMode, BenchRequest, Fill, Verified

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Pixels and the constant, and classes.
INPUTS, CLASSES = 28 * 28 + 1, 10
WEIGHTS = INPUTS * CLASSES
RATE = 0.1
#: Different batches that the steps cycle through.
MOST_BATCHES = 64
#: Steps after which the weights are compared with float64, and after which accuracy is counted.
_MOST_CHECKED_STEPS, TRAINED_STEPS = 20, 1000
#: Most images in the checked steps, unless the fewest steps need more.
_CHECKED_IMAGES, _FEWEST_CHECKED_STEPS = 4096, 3
#: Largest difference of a weight, relative to the typical one. Each step rounds sums of 785 terms;
#: the first steps of small batches differ most (1.4e-4 with NumPy).
_BOUND = 1e-3
#: Largest deviation of an input's ten weights from a zero sum: rounding at the start, and the
#: share of each step if exponentials are off by a millionth.
_SUM_BOUND, _SUM_BOUND_A_STEP = 1e-5, 1e-6 * RATE
_GENERATED = {BenchMode.QUICK: 6400, BenchMode.DEFAULT: 12800, BenchMode.FULL: 51200}
_TESTED = 2000
#: Scatter of the generated images' pixels about the pattern of their class.
_SCATTER = 1.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Images as (n, 785) float32 between 0 and 1 with a final 1, targets as (n, 10) of 0 and 1.

    `source` says whether the images are real; `test_labels` are classes.
    """

    images: HostArray
    targets: HostArray
    test_images: HostArray
    test_labels: HostArray
    source: str


def load_dataset(order: CaseOrder, least: int) -> Dataset:
    """Return the data of a group, at least `least` images; real ones if a file was named.

    Real images are repeated if there are fewer. Raises WrongUseError for an unusable file.
    """

    def load() -> Dataset:
        if order.request.data_file is not None:
            return _real(Path(order.request.data_file), least)
        return _generated(order, count)

    count = max(least, _GENERATED[order.request.mode])
    return order.data.keep(f"dataset-{count}", load)


def check_data_file(request: BenchRequest) -> None:
    """Read the data file, if one is named, before anything is measured.

    Raises:
        WrongUseError: it cannot be used.
    """
    if request.data_file is not None:
        _read(Path(request.data_file))


@lru_cache(maxsize=1)
def _read(path: Path) -> Mnist:
    return read_mnist(path)


def _real(path: Path, least: int) -> Dataset:
    import numpy as np

    found = _read(path)
    images, labels = found.images, found.labels
    tested = (found.test_images, found.test_labels)
    if not len(found.test_labels):
        # Not the training images, unless there are hardly any.
        kept = max(1, len(images) - min(_TESTED, len(images) // 5))
        tested = (images[kept:], labels[kept:]) if kept < len(images) else (images, labels)
        images, labels = images[:kept], labels[:kept]
    wanted = np.arange(max(least, len(images))) % len(images)
    return Dataset(
        images=_inputs(images[wanted]),
        targets=_one_hot(labels[wanted]),
        test_images=_inputs(tested[0]),
        test_labels=tested[1],
        source="file",
    )


def _generated(order: CaseOrder, count: int) -> Dataset:
    """Draw images that scatter about one pattern for each class; these are not real digits."""
    import numpy as np

    generator = np.random.default_rng([order.data.seed, 784])
    patterns = generator.random((CLASSES, INPUTS - 1), dtype=np.float32)
    labels = generator.integers(0, CLASSES, count + _TESTED)
    images = generator.standard_normal((len(labels), INPUTS - 1), dtype=np.float32)
    images *= np.float32(_SCATTER)
    images += patterns[labels]
    np.clip(images, 0, 1, out=images)
    if order.data.fill is Fill.ZEROS:
        images[:] = 0
    return Dataset(
        images=_inputs(images[:count]),
        targets=_one_hot(labels[:count]),
        test_images=_inputs(images[count:]),
        test_labels=labels[count:],
        source="generated",
    )


def _inputs(pixels: HostArray) -> HostArray:
    """Return pixels (bytes, or 0 to 1) as float32, with the constant input added."""
    import numpy as np

    inputs = np.ones((len(pixels), INPUTS), dtype=np.float32)
    inputs[:, :-1] = pixels.reshape(len(pixels), -1)
    if pixels.dtype == np.uint8:
        inputs[:, :-1] /= np.float32(255)
    return inputs


def _one_hot(labels: HostArray) -> HostArray:
    import numpy as np

    return np.eye(CLASSES, dtype=np.float32)[labels]


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


def accuracy(dataset: Dataset, weights: HostArray) -> float:
    """Return the share of the test images that the weights classify correctly."""
    import numpy as np

    told = np.argmax(dataset.test_images @ weights.astype(np.float32), axis=1)
    return float(np.mean(told == dataset.test_labels))


def checked_steps(batch: int) -> int:
    """Return how many steps to check: enough, but not half of a short run."""
    return max(_FEWEST_CHECKED_STEPS, min(_MOST_CHECKED_STEPS, _CHECKED_IMAGES // batch))


def verify_weights(found: HostArray, expected: HostArray) -> Verified:
    """Compare weights after the checked steps with float64, relative to the typical weight."""
    import numpy as np

    size = float(np.sqrt(np.mean(np.square(expected)))) or 1.0
    error = float(np.max(np.abs(found - expected))) / size
    finite = math.isfinite(error)
    return Verified(
        error=error if finite else None,
        bound=_BOUND,
        ok=finite and error <= _BOUND,
        reference="float64 after a few steps from zero",
    )


def verify_sums(weights: HostArray, steps: int) -> Verified:
    """Compare the sum of each input's weights after this many steps from zero with zero.

    The classes' errors of an image sum to zero, so every step preserves the sum. A weight that went
    wrong at any step changes it for good, and so do NaN and infinity. Rounding grows with the size
    of the weights: the steps of several towers together may be too long to converge.
    """
    import numpy as np

    size = max(1.0, float(np.max(np.abs(weights), initial=0.0)))
    error = float(np.max(np.abs(np.sum(weights, axis=1, dtype=np.float64)), initial=0.0))
    bound = size * (_SUM_BOUND + steps * _SUM_BOUND_A_STEP)
    finite = math.isfinite(size) and math.isfinite(error)
    return Verified(
        error=error if finite else None,
        bound=bound if finite else _SUM_BOUND,
        ok=finite and error <= bound,
        reference="the zero sum that every step preserves",
    )


def expected_weights(order: CaseOrder, dataset: Dataset, batch: int) -> HostArray:
    """Return the reference shared by every case of a group with this batch."""

    def make() -> HostArray:
        return reference_weights(dataset, batch, checked_steps(batch))

    return order.data.keep(f"train-reference-{batch}", make)


def source_text() -> str:
    """Return the CUDA source."""
    folder = Path(__file__).with_name("kernels")
    return (folder / "train.cu").read_text(encoding="utf-8")
