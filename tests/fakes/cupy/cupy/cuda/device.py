"""cupy.cuda.device."""

from __future__ import annotations

from typing import Any

from .._pretended import blas, runtime
from .._pretended.device import THREAD
from .._pretended.device import device as _device


class Device:
    """A device, and a context in which it is the current one."""

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)
        self._stack: list[int] = []

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        before = runtime.getDevice()
        self._stack.append(before)
        if before != self.id:
            runtime.setDevice(self.id)
        return self

    def __exit__(self, *args: object) -> None:
        runtime.setDevice(self._stack.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> Device:
        """Make it the current device."""
        runtime.setDevice(self.id)
        return self

    def synchronize(self) -> None:
        """Wait for everything on it."""
        with self:
            runtime.deviceSynchronize()

    @property
    def compute_capability(self) -> str:
        """Return it as two digits."""
        major, minor = _device(self.id).card.capability
        return f"{major}{minor}"

    @property
    def mem_info(self) -> tuple[int, int]:
        """Return free and whole memory."""
        with self:
            return runtime.memGetInfo()

    @property
    def pci_bus_id(self) -> str:
        """Return the address on the bus."""
        return runtime.deviceGetPCIBusId(self.id)

    @property
    def attributes(self) -> dict[str, int]:
        """Return some attributes."""
        card = _device(self.id).card
        return {"MultiProcessorCount": card.sm_count, "ClockRate": int(card.clock_hz / 1e3)}


def get_device_id() -> int:
    """Return the current device's number."""
    return THREAD.device


def get_cublas_handle() -> int:
    """Return cuBLAS' handle for the current device."""
    return blas.handle()
