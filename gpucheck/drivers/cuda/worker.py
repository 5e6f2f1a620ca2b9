"""Child process that lists the devices of the CUDA driver (libcuda).

libcuda reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER once, at cuInit, so only a fresh process
can ask what a program started now would see. No context is created and no memory allocated.
"""

from __future__ import annotations

import ctypes

from gpucheck.drivers.cuda.binding import Binding, CudaError
from gpucheck.drivers.native import loaded_library, take_over_output

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
INTEGRATED = 18


class Driver(Binding):
    """Queries of libcuda."""

    def text(self, function: str, device: int) -> str:
        """Return the text that a function writes into a buffer of 256 bytes."""
        buffer = ctypes.create_string_buffer(256)
        self.ask(function, buffer, len(buffer), device)
        return buffer.value.decode("utf-8", "replace")

    def uuid_hex(self, device: int) -> str:
        """Return the UUID; version 1 is only a fallback: under MIG it names the parent GPU."""
        # Raw bytes: a UUID may contain NUL, which a C string would cut off.
        raw = (ctypes.c_ubyte * 16)()
        try:
            self.ask("cuDeviceGetUuid_v2", ctypes.byref(raw), device)
        except CudaError as error:
            if error.slug != "function-not-found":
                raise
            self.ask("cuDeviceGetUuid", ctypes.byref(raw), device)
        return bytes(raw).hex()

    def total_memory(self, device: int) -> int:
        """Return the device's memory in bytes."""
        total = ctypes.c_size_t()
        self.ask("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        return total.value


def read_device(driver: Driver, ordinal: int) -> dict[str, Any]:
    """Return one device's document, with libcuda's errors under `unavailable`."""
    document: dict[str, Any] = {"ordinal": ordinal}
    unavailable: dict[str, str] = {}
    device = driver.integer("cuDeviceGet", ordinal)

    def capability() -> str:
        major = driver.integer("cuDeviceGetAttribute", COMPUTE_CAPABILITY_MAJOR, device)
        minor = driver.integer("cuDeviceGetAttribute", COMPUTE_CAPABILITY_MINOR, device)
        return f"{major}.{minor}"

    questions = (
        ("uuid_hex", lambda: driver.uuid_hex(device)),
        ("name", lambda: driver.text("cuDeviceGetName", device)),
        ("pci_bus_id", lambda: driver.text("cuDeviceGetPCIBusId", device).lower()),
        ("compute_capability", capability),
        ("memory_total_bytes", lambda: driver.total_memory(device)),
        ("integrated", lambda: bool(driver.integer("cuDeviceGetAttribute", INTEGRATED, device))),
    )
    for name, question in questions:
        try:
            document[name] = question()
        except CudaError as error:
            unavailable[name] = error.text
    document["unavailable"] = unavailable
    return document


def read() -> dict[str, Any]:
    """Return everything that libcuda reports in this process."""
    found: dict[str, Any] = {}
    try:
        driver = Driver()
        # The version needs no cuInit, so it tells "old driver" from "no device" when that fails.
        found["driver_version"] = driver.integer("cuDriverGetVersion")
        driver.ask("cuInit", 0)
        found["device_count"] = driver.integer("cuDeviceGetCount")
        found["devices"] = [read_device(driver, i) for i in range(found["device_count"])]
    except CudaError as error:
        found["failure"] = error.document()
    return found


def main() -> None:
    """Print one JSON line."""
    write_answer = take_over_output()
    write_answer({**read(), "library_path": loaded_library("libcuda.so")})
