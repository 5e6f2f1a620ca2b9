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

    def use(self, request: dict[str, Any]) -> None:
        """Use the device of a request."""
        if request["math"] == "tf32":
            raise NotImplementedError("tf32 is chosen by CUPY_TF32 before the library is imported")
        if self.cupy is not None:
            self.cupy.cuda.Device(int(request["device"].partition(":")[2] or 0)).use()

    def place(self, array: Any) -> Any:
        """Return an array where the library computes."""
        return array if self.cupy is None else self.cupy.asarray(array)

    def pinned(self, array: Any) -> Any:
        """Return a copy of an array in page-locked memory."""
        memory = self.cupy.cuda.alloc_pinned_memory(array.nbytes)
        copy = numpy.frombuffer(memory, dtype=array.dtype, count=array.size).reshape(array.shape)
        copy[...] = array
        return copy

    def synchronize(self, device: None, result: Any) -> None:
        """Wait for the GPU."""
        if self.cupy is not None:
            self.cupy.cuda.get_current_stream().synchronize()

    def release(self) -> None:
        """Give the GPU memory that the pools keep to the driver."""
        if self.cupy is not None:
            self.cupy.get_default_memory_pool().free_all_blocks()
            self.cupy.get_default_pinned_memory_pool().free_all_blocks()

    def computing(self, request: dict[str, Any], inputs: list[Any], device: None) -> Any:
        """Return a kernel on data that is in place."""
        first = tuple(map(self.place, inputs))
        more = range(request["sets"] - 1)
        sets = [first, *(tuple(array.copy() for array in first) for _ in more)]
        if request["form"] != PREALLOCATED:
            function = function_of(self.array_module, request)
            return sets, lambda arrays: function(*arrays), None
        shape, kind = tuple(request["output"]["shape"]), first[0].dtype
        outputs = [self.array_module.empty(shape, dtype=kind) for _ in sets]
        sets = [(*arrays, out) for arrays, out in zip(sets, outputs)]
        function = function_into(self.array_module, request)
        return sets, lambda arrays: function(*arrays), lambda: poison(outputs)

    def end_to_end(self, request: dict[str, Any], inputs: list[Any], device: None) -> Any:
        """Return a kernel between pinned transfers: in, compute, out, and wait."""
        function = function_of(self.array_module, request)
        out = self.pinned(numpy.empty(request["output"]["shape"], dtype=inputs[0].dtype))

        def work(hosts: Any) -> Any:
            return function(*map(self.place, hosts)).get(out=out)

        return [tuple(map(self.pinned, inputs))], work, lambda: poison([out])

    def transfer(self, request: dict[str, Any], inputs: list[Any], device: None) -> Any:
        """Return a copy between host and GPU, in pinned or pageable memory."""
        pinned, preallocated = request["way"].endswith("pinned"), request["form"] == PREALLOCATED
        host = self.pinned(inputs[0]) if pinned else inputs[0]
        there = self.place(host)
        if request["way"].startswith("to-gpu"):
            out = self.array_module.empty_like(there)
            source = host

            def work(array: Any) -> Any:
                if not preallocated:
                    return self.place(array)
                out.set(array)
                return out

        else:
            out = numpy.empty_like(host)
            out = self.pinned(out) if pinned else out
            source = there

            def work(array: Any) -> Any:
                return array.get(out=out) if preallocated else array.get()

        return [source], work, (lambda: poison([out])) if preallocated else None

    def training(self, request: dict[str, Any], batches: list[Any], device: None) -> Any:
        """Return softmax regression by gradient descent, with the gradient written out."""
        if request["form"] == PREALLOCATED:
            raise NotImplementedError("training is written as expressions")
        library, copied, shape = (
            self.array_module,
            request["way"] == "copied",
            request["output"]["shape"],
        )
        sets = []
        for images, labels in batches:
            targets = numpy.zeros((len(labels), shape[1]), dtype=images.dtype)
            targets[numpy.arange(len(labels)), labels] = 1
            sets.append((images, targets) if copied else (self.place(images), self.place(targets)))
        weights = library.zeros(tuple(shape), dtype=batches[0][0].dtype)
        step = weights.dtype.type(request["parameters"]["rate"] / request["parameters"]["batch"])

        def work(batch: Any) -> Any:
            x, y = map(self.place, batch) if copied else batch
            logits = x @ weights
            raised = library.exp(logits - logits.max(axis=1, keepdims=True))
            error = raised / raised.sum(axis=1, keepdims=True) - y
            library.subtract(weights, step * (x.T @ error), out=weights)
            return weights

        return sets, work, lambda: weights.fill(0)


def poison(outputs: Sequence[Any]) -> None:
    """Fill preallocated outputs with NaN."""
    for out in outputs:
        out.fill(float("nan"))


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
