"""NVML's reading of one GPU, each field a value or a reason; and a cgroup's limits on it."""

from __future__ import annotations

import os
from functools import partial

from gpucheck.drivers.nvml.binding import OVER, PROCESS_LISTS, NvmlError, impossible, kernel_bus_id

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from gpucheck.drivers.nvml.binding import Binding

    Values = tuple[Any, ...]
    Convert = Callable[[Any], Values]
    Question = Callable[[], Values]

#: Exceptions from converting an answer of an unexpected shape.
UNREADABLE = (ValueError, TypeError, AttributeError, IndexError)
NOT_OFFERED = frozenset({3, 13})
#: Answers to the question for a cgroup's limit that mean: it has none.
NO_LIMIT = frozenset({3, 6, 13})

ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada",
    9: "Hopper", 10: "Blackwell", 13: "Rubin",
}  # fmt: skip
COMPUTE_MODES = {
    0: "default", 1: "exclusive-thread", 2: "prohibited", 3: "exclusive-process",
}  # fmt: skip
VIRTUALIZATION_MODES = {
    0: "none", 1: "pass-through", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga",
}  # fmt: skip
PERFORMANCE_STATE_UNKNOWN = 32
#: Room for the bits of 4096 CPUs, in words of 64.
AFFINITY_WORDS = 64
NO_INSTANCE = 0xFFFFFFFF


def _one(value: Any) -> Values:
    return (value,)


def flag(value: Any) -> Values:
    """Return a number of NVML as true or false."""
    return (bool(value),)


def _first_flag(value: Any) -> Values:
    return (bool(value[0]),)


def watts(value: Any) -> Values:
    """Return NVML's milliwatts in watts."""
    return (value / 1000,)


def _name_in(names: dict[int, str]) -> Convert:
    return lambda value: (names.get(value, f"unknown ({value})"),)


def _performance_state(value: Any) -> Values:
    return (None if value == PERFORMANCE_STATE_UNKNOWN else value,)


class FieldReader:
    """Reader of one GPU; once the GPU is lost, no further call is made for it."""

    def __init__(self, binding: Binding, part: str, index: int) -> None:
        self._binding = binding
        self._handle: Any = None
        self._over: NvmlError | None = None
        self.document: dict[str, Any] = {"part": part, "index": index}
        self.unavailable: dict[str, str] = {}

    def open(self) -> None:
        """Get the handle, which every call needs."""
        try:
            self._handle = self._binding.ask("nvmlDeviceGetHandleByIndex", self.document["index"])
        except NvmlError as error:
            self._over = error

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._binding.ask(function, self._handle, *arguments)

    def _question(self, function: str, *arguments: Any, convert: Convert = _one) -> Question:
        """Return the question for what one call answers, converted."""
        return lambda: convert(self._ask(function, *arguments))

    def _fill(self, fields: tuple[str, ...], question: Question) -> None:
        """Set these fields to the answer's values, or note why they have none."""
        if self._over is not None:
            self._note(fields, self._over)
            return
        try:
            values = question()
        except NvmlError as error:
            self._note(fields, error)
            return
        except UNREADABLE as error:
            self.unavailable.update(dict.fromkeys(fields, unreadable(error)))
            return
        for name, value in zip(fields, values, strict=True):
            self.document[name] = value
            if value is None:
                self.unavailable[name] = self._why_null(name)

    def _why_null(self, name: str) -> str:
        return "the driver does not know it"

    def _note(self, fields: tuple[str, ...], error: NvmlError) -> None:
        self.unavailable.update(dict.fromkeys(fields, error.reason()))
        if error.code in OVER:
            self._over = self._over or error

    def finish(self) -> dict[str, Any]:
        """Return the GPU's document."""
        self.document["unavailable"] = self.unavailable
        self.document["failure"] = self._over.document() if self._over else None
        return self.document


def unreadable(error: Exception) -> str:
    """Return the reason for an answer of an unexpected shape."""
    return f"the driver's answer could not be read ({type(error).__name__})"


def _bits(words: Any) -> list[int]:
    """Return the positions of the set bits in 64-bit words."""
    return [
        64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1
    ]


def _as_list(numbers: list[int]) -> str:
    """Return ascending numbers in the kernel's list form, such as `0-55,112-167`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


#: One row per reading: the fields it fills, the pynvml function, its arguments after the handle,
#: and the conversion of the answer. One NVML call each; nothing is read twice.
READINGS: tuple[tuple[tuple[str, ...], str, tuple[Any, ...], Convert], ...] = (
    (("uuid",), "nvmlDeviceGetUUID", (), _one),
    (("name",), "nvmlDeviceGetName", (), _one),
    (("serial",), "nvmlDeviceGetSerial", (), _one),
    (
        ("pci_bus_id", "pci_device_id"),
        "nvmlDeviceGetPciInfo",
        (),
        lambda pci: (kernel_bus_id(pci.busId), f"{pci.pciDeviceId:08x}"),
    ),
    (("architecture",), "nvmlDeviceGetArchitecture", (), _name_in(ARCHITECTURES)),
    (
        ("compute_capability",),
        "nvmlDeviceGetCudaComputeCapability",
        (),
        lambda pair: (f"{pair[0]}.{pair[1]}",),
    ),
    (
        ("utilization_gpu_percent", "utilization_memory_percent"),
        "nvmlDeviceGetUtilizationRates",
        (),
        lambda rates: (rates.gpu, rates.memory),
    ),
    (("temperature_c",), "nvmlDeviceGetTemperature", (0,), _one),
    (("fan_percent",), "nvmlDeviceGetFanSpeed", (), _one),
    (("power_w",), "nvmlDeviceGetPowerUsage", (), watts),
    (("power_limit_w",), "nvmlDeviceGetEnforcedPowerLimit", (), watts),
    (("clock_sm_mhz",), "nvmlDeviceGetClockInfo", (1,), _one),
    (("clock_sm_max_mhz",), "nvmlDeviceGetMaxClockInfo", (1,), _one),
    (("performance_state",), "nvmlDeviceGetPerformanceState", (), _performance_state),
    (("persistence_mode",), "nvmlDeviceGetPersistenceMode", (), flag),
    (("compute_mode",), "nvmlDeviceGetComputeMode", (), _name_in(COMPUTE_MODES)),
    (("virtualization",), "nvmlDeviceGetVirtualizationMode", (), _name_in(VIRTUALIZATION_MODES)),
    (("ecc_mode",), "nvmlDeviceGetEccMode", (), _first_flag),
    (("pcie_generation",), "nvmlDeviceGetCurrPcieLinkGeneration", (), _one),
    (("pcie_generation_max",), "nvmlDeviceGetMaxPcieLinkGeneration", (), _one),
    (("pcie_width",), "nvmlDeviceGetCurrPcieLinkWidth", (), _one),
    (("pcie_width_max",), "nvmlDeviceGetMaxPcieLinkWidth", (), _one),
    (("mig_enabled",), "nvmlDeviceGetMigMode", (), _first_flag),
)

MEMORY_FIELDS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")


def _memory_forms(nvml: Any, *, whole_card: bool) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Return version 2, which counts the driver's reserve apart from used memory, or version 1.

    Version 2 answers for the caller's cgroup where that has a limit; `whole_card` leaves it out.
    Source: NVML's change log, v615, which names version 2 alone.
    """
    version_2 = None if whole_card else getattr(nvml, "nvmlMemory_v2", None)
    newest = (("nvmlDeviceGetMemoryInfo", (version_2,)),) if version_2 else ()
    return (*newest, ("nvmlDeviceGetMemoryInfo", ()))


class GpuReader(FieldReader):
    """Reader of everything that a listing shows of one GPU."""

    def __init__(self, binding: Binding, index: int) -> None:
        super().__init__(binding, "gpu", index)

    @property
    def handle(self) -> Any:
        """NVML's handle, or the error that ended the reading."""
        return self._over or self._handle

    def read(
        self,
        *,
        process_utilization: bool,
        sysfs: str = "",
        whole_card: bool = False,
        limits_of: str = "",
    ) -> dict[str, Any]:
        """Return the GPU's document; a field that could not be read has its reason instead.

        `sysfs` is the kernel's folder of PCI devices. If the GPU is not there (a masked /sys), the
        driver may still know its NUMA node and CPUs. `limits_of` is the folder of our cgroup, if
        only NVML knows its limits; `whole_card` tells that it has one.
        """
        self.open()
        for fields, function, arguments, convert in READINGS:
            self._fill(fields, self._question(function, *arguments, convert=convert))
        if limits_of:
            whole_card |= self._read_limit(limits_of)
        self._fill(MEMORY_FIELDS, lambda: self._memory(self._handle, whole_card=whole_card))
        if sysfs and not os.path.isdir(f"{sysfs}/{self.document.get('pci_bus_id')}"):  # noqa: PTH112 - pathlib is slow to import
            self._fill(("cpu_affinity",), self._cpu_affinity)
            self._fill(("numa_node",), self._numa_node)
        self._collect("processes", self._processes)
        if process_utilization:
            self._fill(("process_utilization",), lambda: _one(self._process_utilization()))
        return self._finish_with_instances()

    def read_processes(self) -> dict[str, Any]:
        """Return the GPU's processes; what cannot change is read only the first time."""
        first = self.handle is None
        if first:
            self.open()
            for fields, function, arguments, convert in READINGS:
                if fields[0] in ("uuid", "mig_enabled"):
                    self._fill(fields, self._question(function, *arguments, convert=convert))
        self.unavailable.pop("processes", None)
        self._collect("processes", self._processes)
        return self._finish_with_instances() if first else self.finish()

    def _finish_with_instances(self) -> dict[str, Any]:
        if self.document.get("mig_enabled"):
            self._collect("mig_instances", self._mig_instances)
        return self.finish()

    def _collect(self, field: str, items: Callable[[], Iterator[dict[str, Any]]]) -> None:
        """Keep what was listed before an error; the error then marks the list as incomplete."""
        instances: list[dict[str, Any]] = []
        self.document[field] = instances
        if self._over is not None:
            self._note((field,), self._over)
            return
        try:
            instances.extend(items())
        except NvmlError as error:
            self._note((field,), error)

    def _read_limit(self, group: str) -> bool:
        """Read the limit of a cgroup, and return whether it has one."""
        if self._over is not None:
            return False
        try:
            _, hard, used = get_limits(self._binding, self._handle, group)
        except NvmlError as error:
            # Without a limit NVML answers "not found" or "not supported".
            if error.code not in NO_LIMIT and error.slug != "binding-too-old":
                self._note(("memory_limit_bytes",), error)
            return False
        if hard is None:
            return False
        names = ("memory_limit_bytes", "memory_limit_used_bytes", "memory_limit_source")
        self.document.update(zip(names, (hard, used, "nvml"), strict=True))
        return True

    def _memory(self, handle: Any, *, whole_card: bool = False) -> tuple[int, int, int]:
        forms = _memory_forms(self._binding.nvml, whole_card=whole_card)
        key = "memory of the card" if whole_card else "memory"
        memory = self._binding.ask_newest(key, forms, handle)
        if max(memory.used, memory.free) > memory.total:
            reported = f"{memory.used} bytes used and {memory.free} free of {memory.total}"
            function = "nvmlDeviceGetMemoryInfo"
            raise impossible(function, reported)
        return (memory.total, memory.used, memory.free)

    def _cpu_affinity(self) -> Values:
        cpus = _bits(self._ask("nvmlDeviceGetCpuAffinity", AFFINITY_WORDS))
        return (_as_list(cpus) or None,)

    def _numa_node(self) -> Values:
        """Return the node nearest to the GPU, not a node made of the GPU's own memory."""
        nodes = _bits(self._ask("nvmlDeviceGetMemoryAffinity", AFFINITY_WORDS, 0))
        return (nodes[0] if len(nodes) == 1 else None,)

    def _processes(self) -> Iterator[dict[str, Any]]:
        gap: NvmlError | None = None
        for kind, function in PROCESS_LISTS:
            forms = tuple((f"{function}_{form}", ()) for form in ("v3", "v2", "v1"))
            try:
                listed = self._binding.ask_newest(function, forms, self._handle)
            except NvmlError as error:
                if error.code in OVER:
                    raise
                # A driver may lack the other two lists. Without the first, it is unknown
                # whether there are any processes.
                if kind == "compute" or error.code not in NOT_OFFERED:
                    gap = gap or error.about(kind)
                continue
            yield from (_process_document(kind, process) for process in listed)
        if gap is not None:
            raise gap

    def _process_utilization(self) -> dict[str, int]:
        try:
            samples = self._ask("nvmlDeviceGetProcessUtilization", 0)
        except NvmlError as error:
            if error.slug == "not-found":  # NVML's code for "no sample since then"
                return {}
            raise
        newest: dict[str, tuple[int, int]] = {}
        for sample in samples:
            pid = str(sample.pid)
            newest[pid] = max(newest.get(pid, (-1, 0)), (sample.timeStamp, sample.smUtil))
        return {pid: utilization for pid, (_, utilization) in newest.items()}

    def _mig_instances(self) -> Iterator[dict[str, Any]]:
        for slot in range(self._ask("nvmlDeviceGetMaxMigDeviceCount")):
            try:
                handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", slot)
            except NvmlError as error:
                if error.slug in ("not-found", "invalid-argument"):
                    continue  # slots are sparse: an empty one does not end the list
                raise
            yield self._mig_instance(handle)

    def _mig_instance(self, handle: Any) -> dict[str, Any]:
        instance: dict[str, Any] = {}
        unavailable: dict[str, str] = {}

        def ask(function: str) -> Values:
            return (self._binding.ask(function, handle),)

        questions: tuple[tuple[tuple[str, ...], Question], ...] = (
            (("uuid",), partial(ask, "nvmlDeviceGetUUID")),
            (("name",), partial(ask, "nvmlDeviceGetName")),
            (MEMORY_FIELDS[:2], lambda: self._memory(handle)[:2]),
            (("gpu_instance_id",), partial(ask, "nvmlDeviceGetGpuInstanceId")),
            (("compute_instance_id",), partial(ask, "nvmlDeviceGetComputeInstanceId")),
        )
        for fields, question in questions:
            try:
                instance.update(zip(fields, question(), strict=True))
            except NvmlError as error:
                if error.code in OVER:
                    raise
                unavailable.update(dict.fromkeys(fields, error.reason()))
        instance["unavailable"] = unavailable
        return instance


def _process_document(kind: str, process: Any) -> dict[str, Any]:
    gpu_instance = getattr(process, "gpuInstanceId", None)
    compute_instance = getattr(process, "computeInstanceId", None)
    return {
        "pid": process.pid,
        "type": kind,
        "memory_used_bytes": process.usedGpuMemory,
        "gpu_instance_id": None if gpu_instance == NO_INSTANCE else gpu_instance,
        "compute_instance_id": None if compute_instance == NO_INSTANCE else compute_instance,
    }


# ------------------------------------------------------------------------ memory limits of a cgroup

# Source: nvml.h of R615 (nvmlDeviceSetMemoryLimits_v1, nvmlDeviceGetMemoryLimits_v1). Only root may
# set a limit; anybody may read it. GPUs in MIG mode have none.

#: Source: nvml.h (NVML_DEVICE_MEMORY_LIMIT_MAX): no limit.
UNLIMITED = 0xFFFFFFFFFFFFFFFF


def _structure(binding: Binding, kind: str, group: str) -> Any:
    """Return pynvml's structure of this kind for a group's folder.

    Raises:
        NvmlError: this nvidia-ml-py is older than the functions.
    """
    limits = binding.structure(f"c_nvml{kind}MemoryLimits_v1_t")
    limits.nameSpace = group.encode("utf-8", "surrogateescape")
    return limits


def get_limits(binding: Binding, handle: Any, group: str) -> tuple[int | None, int | None, int]:
    """Return a group's soft and hard limit on one GPU (None: no limit), and its use, in bytes.

    Raises:
        NvmlError: NVML gave no answer; "not found" and "not supported" may mean that none is set.
    """
    limits = _structure(binding, "Get", group)
    binding.ask("nvmlDeviceGetMemoryLimits_v1", handle, limits)
    hard = None if limits.hardLimit == UNLIMITED else int(limits.hardLimit)
    return int(limits.softLimit) or None, hard, int(limits.currentUsed)


def set_limits(
    binding: Binding, handle: Any, group: str, soft: int | None, hard: int | None
) -> None:
    """Set a group's limits on one GPU in bytes; None clears a limit.

    Raises:
        NvmlError: NVML refuses them.
    """
    limits = _structure(binding, "Set", group)
    limits.softLimit = soft or 0
    limits.hardLimit = UNLIMITED if hard is None else hard
    binding.ask("nvmlDeviceSetMemoryLimits_v1", handle, limits)


def answer_limits(binding: Binding, request: dict[str, Any], handles: dict[str, Any]) -> list[Any]:
    """Return one document for each GPU (by UUID) whose limits a request sets or reads.

    `handles` keeps NVML's handles between requests, which come every second.
    """
    documents = []
    for uuid, wanted in request["gpus"].items():
        document: dict[str, Any] = {"part": "limit", "uuid": uuid}
        try:
            if uuid not in handles:
                handles[uuid] = binding.ask("nvmlDeviceGetHandleByUUID", uuid)
            if request["set"]:
                set_limits(binding, handles[uuid], request["group"], *wanted)
            else:
                soft, hard, used = get_limits(binding, handles[uuid], request["group"])
                document |= {"soft_bytes": soft, "hard_bytes": hard, "used_bytes": used}
        except NvmlError as error:
            document["failure"] = error.document()
        documents.append(document)
    return documents
