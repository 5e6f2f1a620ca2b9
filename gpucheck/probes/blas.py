"""The door to threadpoolctl: which BLAS NumPy uses, and how many threads it may take."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class BlasFacts:
    """The BLAS that NumPy loaded; `threads` is its current limit."""

    name: str
    version: str | None
    architecture: str | None
    threads: int


class BlasDoor(Protocol):
    """What the benchmark asks of the BLAS."""

    def read(self) -> BlasFacts | None:
        """Return the loaded BLAS, or None if none is known to us."""
        ...

    def limited(self, threads: int) -> AbstractContextManager[object]:
        """Return a context in which the BLAS takes at most `threads` threads."""
        ...


class ThreadpoolBlas:
    """The BLAS of this process as threadpoolctl finds it.

    NOTE: the libraries are looked up once, at the first question: a lookup walks every loaded
    library (about a millisecond), too much to repeat beside each sample.
    """

    def __init__(self) -> None:
        self._controller: Any = None

    def read(self) -> BlasFacts | None:
        """Return the loaded BLAS, or None where threadpoolctl knows none (Accelerate, none)."""
        found = [entry for entry in self._found().info() if entry.get("user_api") == "blas"]
        if not found:
            return None
        first = found[0]
        return BlasFacts(
            name=str(first["internal_api"]),
            version=first.get("version"),
            architecture=first.get("architecture"),
            threads=int(first["num_threads"]),
        )

    def limited(self, threads: int) -> AbstractContextManager[object]:
        """Return a context in which the BLAS takes at most `threads` threads."""
        controller = self._found()
        if not controller.lib_controllers:
            return nullcontext()
        limit: AbstractContextManager[object] = controller.limit(limits=threads, user_api="blas")
        return limit

    def _found(self) -> Any:
        if self._controller is None:
            import numpy  # noqa: F401  its BLAS must be loaded before it can be found
            from threadpoolctl import ThreadpoolController

            self._controller = ThreadpoolController()
        return self._controller
