"""Children that answer are waited for here, however late a busy machine lets them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpucheck.drivers.command_lines import read_in_time
from gpucheck.drivers.host.device_holders import read_holders
from gpucheck.drivers.nvml.sensors import NvmlSensors
from gpucheck.drivers.python.frameworks import read_builds, read_frameworks

#: Of tests that give none of their own.
DEADLINE_S = 600.0


@pytest.fixture(autouse=True, scope="session")
def _long_deadlines() -> Iterator[None]:
    functions = (
        NvmlSensors.__init__, read_builds, read_frameworks, read_holders, read_in_time,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for function in functions:
            patch.setitem(function.__kwdefaults__, "deadline_s", DEADLINE_S)
        yield
