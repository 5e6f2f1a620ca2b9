"""Advice on CUDA_VISIBLE_DEVICES: common mistakes, and Slurm, containers and MPS.

Nothing here changes what is visible: these are sentences about values that do not mean what they
seem to. Sources: CUDA Programming Guide, "CUDA Environment Variables"; the container
toolkit's README; Slurm's gres.conf manual; the MPS guide, "Environment Variables".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpucheck.drivers.readings import GpuReading
from gpucheck.inventory.model import EntryStatus, Visibility
from gpucheck.inventory.visibility import AFTER_INVALID, FASTEST_FIRST, PCI_BUS_ID, looks_like_uuid
from gpucheck.report.envelope import Notice
from gpucheck.report.text import quoted

_RANGE = re.compile(r"\s*[0-9]+\s*-\s*[0-9]+\s*", re.ASCII)
_ORDINAL = re.compile(r"\s*[+-]?[0-9]", re.ASCII)
_NUMBER_AND_REST = re.compile(
    r"\s*[+-]?(?!0[xX])[0-9]+\s*[^\s0-9]|\s*[+-]?[0-9]+\s+[0-9]", re.ASCII
)
#: Values for "no GPU": CUDA does not know these words, and stops at them.
_NO_GPU = re.compile(r"\s*(?:-[0-9]+|none|NoDevFiles)\s*", re.ASCII | re.IGNORECASE)
_QUOTES = "\"'`\u2018\u2019\u201c\u201d"


def advise(
    visibility: Visibility, gpus: Sequence[GpuReading], environment: Mapping[str, str]
) -> list[Notice]:
    """Return the notices about the variables, most important first; never raises."""
    notices = [*_value_notices(visibility), *_order_notices(visibility, gpus)]
    says_all = any(item.code == "visible-devices-all" for item in notices)
    if not says_all and not hides_on_purpose(visibility):
        notices += _entry_notices(visibility, gpus)
    notices += _slurm_notices(visibility, environment)
    notices += _container_notices(visibility, gpus, environment)
    notices += _mps_notices(visibility, environment)
    if visibility.disagreement is not None:
        notices.append(Notice("driver-disagrees-with-rules", visibility.disagreement))
    return notices


def hides_on_purpose(visibility: Visibility) -> bool:
    """Return whether the value explicitly hides all GPUs.

    That is no mistake. An empty value is not explicit: a script that found no GPUs leaves one too.
    """
    text = visibility.cuda_visible_devices
    return text is not None and _NO_GPU.fullmatch(text) is not None


def _entry_notices(visibility: Visibility, gpus: Sequence[GpuReading]) -> Iterator[Notice]:
    """Name the first entry that is dropped, and say if none is left."""
    text = visibility.cuda_visible_devices
    if text == "" and gpus:
        hidden = "the GPU" if len(gpus) == 1 else f"all {len(gpus)} GPUs"
        message = (
            f"CUDA_VISIBLE_DEVICES is set and empty, which hides {hidden}: unset it to see "
            "them, or write -1 if they are to be hidden."
        )
        yield Notice("visible-devices-empty", message)
    dropped = [item for item in visibility.entries if item.status == "dropped"]
    if not dropped:
        return
    entry = dropped[0]
    more = any(item.reason.startswith(AFTER_INVALID) for item in dropped)
    effect = f", so CUDA sees none of the {len(gpus)} GPUs" if visibility.visible == () else ""
    message = (
        f"CUDA_VISIBLE_DEVICES={quoted(text or '')}: the entry {quoted(entry.text)}"
        f" {'and all after it are' if more else 'is'} dropped: "
        f"{entry.reason}{effect if len(gpus) > 1 else ''}."
    )
    yield Notice("visible-devices-entry", message)


def _value_notices(visibility: Visibility) -> Iterator[Notice]:
    text = visibility.cuda_visible_devices
    if not text:
        return
    name = f"CUDA_VISIBLE_DEVICES={quoted(text)}"
    if text.strip().strip(_QUOTES).casefold() == "all":
        message = f"{name}: CUDA does not know this word and sees no GPU; unset it to see all."
        yield Notice("visible-devices-all", message)
    if any(_RANGE.fullmatch(part.strip(_QUOTES)) for part in text.split(",")):
        message = f"{name}: CUDA knows no ranges and reads only the first number; write 0,1,2."
        yield Notice("visible-devices-range", message)
    odd = _entry_with_rest(text)
    if odd is not None:
        message = f"{name}: CUDA reads only the leading number of {quoted(odd)}; use commas."
        yield Notice("visible-devices-rest", message)
    if any(mark in text for mark in _QUOTES):
        message = f"{name}: the quotes are part of the value; set it without them."
        yield Notice("visible-devices-quotes", message)
    if odd is None and any(char.isspace() for char in text):
        message = f"{name}: spaces before a number are skipped; others are not documented."
        yield Notice("visible-devices-blanks", message)


def _entry_with_rest(text: str) -> str | None:
    """Return the first entry with text after its number, such as `0;1` and `0 1`.

    Ranges have a warning of their own, and what CUDA does with `0x1` is not documented.
    """
    parts = () if looks_like_uuid(text) else text.split(",")
    plain = (part for part in parts if not _RANGE.fullmatch(part.strip(_QUOTES)))
    return next((part for part in plain if _NUMBER_AND_REST.match(part)), None)


def _order_notices(visibility: Visibility, gpus: Sequence[GpuReading]) -> Iterator[Notice]:
    order = visibility.cuda_device_order
    if order not in (None, "", FASTEST_FIRST, PCI_BUS_ID):
        message = (
            f"CUDA_DEVICE_ORDER={quoted(order or '')} is neither {PCI_BUS_ID} nor {FASTEST_FIRST}; "
            "what CUDA does with it is not documented."
        )
        yield Notice("device-order-unknown", message)
    kinds = {(gpu.name, gpu.pci_device_id) for gpu in gpus}
    text = visibility.cuda_visible_devices or ""
    counts = _ORDINAL.match(text) and not hides_on_purpose(visibility)
    if order != PCI_BUS_ID and len(kinds) > 1 and counts:
        message = (
            f"CUDA_VISIBLE_DEVICES={quoted(text)} counts the fastest GPU first, nvidia-smi by bus. "
            "The GPUs here differ: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or use UUIDs."
        )
        yield Notice("ordinal-on-unlike-gpus", message)


def _slurm_notices(visibility: Visibility, environment: Mapping[str, str]) -> Iterator[Notice]:
    if not environment.get("SLURM_JOB_ID"):
        return
    text = visibility.cuda_visible_devices
    given = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS")
    if text is None and not given:
        yield Notice(
            "slurm-without-gpus",
            "This Slurm job asked for no GPU: since 19.05 Slurm then leaves CUDA_VISIBLE_DEVICES "
            "unset, and CUDA sees every GPU that the job's cgroup does not hide.",
        )
    elif text == "NoDevFiles":
        yield Notice(
            "slurm-without-gpus", "NoDevFiles is what Slurm before 19.05 gave jobs without a GPU."
        )
    elif given and text and not looks_like_uuid(text) and _numbers(text) != _numbers(given):
        yield Notice(
            "slurm-numbers",
            f"Slurm gave the GPUs {quoted(given)} of the node; inside the job they count from 0, "
            f"which is why CUDA_VISIBLE_DEVICES is {quoted(text)}.",
        )


def _numbers(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _container_notices(
    visibility: Visibility, gpus: Sequence[GpuReading], environment: Mapping[str, str]
) -> Iterator[Notice]:
    wanted = environment.get("NVIDIA_VISIBLE_DEVICES")
    if wanted is None:
        return
    name = f"NVIDIA_VISIBLE_DEVICES={quoted(wanted)}"
    words = {part.strip() for part in wanted.split(",")} - {""}
    if gpus and (words <= {"none"} or "void" in words):
        return  # set later, or the container was made in another way: GPUs are here
    if not words or "void" in words:
        message = f"{name}: the container runtime provided neither GPUs nor the driver."
        yield Notice("container-without-gpus", message)
    elif words == {"none"}:
        message = f"{name}: the container got the driver's files but no GPU."
        yield Notice("container-without-gpus", message)
    elif words != {"all"} and any(
        entry.status is EntryStatus.DROPPED and entry.reason.startswith("out of range")
        for entry in visibility.entries
    ):
        yield Notice(
            "container-numbers",
            f"{name} chose the GPUs when the container was made; in here they count from 0, so "
            f"the host's numbers in "
            f"CUDA_VISIBLE_DEVICES={quoted(visibility.cuda_visible_devices or '')} name other GPUs "
            "or none. UUIDs stay the same.",
        )


def _mps_notices(visibility: Visibility, environment: Mapping[str, str]) -> Iterator[Notice]:
    text = visibility.cuda_visible_devices
    if environment.get("CUDA_MPS_PIPE_DIRECTORY") and text and not looks_like_uuid(text):
        yield Notice(
            "mps-numbers",
            "With MPS the server's own CUDA_VISIBLE_DEVICES applies first, and the numbers in "
            f"CUDA_VISIBLE_DEVICES={quoted(text)} count what it leaves, from 0; use UUIDs.",
        )
