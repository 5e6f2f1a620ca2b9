"""cupy.RawKernel and RawModule: compiled by reading the source, launched in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import runtime
from .arrays import ndarray
from .clock import CLOCK, driver_call
from .device import COMPILE_S, Operation, device, stream_of
from .errors import CompileException, CUDADriverError, FakeIncompleteError, failed
from .kernel_cache import keep
from .kernels import Launch, implementation
from .pool import MemoryPointer
from .signature import Parameter, Source, read

_compiled: set[tuple[str, tuple[str, ...]]] = set()


class RawModule:
    """A source compiled for the current device."""

    def __init__(
        self,
        code: str | None = None,
        *,
        path: str | None = None,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        name_expressions: Any = None,
        jitify: bool = False,
    ) -> None:
        if (code is None) == (path is None):
            message = "Exactly one of `code` and `path` keyword arguments must be given."
            raise TypeError(message)
        if code is None or name_expressions is not None:
            message = "the pretended CuPy compiles sources, without name expressions"
            raise FakeIncompleteError(message)
        self.code = code
        self.options = tuple(options)

    def compile(self, log_stream: Any = None) -> None:
        """Compile it now."""
        self.source()

    @driver_call
    def source(self) -> Source:
        """Return what it holds; the first time on a machine takes as long as a compiler does."""
        device().call()
        found = read(self.code, self.options, device().card.capability)
        if (self.code, self.options) not in _compiled:
            keep(self.code.encode())
            _compiled.add((self.code, self.options))
            CLOCK.spend(COMPILE_S)
        return found

    def get_function(self, name: str) -> RawKernel:
        """Return a kernel of it."""
        return RawKernel(self.code, name, self.options)


class RawKernel:
    """One kernel of a source."""

    def __init__(
        self,
        code: str,
        name: str,
        options: Sequence[str] = (),
        backend: str = "nvrtc",
        *,
        translate_cucomplex: bool = False,
        enable_cooperative_groups: bool = False,
        jitify: bool = False,
    ) -> None:
        self.code = code
        self.name = name
        self.options = tuple(options)
        self.backend = backend
        self.max_dynamic_shared_size_bytes = 49152
        self._module = RawModule(code, options=self.options)
        self._parameters: tuple[Parameter, ...] | None = None
        self._bound = 1024

    def compile(self, log_stream: Any = None) -> None:
        """Compile it now."""
        found = self._module.source()
        if self.name not in found.kernels:
            message = f'error: no extern "C" kernel {self.name!r} in the source'
            raise CompileException(message, self.code, self.name, self.options)
        self._parameters = found.kernels[self.name]
        self._bound = found.bounds[self.name]

    @driver_call
    def __call__(
        self, grid: Sequence[int], block: Sequence[int], args: Sequence[Any], *, shared_mem: int = 0
    ) -> None:
        if self._parameters is None:
            self.compile()
        assert self._parameters is not None
        arguments = _checked(self.name, self._parameters, args)
        grid_size, block_size = _extent(grid), _extent(block)
        if not 0 < block_size <= self._bound or not 0 < grid_size < 2**31 or shared_mem > 232448:
            raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", "invalid argument")
        queue = stream_of(runtime.current_stream_pointer())
        match, function = implementation(self.name)
        defines = dict(_define(word) for word in self.options if word.startswith("-D"))
        effect = function(
            Launch(
                name=self.name,
                match=match,
                device=queue.device,
                grid=grid_size,
                block=block_size,
                arguments=arguments,
                dtypes=[one.dtype for one in self._parameters],
                defines=defines,
            )
        )
        queue.device.submit(
            queue,
            Operation(
                name=self.name,
                out=effect.out,
                inputs=effect.inputs,
                key=effect.key,
                make=effect.make,
                done=effect.done,
                moved=effect.moved,
                flops=effect.flops,
                seconds=effect.seconds,
            ),
        )


def _define(word: str) -> tuple[str, str]:
    name, _, value = word[2:].partition("=")
    return name, value or "1"


def _extent(edges: Sequence[int]) -> int:
    if not isinstance(edges, tuple) or not 1 <= len(edges) <= 3:
        message = "grid and block are tuples of one to three numbers"
        raise TypeError(message)
    if any(edge != 1 for edge in edges[1:]):
        message = "the pretended GPU has launches along one edge only"
        raise FakeIncompleteError(message)
    return int(edges[0])


def _checked(name: str, parameters: Sequence[Parameter], args: Sequence[Any]) -> list[Any]:
    """Return addresses and numbers; what would crash or give nonsense on a card is refused here."""
    if len(args) != len(parameters):
        message = f"{name} takes {len(parameters)} arguments, not {len(args)}"
        raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", message)
    return [
        _checked_one(name, parameter, given)
        for parameter, given in zip(parameters, args, strict=True)
    ]


def _checked_one(name: str, parameter: Parameter, given: Any) -> Any:
    where = f"{name}: argument {parameter.name!r}"
    if parameter.pointer:
        if isinstance(given, MemoryPointer):
            return given.ptr
        if not isinstance(given, ndarray):
            message = f"{where} is a pointer, not {type(given).__name__}"
            raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", message)
        if not _same_bits(parameter.dtype, given.dtype):
            message = f"{where} points to {parameter.dtype}, the array is {given.dtype}"
            raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", message)
        if not given.flags.c_contiguous:
            message = f"{where}: the array is not contiguous"
            raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", message)
        if given.data.device_id != device().card.ordinal and (
            given.data.device_id not in device().peers
        ):
            device().lost = failed("cudaErrorIllegalAddress")
            raise failed("cudaErrorIllegalAddress")
        alignment = parameter.count * np.dtype(parameter.dtype).itemsize
        if given.data.ptr % min(alignment, 16):
            message = "misaligned address"
            raise CUDADriverError(716, "CUDA_ERROR_MISALIGNED_ADDRESS", message)
        return given.data.ptr
    kind = _scalar_dtype(given)
    if kind is None:
        message = f"Unsupported type {type(given)}"
        raise TypeError(message)
    if np.dtype(kind) != np.dtype(parameter.dtype):
        message = f"{where} is {parameter.dtype}, but {kind} was passed"
        raise CUDADriverError(1, "CUDA_ERROR_INVALID_VALUE", message)
    return given


def _scalar_dtype(given: Any) -> str | None:
    """Return as what CuPy passes a number: Python's own are the widest."""
    if isinstance(given, np.generic):
        return str(given.dtype)
    if isinstance(given, bool):
        return "bool"
    if isinstance(given, int):
        return "int64"
    return "float64" if isinstance(given, float) else None


def _same_bits(wanted: str, found: np.dtype[Any]) -> bool:
    """Return whether an array's numbers are what a pointer points to; 16 bits may be any format."""
    if wanted in ("uint16", "float16"):
        return found.itemsize == 2 and found.kind in "uf"
    return np.dtype(wanted) == found
