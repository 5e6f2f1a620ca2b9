"""Inputs of the gate evaluation: the profile, the machine, the processes and the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpucheck.bench.ci.gate_model import Direction, Gate, GateClass, GateStatus
from gpucheck.bench.ci.gates.figures import Figures, figures_of
from gpucheck.bench.ci.profile_model import Check, Profile, Target
from gpucheck.bench.ci.run_model import Baseline, ProcessRun
from gpucheck.bench.corruption_model import Corruption
from gpucheck.bench.model import GpuTelemetry
from gpucheck.inventory.model import Gpu
from gpucheck.report.envelope import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpu:
    """A GPU as the inventory knows it; `device` is its name here, None if CUDA does not see it.

    `pci_device_id` is NVML's eight digits, `nvlink_links` the fewest links to another GPU.
    """

    gpu: Gpu
    device: str | None
    pci_device_id: str | None = None
    nvlink_links: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The machine's GPUs that take part; `unavailable` says why there are none."""

    gpus: tuple[NodeGpu, ...] = ()
    driver_version: str | None = None
    unavailable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One run of a profile so far."""

    profile: Profile
    node: Node = field(default_factory=Node)
    runs: Sequence[ProcessRun] = ()
    baseline: Baseline | None = None

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the devices that take part, in their order."""
        if self.profile.match.target is Target.CPU:
            return ("cpu",)
        seen = dict.fromkeys(gpu.device for gpu in self.node.gpus if gpu.device is not None)
        return tuple(seen | dict.fromkeys(run.device for run in self.runs))

    def runs_of(self, device: str) -> tuple[ProcessRun, ...]:
        """Return a device's processes."""
        return tuple(run for run in self.runs if run.device == device)

    def telemetry_of(self, device: str) -> tuple[GpuTelemetry, ...]:
        """Return what the sensors of a GPU showed in each process that read them."""
        results = (run.result for run in self.runs_of(device) if run.result is not None)
        return tuple(
            gpu
            for result in results
            if result.telemetry is not None
            for gpu in result.telemetry.gpus
            if gpu.reading_count
        )

    def why_no_telemetry(self, device: str) -> str:
        """Return why a device's sensors were not read."""
        for run in self.runs_of(device):
            telemetry = run.result.telemetry if run.result is not None else None
            if telemetry is not None and telemetry.unavailable is not None:
                return telemetry.unavailable
        return "no process read its sensors"

    def uuid_of(self, device: str) -> str | None:
        """Return the UUID of a device, None for the processor or where it is not known."""
        known = (gpu.gpu.uuid for gpu in self.node.gpus if gpu.device == device)
        told = (run.gpu_uuid for run in self.runs if run.device == device)
        return next((uuid for uuid in (*known, *told) if uuid is not None), None)

    def figures(self, check: Check) -> dict[str, Figures]:
        """Return a check's figures on every device."""
        return {device: figures_of(check, device, self.runs) for device in self.devices}

    @property
    def corruption(self) -> tuple[Corruption, ...]:
        """Return the corruption checks of every process."""
        results = (run.result for run in self.runs if run.result is not None)
        return tuple(one for result in results for one in result.corruption)


@dataclass(frozen=True, slots=True, kw_only=True)
class Otherwise:
    """Diagnosis for a gate that fails: where to look, why, what was seen, and what to do."""

    class_: GateClass
    reason: str
    evidence: tuple[Evidence, ...] = ()
    next: tuple[str, ...] = ()


def at_least(
    facts: Facts, name: str, device: str, measured: float, limit: float, unit: str, bad: Otherwise
) -> Gate:
    """Return the gate of a number that may not be below its limit."""
    return _held(facts, name, device, (measured, limit, unit), Direction.HIGHER, bad)


def at_most(
    facts: Facts, name: str, device: str, measured: float, limit: float, unit: str, bad: Otherwise
) -> Gate:
    """Return the gate of a number that may not be above its limit."""
    return _held(facts, name, device, (measured, limit, unit), Direction.LOWER, bad)


def exactly(
    facts: Facts, name: str, device: str, measured: float, wanted: float, unit: str, bad: Otherwise
) -> Gate:
    """Return the gate of a number that must be another."""
    hold = at_least if measured < wanted else at_most
    return hold(facts, name, device, measured, wanted, unit, bad)


def holds(facts: Facts, name: str, device: str, good: bool, bad: Otherwise) -> Gate:
    """Return the gate of a demand that is met or not."""
    return at_least(facts, name, device, float(good), 1.0, "match", bad)


def _held(
    facts: Facts,
    name: str,
    device: str,
    numbers: tuple[float, float, str],
    direction: Direction,
    bad: Otherwise,
) -> Gate:
    measured, limit, unit = numbers
    higher = direction is Direction.HIGHER
    good = measured >= limit if higher else measured <= limit
    gate = Gate(
        id=name,
        device=device,
        gpu_uuid=facts.uuid_of(device),
        status=GateStatus.PASS if good else GateStatus.FAIL,
        direction=direction,
        unit=unit,
        measured=float(measured),
        limit=float(limit),
    )
    if good:
        return gate
    return replace(gate, class_=bad.class_, reason=bad.reason, evidence=bad.evidence, next=bad.next)


def undecided(
    facts: Facts,
    name: str,
    device: str,
    reason: str,
    unit: str = "",
    *,
    class_: GateClass = GateClass.SOFTWARE,
    steps: tuple[str, ...] = (),
) -> Gate:
    """Return the gate of a demand for which nothing was read: never a pass."""
    return Gate(
        id=name,
        device=device,
        gpu_uuid=facts.uuid_of(device),
        status=GateStatus.INCONCLUSIVE,
        direction=Direction.LOWER,
        unit=unit,
        reason=reason,
        class_=class_,
        next=steps or ("gpucheck detect",),
    )
