from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.core.bench import kernels
from gpucheck.core.bench.kernels import KERNELS
from gpucheck.models.bench import BenchMode


def test_every_file_is_registered_under_its_own_name() -> None:
    folder = Path(kernels.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} - {"__init__"}

    assert set(KERNELS) == {name.replace("_", "-") for name in files}


@pytest.mark.parametrize("name", KERNELS)
def test_id_sizes_and_memory_are_stated(name: str) -> None:
    kernel = KERNELS[name]
    shape = kernel.shape(64)

    assert kernel.id == name
    assert set(kernel.sizes) == set(BenchMode)
    assert kernel.work(shape).amount > 0
    assert kernel.host_bytes(shape, 2) > kernel.host_bytes(shape, 0) > 0
    assert kernel.device_bytes(shape) >= kernel.work(shape).bytes_moved
