"""NumPy's and CuPy's side of the framework benchmark: the same calls on the processor and the GPU.

framework_bench_child.py loads it in the interpreter that has the library: Python 3.8 or newer, no
import but the library's.
"""

from __future__ import annotations

import numpy

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: Ways of writing a program: plain expressions, calls into preallocated outputs.
EAGER, PREALLOCATED = "eager", "eager-out"


class Backend:
    """NumPy or CuPy; `gpu` of the settings is true for CuPy alone."""

    forms = (EAGER, PREALLOCATED)

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.array_module: Any = numpy
        self._threads = settings["threads"]
        self.cupy: Any = None
        if name == "cupy":
            import cupy

            self.array_module = self.cupy = cupy

    def facts(self) -> dict[str, Any]:
        """Return the version, the build, the libraries and the arithmetic."""
        if self.cupy is not None:
            return self._facts_of_cupy()
        blas = None
        try:
            built = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]
            blas = f"{built.get('name')} {built.get('version')}"
        except (TypeError, KeyError):  # an older NumPy
            blas = None
        return {
            "version": str(numpy.__version__),
            "build": "cpu",
            "blas": blas,
            "libraries": {},
            "threads_intra": self._threads,
            "threads_inter": 1,
            "math_settings": {},
            "float32_math": "fp32",
            "forms": list(self.forms),
            "gpus": [],
        }

    def _facts_of_cupy(self) -> dict[str, Any]:
        import os

        runtime = self.cupy.cuda.runtime
        version = runtime.runtimeGetVersion()
        libraries = {"CUDA": f"{version // 1000}.{version % 1000 // 10}"}
        try:
            from cupy_backends.cuda.libs import cublas

            cublas_version = cublas.getVersion(self.cupy.cuda.device.get_cublas_handle())
            libraries["cuBLAS"] = str(cublas_version)
        except Exception:
            libraries["cuBLAS"] = ""
        gpus = []
        for number in range(runtime.getDeviceCount()):
            known = runtime.getDeviceProperties(number)
            gpus.append({"name": known["name"].decode("utf-8", "replace"), "uuid": None})
        tf32 = os.environ.get("CUPY_TF32", "0")
        return {
            "version": str(self.cupy.__version__),
            "build": "CUDA " + libraries["CUDA"],
            "blas": None,
            "libraries": libraries,
            "threads_intra": None,
            "threads_inter": None,
            "math_settings": {"CUPY_TF32": tf32},
            "float32_math": "tf32" if tf32 == "1" else "fp32",
            "forms": list(self.forms),
            "gpus": gpus,
        }

    def load(self, content: Any, shape: Sequence[int], dtype: str) -> Any:
        """Return a copy of the parent's array in the processor's memory."""
        if dtype == "bfloat16":
            raise NotImplementedError("no bfloat16 numbers here")
        return numpy.frombuffer(content, dtype=dtype).reshape(shape).copy()

    def store(self, result: Any, content: Any) -> None:
        """Write a result into the parent's memory."""
        if self.cupy is not None and not isinstance(result, numpy.ndarray):
            result = result.get()
        flat = numpy.ascontiguousarray(result).reshape(-1)
        numpy.frombuffer(content, dtype=flat.dtype)[:] = flat

    def operation(self, request: dict[str, Any], inputs: list[Any]) -> Any:
        """Return the prepared operation of a request."""
        if request["math"] == "tf32":
            raise NotImplementedError("tf32 is chosen by CUPY_TF32 before the library is imported")
        if self.cupy is not None:
            self.cupy.cuda.Device(int(request["device"].partition(":")[2] or 0)).use()
        kind = {"train": Training, "transfer": Transfer}.get(request["kernel"], Operation)
        if request["end_to_end"]:
            kind = EndToEnd
        return kind(self, request, inputs)

    def place(self, array: Any) -> Any:
        """Return an array where the library computes."""
        return array if self.cupy is None else self.cupy.asarray(array)

    def pinned(self, array: Any) -> Any:
        """Return a copy of an array in page-locked memory."""
        memory = self.cupy.cuda.alloc_pinned_memory(array.nbytes)
        copy = numpy.frombuffer(memory, dtype=array.dtype, count=array.size).reshape(array.shape)
        copy[...] = array
        return copy

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.cupy is not None:
            self.cupy.cuda.get_current_stream().synchronize()

    def release(self) -> None:
        """Give the GPU memory that the pools keep to the driver."""
        if self.cupy is not None:
            self.cupy.get_default_memory_pool().free_all_blocks()
            self.cupy.get_default_pinned_memory_pool().free_all_blocks()


def function_of(library: Any, request: dict[str, Any]) -> Any:
    """Return a kernel as a program writes it; 16-bit softmax in float32, as is usual."""
    if request["kernel"] == "matmul":
        return library.matmul
    if request["kernel"] == "copy":
        return lambda x: x.copy()
    temperature = request["parameters"]["temperature"]

    def softmax(x: Any) -> Any:
        wide = x.astype(numpy.float32) if x.dtype.itemsize < 4 else x
        scaled = wide / wide.dtype.type(temperature)
        raised = library.exp(scaled - scaled.max(axis=-1, keepdims=True))
        return (raised / raised.sum(axis=-1, keepdims=True)).astype(x.dtype, copy=False)

    return softmax


def function_into(library: Any, request: dict[str, Any]) -> Any:
    """Return a kernel that writes into its last argument."""
    if request["kernel"] == "matmul":
        return lambda left, right, out: library.matmul(left, right, out=out)
    if request["kernel"] == "copy":

        def copy(x: Any, out: Any) -> Any:
            library.copyto(out, x)
            return out

        return copy
    temperature = request["parameters"]["temperature"]

    first = request["inputs"][0]
    scratch: Any = None
    if first["dtype"] == "float16":
        scratch = library.empty(tuple(first["shape"]), dtype=numpy.float32)

    def softmax(x: Any, out: Any) -> Any:
        wide = out if scratch is None else scratch
        if scratch is not None:
            library.copyto(scratch, x)
            x = scratch
        library.divide(x, x.dtype.type(temperature), out=wide)
        library.subtract(wide, wide.max(axis=-1, keepdims=True), out=wide)
        library.exp(wide, out=wide)
        library.divide(wide, wide.sum(axis=-1, keepdims=True), out=wide)
        if scratch is not None:
            library.copyto(out, wide)
        return out

    return softmax


class Operation:
    """A kernel on data that is in place."""

    def __init__(self, backend: Backend, request: dict[str, Any], inputs: list[Any]) -> None:
        self._backend = backend
        first = tuple(backend.place(each) for each in inputs)
        more = range(request["sets"] - 1)
        every = [first, *(tuple(each.copy() for each in first) for _ in more)]
        self._outputs: list[Any] = []
        self.sets: Any = every
        if request["form"] == PREALLOCATED:
            shape, kind = tuple(request["output"]["shape"]), first[0].dtype
            self._outputs = [backend.array_module.empty(shape, dtype=kind) for _ in every]
            self.sets = [(*one, out) for one, out in zip(every, self._outputs)]
            function = function_into(backend.array_module, request)
        else:
            function = function_of(backend.array_module, request)
        self.work = lambda arrays: function(*arrays)

    def poison(self) -> None:
        """Fill preallocated outputs with NaN."""
        for out in self._outputs:
            out.fill(float("nan"))

    def synchronize(self, result: Any) -> None:
        """Wait until everything has run."""
        self._backend.synchronize()

    def result(self, result: Any) -> Any:
        """Return the array to compare."""
        return result


class EndToEnd(Operation):
    """A kernel between pinned transfers: in, compute, out, and wait, for each operation."""

    def __init__(self, backend: Backend, request: dict[str, Any], inputs: list[Any]) -> None:
        self._backend = backend
        function = function_of(backend.array_module, request)
        self.sets = [tuple(backend.pinned(each) for each in inputs)]
        out = backend.pinned(numpy.empty(request["output"]["shape"], dtype=inputs[0].dtype))
        self._outputs = [out]

        def work(hosts: Any) -> Any:
            there = [backend.place(each) for each in hosts]
            return function(*there).get(out=out)

        self.work = work


class Transfer(Operation):
    """A copy between host and GPU, in pinned or pageable memory."""

    def __init__(self, backend: Backend, request: dict[str, Any], inputs: list[Any]) -> None:
        self._backend = backend
        way, preallocated = request["way"], request["form"] == PREALLOCATED
        host = backend.pinned(inputs[0]) if way.endswith("pinned") else inputs[0]
        there = backend.place(host)
        self._outputs = []
        if way.startswith("to-gpu"):
            out = backend.array_module.empty_like(there)
            self.sets = [host]

            def work(one: Any) -> Any:
                if not preallocated:
                    return backend.place(one)
                out.set(one)
                return out

        else:
            out = numpy.empty_like(host)
            out = backend.pinned(out) if way.endswith("pinned") else out
            self.sets = [there]

            def work(one: Any) -> Any:
                return one.get(out=out) if preallocated else one.get()

        self._outputs = [out] if preallocated else []
        self.work = work


class Training(Operation):
    """Softmax regression by gradient descent, with the gradient written out."""

    def __init__(self, backend: Backend, request: dict[str, Any], inputs: list[Any]) -> None:
        self._backend = backend
        self._outputs = []
        library, size = backend.array_module, request["parameters"]["batch"]
        if request["form"] == PREALLOCATED:
            raise NotImplementedError("training is written as expressions")
        images, labels = inputs
        count = request["output"]["shape"][1]
        targets = numpy.zeros((len(labels), count), dtype=images.dtype)
        targets[numpy.arange(len(labels)), labels] = 1
        copied = request["way"] == "copied"
        if not copied:
            images, targets = backend.place(images), backend.place(targets)
        self.sets = [
            (images[low : low + size], targets[low : low + size])
            for low in range(0, len(images), size)
        ]
        weights = library.zeros(tuple(request["output"]["shape"]), dtype=inputs[0].dtype)
        self._weights = weights
        step = weights.dtype.type(request["parameters"]["rate"] / size)

        def work(batch: Any) -> Any:
            x, y = (backend.place(each) for each in batch) if copied else batch
            logits = x @ weights
            raised = library.exp(logits - logits.max(axis=1, keepdims=True))
            error = raised / raised.sum(axis=1, keepdims=True) - y
            library.subtract(weights, step * (x.T @ error), out=weights)
            return weights

        self.work = work

    def poison(self) -> None:
        """Begin with weights of zero."""
        self._weights.fill(0)
