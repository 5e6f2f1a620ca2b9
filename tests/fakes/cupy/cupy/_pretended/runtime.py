"""Functions of cudaRuntime as CuPy binds them, as far as they are used here."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from .card import RUNTIME_VERSION, can_reach, libcuda
from .clock import CLOCK, driver_call
from .contents import repeated, uploaded
from .device import (
    SMALL_CALL_S,
    SPACE,
    STREAMS,
    THREAD,
    TICK_S,
    WAIT_S,
    Event,
    Graph,
    Operation,
    Stream,
    devices,
    new_stream,
    peer_copy_rate,
    stream_of,
)
from .device import device as numbered
from .errors import CUDARuntimeError, failed
from .pinned import is_pinned

__all__ = ["CUDARuntimeError"]

memcpyHostToHost = 0
memcpyHostToDevice = 1
memcpyDeviceToHost = 2
memcpyDeviceToDevice = 3
memcpyDefault = 4
streamDefault = 0
streamNonBlocking = 1
eventDefault = 0
eventBlockingSync = 1
eventDisableTiming = 2
eventInterprocess = 4
streamCaptureModeGlobal = 0
streamCaptureModeThreadLocal = 1
streamCaptureModeRelaxed = 2
is_hip = False

_events: dict[int, Event] = {}
_graphs: dict[int, Graph] = {}
_numbers = iter(range(0x9000, sys.maxsize, 0x10))


def getDeviceCount() -> int:
    """Return how many devices there are; no driver and no device are errors."""
    return libcuda().count()


def runtimeGetVersion() -> int:
    """Return CUDA's version that CuPy was built for."""
    return RUNTIME_VERSION


def driverGetVersion() -> int:
    """Return the newest CUDA that the driver knows."""
    return libcuda().version


def getDevice() -> int:
    """Return the current device."""
    devices()
    return THREAD.device


def setDevice(device: int) -> None:
    """Make a device the current one."""
    numbered(device)
    THREAD.device = device


def deviceSynchronize() -> None:
    """Wait for the current device."""
    _wait_for_device()


@driver_call
def _wait_for_device() -> None:
    numbered().synchronize()


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Return cudaDeviceProp as CuPy puts it into a dictionary."""
    card = numbered(device).card
    return {
        "name": card.name.encode("utf-8", "surrogateescape"),
        "totalGlobalMem": card.memory_bytes,
        "sharedMemPerBlock": 49152,
        "regsPerBlock": 65536,
        "warpSize": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsDim": (1024, 1024, 64),
        "maxGridSize": (2147483647, 65535, 65535),
        "clockRate": int(card.clock_hz / 1e3),
        "totalConstMem": 65536,
        "major": card.capability[0],
        "minor": card.capability[1],
        "multiProcessorCount": card.sm_count,
        "kernelExecTimeoutEnabled": 0,
        "integrated": int(card.integrated),
        "canMapHostMemory": 1,
        "computeMode": 0,
        "concurrentKernels": 1,
        "ECCEnabled": 1,
        "pciBusID": card.pci[1],
        "pciDeviceID": card.pci[2],
        "pciDomainID": card.pci[0],
        "tccDriver": 0,
        "memoryClockRate": int(card.memory_clock_hz / 1e3),
        "memoryBusWidth": card.bus_bits,
        "l2CacheSize": card.l2_bytes,
        "maxThreadsPerMultiProcessor": 2048,
        "isMultiGpuBoard": 0,
        "cooperativeLaunch": 1,
        # Bound as a C string: a zero byte ends it.
        "uuid": card.uuid.partition(b"\0")[0],
    }


def memGetInfo() -> tuple[int, int]:
    """Return the free and the whole memory of the current device."""
    here = numbered()
    here.call()
    return here.free_bytes(), here.card.memory_bytes


def deviceGetPCIBusId(device: int) -> str:
    """Return the address on the bus."""
    domain, bus, slot = numbered(device).card.pci
    return f"{domain:04X}:{bus:02X}:{slot:02X}.0"


def deviceGetAttribute(attrib: int, device: int) -> int:
    """Return the attributes that anybody asks for (cudaDeviceAttr)."""
    card = numbered(device).card
    known_ones = {
        13: int(card.clock_hz / 1e3),
        16: card.sm_count,
        18: int(card.integrated),
        36: int(card.memory_clock_hz / 1e3),
        37: card.bus_bits,
        38: card.l2_bytes,
        75: card.capability[0],
        76: card.capability[1],
    }
    if attrib not in known_ones:
        raise failed("cudaErrorInvalidValue")
    return known_ones[attrib]


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    """Return whether a device can read another's memory."""
    return int(can_reach(numbered(device).card, numbered(peerDevice).card))


def deviceEnablePeerAccess(peerDevice: int) -> None:
    """Let the current device read another's memory."""
    here = numbered()
    here.call()
    if not can_reach(here.card, numbered(peerDevice).card):
        raise failed("cudaErrorPeerAccessUnsupported")
    if peerDevice in here.peers:
        raise failed("cudaErrorPeerAccessAlreadyEnabled")
    here.peers.add(peerDevice)


# ---- streams and events ----


def streamCreateWithFlags(flags: int) -> int:
    """Make a stream on the current device."""
    return new_stream().pointer


def streamDestroy(pointer: int) -> None:
    """Forget a stream."""
    STREAMS.pop(pointer, None)


@driver_call
def streamSynchronize(stream: int) -> None:
    """Wait for a stream."""
    queue = stream_of(stream)
    queue.device.call()
    if queue.captured is not None:
        raise failed("cudaErrorStreamCaptureUnsupported")
    CLOCK.spend(WAIT_S)
    CLOCK.wait_until(queue.free_s)
    queue.pending.clear()


def streamQuery(stream: int) -> int:
    """Return 0 if a stream has done everything, 600 if not."""
    queue = stream_of(stream)
    queue.device.call()
    CLOCK.spend(SMALL_CALL_S)
    return 0 if queue.free_s <= CLOCK.gpu_s() else 600


def streamWaitEvent(stream: int, event: int) -> None:
    """Let a stream wait for an event."""
    queue = stream_of(stream)
    queue.device.call()
    CLOCK.spend(SMALL_CALL_S)
    found = _events[event]
    if found.captured is not None:
        queue.captured = found.captured
    elif found.moment_s is not None:
        queue.free_s = max(queue.free_s, found.moment_s)


def eventCreateWithFlags(flags: int) -> int:
    """Make an event on the current device."""
    here = numbered()
    here.call()
    pointer = next(_numbers)
    timed = not flags & eventDisableTiming
    _events[pointer] = Event(device=here.card.ordinal, timed=timed)
    return pointer


def eventDestroy(event: int) -> None:
    """Forget an event."""
    _events.pop(event, None)


def eventRecord(event: int, stream: int) -> None:
    """Note when a stream comes to here."""
    queue, found = stream_of(stream), _events[event]
    queue.device.call()
    if found.device != queue.device.card.ordinal:
        raise failed("cudaErrorInvalidResourceHandle")
    found.captured = queue.captured
    if queue.captured is not None:
        return
    CLOCK.spend(SMALL_CALL_S)
    found.moment_s = queue.free_s = max(queue.free_s, CLOCK.gpu_s())


def eventQuery(event: int) -> int:
    """Return 0 if the event has happened, 600 if not."""
    found = _events[event]
    numbered(found.device).call()
    CLOCK.spend(SMALL_CALL_S)
    return 0 if found.moment_s is None or found.moment_s <= CLOCK.gpu_s() else 600


@driver_call
def eventSynchronize(event: int) -> None:
    """Wait for an event."""
    found = _events[event]
    numbered(found.device).call()
    CLOCK.spend(WAIT_S)
    if found.moment_s is not None:
        CLOCK.wait_until(found.moment_s)


def eventElapsedTime(start: int, end: int) -> float:
    """Return the milliseconds between two events that have happened."""
    one, other = _events[start], _events[end]
    if not (one.timed and other.timed) or one.device != other.device:
        raise failed("cudaErrorInvalidResourceHandle")
    if one.moment_s is None or other.moment_s is None:
        raise failed("cudaErrorInvalidResourceHandle")
    if max(one.moment_s, other.moment_s) > CLOCK.gpu_s():
        raise failed("cudaErrorNotReady")
    numbered(one.device).call()
    return round((other.moment_s - one.moment_s) / TICK_S) * TICK_S * 1e3


# ---- graphs ----


def streamBeginCapture(stream: int, mode: int = streamCaptureModeRelaxed) -> None:
    """Record from now on."""
    queue = stream_of(stream)
    queue.device.call()
    if queue.captured is not None:
        raise failed("cudaErrorIllegalState")
    queue.captured = []


def streamEndCapture(stream: int) -> int:
    """Return a graph of what was recorded."""
    queue = stream_of(stream)
    if queue.captured is None:
        raise failed("cudaErrorIllegalState")
    graph = Graph(queue.device, queue.captured)
    for joined in STREAMS.values():
        if joined.captured is graph.operations:
            joined.captured = None
    for event in _events.values():
        if event.captured is graph.operations:
            event.captured = None
    queue.device.call()
    number = next(_numbers)
    _graphs[number] = graph
    CLOCK.spend(20e-6 + 1e-6 * len(graph.operations))
    return number


def streamIsCapturing(stream: int) -> bool:
    """Return whether a stream records."""
    return stream_of(stream).captured is not None


@driver_call
def graphLaunch(graphExec: int, stream: int) -> None:
    """Enqueue a graph."""
    queue, found = stream_of(stream), _graphs[graphExec]
    if found.device is not queue.device:
        raise failed("cudaErrorInvalidValue")
    queue.device.launch(queue, found)


def graphUpload(graphExec: int, stream: int) -> None:
    """Bring a graph to the device."""
    stream_of(stream).device.call()


def graphExecDestroy(graph: int) -> None:
    """Forget a graph."""
    _graphs.pop(graph, None)


# ---- copies ----


@driver_call
def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    """Enqueue a copy."""
    queue = stream_of(stream)
    if kind == memcpyDeviceToDevice:
        _copy_within(queue, dst, src, size)
    elif kind == memcpyHostToDevice:
        copy_to_device(queue, dst, _host_bytes(src, size))
    elif kind == memcpyDeviceToHost:
        copy_to_host(queue, src, _host_bytes(dst, size))
    else:
        raise failed("cudaErrorInvalidValue")


def _copy_within(queue: Stream, dst: int, src: int, size: int) -> None:
    source, out = SPACE.region(src, size), SPACE.region(dst, size)
    if source.block.device != out.block.device:
        memcpyPeerAsync(dst, out.block.device, src, source.block.device, size, queue.pointer)
        return
    queue.device.submit(
        queue, Operation(name="memcpy", out=out, inputs=(source,), key=None, make=lambda found: 0)
    )


@driver_call
def memcpyPeerAsync(
    dst: int, dstDevice: int, src: int, srcDevice: int, size: int, stream: int
) -> None:
    """Enqueue a copy between devices."""
    queue = stream_of(stream)
    source, out = SPACE.region(src, size), SPACE.region(dst, size)
    if (source.block.device, out.block.device) != (srcDevice, dstDevice):
        raise failed("cudaErrorInvalidValue")
    numbered(srcDevice).call()
    rate = peer_copy_rate(numbered(dstDevice), numbered(srcDevice))
    queue.device.submit(
        queue,
        Operation(
            name="peer", out=out, inputs=(source,), key=None, make=lambda found: 0, rate=rate
        ),
    )


def copy_to_device(queue: Stream, address: int, host: np.ndarray[Any, Any]) -> None:
    """Enqueue the copy of a host array, as it is now, to an address."""
    queue.device.submit(
        queue,
        Operation(
            name="to-gpu",
            engine="link-in",
            out=SPACE.region(address, host.nbytes),
            host=lambda: uploaded(host),
            host_bytes=host.nbytes,
            pageable=not is_pinned(host),
        ),
    )


def copy_to_host(queue: Stream, address: int, host: np.ndarray[Any, Any]) -> None:
    """Enqueue the copy of an address into a host array."""
    source = SPACE.region(address, host.nbytes)

    def done(start_s: float, end_s: float) -> None:
        source.block.looked_at()
        host.reshape(-1).view(np.uint8)[:] = source.node().values()

    queue.device.submit(
        queue,
        Operation(
            name="from-gpu",
            engine="link-out",
            inputs=(source,),
            done=done,
            host_bytes=host.nbytes,
            pageable=not is_pinned(host),
        ),
    )


def _host_bytes(address: int, size: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_ubyte * size).from_address(address))


@driver_call
def memset(address: int, value: int, size: int, stream: int | None = None) -> None:
    """Enqueue filling memory with one byte."""
    fill(
        address,
        bytes([value]),
        size,
        stream_of(current_stream_pointer() if stream is None else stream),
    )


def fill(address: int, pattern: bytes, size: int, queue: Stream) -> None:
    """Enqueue filling memory with one number."""

    out = SPACE.region(address, size)
    operation = Operation(name="fill", out=out, host=lambda: repeated(pattern, size))
    queue.device.submit(queue, operation)


def current_stream_pointer() -> int:
    """Return the current device's current stream."""
    stream = THREAD.current.get(THREAD.device)
    return 0 if stream is None else stream.pointer
