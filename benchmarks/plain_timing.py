"""Plain timing of a framework's operations, which shares no code with gpucheck.

    PYTHON benchmarks/plain_timing.py NAME THREADS MATMUL_EDGE SOFTMAX_EDGE

It runs in the framework's own interpreter and prints the seconds of the fastest product, and of
the fastest softmax with temperature 0.6, as JSON. `python -m benchmarks.frameworks` holds
`gpucheck bench --framework` against it.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

NAME, THREADS, *EDGES = sys.argv[1], *map(int, sys.argv[2:])
os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""})


def works(left: Any, right: Any, logits: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the product and the softmax of a framework, each waiting for its result."""
    if NAME == "pytorch":
        import torch

        torch.set_num_threads(THREADS)
        x, y, z = map(torch.from_numpy, (left, right, logits))
        return lambda: torch.mm(x, y), lambda: torch.softmax(z / 0.6, -1)
    if NAME == "tensorflow":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(THREADS)
        x, y, z = map(tf.constant, (left, right, logits))
        multiply, normalise = tf.function(tf.matmul), tf.function(lambda a: tf.nn.softmax(a / 0.6))
        return lambda: multiply(x, y), lambda: normalise(z)  # the CPU has done it on return
    if NAME == "jax":
        import jax

        x, y, z = map(jax.numpy.asarray, (left, right, logits))
        multiply, normalise = jax.jit(jax.numpy.matmul), jax.jit(lambda a: jax.nn.softmax(a / 0.6))
        return lambda: multiply(x, y).block_until_ready(), lambda: normalise(z).block_until_ready()

    def softmax() -> Any:
        e = np.exp(logits / np.float32(0.6) - logits.max(1, keepdims=True) / np.float32(0.6))
        return e / e.sum(1, keepdims=True)

    return lambda: left @ right, softmax


def fastest_s(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of a second's runs, after a few that do not count."""
    for _ in range(5):
        work()
    taken: list[float] = []
    end = time.perf_counter() + 1.0
    while time.perf_counter() < end or len(taken) < 5:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return min(taken)


import numpy as np  # noqa: E402 - the threads of its BLAS are those of the command's environment

draw = np.random.default_rng(0).standard_normal
shapes = (EDGES[0],) * 2, (EDGES[0],) * 2, (EDGES[1],) * 2
found = [fastest_s(work) for work in works(*(draw(shape, dtype="float32") for shape in shapes))]
print(json.dumps(dict(zip(("matmul", "softmax"), found, strict=True))))
