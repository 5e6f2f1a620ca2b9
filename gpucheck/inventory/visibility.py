"""Rules of CUDA_VISIBLE_DEVICES, as NVIDIA documents them: which devices CUDA sees.

Sources: CUDA Programming Guide, "CUDA Environment Variables" (unset, empty, order, truncation at
the first invalid entry, UUIDs and their prefixes); PyTorch's TestVisibleDeviceParses, which
records what driver 525.60.13 does (duplicates empty the list, strtol-like integers, the first
entry decides the kind); MIG User Guide, "CUDA Device Enumeration". Where they do not
decide, the result has an `open_question`, and only the driver can answer it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gpucheck.drivers.readings import CudaReading, GpuReading, MigReading, ProbeFailure
from gpucheck.inventory.model import DecidedBy, EntryStatus, Visibility, VisibilityEntry

PCI_BUS_ID = "PCI_BUS_ID"
FASTEST_FIRST = "FASTEST_FIRST"
#: CUDA_ERROR_NO_DEVICE
NO_DEVICE = 100

#: Most characters of an entry in the reasons of others.
MOST_SHOWN = 60

SEVERAL_MIG = "drivers differ in how many MIG instances they enumerate for one program"
SEVERAL_MIG_DRIVER = 570
ONE_MIG = f"before driver {SEVERAL_MIG_DRIVER} a program sees only one MIG instance"
MIG_QUESTION = "MIG is enabled, and drivers differ in which instances they enumerate"
EMPTY_ENTRY = "an empty entry is not documented"
LOOSE_UUID = "spaces around a UUID, or letters in another case, are not documented"
AFTER_INVALID = "it comes after the invalid entry"
NAMED_TWICE = "a device is named twice, which empties the whole list"
NAMED_AGAIN = "a device is named again after an invalid entry, and what that does is not documented"

#: What C's isspace() skips before a number.
_BLANKS = " \t\n\v\f\r"
_INTEGER = re.compile(rf"[{_BLANKS}]*(?P<sign>[+-]?)(?P<digits>0[xX][0-9a-fA-F]+|[0-9]+)", re.ASCII)
_LEGACY_MIG = re.compile(r"MIG-(?P<gpu>GPU-[0-9a-f-]+)/(?P<gi>[0-9]{1,4})/(?P<ci>[0-9]{1,4})", re.A)
_LARGEST_INT = 2**31 - 1


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


def is_mig(gpu: GpuReading) -> bool:
    """Return whether CUDA sees this GPU's MIG instances instead of the GPU."""
    return bool(gpu.mig_enabled)


def apply_rules(
    cuda_visible_devices: str | None,
    cuda_device_order: str | None,
    gpus: Sequence[GpuReading],
    *,
    driver_version: str | None = None,
) -> Visibility:
    """Resolve the variables against the GPUs that NVML lists; never raises, for any text.

    `driver_version` decides how many MIG instances one program sees; without it that is open.

    `visible` of the result holds UUIDs by ascending CUDA ordinal. It is None when only
    the driver knows the order, or what is visible at all; `open_question` then says why.
    """
    gpus = sort_by_bus(gpus)
    entries: list[Entry] = []
    if cuda_visible_devices is None:
        # Which instance an older driver takes when none is named, only the driver knows.
        split = any(is_mig(gpu) for gpu in gpus)
        question = MIG_QUESTION if split else _order_question(cuda_device_order, gpus)
        named = [gpu.uuid for gpu in gpus]
    else:
        entries = _judge(cuda_visible_devices, cuda_device_order, gpus)
        if shows_one_instance(driver_version):
            entries = _keep_one_instance(entries, gpus)
        question = next((entry.question for entry in entries if entry.question), None)
        named = [entry.uuid for entry in entries if not entry.problem]
    return Visibility(
        cuda_visible_devices=cuda_visible_devices,
        cuda_device_order=cuda_device_order,
        decided_by=DecidedBy.RULES,
        entries=tuple(
            VisibilityEntry(
                text=entry.text,
                status=EntryStatus.DROPPED if entry.problem else EntryStatus.KEPT,
                uuid=entry.uuid,
                reason=entry.problem or entry.question or entry.note or "valid",
            )
            for entry in entries
        ),
        visible=None if question else tuple(uuid for uuid in named if uuid),
        open_question=question,
    )


def sort_by_bus(gpus: Sequence[GpuReading]) -> tuple[GpuReading, ...]:
    """Return the GPUs as CUDA_DEVICE_ORDER=PCI_BUS_ID counts them: by ascending bus id.

    NVML promises no order (nvmlDeviceGetHandleByIndex). Those without a readable bus id come last.
    """
    return tuple(sorted(gpus, key=lambda gpu: bus_place(gpu.pci_bus_id)))


def bus_place(pci_bus_id: str | None) -> tuple[int, ...]:
    """Return a bus id such as `0000:1a:00.0` as numbers to sort by; unreadable ones come last."""
    parts = re.split("[:.]", pci_bus_id or "")
    try:
        return (0, *(int(part, 16) for part in parts))
    except ValueError:
        return (1,)


def is_silent(gpu: GpuReading) -> bool:
    """Return whether the GPU does not answer: then CUDA may or may not count it."""
    return gpu.failure is not None or gpu.uuid is None


def shows_one_instance(driver_version: str | None) -> bool:
    """Return whether this driver certainly shows a program only one MIG instance.

    MIG User Guide, "CUDA Device Enumeration": so with CUDA 11/R450 and CUDA 12/R525. From CUDA
    12/R570 on the same page says both that there may be several and that there is one: only the
    driver knows.
    """
    major = (driver_version or "").partition(".")[0]
    return major.isascii() and major.isdigit() and 450 <= int(major[:6]) < SEVERAL_MIG_DRIVER


def _keep_one_instance(entries: list[Entry], gpus: Sequence[GpuReading]) -> list[Entry]:
    """Drop what follows the first MIG instance, where the older rule decides which one that is.

    "The first one available" is the first of the list if NVML has it first too; else it is open.
    """
    kept = [entry for entry in entries if not entry.problem]
    # The MIG instances that CUDA may see, in NVML's order.
    order = [instance.uuid for gpu in gpus if is_mig(gpu) for instance in gpu.mig_instances]
    clear = len(kept) > 1 and all(
        entry.question in (None, SEVERAL_MIG) and entry.uuid in order for entry in kept
    )
    if not clear or min(order.index(entry.uuid) for entry in kept) != order.index(kept[0].uuid):
        return entries
    first = kept[0]
    return [
        entry._replace(question=None)
        if entry is first
        else entry
        if entry.problem
        else entry._replace(question=None, problem=ONE_MIG)
        for entry in entries
    ]


def _order_question(order: str | None, gpus: Sequence[GpuReading]) -> str | None:
    """Return why the rules do not decide the ordinals of these GPUs, or None if they do."""
    if any(is_silent(gpu) for gpu in gpus):
        return "a GPU does not answer, and CUDA may or may not count it"
    if len({gpu.uuid for gpu in gpus}) < len(gpus):
        return "two GPUs have the same UUID"
    if len(gpus) < 2:
        return None
    places = [bus_place(gpu.pci_bus_id) for gpu in gpus]
    if len(set(places)) < len(places) or (1,) in places:
        return "not every GPU has a PCI bus id of its own, by which CUDA orders them"
    if order == PCI_BUS_ID:
        return None
    if order not in (None, "", FASTEST_FIRST):
        return f"CUDA_DEVICE_ORDER={order!r} is not a documented value"
    kinds = {(gpu.name, gpu.pci_device_id, gpu.memory_total_bytes) for gpu in gpus}
    if len(kinds) > 1 or (None, None) in {kind[:2] for kind in kinds}:
        return (
            "the GPUs are not known to be alike and CUDA_DEVICE_ORDER is not PCI_BUS_ID: "
            "CUDA puts the fastest first"
        )
    return None


def _judge(text: str, order: str | None, gpus: Sequence[GpuReading]) -> list[Entry]:
    """Judge every entry by itself, then the list as a whole."""
    if text == "":
        return []
    texts = text.split(",")
    if looks_like_uuid(texts[0]):
        entries = [judge_uuid(item, gpus) for item in texts]
    else:
        question = _order_question(order, gpus)
        entries = [judge_ordinal(item, gpus, question) for item in texts]
    end = next((at for at, entry in enumerate(entries) if entry.problem), len(entries))
    if _repeats(entries[:end]):
        return [Entry(text=entry.text, problem=NAMED_TWICE) for entry in entries]
    kept = _leave_open(entries, end)
    return kept + entries[end : end + 1] + _drop_after_invalid(entries, end)


def _repeats(entries: Sequence[Entry]) -> bool:
    """Return whether a device is certainly named twice, that is, before the list may end."""
    seen: set[object] = set()
    for entry in entries:
        # A GPU among MIG instances, or the other way round, may end the list too.
        mixed = {entries[0].text[:4], entry.text[:4]} == {"GPU-", "MIG-"}
        if entry.key is None or mixed:
            return False
        if entry.key in seen:
            return True
        seen.add(entry.key)
    return False


def _leave_open(entries: Sequence[Entry], end: int) -> list[Entry]:
    """Return the entries before the end, with the questions that only several of them raise."""
    kept = list(entries[:end])
    keys = [entry.key for entry in entries if entry.key is not None]
    question: str | None = None
    if end < len(entries) and len(set(keys)) < len(keys):
        question = NAMED_AGAIN
    elif end > 1 and any(entry.text.startswith("MIG-") for entry in kept):
        question = SEVERAL_MIG
    if question is None:
        return kept
    return [entry._replace(question=entry.question or question) for entry in kept]


def _drop_after_invalid(entries: Sequence[Entry], end: int) -> list[Entry]:
    if end == len(entries):
        return []
    text = entries[end].text
    shown = repr(text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}...")
    problem = f"{AFTER_INVALID} {shown}"
    return [Entry(text=entry.text, problem=problem) for entry in entries[end + 1 :]]


# ------------------------------------------------------------------------- entries: ordinals


def judge_ordinal(text: str, gpus: Sequence[GpuReading], question: str | None) -> Entry:
    """Judge an entry of a list that begins with an ordinal.

    `question` says why it is not known which GPU has which ordinal, if so.
    """
    number = _INTEGER.match(text)
    if number is None:
        return _judge_word(text)
    ordinal = _read_integer(number["sign"], number["digits"])
    if ordinal is None:
        doubt = "how CUDA reads a number that starts with 0 or is very large is not documented"
        return Entry(text=text, question=doubt)
    if ordinal < 0:
        return Entry(text=text, problem="a negative number ends the list")
    key = ("ordinal", ordinal)
    rest = text[number.end() :].strip(_BLANKS)
    note = f"only the number counts, {rest!r} is ignored" if rest else ""
    if ordinal >= len(gpus):
        if any(gpu.mig_enabled for gpu in gpus):
            # Without a key: where the driver has no such ordinal, the list ends here.
            return Entry(text=text, question=MIG_QUESTION)
        there = "there is 1 GPU" if len(gpus) == 1 else f"there are {len(gpus)} GPUs"
        return Entry(text=text, key=key, problem=f"out of range: {there}")
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


# ---------------------------------------------------------------------------- entries: UUIDs


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
        question = "the GPU does not answer, and CUDA may or may not count it"
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


# ---------------------------------------------------------------------------------- the driver


def _says_none(failure: ProbeFailure) -> bool:
    return failure.library_code == NO_DEVICE and failure.function in ("cuInit", "cuDeviceGetCount")


def join_driver(
    visibility: Visibility, cuda: CudaReading, gpus: Sequence[GpuReading]
) -> Visibility | None:
    """Return the devices that the driver enumerates, joined by UUID; None if it is silent.

    No device at all (CUDA 100) is an answer: nothing is visible. A device that NVML cannot name
    (a lost GPU) keeps its ordinal.
    """
    if cuda.failure is not None and not _says_none(cuda.failure):
        return None
    instances = (mig.uuid for gpu in gpus for mig in gpu.mig_instances)
    named = (*(gpu.uuid for gpu in gpus), *instances)
    known = {digits_of(uuid): uuid for uuid in named if uuid}
    digits = [device.uuid_hex for device in cuda.devices]
    visible = tuple(known.get(item, gpu_uuid(item)) for item in digits if item is not None)
    if len(set(visible)) != len(digits):
        return None
    settle = _settle_split if any(is_mig(gpu) for gpu in gpus) else _settle
    return Visibility(
        cuda_visible_devices=visibility.cuda_visible_devices,
        cuda_device_order=visibility.cuda_device_order,
        decided_by=DecidedBy.DRIVER,
        entries=settle(visibility, visible, gpus),
        visible=visible,
        disagreement=_disagreement(visibility, visible),
    )


def _disagreement(visibility: Visibility, visible: tuple[str, ...]) -> str | None:
    """Return how the driver's devices differ from those of unambiguous rules, or None."""
    ruled = visibility.visible
    if visibility.open_question is not None or ruled is None or ruled == visible:
        return None
    left_out = [uuid for uuid in ruled if uuid not in visible]
    if visible and left_out and [uuid for uuid in ruled if uuid in visible] == list(visible):
        return (
            f"By NVIDIA's documented rules CUDA sees {len(ruled)} devices; the driver leaves out"
            f" {', '.join(left_out)}."
        )
    by_rules, by_driver = (", ".join(uuids) or "no device" for uuids in (ruled, visible))
    return f"By NVIDIA's documented rules CUDA sees {by_rules}; the driver enumerates {by_driver}."


_CONFIRMED = "confirmed by the CUDA driver"
_NOT_ENUMERATED = "the CUDA driver does not enumerate it"
#: So a program may see it if the list names it alone.
NOT_BESIDE_OTHERS = f"{_NOT_ENUMERATED} beside the others"


def _settle(
    visibility: Visibility, visible: Sequence[str], gpus: Sequence[GpuReading]
) -> tuple[VisibilityEntry, ...]:
    """Give the entries that the rules keep the devices that the driver enumerates for them.

    CUDA numbers devices by the order of the list and drops from its end (documented): the n-th
    entry kept is ordinal n.
    """
    entries = list(visibility.entries)
    kept = [at for at, entry in enumerate(entries) if entry.status is EntryStatus.KEPT]
    if len(visible) > len(kept):
        return visibility.entries
    for ordinal, at in enumerate(kept):
        entry = entries[at]
        if ordinal >= len(visible):
            entries[at] = entry._replace(status=EntryStatus.DROPPED, reason=_NOT_ENUMERATED)
        elif visibility.open_question or entry.uuid != visible[ordinal]:
            entries[at] = entry._replace(uuid=visible[ordinal], reason=_CONFIRMED)
    return tuple(entries)


def _settle_split(
    visibility: Visibility, visible: Sequence[str], gpus: Sequence[GpuReading]
) -> tuple[VisibilityEntry, ...]:
    """Say of each entry that the rules keep whether the driver enumerates the device it names.

    With MIG an entry may stand for several devices, so their order tells nothing. An entry whose
    device is not known is dropped if the others account for all that the driver enumerates; it may
    have ended the list.
    """
    instances = {gpu.uuid: {mig.uuid for mig in gpu.mig_instances} for gpu in gpus if is_mig(gpu)}
    entries = list(visibility.entries)
    kept = [at for at, entry in enumerate(entries) if entry.status is EntryStatus.KEPT]
    named: set[str] = set()
    unexplained = set(visible)
    may_have_ended = False
    for at in kept:
        entry = entries[at]
        if entry.uuid is None:
            may_have_ended = True
            continue
        mine = {entry.uuid, *instances.get(entry.uuid, ())}.intersection(visible)
        if entry.uuid in named or not mine:
            alone = visible and not may_have_ended
            reason = NOT_BESIDE_OTHERS if alone else _NOT_ENUMERATED
            entries[at] = entry._replace(status=EntryStatus.DROPPED, reason=reason)
        elif visibility.open_question:
            entries[at] = entry._replace(reason=_CONFIRMED)
        named.add(entry.uuid)
        unexplained -= mine
    for at in kept:
        if entries[at].uuid is None and not unexplained:
            entries[at] = entries[at]._replace(status=EntryStatus.DROPPED, reason=_NOT_ENUMERATED)
    return tuple(entries)


def gpu_uuid(digits: str) -> str:
    """Return the UUID of a whole GPU from its 32 hexadecimal digits."""
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(parts)


def digits_of(uuid: str) -> str:
    """Return the 32 digits of a UUID, without its kind and hyphens."""
    return uuid.partition("-")[2].replace("-", "").lower()
