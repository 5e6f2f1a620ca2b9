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

    def use(self, request: dict[str, Any]) -> Any:
        """Set the arithmetic of a request, and return PyTorch's device."""
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
        return device

    def synchronize(self, device: Any, result: Any) -> None:
        """Wait for the GPU; on the processor every call has finished when it returns."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def function(self, request: dict[str, Any], plain: Callable[..., Any]) -> Any:
        """Return a function as it is, or compiled: once for each kernel, format and shape."""
        if request["form"] != COMPILED:
            return plain
        if not hasattr(torch, "compile"):
            raise NotImplementedError("torch.compile came with PyTorch 2.0")
        key = (
            request["kernel"],
            request["device"],
            tuple((tuple(part["shape"]), part["dtype"]) for part in request["inputs"]),
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

    def computing(self, request: dict[str, Any], inputs: list[Any], device: Any) -> Any:
        """Return a kernel on data that is in place."""
        first = tuple(tensor.to(device) for tensor in inputs)
        more = range(request["sets"] - 1)
        sets = [first, *(tuple(tensor.clone() for tensor in first) for _ in more)]
        if request["form"] != PREALLOCATED:
            function = self.function(request, plain_function(request))
            return sets, lambda inputs: function(*inputs), None
        outputs = [first[0].new_empty(request["output"]["shape"]) for _ in sets]
        work = function_into(request, first[0])
        return list(zip(sets, outputs)), work, lambda: poison(outputs)

    def end_to_end(self, request: dict[str, Any], inputs: list[Any], device: Any) -> Any:
        """Return a kernel between pinned transfers: in, compute, out, and wait."""
        function = self.function(request, plain_function(request))
        out = inputs[0].new_empty(request["output"]["shape"]).pin_memory()

        def work(hosts: Any) -> Any:
            there = [tensor.to(device, non_blocking=True) for tensor in hosts]
            out.copy_(function(*there), non_blocking=True)
            torch.cuda.synchronize(device)
            return out

        return [tuple(tensor.pin_memory() for tensor in inputs)], work, lambda: poison([out])

    def transfer(self, request: dict[str, Any], inputs: list[Any], device: Any) -> Any:
        """Return a copy between host and GPU, in pinned or pageable memory."""
        way, pinned = request["way"], request["way"].endswith("pinned")
        to_gpu = way.startswith("to-gpu")
        here = inputs[0].pin_memory() if pinned else inputs[0]
        there = here.to(device)
        source, target = (here, there) if to_gpu else (there, here)
        if request["form"] == PREALLOCATED:
            out = torch.empty_like(target)
            out = out.pin_memory() if pinned and not to_gpu else out
            work = lambda tensor: out.copy_(tensor, non_blocking=pinned)  # noqa: E731
            return [source], work, lambda: poison([out])
        where = device if to_gpu else torch.device("cpu")
        return [source], lambda tensor: tensor.to(where, non_blocking=to_gpu and pinned), None

    def training(self, request: dict[str, Any], batches: list[Any], device: Any) -> Any:
        """Return softmax regression by gradient descent: weights, and batches to walk through.

        With `way` copied, every batch is sent from the host when its step comes.
        """
        if request["form"] == PREALLOCATED:
            raise NotImplementedError("PyTorch trains by autograd, which allocates")
        copied, rate = request["way"] == "copied", request["parameters"]["rate"]
        on_gpu = device.type == "cuda"
        sets = [(images, labels.long()) for images, labels in batches]
        if not copied:
            sets = [(images.to(device), labels.to(device)) for images, labels in sets]
        elif on_gpu:
            sets = [(images.pin_memory(), labels.pin_memory()) for images, labels in sets]
        weights = torch.zeros(request["output"]["shape"], device=device, requires_grad=True)

        def loss_of(weights: Any, x: Any, y: Any) -> Any:
            return torch.nn.functional.cross_entropy(x @ weights, y)

        loss = self.function(request, loss_of)

        def work(batch: Any) -> Any:
            x, y = batch
            if copied:
                x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss(weights, x, y).backward()
            with torch.no_grad():
                weights.sub_(weights.grad, alpha=rate)
            weights.grad = None
            if copied and on_gpu:
                torch.cuda.synchronize(device)
            return weights

        def renew() -> None:
            with torch.no_grad():
                weights.zero_()

        return sets, work, renew


def poison(outputs: Sequence[Any]) -> None:
    """Fill preallocated outputs with NaN."""
    for out in outputs:
        out.fill_(float("nan"))


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


def function_into(request: dict[str, Any], like: Any) -> Any:
    """Return a kernel that writes into its output; `like` is an input."""
    if request["kernel"] == "matmul":

        def work(arrays: Any) -> Any:
            (left, right), out = arrays
            return torch.matmul(left, right, out=out)

    elif request["kernel"] == "softmax":
        temperature = request["parameters"]["temperature"]
        wide = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
        scaled = torch.empty_like(like, dtype=wide)

        def work(arrays: Any) -> Any:
            (x,), out = arrays
            if wide != x.dtype:
                scaled.copy_(x)
                torch.div(scaled, temperature, out=scaled)
                torch.softmax(scaled, -1, out=scaled)
                return out.copy_(scaled)
            torch.div(x, temperature, out=scaled)
            return torch.softmax(scaled, -1, out=out)

    else:

        def work(arrays: Any) -> Any:
            (x,), out = arrays
            return out.copy_(x)

    return work
