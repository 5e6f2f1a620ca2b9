"""Child program that lists the devices of libcuda.so.1 through ctypes, as JSON."""

import ctypes
import json
import sys
import uuid
from typing import Any

ATTRIBUTES = {
    "clock_khz": 13,
    "multiprocessors": 16,
    "pci_bus": 33,
    "pci_slot": 34,
    "memory_clock_khz": 36,
    "bus_width_bits": 37,
    "l2_bytes": 38,
    "pci_domain": 50,
    "major": 75,
    "minor": 76,
}


def text_of(code: int, function: Any) -> str | None:
    """Ask for the name or the text of an error."""
    found = ctypes.c_char_p()
    return None if function(code, ctypes.byref(found)) or not found.value else found.value.decode()


def device_facts(cuda: Any, ordinal: int) -> dict[str, Any]:
    """Ask everything about one device."""
    device, size = ctypes.c_int(), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name, bus_id = ctypes.create_string_buffer(96), ctypes.create_string_buffer(32)
    first, second = ctypes.create_string_buffer(16), ctypes.create_string_buffer(16)
    codes = [
        cuda.cuDeviceGet(ctypes.byref(device), ordinal),
        cuda.cuDeviceGetName(name, 96, device),
        cuda.cuDeviceGetUuid(first, device),
        cuda.cuDeviceGetPCIBusId(bus_id, 32, device),
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device),
        cuda.cuDeviceComputeCapability(ctypes.byref(major), ctypes.byref(minor), device),
    ]
    if hasattr(cuda, "cuDeviceGetUuid_v2"):
        codes.append(cuda.cuDeviceGetUuid_v2(second, device))
    facts = {
        "codes": codes,
        "name": name.value.decode("utf-8", "surrogateescape"),
        "uuid": str(uuid.UUID(bytes=second.raw)),
        "uuid_first": str(uuid.UUID(bytes=first.raw)),
        "pci_bus_id": bus_id.value.decode(),
        "memory_total_bytes": size.value,
        "compute_capability": f"{major.value}.{minor.value}",
    }
    for key, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        codes.append(cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device))
        facts[key] = value.value
    return facts


def everything() -> dict[str, Any]:
    """Initialise and list the devices."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"loaded": False}
    count, version = ctypes.c_int(), ctypes.c_int()
    early = cuda.cuDeviceGetCount(ctypes.byref(count))
    code = cuda.cuInit(0)
    cuda.cuDeviceGetCount(ctypes.byref(count))
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return {
        "loaded": True,
        "before_init": early,
        "code": code,
        "error_name": text_of(code, cuda.cuGetErrorName),
        "error_text": text_of(code, cuda.cuGetErrorString),
        "version": version.value,
        "past_the_end": cuda.cuDeviceGet(ctypes.byref(ctypes.c_int()), count.value),
        "devices": [device_facts(cuda, ordinal) for ordinal in range(count.value)],
    }


if __name__ == "__main__":
    json.dump(everything(), sys.stdout)
