"""Facts from the CUDA driver (libcuda), read in a child that also loads cuda_door_child.py.

libcuda reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER once, at cuInit, so only a fresh process
can ask what a program started now would see. No context is created and no memory allocated.
Standard library only: nothing of gpucheck is imported here.
"""

from __future__ import annotations

import ctypes
import json
import os
from importlib.machinery import SourceFileLoader
from types import ModuleType

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any


COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
INTEGRATED = 18


def load_door() -> Any:
    """Load cuda_door_child.py from this file's folder."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import
    module = ModuleType("cuda_door_child")
    SourceFileLoader(module.__name__, f"{folder}/cuda_door_child.py").exec_module(module)
    return module


class Driver:
    """Queries of libcuda, through its binding."""

    def __init__(self, door: Any) -> None:
        self.refusal = door.Refusal
        library = door.Library()
        self.ask = library.ask
        self.integer = library.integer

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
        except self.refusal as refusal:
            if refusal.slug != "function-not-found":
                raise
            self.ask("cuDeviceGetUuid", ctypes.byref(raw), device)
        return bytes(raw).hex()

    def total_memory(self, device: int) -> int:
        """Return the device's memory in bytes."""
        total = ctypes.c_size_t()
        self.ask("cuDeviceTotalMem_v2", ctypes.byref(total), device)
        return total.value


def read_device(driver: Driver, ordinal: int) -> dict[str, Any]:
    """Return one device's document, with libcuda's refusals under `unavailable`."""
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
        except driver.refusal as refusal:
            unavailable[name] = refusal.text
    document["unavailable"] = unavailable
    return document


def read() -> dict[str, Any]:
    """Return everything that libcuda reports in this process."""
    found: dict[str, Any] = {}
    door = load_door()
    try:
        driver = Driver(door)
        # The version needs no cuInit, so it tells "old driver" from "no device" when that fails.
        found["driver_version"] = driver.integer("cuDriverGetVersion")
        driver.ask("cuInit", 0)
        found["device_count"] = driver.integer("cuDeviceGetCount")
        found["devices"] = [read_device(driver, i) for i in range(found["device_count"])]
    except door.Refusal as refusal:
        found["failure"] = refusal.document()
    return found


def loaded_library() -> str | None:
    """Return the path of the loaded libcuda, whose file name contains its version."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            paths = (line.split(maxsplit=5)[-1].strip() for line in file)
            return next((path for path in paths if "/libcuda.so" in path), None)
    except OSError:
        return None


def main() -> None:
    """Print one JSON line."""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    document = {**read(), "library_path": loaded_library()}
    os.write(out, json.dumps(document).encode("ascii") + b"\n")


if __name__ == "__main__":
    main()
