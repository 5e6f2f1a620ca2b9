"""Single entries of CUDA_VISIBLE_DEVICES: an ordinal, a UUID, or nothing.

The sources are those of `inventory/visibility.py`, which judges the whole list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gpucheck.drivers.readings import GpuReading, MigReading

#: What C's isspace() skips before a number.
_BLANKS = " \t\n\v\f\r"
_INTEGER = re.compile(rf"[{_BLANKS}]*(?P<sign>[+-]?)(?P<digits>0[xX][0-9a-fA-F]+|[0-9]+)", re.ASCII)
_LEGACY_MIG = re.compile(r"MIG-(?P<gpu>GPU-[0-9a-f-]+)/(?P<gi>[0-9]{1,4})/(?P<ci>[0-9]{1,4})", re.A)
_LARGEST_INT = 2**31 - 1


MIG_QUESTION = "MIG is enabled, and drivers differ in which instances they enumerate"
EMPTY_ENTRY = "an empty entry is not documented"
LOOSE_UUID = "spaces around a UUID, or letters in another case, are not documented"


class Entry(NamedTuple):
    """One entry as judged: kept, or dropped for a `problem`, or left open by a `question`.

    An invalid entry ends the list. `key` is the same for two entries that name one device; it is
    None where it is not known which device that is.
    """

    text: str
    uuid: str | None = None
    key: object = None
    note: str = ""
    problem: str = ""
    question: str | None = None


# ---------------------------------------------------------------------------------- ordinals


def judge_ordinal(text: str, gpus: Sequence[GpuReading], question: str | None) -> Entry:
    """Judge an entry of a list that begins with an ordinal.

    `question` says why it is not known which GPU has which ordinal, if so.
    """
    found = _INTEGER.match(text)
    if found is None:
        return _judge_word(text)
    ordinal = _read_integer(found["sign"], found["digits"])
    if ordinal is None:
        doubt = "how CUDA reads a number that starts with 0 or is very large is not documented"
        return Entry(text=text, question=doubt)
    if ordinal < 0:
        return Entry(text=text, problem="a negative number ends the list")
    key = ("ordinal", ordinal)
    rest = text[found.end() :].strip(_BLANKS)
    note = f"only the number counts, {rest!r} is ignored" if rest else ""
    if ordinal >= len(gpus):
        if any(gpu.mig_enabled for gpu in gpus):
            # Without a key: where the driver has no such ordinal, the list ends here.
            return Entry(text=text, question=MIG_QUESTION)
        return Entry(text=text, key=key, problem=f"out of range: there {_are(len(gpus))}")
    if question is not None:
        return Entry(text=text, key=key, question=question)
    gpu = gpus[ordinal]
    question = MIG_QUESTION if gpu.mig_enabled else None
    return Entry(text=text, uuid=gpu.uuid, key=key, note=note, question=question)


def _judge_word(text: str) -> Entry:
    if not text.strip():
        return Entry(text=text, question=EMPTY_ENTRY)
    if looks_like_uuid(text):
        return Entry(text=text, problem="a UUID in a list that begins with an ordinal")
    return Entry(text=text, problem="neither an ordinal nor a UUID")


def _read_integer(sign: str, digits: str) -> int | None:
    """Return the number, or None where decimal and C's notation differ or an int overflows."""
    as_decimal = "0" if digits[1:2] in ("x", "X") else digits.lstrip("0") or "0"
    if len(as_decimal) > 10:
        return None
    number = int(as_decimal)
    if digits.startswith("0") and _read_as_c(digits) != number:
        return None
    return None if number > _LARGEST_INT else number if sign != "-" else -number


def _read_as_c(digits: str) -> int:
    """Return the number as C's strtol reads it with base 0; `digits` begins with 0."""
    if digits[1:2] in ("x", "X"):
        return int(digits, 16)
    octal = re.match("[0-7]+", digits)
    return int(octal[0], 8) if octal else 0


def _are(count: int) -> str:
    return "is 1 GPU" if count == 1 else f"are {count} GPUs"


# ---------------------------------------------------------------------------------- UUIDs


def looks_like_uuid(text: str) -> bool:
    """Return whether an entry looks like the UUID of a GPU or of a MIG instance."""
    return text.strip().casefold().startswith(("gpu-", "mig-"))


def judge_uuid(text: str, gpus: Sequence[GpuReading]) -> Entry:
    """Judge an entry of a list that begins with a UUID."""
    strict = _judge_device(text, gpus)
    if not strict.problem:
        return strict
    if not text.strip():
        return Entry(text=text, question=EMPTY_ENTRY)
    kind = text.strip()[:4].upper()
    loose = _judge_device(kind + text.strip()[4:].lower(), gpus)
    if loose.problem:
        return strict
    return Entry(text=text, uuid=loose.uuid, question=LOOSE_UUID)


def _judge_device(text: str, gpus: Sequence[GpuReading]) -> Entry:
    if text.startswith("MIG-"):
        return _judge_mig(text, gpus)
    if not text.startswith("GPU-"):
        return Entry(text=text, problem="not a UUID in a list that begins with one")
    matches = [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.startswith(text)]
    if len(matches) > 1:
        return Entry(text=text, key=text, problem="the UUIDs of several GPUs begin with this")
    whole = bool(matches) and matches[0].uuid == text
    if not whole and any(gpu.uuid is None for gpu in gpus):
        return Entry(text=text, question="it may be the GPU that does not answer")
    if not matches:
        return Entry(text=text, key=text, problem="no GPU has this UUID")
    gpu = matches[0]
    question = None
    if gpu.failure is not None:
        question = "the GPU does not answer, so it is not known whether CUDA counts it"
    elif gpu.mig_enabled:
        question = MIG_QUESTION
    return Entry(text=text, uuid=gpu.uuid, key=gpu.uuid, question=question)


def _judge_mig(text: str, gpus: Sequence[GpuReading]) -> Entry:
    instances = [(gpu, instance) for gpu in gpus for instance in gpu.mig_instances]
    for gpu, instance in instances:
        if text in (instance.uuid, *_legacy_names(gpu, instance)):
            return Entry(text=text, uuid=instance.uuid, key=instance.uuid)
    if any(instance.uuid and instance.uuid.startswith(text) for _, instance in instances):
        return Entry(text=text, question="the beginning of a MIG UUID is not documented")
    if _abbreviates_parent(text, gpus):
        doubt = "a shortened GPU UUID before a MIG instance is not documented"
        return Entry(text=text, question=doubt)
    if any(_hides_instances(gpu) for gpu in gpus):
        return Entry(text=text, question="not every MIG instance could be read")
    return Entry(text=text, key=text, problem="no MIG instance has this UUID")


def _legacy_names(gpu: GpuReading, instance: MigReading) -> tuple[str, ...]:
    """Return the name of drivers 450 and 460, which newer ones still take."""
    if instance.uuid is None or None in (gpu.uuid, *_place(instance)):
        return ()
    gpu_instance, compute_instance = _place(instance)
    return (f"MIG-{gpu.uuid}/{gpu_instance}/{compute_instance}",)


def _abbreviates_parent(text: str, gpus: Sequence[GpuReading]) -> bool:
    named = _LEGACY_MIG.fullmatch(text)
    return named is not None and any(
        gpu.uuid is not None
        and gpu.uuid.startswith(named["gpu"])
        and _place(instance) == (int(named["gi"]), int(named["ci"]))
        for gpu in gpus
        for instance in gpu.mig_instances
    )


def _place(instance: MigReading) -> tuple[int | None, int | None]:
    """Return the ids of the GPU instance and of the compute instance in it."""
    return (instance.gpu_instance_id, instance.compute_instance_id)


def _hides_instances(gpu: GpuReading) -> bool:
    """Return whether the GPU may have MIG instances that NVML did not name."""
    nameless = any(instance.uuid is None for instance in gpu.mig_instances)
    unread = gpu.mig_enabled and "mig_instances" in gpu.unavailable
    return nameless or unread or gpu.failure is not None
