"""Copies between host and GPU: each way and both at once, in pinned and pageable memory.

An operation moves one array of the row's shape (both ways: one each way). Its bytes count once for
each way. For each direction, sizes from 4 KiB up are fitted to latency + bytes / bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import Case, CaseOrder, Kernel, Work
from gpucheck.bench.gpu_case import EventCase, gpu_label, pinned_bytes
from gpucheck.bench.kernels.copy import verify_copy
from gpucheck.bench.model import Conclusion, Measurement, Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.gpu import GpuArray, GpuDevice

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Bytes of the smallest array, and the factor between sizes of the sweep.
_SMALLEST_BYTES = 4096
_SWEEP_FACTORS = {BenchMode.QUICK: 0, BenchMode.DEFAULT: 16, BenchMode.FULL: 4}
_WAYS = ("to-gpu", "from-gpu", "both-ways")


class Transfer(Kernel):
    """The kernel `transfer`."""

    id = "transfer"
    measures_link = True
    runs_with_host = True
    transfers_all = True
    gpus_needed = 1
    #: 64 MiB, and 256 MiB for `full`.
    sizes = MappingProxyType({BenchMode.QUICK: 4096, BenchMode.DEFAULT: 4096, BenchMode.FULL: 8192})

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 4 bytes for each element."""
        return Work(flops=0, bytes_moved=4 * math.prod(shape), unit="B/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the source, and a pinned and a pageable pair for each GPU."""
        array_bytes = 4 * math.prod(shape)
        return array_bytes * (1 + 3 * gpu_count) + gpu_count * 2 * pinned_bytes(array_bytes) + 1

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return two arrays for each case of the largest size, and as much for smaller sizes."""
        return 14 * 4 * math.prod(shape)

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return pinned and pageable copies at the full size, and the pinned sweep below it."""
        cases = [TransferCase(order, gpu, way, order.shape) for way in _WAYS]
        cases += [TransferCase(order, gpu, way, order.shape, pageable=True) for way in _WAYS[:2]]
        for count in sweep_counts(math.prod(order.shape), order.request.mode):
            cases += [TransferCase(order, gpu, way, (count,)) for way in _WAYS[:2]]
        return cases

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        """Fit each direction's pinned times to latency + bytes / bandwidth."""
        conclusions: list[Conclusion] = []
        for device in dict.fromkeys(row.device for row in rows):
            for way in _WAYS[:2]:
                points = [
                    (row.bytes_moved, row.time_s)
                    for row in rows
                    if row.device == device and row.variant == f"{way}-pinned"
                    if row.bytes_moved and row.time_s
                ]
                conclusions.extend(_fitted(device, way, points))
        return conclusions


def sweep_counts(largest: int, mode: BenchMode) -> list[int]:
    """Return the sweep's numbers of elements, smallest first, all below the largest."""
    factor, count, counts = _SWEEP_FACTORS[mode], _SMALLEST_BYTES // 4, []
    while factor and count < largest:
        counts.append(count)
        count *= factor
    return counts


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return (latency_s, bytes_per_s) of seconds = latency + bytes / bandwidth, or None.

    The fit minimises the squares of the relative errors, so that the smallest sizes, which show the
    latency, count as much as the largest. A negative latency gives None.
    """
    if len({size for size, _ in points}) < 3:
        return None
    # Minimise sum ((a + b x - y) / y)^2: linear least squares with weights 1 / y^2.
    weights = [1 / (seconds * seconds) for _, seconds in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    shared = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True))
    slope = shared / spread if spread > 0 else 0.0
    latency = mean_y - slope * mean_x
    return (latency, 1 / slope) if slope > 0 and latency >= 0 else None


def _fitted(device: str, way: str, points: Sequence[tuple[float, float]]) -> Sequence[Conclusion]:
    fit = fit_line(points)
    if fit is None:
        return ()
    latency_s, bytes_per_s = fit
    return (
        Conclusion(
            kernel="transfer",
            device=device,
            code=f"transfer-fit-{way}",
            sentence=f"{device} {way}, pinned: {1e6 * latency_s:.1f} us plus the bytes at "
            f"{bytes_per_s / 1e9:.1f} GB/s",
            facts={"latency_s": latency_s, "bandwidth_bytes_per_s": bytes_per_s},
        ),
    )


class TransferCase(EventCase):
    """Copies in one direction, or in both at once, timed by events behind the blocking kernel."""

    def __init__(
        self,
        order: CaseOrder,
        gpu: GpuDevice,
        way: str,
        shape: tuple[int, ...],
        *,
        pageable: bool = False,
    ) -> None:
        super().__init__(gpu)
        self._order = order
        self._way = way
        self._shape = shape
        self._pageable = pageable
        self._host: list[HostArray] = []
        self._device: list[GpuArray] = []
        variant = f"{way}-{'pageable' if pageable else 'pinned'}"
        label = gpu_label(order, "transfer", variant, gpu.facts, FORMATS["float32"].spec)
        self.label = replace(label, shape=shape)
        self.work = Work(
            flops=0,
            bytes_moved=4 * math.prod(shape) * (2 if way == "both-ways" else 1),
            unit="B/s",
        )

    def prepare(self) -> None:
        """Fill a host array and a GPU array, and allocate a target of each kind."""
        import numpy as np

        source = self._source()
        for _ in range(2):
            host = (
                np.empty(self._shape, dtype=np.float32)
                if self._pageable
                else self._gpu.pinned(self._shape)
            )
            host[...] = source
            self._host.append(host)
            self._device.append(self._gpu.upload(source))

    def _source(self) -> HostArray:
        """Return the numbers to copy: the first numbers of the largest array."""
        data = self._order.data.normal("transfer", (math.prod(self._order.shape),))
        return data[: math.prod(self._shape)].reshape(self._shape)

    def poison(self) -> None:
        """Fill both targets with NaN."""
        self._host[1].fill(float("nan"))
        self._gpu.poison(self._device[1])
        self._gpu.synchronize()

    def run(self, loops: int) -> float:
        """Copy `loops` times and return the device time."""
        gpu, (sent, fetched), (source, target) = self._gpu, self._host, self._device

        def enqueue() -> None:
            for _ in range(loops):
                if self._way == "to-gpu":
                    gpu.send(sent, target)
                elif self._way == "from-gpu":
                    gpu.fetch(source, fetched)
                else:
                    gpu.exchange(sent, target, source, fetched)

        # The host copies pageable memory itself, so it cannot be queued behind a waiting GPU.
        return self._timer.seconds(enqueue, held=not self._pageable)

    def check(self) -> Verified:
        """Count the wrong numbers."""
        arrived = []
        if self._way != "from-gpu":
            arrived.append(self._gpu.download(self._device[1]))
        if self._way != "to-gpu":
            arrived.append(self._host[1])
        results = [verify_copy(self._source(), copy) for copy in arrived]
        return max(results, key=lambda item: item.error or 0.0)

    def release(self) -> None:
        """Release the memory."""
        self._host.clear()
        self._device.clear()
        self._gpu.release()
