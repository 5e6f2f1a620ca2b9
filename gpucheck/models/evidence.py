"""Readings that only `detect` and recordings need: what lies around the driver, and health.

Apart from snapshot.py, which every listing loads. A reading that is null was not there or could
not be read; where that makes a difference, a field beside it says why.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpucheck.models.device import NOTHING
from gpucheck.models.snapshot import ProbeFailure


class PlatformReading(NamedTuple):
    """What kind of machine this is, from files alone.

    `boot_parameters` are those of the kernel's command line that matter to GPU drivers;
    `prime_profile` is what a laptop's graphics switch was set to.
    """

    dxg: bool = False
    tegra: str | None = None
    hypervisor: bool | None = None
    secure_boot: bool | None = None
    boot_parameters: tuple[str, ...] = ()
    prime_profile: str | None = None


class PciDetailReading(NamedTuple):
    """More of one GPU on the PCI bus: `answers` is false where its registers read all ones."""

    pci_bus_id: str
    answers: bool | None = None
    runtime_status: str | None = None


class ModuleReading(NamedTuple):
    """The driver's kernel module on disk and in the kernel.

    `installed` are its files for the running kernel (null: the folder is not there to be read),
    `other_kernels` those that have one while this has none. `blocked_by` are the lines of
    modprobe.d that keep it from being loaded. `driver_gpus` and `excluded_gpus` are bus ids.
    """

    installed: tuple[str, ...] | None = None
    other_kernels: tuple[str, ...] = ()
    dkms_versions: tuple[str, ...] = ()
    blocked_by: tuple[str, ...] = ()
    flavour: str | None = None
    driver_gpus: tuple[str, ...] | None = None
    excluded_gpus: tuple[str, ...] = ()
    hmm_disabled: bool | None = None


class NodeReading(NamedTuple):
    """A device file and what this user may do with it."""

    path: str
    mode: str | None = None
    owner: int | None = None
    group: int | None = None
    accessible: bool | None = None


class NodesReading(NamedTuple):
    """The driver's device files; `expected` are those that its own lists call for.

    `caps` are the files that give access to MIG instances.
    """

    nodes: tuple[NodeReading, ...] = ()
    expected: tuple[str, ...] = ()
    unavailable: str | None = None
    caps: tuple[NodeReading, ...] = ()


class NodeOpening(NamedTuple):
    """Whether a device file could really be opened; `error` is the system's word, null if so."""

    path: str
    error: str | None = None


class LibraryReading(NamedTuple):
    """A library file where the loader looks; `kind` is driver, stub, compat, wsl or toolkit."""

    name: str
    path: str
    version: str | None = None
    kind: str = "driver"


class ToolkitReading(NamedTuple):
    """A CUDA toolkit's folder and the version that it says it is."""

    path: str
    version: str | None = None


class LibrariesReading(NamedTuple):
    """Driver and toolkit libraries in the order in which the loader would find them."""

    found: tuple[LibraryReading, ...] = ()
    toolkits: tuple[ToolkitReading, ...] = ()


class KernelLogReading(NamedTuple):
    """The kernel log's lines about NVIDIA GPUs; null `lines` were not readable, and why."""

    lines: tuple[str, ...] | None = None
    source: str = "kernel log"
    unavailable: str | None = None


class SystemReading(NamedTuple):
    """All that files tell about the driver, read before any library of it is called."""

    platform: PlatformReading = PlatformReading()
    pci: tuple[PciDetailReading, ...] = ()
    nvswitches: int = 0
    module: ModuleReading = ModuleReading()
    nodes: NodesReading = NodesReading()
    libraries: LibrariesReading = LibrariesReading()
    log: KernelLogReading = KernelLogReading()
    unavailable: str | None = None


class GpuHealthReading(NamedTuple):
    """NVML's readings of one GPU's health; every null has its reason in `unavailable`.

    `throttled_ns` is by how much each clock slowdown counter grew within `sample_s`, and
    `pcie_replays_grown` the same of the replay counter, `nvlink_errors_grown` of the errors of
    NVLinks by kind. `temperature_margin_c` is how far the GPU is from its next slowdown. Numbers
    without a unit are NVML's own enumerations.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    clock_event_reasons: int | None = None
    throttled_ns: Mapping[str, int] | None = None
    sample_s: float | None = None
    temperature_memory_c: int | None = None
    temperature_slowdown_c: int | None = None
    temperature_margin_c: int | None = None
    temperature_gpu_max_c: int | None = None
    temperature_memory_max_c: int | None = None
    fan_count: int | None = None
    pcie_generation_gpu_max: int | None = None
    pcie_replays: int | None = None
    pcie_replays_grown: int | None = None
    nvlink_errors_grown: Mapping[str, int] | None = None
    ecc_mode_pending: bool | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_volatile: int | None = None
    ecc_sram_threshold_exceeded: bool | None = None
    remapped_rows_uncorrected: int | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    retired_pages_single_bit: int | None = None
    retired_pages_double_bit: int | None = None
    retired_pages_pending: bool | None = None
    memory_unrepairable: bool | None = None
    repair_pending: bool | None = None
    recovery_action: int | None = None
    nvlinks: int | None = None
    nvlinks_active: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None
    power_limit_default_w: float | None = None
    power_source: int | None = None
    inforom_valid: bool | None = None
    vbios_version: str | None = None
    mig_mode_pending: bool | None = None
    display_active: bool | None = None
    unavailable: Mapping[str, str] = NOTHING
    failure: ProbeFailure | None = None


class HealthReading(NamedTuple):
    """The health of every GPU that answers; `failure` says why there is no more."""

    gpus: tuple[GpuHealthReading, ...] = ()
    failure: ProbeFailure | None = None


class BuildReading(NamedTuple):
    """One framework as its files tell, without importing it.

    `distributions` are the installed packages that bring it, `cuda_build` the CUDA it was built
    for (null where it says none), `gpu_build` whether it can use NVIDIA GPUs at all,
    `architectures` what it holds code for (`sm_90`, `compute_90`), `missing_libraries` those that
    it needs and that are nowhere to be found, `notes` what else its files tell. `broken` are its
    own files that are gone or damaged, `remarks` what a program has to do that uses it,
    `not_searched` folders that have missing libraries and where the loader does not look,
    `unchecked` is why its libraries could not be looked at.
    """

    name: str
    distributions: tuple[str, ...] = ()
    version: str | None = None
    cuda_build: str | None = None
    gpu_build: bool | None = None
    architectures: tuple[str, ...] = ()
    missing_libraries: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    path: str | None = None
    broken: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    not_searched: tuple[str, ...] = ()
    unchecked: str | None = None


class BuildsReading(NamedTuple):
    """The frameworks of one interpreter; `unavailable` says why they are not known.

    `named_by` is what made it the one to look at: --python, VIRTUAL_ENV, CONDA_PREFIX, PATH, or
    gpucheck for the one that it runs in.
    """

    python: str | None = None
    python_version: str | None = None
    builds: tuple[BuildReading, ...] | None = None
    unavailable: str | None = None
    named_by: str | None = None


class TrialReading(NamedTuple):
    """What a framework itself said when it was imported and asked to use a GPU.

    `computed` is whether a real operation on the GPU gave the right result; `error` is the
    framework's own text.
    """

    name: str
    version: str | None = None
    cuda_build: str | None = None
    devices: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    sees_gpu: bool | None = None
    computed: bool | None = None
    error: str | None = None
    import_s: float | None = None
    work_s: float | None = None
    failure: ProbeFailure | None = None


class LaunchedReading(NamedTuple):
    """One GPU's attempt to run a kernel: allocate, launch, synchronise, compare."""

    ordinal: int
    right: bool | None = None
    first_launch_s: float | None = None
    second_launch_s: float | None = None
    failure: ProbeFailure | None = None


class LaunchReading(NamedTuple):
    """What came of running a kernel; `through` is cupy where it ran through CuPy, else libcuda.

    `cupy_failure` is why CuPy, although it is installed, could not do it; `libcuda_failure` why
    libcuda alone could not, where CuPy could.
    """

    through: str | None = None
    launches: tuple[LaunchedReading, ...] = ()
    cupy_failure: ProbeFailure | None = None
    libcuda_failure: ProbeFailure | None = None
    failure: ProbeFailure | None = None
