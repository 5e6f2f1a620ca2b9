"""What CUDA_VISIBLE_DEVICES leaves visible, by NVIDIA's documented rules.

Sources: CUDA Programming Guide, "CUDA Environment Variables" (unset, empty, order, truncation at
the first invalid entry, UUIDs and their prefixes); PyTorch's TestVisibleDeviceParses, which
records what driver 525.60.13 does (duplicates empty the list, strtol-like integers, the first
entry decides the kind); MIG User Guide, "CUDA Device Enumeration". Where they give no answer, the
result carries an `open_question` and only the driver can decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gpucheck.models.device import DecidedBy, EntryStatus, Visibility, VisibilityEntry
from gpucheck.models.snapshot import CudaReading, GpuReading

PCI_BUS_ID = "PCI_BUS_ID"
FASTEST_FIRST = "FASTEST_FIRST"
#: CUDA_ERROR_NO_DEVICE
NO_DEVICE = 100
_INTEGER = re.compile(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", re.ASCII)
_LEGACY_MIG = re.compile(r"MIG-(GPU-[0-9a-fA-F-]+)/([0-9]{1,4})/([0-9]{1,4})", re.ASCII)


class _Entry(NamedTuple):
    text: str
    uuid: str | None = None
    #: Why it is dropped; empty when it is kept.
    problem: str = ""
    #: Whether CUDA stops reading here.
    stops: bool = False
    ordinal: int | None = None
    open_question: str | None = None


def is_mig(gpu: GpuReading) -> bool:
    """Return whether CUDA sees this GPU's MIG instances instead of the GPU."""
    return bool(gpu.mig_enabled)


def apply_rules(
    cuda_visible_devices: str | None, cuda_device_order: str | None, gpus: Sequence[GpuReading]
) -> Visibility:
    """Resolve the variables against the GPUs that NVML lists; never raises, for any text.

    `visible` of the result holds UUIDs by ascending CUDA ordinal. It is None when the order, or
    what is visible at all, is the driver's to say; `open_question` then tells why.
    """
    question = _order_question(cuda_device_order, gpus)
    if cuda_visible_devices is None:
        visible = None if question else tuple(gpu.uuid for gpu in gpus if gpu.uuid)
        return Visibility(
            cuda_visible_devices=None,
            cuda_device_order=cuda_device_order,
            decided_by=DecidedBy.RULES,
            visible=visible,
            open_question=question,
        )
    judged = _judge(cuda_visible_devices, gpus, question)
    kept = [entry for entry in judged if not entry.problem]
    doubts = [entry.open_question for entry in judged if entry.open_question]
    visible = None if doubts else tuple(entry.uuid for entry in kept if entry.uuid)
    return Visibility(
        cuda_visible_devices=cuda_visible_devices,
        cuda_device_order=cuda_device_order,
        decided_by=DecidedBy.RULES,
        entries=tuple(_document(entry) for entry in judged),
        visible=visible,
        open_question=doubts[0] if doubts else None,
    )


def _document(entry: _Entry) -> VisibilityEntry:
    return VisibilityEntry(
        text=entry.text,
        status=EntryStatus.DROPPED if entry.problem else EntryStatus.KEPT,
        uuid=entry.uuid,
        reason=entry.problem or entry.open_question or "valid",
    )


def _order_question(order: str | None, gpus: Sequence[GpuReading]) -> str | None:
    """Say why the ordinals of these GPUs are not known by the rules, or None if they are."""
    if any(is_mig(gpu) for gpu in gpus):
        return "MIG is enabled, and drivers differ in which instances they enumerate"
    if any(gpu.failure is not None or gpu.uuid is None for gpu in gpus):
        return "a GPU does not answer, so it is not known whether CUDA counts it"
    if len(gpus) < 2 or order == PCI_BUS_ID:
        return None
    if order not in (None, "", FASTEST_FIRST):
        return f"CUDA_DEVICE_ORDER={order!r} is not a documented value"
    kinds = {(gpu.name, gpu.pci_device_id, gpu.memory_total_bytes) for gpu in gpus}
    if len(kinds) > 1:
        return "the GPUs differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID: CUDA puts the fastest first"
    return None


def _judge(text: str, gpus: Sequence[GpuReading], question: str | None) -> list[_Entry]:
    if text == "":
        return []
    texts = text.split(",")
    by_uuid = texts[0].lstrip().startswith(("GPU-", "MIG-"))
    entries = [
        _judge_uuid(item, gpus) if by_uuid else _judge_ordinal(item, gpus, question)
        for item in texts
    ]
    return _drop_after_stop(_empty_if_repeated(entries))


def _judge_ordinal(text: str, gpus: Sequence[GpuReading], question: str | None) -> _Entry:
    found = _INTEGER.match(text)
    if found is None:
        kind = "a UUID in a list of ordinals" if "GPU-" in text or "MIG-" in text else "not a number"
        return _Entry(text=text, problem=kind, stops=True)
    digits = found[1]
    if len(digits) > 9:
        return _Entry(text=text, problem="out of range", stops=True)
    ordinal = int(digits)
    if ordinal < 0:
        return _Entry(text=text, problem="negative", stops=True)
    if re.match(r"[+-]?0[xX0-9]", text.strip()):
        doubt = "a number with a leading 0 may be read as octal or hexadecimal"
        return _Entry(text=text, ordinal=ordinal, open_question=doubt)
    if question is not None:
        return _Entry(text=text, ordinal=ordinal, open_question=question)
    if ordinal >= len(gpus):
        problem = f"out of range: there {_are(len(gpus))}"
        return _Entry(text=text, ordinal=ordinal, problem=problem, stops=True)
    return _Entry(text=text, ordinal=ordinal, uuid=gpus[ordinal].uuid)


def _are(count: int) -> str:
    return "is 1 GPU" if count == 1 else f"are {count} GPUs"


def _judge_uuid(text: str, gpus: Sequence[GpuReading]) -> _Entry:
    if text != text.strip():
        doubt = "blanks around a UUID are not documented"
        return _Entry(text=text, open_question=doubt)
    if text.startswith("MIG-"):
        return _judge_mig(text, gpus)
    if not text.startswith("GPU-"):
        return _Entry(text=text, problem="not a UUID in a list of UUIDs", stops=True)
    matches = [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.startswith(text)]
    if not matches and any(gpu.uuid is None for gpu in gpus):
        doubt = "it may be the GPU that does not answer"
        return _Entry(text=text, open_question=doubt)
    if len(matches) != 1:
        problem = "no GPU has this UUID" if not matches else "more than one GPU begins with this"
        return _Entry(text=text, problem=problem, stops=True)
    if is_mig(matches[0]):
        doubt = "MIG is enabled on it, and drivers differ in which instances they then enumerate"
        return _Entry(text=text, uuid=matches[0].uuid, open_question=doubt)
    return _Entry(text=text, uuid=matches[0].uuid)


def _judge_mig(text: str, gpus: Sequence[GpuReading]) -> _Entry:
    legacy = _LEGACY_MIG.fullmatch(text)
    for gpu in gpus:
        for instance in gpu.mig_instances:
            place = (gpu.uuid, instance.gpu_instance_id, instance.compute_instance_id)
            named = legacy and place == (legacy[1], int(legacy[2]), int(legacy[3]))
            if instance.uuid is not None and (text == instance.uuid or named):
                return _Entry(text=text, uuid=instance.uuid)
    return _Entry(text=text, problem="no MIG instance has this UUID", stops=True)


def _empty_if_repeated(entries: list[_Entry]) -> list[_Entry]:
    """Drop everything if a device is named twice before the list ends at a word or a negative."""
    seen: set[object] = set()
    for entry in entries:
        if entry.stops and entry.ordinal is None:
            break
        key = entry.ordinal if entry.ordinal is not None else entry.uuid
        if key is not None and key in seen:
            problem = "a device is named twice, which empties the whole list"
            return [_Entry(text=item.text, problem=problem) for item in entries]
        seen.add(key)
    return _several_mig(entries)


def _several_mig(entries: list[_Entry]) -> list[_Entry]:
    """With a MIG instance in it, only a list of one is the same for every driver."""
    if len(entries) < 2 or not any(entry.text.startswith("MIG-") for entry in entries):
        return entries
    doubt = "drivers differ in how many MIG instances they enumerate for one program"
    return [
        entry
        if entry.problem
        else _Entry(text=entry.text, uuid=entry.uuid, open_question=doubt)
        for entry in entries
    ]


def _drop_after_stop(entries: list[_Entry]) -> list[_Entry]:
    for position, entry in enumerate(entries):
        if entry.stops:
            problem = f"it stands after the invalid entry {entry.text!r}"
            rest = [_Entry(text=item.text, problem=problem) for item in entries[position + 1 :]]
            return entries[: position + 1] + rest
    return entries


def join_driver(
    visibility: Visibility, cuda: CudaReading, gpus: Sequence[GpuReading]
) -> Visibility | None:
    """Return what the driver itself enumerates, joined by UUID; None if it did not answer.

    No device at all (CUDA 100) is an answer: nothing is visible. The verdicts on the entries stay
    the rules', which explain. A device that NVML cannot name (a lost GPU) keeps its ordinal.
    """
    if cuda.failure is not None and cuda.failure.library_code != NO_DEVICE:
        return None
    known = {_hex(uuid): uuid for uuid in _all_uuids(gpus)}
    digits = [device.uuid_hex for device in cuda.devices]
    visible = [known.get(item, gpu_uuid(item)) for item in digits if item is not None]
    if len(visible) != len(digits):
        return None
    return Visibility(
        cuda_visible_devices=visibility.cuda_visible_devices,
        cuda_device_order=visibility.cuda_device_order,
        decided_by=DecidedBy.DRIVER,
        entries=visibility.entries,
        visible=tuple(visible),
    )


def gpu_uuid(digits: str) -> str:
    """Return the UUID of a whole GPU from its 32 hexadecimal digits."""
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(parts)


def _hex(uuid: str) -> str:
    return uuid.partition("-")[2].replace("-", "").lower()


def _all_uuids(gpus: Sequence[GpuReading]) -> list[str]:
    whole = [gpu.uuid for gpu in gpus if gpu.uuid]
    return whole + [mig.uuid for gpu in gpus for mig in gpu.mig_instances if mig.uuid]
