"""A machine that is read once: what is asked anew, and what a redacted report shows of it."""

from __future__ import annotations

import pytest

from gpucheck.drivers.evidence import BuildsReading, HolderReading, HoldersReading, LaunchReading
from gpucheck.drivers.interface import NvmlRequest
from gpucheck.drivers.readings import CudaReading, ProbeFailure, ProcessIdentity, ProcessReading
from gpucheck.inventory.read_once import ReadOnce
from gpucheck.inventory.snapshot import Redactor
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

SAID = "/home/anna/lib: broken"
FAILURE = ProbeFailure(code="x", message=SAID)
HOLDER = HolderReading(
    pid=9, state="orphaned", name="python", user="anna", command="python s.py", minors=(0,)
)


def machine() -> FakeProbes:
    process = ProcessReading(pid=9, type="compute", memory_used_bytes=1)
    return FakeProbes(
        readings=reading_of(gpu_reading(0, processes=(process,))),
        cuda_unrestricted_reading=CudaReading(failure=FAILURE),
        launch_reading=LaunchReading(failure=FAILURE),
        holders_reading=HoldersReading(holders=(HOLDER,), unavailable=SAID),
        people={9: ProcessIdentity(pid=9, name="python", user="anna")},
    )


@pytest.mark.parametrize("builds", [None, BuildsReading(python="/home/anna/v/bin/python")])
def test_a_kernel_is_run_by_the_python_that_was_found(builds: BuildsReading | None) -> None:
    pythons: list[str | None] = []
    probes = machine()
    found = ReadOnce(probes, Redactor())
    found.real = found.real._replace(builds=builds)

    def launch(python: str | None, **how: object) -> LaunchReading:
        pythons.append(python)
        return LaunchReading()

    probes.launch = launch  # type: ignore[method-assign]
    found.launch("(path)", through_cupy=False, every_gpu=False, report_progress=lambda _: None)

    assert pythons == [builds and builds.python]


@pytest.mark.parametrize("redacts", [False, True])
def test_what_no_snapshot_holds_is_asked_anew(redacts: bool) -> None:
    found = ReadOnce(machine(), Redactor() if redacts else None)

    said = "(path): broken" if redacts else SAID
    uuid = gpu_reading(0).uuid
    [gpu] = found.nvml(NvmlRequest(processes_of=(0,))).gpus
    assert (gpu.uuid == uuid) is not redacts
    assert [process.pid for process in gpu.processes] == [9]
    assert found.nvml(NvmlRequest()).gpus[0].uuid == gpu.uuid
    unrestricted = found.cuda(unrestricted=True).failure
    launched = found.launch(
        None, through_cupy=False, every_gpu=False, report_progress=lambda _: None
    ).failure
    assert unrestricted is not None
    assert launched is not None
    assert {unrestricted.message, launched.message} == {said}
    holders = found.device_holders()
    [holder] = holders.holders
    assert (holder.pid, holder.state, holder.minors) == (9, "orphaned", (0,))
    assert holder.user == ("user-1" if redacts else "anna")
    assert (holder.command is None or "s.py" not in holder.command) is redacts
    assert holders.unavailable == said
