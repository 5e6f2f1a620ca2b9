"""Child process that joins a cgroup and asks libcuda for more GPU memory than its limit allows.

It gives the memory back by ending. A request that is refused takes nothing.
"""

from __future__ import annotations

import ctypes
import json
import os

from gpucheck.drivers.cuda.worker import Binding, CudaError
from gpucheck.drivers.native import take_over_output

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

#: More than the limit by this: drivers allocate in blocks of 2 MiB.
BEYOND_BYTES = 16 << 20
#: Source: cuda.h (CUDA_ERROR_OUT_OF_MEMORY).
OUT_OF_MEMORY = 2


def attempt(driver: Binding, device: int, limit: int) -> dict[str, Any]:
    """Take half of the limit, then ask for the rest and a little more, which must be refused."""
    context = ctypes.c_void_p()
    driver.ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.ask("cuCtxSetCurrent", context)
    taken = limit // 2
    document: dict[str, Any] = {"allocated_bytes": 0, "refused_bytes": None}
    driver.ask("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(taken))
    document["allocated_bytes"] = taken
    rest = limit - taken + BEYOND_BYTES
    try:
        driver.ask("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(rest))
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        document |= {"refused_bytes": rest, "refused_with": error.text}
    else:
        document["allocated_bytes"] = taken + rest
    return document


def main(group: str, limits: str) -> None:
    """Join the group, and print one JSON line for each GPU, by the digits of its UUID."""
    write_answer = take_over_output()
    # O_CREAT for a folder that stands in for a group; the kernel has the file in every group.
    joined = os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(joined, f"{os.getpid()}\n".encode())
    os.close(joined)
    wanted: dict[str, int] = json.loads(limits)
    try:
        driver = Binding()
        driver.ask("cuInit", 0)
        for ordinal in range(driver.integer("cuDeviceGetCount")):
            device = driver.integer("cuDeviceGet", ordinal)
            digits = driver.uuid_hex(device)
            if digits not in wanted:
                continue
            try:
                write_answer({"uuid_hex": digits, **attempt(driver, device, wanted[digits])})
            except CudaError as error:
                write_answer({"uuid_hex": digits, "failure": error.document()})
    except CudaError as error:
        write_answer({"failure": error.document()})
    write_answer({"end": True})
