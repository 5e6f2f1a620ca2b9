"""Parser for device strings: `/gpu:0`, `cuda:1`, `cuda0`, `0` or a UUID.

TensorFlow's grammar as version 2.21 parses it: type names in any case, keywords (`job`,
`replica`, `task`, `device`) in lower case. Also PyTorch's `cuda:1`, Theano's `cuda0` and
`gpu,0`, the plain index of CuPy and JAX, and the UUIDs of NVIDIA's driver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import quoted, shown

#: Types that TensorFlow knows by their bare name; any other needs the long form `/device:TYPE:N`.
SHORT_TYPES = ("CPU", "GPU", "TPU", "CUSTOM")

#: No device string needs more.
_LONGEST_TEXT = 1000

_PYTORCH = re.compile(r"cuda(?::(0|[1-9][0-9]*))?")
_THEANO = re.compile(r"(?:cuda|gpu)([0-9]+)|gpu,([0-9]+)")
_INDEX = re.compile(r"[0-9]+")
_LIST = re.compile(r"[0-9]+(?:,[0-9]+)+")
_UUID = re.compile(r"(?:GPU|MIG)-(?:GPU-)?(?P<digits>[0-9A-Fa-f]*)[0-9A-Fa-f/-]*", re.IGNORECASE)
#: With fewer digits `gpu-1` is more likely a typo for `gpu:1` than the start of a UUID.
_LEAST_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """A parsed device string; what it leaves open is null.

    `kind` is in upper case (GPU, CPU, TPU, ...). `job` may be `*`, as TensorFlow keeps it. `uuid`
    is that of a GPU or a MIG instance, or its beginning.
    """

    text: str
    job: str | None = None
    replica: int | None = None
    task: int | None = None
    kind: str | None = None
    index: int | None = None
    uuid: str | None = None

    @property
    def canonical(self) -> str:
        """Return TensorFlow's normal form: job, replica, task, device; an open index is `*`."""
        parts = [
            f"/{key}:{value}"
            for key, value in (("job", self.job), ("replica", self.replica), ("task", self.task))
            if value is not None
        ]
        if self.kind is not None:
            parts.append(f"/device:{self.kind}:{'*' if self.index is None else self.index}")
        return "".join(parts)


def parse_device(text: str) -> DeviceSpec:
    """Parse a device string.

    Raises:
        WrongUseError: no grammar accepts it; the message has TensorFlow's words.
    """
    if len(text) > _LONGEST_TEXT:
        raise malformed(fact=f"The device string is longer than {_LONGEST_TEXT} characters.")
    if _INDEX.fullmatch(text):
        return _gpu_spec(text, text)
    if (match := _PYTORCH.fullmatch(text)) is not None:
        return _gpu_spec(text, match[1])
    if (match := _THEANO.fullmatch(text)) is not None:
        return _gpu_spec(text, match[1] or match[2])
    if (match := _UUID.fullmatch(text)) is not None:
        if len(match["digits"]) < _LEAST_DIGITS:
            raise malformed(
                fact=f"{quoted(text)} is too short for a UUID.",
                remedy=f"Write at least {_LEAST_DIGITS} of its digits, or /gpu:0, cuda:0 or 0.",
            )
        return DeviceSpec(text=text, kind="GPU", uuid=text)
    return parse_tensorflow(text)


def _gpu_spec(text: str, digits: str | None) -> DeviceSpec:
    return DeviceSpec(text=text, kind="GPU", index=None if digits is None else int(digits))


def parse_tensorflow(text: str) -> DeviceSpec:
    """Parse a device string by TensorFlow's grammar alone.

    Raises:
        WrongUseError: TensorFlow refuses it.
    """
    words: dict[str, str] = {}
    kind: str | None = None
    index: int | None = None
    for component in text.split("/"):
        match component.split(":"):
            case ["", *_]:
                continue
            case ["job" | "replica" | "task" as key, value]:
                words[key] = value
                continue
            case ["device", given, number]:
                pass
            case [given, *rest] if len(rest) <= 1 and given.upper() in SHORT_TYPES:
                number = rest[0] if rest else "*"
            case [attribute, *_]:
                raise _unknown_attribute(text, attribute)
        if kind is not None:
            raise malformed(
                fact="Multiple device types are not allowed while parsing the device spec: "
                f"{shown(text)}."
            )
        kind = given.upper() if given.upper() in SHORT_TYPES else given
        index = None if number == "*" else _integer(text, number)
    # Converted last, as TensorFlow does: of several only the last has to be a number.
    replica, task = (
        _integer(text, words[key]) if key in words else None for key in ("replica", "task")
    )
    return DeviceSpec(
        text=text, job=words.get("job"), replica=replica, task=task, kind=kind, index=index
    )


def _integer(text: str, number: str) -> int:
    """Read a number as Python's int() does, which is how TensorFlow reads it."""
    try:
        return int(number)
    except ValueError as error:
        raise malformed(
            fact=f"invalid literal for int() with base 10: {quoted(number)} in the device spec "
            f"{quoted(text)}."
        ) from error


def _unknown_attribute(text: str, attribute: str) -> WrongUseError:
    hints = {
        "cuda": "Write cuda:N without a slash as PyTorch does, or /gpu:N.",
        "device": "Write /device:GPU:0 with both a type and an index.",
    }
    lowered = attribute.strip().lower()
    if lowered in ("job", "replica", "task", "device") and attribute != lowered:
        hint = f"Write {lowered} in lower case: only types such as GPU may be in any case."
    elif attribute == "cuda" and text[0] != "/":
        hint = "Write cuda:1 as PyTorch does, without a sign or a leading zero, or /gpu:1."
    elif _LIST.fullmatch(text):
        hint = f"Write each device as a separate word: {text.replace(',', ' ')[:40]}"
    else:
        hint = hints.get(lowered, "Write /gpu:0, /device:GPU:0, cuda:0 or 0.")
    return malformed(
        fact=f"Unknown attribute {quoted(attribute)} is encountered while parsing the device "
        f"spec: {quoted(text)}.",
        remedy=hint,
    )


def malformed(*, fact: str, remedy: str = "Write /gpu:0, /cpu:0, cuda:0 or 0.") -> WrongUseError:
    """Return the error for a device string that no grammar accepts."""
    return WrongUseError(code="bad-device", message=fact, remedy=(remedy,))
