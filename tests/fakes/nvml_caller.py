"""Child program that makes the pynvml calls it reads as JSON and writes each result.

A call is ``[function, arguments…]``; an argument ``{"gpu": 0}`` becomes a handle and
``{"gpu": 0, "mig": 1}`` that of a MIG device. An answer is ``{"value": …}`` or
``{"error": …}`` with NVML's number or the name of another exception.
"""

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml


def plain(value: Any) -> Any:
    """Convert a result of pynvml to JSON values; raw bytes become surrogates."""
    if isinstance(value, pynvml.c_nvmlValue_t):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes._SimpleCData):
        return value.value
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return vars(value)
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(each) for each in value]
    if isinstance(value, ctypes._Pointer):
        return {"gpu": pynvml.nvmlDeviceGetIndex(value)}
    return value


def argument(value: Any) -> Any:
    """Turn ``{"gpu": …}`` into a handle."""
    if not isinstance(value, dict):
        return value
    device = pynvml.nvmlDeviceGetHandleByIndex(value["gpu"])
    if "mig" in value:
        device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(device, value["mig"])
    return device


def field_values(device: Any, ids: list[int]) -> list[Any]:
    """Read field values with the member of the union that their type names."""
    members = {1: "uiVal", 3: "ullVal", 5: "siVal"}
    values = pynvml.nvmlDeviceGetFieldValues(device, ids)
    return [
        getattr(each.value, members[each.valueType])
        if each.nvmlReturn == 0
        else {"error": each.nvmlReturn}
        for each in values
    ]


def first_generation(device: Any, symbol: str) -> list[tuple[int, int]]:
    """List processes through the oldest form of a function, which pynvml no longer calls."""

    class Process(ctypes.Structure):
        _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))

    function = pynvml._nvmlGetFunctionPointer(symbol)
    processes, count = (Process * 64)(), ctypes.c_uint(64)
    pynvml._nvmlCheckReturn(function(device, ctypes.byref(count), processes))
    return [(process.pid, process.used) for process in processes[: count.value]]


def with_structure(name: str, version: str | None) -> Callable[..., Any]:
    """Call the function that writes its answer into a structure of the caller."""

    def call(device: Any, structure: str) -> Any:
        info = getattr(pynvml, structure)()
        if version is not None:
            info.version = getattr(pynvml, version)
        getattr(pynvml, name)(device, ctypes.byref(info))
        return info

    return call


OWN: dict[str, Callable[..., Any]] = {
    "field_values": field_values,
    "first_generation": first_generation,
    "pci_info_ext": with_structure("nvmlDeviceGetPciInfoExt", "nvmlPciInfoExt_v1"),
    "fabric": with_structure("nvmlDeviceGetGpuFabricInfoV", None),
    "fabric_first": with_structure("nvmlDeviceGetGpuFabricInfo", None),
    "sram": with_structure("nvmlDeviceGetSramEccErrorStatus", None),
    "remapped_rows_v2": with_structure("nvmlDeviceGetRemappedRows_v2", None),
}


def answer(call: list[Any]) -> dict[str, Any]:
    """Make one call."""
    name, *arguments = call
    try:
        function = OWN.get(name) or getattr(pynvml, name)
        return {"value": plain(function(*map(argument, arguments)))}
    except pynvml.NVMLError as error:
        return {"error": error.value}
    except Exception as error:
        return {"error": type(error).__name__}


if __name__ == "__main__":
    json.dump([answer(call) for call in json.load(sys.stdin)], sys.stdout)
