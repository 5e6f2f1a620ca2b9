"""cupy.cuda.graph."""

from __future__ import annotations

from typing import Any

from .._pretended import runtime


class Graph:
    """What a stream recorded; only a stream makes one."""

    graphExec: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        message = (
            "currently this class cannot be initiated by the user and must be created via stream "
            "capture"
        )
        raise NotImplementedError(message)

    @classmethod
    def _from_stream(cls, number: int) -> Graph:
        made = cls.__new__(cls)
        made.graphExec = number
        return made

    def __del__(self) -> None:
        runtime.graphExecDestroy(getattr(self, "graphExec", 0))

    def launch(self, stream: Any = None) -> None:
        """Enqueue it."""
        pointer = runtime.current_stream_pointer() if stream is None else stream.ptr
        runtime.graphLaunch(self.graphExec, pointer)

    def upload(self, stream: Any = None) -> None:
        """Bring it to the device."""
        pointer = runtime.current_stream_pointer() if stream is None else stream.ptr
        runtime.graphUpload(self.graphExec, pointer)
