"""Copies between GPUs: the bandwidth of each pair, and whether the copies are direct.

An operation moves one array of the row's shape; its bytes count once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from gpucheck.bench.case import Case, CaseOrder, Kernel, Work
from gpucheck.bench.gpu_case import EventCase, gpu_label
from gpucheck.bench.kernels.copy import verify_copy
from gpucheck.bench.model import Fact, Verified
from gpucheck.bench.numerics import FORMATS
from gpucheck.bench.request_model import BenchMode
from gpucheck.drivers.gpu import GpuArray, GpuDevice


class PeerToPeer(Kernel):
    """The kernel `p2p`."""

    id = "p2p"
    measures_link = True
    gpus_needed = 2
    sizes = MappingProxyType({BenchMode.QUICK: 4096, BenchMode.DEFAULT: 4096, BenchMode.FULL: 8192})

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        """Return 4 bytes for each element."""
        return Work(flops=0, bytes_moved=4 * shape[0] * shape[1], unit="B/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        """Return the source, and one copy for each pair's check."""
        return 4 * shape[0] * shape[1] * (1 + gpu_count)

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        """Return an array for each of a GPU's pairs, for eight GPUs at most."""
        return 14 * self.work(shape, dtype).bytes_moved

    def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> Sequence[Case]:
        """Return this GPU's copies from each other GPU."""
        others = [peer for peer in order.gpus if peer.facts.cuda_index != gpu.facts.cuda_index]
        return [PeerCase(order, gpu, peer) for peer in others]


class PeerCase(EventCase):
    """Copies from a peer's memory into this GPU's, timed by this GPU's events."""

    def __init__(self, order: CaseOrder, gpu: GpuDevice, peer: GpuDevice) -> None:
        super().__init__(gpu)
        self._order = order
        self._peer = peer
        self._arrays: list[GpuArray] = []
        self._direct = False
        origin = f"from-gpu:{peer.facts.cuda_index}"
        label = gpu_label(order, "p2p", origin, gpu.facts, FORMATS["float32"].spec)
        self.label = replace(label, parameters={"peer": peer.facts.device})
        self.work = PeerToPeer().work(order.shape, "float32")

    @property
    def facts(self) -> Mapping[str, Fact]:
        """Return whether the copies are direct or pass through the host."""
        return {"route": "direct" if self._direct else "through the host"}

    def prepare(self) -> None:
        """Fill the peer's array, allocate ours, and enable direct access where possible."""
        self._direct = self._gpu.reaches(self._peer)
        source = self._order.data.normal("p2p", self._order.shape)
        self._arrays = [self._peer.upload(source), self._gpu.allocate(self._order.shape)]

    def poison(self) -> None:
        """Fill the target with NaN."""
        self._gpu.poison(self._arrays[1])

    def run(self, loops: int) -> float:
        """Copy `loops` times and return the device time."""
        source, target = self._arrays

        def enqueue() -> None:
            for _ in range(loops):
                self._gpu.copy_from(self._peer, source, target)

        return self._timer.seconds(enqueue)

    def check(self) -> Verified:
        """Count the wrong numbers."""
        source = self._order.data.normal("p2p", self._order.shape)
        return verify_copy(source, self._gpu.download(self._arrays[1]))

    def release(self) -> None:
        """Release both GPUs' memory."""
        self._arrays = []
        self._gpu.release()
        self._peer.release()
