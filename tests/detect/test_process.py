"""Which GPU a process uses, or why it uses none: every reason, and what cannot be told."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gpucheck.detect.machine import Machine
from gpucheck.detect.model import ProcessAnswer
from gpucheck.detect.process import explain_process, judge
from gpucheck.drivers.evidence import ProcessFilesReading
from gpucheck.drivers.host.process_files import NOT_ALLOWED
from gpucheck.drivers.readings import (
    GpuReading,
    KernelReading,
    NvmlReading,
    ProbeFailure,
    ProcessReading,
)
from gpucheck.report.codec import from_plain, to_plain
from gpucheck.report.errors import ExitCode, WrongUseError
from tests.fakes.probes import FakeProbes
from tests.report.formats.recorded import in_lines, in_sections, recorded

TABLE = Path(__file__).parents[1] / "data" / "processes.toml"
PID = 4711
FAILURES = {
    "driver-not-answering": "NVML did not answer within 13 s",
    "nvml-not-loaded": "the driver is not loaded",
}
SILENT = ProbeFailure("driver-not-answering", FAILURES["driver-not-answering"])
ANCESTORS = {
    "BASH": {"pid": 4000, "name": "bash", "environment": {}},
    "TMUX": {"pid": 4690, "name": "tmux", "environment": {"CUDA_VISIBLE_DEVICES": ""}},
}
#: A program on the host that has opened the driver and holds nothing on a GPU.
PROGRAM: dict[str, Any] = {
    "pid": PID,
    "exists": True,
    "state": "S",
    "name": "python",
    "user": "alice",
    "command": "python train.py",
    "thread_count": 12,
    "threads": {"S": 12},
    "environment": {},
    "ancestors": ["BASH"],
    "mapped": ["CUDA"],
    "device_files": ["/dev/nvidia0", "/dev/nvidiactl"],
    "devices_present": True,
    "initial_namespace": True,
}


def process(**changes: Any) -> ProcessFilesReading:
    """Return what is read of a process, as a row of the table says it."""
    row = PROGRAM | changes
    mapped = row.get("mapped")
    if mapped is not None:
        row["mapped"] = [map_library(library) for library in mapped]
    row["ancestors"] = [ANCESTORS.get(one, one) if isinstance(one, str) else one
                        for one in row["ancestors"]]  # fmt: skip
    row["unavailable"] = {
        name: NOT_ALLOWED if why == "NOT_ALLOWED" else why
        for name, why in row.get("unavailable", {}).items()
    }
    return from_plain(ProcessFilesReading, row)


def map_library(library: str) -> dict[str, Any]:
    if library == "CUDA":
        library = "/usr/lib/libcuda.so.570.133.20"
    path, _, same = library.removesuffix(" (deleted)").partition(" = ")
    return {"path": path, "file": same or path, "deleted": library.endswith(" (deleted)")}


def gpu(index: int, *pids: int) -> GpuReading:
    listed = tuple(ProcessReading(pid, "compute", 1 << 30) for pid in pids)
    reading = GpuReading(index, uuid=f"GPU-{index}", name="NVIDIA H100", processes=listed)
    return reading._replace(pci_bus_id=f"0000:0{index}:00.0")


def nvml(*gpus: GpuReading, **changes: Any) -> NvmlReading:
    reading = NvmlReading(gpu_count=len(gpus), gpus=gpus, driver_version="570.133.20")
    return reading._replace(**changes)


def with_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: with_nulls(part) for name, part in value.items()}
    return None if value == "null" else value


def answer_of(written: dict[str, Any]) -> ProcessAnswer:
    """Return what is said of a row."""
    row = with_nulls(written)
    failure = row.pop("nvml_fails", None)
    gpus = [gpu(index, *pids) for index, pids in enumerate(row.pop("gpus", [[], []]))]
    if "gpu" in row:
        gpus[-1] = from_plain(GpuReading, to_plain(gpus[-1]) | row.pop("gpu"))
    loaded = row.pop("module_loaded", True)
    reading = nvml(*gpus)
    if failure is not None:
        function = "nvmlInit" if failure == "nvml-not-loaded" else ""
        reading = nvml(failure=ProbeFailure(failure, FAILURES[failure], function))
    kernel = KernelReading(module_loaded=loaded, module_version="570.133.20" if loaded else None)
    return judge(process(**row), Machine(FakeProbes(readings=reading, kernel_reading=kernel)))


def show_answer(found: ProcessAnswer) -> str:
    """Return an answer as text: the conclusion, what hinders it, its GPUs and libraries."""
    head = f"uses_gpu={found.uses_gpu}  cause={found.cause}\n{found.conclusion}\n"
    steps = "".join(f"    {at}. {step}\n" for at, step in enumerate(found.remedy, start=1))
    rows = [*found.gpus, *found.obstacles, *(found.libraries or ()), *(found.frameworks or ())]
    return f"{head}{steps}{in_lines(rows)}"


def test_every_process_is_answered_as_recorded() -> None:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    answers = {name: answer_of(row) for name, row in table.items()}
    text = in_sections({name: show_answer(found) for name, found in answers.items()})

    assert text == recorded("processes", text)
    for found in answers.values():
        assert found.cause is None or found.uses_gpu is False


# ------------------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("reading", "listed", "code", "error"),
    [
        (process(), nvml(gpu(0, PID)), ExitCode.OK, None),
        (process(), nvml(gpu(0)), ExitCode.BAD, None),
        (process(), nvml(failure=SILENT), ExitCode.INCONCLUSIVE, None),
        (process(mapped=None), nvml(gpu(0)), ExitCode.INCONCLUSIVE, None),
        (ProcessFilesReading(PID), nvml(gpu(0)), ExitCode.INCONCLUSIVE, "not-recorded"),
        (ProcessFilesReading(PID), nvml(gpu(0, PID)), ExitCode.OK, None),
    ],
)
def test_exit_codes(
    reading: ProcessFilesReading, listed: NvmlReading, code: ExitCode, error: str | None
) -> None:
    found = explain_process(FakeProbes(readings=listed, process_reading=reading), PID)

    assert found.exit_code is code
    assert (found.error and found.error.code) == error
    assert found.host.driver_version == "570.133.20"


@pytest.mark.parametrize(("ended", "code"), [(False, "no-such-process"), (True, "process-ended")])
def test_no_such_process(ended: bool, code: str) -> None:
    gone = ProcessFilesReading(PID, exists=False, ended=ended)
    probes = FakeProbes(process_reading=gone)

    with pytest.raises(WrongUseError) as caught:
        explain_process(probes, PID)

    assert caught.value.code == code
    assert "nvml" not in probes.asked
