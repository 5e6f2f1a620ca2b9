"""Fixtures of the tests on a real card: the program with the machine's library paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.conftest import Finished

#: Where a driver and CUDA's libraries may be found, and this checkout if it is not installed.
OF_THE_MACHINE = ("LD_LIBRARY_PATH", "CUDA_PATH", "CUDA_HOME", "PYTHONPATH")


@pytest.fixture(autouse=True, scope="module")
def _the_cards_that_were_chosen(leaking_variables: dict[str, str]) -> Iterator[None]:
    """Restore CUDA_VISIBLE_DEVICES and CUDA's paths: they select what may be measured.

    FAKE_* is the pretended GPU of a rehearsal (tests/fakes/README.md).
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in leaking_variables.items():
            if name.startswith(("CUDA_", "CUPY_", "FAKE_")):
                patch.setenv(name, value)
        yield


@pytest.fixture(name="gpucheck_command", scope="module")
def _on_this_machine(
    gpucheck_command: Callable[..., Finished], _the_cards_that_were_chosen: None
) -> Callable[..., Finished]:
    """Run `gpucheck ARGUMENTS` as everywhere, but with the paths that this machine needs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in OF_THE_MACHINE or name.startswith("FAKE_")
    }

    def run(
        *arguments: str | os.PathLike[str], env: Mapping[str, str] | None = None, **further: object
    ) -> Finished:
        return gpucheck_command(*arguments, env={**kept, **(env or {})}, **further)

    return run
