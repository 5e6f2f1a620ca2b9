"""Is every GPU still present, after its readings and after a kernel?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gpucheck.detect.checks.pci_device import gone_gpus
from gpucheck.detect.findings import make_finding, make_trouble
from gpucheck.detect.machine import Machine
from gpucheck.detect.model import Finding, Layer
from gpucheck.detect.remedies import steps_for_gpu
from gpucheck.drivers.readings import HUNG
from gpucheck.report.envelope import CheckStatus, Evidence
from gpucheck.report.text import count_of, group_by

ID = "gpu-lost"
LAYER = Layer.HEALTH
REQUIRES: tuple[str, ...] = ("nvml",)

_finding = partial(make_finding, ID, LAYER)

#: Source of the evidence that counts the remaining GPUs.
LEFT = "GPUs that can be used"
#: What happened to it, by the failure's code.
WORDS = {"gpu-is-lost": "fell off the bus", "reset-required": "must be reset before it can be used"}


def check(machine: Machine) -> Finding:
    """Name the GPUs that are lost, and how many are left."""
    listed, unlisted = [*_lost_per_nvml(machine)], [*_lost_per_bus(machine)]
    count = max(machine.nvml.gpu_count or 0, len(machine.nvml.gpus))
    if listed or unlisted:
        return _join([*listed, *unlisted], count + len(unlisted))
    readings = (machine.nvml, machine.health, machine.reading_after_launch)
    failure = next((reading.failure for reading in readings if reading.failure), None)
    if failure is not None:
        cause = HUNG if failure.code == HUNG else "not-read"
        return _finding(CheckStatus.UNKNOWN, f"not checked: {failure.message}", cause=cause)
    if not count:
        return _finding(CheckStatus.SKIP, "no GPU answers")
    return _finding(CheckStatus.OK, f"no GPU is lost ({count_of(count)})")


def _lost(
    name: str, code: str, source: str, value: str, number: int = 0, uuid: str | None = None
) -> Finding:
    """Return the finding of one GPU that is gone, whose summary is its name."""
    steps = steps_for_gpu(number, make_trouble(ID, code).remedy)
    sign = Evidence(source, value)
    return _finding(CheckStatus.FAIL, name, sign, remedy=steps, gpu=uuid, cause=code)


def _lost_per_nvml(machine: Machine) -> Iterator[Finding]:
    rows = {gpu.index: gpu for gpu in machine.nvml.gpus}
    for index, failure in machine.lost.items():
        row = rows.get(index)
        bus_id = (row.pci_bus_id if row else None) or _only_bus_id_left(machine)
        code = "" if failure.library_code is None else f" (NVML error {failure.library_code})"
        name = f"GPU {index} ({bus_id})" if bus_id else f"GPU {index}"
        source, value = f"NVML, GPU {index}", f"{failure.message}{code}"
        yield _lost(name, failure.code, source, value, index, row.uuid if row else None)


def _only_bus_id_left(machine: Machine) -> str | None:
    """Return the bus id that no GPU of NVML has, if there is exactly one for one GPU."""
    named = {gpu.pci_bus_id for gpu in machine.nvml.gpus}
    left = [d.pci_bus_id for d in machine.kernel.pci_devices or () if d.pci_bus_id not in named]
    nameless = [gpu for gpu in machine.nvml.gpus if gpu.pci_bus_id is None]
    return left[0] if len(left) == len(nameless) == 1 else None


def _lost_per_bus(machine: Machine) -> Iterator[Finding]:
    """Yield lost GPUs that NVML does not list; a container also sees GPUs of others."""
    rows = machine.nvml.gpus
    if machine.is_container or any(gpu.pci_bus_id is None for gpu in rows):
        return
    listed = {gpu.pci_bus_id for gpu in rows}
    for bus_id in gone_gpus(machine):
        if bus_id not in listed:
            path = f"/sys/bus/pci/devices/{bus_id}/config"
            yield _lost(bus_id, "gpu-is-lost", path, "ff ff ff ff")


def _join(lost: Sequence[Finding], count: int) -> Finding:
    by_cause = group_by(lost, lambda gpu: gpu.cause or "")
    losses = (
        f"{', '.join(gpu.summary for gpu in alike)} {WORDS[cause]}"
        for cause, alike in by_cause.items()
    )
    left = Evidence(LEFT, f"{count - len(lost)} of {count}")
    return lost[0]._replace(
        summary="; ".join(losses),
        evidence=(left, *(sign for gpu in lost for sign in gpu.evidence)),
        remedy=tuple(dict.fromkeys(step for gpu in lost for step in gpu.remedy)),
        gpu=lost[0].gpu if len(lost) == 1 else None,
    )


def remaining_gpus(finding: Finding) -> str | None:
    """Return how many GPUs are left according to this check's finding: "3 of 4"."""
    return next((evidence.value for evidence in finding.evidence if evidence.source == LEFT), None)
