"""Arrays on the CPU (NumPy) and on a GPU (CuPy) for the operations of a graph.

NumPy and CuPy have the same functions, so one class serves both; they differ in the device that
must be current and in how an array is copied to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: An array on one device; only the device that made it may use it.
Array = Any


class ArrayDevice:
    """One device as a graph uses it, through a module with NumPy's functions; all is float32."""

    def __init__(
        self,
        module: Any,
        *,
        bring: Callable[[Array], Array],
        current: Callable[[], AbstractContextManager[object]] = nullcontext,
        wait: Callable[[], None] = lambda: None,
    ) -> None:
        self._xp = module
        self._bring = bring
        self._current = current
        self._wait = wait

    def constant(self, shape: tuple[int, ...], values: Sequence[float]) -> Array:
        """Make an array from all of its numbers in row order, or from one that fills it."""
        with self._current():
            if len(values) == 1:
                return self._xp.full(shape, values[0], dtype="float32")
            return self._xp.asarray(values, dtype="float32").reshape(shape)

    def receive(self, array: Array) -> Array:
        """Copy another device's array to this one, and wait until it is here."""
        with self._current():
            copied = self._bring(array)
            self._wait()
            return copied

    def matmul(self, left: Array, right: Array) -> Array:
        """Return the matrix product."""
        with self._current():
            return left @ right

    def add(self, arrays: Sequence[Array]) -> Array:
        """Return the sum of arrays, added one by one and broadcast as NumPy does."""
        with self._current():
            total = arrays[0]
            for array in arrays[1:]:
                total = total + array
            return total

    def softmax(self, array: Array, temperature: float) -> Array:
        """Return softmax(array / temperature) over the last axis.

        The largest number is subtracted first, so that no exponential overflows.
        """
        with self._current():
            scaled = array / self._xp.float32(temperature)
            powers = self._xp.exp(scaled - scaled.max(axis=-1, keepdims=True))
            return powers / powers.sum(axis=-1, keepdims=True)

    def relu(self, array: Array) -> Array:
        """Return max(array, 0)."""
        with self._current():
            return self._xp.maximum(array, self._xp.float32(0))

    def total(self, array: Array, axis: int | None) -> Array:
        """Return the sum over one axis or over all."""
        with self._current():
            return self._xp.asarray(array.sum(axis=axis))

    def wait(self) -> None:
        """Wait until the device has finished all its work."""
        with self._current():
            self._wait()


def open_cpu() -> ArrayDevice:
    """Return the CPU."""
    numpy = import_module("numpy")

    def bring(array: Array) -> HostArray:
        copied: HostArray = array.get() if hasattr(array, "get") else numpy.array(array, copy=True)
        return copied

    # As on a GPU: what is too large becomes infinite, and nobody is warned on stderr.
    return ArrayDevice(numpy, bring=bring, current=lambda: numpy.errstate(all="ignore"))


def open_gpu(cuda_index: int) -> ArrayDevice:
    """Return a GPU through CuPy.

    Raises:
        MissingError: CuPy, a library of CUDA's or the GPU is not here.
        InconclusiveError: another process has the GPU for itself.
    """
    from gpucheck.drivers.cupy.device import open_gpus
    from gpucheck.drivers.cupy.errors import BUSY

    opened = open_gpus([cuda_index])
    if opened.unavailable is not None:
        error = InconclusiveError if opened.busy else MissingError
        raise error(
            code=BUSY if opened.busy else "gpu-not-usable",
            message=f"The graph cannot run on CUDA device {cuda_index}: {opened.unavailable}.",
            remedy=(
                *opened.remedy,
                "Or leave out --run: that shows the placement and runs nothing.",
            ),
        )
    cupy = import_module("cupy")
    device = cupy.cuda.Device(cuda_index)

    def bring(array: Array) -> Array:
        # copy() is what CuPy documents for an array of another GPU: it needs no access from one
        # to the other, which an operation on both would.
        return array.copy() if isinstance(array, cupy.ndarray) else cupy.asarray(array)

    return ArrayDevice(cupy, bring=bring, current=lambda: device, wait=device.synchronize)


def as_our_error(error: Exception) -> GpucheckError:
    """Return the exception of a library in a running graph as a gpucheck error."""
    text = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    return InconclusiveError(
        code="graph-failed",
        message=f"The graph failed while it ran: {kind}: {text}.",
        remedy=(
            "See who uses the memory: gpucheck list --processes"
            if "Memory" in kind
            else "Run: gpucheck detect",
        ),
    )
