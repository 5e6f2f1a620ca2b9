"""Identity of a GPU: its whole UUID, and that of a MIG instance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.cupy_child import run_lines
from tests.fakes.machine import Machine, load_machine

LINES = """
from gpucheck.drivers.cupy.device import open_gpus
said["uuids"] = [gpu.facts.uuid for gpu in open_gpus().devices]
"""
#: CUDA's runtime ends it at its first zero byte.
WITH_ZERO = "GPU-25551a6f-0058-557c-8026-fcfd65883591"


def with_zero() -> Machine:
    machine = load_machine("t4")
    return replace(machine, gpus=(replace(machine.gpus[0], uuid=WITH_ZERO),))


@pytest.mark.parametrize(
    ("machine", "uuid"),
    [
        (with_zero(), WITH_ZERO),
        (load_machine("a100-mig"), "MIG-a1e3a6c4-1f35-5b0b-9a52-6f2f2bd2ec01"),
    ],
)
def test_where_nobody_knows_the_uuid_the_driver_is_asked(
    c_compiler: str, tmp_path: Path, machine: Machine, uuid: str
) -> None:
    assert run_lines("", LINES, tmp_path, machine)["uuids"] == [uuid]
