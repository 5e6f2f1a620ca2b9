"""Kernel sources compiled for the emulator, and launched on the CPU."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tests.fakes.libraries import cache

HostArray = NDArray[Any]

FOLDER = Path(__file__).parent
#: Orders of the threads: forwards, backwards, and at random from a seed.
ORDERS = (0, 1, 2)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WEEK_S = 7 * 24 * 3600.0
FLAGS = ("-std=c++17", "-O0", "-g1", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas")


class KernelFault(AssertionError):
    """Error that the emulator or a sanitizer found in a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Array argument of a kernel, which begins `offset` bytes after a multiple of sixteen."""

    values: HostArray
    offset: int = 0


def build(driver: str, source: Path, options: Sequence[str] = SANITIZERS) -> Path:
    """Compile `driver` with the CUDA source in it, or reuse an earlier result."""
    header, code = shared_by_all(tuple(one for one in options if one.startswith("-f")))
    return made_once(
        Path(driver).stem,
        ["c++", *FLAGS, *options, f"-I{FOLDER}", str(FOLDER / driver)],
        # The path of a generated text changes; only its content counts.
        ["-include", str(header), f'-DSOURCE="{source}"', str(code)],
        (source, FOLDER / driver),
    )


def shared_by_all(options: Sequence[str]) -> tuple[Path, Path]:
    """Return the emulator as a header (precompiled for GCC) and as code."""
    command = ["c++", *FLAGS, *options, f"-I{FOLDER}"]
    whole = FOLDER / "whole.hpp"
    code = made_once(
        "emulator",
        [*command, "-DCOMPILED_HERE", "-include", str(whole), "-c", "-x", "c++", os.devnull],
    )
    if "Free Software Foundation" not in compiler_version():
        return whole, code
    read = made_once("whole", [*command, "-x", "c++-header", str(whole)], suffix=".hpp.gch")
    # GCC uses it instead of the header in the same folder, if it fits.
    header = read.with_suffix("")
    if not header.exists():
        scratch = header.with_name(f"{header.name}.{os.getpid()}-{threading.get_ident()}")
        scratch.write_bytes(whole.read_bytes())
        scratch.replace(header)
    return header, code


def made_once(
    name: str,
    command: Sequence[str],
    places: Sequence[str] = (),
    files: Sequence[Path] = (),
    *,
    suffix: str = "",
) -> Path:
    """Return the result of compiling files with the emulator's headers, new or cached."""
    # Another checkout's is as good; a precompiled header from there needs guards, not `once`.
    words = [word.replace(str(FOLDER), "") for word in command]
    digest = hashlib.sha256(repr((words, compiler_version())).encode())
    for file in (*files, *sorted(FOLDER.glob("*.hpp"))):
        digest.update(file.read_bytes())
    target = programs() / f"{name}-{digest.hexdigest()[:24]}{suffix}"
    # Another test process may be compiling it; the others wait.
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            scratch = target.with_name(f"{target.name}.new")
            finished = subprocess.run(
                [*command, *places, "-o", str(scratch)],
                capture_output=True,
                text=True,
                check=False,
            )
            if finished.returncode:
                raise AssertionError(finished.stderr)
            scratch.replace(target)
    target.touch()  # still wanted
    return target


def programs() -> Path:
    """Return the folder of compiled programs, after deleting those unused for a week."""
    folder = cache() / "emulator"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        with contextlib.suppress(OSError):
            if old.stat().st_mtime < time.time() - WEEK_S:
                old.unlink()
    return folder


@functools.cache
def compiler_version() -> str:
    """Return the C++ compiler's version text."""
    return subprocess.run(["c++", "--version"], capture_output=True, text=True, check=True).stdout


class Emulator:
    """Compiled driver as a process that takes one launch after the other."""

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
        """Return the sanitizer's output before it ended the process."""
        assert self._process is not None
        assert self._complaints is not None
        self._process.communicate()
        self._process = None
        self._complaints.seek(0)
        text = self._complaints.read().decode(errors="replace")
        self._complaints.close()
        return "\n".join(text.splitlines()[:12])
