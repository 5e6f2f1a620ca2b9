"""Everything that gates are decided from: the profile, the machine, the processes, earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpucheck.core.bench.gates.figures import Figures, figures_of
from gpucheck.models.bench import GpuTelemetry
from gpucheck.models.bench_run import Baseline, ProcessRun
from gpucheck.models.corruption import Corruption
from gpucheck.models.device import Gpu
from gpucheck.models.gate import Direction, Gate, GateClass, GateStatus
from gpucheck.models.profile import Check, Profile, Target


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
        """Return what the sensors of a GPU said in each process; nothing where they were silent."""
        results = (run.result for run in self.runs_of(device) if run.result is not None)
        return tuple(
            gpu
            for result in results
            if result.telemetry is not None
            for gpu in result.telemetry.gpus
            if gpu.reading_count
        )

    def why_no_telemetry(self, device: str) -> str:
        """Return why a device's sensors said nothing."""
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
        """Return what the repeated products of every process showed."""
        results = (run.result for run in self.runs if run.result is not None)
        return tuple(one for result in results for one in result.corruption)


def held(facts: Facts, gate: Gate) -> Gate:
    """Return a gate with its verdict: fail where what was measured lies beyond the limit.

    Without a measured number nothing is decided: inconclusive.
    """
    gate = replace(gate, gpu_uuid=facts.uuid_of(gate.device))
    if gate.measured is None or gate.limit is None:
        return replace(gate, status=GateStatus.INCONCLUSIVE)
    higher = gate.direction is Direction.HIGHER
    good = gate.measured >= gate.limit if higher else gate.measured <= gate.limit
    if good:
        return replace(gate, status=GateStatus.PASS, class_=None, reason=None, next=(), evidence=())
    return replace(gate, status=GateStatus.FAIL)


def undecided(facts: Facts, name: str, device: str, reason: str, unit: str = "") -> Gate:
    """Return the gate of a demand that nothing was read for: never a pass."""
    return Gate(
        id=name,
        device=device,
        gpu_uuid=facts.uuid_of(device),
        status=GateStatus.INCONCLUSIVE,
        direction=Direction.LOWER,
        unit=unit,
        reason=reason,
        class_=GateClass.SOFTWARE,
        next=("gpucheck detect",),
    )
