"""Numbers that the child of the CUDA driver knows, compared with CUDA's headers."""

from __future__ import annotations

import pytest

from gpucheck.drivers.cuda import worker
from tests.drivers.cupy.wheels import enumerators

#: Errors that came with CUDA 13.5; older headers do not have them.
NEWEST = {919}


def test_every_code_has_a_name_in_the_headers() -> None:
    known = enumerators("cuda.h", "driver_types.h")

    named = {value: name for name, value in known.items() if name.startswith("CUDA_ERROR_")}
    # The runtime's, which drivers return as well.
    named |= {value: name for name, value in known.items() if name.startswith("cudaError")}

    assert set(worker.REASONS) - set(named) <= NEWEST


@pytest.mark.parametrize(
    ("attribute", "number"),
    [
        ("COMPUTE_CAPABILITY_MAJOR", worker.COMPUTE_CAPABILITY_MAJOR),
        ("COMPUTE_CAPABILITY_MINOR", worker.COMPUTE_CAPABILITY_MINOR),
        ("MULTIPROCESSOR_COUNT", worker.SM_COUNT),
        ("INTEGRATED", worker.INTEGRATED),
        ("L2_CACHE_SIZE", worker.L2_BYTES),
    ],
)
def test_an_attribute_has_its_number(attribute: str, number: int) -> None:
    assert enumerators("cuda.h")[f"CU_DEVICE_ATTRIBUTE_{attribute}"] == number
