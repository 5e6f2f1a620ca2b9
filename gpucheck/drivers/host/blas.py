"""Client of threadpoolctl: the BLAS that NumPy uses, and its number of threads."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpucheck.report.errors import InconclusiveError, refused_memory, system_refusal

#: Names of what threadpoolctl does not know: netlib's reference BLAS, and NumPy's own loops.
NETLIB, NO_BLAS = "netlib", "none"
#: How long OpenBLAS' threads spin for further work after a product: two to this power, in cycles of
#: the time-stamp counter. The library reads it when it is loaded (OpenBLAS issue 5171).
_PATIENCE = "OPENBLAS_THREAD_TIMEOUT"
_SHORT_PATIENCE = "18"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlasFacts:
    """BLAS that NumPy loaded; `threads` is its current limit."""

    name: str
    version: str | None
    architecture: str | None
    threads: int


def load_numpy() -> None:
    """Import NumPy so that its OpenBLAS threads spin 0.1 ms after a product, not 0.1 s.

    While they spin, each takes half of a processor from the next measurement. A setting of the
    user, or a NumPy that is already loaded, stays unchanged.

    Raises:
        InconclusiveError: the system refuses the memory or the threads that it needs.
    """
    if _PATIENCE in os.environ:
        return
    os.environ[_PATIENCE] = _SHORT_PATIENCE
    try:
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            _try_in_a_copy(_multiply)
            _multiply()
        import numpy  # noqa: F401

        # OpenBLAS interrupts its process where it cannot start its threads, and then waits for them
        # at the first product if that signal is blocked, as it is in a worker.
        if signal.SIGINT in signal.sigpending():
            raise KeyboardInterrupt
    except (ImportError, MemoryError) as error:
        raise system_refusal(error) or error from None
    except KeyboardInterrupt:
        refusal = _refused_threads()
        if refusal is not None:
            raise refusal from None
        if signal.SIGINT not in signal.sigpending():
            raise
    finally:
        del os.environ[_PATIENCE]


def _multiply() -> None:
    """Let each thread of OpenBLAS take its buffer, which it keeps."""
    import numpy as np

    square = np.ones((512, 512))
    np.matmul(square, square)


def _try_in_a_copy(call: Callable[[], None]) -> None:
    """Make a call in a copy of this process first: where `ulimit -v` leaves it no room, OpenBLAS
    ends its process with code 1 and without an exception.

    Raises:
        InconclusiveError: the copy ended that way.
    """
    copy = os.fork()
    if copy == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            call()
        finally:
            os._exit(0)  # an exception comes again in the process itself
    if os.waitpid(copy, 0)[1]:
        raise refused_memory()


def _refused_threads() -> InconclusiveError | None:
    """Return the error of a system that does not start as many threads as OpenBLAS wants."""
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    ended = Event()
    count = len(os.sched_getaffinity(0))
    try:
        with ThreadPoolExecutor(max_workers=count) as pool:
            try:
                for _ in range(count - 1):
                    pool.submit(ended.wait)
            finally:
                ended.set()
    except RuntimeError as error:
        return system_refusal(error)
    return None


class Blas:
    """BLAS of this process as threadpoolctl finds it.

    NOTE: the libraries are looked up only once: a lookup walks every loaded library (about a
    millisecond), too long to repeat for each sample.
    """

    def __init__(self) -> None:
        self._controller: Any = None

    def read(self) -> BlasFacts | None:
        """Return the loaded BLAS; None where neither threadpoolctl nor NumPy knows it."""
        libraries = [entry for entry in self._found().info() if entry.get("user_api") == "blas"]
        if not libraries:
            return _unoptimised()
        first = libraries[0]
        return BlasFacts(
            name=NETLIB if first.get("current_backend") == "NETLIB" else str(first["internal_api"]),
            version=first.get("version"),
            architecture=first.get("architecture"),
            threads=int(first["num_threads"]),
        )

    def limited(self, threads: int) -> AbstractContextManager[object]:
        """Return a context in which the BLAS uses at most `threads` threads."""
        controller = self._found()
        if not controller.lib_controllers:
            return nullcontext()
        limit: AbstractContextManager[object] = controller.limit(limits=threads, user_api="blas")
        return limit

    @cached_property
    def keeps_to_one(self) -> bool:
        """Return whether a limit of one thread takes effect; False where the BLAS is not known."""
        with self.limited(1):
            facts = self.read()
        return facts is not None and facts.threads == 1

    def _found(self) -> Any:
        if self._controller is None:
            import numpy  # noqa: F401  its BLAS must be loaded before it can be found
            from threadpoolctl import ThreadpoolController

            self._controller = ThreadpoolController()
        return self._controller


def _unoptimised() -> BlasFacts | None:
    """Return what multiplies without threads: netlib's BLAS, or NumPy itself; None if neither."""
    import numpy

    build = numpy.show_config(mode="dicts") or {}
    blas = build.get("Build Dependencies", {}).get("blas")
    if blas is None:
        return None
    name = NO_BLAS
    if blas.get("found"):
        if blas.get("name") not in ("blas", "cblas"):
            return None
        name = NETLIB
    return BlasFacts(name=name, version=None, architecture=None, threads=1)
