"""Machine files: the TOML description of a pretended computer, read strictly into frozen values.

A reading that is left out, or written as ``"unsupported"``, is None and every double answers
"not supported" for it. Raw bytes that are no UTF-8 are written ``\\xNN`` in a TOML literal string
and are kept in the ``str`` as surrogate escapes (``text.encode("utf-8", "surrogateescape")``).
"""

import dataclasses
import functools
import re
import tomllib
import types
import typing
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpucheck.report.text import did_you_mean

MACHINES = Path(__file__).resolve().parent.parent / "data" / "machines"
"""The folder with the machine files."""

UNSUPPORTED = "unsupported"

ARCHITECTURES = {
    "kepler": 2, "maxwell": 3, "pascal": 4, "volta": 5, "turing": 6, "ampere": 7,
    "ada": 8, "hopper": 9, "blackwell": 10, "rubin": 13,
}  # fmt: skip
BRANDS = {
    "unknown": 0, "quadro": 1, "tesla": 2, "nvs": 3, "geforce": 5, "titan": 6,
    "quadro-rtx": 12, "nvidia-rtx": 13, "nvidia": 14, "geforce-rtx": 15,
}  # fmt: skip
COMPUTE_MODES = {"default": 0, "exclusive-thread": 1, "prohibited": 2, "exclusive-process": 3}
FABRIC_STATES = {"not-supported": 0, "not-started": 1, "in-progress": 2, "completed": 3}
PATHS = {"internal": 0, "PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
"""PCIe paths as nvidia-smi names them, with NVML's topology levels."""
PROCESS_TYPES = ("compute", "graphics", "mps")
BOUND_DRIVERS = ("nvidia", "nouveau", "nova_core", "vfio-pci", "none")
ENVIRONMENTS = ("bare-metal", "container", "wsl2")

_PCI_BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RAW_BYTE = re.compile(r"\\x([0-9a-f]{2})", re.IGNORECASE)
_FAULT = re.compile(r"(?P<function>[A-Za-z0-9_]*\*?)(?P<rest>(\s+\S+)*)")
T = typing.TypeVar("T")
_IDENTITY = uuid.UUID("6a1f3c8e-1d55-4c51-9f6e-8a5f0c2b7d10")


class MachineError(ValueError):
    """A machine file (or an override of one) with an impossible value."""

    def __init__(self, *, where: str, problem: str) -> None:
        """Keep the place and the problem; the text is both."""
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which the pretended driver misbehaves."""

    function: str
    """C symbol, or a family of symbols when it ends with ``*``."""
    code: int | None
    """The error returned; None = the call never returns."""
    dies: bool = False
    """The call ends its process by a signal, as a fault in the driver's own code does."""
    gpu: int | None = None
    """NVML index it is limited to; None = every call."""
    after: int = 0
    """That many matching calls go well first."""

    @property
    def hangs(self) -> bool:
        """Tell whether the call never returns."""
        return self.code is None and not self.dies

    def __str__(self) -> str:
        """Give the text that `parse_fail`, `parse_hang` or `parse_die` reads."""
        parts = [self.function]
        if self.gpu is not None:
            parts.append(f"gpu={self.gpu}")
        if self.code is not None:
            parts.append(str(self.code))
        if self.after:
            parts.append(f"after={self.after}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process on one GPU, with its facts in /proc."""

    pid: int
    type: str = "compute"
    memory_used_bytes: int | None = None
    """None = the driver does not know it (WSL2, MPS clients)."""
    mig: int | None = None
    """Position of the MIG instance on its GPU."""
    utilization_sm_percent: int = 0
    utilization_memory_percent: int = 0
    utilization_encoder_percent: int = 0
    utilization_decoder_percent: int = 0
    name: str | None = None
    """Name for NVML; None = the driver does not find the process."""
    command: tuple[str, ...] = ()
    user: str = "root"
    uid: int = 0
    started_s: float = 0.0
    """Seconds since the machine was started."""
    parent_pid: int = 1
    visible: bool = True
    """False = of another PID namespace: it has no /proc entry here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """One MIG device of a GPU."""

    index: int
    uuid: str
    name: str
    profile: str
    gpu_instance_id: int
    compute_instance_id: int = 0
    memory_total_bytes: int
    memory_used_bytes: int = 0
    memory_reserved_bytes: int = 0
    sm_count: int
    gpu_slices: int = 1
    compute_slices: int = 1
    copy_engines: int = 1
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU: identity and every reading, None where the driver has none."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str
    """The kernel's form in lower case, ``0000:1a:00.0``."""
    minor_number: int
    serial: str | None = None
    pci_device_id: int
    """Device id in the upper half, vendor 0x10de in the lower."""
    pci_subsystem_id: int = 0
    pci_class: int = 0x030200
    bound_driver: str = "nvidia"
    board_part_number: str | None = None
    board_id: int | None = None
    vbios_version: str | None = None
    inforom_image_version: str | None = None
    inforom_valid: bool | None = None
    brand: str | None = None
    architecture: str | None = None
    compute_capability: str
    sm_count: int
    core_count: int | None = None
    memory_bus_width_bits: int | None = None
    l2_bytes: int = 0
    integrated: bool | None = None
    """Without memory of its own, by CUDA."""

    memory_total_bytes: int
    memory_used_bytes: int = 0
    """Without what the driver reserves."""
    memory_reserved_bytes: int = 0
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int | None = None
    memory_limit_seen_bytes: int | None = None
    """Total of NVML's version 2 in a limited cgroup."""
    memory_limit_used_bytes: int | None = None
    """What a limited cgroup uses."""
    cuda_memory_total_bytes: int
    """The answer of cuDeviceTotalMem; by default the total less the reserve."""
    cuda_left_out: bool = False
    """CUDA does not enumerate it, though nothing hides it."""
    cuda_speed: int = 0
    """The larger, the earlier under FASTEST_FIRST."""

    utilization_gpu_percent: int | None = None
    utilization_memory_percent: int | None = None
    utilization_encoder_percent: int | None = None
    utilization_decoder_percent: int | None = None
    utilization_jpeg_percent: int | None = None
    utilization_ofa_percent: int | None = None

    temperature_c: int | None = None
    temperature_memory_c: int | None = None
    temperature_slowdown_c: int | None = None
    temperature_shutdown_c: int | None = None
    temperature_memory_max_c: int | None = None
    temperature_gpu_max_c: int | None = None
    temperature_margin_c: int | None = None
    fan_count: int | None = None
    fan_percent: int | None = None
    fan_rpm: int | None = None

    power_mw: int | None = None
    power_limit_mw: int | None = None
    power_limit_enforced_mw: int | None = None
    power_limit_default_mw: int | None = None
    power_limit_min_mw: int | None = None
    power_limit_max_mw: int | None = None
    power_source: int | None = None
    """0 mains, 1 battery, 2 undersized supply."""
    energy_mj: int | None = None

    clock_graphics_mhz: int | None = None
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    clock_video_mhz: int | None = None
    clock_graphics_max_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_memory_max_mhz: int | None = None
    clock_video_max_mhz: int | None = None
    clock_graphics_application_mhz: int | None = None
    clock_memory_application_mhz: int | None = None
    clocks_memory_supported_mhz: tuple[int, ...] | None = None
    clocks_graphics_supported_mhz: tuple[int, ...] | None = None
    clock_event_reasons: int | None = None
    clock_event_reasons_supported: int | None = None
    violation_power_ns: int | None = None
    violation_thermal_ns: int | None = None
    violation_sync_boost_ns: int | None = None
    violation_board_limit_ns: int | None = None
    violation_low_utilization_ns: int | None = None
    violation_reliability_ns: int | None = None

    performance_state: int | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    display_mode: bool | None = None
    display_active: bool | None = None
    accounting_mode: bool | None = None
    virtualization_mode: int | None = None
    """0 none, 1 pass-through, 2 vGPU guest, 3 vGPU host, 4 SR-IOV host."""
    gsp_firmware_version: str | None = None
    gsp_mode: bool | None = None

    ecc_mode: bool | None = None
    ecc_mode_pending: bool | None = None
    ecc_mode_default: bool | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    ecc_sram_corrected_volatile: int | None = None
    ecc_sram_uncorrected_volatile: int | None = None
    ecc_sram_corrected_aggregate: int | None = None
    ecc_sram_uncorrected_aggregate: int | None = None
    ecc_sram_threshold_exceeded: bool | None = None
    retired_pages_single_bit: tuple[int, ...] | None = None
    """Addresses."""
    retired_pages_double_bit: tuple[int, ...] | None = None
    retired_pages_pending: bool | None = None
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    row_remapper_histogram: tuple[int, ...] | None = None
    """Banks with max, high, partial, low and no spare rows."""
    unrepairable_memory: bool | None = None
    repair_channel_pending: bool | None = None
    repair_tpc_pending: bool | None = None
    recovery_action: int | None = None
    """0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset."""

    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    """What slot and card can do together."""
    pcie_generation_gpu_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replay_count: int | None = None
    pcie_tx_kib_per_s: int | None = None
    pcie_rx_kib_per_s: int | None = None
    numa_node: int | None = None
    cpu_affinity: str | None = None
    """A CPU list, ``0-31,64-95``."""

    nvlink_version: int | None = None
    nvlink_inactive: tuple[int, ...] = ()
    """Link numbers that are down."""
    nvlink_replay_errors: int = 0
    nvlink_recovery_errors: int = 0
    nvlink_crc_flit_errors: int = 0
    nvlink_crc_data_errors: int = 0
    fabric_state: str | None = None
    fabric_status: int = 0
    fabric_clique_id: int = 0
    fabric_health_mask: int = 0
    fabric_health_summary: int = 0

    mig_mode: bool | None = None
    mig_mode_pending: bool | None = None
    mig_max_count: int = 0
    mig: tuple[MigInstance, ...] = ()
    processes: tuple[Process, ...] = ()
    fields: Mapping[int, int] = field(default_factory=dict)
    """NVML field values by id; those that follow from another reading may be left out."""
    fields_growth: Mapping[int, int] = field(default_factory=dict)
    """The growth of a field's value with every call that reads it, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver: libraries, module and abilities."""

    version: str = "580.95.05"
    nvml_version: str = "13.580.95.05"
    cuda_version: int = 13000
    """1000 x major + 10 x minor."""
    nvml: bool = True
    """libnvidia-ml.so.1 can be loaded."""
    cuda: bool = True
    """libcuda.so.1 can be loaded."""
    module_loaded: bool = True
    uvm_loaded: bool = True
    module_version: str | None = None
    """Version of the loaded module; by default that of the libraries."""
    module_open: bool = False
    device_nodes: bool = True
    missing: tuple[str, ...] = ()
    """Symbols that the libraries do not have."""
    process_list: bool = True
    """False = the driver cannot list processes at all (WSL2)."""
    wrong_results: bool = False
    """Kernels run but compute wrong results."""
    memory_limits: str = ""
    """Who limits a cgroup's GPU memory: dmem (the kernel), misc (the driver), "" = nobody."""
    excluded_pci_bus_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The computer around the GPUs."""

    environment: str = "bare-metal"
    os: str = "Ubuntu 24.04.3 LTS"
    kernel: str = "6.8.0-71-generic"
    processor: str = "x86_64"
    numa_cpus: tuple[str, ...] = ("0-15",)
    """One CPU list for each NUMA node."""
    boot_time_s: int = 1_760_000_000
    """Seconds since 1970."""
    memory_total_kib: int = 263_856_124
    memory_available_kib: int = 209_715_200
    secure_boot: bool | None = None
    """None = the firmware does not tell."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that programs of this machine get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The PCIe path or the NVLinks between two GPUs."""

    gpus: tuple[int, int]
    kind: str
    """PIX, PXB, PHB, NODE, SYS, or NV with the number of links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """How the GPUs are connected."""

    same_node: str = "NODE"
    other_node: str = "SYS"
    nvswitch_links: int = 0
    """Links of each GPU to the switches; 0 = there are no switches."""
    paths: tuple[Connection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One NVLink as its GPU sees it."""

    number: int
    active: bool
    remote_gpu: int | None
    """NVML index; None = a switch."""
    remote_pci_bus_id: str


#: A card beside whose context there is room for a copy of 1024 x 1024 numbers, but not of 2048.
_SMALL_L2_BYTES, _SMALL_MEMORY_BYTES = 1 << 20, 575 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A whole pretended computer."""

    name: str
    description: str = ""
    driver: Driver = field(default_factory=Driver)
    host: Host = field(default_factory=Host)
    topology: Topology = field(default_factory=Topology)
    gpus: tuple[Gpu, ...] = ()
    faults: tuple[Fault, ...] = ()

    def with_gpus(self, count: int) -> "Machine":
        """Give the machine `count` GPUs: the first ones, repeated with new identities as needed."""
        if count < 0 or (count and not self.gpus):
            raise MachineError(where=self.name, problem=f"cannot be made to have {count} GPUs")
        kept = self.gpus[:count]
        gpus = [*kept] + [
            _replica(self.name, self.gpus[index % len(self.gpus)], index)
            for index in range(len(kept), count)
        ]
        paths = tuple(path for path in self.topology.paths if max(path.gpus) < count)
        topology = dataclasses.replace(self.topology, paths=paths)
        grown = dataclasses.replace(self, gpus=tuple(gpus), topology=topology)
        _check_gpus(grown, self.name)
        return grown

    def with_gpu(self, index: int, **readings: object) -> "Machine":
        """Change fields of one GPU, for instance ``temperature_c=95``."""
        unknown = set(readings) - {item.name for item in dataclasses.fields(Gpu)}
        if unknown:
            raise MachineError(where=self.name, problem=f"a GPU has no {sorted(unknown)}")
        gpu = dataclasses.replace(self.gpus[index], **readings)  # type: ignore[arg-type]
        return dataclasses.replace(self, gpus=(*self.gpus[:index], gpu, *self.gpus[index + 1 :]))

    def with_small_memories(self) -> "Machine":
        """Give each GPU a small L2, and little memory if it has no instances; nobody uses them.

        `bench` fills three times the L2 with buffers, each of which is verified, and shows a card's
        limit by the largest usual copy that fits.
        """

        def small(gpu: Gpu) -> Gpu:
            alone = dataclasses.replace(gpu, l2_bytes=_SMALL_L2_BYTES, processes=())
            if gpu.mig:
                return alone
            return dataclasses.replace(
                alone,
                memory_used_bytes=0,
                memory_total_bytes=gpu.memory_reserved_bytes + _SMALL_MEMORY_BYTES,
                cuda_memory_total_bytes=_SMALL_MEMORY_BYTES,
            )

        return dataclasses.replace(self, gpus=tuple(map(small, self.gpus)))

    def with_driver(self, **fields: object) -> "Machine":
        """Change fields of the driver, for instance ``cuda=False``."""
        driver = dataclasses.replace(self.driver, **fields)  # type: ignore[arg-type]
        return dataclasses.replace(self, driver=driver)

    def with_host(self, **fields: object) -> "Machine":
        """Change fields of the host, for instance ``secure_boot=True``."""
        host = dataclasses.replace(self.host, **fields)  # type: ignore[arg-type]
        return dataclasses.replace(self, host=host)

    def broken(
        self,
        *,
        fail: Iterable[str] = (),
        hang: Iterable[str] = (),
        missing: Iterable[str] = (),
        die: Iterable[str] = (),
    ) -> "Machine":
        """Add faults: ``fail=["nvmlDeviceGetName gpu=1 15"]``, ``hang=["cuInit"]``, symbols."""
        faults = [*self.faults]
        faults += [parse_fail(text) for text in fail]
        faults += [parse_hang(text) for text in hang]
        faults += [parse_die(text) for text in die]
        driver = dataclasses.replace(
            self.driver, missing=tuple(dict.fromkeys((*self.driver.missing, *missing)))
        )
        return dataclasses.replace(self, faults=tuple(faults), driver=driver)

    def pcie_path(self, first: int, second: int) -> str:
        """Name the PCIe path between two GPUs, whatever NVLinks there are beside it."""
        if first == second:
            return "internal"
        for path in self.topology.paths:
            if set(path.gpus) == {first, second} and path.kind in PATHS:
                return path.kind
        nodes = {self.gpus[first].numa_node, self.gpus[second].numa_node}
        return self.topology.same_node if len(nodes) == 1 else self.topology.other_node

    def nvlinks_between(self, first: int, second: int) -> int:
        """Count the active NVLinks over which two GPUs reach each other."""
        links = [link for link in self.links(first) if link.active]
        if self.topology.nvswitch_links:
            return min(len(links), sum(link.active for link in self.links(second)))
        return sum(link.remote_gpu == second for link in links)

    def connection(self, first: int, second: int) -> str:
        """Name the connection as ``nvidia-smi topo -m`` does: NV4, PIX, SYS and so on."""
        count = 0 if first == second else self.nvlinks_between(first, second)
        return f"NV{count}" if count else self.pcie_path(first, second)

    def links(self, index: int) -> tuple[Link, ...]:
        """List the NVLinks of a GPU in NVML's numbering."""
        remotes: list[int | None] = [None] * self.topology.nvswitch_links
        for path in self.topology.paths:
            if index in path.gpus and path.kind.startswith("NV"):
                other = path.gpus[1] if path.gpus[0] == index else path.gpus[0]
                remotes += [other] * int(path.kind[2:])
        return tuple(
            Link(
                number=number,
                active=number not in self.gpus[index].nvlink_inactive,
                remote_gpu=remote,
                remote_pci_bus_id=(
                    f"0000:{0x05 + number % 4:02x}:00.0"
                    if remote is None
                    else self.gpus[remote].pci_bus_id
                ),
            )
            for number, remote in enumerate(remotes)
        )


def machine_names() -> tuple[str, ...]:
    """List the names of the machine files."""
    return tuple(sorted(path.stem for path in MACHINES.glob("*.toml")))


def load_machine(name: str | Path) -> Machine:
    """Read a machine by its name (``"h100x8"``) or by the path of its file."""
    path = Path(name)
    if path.suffix != ".toml":
        path = MACHINES / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = ", ".join(machine_names())
        raise MachineError(where=str(name), problem=f"no such machine; there are {known}") from None
    return parse_machine(text, path.stem)


@functools.cache  # a machine is never changed, and eight of its GPUs take ten milliseconds
def parse_machine(text: str, name: str) -> Machine:
    """Turn the text of a machine file into a machine; `name` seeds the derived identities."""
    where = f"{name}.toml"
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MachineError(where=where, problem=f"is no TOML: {error}") from None
    known = ("description", "driver", "host", "topology", "faults", "defaults", "gpu", "process")
    _refuse_unknown(document, known, where)
    driver = _build(Driver, document.get("driver", {}), f"{where} [driver]")
    host = _build(Host, document.get("host", {}), f"{where} [host]")
    _check_choice(host.environment, ENVIRONMENTS, f"{where} [host] environment")
    gpus = _read_gpus(document, name, where)
    gpus = _with_processes(gpus, document.get("process", []), where)
    machine = Machine(
        name=name,
        description=_typed(str, document.get("description", ""), f"{where} description"),
        driver=driver,
        host=host,
        topology=_read_topology(document.get("topology", {}), len(gpus), where),
        gpus=tuple(gpus),
        faults=tuple(_read_faults(document.get("faults", []), where)),
    )
    _check_gpus(machine, where)
    return machine


def parse_fail(text: str) -> Fault:
    """Read ``FUNCTION [gpu=N] CODE [after=N]``; FUNCTION may end with ``*``."""
    fault = _parse_fault(text, code_wanted=True)
    if fault.code is None:
        raise MachineError(where=f"fail {text!r}", problem="an error code is needed")
    return fault


def parse_hang(text: str) -> Fault:
    """Read ``FUNCTION [gpu=N] [after=N]``; FUNCTION may end with ``*``."""
    return _parse_fault(text, code_wanted=False)


def parse_die(text: str) -> Fault:
    """Read ``FUNCTION [gpu=N] [after=N]`` of a call that kills its process."""
    return dataclasses.replace(_parse_fault(text, code_wanted=False), dies=True)


def cpus_of(cpu_list: str) -> tuple[int, ...]:
    """Expand a CPU list such as ``0-3,8``."""
    cpus: list[int] = []
    for part in filter(None, cpu_list.split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def derived_uuid(machine: str, what: str) -> str:
    """Make the same UUID text for the same machine and thing, every time."""
    return str(uuid.uuid5(_IDENTITY, f"{machine}/{what}"))


def _parse_fault(text: str, *, code_wanted: bool) -> Fault:
    where = f"{'fail' if code_wanted else 'hang'} {text!r}"
    match = _FAULT.fullmatch(text.strip())
    if match is None or not match["function"]:
        raise MachineError(where=where, problem="is not FUNCTION [gpu=N] [CODE] [after=N]")
    numbers: dict[str, int] = {}
    for word in match["rest"].split():
        key, _, number = word.rpartition("=")
        key = key or "code"
        known = ("gpu", "after", "code") if code_wanted else ("gpu", "after")
        if key not in known or key in numbers or not number.isdigit():
            raise MachineError(where=where, problem=f"cannot read {word!r}")
        numbers[key] = int(number)
    # A fault of nvmlInit means all three symbols that initialise.
    function = "nvmlInit*" if match["function"] == "nvmlInit" else match["function"]
    return Fault(
        function=function,
        code=numbers.get("code"),
        gpu=numbers.get("gpu"),
        after=numbers.get("after", 0),
    )


def _read_faults(lines: object, where: str) -> Iterable[Fault]:
    for line in _typed(list, lines, f"{where} faults"):
        kind, _, rest = _typed(str, line, f"{where} faults").partition(" ")
        kinds = {"fail": parse_fail, "hang": parse_hang, "die": parse_die}
        _check_choice(kind, tuple(kinds), f"{where} faults {line!r}")
        try:
            yield kinds[kind](rest)
        except MachineError as error:
            raise MachineError(where=f"{where} faults {line!r}", problem=error.problem) from None


def _read_gpus(document: Mapping[str, typing.Any], name: str, where: str) -> list[Gpu]:
    gpus: list[Gpu] = []
    defaults = _typed(dict, document.get("defaults", {}), f"{where} [defaults]")
    for position, table in enumerate(document.get("gpu", [])):
        place = f"{where} [[gpu]] {position}"
        merged = {**defaults, **_typed(dict, table, place)}
        count = _typed(int, merged.pop("count", 1), f"{place} count")
        for copy in range(count):
            given = dict(merged) if copy == 0 else _without_identity(merged)
            gpus.append(_read_gpu(given, name, len(gpus), place))
    return gpus


def _without_identity(table: Mapping[str, typing.Any]) -> dict[str, typing.Any]:
    return {
        key: value
        for key, value in table.items()
        if key not in ("uuid", "serial", "pci_bus_id", "minor_number")
    }


def _read_gpu(table: dict[str, typing.Any], machine: str, index: int, place: str) -> Gpu:
    instances = table.pop("mig", [])
    fields = _typed(dict, table.pop("fields", {}), f"{place} fields")
    values: dict[str, typing.Any] = {**_identity(machine, index), "index": index, **table}
    values.setdefault("cuda_memory_total_bytes", 0)
    gpu = _build(Gpu, values, place)
    if not gpu.cuda_memory_total_bytes:
        total = gpu.memory_total_bytes - gpu.memory_reserved_bytes
        gpu = dataclasses.replace(gpu, cuda_memory_total_bytes=total)
    mig = tuple(
        _read_instance(instance, gpu, position, machine, place)
        for position, instance in enumerate(_typed(list, instances, f"{place} mig"))
    )
    numbers = {
        int(key): _typed(int, value, f"{place} fields {key}") for key, value in fields.items()
    }
    return dataclasses.replace(gpu, mig=mig, fields=types.MappingProxyType(numbers))


def _read_instance(table: object, gpu: Gpu, position: int, machine: str, place: str) -> MigInstance:
    given = _typed(dict, table, f"{place} mig {position}")
    values = {
        "index": position,
        "uuid": "MIG-" + derived_uuid(machine, f"gpu/{gpu.index}/mig/{position}"),
        "name": f"{gpu.name} MIG {given.get('profile')}",
        **given,
    }
    return _build(MigInstance, values, f"{place} mig {position}")


def _identity(machine: str, index: int) -> dict[str, typing.Any]:
    return {
        "uuid": "GPU-" + derived_uuid(machine, f"gpu/{index}"),
        "pci_bus_id": f"{index // 16:04x}:{0x10 + index % 16 * 0x0D:02x}:00.0",
        "minor_number": index,
        "serial": f"1650{index:09d}",
    }


def _replica(machine: str, model: Gpu, index: int) -> Gpu:
    # A higher PCI domain keeps the GPUs of the file in front, with the indices they have.
    identity = _identity(machine, index)
    identity["pci_bus_id"] = f"{1 + index // 16:04x}:{0x10 + index % 16 * 0x0D:02x}:00.0"
    if model.serial is None:
        identity["serial"] = None
    mig = tuple(
        dataclasses.replace(
            instance, uuid="MIG-" + derived_uuid(machine, f"gpu/{index}/mig/{instance.index}")
        )
        for instance in model.mig
    )
    return dataclasses.replace(model, index=index, mig=mig, processes=(), **identity)


def _with_processes(gpus: list[Gpu], tables: object, where: str) -> list[Gpu]:
    per_gpu: dict[int, list[Process]] = {gpu.index: [] for gpu in gpus}
    for position, table in enumerate(_typed(list, tables, f"{where} [[process]]")):
        place = f"{where} [[process]] {position}"
        facts = dict(_typed(dict, table, place))
        for use in _typed(list, facts.pop("on", []), f"{place} on"):
            share = dict(_typed(dict, use, f"{place} on"))
            index = _typed(int, share.pop("gpu", -1), f"{place} on gpu")
            if index not in per_gpu:
                raise MachineError(where=place, problem=f"there is no GPU {index}")
            process = _build(Process, {**facts, **share}, place)
            _check_choice(process.type, PROCESS_TYPES, f"{place} type")
            if process.mig is not None and process.mig >= len(gpus[index].mig):
                raise MachineError(where=place, problem=f"GPU {index} has no MIG {process.mig}")
            per_gpu[index].append(process)
    return [dataclasses.replace(gpu, processes=tuple(per_gpu[gpu.index])) for gpu in gpus]


def _read_topology(table: object, count: int, where: str) -> Topology:
    place = f"{where} [topology]"
    given = dict(_typed(dict, table, place))
    paths = []
    for entry in _typed(list, given.pop("paths", []), f"{place} paths"):
        path = _build(Connection, _typed(dict, entry, f"{place} paths"), f"{place} paths")
        if len(set(path.gpus)) != 2 or not all(0 <= gpu < count for gpu in path.gpus):
            raise MachineError(where=place, problem=f"{path.gpus} are not two GPUs of {count}")
        if path.kind not in PATHS and not re.fullmatch(r"NV[1-9]\d?", path.kind):
            raise MachineError(where=place, problem=f"unknown kind of path {path.kind!r}")
        paths.append(path)
    topology = dataclasses.replace(_build(Topology, given, place), paths=tuple(paths))
    _check_choice(topology.same_node, tuple(PATHS), f"{place} same_node")
    _check_choice(topology.other_node, tuple(PATHS), f"{place} other_node")
    return topology


def _check_gpus(machine: Machine, where: str) -> None:
    for gpu in machine.gpus:
        place = f"{where} GPU {gpu.index}"
        _check_optional(gpu.architecture, ARCHITECTURES, f"{place} architecture")
        _check_optional(gpu.brand, BRANDS, f"{place} brand")
        _check_optional(gpu.compute_mode, COMPUTE_MODES, f"{place} compute_mode")
        _check_optional(gpu.fabric_state, FABRIC_STATES, f"{place} fabric_state")
        _check_choice(gpu.bound_driver, BOUND_DRIVERS, f"{place} bound_driver")
        if not _PCI_BUS_ID.fullmatch(gpu.pci_bus_id):
            raise MachineError(where=place, problem=f"{gpu.pci_bus_id!r} is no PCI bus id")
        if gpu.memory_used_bytes + gpu.memory_reserved_bytes > gpu.memory_total_bytes:
            raise MachineError(where=place, problem="more memory is used than there is")
        if gpu.row_remapper_histogram is not None and len(gpu.row_remapper_histogram) != 5:
            raise MachineError(where=place, problem="a row remapper histogram has five numbers")
        if gpu.mig and not gpu.mig_mode:
            raise MachineError(where=place, problem="MIG instances without mig_mode = true")
    bus_ids = [gpu.pci_bus_id for gpu in machine.gpus]
    if bus_ids != sorted(set(bus_ids)):
        raise MachineError(where=where, problem="GPUs are not in the order of their PCI bus ids")
    for what in ("uuid", "minor_number"):
        if len({getattr(gpu, what) for gpu in machine.gpus}) != len(machine.gpus):
            raise MachineError(where=where, problem=f"two GPUs have the same {what}")


def _check_choice(value: str, known: Iterable[str], where: str) -> None:
    if value not in known:
        raise MachineError(where=where, problem=f"{value!r} is none of {', '.join(known)}")


def _check_optional(value: str | None, known: Iterable[str], where: str) -> None:
    if value is not None:
        _check_choice(value, known, where)


def _refuse_unknown(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            asked = did_you_mean(key, names)
            hint = f". {asked}" if asked else ""
            raise MachineError(where=where, problem=f"unknown key {key!r}{hint}")


def _typed(kind: type[T], value: object, where: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        found = type(value).__name__
        raise MachineError(where=where, problem=f"expected {kind.__name__}, found {found}")
    return value


def _build(kind: type[T], table: object, where: str) -> T:
    """Make a dataclass from a TOML table, refusing unknown keys and wrong types."""
    given = _typed(dict, table, where)
    hints = typing.get_type_hints(kind)
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    _refuse_unknown(given, fields, where)
    values = {key: _convert(hints[key], value, f"{where} {key}") for key, value in given.items()}
    absent = [
        name
        for name, item in fields.items()
        if name not in values
        and item.default is dataclasses.MISSING
        and item.default_factory is dataclasses.MISSING
    ]
    if absent:
        raise MachineError(where=where, problem=f"{', '.join(absent)} missing")
    return kind(**values)


def _convert(hint: object, value: object, where: str) -> object:
    """Check a TOML value against a field's type; arrays become tuples, "unsupported" None."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value == UNSUPPORTED and type(None) in options:
        return None
    (wanted,) = (option for option in options if option is not type(None))
    origin = typing.get_origin(wanted) or wanted
    if origin is tuple:
        item = typing.get_args(wanted)[0]
        return tuple(_convert(item, each, where) for each in _typed(list, value, where))
    if origin is Mapping:
        table = _typed(dict, value, where)
        return types.MappingProxyType({key: str(each) for key, each in table.items()})
    if wanted is float and isinstance(value, int):
        return float(value)
    if wanted is str:
        return _with_raw_bytes(_typed(str, value, where))
    assert isinstance(wanted, type)
    return _typed(wanted, value, where)


def _with_raw_bytes(text: str) -> str:
    """Put the byte that each ``\\xNN`` names in its place."""
    if "\\x" not in text:
        return text
    parts = _RAW_BYTE.split(text)
    raw = b"".join(
        bytes.fromhex(part) if position % 2 else part.encode()
        for position, part in enumerate(parts)
    )
    return raw.decode("utf-8", "surrogateescape")
