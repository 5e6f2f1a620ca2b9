"""PyTorch's side of the framework benchmark: its calls for every kernel, form and device.

framework_bench_child.py loads it in the interpreter that has PyTorch: Python 3.8 or newer, no
import but PyTorch's.
"""

from __future__ import annotations

import re

import torch

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

#: Ways of writing a program: plain calls, calls into a preallocated output, compiled.
EAGER, PREALLOCATED, COMPILED = "eager", "eager-out", "torch.compile"
#: Torch's compiler falls back to plain calls after eight variants of one function; here each shape
#: and format is a variant.
MOST_VARIANTS = 256


class Backend:
    """PyTorch with its threads and its arithmetic set."""

    forms = (EAGER, PREALLOCATED, COMPILED)

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        torch.set_num_interop_threads(1)
        self._same_math = settings["same_math"]
        self._gpu = settings["gpu"]
        self._compiled: dict[Any, Any] = {}
        self._default = self._math()
        if self._same_math:
            self._set_math(dict.fromkeys(self._default, False))

    def facts(self) -> dict[str, Any]:
        """Return the version, the build, the libraries, the threads and the arithmetic."""
        shown = torch.__config__.show()
        libraries = {}
        match = re.search(r"Intel\(R\) MKL-DNN v([0-9.]+)|oneDNN v([0-9.]+)", shown)
        if torch.backends.mkldnn.is_available():
            libraries["oneDNN"] = (match.group(1) or match.group(2)) if match else ""
        mkl = re.search(r"Math Kernel Library Version ([0-9.]+)", shown)
        blas = re.search(r"BLAS_INFO=([^,]+)", shown)
        if torch.version.cuda and self._gpu and torch.cuda.is_available():
            version = torch.backends.cudnn.version()
            libraries["CUDA"] = torch.version.cuda
            if version:
                libraries["cuDNN"] = str(version)
        name = "MKL" if mkl else (blas.group(1) if blas else None)
        return {
            "version": str(torch.__version__),
            "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else "cpu",
            "blas": f"MKL {mkl.group(1)}" if mkl else name,
            "libraries": libraries,
            "threads_intra": torch.get_num_threads(),
            "threads_inter": torch.get_num_interop_threads(),
            "math_settings": self._settings(),
            "float32_math": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32",
            "forms": list(self.forms),
            "gpus": self._gpus(),
        }

    def _gpus(self) -> list[dict[str, Any]]:
        """Return name and UUID of each GPU that PyTorch sees, in its own order."""
        if not (self._gpu and torch.cuda.is_available()):
            return []
        gpus = []
        for number in range(torch.cuda.device_count()):
            known = torch.cuda.get_device_properties(number)
            uuid = getattr(known, "uuid", None)
            gpus.append({"name": str(known.name), "uuid": str(uuid) if uuid else None})
        return gpus

    def _settings(self) -> dict[str, str]:
        settings = {name: str(value) for name, value in self._math().items()}
        precision = getattr(torch, "get_float32_matmul_precision", None)
        if precision is not None:
            settings["float32_matmul_precision"] = str(precision())
        return settings

    def _math(self) -> dict[str, Any]:
        matmul = torch.backends.cuda.matmul
        names = (
            "allow_tf32",
            "allow_fp16_reduced_precision_reduction",
            "allow_bf16_reduced_precision_reduction",
        )
        return {name: getattr(matmul, name) for name in names if hasattr(matmul, name)}

    def _set_math(self, wanted: dict[str, Any]) -> None:
        for name, value in wanted.items():
            setattr(torch.backends.cuda.matmul, name, value)

    def load(self, content: Any, shape: Sequence[int], dtype: str) -> Any:
        """Return a copy of the parent's array in the processor's memory."""
        shared = torch.frombuffer(content, dtype=getattr(torch, dtype))
        return shared.clone().reshape(shape)

    def store(self, result: Any, content: Any) -> None:
        """Write a result into the parent's memory."""
        flat = result.detach().cpu().contiguous().reshape(-1)
        torch.frombuffer(content, dtype=flat.dtype).copy_(flat)

    def operation(self, request: dict[str, Any], inputs: list[Any]) -> Any:
        """Return the prepared operation of a request."""
        if request["math"] == "tf32":
            self._set_math({"allow_tf32": True})
        elif not self._same_math:
            self._set_math(self._default)
        else:
            self._set_math(dict.fromkeys(self._default, False))
        torch.set_grad_enabled(request["kernel"] == "train")
        device = torch.device(request["device"].replace("gpu", "cuda"))
        if device.type == "cuda":
            torch.cuda.set_device(device)
        kind = {"train": Training, "transfer": Transfer}.get(request["kernel"], Operation)
        if request["end_to_end"]:
            kind = EndToEnd
        return kind(self, request, inputs, device)

    def function(self, request: dict[str, Any], plain: Callable[..., Any]) -> Any:
        """Return a function as it is, or compiled: once for each kernel, format and shape."""
        if request["form"] != COMPILED:
            return plain
        if not hasattr(torch, "compile"):
            raise NotImplementedError("torch.compile came with PyTorch 2.0")
        key = (
            request["kernel"],
            request["device"],
            tuple((tuple(each["shape"]), each["dtype"]) for each in request["inputs"]),
            tuple(sorted(request["parameters"].items())),
            request["math"],
        )
        if key not in self._compiled:
            from torch import _dynamo

            for name in ("recompile_limit", "cache_size_limit"):
                if hasattr(_dynamo.config, name):
                    setattr(_dynamo.config, name, MOST_VARIANTS)
            self._compiled[key] = torch.compile(plain, dynamic=False)
        return self._compiled[key]

    def release(self) -> None:
        """Give the GPU memory that the allocator keeps to the driver."""
        if self._gpu and torch.cuda.is_available():
            torch.cuda.empty_cache()


def softmax_of(temperature: float) -> Any:
    """Return softmax with a temperature; 16-bit numbers are computed in float32, as is usual."""

    def softmax(x: Any) -> Any:
        if x.dtype in (torch.float16, torch.bfloat16):
            return torch.softmax(x.float() / temperature, -1).to(x.dtype)
        return torch.softmax(x / temperature, -1)

    return softmax


def copy(x: Any) -> Any:
    """Return a copy."""
    return x.clone()


def plain_function(request: dict[str, Any]) -> Any:
    """Return a kernel as a program writes it."""
    if request["kernel"] == "matmul":
        return torch.matmul
    if request["kernel"] == "softmax":
        return softmax_of(request["parameters"]["temperature"])
    return copy


class Operation:
    """A kernel on data that is in place."""

    def __init__(
        self, backend: Backend, request: dict[str, Any], inputs: list[Any], device: Any
    ) -> None:
        self._device = device
        first = tuple(each.to(device) for each in inputs)
        more = range(request["sets"] - 1)
        every = [first, *(tuple(each.clone() for each in first) for _ in more)]
        self.sets: Any = every
        self._outputs: list[Any] = []
        if request["form"] == PREALLOCATED:
            kind = first[0]
            self._outputs = [kind.new_empty(request["output"]["shape"]) for _ in every]
            self.sets = list(zip(every, self._outputs))
            self.work = self._preallocated(request, kind)
        else:
            function = backend.function(request, plain_function(request))

            def work(inputs: Any) -> Any:
                return function(*inputs)

            self.work = work

    def _preallocated(self, request: dict[str, Any], kind: Any) -> Any:
        if request["kernel"] == "matmul":

            def work(one: Any) -> Any:
                (left, right), out = one
                return torch.matmul(left, right, out=out)

        elif request["kernel"] == "softmax":
            temperature = request["parameters"]["temperature"]
            wide = torch.float32 if kind.dtype in (torch.float16, torch.bfloat16) else kind.dtype
            scaled = torch.empty_like(kind, dtype=wide)

            def work(one: Any) -> Any:
                (x,), out = one
                if wide != x.dtype:
                    scaled.copy_(x)
                    torch.div(scaled, temperature, out=scaled)
                    torch.softmax(scaled, -1, out=scaled)
                    return out.copy_(scaled)
                torch.div(x, temperature, out=scaled)
                return torch.softmax(scaled, -1, out=out)

        else:

            def work(one: Any) -> Any:
                (x,), out = one
                return out.copy_(x)

        return work

    def poison(self) -> None:
        """Fill preallocated outputs with NaN."""
        for out in self._outputs:
            out.fill_(float("nan"))

    def synchronize(self, result: Any) -> None:
        """Wait for the GPU; on the processor every call has finished when it returns."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def result(self, result: Any) -> Any:
        """Return the array to compare."""
        return result


class EndToEnd(Operation):
    """A kernel between pinned transfers: in, compute, out, and wait, for each operation."""

    def __init__(
        self, backend: Backend, request: dict[str, Any], inputs: list[Any], device: Any
    ) -> None:
        self._device = device
        self._outputs = []
        function = backend.function(request, plain_function(request))
        self.sets = [tuple(each.pin_memory() for each in inputs)]
        out = inputs[0].new_empty(request["output"]["shape"]).pin_memory()
        self._outputs = [out]

        def work(hosts: Any) -> Any:
            there = [each.to(device, non_blocking=True) for each in hosts]
            out.copy_(function(*there), non_blocking=True)
            torch.cuda.synchronize(device)
            return out

        self.work = work


class Transfer(Operation):
    """A copy between host and GPU, in pinned or pageable memory."""

    def __init__(
        self, backend: Backend, request: dict[str, Any], inputs: list[Any], device: Any
    ) -> None:
        self._device = device
        host = inputs[0]
        way = request["way"]
        pinned = way.endswith("pinned")
        if pinned:
            host = host.pin_memory()
        here, there = host, host.to(device)
        source = here if way.startswith("to-gpu") else there
        self.sets = [source]
        out = torch.empty_like(there if way.startswith("to-gpu") else here)
        if way.startswith("from-gpu") and pinned:
            out = out.pin_memory()
        self._outputs = [out] if request["form"] == PREALLOCATED else []
        target = device if way.startswith("to-gpu") else torch.device("cpu")
        if self._outputs:

            def work(one: Any) -> Any:
                return out.copy_(one, non_blocking=pinned)

        else:

            def work(one: Any) -> Any:
                return one.to(target, non_blocking=way.startswith("to-gpu") and pinned)

        self.work = work


class Training(Operation):
    """Softmax regression by gradient descent: weights, and batches to walk through.

    With `way` copied, every batch is sent from the host when its step comes.
    """

    def __init__(
        self, backend: Backend, request: dict[str, Any], inputs: list[Any], device: Any
    ) -> None:
        if request["form"] == PREALLOCATED:
            raise NotImplementedError("PyTorch trains by autograd, which allocates")
        images, labels = inputs
        labels = labels.long()
        copied, size = request["way"] == "copied", request["parameters"]["batch"]
        self._device = device
        if not copied:
            images, labels = images.to(device), labels.to(device)
        elif device.type == "cuda":
            images, labels = images.pin_memory(), labels.pin_memory()
        self.sets = list(zip(images.split(size), labels.split(size)))
        weights = torch.zeros(request["output"]["shape"], device=device, requires_grad=True)
        self._weights = weights
        rate = request["parameters"]["rate"]

        def loss_of(weights: Any, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(x @ weights, y)

        loss = backend.function(request, loss_of)

        def work(batch: Any) -> Any:
            x, y = batch
            if copied:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss(weights, x, y).backward()
            with torch.no_grad():
                weights.sub_(weights.grad, alpha=rate)
            weights.grad = None
            if copied and device.type == "cuda":
                torch.cuda.synchronize(device)
            return weights

        self.work = work

    def poison(self) -> None:
        """Begin with weights of zero."""
        with torch.no_grad():
            self._weights.zero_()
