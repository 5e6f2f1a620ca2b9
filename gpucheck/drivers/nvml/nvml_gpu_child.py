"""NVML's reading of one GPU, field by field, for the NVML child.

A separate file because Python caches it compiled, unlike nvml_child.py. Each call goes through the
binding of nvml_door_child.py, which turns errors into its `Refusal`.
"""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

#: The GPU is lost, or needs a reset: it is not read any further.
OVER = frozenset({15, 16})
NOT_OFFERED = frozenset({3, 13})
#: Source: nvml.h (NVML_VALUE_NOT_AVAILABLE), where the driver does not know a process's memory.
VALUE_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
COMPUTE_MODES = {
    0: "default",
    1: "exclusive-thread",
    2: "prohibited",
    3: "exclusive-process",
}
PERFORMANCE_STATE_UNKNOWN = 32
#: Room for the bits of 4096 CPUs, in words of 64.
AFFINITY_WORDS = 64
NO_INSTANCE = 0xFFFFFFFF


def kernel_bus_id(given: bytes | str) -> str:
    """Turn NVML's `00000000:1A:00.0` into the kernel's `0000:1a:00.0`."""
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


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


def _one(value: Any) -> tuple[Any, ...]:
    return (value,)


def _flag(value: Any) -> tuple[Any, ...]:
    return (bool(value),)


def _first_flag(value: Any) -> tuple[Any, ...]:
    return (bool(value[0]),)


def _watts(value: Any) -> tuple[Any, ...]:
    return (value / 1000,)


def _performance_state(value: Any) -> tuple[Any, ...]:
    return (None if value == PERFORMANCE_STATE_UNKNOWN else value,)


#: One row per reading: the fields it fills, the pynvml function, its arguments after the handle,
#: and the conversion of the answer. One NVML call each; nothing is read twice.
READINGS: tuple[
    tuple[tuple[str, ...], str, tuple[Any, ...], Callable[[Any], tuple[Any, ...]]], ...
] = (
    (("uuid",), "nvmlDeviceGetUUID", (), _one),
    (("name",), "nvmlDeviceGetName", (), _one),
    (("serial",), "nvmlDeviceGetSerial", (), _one),
    (
        ("pci_bus_id", "pci_device_id"),
        "nvmlDeviceGetPciInfo",
        (),
        lambda pci: (kernel_bus_id(pci.busId), f"{pci.pciDeviceId:08x}"),
    ),
    (
        ("architecture",),
        "nvmlDeviceGetArchitecture",
        (),
        lambda value: (ARCHITECTURES.get(value, f"unknown ({value})"),),
    ),
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
    (("power_w",), "nvmlDeviceGetPowerUsage", (), _watts),
    (("power_limit_w",), "nvmlDeviceGetEnforcedPowerLimit", (), _watts),
    (("clock_sm_mhz",), "nvmlDeviceGetClockInfo", (1,), _one),
    (("clock_sm_max_mhz",), "nvmlDeviceGetMaxClockInfo", (1,), _one),
    (("performance_state",), "nvmlDeviceGetPerformanceState", (), _performance_state),
    (("persistence_mode",), "nvmlDeviceGetPersistenceMode", (), _flag),
    (
        ("compute_mode",),
        "nvmlDeviceGetComputeMode",
        (),
        lambda value: (COMPUTE_MODES.get(value, f"unknown ({value})"),),
    ),
    (("ecc_mode",), "nvmlDeviceGetEccMode", (), _first_flag),
    (("pcie_generation",), "nvmlDeviceGetCurrPcieLinkGeneration", (), _one),
    (("pcie_generation_max",), "nvmlDeviceGetMaxPcieLinkGeneration", (), _one),
    (("pcie_width",), "nvmlDeviceGetCurrPcieLinkWidth", (), _one),
    (("pcie_width_max",), "nvmlDeviceGetMaxPcieLinkWidth", (), _one),
    (("mig_enabled",), "nvmlDeviceGetMigMode", (), _first_flag),
)

#: Exceptions from converting an answer of an unexpected shape.
UNREADABLE = (ValueError, TypeError, AttributeError, IndexError)

MEMORY_FIELDS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")

#: The three process lists of NVML, newest form first.
PROCESS_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)


def _list_v1(nvml: Any, function: str, handle: Any) -> list[SimpleNamespace]:
    """Read one of the process lists in its first form (nvmlProcessInfo_v1_t: pid and memory)."""
    import ctypes

    class Record(ctypes.Structure):
        _fields_ = (("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong))

    call = getattr(ctypes.CDLL("libnvidia-ml.so.1"), function, None)
    if call is None:
        raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    count = ctypes.c_uint(0)
    code = call(handle, ctypes.byref(count), None)
    records: Any = ()
    if code == nvml.NVML_ERROR_INSUFFICIENT_SIZE:
        count.value = 2 * count.value + 5  # space for processes that start meanwhile
        records = (Record * count.value)()
        code = call(handle, ctypes.byref(count), records)
    if code:
        raise nvml.NVMLError(code)
    return [
        SimpleNamespace(
            pid=each.pid,
            usedGpuMemory=None if each.used == VALUE_NOT_AVAILABLE else each.used,
        )
        for each in records[: count.value]
    ]


def _memory_forms(nvml: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Return version 2, which counts the driver's reserve apart from used memory, or version 1."""
    version_2 = getattr(nvml, "nvmlMemory_v2", None)
    newest = (("nvmlDeviceGetMemoryInfo", (version_2,)),) if version_2 else ()
    return (*newest, ("nvmlDeviceGetMemoryInfo", ()))


def first_forms(nvml: Any) -> dict[str, Callable[[Any], list[SimpleNamespace]]]:
    """Return the process lists of drivers before R450, which pynvml no longer calls."""
    return {f"{name}_v1": partial(_list_v1, nvml, name) for _, name in PROCESS_LISTS}


class GpuReader:
    """Reader of one GPU, field by field; once the GPU is lost, no further call is made for it.

    `handle` is NVML's for this GPU, or the error that ended the reading.
    """

    def __init__(self, door: Any, nvml: Any, refusal: type[Any], index: int) -> None:
        self._door = door
        self._nvml = nvml
        self._refusal = refusal
        self.document: dict[str, Any] = {"part": "gpu", "index": index}
        self.unavailable: dict[str, str] = {}
        self._over: Any = None
        self._handle: Any = None

    @property
    def handle(self) -> Any:
        """NVML's handle, or the error that ended the reading."""
        return self._over or self._handle

    def read(self, *, process_utilization: bool, sysfs: str = "") -> dict[str, Any]:
        """Return the GPU's document; a field that could not be read has its reason instead.

        `sysfs` is the kernel's folder of PCI devices. If the GPU is not there (a masked /sys), the
        driver may still know its NUMA node and CPUs.
        """
        self.open()
        for fields, function, arguments, convert in READINGS:
            self._fill(fields, partial(self._read, function, arguments, convert))
        self._fill(MEMORY_FIELDS, lambda: self._memory(self._handle))
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
                    self._fill(fields, partial(self._read, function, arguments, convert))
        self.unavailable.pop("processes", None)
        self._collect("processes", self._processes)
        return self._finish_with_instances() if first else self._finish()

    def open(self) -> None:
        """Get the handle, which every call needs."""
        try:
            self._handle = self._door.ask("nvmlDeviceGetHandleByIndex", self.document["index"])
        except self._refusal as refusal:
            self._over = refusal

    def _finish_with_instances(self) -> dict[str, Any]:
        if self.document.get("mig_enabled"):
            self._collect("mig_instances", self._mig_instances)
        return self._finish()

    def _finish(self) -> dict[str, Any]:
        self.document["unavailable"] = self.unavailable
        self.document["failure"] = self._over.document() if self._over else None
        return self.document

    def _fill(self, fields: tuple[str, ...], question: Callable[[], tuple[Any, ...]]) -> None:
        if self._over is not None:
            self._note(fields, self._over)
            return
        try:
            values = question()
        except self._refusal as refusal:
            self._note(fields, refusal)
            return
        except UNREADABLE as error:
            reason = f"the driver's answer could not be read ({type(error).__name__})"
            self.unavailable.update(dict.fromkeys(fields, reason))
            return
        self.document.update(zip(fields, values, strict=True))
        absent = [name for name, value in zip(fields, values, strict=True) if value is None]
        self.unavailable.update(dict.fromkeys(absent, "the driver does not know it"))

    def _collect(self, field: str, items: Callable[[], Iterator[dict[str, Any]]]) -> None:
        """Keep what was listed before an error; the error then marks the list as incomplete."""
        found: list[dict[str, Any]] = []
        self.document[field] = found
        if self._over is not None:
            self._note((field,), self._over)
            return
        try:
            found.extend(items())
        except self._refusal as refusal:
            self._note((field,), refusal)

    def _note(self, fields: tuple[str, ...], refusal: Any) -> None:
        self.unavailable.update(dict.fromkeys(fields, refusal.reason()))
        if refusal.code in OVER:
            self._over = refusal

    def _read(
        self, function: str, arguments: tuple[Any, ...], convert: Callable[[Any], tuple[Any, ...]]
    ) -> tuple[Any, ...]:
        return convert(self._ask(function, *arguments))

    def _ask(self, function: str, *arguments: Any) -> Any:
        return self._door.ask(function, self._handle, *arguments)

    def _memory(self, handle: Any) -> tuple[int, int, int]:
        forms = _memory_forms(self._nvml)
        memory = self._door.ask_newest("memory", forms, handle)
        if max(memory.used, memory.free) > memory.total:
            said = f"{memory.used} bytes used and {memory.free} free of {memory.total}"
            text = f"the driver reports {said}, which is impossible"
            function = "nvmlDeviceGetMemoryInfo"
            raise self._refusal(function, None, "impossible", text)
        return (memory.total, memory.used, memory.free)

    def _cpu_affinity(self) -> tuple[Any, ...]:
        cpus = _bits(self._ask("nvmlDeviceGetCpuAffinity", AFFINITY_WORDS))
        return (_as_list(cpus) or None,)

    def _numa_node(self) -> tuple[Any, ...]:
        """Return the node nearest to the GPU, not a node made of the GPU's own memory."""
        nodes = _bits(self._ask("nvmlDeviceGetMemoryAffinity", AFFINITY_WORDS, 0))
        return (nodes[0] if len(nodes) == 1 else None,)

    def _processes(self) -> Iterator[dict[str, Any]]:
        gap: Any = None
        for kind, function in PROCESS_LISTS:
            forms = tuple((f"{function}_{form}", ()) for form in ("v3", "v2", "v1"))
            try:
                listed = self._door.ask_newest(function, forms, self._handle)
            except self._refusal as refusal:
                if refusal.code in OVER:
                    raise
                # A driver may lack the other two lists. Without the first, it is unknown
                # whether there are any processes.
                if kind == "compute" or refusal.code not in NOT_OFFERED:
                    gap = gap or refusal.about(kind)
                continue
            yield from (_process_document(kind, process) for process in listed)
        if gap is not None:
            raise gap

    def _process_utilization(self) -> dict[str, int]:
        try:
            samples = self._ask("nvmlDeviceGetProcessUtilization", 0)
        except self._refusal as refusal:
            if refusal.slug == "not-found":  # NVML's code for "no sample since then"
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
            except self._refusal as refusal:
                if refusal.slug in ("not-found", "invalid-argument"):
                    continue  # slots are sparse: an empty one does not end the list
                raise
            yield self._mig_instance(handle)

    def _mig_instance(self, handle: Any) -> dict[str, Any]:
        instance: dict[str, Any] = {}
        unavailable: dict[str, str] = {}
        questions: tuple[tuple[tuple[str, ...], Callable[[], tuple[Any, ...]]], ...] = (
            (("uuid",), lambda: _one(self._door.ask("nvmlDeviceGetUUID", handle))),
            (("name",), lambda: _one(self._door.ask("nvmlDeviceGetName", handle))),
            (("memory_total_bytes", "memory_used_bytes"), lambda: self._memory(handle)[:2]),
            (
                ("gpu_instance_id",),
                lambda: _one(self._door.ask("nvmlDeviceGetGpuInstanceId", handle)),
            ),
            (
                ("compute_instance_id",),
                lambda: _one(self._door.ask("nvmlDeviceGetComputeInstanceId", handle)),
            ),
        )
        for fields, question in questions:
            try:
                instance.update(zip(fields, question(), strict=True))
            except self._refusal as refusal:
                if refusal.code in OVER:
                    raise
                unavailable.update(dict.fromkeys(fields, refusal.reason()))
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
