"""cupy.cuda.stream."""

from __future__ import annotations

from typing import Any, ClassVar

from .._pretended import runtime
from .._pretended.device import STREAMS, THREAD, stream_of
from .graph import Graph


class Event:
    """A moment in a stream."""

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess and not disable_timing:
            message = "Timing must be disabled for interprocess events"
            raise ValueError(message)
        flags = (block and 1) | (disable_timing and 2) | (interprocess and 4)
        self.ptr = 0
        self.ptr = runtime.eventCreateWithFlags(int(flags))

    def __del__(self) -> None:
        runtime.eventDestroy(self.ptr)

    @property
    def done(self) -> bool:
        """Return whether it has happened."""
        return runtime.eventQuery(self.ptr) == 0

    def record(self, stream: Any = None) -> None:
        """Put it into a stream, the current one for None."""
        pointer = runtime.current_stream_pointer() if stream is None else stream.ptr
        runtime.eventRecord(self.ptr, pointer)

    def synchronize(self) -> None:
        """Wait for it."""
        runtime.eventSynchronize(self.ptr)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """Return the milliseconds between two events."""
    return runtime.eventElapsedTime(start_event.ptr, end_event.ptr)


class _BaseStream:
    """What streams share."""

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id
        self._before: list[tuple[int, Any]] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and other.ptr == self.ptr

    def __hash__(self) -> int:
        return self.ptr

    def _check_device(self) -> int:
        here = runtime.getDevice()
        if self.device_id not in (-1, here):
            message = (
                f"The device that the stream is created on ({self.device_id}) does not match with "
                f"the current device ({here})"
            )
            raise RuntimeError(message)
        return here

    def __enter__(self) -> Any:
        here = self._check_device()
        self._before.append((here, THREAD.current.get(here)))
        THREAD.current[here] = stream_of(self.ptr)
        return self

    def __exit__(self, *args: object) -> None:
        here, before = self._before.pop()
        if before is None:
            THREAD.current.pop(here, None)
        else:
            THREAD.current[here] = before

    def use(self) -> Any:
        """Make it the current stream."""
        THREAD.current[self._check_device()] = stream_of(self.ptr)
        return self

    @property
    def done(self) -> bool:
        """Return whether it has done everything."""
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self) -> None:
        """Wait for it."""
        runtime.streamSynchronize(self.ptr)

    def record(self, event: Event | None = None) -> Event:
        """Put an event into it, a new one for None."""
        made = Event() if event is None else event
        runtime.eventRecord(made.ptr, self.ptr)
        return made

    def wait_event(self, event: Event) -> None:
        """Let it wait for an event."""
        runtime.streamWaitEvent(self.ptr, event.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        """Record what is enqueued from now on."""
        if self.ptr in (0, 1):
            message = "cannot capture on the default (legacy) stream"
            raise RuntimeError(message)
        chosen = runtime.streamCaptureModeRelaxed if mode is None else mode
        runtime.streamBeginCapture(self.ptr, chosen)

    def end_capture(self) -> Graph:
        """Return what was recorded."""
        return Graph._from_stream(runtime.streamEndCapture(self.ptr))

    def is_capturing(self) -> bool:
        """Return whether it records."""
        return runtime.streamIsCapturing(self.ptr)


class Stream(_BaseStream):
    """A queue of the current device."""

    null: ClassVar[Stream]
    ptds: ClassVar[Stream]

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        if null or ptds:
            super().__init__(2 if ptds else 0, -1)
            return
        flags = 1 if non_blocking else 0
        super().__init__(runtime.streamCreateWithFlags(flags), runtime.getDevice())

    def __del__(self) -> None:
        STREAMS.pop(getattr(self, "ptr", 0), None)


class ExternalStream(_BaseStream):
    """A stream that somebody else made."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__(ptr, device_id)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)


def get_current_stream(device_id: int = -1) -> Any:
    """Return a device's current stream."""
    number = runtime.getDevice() if device_id == -1 else device_id
    found = THREAD.current.get(number)
    return Stream.null if found is None else ExternalStream(found.pointer, number)
