"""Child process that calls the CUDA driver (libcuda): lists its devices, or tries them.

libcuda reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER once, at cuInit, so only a fresh process
can ask what a program started now would see. A listing creates no context and allocates no memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import time

from gpucheck.drivers.native import DriverError, loaded_library, take_over_output

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: The errors that a person can act on; libcuda names the rest itself.
#: Source: cuda.h (CUresult).
REASONS = {
    2: ("out-of-memory", "the GPU is out of memory"),
    3: ("not-initialized", "the CUDA driver could not be initialised"),
    34: ("stub-library", "the libcuda.so.1 that was loaded is the stub of the CUDA toolkit"),
    35: ("insufficient-driver", "the driver is older than the CUDA version that the program needs"),
    36: ("newer-driver-needed", "this operation needs a newer driver"),
    46: ("devices-unavailable", "the GPU is busy or in a compute mode that refuses new programs"),
    100: ("no-device", "the CUDA driver sees no GPU in this environment"),
    101: ("invalid-device", "a device ordinal is out of range"),
    102: ("not-licensed", "this virtual GPU has no licence"),
    200: ("invalid-image", "the driver cannot load the kernel's code"),
    209: ("no-kernel-image", "the kernel's code does not fit this GPU's architecture"),
    214: ("ecc-uncorrectable", "the GPU had an uncorrectable memory error"),
    218: ("invalid-ptx", "the driver cannot compile the kernel"),
    220: ("nvlink-uncorrectable", "an NVLink had an uncorrectable error"),
    221: ("jit-compiler-missing", "the driver's compiler libnvidia-ptxjitcompiler.so is missing"),
    222: ("ptx-too-new", "the kernel's code is newer than the driver"),
    226: ("contained", "an error of the GPU or its links was contained and ended this program"),
    303: ("library-broken", "a library that the CUDA driver needs could not be initialised"),
    304: ("operating-system", "an operating system call of the CUDA driver failed"),
    700: ("illegal-address", "the kernel accessed memory outside its own"),
    702: ("launch-timeout", "the kernel ran for longer than the display driver allows"),
    719: ("launch-failed", "the kernel failed on the GPU"),
    800: ("not-permitted", "the operation is not permitted to this user"),
    802: ("system-not-ready", "the system is not ready: the fabric manager may not be running"),
    803: ("driver-mismatch", "libcuda and the loaded kernel module differ in version"),
    804: ("compat-not-supported", "a forward-compatibility libcuda is used on a GPU without it"),
    805: ("mps-connection-failed", "the MPS daemon could not be reached"),
    806: ("mps-rpc-failure", "the MPS server did not answer the program's call"),
    807: ("mps-not-ready", "the MPS server is not ready for new clients"),
    808: ("mps-too-many-clients", "the MPS server cannot take any more clients"),
    809: ("mps-no-connections", "the GPU has no connections left for another MPS client"),
    810: ("mps-client-terminated", "the MPS server ended this program's connection"),
    919: ("fabric-not-ready", "the GPU's fabric (NVLink) is not set up yet"),
    999: ("unknown", "the CUDA driver reported an unknown error"),
}


class CudaError(DriverError):
    """An error of libcuda, or the reason why it could not be called."""


class Binding:
    """libcuda.so.1, with every error raised as `CudaError`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            function, slug = "dlopen", "library-not-found"
            text = f"libcuda.so.1 could not be loaded: {error}"
            raise CudaError(function, None, slug, text) from None

    def ask(self, function: str, *arguments: Any) -> None:
        """Call one function; raise `CudaError` if it is missing or does not return CUDA_SUCCESS."""
        call = getattr(self._library, function, None)
        if call is None:
            text = f"this libcuda has no {function}"
            raise CudaError(function, None, "function-not-found", text)
        code = int(call(*arguments))
        if code:
            slug, text = REASONS.get(code, ("error", "the CUDA driver reported an error"))
            raise CudaError(function, code, slug, f"{text} ({self._name(code)}CUDA {code})")

    def _name(self, code: int) -> str:
        """Return libcuda's own name of an error and a comma, or nothing if it has none."""
        name = ctypes.c_char_p()
        try:
            self._library.cuGetErrorName(code, ctypes.byref(name))
        except AttributeError:
            return ""
        return name.value.decode("ascii", "replace") + ", " if name.value else ""

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

    def release(self, function: str, *arguments: Any) -> None:
        """Call a function that releases something, ignoring its failure."""
        call = getattr(self._library, function, None)
        if call is not None:
            call(*arguments)


# ----------------------------------------------------------------------------------- list devices

COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
SM_COUNT = 16
INTEGRATED = 18
L2_BYTES = 38


def read_device(driver: Binding, ordinal: int) -> dict[str, Any]:
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
        ("sm_count", lambda: driver.integer("cuDeviceGetAttribute", SM_COUNT, device)),
        ("l2_bytes", lambda: driver.integer("cuDeviceGetAttribute", L2_BYTES, device)),
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
    document: dict[str, Any] = {}
    try:
        driver = Binding()
        # The version needs no cuInit, so it tells "old driver" from "no device" when that fails.
        document["driver_version"] = driver.integer("cuDriverGetVersion")
        driver.ask("cuInit", 0)
        document["device_count"] = driver.integer("cuDeviceGetCount")
        document["devices"] = [read_device(driver, i) for i in range(document["device_count"])]
    except CudaError as error:
        document["failure"] = error.document()
    return document


# -------------------------------------------------------------------------------- run the kernel

#: Kernel that needs no toolkit and no package, so only the driver and the GPU decide its result:
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
            return self._launch_in_context()
        finally:
            self.release("cuDevicePrimaryCtxRelease_v2", device)

    def _launch_in_context(self) -> dict[str, Any]:
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


# ------------------------------------------------------------------------- ask for too much memory

#: More than the limit by this: drivers allocate in blocks of 2 MiB.
BEYOND_BYTES = 16 << 20
#: Source: cuda.h (CUDA_ERROR_OUT_OF_MEMORY).
OUT_OF_MEMORY = 2


def take_too_much(driver: Binding, device: int, limit: int) -> dict[str, Any]:
    """Take half of the limit, then ask for the rest and a little more, which must be refused.

    The memory is given back when this process ends. A request that is refused takes nothing.
    """
    context = ctypes.c_void_p()
    driver.ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver.ask("cuCtxSetCurrent", context)
    taken = limit // 2
    driver.ask("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(taken))
    rest = limit - taken + BEYOND_BYTES
    try:
        driver.ask("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(rest))
    except CudaError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        return {"allocated_bytes": taken, "refused_bytes": rest, "refused_with": error.text}
    return {"allocated_bytes": taken + rest, "refused_bytes": None}


def try_limits(group: str, limits: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Join a cgroup, and yield a document for each GPU that it limits, by its UUID's digits."""
    # O_CREAT for a folder that stands in for a group; the kernel has the file in every group.
    joined = os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(joined, f"{os.getpid()}\n".encode())
    os.close(joined)
    try:
        driver = Binding()
        driver.ask("cuInit", 0)
        for ordinal in range(driver.integer("cuDeviceGetCount")):
            device = driver.integer("cuDeviceGet", ordinal)
            digits = driver.uuid_hex(device)
            if digits not in limits:
                continue
            try:
                yield {"uuid_hex": digits, **take_too_much(driver, device, limits[digits])}
            except CudaError as error:
                yield {"uuid_hex": digits, "failure": error.document()}
    except CudaError as error:
        yield {"failure": error.document()}
    yield {"end": True}


def main(question: str = "", *arguments: str) -> None:
    """Print JSON lines: what libcuda lists; with `every` or `first`, of a kernel on these devices.

    With `limits`, a cgroup's folder and its limits by UUID, of requests for more than these.
    """
    write_answer = take_over_output()
    if question == "limits":
        for document in try_limits(arguments[0], json.loads(arguments[1])):
            write_answer(document)
    elif question:
        write_answer({"through": "libcuda", **run_on_devices(question == "every")})
    else:
        write_answer({**read(), "library_path": loaded_library("libcuda.so")})
