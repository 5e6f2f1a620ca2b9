"""Records of `gpucheck list` (list/1): the GPUs, and which of them CUDA sees."""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from gpucheck.report.envelope import NOTHING, CheckStatus


class GpuState(StrEnum):
    """Whether a GPU answers: `lost` fell off the bus, `error` could not be read."""

    OK = "ok"
    LOST = "lost"
    ERROR = "error"


class DecidedBy(StrEnum):
    """Who decided what CUDA sees: the driver itself, or the documented rules."""

    DRIVER = "driver"
    RULES = "rules"


class EntryStatus(StrEnum):
    """Outcome of one entry of CUDA_VISIBLE_DEVICES."""

    KEPT = "kept"
    DROPPED = "dropped"


class PcieLink(NamedTuple):
    """The PCIe link: generation and lane count now, and the most this system allows."""

    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None


class MigInstance(NamedTuple):
    """One MIG compute instance; `cuda_index` is null where CUDA would not enumerate it."""

    uuid: str | None
    name: str | None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    cuda_index: int | None = None


class MigState(NamedTuple):
    """MIG mode of a GPU (null: not supported or not readable) and its instances."""

    enabled: bool | None = None
    instances: tuple[MigInstance, ...] = ()


class GpuProcess(NamedTuple):
    """A process on a GPU.

    `type` is compute, graphics, compute+graphics or mps. `name`, `user`, `command` and `age_s`, the
    time since its start, are null when the process id belongs to another PID namespace or the
    process has ended; `namespace` then says which: `own`, `other` or `unknown`.
    """

    pid: int
    type: str
    name: str | None = None
    user: str | None = None
    command: str | None = None
    memory_used_bytes: int | None = None
    utilization_sm_percent: int | None = None
    mig_uuid: str | None = None
    namespace: str = "own"
    age_s: float | None = None


class GpuHolder(NamedTuple):
    """Process that holds a GPU's device file open, although the driver does not list it there.

    `state` is running, stopped, zombie or orphaned; `end_command` ends one that should not be
    there any more, null for a running one.
    """

    pid: int
    state: str
    name: str | None = None
    user: str | None = None
    command: str | None = None
    end_command: str | None = None


class GpuTrouble(NamedTuple):
    """Trouble of a card: warn or fail; `cause` is the one that `detect` gives it."""

    status: CheckStatus
    summary: str
    cause: str | None = None


class Gpu(NamedTuple):
    """One GPU with both of its numbers and its state; `unavailable` says why a reading is null.

    `memory_source` is `driver`, or `system` where the GPU shares the CPU's memory and the driver
    has no figures: they are then those of the whole system. They are the card's even where our
    cgroup has a limit, which is `memory_limit_bytes`; `memory_limit_source`, who tells it, is
    `dmem.max`, `dmem.max of a parent` or `nvml`. `memory_unaccounted_bytes` is in use
    but no process's, and `holders` has the card open without being listed; both are null unless
    they were asked for, and holders unless there is much of it. `troubles` is null where the card's
    health was not asked for or could not be read, and empty where nothing is wrong.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    cuda_index: int | None = None
    visible: bool | None = None
    hidden_reason: str | None = None
    uuid: str | None = None
    name: str | None = None
    serial: str | None = None
    pci_bus_id: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_source: str = "driver"
    memory_limit_bytes: int | None = None
    memory_limit_used_bytes: int | None = None
    memory_limit_source: str | None = None
    utilization_gpu_percent: int | None = None
    utilization_memory_percent: int | None = None
    temperature_c: int | None = None
    fan_percent: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_sm_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    performance_state: int | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    ecc_mode: bool | None = None
    pcie: PcieLink = PcieLink()
    numa_node: int | None = None
    cpu_affinity: str | None = None
    mig: MigState = MigState()
    processes: tuple[GpuProcess, ...] = ()
    memory_unaccounted_bytes: int | None = None
    holders: tuple[GpuHolder, ...] | None = None
    state: GpuState = GpuState.OK
    error: str | None = None
    troubles: tuple[GpuTrouble, ...] | None = None
    unavailable: Mapping[str, str] = NOTHING


class MemoryCap(NamedTuple):
    """A card of which our cgroup may use only a part; the total is the card's, null if unknown."""

    index: int  # type: ignore[assignment]  # as in Gpu
    memory_limit_bytes: int
    memory_total_bytes: int | None
    memory_limit_source: str


class VisibilityEntry(NamedTuple):
    """One comma-separated entry of CUDA_VISIBLE_DEVICES and its outcome."""

    text: str
    status: EntryStatus
    uuid: str | None
    reason: str


class Visibility(NamedTuple):
    """Devices that CUDA_VISIBLE_DEVICES leaves visible.

    `cuda_visible_devices` null means unset. `visible` lists UUIDs of GPUs or MIG instances by
    ascending CUDA ordinal, or is null when neither the rules nor the driver gave an order.
    `disagreement` says how the driver's enumeration differs from the rules.
    """

    cuda_visible_devices: str | None
    cuda_device_order: str | None
    decided_by: DecidedBy
    entries: tuple[VisibilityEntry, ...] = ()
    visible: tuple[str, ...] | None = None
    open_question: str | None = None
    disagreement: str | None = None


class TopologyLink(NamedTuple):
    """How two GPUs (NVML indices) reach each other: NV#, PIX, PXB, PHB, NODE or SYS."""

    from_: int
    to: int
    kind: str | None
    unavailable: str | None = None


class Topology(NamedTuple):
    """All pairs of GPUs, each pair once with `from_` < `to`."""

    links: tuple[TopologyLink, ...] = ()


class Inventory(NamedTuple):
    """The result of `gpucheck list`."""

    gpus: tuple[Gpu, ...]
    visibility: Visibility
    topology: Topology | None = None
