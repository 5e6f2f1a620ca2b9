"""JAX' side of the framework benchmark: its calls for every kernel, form and device.

framework_bench_child.py loads it in the interpreter that has JAX: Python 3.8 or newer, no import
but JAX' and its NumPy.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Ways of writing a program: compiled as a whole, or each operation by itself.
COMPILED, EAGER = "jax.jit", "eager"
#: Names of the precisions of a product: its default, TF32, and float32 throughout.
PRECISIONS = {"default": None, "tf32": "default", "fp32": "highest"}


class Backend:
    """JAX with its arithmetic set; its threads are the processors that it may run on."""

    forms = (COMPILED, EAGER)

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self._same_math = settings["same_math"]
        if self._same_math:
            jax.config.update("jax_default_matmul_precision", "highest")
        self._functions: dict[Any, Any] = {}
        self._cards = []
        if settings["gpu"]:
            try:
                self._cards = jax.devices("gpu")
            except RuntimeError:  # a build for processors
                self._cards = []

    def facts(self) -> dict[str, Any]:
        """Return the version, the build, the libraries, the threads and the arithmetic."""
        import jaxlib

        version = None
        if self._cards:
            version = str(getattr(self._cards[0].client, "platform_version", "")) or None
        precision = jax.config.jax_default_matmul_precision
        plain = precision in (None, "default", "fastest", "high", "tensorfloat32")
        return {
            "version": str(jax.__version__),
            "build": " ".join(version.split()) if version else "cpu",
            "blas": "XLA's own (Eigen)",
            "libraries": {"jaxlib": str(jaxlib.__version__)},
            "threads_intra": len(os.sched_getaffinity(0)),
            "threads_inter": None,
            "math_settings": {"jax_default_matmul_precision": str(precision)},
            "float32_math": "tf32" if plain else "fp32",
            "forms": list(self.forms),
            "gpus": [
                {"name": str(card.device_kind), "uuid": getattr(card, "uuid", None)}
                for card in self._cards
            ],
        }

    def load(self, content: Any, shape: Sequence[int], dtype: str) -> Any:
        """Return a copy of the parent's array in NumPy's memory."""
        kind = jnp.dtype(getattr(jnp, dtype))
        return numpy.frombuffer(content, dtype=kind).reshape(shape).copy()

    def store(self, result: Any, content: Any) -> None:
        """Write a result into the parent's memory."""
        flat = numpy.ascontiguousarray(numpy.asarray(result)).reshape(-1)
        numpy.frombuffer(content, dtype=flat.dtype)[:] = flat

    def use(self, request: dict[str, Any]) -> Any:
        """Return JAX' device of a request."""
        if request["device"] == "cpu":
            return jax.devices("cpu")[0]
        return self._cards[int(request["device"].partition(":")[2])]

    def synchronize(self, device: Any, result: Any) -> None:
        """Wait for the last result, and so for all before it."""
        if result is not None:
            jax.block_until_ready(result)

    def function(self, request: dict[str, Any], plain: Any) -> Any:
        """Return a function as it is, or compiled: one for each kernel and its parameters."""
        if request["form"] == EAGER:
            return plain
        key = (request["kernel"], request["math"], tuple(sorted(request["parameters"].items())))
        if key not in self._functions:
            self._functions[key] = jax.jit(plain)
        return self._functions[key]

    def release(self) -> None:
        """Do nothing: JAX frees an array with its last reference, and keeps the pool behind it."""

    def computing(self, request: dict[str, Any], inputs: list[Any], device: Any) -> Any:
        """Return a kernel on data that is in place.

        On the processor each operation is waited for: JAX would run several at the same time, each
        on one thread, which is another question. A GPU runs them one after the other.
        """
        function = self.function(request, plain_function(request))
        sets = [put(inputs, device) for _ in range(request["sets"])]
        if request["device"] == "cpu":
            return sets, lambda inputs: function(*inputs).block_until_ready(), None
        return sets, lambda inputs: function(*inputs), None

    def end_to_end(self, request: dict[str, Any], inputs: list[Any], device: Any) -> Any:
        """Return a kernel between transfers: in, compute, out, for each operation."""
        function = self.function(request, plain_function(request))
        return [inputs], lambda hosts: numpy.asarray(function(*put(hosts, device))), None

    def transfer(self, request: dict[str, Any], inputs: list[Any], device: Any) -> Any:
        """Return a copy between host and GPU, of ordinary memory.

        Copies are not ordered among themselves: each is waited for.
        """
        source, target = inputs[0], device
        if request["way"].startswith("from-gpu"):
            # numpy.asarray would keep its first copy with the array.
            source, target = jax.device_put(source, device), jax.devices("cpu")[0]
        return [source], lambda array: jax.device_put(array, target).block_until_ready(), None

    def training(self, request: dict[str, Any], batches: list[Any], device: Any) -> Any:
        """Return softmax regression by gradient descent: weights, and batches to walk through."""
        copied, rate = request["way"] == "copied", request["parameters"]["rate"]
        zeros = jax.device_put(numpy.zeros(request["output"]["shape"], dtype=numpy.float32), device)
        weights = zeros

        def loss_of(weights: Any, x: Any, y: Any) -> Any:
            logs = jax.nn.log_softmax(x @ weights)
            return -jnp.take_along_axis(logs, y[:, None], axis=1).mean()

        def step(weights: Any, x: Any, y: Any) -> Any:
            return weights - rate * jax.grad(loss_of)(weights, x, y)

        update = self.function(request, step)

        def work(batch: Any) -> Any:
            nonlocal weights
            weights = update(weights, *(put(batch, device) if copied else batch))
            if copied:
                jax.block_until_ready(weights)
            return weights

        def renew() -> None:
            nonlocal weights
            weights = zeros

        return (batches if copied else [put(batch, device) for batch in batches]), work, renew


def put(arrays: Sequence[Any], device: Any) -> tuple[Any, ...]:
    """Return arrays where the device computes."""
    return tuple(jax.device_put(array, device) for array in arrays)


def plain_function(request: dict[str, Any]) -> Any:
    """Return a kernel as a program writes it; 16-bit softmax in float32, as is usual."""
    if request["kernel"] == "matmul":
        precision = PRECISIONS[request["math"]]

        def product(left: Any, right: Any) -> Any:
            return jnp.matmul(left, right, precision=precision)

        return product
    if request["kernel"] == "copy":
        return lambda x: jnp.array(x, copy=True)
    temperature = request["parameters"]["temperature"]

    def softmax(x: Any) -> Any:
        if x.dtype in (jnp.float16, jnp.bfloat16):
            wide = jax.nn.softmax(x.astype(jnp.float32) / temperature, axis=-1)
            return wide.astype(x.dtype)
        return jax.nn.softmax(x / temperature, axis=-1)

    return softmax
