"""Repeated matrix product on one device; each result is compared with the first, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from gpucheck.bench.bits import ELEMENTS, Differences, differences, digest, joined, read_found
from gpucheck.bench.case import CaseOrder
from gpucheck.bench.formats import FORMATS, STORAGES
from gpucheck.bench.model import Verified
from gpucheck.bench.product_check import draw_inputs, verify_product
from gpucheck.drivers.gpu import GpuArray, GpuDevice, GpuFunction, Product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

SOURCE = Path(__file__).with_name("corruption.cu")
_THREADS = 256
_BLOCKS_PER_SM = 8
#: No index yet: any mismatch has a smaller one.
_NOWHERE = 2**64 - 1


class Repeater(Protocol):
    """Repeated product on one device, each result compared with the first."""

    def prepare(self) -> tuple[str, Verified]:
        """Multiply for the first time; return the digest and the comparison with float64."""
        ...

    def repeat(self, count: int) -> None:
        """Multiply and compare `count` times, and wait for the last one."""
        ...

    def differences(self) -> Differences:
        """Return the differences so far."""
        ...

    def release(self) -> None:
        """Release the memory."""
        ...


class GpuRepeater:
    """Products by cuBLAS, compared on the GPU."""

    def __init__(self, gpu: GpuDevice, order: CaseOrder) -> None:
        self._gpu = gpu
        self._order = order
        self._form = FORMATS[order.dtype]
        self._product = Product(math_mode=self._form.math_mode)
        self._arrays: tuple[GpuArray, ...] = ()
        self._differ: GpuFunction | None = None

    def prepare(self) -> tuple[str, Verified]:
        """Put the factors into GPU memory and multiply for the first time."""
        import numpy as np

        m, _, n = self._order.shape
        storage = STORAGES[self._form.output]
        left, right = (self._gpu.upload(side) for side in draw_inputs(self._order))
        first, again = (self._gpu.allocate((m, n), storage) for _ in range(2))
        found = self._gpu.upload(np.array([0, _NOWHERE, 0, 0], dtype=np.uint64))
        self._arrays = (left, right, first, again, found)
        self._differ = self._compiled("differ")
        self._gpu.poison(first)
        self._gpu.multiply(left, right, first, self._product)
        digest = self._digest(first)
        return digest, verify_product(self._order, self._gpu.download(first), form=self._form)

    def _digest(self, array: GpuArray) -> str:
        import numpy as np

        total = self._gpu.upload(np.zeros(1, dtype=np.uint64))
        self._launch(self._compiled("digest"), (array, self._count(), total))
        return f"{int(self._gpu.download(total)[0]):016x}"

    def repeat(self, count: int) -> None:
        """Multiply and compare `count` times."""
        left, right, first, again, found = self._arrays
        assert self._differ is not None
        for _ in range(count):
            # Without this, a product that was not computed would pass as the one before it.
            self._gpu.poison(again)
            self._gpu.multiply(left, right, again, self._product)
            self._launch(self._differ, (first, again, self._count(), found))
        self._gpu.synchronize()

    def differences(self) -> Differences:
        """Return the differences so far."""
        return read_found(self._gpu.download(self._arrays[4]))

    def release(self) -> None:
        """Release the GPU memory."""
        self._arrays = ()
        self._differ = None
        self._gpu.release()

    def _compiled(self, name: str) -> GpuFunction:
        source = SOURCE.read_text(encoding="utf-8")
        return self._gpu.compile(source, name, {"ELEMENT": ELEMENTS[self._form.output]})

    def _launch(self, function: GpuFunction, arguments: tuple[object, ...]) -> None:
        function(_BLOCKS_PER_SM * self._gpu.facts.sm_count, _THREADS, arguments)

    def _count(self) -> object:
        import numpy as np

        m, _, n = self._order.shape
        return np.int64(m * n)


class CpuRepeater:
    """Products by NumPy's BLAS, compared in NumPy as the GPU kernels do."""

    def __init__(self, order: CaseOrder) -> None:
        self._order = order
        self._form = FORMATS[order.dtype]
        self._found = Differences()
        self._arrays: tuple[HostArray, ...] = ()

    def prepare(self) -> tuple[str, Verified]:
        """Multiply for the first time."""
        import numpy as np

        m, _, n = self._order.shape
        left, right = draw_inputs(self._order)
        first, again = (np.full((m, n), np.nan, dtype=self._order.dtype) for _ in range(2))
        self._arrays = (left, right, first, again)
        np.matmul(left, right, out=first)
        return digest(first, self._form.output), verify_product(self._order, first, form=self._form)

    def repeat(self, count: int) -> None:
        """Multiply and compare `count` times."""
        import numpy as np

        left, right, first, again = self._arrays
        for _ in range(count):
            again.fill(np.nan)
            np.matmul(left, right, out=again)
            self._found = joined(self._found, differences(first, again, self._form.output))

    def differences(self) -> Differences:
        """Return the differences so far."""
        return self._found

    def release(self) -> None:
        """Drop the arrays."""
        self._arrays = ()
