"""Devices at work: memory, streams, events and graphs, on the machine model's time axis.

Work is done in the order in which it is enqueued, and its time is reckoned: an operation starts
when its stream is free and the call has reached the GPU, and takes what its bytes and operations
take.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
from bisect import bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .card import Card, can_reach, cards, libcuda, peer_rate
from .clock import CLOCK
from .contents import Block, Bytes, Node, Region, corrupted, derived
from .errors import RUNTIME_ERRORS, CUDARuntimeError, failed
from .script import SCRIPT, Statement

#: Seconds that calls take the host, and that work takes on its way. Source: measurements of CUDA
#: 12 on server processors, rounded; only their order matters here.
CALL_S = 2.2e-6
SMALL_CALL_S = 0.4e-6
WAIT_S = 3e-6
CONTEXT_S = 0.25
COMPILE_S = 0.15
ARRIVAL_S = 1.5e-6
#: The shortest kernel, and the pause between two kernels of a stream and of a graph.
KERNEL_S, GAP_S, GRAPH_GAP_S = 1.2e-6, 0.9e-6, 0.2e-6
PINNED_LATENCY_S, PAGEABLE_LATENCY_S, PAGEABLE_RATE = 4e-6, 9e-6, 9e9
#: Launches that the driver queues on a stream before it lets the host wait.
QUEUE = 1024
#: What a context takes of the card's memory.
CONTEXT_BYTES = 500 << 20
#: CUDA's events resolve about half a microsecond.
TICK_S = 0.5e-6
#: How much faster the L2 is than memory.
L2_SPEED = 3.0

_FIRST_ADDRESS = 0xD0 << 48


@dataclass(slots=True, kw_only=True)
class Operation:
    """Something that a stream does: what it writes, from what, and how much work it is.

    `make` gets the inputs' bytes and returns the output's; `key` names it and its numbers, None for
    a copy of the first input; `host` gives the output instead. `engine` is where it runs: `link-in`
    and `link-out` are the copies from and to a host.
    """

    name: str
    engine: str = "kernel"
    out: Region | None = None
    inputs: Sequence[Region] = ()
    key: tuple[object, ...] | None = ()
    make: Callable[[list[Bytes]], object] | None = None
    done: Callable[[float, float], None] | None = None
    flops: float = 0.0
    arithmetic: str = "fp32"
    moved: Sequence[Region] | None = None
    host_bytes: int = 0
    seconds: float | None = None
    rate: float | None = None
    pageable: bool = False
    host: Callable[[], Node] | None = None


class Stream:
    """A queue of one device."""

    def __init__(self, pointer: int, device: Device) -> None:
        self.pointer = pointer
        self.device = device
        self.free_s = 0.0
        self.captured: list[Operation] | None = None
        self.pending: deque[float] = deque()


@dataclass(slots=True)
class Event:
    """A moment on a device's time axis."""

    device: int
    timed: bool = True
    moment_s: float | None = None
    #: What its stream captured when it was recorded: a stream that waits for it joins the capture.
    captured: list[Operation] | None = None


@dataclass(slots=True)
class Graph:
    """What a stream captured."""

    device: Device
    operations: list[Operation]


class Device:
    """One device with its context."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.lost: CUDARuntimeError | None = None
        self.started = False
        self.peers: set[int] = set()
        self.allocated_bytes = 0
        self.allocations = 0
        self._traffic = 0
        self._touched: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._engines = {"link-in": 0.0, "link-out": 0.0}
        self._noise = random.Random(f"{card.uuid.hex()} {os.environ.get('FAKE_GPU_SEED', '0')}")
        self._watched = [
            statement
            for word in ("lost", "hang", "interrupt")
            for statement in SCRIPT.about(word, card.gpu)
        ]
        self._kernel_faults = [
            statement
            for word in ("flip", "nan", "skip", "fail")
            for statement in SCRIPT.about(word, card.gpu)
        ]
        self._oom = list(SCRIPT.about("oom", card.gpu))
        self._throttles = list(SCRIPT.about("throttle", card.gpu))
        self._share = SCRIPT.factor("noise", "share", card.gpu, 0.002)
        self._slow = {
            key: SCRIPT.factor("slow", key, card.gpu)
            for key in ("memory", "compute", "link", "launch", "kernel")
        }

    # ---- calls ----

    def call(self) -> None:
        """Begin a call on this device: it may be the one with which it is lost."""
        if self.lost is not None:
            raise self.lost
        if not self.started:
            self.started = True
            libcuda().retain(self.card.ordinal)
            CLOCK.spend(CONTEXT_S)
            report_use()
        for statement in self._watched:
            if statement.due():
                self._happens(statement)

    def _happens(self, statement: Statement) -> None:
        if statement.word == "hang":
            _hang()
        if statement.word == "interrupt":
            if statement.seen == 1 + int(statement.number("after", 0)):
                os.kill(os.getpid(), signal.SIGINT)
            return
        name = statement.text("error", "cudaErrorUnknown")
        self.lost = CUDARuntimeError(RUNTIME_ERRORS[name][0])
        raise self.lost

    # ---- memory ----

    def free_bytes(self) -> int:
        """Return what another allocation could take."""
        context = CONTEXT_BYTES if self.started else 0
        return max(
            0, self.card.memory_bytes - self.card.used_bytes - context - self.allocated_bytes
        )

    def malloc(self, nbytes: int) -> Block:
        """Allocate, as cudaMalloc does."""
        self.call()
        CLOCK.spend(50e-6)
        refused = [statement for statement in self._oom if statement.due()]
        if refused or nbytes > self.free_bytes():
            raise failed("cudaErrorMemoryAllocation")
        self.allocated_bytes += nbytes
        self.allocations += 1
        block = SPACE.add(nbytes, self.card.ordinal)
        report_use()
        return block

    def free(self, block: Block) -> None:
        """Free, as cudaFree does: it waits for the device."""
        self.synchronize()
        self.allocated_bytes -= block.nbytes
        SPACE.drop(block)
        report_use()

    # ---- work ----

    def submit(self, stream: Stream, operation: Operation) -> None:
        """Enqueue an operation, or record it."""
        self.call()
        if stream.captured is not None:
            stream.captured.append(operation)
            CLOCK.spend(CALL_S)
            return
        CLOCK.spend(CALL_S * self._slow["launch"])
        earliest_s = CLOCK.gpu_s() + ARRIVAL_S
        self._run(stream, operation, earliest_s, GAP_S)
        if operation.pageable:
            # The host copies pageable memory itself, piece by piece, through a pinned buffer.
            CLOCK.wait_until(stream.free_s)

    def launch(self, stream: Stream, graph: Graph) -> None:
        """Enqueue a graph: one call, and no pauses for the host in it."""
        self.call()
        CLOCK.spend(2 * CALL_S + 0.02e-6 * len(graph.operations))
        earliest_s = CLOCK.gpu_s() + 2 * ARRIVAL_S
        for operation in graph.operations:
            self._run(stream, operation, earliest_s, GRAPH_GAP_S)

    def _run(self, stream: Stream, operation: Operation, earliest_s: float, gap_s: float) -> None:
        start_s = max(stream.free_s + gap_s, earliest_s)
        if operation.engine in self._engines:
            start_s = max(start_s, self._engines[operation.engine])
        seconds = self._seconds(operation, start_s)
        end_s = start_s + seconds
        if operation.engine in self._engines:
            self._engines[operation.engine] = end_s
        stream.free_s = end_s
        stream.pending.append(end_s)
        if len(stream.pending) > QUEUE:
            CLOCK.wait_until(stream.pending.popleft())
        self._compute(operation)
        if operation.done is not None:
            operation.done(start_s, end_s)

    def _compute(self, operation: Operation) -> None:
        out = operation.out
        for region in (*operation.inputs, *((out,) if out is not None else ())):
            if region.block.freed:
                self.lost = failed("cudaErrorIllegalAddress")
                raise self.lost
        if out is None:
            return
        if operation.host is not None:
            node, updates = operation.host(), False
        else:
            assert operation.make is not None
            inputs = [region.node() for region in operation.inputs]
            updates = any(region.place == out.place for region in operation.inputs)
            key = (operation.name, *(operation.key or ()))
            node = (
                inputs[0]
                if operation.key is None
                else derived(key, inputs, out.nbytes, operation.make)  # type: ignore[arg-type]
            )
        for statement in self._kernel_faults:
            if statement.matches(operation.name) and statement.due():
                if statement.word == "fail":
                    self.lost = failed(statement.text("error", "cudaErrorLaunchFailure"))
                    raise self.lost
                if statement.word == "skip":
                    return
                node = corrupted(node, statement.word)
        if updates:
            out.block.update(out.offset, node)
        else:
            out.block.write(out.offset, node)

    # ---- time ----

    def _seconds(self, operation: Operation, start_s: float) -> float:
        if operation.seconds is not None:
            return operation.seconds
        noise = 1 + self._share * self._noise.gauss(0, 1)
        if operation.engine.startswith("link"):
            return noise * self._link_seconds(operation)
        if operation.rate is not None:
            nbytes = operation.out.nbytes if operation.out is not None else 0
            return noise * (3e-6 + nbytes / (operation.rate * self._slow["link"]))
        moved = operation.moved
        if moved is None:
            moved = (*operation.inputs, *((operation.out,) if operation.out is not None else ()))
        card = self.card
        rate = card.memory_rate * card.efficiency_memory * self._slow["memory"]
        memory_s = sum(self._bytes_that_count(region) for region in moved) / rate
        flops_s = 0.0
        if operation.flops:
            peak = card.flops[operation.arithmetic] * self._slow["compute"]
            peak *= self.clock_factor(start_s) * card.efficiency_gemm
            flops_s = operation.flops / peak
        return KERNEL_S * self._slow["kernel"] + noise * max(memory_s, flops_s)

    def _bytes_that_count(self, region: Region) -> float:
        """Return the bytes, a part of them where the L2 still holds them."""
        place, nbytes = region.place, region.nbytes
        before = self._touched.pop(place, None)
        self._traffic += nbytes
        self._touched[place] = self._traffic
        if len(self._touched) > 4096:
            self._touched.popitem(last=False)
        resident = before is not None and self._traffic - before <= self.card.l2_bytes
        return nbytes / L2_SPEED if resident else float(nbytes)

    def _link_seconds(self, operation: Operation) -> float:
        rate = self.card.link_rate * self.card.efficiency_link * self._slow["link"]
        if operation.pageable:
            return PAGEABLE_LATENCY_S + operation.host_bytes / min(PAGEABLE_RATE, rate)
        return PINNED_LATENCY_S + operation.host_bytes / rate

    def clock_factor(self, moment_s: float) -> float:
        """Return the SM clock at a moment as a share of the highest."""
        found = 1.0
        for statement in self._throttles:
            if statement.number("at", 0) <= moment_s < statement.number("until", float("inf")):
                found = statement.number("clock", 0.5)
        return found

    def cycles(self, moment_s: float) -> float:
        """Return the SMs' count of cycles at a moment."""
        edges = {0.0, moment_s}
        for statement in self._throttles:
            edges |= {statement.number("at", 0), statement.number("until", float("inf"))}
        steps = sorted(edge for edge in edges if edge <= moment_s)
        spans = pairwise(steps)
        return (
            sum((high - low) * self.clock_factor(low) for low, high in spans) * self.card.clock_hz
        )

    def synchronize(self) -> None:
        """Wait for all streams of the device."""
        self.call()
        CLOCK.spend(WAIT_S)
        for stream in STREAMS.values():
            if stream.device is self:
                if stream.captured is not None:
                    raise failed("cudaErrorStreamCaptureUnsupported")
                CLOCK.wait_until(stream.free_s)
                stream.pending.clear()


class Space:
    """The addresses of all devices."""

    def __init__(self) -> None:
        self._next = _FIRST_ADDRESS
        self._bases: list[int] = []
        self._blocks: dict[int, Block] = {}

    def add(self, nbytes: int, device: int) -> Block:
        """Give a block its address."""
        block = Block(self._next, nbytes, device)
        # A gap between blocks, so that running over the end of one hits none.
        self._next += (nbytes + (1 << 22)) >> 21 << 21
        insort(self._bases, block.address)
        self._blocks[block.address] = block
        return block

    def drop(self, block: Block) -> None:
        """Forget a block."""
        block.freed = True
        self._bases.remove(block.address)
        del self._blocks[block.address]

    def region(self, address: int, nbytes: int) -> Region:
        """Return the bytes at an address, or raise what touching them does."""
        at = bisect_right(self._bases, address) - 1
        if at >= 0:
            block = self._blocks[self._bases[at]]
            offset = address - block.address
            if offset + nbytes <= block.nbytes:
                return Region(block, offset, nbytes)
        raise failed("cudaErrorIllegalAddress")


@dataclass(slots=True)
class _Thread:
    """What CUDA keeps for the calling thread."""

    device: int = 0
    current: dict[int, Stream] = field(default_factory=dict)


SPACE = Space()
STREAMS: dict[int, Stream] = {}
THREAD = _Thread()
_devices: list[Device] = []
_pointers = iter(range(0x5000, 1 << 40, 0x10))
_default: dict[int, Stream] = {}


def devices() -> list[Device]:
    """Return all devices; raises what the runtime raises without a driver."""
    if not _devices:
        _devices.extend(Device(card) for card in cards())
    return _devices


def device(ordinal: int | None = None) -> Device:
    """Return a device, the current one for None."""
    found = devices()
    number = THREAD.device if ordinal is None else ordinal
    if not found:
        raise failed("cudaErrorNoDevice")
    if not 0 <= number < len(found):
        raise failed("cudaErrorInvalidDevice")
    return found[number]


def new_stream() -> Stream:
    """Return a stream on the current device."""
    here = device()
    here.call()
    stream = Stream(next(_pointers), here)
    STREAMS[stream.pointer] = stream
    return stream


def stream_of(pointer: int) -> Stream:
    """Return the stream behind a pointer; 0, 1 and 2 are the current device's default one."""
    if pointer in (0, 1, 2):
        here = device()
        ordinal = here.card.ordinal
        if ordinal not in _default:
            _default[ordinal] = Stream(0, here)
            STREAMS[-1 - ordinal] = _default[ordinal]
        return _default[ordinal]
    if pointer not in STREAMS:
        raise failed("cudaErrorInvalidResourceHandle")
    return STREAMS[pointer]


def peer_copy_rate(target: Device, source: Device) -> float:
    """Return the bytes a second of a copy between two devices, through the host if need be."""
    if target is source:
        return target.card.memory_rate / 2
    if can_reach(target.card, source.card):
        efficiency = min(target.card.efficiency_link, source.card.efficiency_link)
        return peer_rate(target.card, source.card) * efficiency
    return min(target.card.link_rate, source.card.link_rate) * 0.45


def _hang() -> None:
    """Sleep where no signal's handler gets a turn, as in a driver that does not answer."""
    # CuPy lets go of the interpreter's lock where it calls CUDA: other threads go on.
    library = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def report_use() -> None:
    """Tell the pretended NVML of this process, where the test has named a file for processes."""
    path = os.environ.get("FAKE_PROCESSES_FILE")
    if not path or os.environ.get("FAKE_GPU_REPORTS") != "1":
        return
    from .processes import rewrite

    own = os.getpid()
    lines = []
    for one in _devices:
        if one.started:
            used = CONTEXT_BYTES + one.allocated_bytes
            mig = -1 if one.card.mig is None else one.card.mig
            lines.append(f"{one.card.gpu} {own} 0 {mig} {used} 0 0 0 0")
    rewrite(path, own, lines)
