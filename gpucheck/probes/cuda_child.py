"""Facts from the CUDA driver (libcuda) by ctypes: a single file run by path in a child.

CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read by libcuda once, at cuInit, so only a fresh
process can ask what a program started now would see. No context is created and no memory taken.
Standard library only: nothing of gpucheck is imported here.
"""

from __future__ import annotations

import ctypes
import json
import os

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any


COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
INTEGRATED = 18

#: The causes of a failing cuInit that a person can act on; libcuda names the rest itself.
#: Source: cuda.h (CUresult).
REASONS = {
    2: ("out-of-memory", "the GPU has no memory left for another program"),
    3: ("not-initialized", "the CUDA driver could not be initialised"),
    34: ("stub-library", "the libcuda.so.1 that was loaded is the stub of the CUDA toolkit"),
    35: ("insufficient-driver", "the driver is older than the CUDA that is asked of it"),
    36: ("newer-driver-needed", "a newer driver is needed for what was asked"),
    46: ("devices-unavailable", "every GPU is busy or in a compute mode that refuses new programs"),
    100: ("no-device", "the CUDA driver sees no GPU in this environment"),
    101: ("invalid-device", "a device ordinal is out of range"),
    102: ("not-licensed", "this virtual GPU has no licence"),
    214: ("ecc-uncorrectable", "the GPU met a memory error that it could not correct"),
    303: ("library-broken", "a library that the CUDA driver needs could not be initialised"),
    304: ("operating-system", "an operating system call of the CUDA driver failed"),
    800: ("not-permitted", "the operation is not permitted to this user"),
    802: ("system-not-ready", "the system is not ready: the fabric manager may not be running"),
    803: ("driver-mismatch", "libcuda and the loaded kernel module differ in version"),
    804: ("compat-not-supported", "a forward-compatibility libcuda is used on a GPU without it"),
    805: ("mps-connection-failed", "the MPS daemon could not be reached"),
    806: ("mps-rpc-failure", "the MPS server did not answer the program's call"),
    807: ("mps-not-ready", "the MPS server is not ready for new clients"),
    808: ("mps-too-many-clients", "the MPS server has as many clients as it can take"),
    809: ("mps-no-connections", "the GPU has no connections left for another MPS client"),
    810: ("mps-client-terminated", "the MPS server ended this program's connection"),
    999: ("unknown", "the CUDA driver reported an unknown error"),
}


class Refusal(Exception):
    """libcuda did not give a value."""

    def __init__(self, function: str, code: int | None, slug: str, text: str) -> None:
        super().__init__(text)
        self.function = function
        self.code = code
        self.slug = slug
        self.text = text

    def document(self) -> dict[str, Any]:
        """Return the refusal as the JSON object that the parent decodes."""
        return {
            "code": self.slug,
            "message": self.text,
            "function": self.function,
            "library_code": self.code,
        }


class Driver:
    """libcuda.so.1 with every error turned into `Refusal`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            reason = str(error).removeprefix("libcuda.so.1: ")
            text = f"libcuda.so.1 could not be loaded: {reason}"
            function = "dlopen"
            raise Refusal(function, None, "library-not-found", text) from None

    def ask(self, function: str, *arguments: Any) -> None:
        """Call one function; raise `Refusal` if it is missing or does not return CUDA_SUCCESS."""
        try:
            call = getattr(self._library, function)
        except AttributeError:
            text = f"this libcuda has no {function}"
            raise Refusal(function, None, "function-not-found", text) from None
        code = int(call(*arguments))
        if code:
            slug, text = REASONS.get(code, ("error", "the CUDA driver refused"))
            raise Refusal(function, code, slug, f"{text} ({self._name(code)}, CUDA {code})")

    def _name(self, code: int) -> str:
        name = ctypes.c_char_p()
        try:
            self._library.cuGetErrorName(code, ctypes.byref(name))
        except AttributeError:
            return "unnamed"
        return name.value.decode("ascii", "replace") if name.value else "unnamed"

    def integer(self, function: str, *arguments: Any) -> int:
        """Return the int that a function writes through its first argument."""
        value = ctypes.c_int()
        self.ask(function, ctypes.byref(value), *arguments)
        return value.value

    def text(self, function: str, device: int) -> str:
        """Return the text that a function writes into a buffer of 256 bytes."""
        buffer = ctypes.create_string_buffer(256)
        self.ask(function, buffer, len(buffer), device)
        return buffer.value.decode("utf-8", "replace")

    def uuid_hex(self, device: int) -> str:
        """Return the UUID; version 1 is only a fallback, under MIG it names the parent GPU."""
        # Raw bytes: a UUID may contain NUL, which a C string would cut off.
        raw = (ctypes.c_ubyte * 16)()
        try:
            self.ask("cuDeviceGetUuid_v2", ctypes.byref(raw), device)
        except Refusal as refusal:
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
    """Return one device's document; what libcuda refused stands under `unavailable`."""
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
        except Refusal as refusal:
            unavailable[name] = refusal.text
    document["unavailable"] = unavailable
    return document


def read() -> dict[str, Any]:
    """Return everything libcuda says in this process."""
    found: dict[str, Any] = {}
    try:
        driver = Driver()
        # The version needs no cuInit, so it tells "old driver" from "no device" when that fails.
        found["driver_version"] = driver.integer("cuDriverGetVersion")
        driver.ask("cuInit", 0)
        found["device_count"] = driver.integer("cuDeviceGetCount")
        found["devices"] = [read_device(driver, i) for i in range(found["device_count"])]
    except Refusal as refusal:
        found["failure"] = refusal.document()
    return found


def loaded_library() -> str | None:
    """Return the libcuda that this process has loaded: its name carries its version."""
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
