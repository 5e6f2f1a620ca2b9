"""The kernels as programs for the processor: compiled once for a test session, when first used."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
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


@pytest.fixture(name="emulator", scope="session")
def _emulator(
    _cplusplus: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Emulator]]:
    """Return the emulator of a source, or of a text made of it, compiled with these options."""
    folder = tmp_path_factory.mktemp("emulator")
    made: dict[tuple[str, ...], Emulator] = {}

    def emulator(name: str, *options: str, text: str | None = None) -> Emulator:
        key = (name, *options, text or "")
        if key not in made:
            source = SOURCES[name]
            if text is not None:
                source = folder / f"{name}-{len(made)}.cu"
                source.write_text(text, encoding="utf-8")
            target = folder / f"{name}-{len(made)}"
            made[key] = Emulator(build(f"{name}.cpp", source, target, options))
        return made[key]

    yield emulator
    for one in made.values():
        one.close()
