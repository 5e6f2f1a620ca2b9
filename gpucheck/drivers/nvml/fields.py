"""Reader of one GPU's fields through NVML: each has a value, or the reason why it has none."""

from __future__ import annotations

from gpucheck.drivers.nvml.binding import NvmlError

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpucheck.drivers.nvml.binding import Binding

    Values = tuple[Any, ...]

#: The codes of a GPU that is lost or needs a reset.
OVER = frozenset({15, 16})
#: Exceptions from converting an answer of an unexpected shape.
UNREADABLE = (ValueError, TypeError, AttributeError, IndexError)


class FieldReader:
    """Reader of one GPU; once the GPU is lost, no further call is made for it."""

    def __init__(self, binding: Binding, part: str, index: int) -> None:
        self._binding = binding
        self._handle: Any = None
        self._over: NvmlError | None = None
        self.document: dict[str, Any] = {"part": part, "index": index}
        self.unavailable: dict[str, str] = {}

    def open(self) -> None:
        """Get the handle, which every call needs."""
        try:
            self._handle = self._binding.ask("nvmlDeviceGetHandleByIndex", self.document["index"])
        except NvmlError as error:
            self._over = error

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._binding.ask(function, self._handle, *arguments)

    def _fill(self, fields: tuple[str, ...], question: Callable[[], Values]) -> None:
        """Set these fields to the answer's values, or note why they have none."""
        if self._over is not None:
            self._note(fields, self._over)
            return
        try:
            values = question()
        except NvmlError as error:
            self._note(fields, error)
            return
        except UNREADABLE as error:
            self.unavailable.update(dict.fromkeys(fields, unreadable(error)))
            return
        for name, value in zip(fields, values, strict=True):
            self.document[name] = value
            if value is None:
                self.unavailable[name] = self._why_null(name)

    def _why_null(self, name: str) -> str:
        return "the driver does not know it"

    def _note(self, fields: tuple[str, ...], error: NvmlError) -> None:
        self.unavailable.update(dict.fromkeys(fields, error.reason()))
        if error.code in OVER:
            self._over = self._over or error

    def finish(self) -> dict[str, Any]:
        """Return the GPU's document."""
        self.document["unavailable"] = self.unavailable
        self.document["failure"] = self._over.document() if self._over else None
        return self.document


def unreadable(error: Exception) -> str:
    """Return the reason for an answer of an unexpected shape."""
    return f"the driver's answer could not be read ({type(error).__name__})"
