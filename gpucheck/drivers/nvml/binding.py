"""NVML binding: every call, and every way in which a call can fail.

Only the child processes that call NVML import it (worker.py, sensor_worker.py); the driver may hang
them for ever. It needs the standard library and pynvml only.
"""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType, SimpleNamespace

from gpucheck.drivers.native import BINDING_TOO_OLD, NOT_SUPPORTED, DriverError

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: NVML's errors by return code: a stable slug and a text for people.
#: Source: nvml.h (nvmlReturn_t); pynvml 13 has no text of its own for 27 to 30.
REASONS: dict[int, tuple[str, str]] = {
    1: ("uninitialized", "NVML was not initialised"),
    2: ("invalid-argument", "NVML rejected the argument"),
    3: ("not-supported", NOT_SUPPORTED),
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

#: Codes that mean "this function is not known here": the older one is then called.
ASK_OLDER_FORM = frozenset({3, 13, 25, 26})
#: The codes of a GPU that is lost or needs a reset.
OVER = frozenset({15, 16})
#: The codes of a link that the GPU does not have: invalid argument, or not offered.
NO_SUCH_LINK = frozenset({2, 3, 13})
#: More links than any GPU has; the driver rejects the first that does not exist.
MOST_LINKS = 64
#: The three process lists of NVML, newest form first.
PROCESS_LISTS = (
    ("compute", "nvmlDeviceGetComputeRunningProcesses"),
    ("graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ("mps", "nvmlDeviceGetMPSComputeRunningProcesses"),
)
#: Source: nvml.h (NVML_VALUE_NOT_AVAILABLE), where the driver does not know a process's memory.
VALUE_NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF

#: T.Limit of Ada and later: how far below a margin of 0 the limit lies. Source: nvml.h
#: (NVML_FI_DEV_TEMPERATURE_*_TLIMIT). That of the memory is a margin of the GPU's, too: no limit in
#: degrees follows from it.
SLOWDOWN_DISTANCE, GPU_MAX_DISTANCE = 194, 196

#: No card works outside this range.
COLDEST_C = -60
HOTTEST_C = 200
#: No card has a limit below this one.
LOWEST_LIMIT_C = 50
WHOLE_PERCENT = 100


class NvmlError(DriverError):
    """A value that NVML did not give."""

    def reason(self) -> str:
        """Return the reason as one phrase that names the NVML code."""
        return self.text if self.code is None else f"{self.text} (NVML error {self.code})"

    def may_answer_older(self) -> bool:
        """Return whether an older function may still answer."""
        return self.code in ASK_OLDER_FORM or self.slug == "binding-too-old"

    def about(self, kind: str) -> NvmlError:
        """Return the error with the kind of processes that it is about."""
        text = self.text if kind == "compute" else f"the {kind} processes: {self.text}"
        return NvmlError(self.function, self.code, self.slug, text)


def error_of(function: str, code: int) -> NvmlError:
    """Return the error for a return code of NVML."""
    slug, text = REASONS.get(code, ("unlisted", "NVML returned an unknown code"))
    return NvmlError(function, code, slug, text)


def too_old(function: str) -> NvmlError:
    """Return the error for what the installed pynvml does not have."""
    return NvmlError(function, None, "binding-too-old", BINDING_TOO_OLD)


def impossible(function: str, reported: str) -> NvmlError:
    """Return the error for an impossible answer."""
    text = f"the driver reports {reported}, which is impossible"
    return NvmlError(function, None, "impossible", text)


def celsius(value: int, function: str) -> int:
    """Return a temperature, which NVML gives as an unsigned number although it may be negative.

    Raises:
        NvmlError: no card works at this temperature.
    """
    signed = value - (1 << 32) if value >= 1 << 31 else value
    if not COLDEST_C <= signed <= HOTTEST_C:
        raise impossible(function, f"{signed} C")
    return signed


def limit_celsius(value: int, function: str) -> int:
    """Return a temperature limit.

    Raises:
        NvmlError: no card has such a limit; a driver that knows none may answer 0.
    """
    limit = celsius(value, function)
    if limit < LOWEST_LIMIT_C:
        raise impossible(function, f"a limit of {limit} C")
    return limit


def rates(answer: Any, function: str) -> Any:
    """Return the utilization of a GPU and of its memory.

    Raises:
        NvmlError: more than 100 %.
    """
    most = max(answer.gpu, answer.memory)
    if most > WHOLE_PERCENT:
        raise impossible(function, f"{most} %")
    return answer


#: Answers that are checked for plausibility.
CHECKED: dict[str, Callable[[Any, str], Any]] = {
    "nvmlDeviceGetTemperature": celsius,
    "nvmlDeviceGetTemperatureThreshold": limit_celsius,
    "nvmlDeviceGetMarginTemperature": celsius,
    "nvmlDeviceGetUtilizationRates": rates,
}


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
            pid=record.pid,
            usedGpuMemory=None if record.used == VALUE_NOT_AVAILABLE else record.used,
        )
        for record in records[: count.value]
    ]


def kernel_bus_id(given: bytes | str) -> str:
    """Turn NVML's `00000000:1A:00.0` into the kernel's `0000:1a:00.0`."""
    text = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    domain, _, rest = text.partition(":")
    return f"{int(domain, 16):04x}:{rest.lower()}"


def field_value(field: Any) -> int:
    """Return a value of nvmlDeviceGetFieldValues by its type. Source: nvml.h (nvmlValueType_t)."""
    value = field.value
    kinds = (value.dVal, value.uiVal, value.ulVal, value.ullVal, value.sllVal, value.siVal)
    return int(kinds[field.valueType]) if 0 <= field.valueType < len(kinds) else int(value.ullVal)


class Binding:
    """Binding whose `ask` makes every call of pynvml, counts it and raises `NvmlError`."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self._form: dict[str, int] = {}
        #: The process lists of drivers before R450, which pynvml no longer calls.
        self._added = {f"{name}_v1": partial(_list_v1, nvml, name) for _, name in PROCESS_LISTS}
        self.calls = 0

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call one pynvml function; raise `NvmlError` for any failure."""
        call = self._added.get(function) or getattr(self.nvml, function, None)
        if call is None:
            raise too_old(function)
        self.calls += 1
        try:
            answer = call(*arguments)
            check = CHECKED.get(function)
            return answer if check is None else check(answer, function)
        except self.nvml.NVMLError as error:
            raise error_of(function, int(getattr(error, "value", 999))) from None
        except UnicodeDecodeError:
            raise NvmlError(function, None, "not-utf8", "the driver's text is not UTF-8") from None
        except (OSError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
            text = f"the binding failed with {type(error).__name__}"
            raise NvmlError(function, None, "binding-failed", text) from None

    def structure(self, name: str) -> Any:
        """Return a structure of pynvml for a function to fill; older versions have fewer."""
        make = getattr(self.nvml, name, None)
        if make is None:
            raise too_old(name)
        return make()

    def confidential_computing(self) -> bool:
        """Return whether what crosses the links of the machine's GPUs is encrypted."""
        return bool(self.ask("nvmlSystemGetConfComputeState").ccFeature)

    def ask_newest(self, key: str, forms: tuple[tuple[str, tuple[Any, ...]], ...], gpu: Any) -> Any:
        """Call the newest of these functions that the driver knows, remembered for the next GPU.

        "Not supported" is about one GPU, so it is not remembered.
        """
        refusal: NvmlError | None = None
        remembered = True
        for position in range(self._form.get(key, 0), len(forms)):
            function, arguments = forms[position]
            try:
                answer = self.ask(function, gpu, *arguments)
            except NvmlError as error:
                if not error.may_answer_older():
                    raise
                # "No such function" is the least informative error.
                refusal = error if refusal is None or error.code not in (13, None) else refusal
                remembered = remembered and error.slug != "not-supported"
                continue
            if remembered:
                self._form[key] = position
            return answer
        raise refusal or AssertionError(key)


def temperature_limit(binding: Binding, gpu: Any, threshold: int, distance: int) -> int:
    """Return a temperature limit: the card's threshold, else from its present margin.

    The thresholds are deprecated from Ada on, where NVML counts from the margin instead.

    Raises:
        NvmlError: there is neither.
    """
    function, fields = "nvmlDeviceGetTemperatureThreshold", "nvmlDeviceGetFieldValues"
    try:
        return int(binding.ask(function, gpu, threshold))
    except NvmlError as refusal:
        if refusal.code in OVER:
            raise
        try:
            (field,) = binding.ask(fields, gpu, [distance])
            if field.nvmlReturn != 0:
                raise refusal
            offset = celsius(field_value(field), fields)
            margin = binding.ask("nvmlDeviceGetMarginTemperature", gpu)
            limit = binding.ask("nvmlDeviceGetTemperature", gpu, 0) + margin - offset
            return limit_celsius(limit, function)
        except NvmlError:
            raise refusal from None


def _spare_ctypes_util() -> None:
    """Give pynvml a stub of find_library, which it imports but never calls.

    The real ctypes.util imports subprocess, tempfile and shutil: a quarter of this process's
    start-up time.
    """
    stand_in = ModuleType("ctypes.util")
    stand_in.find_library = lambda name: None  # type: ignore[attr-defined]
    sys.modules.setdefault("ctypes.util", stand_in)


def open_nvml() -> Binding:
    """Import pynvml, initialise NVML and return the binding.

    Raises:
        NvmlError: either of them failed.
    """
    _spare_ctypes_util()
    try:
        import pynvml
    except Exception as error:  # some older packages of that name do not even compile
        kind = type(error).__name__
        text = f"the Python module pynvml (package nvidia-ml-py) cannot be imported ({kind})"
        function = "import"
        raise NvmlError(function, None, "binding-missing", text) from None
    binding = Binding(pynvml)
    try:
        binding.ask("nvmlInit")
    except NvmlError as error:
        raise _named_by_loader(error) from None
    return binding


def _named_by_loader(error: NvmlError) -> NvmlError:
    """Return why the library was not found: pynvml says the same if it cannot be loaded."""
    if error.slug != "library-not-found":
        return error
    import ctypes

    name = "libnvidia-ml.so.1"
    try:
        ctypes.CDLL(name)
    except OSError as refusal:
        if not str(refusal).startswith(f"{name}: cannot open shared object file: No such file"):
            text = f"{name} cannot be loaded: {refusal}"
            return NvmlError(error.function, error.code, error.slug, text)
    return error
