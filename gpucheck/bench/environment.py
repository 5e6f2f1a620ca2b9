"""Run environment of a benchmark: other load on the host, its BLAS, and the measured machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpucheck.bench.model import BenchEnvironment, Roofline
from gpucheck.bench.request_model import Fill
from gpucheck.bench.telemetry import SensorSummary
from gpucheck.data import read_table
from gpucheck.drivers.gpu import BenchGpu, OpenedGpus
from gpucheck.drivers.host.blas import NETLIB, NO_BLAS, Blas, BlasFacts
from gpucheck.drivers.host.cpu import CpuFacts, CpuLoad, LinuxCpu, parse_cpu_list
from gpucheck.drivers.host.processes import device_of
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.nvml.sensors import NvmlSensors
from gpucheck.drivers.readings import (
    CudaReading,
    GpuReading,
    NvmlReading,
    ProcessIdentity,
    ProcessReading,
)
from gpucheck.inventory.visibility import gpu_uuid
from gpucheck.report.host import Host

#: Variables that silently change arithmetic, memory or threads.
VARIABLES = (
    "NVIDIA_TF32_OVERRIDE", "CUPY_TF32", "CUPY_GPU_MEMORY_LIMIT", "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_THREAD_TIMEOUT",
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_NUM_THREADS", "MKL_ENABLE_INSTRUCTIONS",
    "BLIS_NUM_THREADS", "BLIS_ARCH_TYPE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES",
)  # fmt: skip
_UNREADABLE = "/proc/stat cannot be read"
#: The one statement on a run under WSL2, in place of doubts about its rows.
WSL_NOTE = (
    "WSL2: Windows passes work to the GPU in batches, so that launches and short operations take "
    "longer than on Linux; whether the GPU waited for the host is not judged"
)
#: Number of processes holding a GPU's memory that are named.
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEnvironment:
    """Other load on the host while a group ran, in percent of its cores, and where its row ran.

    The load is None if it cannot be read. `cores` is the number of cores that the percentages
    refer to. `quota_percent` is the share of periods in which the cgroup used up its quota and
    this process waited; None without a quota. `gpu` is empty without sensors. `far`: this process
    may not run on any CPU near the row's GPU. `integrated`: the GPU shares the host's memory.
    `chip_to_chip`: its link to the host is NVLink, not PCIe (Grace). `wsl`: Windows starts its
    work, as a note of the run says. `clock_max_mhz` is the highest clock of its SMs. `slow_blas`
    says why the processor's BLAS is slow, if it is known to be.
    """

    others_percent: float | None = None
    steal_percent: float | None = None
    cores: int | None = None
    quota_percent: float | None = None
    gpu: SensorSummary = field(default_factory=SensorSummary)
    fill: Fill = Fill.NORMAL
    far: bool = False
    integrated: bool = False
    chip_to_chip: bool = False
    wsl: bool = False
    clock_max_mhz: float | None = None
    slow_blas: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnvironment:
    """Facts about the GPUs and MIG instances beyond those of CUDA, by UUID.

    `cards` are NVML's readings, of the card. `processes` used a GPU before this one opened it, and
    `holders` names those that held its memory then. `claims` names the
    claims of other processes. `near_cpus` are the CPUs near a GPU, if this process may run on
    others too; `far` are the GPUs near which it may not run at all. `integrated`: the GPU shares
    the host's memory. `variables` are the set ones of VARIABLES. `notes` go into the report, as
    does `host`, the machine of them all.
    """

    sensors: NvmlSensors = field(default_factory=lambda: NvmlSensors("no GPU is measured"))
    cards: Mapping[str, GpuReading] = field(default_factory=dict)
    processes: Mapping[str, frozenset[int]] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    near_cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    far: frozenset[str] = frozenset()
    holders: Mapping[str, str] = field(default_factory=dict)
    integrated: Mapping[str, bool] = field(default_factory=dict)
    host: Host = field(default_factory=Host)
    variables: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()


def run_environment_of(
    probes: Probes,
    reading: NvmlReading,
    cuda: CudaReading | None,
    environment: Mapping[str, str],
    allowed: frozenset[int],
) -> RunEnvironment:
    """Return the facts about the GPUs before CUDA opens them, with a reader of their sensors.

    `cuda` is None if no GPU is requested; `allowed` are the CPUs that this process may run on.
    """
    variables = variables_of(environment)
    if cuda is None:
        return RunEnvironment(variables=variables)
    known = cards_by_uuid(reading)
    devices = probes.kernel().pci_devices or ()
    affinity = {item.pci_bus_id: item.cpu_affinity or "" for item in devices}
    next_to = {
        uuid: parse_cpu_list(affinity.get(gpu.pci_bus_id or "")) for uuid, gpu in known.items()
    }
    near, far = nearness(next_to, allowed)
    failure = reading.failure
    return RunEnvironment(
        sensors=NvmlSensors(None if failure is None else failure.message),
        cards=known,
        processes={
            uuid: frozenset(process.pid for process in _processes_on(uuid, gpu))
            for uuid, gpu in known.items()
        },
        near_cpus=near,
        far=far,
        holders=memory_holders(probes, reading),
        integrated={
            gpu_uuid(item.uuid_hex): item.integrated
            for item in cuda.devices
            if item.uuid_hex and item.integrated is not None
        },
        variables=variables,
    )


def cards_by_uuid(reading: NvmlReading) -> dict[str, GpuReading]:
    """Return each card by its UUID and by those of its MIG instances."""
    return {
        uuid: gpu
        for gpu in reading.gpus
        for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_instances))
        if uuid is not None
    }


def _processes_on(uuid: str, gpu: GpuReading) -> Sequence[ProcessReading]:
    """Return the processes of a card or of one instance, with those of no known instance."""
    return [process for process in gpu.processes if device_of(gpu, process) in (uuid, gpu.uuid)]


def memory_holders(probes: Probes, reading: NvmlReading) -> dict[str, str]:
    """Return the holders of each GPU's memory, by UUID."""
    known = {uuid: _processes_on(uuid, gpu) for uuid, gpu in cards_by_uuid(reading).items()}
    owners = probes.identify({process.pid for processes in known.values() for process in processes})
    holders = {uuid: holders_of(processes, owners) for uuid, processes in known.items()}
    return {uuid: text for uuid, text in holders.items() if text is not None}


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of VARIABLES that are set."""
    return {name: environment[name] for name in VARIABLES if name in environment}


def holders_of(
    processes: Sequence[ProcessReading], known: Mapping[int, ProcessIdentity]
) -> str | None:
    """Return who holds a GPU's memory, largest first; None if the driver lists no process."""
    # A process may be in several of NVML's lists.
    largest: dict[int, ProcessReading] = {}
    for item in sorted(processes, key=lambda item: item.memory_used_bytes or 0, reverse=True):
        largest.setdefault(item.pid, item)
    named = []
    for item in largest.values():
        name = known[item.pid].name if item.pid in known else None
        size = item.memory_used_bytes
        held = "memory" if size is None else f"{size / 2**30:.1f} GiB"
        named.append(f"process {item.pid}{f' ({name})' if name else ''} holds {held}")
    rest = len(named) - _MOST_NAMED
    more = [f"and {rest} more"] if rest > 0 else []
    return ", ".join([*named[:_MOST_NAMED], *more]) or None


def gpu_notes(gpus: Sequence[BenchGpu]) -> Iterator[str]:
    """Yield a note on each GPU that shares the host's memory, or whose peaks are unknown."""
    for gpu in gpus:
        if gpu.integrated:
            yield (
                f"{gpu.device} shares the host's memory: its transfers are copies within that "
                "memory, not over PCIe"
            )
        for field_name, reason in gpu.unavailable.items():
            peaks = "its peaks are" if field_name == "board" else "the peak of its memory is"
            yield f"{gpu.device}: {peaks} unknown: {reason}"


def nearness(
    next_to: Mapping[str, frozenset[int]], allowed: frozenset[int]
) -> tuple[dict[str, frozenset[int]], frozenset[str]]:
    """Return the CPUs to use for each GPU, and the GPUs that this process is far from.

    `next_to` are the CPUs near each GPU, empty if the kernel does not report them. A GPU near all
    allowed CPUs needs no choice.
    """
    near = {
        uuid: cpus & allowed
        for uuid, cpus in next_to.items()
        if cpus & allowed and not allowed <= cpus
    }
    far = frozenset(uuid for uuid, cpus in next_to.items() if cpus and not cpus & allowed)
    return near, far


@dataclass(slots=True)
class HostShare:
    """Other processes' use of the host, summed over periods of time."""

    facts: CpuFacts
    seconds: float = 0.0
    others_s: float = 0.0
    steal_s: float = 0.0
    quota_periods: int = 0
    quota_reached: int = 0
    unreadable: bool = False

    def add(self, before: CpuLoad, after: CpuLoad, seconds: float) -> None:
        """Add one period, from the counters at its start and end."""
        self.quota_periods += (after.quota_periods or 0) - (before.quota_periods or 0)
        self.quota_reached += (after.quota_reached or 0) - (before.quota_reached or 0)
        if before.busy_s is None or after.busy_s is None:
            self.unreadable = True
            return
        own_s = after.own_s - before.own_s
        self.seconds += seconds
        # Not clipped at zero here: the kernel counts in ticks, too coarse for one short period.
        self.others_s += after.busy_s - before.busy_s - own_s
        self.steal_s += (after.steal_s or 0.0) - (before.steal_s or 0.0)

    def state(self) -> RowEnvironment:
        """Return the use in percent of the host's cores.

        The kernel counts all processors, even those that this process may not use, and so do
        the percentages.
        """
        cores = self.facts.logical_cores or self.facts.usable_cores
        periods, capacity_s = self.quota_periods, self.seconds * cores
        quota_percent = 100 * self.quota_reached / periods if periods > 0 else None
        if self.unreadable or capacity_s <= 0:
            return RowEnvironment(quota_percent=quota_percent)
        return RowEnvironment(
            others_percent=100 * min(1.0, max(0.0, self.others_s / capacity_s)),
            steal_percent=100 * min(1.0, max(0.0, self.steal_s / capacity_s)),
            cores=cores,
            quota_percent=quota_percent,
        )


def blas_text(environment: BenchEnvironment) -> str | None:
    """Return the BLAS of the CPU's own products: "openblas 0.3.31 (SkylakeX)"; None if unknown."""
    if environment.blas_name is None:
        return None
    core = f" ({environment.blas_architecture})" if environment.blas_architecture else ""
    return f"{environment.blas_name} {environment.blas_version or ''}".strip() + core


def parallel_efficiency(rooflines: Sequence[Roofline]) -> float | None:
    """Return the best product's speed-up by threads, divided by the threads (1 is ideal)."""
    speeds = {
        roofline.threads: roofline.gemm_flops_per_s
        for roofline in rooflines
        if roofline.device == "cpu" and roofline.threads and roofline.gemm_flops_per_s
    }
    most = max(speeds, default=1)
    if most == 1 or 1 not in speeds:
        return None
    return speeds[most] / speeds[1] / most


def environment_of(
    cpu: LinuxCpu, facts: CpuFacts, blas: Blas, opened: OpenedGpus, **run: Any
) -> BenchEnvironment:
    """Return the run environment of the figures, with reasons for missing parts.

    `run` has the fields that only the run knows: its request, times, limits and other load.
    """
    import numpy as np

    library = blas.read()
    refused = [f"gpu:{index}: {reason}" for index, reason in opened.refused.items()]
    environment = BenchEnvironment(
        cpu_model=facts.model,
        logical_cores=facts.logical_cores,
        usable_cores=facts.usable_cores,
        cpu_quota_cores=facts.quota_cores,
        blas_name=library.name if library else None,
        blas_version=library.version if library else None,
        blas_architecture=library.architecture if library else None,
        blas_threads=facts.threads if library else None,
        numpy_version=np.__version__,
        cupy_version=None if opened.for_frameworks else opened.cupy_version,
        cublas_version=opened.cublas_version,
        gpu_unavailable=None
        if opened.for_frameworks
        else opened.unavailable or "; ".join(refused) or None,
        gpu_silent=opened.silent or opened.busy,
        gpu_remedy=opened.remedy,
        gpus_not_measured=opened.names,
        parallel_efficiency=parallel_efficiency(run["rooflines"]),
        peak_memory_bytes=cpu.peak_memory_bytes(),
        **run,
    )
    reasons = _reasons(opened)
    missing = {name: why for name, why in reasons.items() if getattr(environment, name) is None}
    return replace(environment, unavailable=missing)


def _reasons(opened: OpenedGpus) -> dict[str, str]:
    """Return the reason for each part of the environment that may be missing."""
    reasons = {
        "cupy_version": opened.unavailable or "no GPU was requested",
        "blas_name": "threadpoolctl knows no BLAS in this process",
        "cpu_model": "/proc/cpuinfo does not name it",
        "load_average_1m": "/proc/loadavg cannot be read",
        "other_load_percent": _UNREADABLE,
        "steal_percent": _UNREADABLE,
        "parallel_efficiency": "matmul was not measured at one and at all threads",
    }
    return reasons | ({"cublas_version": "CuPy does not report it"} if opened.devices else {})


# --------------------------------------------------------------------------- kernels of a BLAS

#: OpenBLAS and BLIS choose their kernels on loading, by the CPU's name or a variable
#: (data/blas.toml); MKL also by MKL_ENABLE_INSTRUCTIONS. With AVX2 kernels on a CPU with AVX-512, a
#: product takes about twice as long. Linux's names for the relevant instruction sets, newest first.
INSTRUCTION_SETS = ("avx512f", "avx2", "avx", "sse2")
#: Values of MKL_ENABLE_INSTRUCTIONS by these sets.
_OF_MKL = {"avx512f": ["avx512"], "avx2": ["avx2"], "avx": ["avx"], "sse2": ["sse4_2"]}
#: Core types of OpenBLAS and BLIS for processors that they do not know.
_GENERIC = frozenset({"generic", "armv8"})
#: What computes products without kernels for any processor, by the name of drivers/host/blas.py.
_PLAIN = {
    NETLIB: "NumPy uses the reference BLAS of netlib, which is not optimised",
    NO_BLAS: "this NumPy was built without a BLAS",
}
#: Variables that choose the kernels of a BLAS.
_FORCING = ("OPENBLAS_CORETYPE", "BLIS_ARCH_TYPE", "MKL_ENABLE_INSTRUCTIONS")


def explain_slow_blas(
    blas: BlasFacts | None, instruction_sets: frozenset[str], variables: Mapping[str, str]
) -> str | None:
    """Return why the BLAS is slow on this CPU; None if it has the newest kernels, or is unknown.

    `instruction_sets` are the CPU's, by Linux's names; `variables` may force a choice.
    """
    if blas is None:
        return None
    if blas.name in _PLAIN:
        return _PLAIN[blas.name]
    core = blas.architecture
    forced = next((f" ({name}={variables[name]})" for name in _FORCING if name in variables), "")
    if (core or "").lower() in _GENERIC:
        return f"{blas.name} uses its generic kernels ({core}){forced}, not those of this processor"
    rows = {row["id"]: row for row in read_table("blas")["row"]} | {"mkl": _OF_MKL}
    if blas.name == "mkl":
        core = variables.get("MKL_ENABLE_INSTRUCTIONS")
    if blas.name not in rows:
        return None
    known = rows[blas.name]
    has = next((name for name in INSTRUCTION_SETS if name in instruction_sets), None)
    uses = next((name for name in INSTRUCTION_SETS if (core or "-").lower() in known[name]), None)
    if has is None or uses is None:
        return None
    if INSTRUCTION_SETS.index(uses) <= INSTRUCTION_SETS.index(has):
        return None
    return (
        f"{blas.name} uses its kernels for {core}{forced}, but the processor has newer instructions"
    )
