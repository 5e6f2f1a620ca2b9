"""TensorFlow's side of the framework benchmark: its calls for every kernel, form and device.

framework_bench_child.py loads it in the interpreter that has TensorFlow: Python 3.8 or newer, no
import but TensorFlow's and its NumPy.
"""

from __future__ import annotations

import numpy
import tensorflow as tf

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Ways of writing a program: plain calls, a graph, a graph that XLA compiles.
EAGER, GRAPH, COMPILED = "eager", "tf.function", "tf.function-xla"


class Backend:
    """TensorFlow with its threads, its use of the card and its arithmetic set."""

    forms = (EAGER, GRAPH, COMPILED)

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        threading = tf.config.threading
        threading.set_intra_op_parallelism_threads(settings["threads"])
        threading.set_inter_op_parallelism_threads(1)
        self._cards = tf.config.list_physical_devices("GPU") if settings["gpu"] else []
        for card in self._cards:
            # Otherwise it takes the whole card, and leaves nothing to the next framework.
            tf.config.experimental.set_memory_growth(card, True)
        if not settings["gpu"]:
            tf.config.set_visible_devices([], "GPU")
        self._default = bool(tf.config.experimental.tensor_float_32_execution_enabled())
        if settings["same_math"]:
            self._default = False
        tf.config.experimental.enable_tensor_float_32_execution(self._default)
        self._functions: dict[Any, Any] = {}

    def facts(self) -> dict[str, Any]:
        """Return the version, the build, the libraries, the threads and the arithmetic."""
        built = tf.sysconfig.get_build_info()
        libraries = {"XLA": "in TensorFlow"}
        for name, key in (("CUDA", "cuda_version"), ("cuDNN", "cudnn_version")):
            if built.get(key):
                libraries[name] = str(built[key])
        try:
            # What TensorFlow's own tests ask; no public call tells it.
            from tensorflow.python.util import _pywrap_util_port

            if _pywrap_util_port.IsMklEnabled():
                libraries["oneDNN"] = "in TensorFlow"
        except (ImportError, AttributeError):
            libraries.pop("oneDNN", None)
        version = built.get("cuda_version")
        return {
            "version": str(tf.__version__),
            "build": f"CUDA {version}" if built.get("is_cuda_build") else "cpu",
            "blas": "oneDNN" if "oneDNN" in libraries else "Eigen",
            "libraries": libraries,
            "threads_intra": tf.config.threading.get_intra_op_parallelism_threads(),
            "threads_inter": tf.config.threading.get_inter_op_parallelism_threads(),
            "math_settings": {"tensor_float_32_execution_enabled": str(self._default)},
            "float32_math": "tf32" if self._default else "fp32",
            "forms": list(self.forms),
            "gpus": [self._card(card) for card in self._cards],
        }

    def _card(self, card: Any) -> dict[str, Any]:
        """Return a card's name; TensorFlow tells no UUID."""
        known = tf.config.experimental.get_device_details(card)
        return {"name": known.get("device_name"), "uuid": None}

    def load(self, content: Any, shape: Sequence[int], dtype: str) -> Any:
        """Return a copy of the parent's array in NumPy's memory."""
        kind = tf.as_dtype(dtype).as_numpy_dtype
        return numpy.frombuffer(content, dtype=kind).reshape(shape).copy()

    def store(self, result: Any, content: Any) -> None:
        """Write a result into the parent's memory."""
        array = result if isinstance(result, numpy.ndarray) else result.numpy()
        flat = numpy.ascontiguousarray(array).reshape(-1)
        numpy.frombuffer(content, dtype=flat.dtype)[:] = flat

    def use(self, request: dict[str, Any]) -> str:
        """Set the arithmetic of a request, and return TensorFlow's name of its device."""
        tf32 = request["math"] == "tf32" or self._default
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        kind, _, number = request["device"].partition(":")
        return f"/device:{kind.upper()}:{number or 0}"

    def synchronize(self, device: str, result: Any) -> None:
        """Wait for the GPU; on the processor a result is there when a call returns."""
        if "GPU" in device:
            tf.test.experimental.sync_devices()

    def function(self, request: dict[str, Any], plain: Any) -> Any:
        """Return a function as it is, as a graph, or compiled: one for each way of using it."""
        if request["form"] == EAGER:
            return plain
        key = (
            request["kernel"],
            request["form"],
            request["device"],
            request["math"],
            tuple((tuple(part["shape"]), part["dtype"]) for part in request["inputs"]),
            tuple(sorted(request["parameters"].items())),
        )
        if key not in self._functions:
            compiled = True if request["form"] == COMPILED else None
            self._functions[key] = tf.function(plain, jit_compile=compiled, autograph=False)
        return self._functions[key]

    def release(self) -> None:
        """Do nothing: TensorFlow's allocator gives GPU memory back at its end only."""

    def computing(self, request: dict[str, Any], inputs: list[Any], device: str) -> Any:
        """Return a kernel on data that is in place."""
        function = self.function(request, plain_function(request))
        with tf.device(device):
            sets = [tuple(map(tf.constant, inputs)) for _ in range(request["sets"])]

        def work(inputs: Any) -> Any:
            with tf.device(device):
                return function(*inputs)

        return sets, work, None

    def end_to_end(self, request: dict[str, Any], inputs: list[Any], device: str) -> Any:
        """Return a kernel between transfers: in, compute, out, for each operation."""
        function = self.function(request, plain_function(request))

        def work(hosts: Any) -> Any:
            with tf.device(device):
                return function(*map(tf.constant, hosts)).numpy()

        return [inputs], work, None

    def transfer(self, request: dict[str, Any], inputs: list[Any], device: str) -> Any:
        """Return a copy between host and GPU; TensorFlow has no call for pinned memory.

        These copy each time; an implicit copy would be kept with the tensor.
        """
        number = int(device.rpartition(":")[2])
        with tf.device("/device:CPU:0"):
            here = tf.constant(inputs[0])
        if request["way"].startswith("to-gpu"):
            return [here], lambda tensor: tensor.gpu(number), None
        return [here.gpu(number)], lambda tensor: tensor.cpu(), None

    def training(self, request: dict[str, Any], batches: list[Any], device: str) -> Any:
        """Return softmax regression by gradient descent: a variable, and the batches."""
        copied, rate = request["way"] == "copied", request["parameters"]["rate"]
        with tf.device(device):
            weights = tf.Variable(tf.zeros(request["output"]["shape"]))
            if not copied:
                batches = [tuple(map(tf.constant, batch)) for batch in batches]

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.matmul(x, weights))
                )
            weights.assign_sub(rate * tape.gradient(loss, weights))

        function: Any = step
        if request["form"] != EAGER:
            compiled = True if request["form"] == COMPILED else None
            # A graph belongs to its variable, so each case has its own.
            function = tf.function(step, jit_compile=compiled, autograph=False)

        def work(batch: Any) -> Any:
            with tf.device(device):
                function(*(map(tf.constant, batch) if copied else batch))
            if copied:
                self.synchronize(device, None)
            return weights

        return batches, work, lambda: weights.assign(tf.zeros_like(weights))


def plain_function(request: dict[str, Any]) -> Any:
    """Return a kernel as a program writes it; 16-bit softmax in float32, as is usual."""
    if request["kernel"] == "matmul":
        return tf.matmul
    if request["kernel"] == "copy":
        # tf.identity passes on the same memory.
        return lambda x: tf.raw_ops.DeepCopy(x=x)
    temperature = request["parameters"]["temperature"]

    def softmax(x: Any) -> Any:
        if x.dtype in (tf.float16, tf.bfloat16):
            wide = tf.nn.softmax(tf.cast(x, tf.float32) / temperature)
            return tf.cast(wide, x.dtype)
        return tf.nn.softmax(x / temperature)

    return softmax
