"""Child process of the CUDA kernel self-test: runs a kernel and compares its result.

The kernel below needs no toolkit and no package, so only the driver and the GPU decide its result.
"""

from __future__ import annotations

import ctypes
import time

from gpucheck.drivers.cuda.binding import Binding, CudaError
from gpucheck.drivers.native import take_over_output

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

#: x -> 3x + 7 on unsigned integers, for the oldest target that drivers of CUDA 11 to 13 accept:
#: they compile it for every newer GPU. Source: PTX ISA, "Application Compatibility".
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry probe(.param .u64 data, .param .u32 count)
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [data];
    ld.param.u32 %r1, [count];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r5, 4;
    add.s64 %rd4, %rd2, %rd3;
    ld.global.u32 %r6, [%rd4];
    mad.lo.u32 %r7, %r6, 3, 7;
    st.global.u32 [%rd4], %r7;
DONE:
    ret;
}
\0"""
COUNT = 4096
THREADS = 128


class KernelTest(Binding):
    """The kernel, run through libcuda."""

    def __init__(self) -> None:
        super().__init__()
        self.ask("cuInit", 0)

    def count(self) -> int:
        """Return the number of devices that a program sees."""
        return self.integer("cuDeviceGetCount")

    def run(self, ordinal: int) -> dict[str, Any]:
        """Run the kernel twice on one device and compare; the first run compiles it."""
        device = ctypes.c_int()
        context = ctypes.c_void_p()
        self.ask("cuDeviceGet", ctypes.byref(device), ordinal)
        self.ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        try:
            self.ask("cuCtxSetCurrent", context)
            return self._in_context()
        finally:
            self.release("cuDevicePrimaryCtxRelease_v2", device)

    def _in_context(self) -> dict[str, Any]:
        memory = ctypes.c_uint64()
        size = ctypes.c_size_t(4 * COUNT)
        values = (ctypes.c_uint32 * COUNT)(*range(COUNT))
        self.ask("cuMemAlloc_v2", ctypes.byref(memory), size)
        try:
            self.ask("cuMemcpyHtoD_v2", memory, values, size)
            started = time.perf_counter()
            kernel = self._kernel()
            self._launch(kernel, memory)
            first_s = time.perf_counter() - started
            started = time.perf_counter()
            self._launch(kernel, memory)
            second_s = time.perf_counter() - started
            self.ask("cuMemcpyDtoH_v2", values, memory, size)
        finally:
            self.release("cuMemFree_v2", memory)
        right = all(value == 3 * (3 * x + 7) + 7 for x, value in enumerate(values))
        return {"right": right, "first_launch_s": first_s, "second_launch_s": second_s}

    def _kernel(self) -> ctypes.c_void_p:
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        self.ask("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(PTX))
        self.ask("cuModuleGetFunction", ctypes.byref(kernel), module, b"probe")
        return kernel

    def _launch(self, kernel: ctypes.c_void_p, memory: ctypes.c_uint64) -> None:
        count = ctypes.c_uint32(COUNT)
        pointers = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(count))
        blocks = (COUNT + THREADS - 1) // THREADS
        sizes = [ctypes.c_uint(n) for n in (blocks, 1, 1, THREADS, 1, 1, 0)]
        self.ask("cuLaunchKernel", kernel, *sizes, ctypes.c_void_p(), pointers, ctypes.c_void_p())
        self.ask("cuCtxSynchronize")


def attempt(test: KernelTest, ordinal: int) -> dict[str, Any]:
    """Return the document of one device; an error of libcuda is its failure."""
    document: dict[str, Any] = {"ordinal": ordinal}
    try:
        document.update(test.run(ordinal))
    except CudaError as error:
        document["failure"] = error.document()
    return document


def run_on_devices(every: bool) -> dict[str, Any]:
    """Run on the devices until one succeeds, or on all of them."""
    launches: list[dict[str, Any]] = []
    try:
        test = KernelTest()
        for ordinal in range(test.count()):
            launches.append(attempt(test, ordinal))
            if launches[-1].get("right") and not every:
                break
    except CudaError as error:
        return {"failure": error.document()}
    return {"launches": launches}


def main(devices: str) -> None:
    """Print one JSON line; `devices` is `every` or `first`."""
    write_answer = take_over_output()
    write_answer({"through": "libcuda", **run_on_devices(devices == "every")})
