"""The one door to NVML, and the process behind it: a single file run by path in a child.

The driver may hang in the kernel, so no other process of ours ever calls it. The parent starts
`python -I -S nvml_child.py DIRECTORY_OF_PYNVML`, writes one request a line to standard input and
reads JSON lines from standard output; NVML is initialised once, however many requests follow.
Standard library and pynvml only: nothing of gpucheck is imported here.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from types import ModuleType, SimpleNamespace

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

#: Why NVML refused, by return code: a stable slug and what a person needs to know.
#: Source: nvml.h (nvmlReturn_t); pynvml 13 has no text of its own for 27 to 30.
REASONS: dict[int, tuple[str, str]] = {
    1: ("uninitialized", "NVML was not initialised"),
    2: ("invalid-argument", "NVML rejected the argument"),
    3: ("not-supported", "not supported by this GPU"),
    4: ("no-permission", "no permission to read it"),
    5: ("already-initialized", "NVML was already initialised"),
    6: ("not-found", "not found by NVML"),
    7: ("insufficient-size", "the answer did not fit the buffer"),
    8: ("insufficient-power", "the external power cables of the GPU are not attached"),
    9: ("driver-not-loaded", "the NVIDIA kernel module is not loaded"),
    10: ("timeout", "the driver timed out"),
    11: ("irq-issue", "the kernel found an interrupt problem with the GPU"),
    12: ("library-not-found", "libnvidia-ml.so.1 was not found"),
    13: ("function-not-found", "this driver version does not offer it"),
    14: ("corrupted-inforom", "the GPU's InfoROM is corrupted"),
    15: ("gpu-is-lost", "the GPU has fallen off the bus or is otherwise inaccessible"),
    16: ("reset-required", "the GPU needs a reset before it can be used"),
    17: ("operating-system", "the operating system blocked access to the GPU"),
    18: ("version-mismatch", "the NVML library and the loaded kernel module differ in version"),
    19: ("in-use", "the GPU is in use"),
    20: ("memory", "the driver is out of memory"),
    21: ("no-data", "the driver has no data for it"),
    22: ("vgpu-ecc-not-supported", "ECC is on and this vGPU does not allow it"),
    23: ("insufficient-resources", "the driver ran out of a resource"),
    24: ("freq-not-supported", "this frequency is not supported"),
    25: ("argument-version-mismatch", "the driver knows another version of this structure"),
    26: ("deprecated", "the driver no longer offers it"),
    27: ("not-ready", "the driver is not ready yet"),
    28: ("gpu-not-found", "no GPU was found"),
    29: ("invalid-state", "the GPU is in a state that does not allow it"),
    30: ("reset-type-not-supported", "this kind of reset is not supported"),
    999: ("unknown", "the driver reported an unknown internal error"),
}

#: The GPU is lost, or needs a reset: nothing more is asked of it.
OVER = frozenset({15, 16})
#: Codes that mean "this form of the question is not known here": the older form is then asked.
ASK_OLDER_FORM = frozenset({3, 13, 25, 26})
NOT_OFFERED = frozenset({3, 13})
#: Source: nvml.h (NVML_VALUE_NOT_AVAILABLE), for a process's memory that the driver does not tell.
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
NO_INSTANCE = 0xFFFFFFFF


class Refusal(Exception):
    """NVML did not give a value: the function, its code (None when it never reached NVML), why."""

    def __init__(self, function: str, code: int | None, slug: str, text: str) -> None:
        super().__init__(text)
        self.function = function
        self.code = code
        self.slug = slug
        self.text = text

    def reason(self) -> str:
        """Return the reason as one phrase that names the NVML code."""
        return self.text if self.code is None else f"{self.text} (NVML {self.code})"

    def of_this_form(self) -> bool:
        """Return whether an older form of the question may still be answered."""
        return self.code in ASK_OLDER_FORM or self.slug == "binding-too-old"

    def about(self, kind: str) -> Refusal:
        """Return the same refusal, of one kind of processes alone."""
        text = self.text if kind == "compute" else f"the {kind} processes: {self.text}"
        return Refusal(self.function, self.code, self.slug, text)

    def document(self) -> dict[str, Any]:
        """Return the refusal as the JSON object that the parent decodes."""
        return {
            "function": self.function,
            "library_code": self.code,
            "code": self.slug,
            "message": self.text,
        }


class Door:
    """Every call to pynvml goes through `ask`, which counts it and turns errors into `Refusal`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._form: dict[str, int] = {}
        # pynvml no longer knows the form that drivers before R450 have.
        self._own = {f"{name}_v1": partial(_list_v1, nvml, name) for _, name in PROCESS_LISTS}
        self.calls = 0
        #: By index, for questions that come every second.
        self.readers: dict[int, GpuReader] = {}

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call one pynvml function; raise `Refusal` for every way it can fail."""
        call = self._own.get(function) or getattr(self._nvml, function, None)
        if call is None:
            text = "the installed nvidia-ml-py is too old to ask for it"
            raise Refusal(function, None, "binding-too-old", text)
        self.calls += 1
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            code = int(getattr(error, "value", 999))
            slug, text = REASONS.get(code, ("unlisted", "NVML gave a code that is not known here"))
            raise Refusal(function, code, slug, text) from None
        except UnicodeDecodeError:
            raise Refusal(function, None, "not-utf8", "the driver's text is not UTF-8") from None
        except (OSError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
            text = f"the binding failed with {type(error).__name__}"
            raise Refusal(function, None, "binding-failed", text) from None

    def ask_newest(self, key: str, forms: tuple[tuple[str, tuple[Any, ...]], ...], gpu: Any) -> Any:
        """Ask the newest form of a question that this driver knows, remembered for the next GPU.

        "Not supported" is said of one GPU, so that it is not remembered.
        """
        said: Refusal | None = None
        remembered = True
        for position in range(self._form.get(key, 0), len(forms)):
            function, arguments = forms[position]
            try:
                answer = self.ask(function, gpu, *arguments)
            except Refusal as refusal:
                if not refusal.of_this_form():
                    raise
                # "There is no such function" tells the least of all.
                said = refusal if said is None or refusal.code not in (13, None) else said
                remembered = remembered and refusal.slug != "not-supported"
                continue
            if remembered:
                self._form[key] = position
            return answer
        raise said or AssertionError(key)


def kernel_bus_id(given: bytes | str) -> str:
    """Turn NVML's `00000000:1A:00.0` into the kernel's `0000:1a:00.0`."""
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


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


#: One row a reading: the fields it fills, the pynvml function, its arguments after the handle,
#: and how the answer becomes the values. One NVML call each; nothing is asked twice.
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

#: What an answer of an unexpected shape raises while it is turned into values.
UNREADABLE = (ValueError, TypeError, AttributeError, IndexError)

MEMORY_FIELDS = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")

#: The three process lists of NVML, newest form first.
PROCESS_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)


def _list_v1(nvml: Any, function: str, handle: Any) -> list[SimpleNamespace]:
    """Ask one of the process lists in its first form (nvmlProcessInfo_v1_t: pid and memory)."""
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
        count.value = 2 * count.value + 5  # room for those that start meanwhile
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
    """Version 2 tells what the driver reserves apart from what is used; version 1 adds the two."""
    version_2 = getattr(nvml, "nvmlMemory_v2", None)
    newest = (("nvmlDeviceGetMemoryInfo", (version_2,)),) if version_2 else ()
    return (*newest, ("nvmlDeviceGetMemoryInfo", ()))


class GpuReader:
    """Reads one GPU field by field; after the GPU is lost no further call is made for it.

    `handle` is NVML's for this GPU, or the refusal that ended the reading.
    """

    def __init__(self, door: Door, nvml: Any, index: int) -> None:
        self._door = door
        self._nvml = nvml
        self.document: dict[str, Any] = {"part": "gpu", "index": index}
        self.unavailable: dict[str, str] = {}
        self._over: Refusal | None = None
        self._handle: Any = None

    @property
    def handle(self) -> Any:
        """NVML's handle, or the refusal after which there is nothing more to ask."""
        return self._over or self._handle

    def read(self, *, process_utilization: bool) -> dict[str, Any]:
        """Return the GPU's document; a field that could not be read has its reason instead."""
        self._open()
        for fields, function, arguments, convert in READINGS:
            self._fill(fields, partial(self._read, function, arguments, convert))
        self._fill(MEMORY_FIELDS, lambda: self._memory(self._handle))
        self._collect("processes", self._processes)
        if process_utilization:
            self._fill(("process_utilization",), lambda: _one(self._process_utilization()))
        return self._finish_with_instances()

    def read_processes(self) -> dict[str, Any]:
        """Return who is on the GPU now; what cannot change meanwhile is read the first time."""
        first = self.handle is None
        if first:
            self._open()
            for fields, function, arguments, convert in READINGS:
                if fields[0] in ("uuid", "mig_enabled"):
                    self._fill(fields, partial(self._read, function, arguments, convert))
        self.unavailable.pop("processes", None)
        self._collect("processes", self._processes)
        return self._finish_with_instances() if first else self._finish()

    def _open(self) -> None:
        try:
            self._handle = self._door.ask("nvmlDeviceGetHandleByIndex", self.document["index"])
        except Refusal as refusal:
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
        except Refusal as refusal:
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
        """Keep what was listed before a refusal; the refusal then says that the list has a gap."""
        found: list[dict[str, Any]] = []
        self.document[field] = found
        if self._over is not None:
            self._note((field,), self._over)
            return
        try:
            found.extend(items())
        except Refusal as refusal:
            self._note((field,), refusal)

    def _note(self, fields: tuple[str, ...], refusal: Refusal) -> None:
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
        return (memory.total, memory.used, memory.free)

    def _processes(self) -> Iterator[dict[str, Any]]:
        gap: Refusal | None = None
        for kind, function in PROCESS_LISTS:
            forms = tuple((f"{function}_{form}", ()) for form in ("v3", "v2", "v1"))
            try:
                listed = self._door.ask_newest(function, forms, self._handle)
            except Refusal as refusal:
                if refusal.code in OVER:
                    raise
                # Not every driver has the other two lists. Without the first, none is not known.
                if kind == "compute" or refusal.code not in NOT_OFFERED:
                    gap = gap or refusal.about(kind)
                continue
            yield from (_process_document(kind, process) for process in listed)
        if gap is not None:
            raise gap

    def _process_utilization(self) -> dict[str, int]:
        try:
            samples = self._ask("nvmlDeviceGetProcessUtilization", 0)
        except Refusal as refusal:
            if refusal.slug == "not-found":  # NVML's word for "no sample since then"
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
            except Refusal as refusal:
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
            except Refusal as refusal:
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


def read_system(door: Door) -> dict[str, Any]:
    """Read the driver's own versions and the number of GPUs."""
    system: dict[str, Any] = {"part": "system"}
    unavailable: dict[str, str] = {}
    questions = (
        ("driver_version", "nvmlSystemGetDriverVersion"),
        ("nvml_version", "nvmlSystemGetNVMLVersion"),
        ("cuda_driver_version", "nvmlSystemGetCudaDriverVersion"),
    )
    for name, function in questions:
        try:
            system[name] = door.ask(function)
        except Refusal as refusal:
            unavailable[name] = refusal.reason()
    system["unavailable"] = unavailable
    system["gpu_count"] = door.ask("nvmlDeviceGetCount")
    return system


def answer(door: Door, nvml: Any, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the documents that answer one request; the last is `end` or `failure`."""
    try:
        if request.get("health"):
            module = _load_beside("nvml_health_child")
            yield from module.read_health(door, nvml, Refusal, request["sample_s"])
            yield {"part": "end", "nvml_calls": door.calls}
            return
        if request.get("processes_of") is not None:
            for index in request["processes_of"]:
                reader = door.readers.setdefault(index, GpuReader(door, nvml, index))
                yield reader.read_processes()
            yield {"part": "end", "nvml_calls": door.calls}
            return
        system = read_system(door)
        yield system
        handles = []
        for index in range(system["gpu_count"]):
            reader = GpuReader(door, nvml, index)
            yield reader.read(process_utilization=bool(request.get("process_utilization")))
            handles.append(reader.handle)
        if request.get("topology"):
            module = _load_beside("nvml_topology_child")
            yield module.TopologyReader(door, Refusal, kernel_bus_id, handles).read()
    except Refusal as refusal:
        yield {"part": "failure", **refusal.document()}
        return
    yield {"part": "end", "nvml_calls": door.calls}


def _load_beside(name: str) -> ModuleType:
    """Load what a plain listing does not need, and would wait for, from a file beside this one."""
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")  # noqa: PTH100, PTH118, PTH120
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _loaded_library() -> str | None:
    """Return the NVML that this process has loaded: its name carries the library's version."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            paths = (line.split(maxsplit=5)[-1].strip() for line in file)
            return next((path for path in paths if "/libnvidia-ml.so" in path), None)
    except OSError:
        return None


def _spare_ctypes_util() -> None:
    """Let pynvml import a find_library that it never calls.

    The real ctypes.util brings subprocess, tempfile and shutil along: a quarter of the time this
    process takes to start.
    """
    stand_in = ModuleType("ctypes.util")
    stand_in.find_library = lambda name: None  # type: ignore[attr-defined]
    sys.modules.setdefault("ctypes.util", stand_in)


def _open_nvml() -> tuple[Door, Any]:
    _spare_ctypes_util()
    try:
        import pynvml as nvml
    except Exception as error:  # older packages of that name do not even compile
        kind = type(error).__name__
        text = f"the Python module pynvml (package nvidia-ml-py) cannot be imported ({kind})"
        function = "import"
        raise Refusal(function, None, "binding-missing", text) from None
    door = Door(nvml)
    door.ask("nvmlInit")
    return door, nvml


def main() -> None:
    """Answer requests from standard input until it ends."""
    if sys.argv[1]:  # an empty entry would be the current directory
        sys.path.append(sys.argv[1])
    # The driver's library must not be able to write between our lines.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(document: dict[str, Any]) -> None:
        out.write(json.dumps(document) + "\n")
        out.flush()

    try:
        door, nvml = _open_nvml()
    except Refusal as refusal:
        say({"part": "system", "library_path": _loaded_library()})
        say({"part": "failure", **refusal.document()})
        return
    for line in sys.stdin:
        for document in answer(door, nvml, json.loads(line)):
            say(document)


if __name__ == "__main__":
    main()
