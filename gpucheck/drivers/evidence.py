"""Readings that only `detect` and recordings need: the driver's files, frameworks and health.

Separate from readings.py, which every listing loads. A null reading was absent or could not be
read; where that makes a difference, another field gives the reason.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpucheck.drivers.readings import ProbeFailure
from gpucheck.report.envelope import NOTHING


class PlatformReading(NamedTuple):
    """The platform, from files alone.

    `boot_parameters` are those of the kernel's command line that affect GPU drivers;
    `prime_profile` is the setting of a laptop's graphics switch. `machine` is the processor's kind
    as the kernel calls it: x86_64, aarch64. `other_vendors` made the other graphics cards.
    """

    dxg: bool = False
    tegra: str | None = None
    hypervisor: bool | None = None
    secure_boot: bool | None = None
    boot_parameters: tuple[str, ...] = ()
    prime_profile: str | None = None
    machine: str | None = None
    other_vendors: tuple[str, ...] = ()


class PciDetailReading(NamedTuple):
    """Further PCI facts of one GPU: `answers` is false if its registers read all ones."""

    pci_bus_id: str
    answers: bool | None = None
    runtime_status: str | None = None


class ModuleReading(NamedTuple):
    """The driver's kernel module on disk and in the kernel.

    `installed` are its files for the running kernel (null: that folder cannot be read).
    `other_kernels` are the kernels that have a module, if the running one has none. `blocked_by`
    are the lines of modprobe.d that block it. `driver_gpus` and `excluded_gpus` are bus ids.
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
    """A device file and this user's access to it."""

    path: str
    mode: str | None = None
    owner: int | None = None
    group: int | None = None
    accessible: bool | None = None


class NodesReading(NamedTuple):
    """The driver's device files; `expected` are those in its own lists.

    `caps` are the files that give access to MIG instances.
    """

    nodes: tuple[NodeReading, ...] = ()
    expected: tuple[str, ...] = ()
    unavailable: str | None = None
    caps: tuple[NodeReading, ...] = ()


class LibraryReading(NamedTuple):
    """A library file in the loader's path; `kind` is driver, stub, compat, wsl or toolkit."""

    name: str
    path: str
    version: str | None = None
    kind: str = "driver"


class ToolkitReading(NamedTuple):
    """A CUDA toolkit's folder and its stated version."""

    path: str
    version: str | None = None


class LibrariesReading(NamedTuple):
    """Driver and toolkit libraries in the loader's order."""

    found: tuple[LibraryReading, ...] = ()
    toolkits: tuple[ToolkitReading, ...] = ()


class EarlierBootReading(NamedTuple):
    """Xids that a log file has from before this boot; null `lines` were not read, with the reason.

    `ages_s` is how long ago each line was written, null where it has no time.
    """

    lines: tuple[str, ...] | None = None
    ages_s: tuple[float | None, ...] = ()
    source: str = "kernel log"
    unavailable: str | None = None


class KernelLogReading(NamedTuple):
    """The kernel log's lines about NVIDIA GPUs; null `lines` could not be read, with the reason.

    `ages_s` is how long ago each line was written, null where it has no time; it is empty if it was
    not recorded.
    """

    lines: tuple[str, ...] | None = None
    source: str = "kernel log"
    unavailable: str | None = None
    ages_s: tuple[float | None, ...] = ()
    earlier: EarlierBootReading = EarlierBootReading(unavailable="not recorded")


class SystemReading(NamedTuple):
    """Everything in files about the driver, read before any of its libraries is called."""

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

    `throttled_ns` is the growth of each clock slowdown counter within `sample_s`,
    `pcie_replays_grown` that of the replay counter, `nvlink_errors_grown` that of the NVLinks'
    errors by kind. `temperature_margin_c` is the distance to the GPU's next slowdown. Numbers
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
    """The health of every GPU that answers; `failure` says why others are missing."""

    gpus: tuple[GpuHealthReading, ...] = ()
    failure: ProbeFailure | None = None


class BuildReading(NamedTuple):
    """One framework, described by its files without importing it.

    `distributions` are the installed packages that provide it, `cuda_build` the CUDA it was built
    for (null if it states none), `gpu_build` whether it can use NVIDIA GPUs at all,
    `architectures` the targets of its code (`sm_90`, `compute_90`), `missing_libraries` the
    libraries that it needs and that cannot be found, `notes` further facts. `broken` are its own
    missing or damaged files, `remarks` what a program that uses it has to do, `not_searched` the
    folders with missing libraries that the loader does not search, `unchecked` the reason why its
    libraries could not be checked. `owners` are the packages of missing or damaged files, as wheels
    and as conda name them, `rivals` NVIDIA's packages that overwrite each other, `from_conda`
    whether conda installed it.
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
    owners: tuple[str, ...] = ()
    conda_owners: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    from_conda: bool = False


class BuildsReading(NamedTuple):
    """The frameworks of one interpreter; `unavailable` says why they are unknown.

    `named_by` is the reason for its choice: --python, VIRTUAL_ENV, CONDA_PREFIX, PATH, or gpucheck
    if it is gpucheck's own. `installers` are what installs packages there: conda or pixi if the
    environment is theirs, then pip or uv.
    """

    python: str | None = None
    python_version: str | None = None
    installers: tuple[str, ...] = ()
    builds: tuple[BuildReading, ...] | None = None
    unavailable: str | None = None
    named_by: str | None = None


#: The code of a framework whose process a signal such as SIGSEGV ended.
CRASHED = "crashes"


class TrialReading(NamedTuple):
    """The result of a framework smoke test: its import, and a computation on a GPU.

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
    failure: ProbeFailure | None = None


class LaunchedReading(NamedTuple):
    """One GPU's attempt to run a kernel: allocate, launch, synchronise, compare."""

    ordinal: int
    right: bool | None = None
    first_launch_s: float | None = None
    second_launch_s: float | None = None
    failure: ProbeFailure | None = None


class LaunchReading(NamedTuple):
    """The result of the CUDA kernel self-test; `through` is cupy if CuPy ran it, else libcuda.

    `cupy_failure` is the reason why an installed CuPy failed; `libcuda_failure` the reason why
    libcuda failed where CuPy succeeded.
    """

    through: str | None = None
    launches: tuple[LaunchedReading, ...] = ()
    cupy_failure: ProbeFailure | None = None
    libcuda_failure: ProbeFailure | None = None
    failure: ProbeFailure | None = None


class HolderReading(NamedTuple):
    """Process that holds GPU device files open; `minors` are their numbers, of /dev/nvidiaN.

    `state` is running, stopped, zombie (only threads of it live on) or orphaned (its parent has
    ended, and it is no service). `mine` says whether this user may end it.
    """

    pid: int
    minors: tuple[int, ...]
    state: str
    name: str | None = None
    user: str | None = None
    command: str | None = None
    mine: bool = False


class HoldersReading(NamedTuple):
    """Processes that hold a GPU open, and by PCI bus id the number of each GPU's device file.

    `hidden` counts processes whose open files may not be read; `complete` is false if the search
    ended before the last process.
    """

    holders: tuple[HolderReading, ...] = ()
    minors: Mapping[str, int] = MappingProxyType({})
    hidden: int = 0
    complete: bool = True
    unavailable: str | None = None


class MappedReading(NamedTuple):
    """File that a process has mapped; `file` is its device and inode, equal for equal files.

    `deleted`: another file, or none, has its name now.
    """

    path: str
    file: str
    deleted: bool = False


class MappedFrameworkReading(NamedTuple):
    """Framework whose libraries a process has loaded, by the files in its folder.

    `gpu_build` is whether it has a part for NVIDIA GPUs; null could not be read.
    """

    name: str
    path: str
    version: str | None = None
    cuda_build: str | None = None
    gpu_build: bool | None = None


class AncestorReading(NamedTuple):
    """Parent of a process, or of its parent, with its GPU-related variables when it was started."""

    pid: int
    name: str | None = None
    environment: Mapping[str, str] | None = None


class CgroupReading(NamedTuple):
    """Control group of a process: the smallest memory limit on its way, and what it uses.

    `allows_gpus` is what the device rules of version 1 say; those of version 2 cannot be read.
    """

    path: str
    memory_limit_bytes: int | None = None
    memory_used_bytes: int | None = None
    oom_kills: int | None = None
    allows_gpus: bool | None = None


class ProcessFilesReading(NamedTuple):
    """One process in /proc; `exists` null: processes were not recorded.

    `ended`: it was there when the reading began. `state` and the keys of `threads` are the
    kernel's letters. `environment` has the GPU-related variables with which it was started,
    `ancestors` begins with its parent, `descendants` are ids, and `holders` those of them that are
    seen to hold the driver's files open. `devices_present` is whether its /dev has files of the
    driver, `device_files` are those that it holds open. `threads` counts the first of many.
    `kernel_thread`: it runs no program. `own_namespaces` are the kinds of namespaces, pid and mnt,
    that it does not share with us. What could not be read has its reason in `unavailable`.
    """

    pid: int
    exists: bool | None = None
    ended: bool = False
    state: str | None = None
    parent: int | None = None
    name: str | None = None
    user: str | None = None
    command: str | None = None
    kernel_thread: bool = False
    thread_count: int | None = None
    threads: Mapping[str, int] = MappingProxyType({})
    environment: Mapping[str, str] | None = None
    ancestors: tuple[AncestorReading, ...] = ()
    mapped: tuple[MappedReading, ...] | None = None
    frameworks: tuple[MappedFrameworkReading, ...] = ()
    device_files: tuple[str, ...] | None = None
    devices_present: bool | None = None
    cgroup: CgroupReading | None = None
    descendants: tuple[int, ...] = ()
    holders: tuple[int, ...] = ()
    initial_namespace: bool | None = None
    own_namespaces: tuple[str, ...] = ()
    unavailable: Mapping[str, str] = NOTHING
