"""Compiles a kernel's source for the emulator and hands it launches: a GPU made of the CPU."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

HostArray = NDArray[Any]

FOLDER = Path(__file__).parent
#: The orders in which threads take turns: forwards, backwards, and at random from a seed.
ORDERS = (0, 1, 2)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FLAGS = ("-std=c++17", "-O0", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


class KernelFault(AssertionError):
    """What the emulator or a sanitizer found wrong with a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """An array that a kernel gets, beginning `offset` bytes behind a multiple of sixteen."""

    values: HostArray
    offset: int = 0


def build(driver: str, source: Path, target: Path, options: Sequence[str] = SANITIZERS) -> Path:
    """Compile `driver` with the CUDA source in it."""
    command = [
        *("c++", *FLAGS, *options),
        *(f'-DSOURCE="{source}"', f"-I{FOLDER}"),
        *(str(FOLDER / driver), "-o", str(target)),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise AssertionError(finished.stderr)
    return target


class Emulator:
    """One compiled driver as a process that takes one launch after the other."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None

    def launch(
        self,
        kernel: str,
        buffers: Sequence[Memory],
        scalars: Sequence[float | int],
        *,
        grid: int,
        block: int,
        cluster: int = 1,
        order: int = 0,
        seed: int = 1,
    ) -> list[HostArray]:
        """Run a kernel and return its buffers as it left them.

        Raises:
            KernelFault: a race, a deadlock, a wrong access, or undefined behaviour.
        """
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        head = f"{kernel} {order} {seed} {grid} {block} {cluster} {len(buffers)} {len(scalars)}\n"
        parts = [head.encode(), " ".join(repr(float(one)) for one in scalars).encode() + b"\n"]
        for memory in buffers:
            raw = np.ascontiguousarray(memory.values).tobytes()
            parts += [f"{len(raw)} {memory.offset}\n".encode(), raw]
        process.stdin.write(b"".join(parts))
        process.stdin.flush()
        answer = process.stdout.readline().decode()
        if not answer or answer.startswith("error"):
            raise KernelFault(answer or self._last_words())
        raw = process.stdout.read(int(answer))
        found, place = [], 0
        for memory in buffers:
            size = memory.values.nbytes
            part = np.frombuffer(raw[place : place + size], dtype=memory.values.dtype)
            found.append(part.reshape(memory.values.shape))
            place += size
        return found

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None
        if self._complaints is not None:
            self._complaints.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
            options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
            self._process = subprocess.Popen(
                [self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env={**os.environ, **options},
            )
        return self._process

    def _last_words(self) -> str:
        """Return what a sanitizer wrote before it ended the process."""
        assert self._process is not None
        assert self._complaints is not None
        self._process.communicate()
        self._process = None
        self._complaints.seek(0)
        text = self._complaints.read().decode(errors="replace")
        self._complaints.close()
        return "\n".join(text.splitlines()[:12])
