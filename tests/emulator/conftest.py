"""Kernels as CPU programs, compiled once, in parallel with the running tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import gpucheck
from tests.emulator.emulated import Emulator, build

PACKAGE = Path(gpucheck.__file__).parent
SOURCES = {path.stem: path for path in PACKAGE.rglob("*.cu")}


@pytest.fixture(scope="session")
def _cplusplus() -> None:
    if shutil.which("c++") is None:
        reason = "no C++ compiler: the kernels cannot be emulated"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


class Emulators:
    """Emulators of sources, or of texts made from them, compiled with options."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._pool = pool
        self._builds: dict[tuple[str, ...], Future[Path]] = {}
        self._made: dict[tuple[str, ...], Emulator] = {}

    def begin(self, name: str, *options: str, text: str | None = None) -> None:
        """Start compiling one, in parallel with the tests that do not need it yet."""
        key = (name, *options, text or "")
        if key not in self._builds:
            source = SOURCES[name]
            if text is not None:
                source = self._folder / f"{name}-{len(self._builds)}.cu"
                source.write_text(text, encoding="utf-8")
            self._builds[key] = self._pool.submit(build, f"{name}.cpp", source, options)

    def __call__(self, name: str, *options: str, text: str | None = None) -> Emulator:
        """Return one, compiling it now if that has not begun."""
        key = (name, *options, text or "")
        if key not in self._made:
            self.begin(name, *options, text=text)
            self._made[key] = Emulator(self._builds[key].result())
        return self._made[key]

    def close(self) -> None:
        """End the processes."""
        for one in self._made.values():
            one.close()


@pytest.fixture(name="emulator", scope="module")
def _emulator(_cplusplus: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulators]:
    """Return the emulators, each one process that takes one launch after the other."""
    pool = ThreadPoolExecutor(os.cpu_count())
    emulators = Emulators(tmp_path_factory.mktemp("emulator"), pool)
    yield emulators
    pool.shutdown(cancel_futures=True)
    emulators.close()
