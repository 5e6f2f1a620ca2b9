"""NVML binding: every call, and every way in which a call can fail.

The processes that call NVML (nvml_child.py, telemetry_child.py) load it by path from their folder;
the driver may hang them for ever. Standard library and pynvml only: nothing of gpucheck is
imported.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: NVML's errors by return code: a stable slug and a text for people.
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

#: Codes that mean "this function is not known here": the older one is then called.
ASK_OLDER_FORM = frozenset({3, 13, 25, 26})


#: No card works outside this range.
COLDEST_C = -60
HOTTEST_C = 200
WHOLE_PERCENT = 100


class Refusal(Exception):
    """A value that NVML did not give: the function, its code (None if never called), the reason."""

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
        """Return whether an older function may still answer."""
        return self.code in ASK_OLDER_FORM or self.slug == "binding-too-old"

    def about(self, kind: str) -> Refusal:
        """Return the same error for one kind of processes."""
        text = self.text if kind == "compute" else f"the {kind} processes: {self.text}"
        return Refusal(self.function, self.code, self.slug, text)

    def document(self) -> dict[str, Any]:
        """Return the error as the JSON object that the parent decodes."""
        return {
            "function": self.function,
            "library_code": self.code,
            "code": self.slug,
            "message": self.text,
        }


def refusal_of(function: str, code: int) -> Refusal:
    """Return the error for a return code of NVML."""
    slug, text = REASONS.get(code, ("unlisted", "NVML returned an unknown code"))
    return Refusal(function, code, slug, text)


def impossible(function: str, said: str) -> Refusal:
    """Return the error for an impossible answer."""
    text = f"the driver reports {said}, which is impossible"
    return Refusal(function, None, "impossible", text)


def celsius(value: int, function: str) -> int:
    """Return a temperature, which NVML gives as an unsigned number although it may be negative.

    Raises:
        Refusal: no card works at this temperature.
    """
    signed = value - (1 << 32) if value >= 1 << 31 else value
    if not COLDEST_C <= signed <= HOTTEST_C:
        raise impossible(function, f"{signed} C")
    return signed


def rates(found: Any, function: str) -> Any:
    """Return the utilization of a GPU and of its memory.

    Raises:
        Refusal: more than 100 %.
    """
    most = max(found.gpu, found.memory)
    if most > WHOLE_PERCENT:
        raise impossible(function, f"{most} %")
    return found


#: Answers that are checked for plausibility.
CHECKED: dict[str, Callable[[Any, str], Any]] = {
    "nvmlDeviceGetTemperature": celsius,
    "nvmlDeviceGetTemperatureThreshold": celsius,
    "nvmlDeviceGetMarginTemperature": celsius,
    "nvmlDeviceGetUtilizationRates": rates,
}


class Door:
    """Binding whose `ask` makes every call of pynvml, counts it and turns errors into `Refusal`."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._form: dict[str, int] = {}
        #: Functions that pynvml no longer offers, by their names for `ask`.
        self.added: dict[str, Callable[..., Any]] = {}
        self.calls = 0

    #: For what is not asked by a function of its own.
    refusal = staticmethod(refusal_of)
    celsius = staticmethod(celsius)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call one pynvml function; raise `Refusal` for any failure."""
        call = self.added.get(function) or getattr(self._nvml, function, None)
        if call is None:
            text = "the installed nvidia-ml-py is too old to ask for it"
            raise Refusal(function, None, "binding-too-old", text)
        self.calls += 1
        try:
            answer = call(*arguments)
            check = CHECKED.get(function)
            return answer if check is None else check(answer, function)
        except self._nvml.NVMLError as error:
            raise refusal_of(function, int(getattr(error, "value", 999))) from None
        except UnicodeDecodeError:
            raise Refusal(function, None, "not-utf8", "the driver's text is not UTF-8") from None
        except (OSError, ValueError, TypeError, ArithmeticError, AttributeError) as error:
            text = f"the binding failed with {type(error).__name__}"
            raise Refusal(function, None, "binding-failed", text) from None

    def ask_newest(self, key: str, forms: tuple[tuple[str, tuple[Any, ...]], ...], gpu: Any) -> Any:
        """Call the newest of these functions that the driver knows, remembered for the next GPU.

        "Not supported" is about one GPU, so it is not remembered.
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
                # "No such function" is the least informative error.
                said = refusal if said is None or refusal.code not in (13, None) else said
                remembered = remembered and refusal.slug != "not-supported"
                continue
            if remembered:
                self._form[key] = position
            return answer
        raise said or AssertionError(key)


def loaded_library() -> str | None:
    """Return the path of the loaded NVML, whose file name contains the library's version."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            paths = (line.split(maxsplit=5)[-1].strip() for line in file)
            return next((path for path in paths if "/libnvidia-ml.so" in path), None)
    except OSError:
        return None


def _spare_ctypes_util() -> None:
    """Give pynvml a stub of find_library, which it imports but never calls.

    The real ctypes.util imports subprocess, tempfile and shutil: a quarter of this process's
    start-up time.
    """
    stand_in = ModuleType("ctypes.util")
    stand_in.find_library = lambda name: None  # type: ignore[attr-defined]
    sys.modules.setdefault("ctypes.util", stand_in)


def open_nvml() -> tuple[Door, Any]:
    """Import pynvml and initialise NVML; return the binding and pynvml.

    Raises:
        Refusal: either of them failed.
    """
    _spare_ctypes_util()
    try:
        import pynvml as nvml
    except Exception as error:  # some older packages of that name do not even compile
        kind = type(error).__name__
        text = f"the Python module pynvml (package nvidia-ml-py) cannot be imported ({kind})"
        function = "import"
        raise Refusal(function, None, "binding-missing", text) from None
    door = Door(nvml)
    door.ask("nvmlInit")
    return door, nvml
