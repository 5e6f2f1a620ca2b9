"""Devices as programs name them, and where they come to lie (contract place/1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class DeviceGrammar(StrEnum):
    """Whose way of naming devices a string follows."""

    TENSORFLOW = "tensorflow"
    PYTORCH = "pytorch"
    THEANO = "theano"
    INDEX = "index"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A device string taken apart; what it leaves open is null.

    `kind` is in upper case (GPU, CPU, TPU, ...). `job` may be `*`, as TensorFlow keeps it.
    """

    text: str
    grammar: DeviceGrammar = DeviceGrammar.TENSORFLOW
    job: str | None = None
    replica: int | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None

    @property
    def canonical(self) -> str:
        """Return TensorFlow's normal form: job, replica, task, device; an open index is `*`."""
        parts = [
            f"/{key}:{value}"
            for key, value in (("job", self.job), ("replica", self.replica), ("task", self.task))
            if value is not None
        ]
        if self.kind is not None:
            parts.append(f"/device:{self.kind}:{'*' if self.index is None else self.index}")
        return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaDevice:
    """What CUDA would enumerate: a GPU, or one of its MIG instances.

    `cuda_index` is null where it is visible but only the driver knows the order. `index` is the
    NVML index of the GPU, also for an instance; `mig_instance` tells the two apart.
    """

    cuda_index: int | None
    index: int
    uuid: str | None
    name: str | None
    pci_bus_id: str | None
    memory_total_bytes: int | None
    mig_instance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedDevice:
    """The device that a string resolves to.

    `soft` is true if it is not what was asked. `names` maps a library to its name for the device.
    """

    spec: str
    resolved: str
    kind: str
    cuda_index: int | None = None
    index: int | None = None
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    mig_instance: bool = False
    soft: bool = False
    reason: str = ""
    names: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedOp:
    """One operation of a graph and the device it is placed on."""

    name: str
    op: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Data that a placement makes move between devices."""

    from_: str
    to: str
    what: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A GPU that someone holds, or that was held for this call."""

    uuid: str
    path: str
    slot: int
    held: bool
    waited_s: float | None = None
    pid: int | None = None
    user: str | None = None
    command: str | None = None
    since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A GPU that was considered, and why it was or was not eligible."""

    uuid: str
    eligible: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The result of `gpucheck place`.

    `environment` holds what makes a program see the GPUs of `devices` and no other.
    """

    devices: tuple[PlacedDevice, ...] = ()
    ops: tuple[PlacedOp, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    value: tuple[tuple[float, ...], ...] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    candidates: tuple[Candidate, ...] = ()
