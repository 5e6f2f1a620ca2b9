"""Device strings, placed devices and placed operations (contract place/1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpucheck.place.claim_model import Claim
from gpucheck.report.units import Amount


class DeviceGrammar(StrEnum):
    """Grammar that a device string follows."""

    TENSORFLOW = "tensorflow"
    PYTORCH = "pytorch"
    THEANO = "theano"
    INDEX = "index"
    UUID = "uuid"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A parsed device string; what it leaves open is null.

    `kind` is in upper case (GPU, CPU, TPU, ...). `job` may be `*`, as TensorFlow keeps it. `uuid`
    is that of a GPU or a MIG instance, or its beginning.
    """

    text: str
    grammar: DeviceGrammar = DeviceGrammar.TENSORFLOW
    job: str | None = None
    replica: int | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None
    uuid: str | None = None

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
    """A device that CUDA would enumerate: a GPU, or one of its MIG instances.

    `cuda_index` is null if it is visible but only the driver knows the order. `index` is the
    NVML index of the GPU, also for an instance; `mig_instance` tells the two apart.
    """

    cuda_index: int | None
    index: int
    uuid: str | None
    name: str | None
    pci_bus_id: str | None
    memory_total_bytes: int | None
    mig_instance: bool = False
    memory_source: str = "driver"


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
    """One operation of a graph and the device it is placed on, by its full name."""

    name: str
    op: str
    device: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Data that a placement copies between devices; the time is null if nothing ran."""

    from_: str
    to: str
    what: str
    bytes: int
    seconds: float | None = None


class Preference(StrEnum):
    """Order of preference among GPUs that fit."""

    FREE_MEMORY = "free-memory"
    IDLE = "idle"
    COOL = "cool"
    NUMA = "numa"
    NVLINK = "nvlink"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceRequest:
    """Criteria for choosing GPUs."""

    count: int = 1
    min_free: Amount | None = None
    max_utilization_percent: float | None = None
    min_compute_capability: str | None = None
    name: str | None = None
    exclude: tuple[str, ...] = ()
    prefer: Preference = Preference.FREE_MEMORY
    share: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A GPU or MIG instance that was considered, and why it was or was not eligible.

    A GPU without a readable UUID is `index N` here. `countable` is false if CUDA may count it
    otherwise than NVML does: a lost GPU, or one that is split by MIG.
    """

    uuid: str
    eligible: bool
    reason: str
    index: int | None = None
    name: str | None = None
    countable: bool = True


#: A number, or rows of them: what an operation computed.
Value = float | tuple["Value", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The result of `gpucheck place`.

    `environment` makes a program see only the GPUs of `devices`. `graph` is the file of the
    operations, null for the tutorials' graph. `ran` says whether they were computed. `advice` has
    placements that would copy less, and notes about the value.
    """

    devices: tuple[PlacedDevice, ...] = ()
    graph: str | None = None
    ops: tuple[PlacedOp, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    ran: bool = False
    value: Value | None = None
    environment: dict[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    advice: tuple[str, ...] = ()
