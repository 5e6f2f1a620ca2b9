"""Proof of a cap: takes memory of each GPU through one framework until refused, then frees it.

A single file for the interpreter under test (Python 3.8 or newer, standard library only, and the
framework). It is started with the limited environment, so the cap is that of a real run.
`limit_proof_child.py FRAMEWORK LIMIT_BYTES:MOST_BYTES,… HOLD_S` takes for each GPU in CUDA's order
a limit (0: not tried) and the most that may be taken even if nothing is refused. It writes one
JSON object per step. Once it has located the refusal it holds its memory for HOLD_S, so that the
memory can be read from outside.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MIB = 1 << 20
#: Number of equal steps up to the limit. From the first refusal on they are halved down to the
#: finest, so that the total is less than that below the real limit. Smaller requests would be
#: served from memory that PyTorch's allocator already has.
STEPS, FINEST_BYTES = 16, 16 * MIB


class Backend:
    """One framework: how it allocates, what it raises at a refusal, what it counts.

    `ordinal` is the GPU on which everything happens.
    """

    def __init__(self, module: str) -> None:
        self.library = importlib.import_module(module)
        self.version = str(getattr(self.library, "__version__", ""))
        self.ordinal = 0

    def allocate(self, size: int) -> Any:
        """Allocate `size` bytes and hold them; raise what the framework raises."""
        raise NotImplementedError

    def free(self, held: list[Any]) -> None:
        """Release everything to the framework's allocator and from there to the card."""
        held.clear()

    def free_bytes(self) -> int | None:
        """Return the card's free bytes, None if the framework does not report them."""
        return None

    def counted_bytes(self) -> int | None:
        """Return the bytes that count against the allocator's limit, None if it does not tell."""
        return None

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether this is the framework's out-of-memory error."""
        raise NotImplementedError


class Cupy(Backend):
    """The default pool, which has a limit on each device."""

    def __init__(self) -> None:
        super().__init__("cupy")
        self._pool = self.library.get_default_memory_pool()

    def _here(self) -> Any:
        return self.library.cuda.Device(self.ordinal)

    def allocate(self, size: int) -> Any:
        """Allocate uint8: one byte each."""
        with self._here():
            return self.library.empty(size, dtype="uint8")

    def free(self, held: list[Any]) -> None:
        """Empty the pool too."""
        with self._here():
            held.clear()
            self._pool.free_all_blocks()

    def free_bytes(self) -> int | None:
        """Ask the CUDA runtime."""
        with self._here():
            return int(self.library.cuda.runtime.memGetInfo()[0])

    def counted_bytes(self) -> int | None:
        """Return the pool's total, cached blocks included."""
        with self._here():
            return int(self._pool.total_bytes())

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether an error is CuPy's own, which names the limit."""
        return isinstance(error, self.library.cuda.memory.OutOfMemoryError)


class Torch(Backend):
    """The caching allocator."""

    def __init__(self) -> None:
        super().__init__("torch")

    def allocate(self, size: int) -> Any:
        """Allocate uint8: one byte each."""
        device = f"cuda:{self.ordinal}"
        return self.library.empty(size, dtype=self.library.uint8, device=device)

    def free(self, held: list[Any]) -> None:
        """Empty the cache too."""
        held.clear()
        self.library.cuda.empty_cache()

    def free_bytes(self) -> int | None:
        """Ask the CUDA runtime."""
        return int(self.library.cuda.mem_get_info(self.ordinal)[0])

    def counted_bytes(self) -> int | None:
        """Return the bytes that the allocator has reserved."""
        return int(self.library.cuda.memory_reserved(self.ordinal))

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether an error is PyTorch's own."""
        return isinstance(error, self.library.cuda.OutOfMemoryError)


class Jax(Backend):
    """The BFC pool of each device."""

    def __init__(self) -> None:
        super().__init__("jax")
        self._numpy = importlib.import_module("jax.numpy")

    def _device(self) -> Any:
        return self.library.devices("gpu")[self.ordinal]

    def allocate(self, size: int) -> Any:
        """Make zeros on the device, and wait: JAX allocates and fails later otherwise."""
        # Rows: parts of XLA cannot index more than 31 bits.
        shape = (size // MIB, MIB) if size % MIB == 0 else (size,)
        with self.library.default_device(self._device()):
            return self._numpy.zeros(shape, dtype="uint8").block_until_ready()

    def counted_bytes(self) -> int | None:
        """Return the bytes in use in the pool."""
        size = (self._device().memory_stats() or {}).get("bytes_in_use")
        return None if size is None else int(size)

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether an error says RESOURCE_EXHAUSTED."""
        return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()


class Tensorflow(Backend):
    """The BFC allocator of each logical GPU."""

    def __init__(self) -> None:
        super().__init__("tensorflow")

    def allocate(self, size: int) -> Any:
        """Make zeros on the device, eagerly."""
        with self.library.device(f"/GPU:{self.ordinal}"):
            return self.library.zeros([size], dtype=self.library.uint8)

    def counted_bytes(self) -> int | None:
        """Return the bytes in use on the GPU."""
        name = f"GPU:{self.ordinal}"
        return int(self.library.config.experimental.get_memory_info(name)["current"])

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether an error is TensorFlow's own."""
        return isinstance(error, self.library.errors.ResourceExhaustedError)


BACKENDS = {"cupy": Cupy, "torch": Torch, "jax": Jax, "tensorflow": Tensorflow}


def write_step(**document: Any) -> None:
    """Write one step."""
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def take(backend: Backend, limit: int, most: int, hold_s: float) -> None:
    """Allocate step by step until refused, locate the limit, then free and allocate again."""
    here = backend.ordinal
    step = max(1, limit // STEPS // MIB * MIB or limit // STEPS)
    free = backend.free_bytes()
    write_step(
        step="start", gpu=here, pid=os.getpid(), version=backend.version, free=free, size=step
    )
    held: list[Any] = []
    taken, error = 0, None
    for size in sizes(step):
        # A cap that does not hold must not fill the card.
        while taken + size <= most:
            error = attempt(backend, size, held)
            if error is not None:
                break
            taken += size
            write_step(step="took", gpu=here, taken=taken, counted=backend.counted_bytes())
        if error is None or not backend.is_refusal(error):
            break
    if error is None:
        backend.free(held)
        write_step(step="end", gpu=here, refused=False)
        return
    write_step(
        step="refused",
        gpu=here,
        size=size,
        error=f"{type(error).__module__}.{type(error).__qualname__}",
        message=str(error)[:500],
        proper=backend.is_refusal(error),
        free=backend.free_bytes(),
    )
    time.sleep(hold_s)
    backend.free(held)
    again: list[Any] = []
    piece, error = min(step, taken), None
    while len(again) * piece < taken // 2 and error is None:
        error = attempt(backend, piece, again)
    backend.free(again)
    write_step(step="end", gpu=here, refused=True, restored=error is None)


def sizes(step: int) -> list[int]:
    """Return the step, and its halves in whole MiB down to the finest."""
    steps = [step]
    while steps[-1] > FINEST_BYTES:
        steps.append(max(steps[-1] // 2 // MIB * MIB, FINEST_BYTES))
    return steps


def attempt(backend: Backend, size: int, held: list[Any]) -> Exception | None:
    """Allocate one more step; return what the framework raised instead."""
    try:
        held.append(backend.allocate(size))
    except Exception as error:
        # Its traceback would keep the memory alive.
        return error.with_traceback(None)
    return None


def main() -> None:
    """Run one proof on each GPU."""
    sys.path[:] = [entry for entry in sys.path if entry != __file__.rpartition("/")[0]]
    name, limits, hold_s = sys.argv[1], sys.argv[2].split(","), float(sys.argv[3])
    try:
        backend = BACKENDS[name]()
    except Exception as error:
        write_step(step="failed", gpu=None, error=type(error).__name__, message=str(error)[:500])
        return
    for ordinal, words in enumerate(limits):
        backend.ordinal = ordinal
        limit, most = map(int, words.split(":"))
        try:
            if limit:
                take(backend, limit, most, hold_s)
        except Exception as error:
            kind, text = type(error).__name__, str(error)[:500]
            write_step(step="failed", gpu=ordinal, error=kind, message=text)


if __name__ == "__main__":
    main()
