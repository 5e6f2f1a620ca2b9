"""cupy.ndarray on pretended memory, and its functions, as far as gpucheck uses them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import runtime
from .card import can_reach
from .clock import driver_call
from .contents import Bytes, Region, uploaded
from .device import SPACE, THREAD, Operation, Stream, device, stream_of
from .pool import MemoryPointer

Values = NDArray[Any]
_REFUSED = (
    "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to construct a NumPy "
    "array explicitly."
)


class PerformanceWarning(RuntimeWarning):
    """CuPy's own, when it switches direct access on by itself."""


def _current() -> Stream:
    return stream_of(runtime.current_stream_pointer())


def _queue(stream: Any) -> Stream:
    return _current() if stream is None else stream_of(stream.ptr)


def _contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    strides, step = [], itemsize
    for edge in reversed(shape):
        strides.append(step)
        step *= max(edge, 1)
    return tuple(reversed(strides))


class Flags:
    """An array's layout."""

    def __init__(self, c_contiguous: bool, f_contiguous: bool, owndata: bool) -> None:
        self.c_contiguous = c_contiguous
        self.f_contiguous = f_contiguous
        self.owndata = owndata


class ndarray:
    """An array in GPU memory."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        shape: int | Sequence[int],
        dtype: Any = float,
        memptr: MemoryPointer | None = None,
        strides: tuple[int, ...] | None = None,
        order: str = "C",
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(int(edge) for edge in shape)
        if any(edge < 0 for edge in self.shape):
            message = "Negative dimensions are not allowed"
            raise ValueError(message)
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        if self.dtype.kind not in "biufc":
            message = f"Unsupported dtype {self.dtype}"
            raise ValueError(message)
        self.strides = strides or _contiguous_strides(self.shape, self.dtype.itemsize)
        self.base: ndarray | None = None
        if memptr is None:
            from cupy.cuda import alloc

            memptr = alloc(self.nbytes)
        self.data: MemoryPointer = memptr

    # ---- what it is ----

    @property
    def size(self) -> int:
        """Return how many numbers it has."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Return how many edges it has."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Return the bytes of a number."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Return the bytes of all numbers."""
        return self.size * self.itemsize

    @property
    def device(self) -> Any:
        """Return the device it is on."""
        return self.data.device

    @property
    def flags(self) -> Flags:
        """Return its layout."""
        c = self.strides == _contiguous_strides(self.shape, self.itemsize) or self.size == 0
        turned = _contiguous_strides(self.shape[::-1], self.itemsize)[::-1]
        return Flags(c or self.size <= 1, self.strides == turned, self.base is None)

    @property
    def T(self) -> ndarray:
        """Return it with its edges in reverse."""
        return self._view(self.shape[::-1], self.strides[::-1], 0)

    def __len__(self) -> int:
        if not self.shape:
            message = "len() of unsized object"
            raise TypeError(message)
        return self.shape[0]

    def _view(
        self, shape: Sequence[int], strides: Sequence[int], offset: int, dtype: Any = None
    ) -> ndarray:
        view = ndarray(shape, dtype or self.dtype, self.data + offset, tuple(strides))
        view.base = self.base if self.base is not None else self
        return view

    def region(self) -> Region:
        """Return the bytes from its first to its last number."""
        if self.size == 0:
            message = "the pretended CuPy was asked for the bytes of an empty array"
            raise AssertionError(message)
        steps = zip(self.shape, self.strides, strict=True)
        span = sum((edge - 1) * stride for edge, stride in steps) + self.itemsize
        return SPACE.region(self.data.ptr, span)

    def on_host(self, raw: Bytes) -> Values:
        """Return the numbers that `raw`, this array's region, holds."""
        flat: Values = np.ndarray(self.shape, self.dtype, raw, 0, self.strides)
        return flat

    # ---- copies ----

    @driver_call
    def get(
        self, stream: Any = None, order: str = "C", out: Values | None = None, blocking: bool = True
    ) -> Values:
        """Copy it to the host."""
        if out is not None:
            if not isinstance(out, np.ndarray):
                message = f"Only numpy.ndarray can be obtained from cupy.ndarray: {type(out)}"
                raise TypeError(message)
            if self.dtype != out.dtype:
                message = f"{out.dtype} array cannot be obtained from {self.dtype} array"
                raise TypeError(message)
            if self.shape != out.shape:
                message = f"Shape mismatch. Expected shape: {self.shape}, actual shape: {out.shape}"
                raise ValueError(message)
            if not out.flags.c_contiguous:
                message = "`out` cannot be specified when copying to non-contiguous ndarray"
                raise RuntimeError(message)
        host = np.empty(self.shape, self.dtype) if out is None else out
        if self.size == 0:
            return host
        source = self if self.flags.c_contiguous else ascontiguousarray(self)
        queue = _queue(stream)
        runtime.copy_to_host(queue, source.data.ptr, host)
        if blocking:
            runtime.streamSynchronize(queue.pointer)
        return host

    @driver_call
    def set(self, arr: Values, stream: Any = None) -> None:
        """Copy a host array into it."""
        if not isinstance(arr, np.ndarray):
            message = "Only numpy.ndarray can be set to cupy.ndarray"
            raise TypeError(message)
        if self.dtype != arr.dtype:
            message = f"{arr.dtype} array cannot be set to {self.dtype} array"
            raise TypeError(message)
        if self.shape != arr.shape:
            message = f"Shape mismatch. Old shape: {self.shape}, new shape: {arr.shape}"
            raise ValueError(message)
        if not self.flags.c_contiguous:
            message = "Cannot set to non-contiguous array"
            raise RuntimeError(message)
        if self.size:
            runtime.copy_to_device(_queue(stream), self.data.ptr, np.ascontiguousarray(arr))

    def item(self) -> Any:
        """Return its only number."""
        return self.get().item()

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def tolist(self) -> Any:
        """Return it as lists."""
        return self.get().tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Values:
        raise TypeError(_REFUSED)

    def __repr__(self) -> str:
        return repr(self.get())

    @driver_call
    def fill(self, value: Any) -> None:
        """Fill it with one number."""
        if self.size == 0:
            return
        if not self.flags.c_contiguous:
            elementwise(np.positive, (self.dtype.type(value),), out=self)
            return
        _usable(self)
        pattern = np.array(value).astype(self.dtype).tobytes()
        runtime.fill(self.data.ptr, pattern, self.nbytes, _current())

    def copy(self, order: str = "C") -> ndarray:
        """Return a copy on the current device."""
        return array(self)

    def astype(self, dtype: Any, order: str = "K", copy: bool = True, **_: Any) -> ndarray:
        """Return it in another type."""
        if not copy and np.dtype(dtype) == self.dtype:
            return self
        wanted = np.dtype(dtype)
        return _computed("astype", (self,), self.shape, wanted, lambda one: one.astype(wanted))

    # ---- views ----

    def reshape(self, *shape: Any, order: str = "C") -> ndarray:
        """Return it in another shape, in the same memory."""
        edges = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        wanted = np.empty(self.shape, np.bool_).reshape(edges).shape if self.size else tuple(edges)
        source = self if self.flags.c_contiguous else ascontiguousarray(self)
        return source._view(wanted, _contiguous_strides(wanted, self.itemsize), 0)

    def ravel(self, order: str = "C") -> ndarray:
        """Return it in one row."""
        return self.reshape(-1)

    def view(self, dtype: Any = None) -> ndarray:
        """Return the same bytes as another type."""
        kind = self.dtype if dtype is None else np.dtype(dtype)
        if kind.itemsize == self.itemsize:
            return self._view(self.shape, self.strides, 0, kind)
        last = self.shape[-1] * self.itemsize // kind.itemsize
        shape = (*self.shape[:-1], last)
        return self._view(shape, _contiguous_strides(shape, kind.itemsize), 0, kind)

    def transpose(self, *axes: int) -> ndarray:
        """Return it with its edges in reverse."""
        return self.T

    def __getitem__(self, key: Any) -> ndarray:
        # NumPy knows the rules of indexing: an empty array of the same strides is asked.
        ruler: Values = np.lib.stride_tricks.as_strided(
            np.empty(1, self.dtype), self.shape, self.strides
        )
        words = key if isinstance(key, tuple) else (key,)
        if not all(one is None or one is ... or isinstance(one, int | slice) for one in words):
            message = "the pretended CuPy has basic indexing only"
            raise AssertionError(message)
        part = ruler[words if ... in words else (*words, ...)]
        offset = part.ctypes.data - ruler.ctypes.data
        return self._view(part.shape, part.strides, offset)

    def __setitem__(self, key: Any, value: Any) -> None:
        target = self[key]
        if isinstance(value, ndarray) or np.ndim(value) == 0:
            elementwise(np.positive, (value,), out=target)
        else:
            message = "non-scalar numpy.ndarray cannot be used for assignment"
            raise ValueError(message)

    # ---- arithmetic ----

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method != "__call__" or set(keywords) - {"out"}:
            return NotImplemented
        out = keywords.get("out")
        return elementwise(ufunc, inputs, out=out[0] if isinstance(out, tuple) else out)

    def __add__(self, other: Any) -> ndarray:
        return elementwise(np.add, (self, other))

    def __radd__(self, other: Any) -> ndarray:
        return elementwise(np.add, (other, self))

    def __iadd__(self, other: Any) -> ndarray:
        return elementwise(np.add, (self, other), out=self)

    def __sub__(self, other: Any) -> ndarray:
        return elementwise(np.subtract, (self, other))

    def __rsub__(self, other: Any) -> ndarray:
        return elementwise(np.subtract, (other, self))

    def __isub__(self, other: Any) -> ndarray:
        return elementwise(np.subtract, (self, other), out=self)

    def __mul__(self, other: Any) -> ndarray:
        return elementwise(np.multiply, (self, other))

    def __rmul__(self, other: Any) -> ndarray:
        return elementwise(np.multiply, (other, self))

    def __imul__(self, other: Any) -> ndarray:
        return elementwise(np.multiply, (self, other), out=self)

    def __truediv__(self, other: Any) -> ndarray:
        return elementwise(np.true_divide, (self, other))

    def __rtruediv__(self, other: Any) -> ndarray:
        return elementwise(np.true_divide, (other, self))

    def __itruediv__(self, other: Any) -> ndarray:
        return elementwise(np.true_divide, (self, other), out=self)

    def __neg__(self) -> ndarray:
        return elementwise(np.negative, (self,))

    def __eq__(self, other: object) -> ndarray:  # type: ignore[override]
        return elementwise(np.equal, (self, other))

    def __ne__(self, other: object) -> ndarray:  # type: ignore[override]
        return elementwise(np.not_equal, (self, other))

    def __lt__(self, other: Any) -> ndarray:
        return elementwise(np.less, (self, other))

    def __gt__(self, other: Any) -> ndarray:
        return elementwise(np.greater, (self, other))

    def __matmul__(self, other: ndarray) -> ndarray:
        return matmul(self, other)

    def max(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        """Return the largest numbers."""
        return _reduced("max", self, axis, keepdims)

    def min(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        """Return the smallest numbers."""
        return _reduced("min", self, axis, keepdims)

    def sum(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> ndarray:
        """Return sums."""
        return _reduced("sum", self, axis, keepdims)

    def mean(
        self, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False
    ) -> ndarray:
        """Return means."""
        return _reduced("mean", self, axis, keepdims)

    def all(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        """Return whether all are true."""
        return _reduced("all", self, axis, keepdims)

    def any(self, axis: Any = None, out: Any = None, keepdims: bool = False) -> ndarray:
        """Return whether any is true."""
        return _reduced("any", self, axis, keepdims)


def _usable(one: ndarray) -> None:
    """Refuse an array of a device that the current one does not reach."""
    where, here = one.data.device_id, THREAD.device
    if where == here or one.data.mem.block is None:
        return
    said = (
        f"The device where the array resides ({where}) is different from the current device "
        f"({here})."
    )
    if not can_reach(device(here).card, device(where).card):
        message = f"{said} Peer access is unavailable between these devices."
        raise ValueError(message)
    message = f"{said} Peer access has been activated automatically."
    warnings.warn(message, PerformanceWarning, stacklevel=4)


@driver_call
def _computed(
    name: str,
    inputs: Sequence[ndarray],
    shape: Sequence[int],
    dtype: Any,
    compute: Callable[..., Values],
    *,
    key: tuple[object, ...] = (),
    out: ndarray | None = None,
    flops: float = 0.0,
    arithmetic: str = "fp32",
) -> ndarray:
    """Enqueue an operation on arrays whose result is one array, new or `out`."""
    for one in (*inputs, *((out,) if out is not None else ())):
        _usable(one)
    target = ndarray(shape, dtype) if out is None else out
    if target.size == 0:
        return target
    if not target.flags.c_contiguous:
        message = "the pretended CuPy writes into contiguous arrays only"
        raise AssertionError(message)
    layouts = tuple((one.shape, one.strides, one.dtype.str) for one in inputs)
    wanted = target.dtype

    def make(found: list[Bytes]) -> Values:
        regions = iter(found)
        values = [
            np.empty(one.shape, one.dtype) if one.size == 0 else one.on_host(next(regions))
            for one in inputs
        ]
        return np.ascontiguousarray(
            np.broadcast_to(compute(*values), target.shape).astype(wanted, copy=False)
        )

    queue = _current()
    queue.device.submit(
        queue,
        Operation(
            name=name,
            out=target.region(),
            inputs=[one.region() for one in inputs if one.size],
            key=(*key, layouts, target.shape, wanted.str),
            make=make,
            flops=flops,
            arithmetic=arithmetic,
        ),
    )
    return target


def elementwise(ufunc: Any, arguments: Sequence[Any], out: ndarray | None = None) -> ndarray:
    """Apply one of NumPy's functions number by number."""
    for one in arguments:
        if isinstance(one, np.ndarray) and one.ndim:
            message = f"Unsupported type {type(one)}"
            raise TypeError(message)
    arrays = [one for one in arguments if isinstance(one, ndarray)]
    shape = np.broadcast_shapes(*(one.shape for one in arrays))
    samples = [
        np.ones((1,) * one.ndim, one.dtype) if isinstance(one, ndarray) else one
        for one in arguments
    ]
    dtype = np.asarray(ufunc(*samples)).dtype
    if out is not None and (out.shape != shape and arrays):
        message = "Out shape is mismatched"
        raise ValueError(message)
    scalars = tuple(None if isinstance(one, ndarray) else repr(one) for one in arguments)

    def compute(*values: Values) -> Values:
        given = iter(values)
        filled = [next(given) if isinstance(one, ndarray) else one for one in arguments]
        return np.asarray(ufunc(*filled))

    return _computed(
        f"elementwise-{ufunc.__name__}", arrays, shape, dtype, compute, key=scalars, out=out
    )


def _reduced(name: str, one: ndarray, axis: Any, keepdims: bool) -> ndarray:
    sample = np.ones((1,) * one.ndim, one.dtype)
    dtype = np.asarray(getattr(np, name)(sample)).dtype
    edges = np.broadcast_to(np.empty(1, np.bool_), one.shape)
    shape = np.any(edges, axis=axis, keepdims=keepdims).shape if one.size else ()

    def compute(values: Values) -> Values:
        return np.asarray(getattr(np, name)(values, axis=axis, keepdims=keepdims))

    return _computed(f"reduce-{name}", (one,), shape, dtype, compute, key=(axis, keepdims))


def matmul(left: Any, right: Any, out: ndarray | None = None) -> ndarray:
    """Return the matrix product; CuPy gives it to cuBLAS."""
    if not isinstance(left, ndarray) or not isinstance(right, ndarray):
        message = f"Unsupported type {type(right if isinstance(left, ndarray) else left)}"
        raise TypeError(message)
    if max(left.ndim, right.ndim) > 2 or min(left.ndim, right.ndim) < 1:
        message = "the pretended CuPy multiplies matrices and vectors only"
        raise AssertionError(message)
    if left.shape[-1] != right.shape[0]:
        message = (
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {right.shape[0]} is different from {left.shape[-1]})"
        )
        raise ValueError(message)
    if _current().captured is not None:
        message = "calling cuBLAS API during stream capture is currently unsupported"
        raise NotImplementedError(message)
    dtype = np.result_type(left.dtype, right.dtype)
    shape = (*left.shape[:-1], *right.shape[1:])
    flops = 2.0 * math.prod(shape) * left.shape[-1]
    return _computed("gemm", (left, right), shape, dtype, np.matmul, out=out, flops=flops)


# ---- making arrays ----


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Allocate an array without initialising it."""
    return ndarray(shape, dtype)


def zeros(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Allocate an array of zeros."""
    made = ndarray(shape, dtype)
    made.fill(0)
    return made


def ones(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Allocate an array of ones."""
    made = ndarray(shape, dtype)
    made.fill(1)
    return made


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> ndarray:
    """Allocate an array of one number."""
    made = ndarray(shape, np.array(fill_value).dtype if dtype is None else dtype)
    made.fill(fill_value)
    return made


def empty_like(prototype: Any, dtype: Any = None, **_: Any) -> ndarray:
    """Allocate an array like another one."""
    return ndarray(prototype.shape, prototype.dtype if dtype is None else dtype)


def zeros_like(a: Any, dtype: Any = None, **_: Any) -> ndarray:
    """Allocate zeros like another array."""
    return zeros(a.shape, a.dtype if dtype is None else dtype)


@driver_call
def array(
    obj: Any,
    dtype: Any = None,
    copy: bool = True,
    order: str = "K",
    subok: bool = False,
    ndmin: int = 0,
    *,
    blocking: bool = False,
) -> ndarray:
    """Make an array on the current device from anything; an array of another device is fetched."""
    if isinstance(obj, ndarray):
        here = obj.data.device_id == THREAD.device
        if not copy and here and dtype in (None, obj.dtype):
            return obj
        made = ndarray(obj.shape, obj.dtype)
        if obj.size:
            source = obj if obj.flags.c_contiguous else ascontiguousarray(obj)
            _copy_into(made, source)
        return made if dtype is None else made.astype(dtype, copy=False)
    host = np.array(obj, dtype=dtype, ndmin=ndmin)
    made = ndarray(host.shape, host.dtype)
    if host.size:
        runtime.copy_to_device(_current(), made.data.ptr, np.ascontiguousarray(host))
    return made


def _copy_into(made: ndarray, source: ndarray) -> None:
    if source.data.device_id == THREAD.device:
        queue = _current().pointer
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(made.data.ptr, source.data.ptr, source.nbytes, kind, queue)
        return
    runtime.memcpyPeerAsync(
        *(made.data.ptr, THREAD.device, source.data.ptr, source.data.device_id),
        *(source.nbytes, _current().pointer),
    )


def asarray(
    a: Any,
    dtype: Any = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    blocking: bool = False,
) -> ndarray:
    """Make an array on the current device; one that is there already is itself."""
    return array(a, dtype=dtype, copy=bool(copy))


def copyto(dst: ndarray, src: ndarray, casting: str = "same_kind", where: None = None) -> None:
    """Copy an array of this shape into another, with its numbers' type."""
    if not np.can_cast(src.dtype, dst.dtype, casting):  # type: ignore[arg-type]
        message = f"Cannot cast {src.dtype} to {dst.dtype} in {casting} casting mode"
        raise TypeError(message)
    elementwise(np.positive, (src,), out=dst)


def ascontiguousarray(a: ndarray, dtype: Any = None) -> ndarray:
    """Return it row by row in memory."""
    if a.flags.c_contiguous:
        return a
    return _computed("contiguous", (a,), a.shape, a.dtype, lambda one: one)


def asnumpy(
    a: Any,
    stream: Any = None,
    order: str = "C",
    out: Values | None = None,
    *,
    blocking: bool = True,
) -> Values:
    """Copy an array to the host."""
    if isinstance(a, ndarray):
        return a.get(stream=stream, order=order, out=out, blocking=blocking)
    found = np.asarray(a, order=order)  # type: ignore[call-overload]
    if out is not None:
        out[...] = found
        return out
    return found  # type: ignore[no-any-return]


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> ndarray:
    """Return numbers in a row."""
    bounds: tuple[Any, ...] = (start,) if stop is None else (start, stop, step)
    host: Values = np.arange(*bounds, dtype=dtype)
    made = ndarray(host.shape, host.dtype)
    if host.size:
        out, node = made.region(), uploaded(host)
        queue = _current()
        operation = Operation(name="arange", out=out, host=lambda: node)
        queue.device.submit(queue, operation)
    return made


def array_equal(a1: ndarray, a2: ndarray, equal_nan: bool = False) -> ndarray:
    """Return whether two arrays are equal, as an array of one."""
    if a1.shape != a2.shape:
        return array(False)
    return (a1 == a2).all()
