"""Tests on a real card, and the program with the machine's library paths.

A healthy card from compute capability 7.0 on passes all of them; nothing else should run on it.
What is not there is skipped, and `-rs` says why. Beside the driver and nvidia-ml-py they need:

- test_kernels, test_sdc: CuPy with NVRTC and cuBLAS; 2 and 5 GiB of the card in each process. A
  format that the card lacks is left out (TF32 and bfloat16 from 8.0, float8 from 8.9).
- test_contract, test_api: CuPy for what measures; 2 GiB.
- test_detect: the frameworks that are installed; `--deep` imports each of them.
- test_visible_devices: nothing more; it starts CUDA 57 times, so that `-n 6` is worth it.
- test_pytest: nothing more; 1 GiB, and a GPU that nobody has claimed.
- test_memlimit, marked slow: CuPy, PyTorch and JAX for GPUs, and 70 % of the card; for MPS its
  control program, and in a container the host's IPC.
- test_hard_limit: root and a driver that limits cgroups (R615); 4 GiB.
"""

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
