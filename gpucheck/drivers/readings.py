"""Raw readings of a machine that any command may need; evidence.py has those of detect."""

from collections.abc import Mapping
from typing import NamedTuple

from gpucheck.report.envelope import NOTHING


class ProbeFailure(NamedTuple):
    """Why a whole probe has no answer: a kebab-case code, a sentence, the library's own code."""

    code: str
    message: str
    function: str = ""
    library_code: int | None = None


#: Code of a driver that hangs: the next call into it would hang too.
HUNG = "driver-not-answering"


class ProcessReading(NamedTuple):
    """A process in one of NVML's lists; `type` is compute, graphics or mps."""

    pid: int
    type: str
    memory_used_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


class MigReading(NamedTuple):
    """One MIG device of a GPU, as NVML describes it."""

    uuid: str | None = None
    name: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    unavailable: Mapping[str, str] = NOTHING


class GpuReading(NamedTuple):
    """NVML's facts about one GPU; every null has its reason in `unavailable`.

    `failure` is set if the GPU stopped answering; it was not read any further. `numa_node` and
    `cpu_affinity` come from the driver only if the kernel does not list the GPU.
    `memory_limit_bytes` is our cgroup's limit, null without one; `memory_limit_source`, who tells
    it, is `dmem.max`, `dmem.max of a parent` (CUDA then reports the whole GPU) or `nvml`.
    `virtualization` is none, pass-through, vgpu (a share of a board), host-vgpu or host-vsga.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str | None = None
    name: str | None = None
    serial: str | None = None
    pci_bus_id: str | None = None
    pci_device_id: str | None = None
    architecture: str | None = None
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
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
    virtualization: str | None = None
    ecc_mode: bool | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    mig_enabled: bool | None = None
    mig_instances: tuple[MigReading, ...] = ()
    numa_node: int | None = None
    cpu_affinity: str | None = None
    processes: tuple[ProcessReading, ...] = ()
    process_utilization: Mapping[str, int] | None = None
    unavailable: Mapping[str, str] = NOTHING
    failure: ProbeFailure | None = None

    def instance_of(self, process: ProcessReading) -> MigReading | None:
        """Return the MIG instance that a process uses; None if it uses the GPU itself."""
        place = (process.gpu_instance_id, process.compute_instance_id)
        for mig in self.mig_instances:
            if place[0] is not None and place == (mig.gpu_instance_id, mig.compute_instance_id):
                return mig
        return None


class LimitReading(NamedTuple):
    """The limits of one cgroup on one GPU by NVML, null where there is none, and what it uses."""

    soft_bytes: int | None = None
    hard_bytes: int | None = None
    used_bytes: int | None = None
    failure: ProbeFailure | None = None


#: Null in a reading where there is no limit, which needs no reason.
LIMIT_FIELDS = frozenset({"memory_limit_bytes", "memory_limit_used_bytes", "memory_limit_source"})


class PairReading(NamedTuple):
    """NVML's common PCIe ancestor level of two GPUs (10 single switch ... 50 system)."""

    from_: int
    to: int
    level: int | None
    unavailable: str | None = None


class NvlinkReading(NamedTuple):
    """One NVLink of one GPU and its remote end: gpu, switch, ibm-npu or unknown (null).

    `unavailable` says why its state or its remote end could not be read.
    """

    gpu: int
    link: int
    active: bool
    remote_type: str | None = None
    remote_pci_bus_id: str | None = None
    unavailable: str | None = None


class TopologyReading(NamedTuple):
    """The raw topology of the GPUs."""

    pairs: tuple[PairReading, ...] = ()
    nvlinks: tuple[NvlinkReading, ...] = ()


class NvmlRequest(NamedTuple):
    """What to read through NVML beyond the usual reading of every GPU.

    With `processes_of`, only the processes of these GPUs (by index) are read.
    """

    topology: bool = False
    process_utilization: bool = False
    processes_of: tuple[int, ...] | None = None


class NvmlReading(NamedTuple):
    """The answer to one request to NVML.

    `gpu_count` is NVML's count; a GPU without a row in `gpus` did not answer or was not reached:
    the `failure` says which. `confidential_computing`: what crosses the GPUs' links is encrypted.
    `nvml_calls` counts the calls since NVML was opened. `library_path` is
    the file that the loader took, read only if NVML would not start.
    """

    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_driver_version: int | None = None
    confidential_computing: bool | None = None
    gpu_count: int | None = None
    gpus: tuple[GpuReading, ...] = ()
    topology: TopologyReading | None = None
    unavailable: Mapping[str, str] = NOTHING
    failure: ProbeFailure | None = None
    nvml_calls: int | None = None
    library_path: str | None = None


class CudaDeviceReading(NamedTuple):
    """One device as libcuda enumerates it; `uuid_hex` is 32 lower-case digits, no prefix.

    `integrated` means that it shares the host's memory. `l2_bytes` is its last cache.
    """

    ordinal: int
    uuid_hex: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    integrated: bool | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    unavailable: Mapping[str, str] = NOTHING


class CudaReading(NamedTuple):
    """The answer of libcuda in a fresh process with the recorded environment.

    `library_path` is the file that the loader took.
    """

    driver_version: int | None = None
    device_count: int | None = None
    devices: tuple[CudaDeviceReading, ...] = ()
    failure: ProbeFailure | None = None
    library_path: str | None = None


class PciDeviceReading(NamedTuple):
    """An NVIDIA display controller on the PCI bus, read from sysfs without any driver."""

    pci_bus_id: str
    vendor_id: str
    device_id: str | None = None
    class_id: str | None = None
    driver: str | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None


class KernelReading(NamedTuple):
    """The kernel's view: PCI devices and nvidia modules; null `pci_devices` means unreadable.

    The memory is the system's, MemTotal and MemAvailable of /proc/meminfo.
    """

    pci_devices: tuple[PciDeviceReading, ...] | None = None
    pci_unavailable: str | None = None
    module_loaded: bool | None = None
    module_version: str | None = None
    uvm_loaded: bool | None = None
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None


class ProcessIdentity(NamedTuple):
    """The process behind an id in our PID namespace.

    `namespace` is own (the id is ours), other (it belongs to another namespace), or unknown.
    `age_s` is the time since it started.
    """

    pid: int
    name: str | None = None
    user: str | None = None
    command: str | None = None
    namespace: str = "own"
    age_s: float | None = None
