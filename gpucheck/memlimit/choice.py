"""GPU selection by `--gpu`, and the variables that make only these GPUs visible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucheck.inventory.model import Gpu
from gpucheck.place.device_strings import parse_device
from gpucheck.place.placement import resolve, visible_devices
from gpucheck.report.errors import BadAnswerError, WrongUseError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Selected devices in order, and the environment that makes only them visible."""

    uuids: tuple[str | None, ...]
    environment: dict[str, str] = field(default_factory=dict)


def choose_gpus(specs: Sequence[str], gpus: Sequence[Gpu]) -> Choice | None:
    """Resolve device strings as `gpucheck place` does, and UUIDs or UUID prefixes.

    Raises:
        WrongUseError: one names the CPU, or matches no device grammar.
        BadAnswerError: no visible GPU matches.
    """
    if not specs or not visible_devices(gpus):
        return None  # the plan reports that none is visible
    uuids = tuple(dict.fromkeys(_uuid_of(spec, gpus) for spec in specs))
    value = ",".join(uuid for uuid in uuids if uuid)
    return Choice(
        uuids=uuids,
        environment={"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )


def _uuid_of(spec: str, gpus: Sequence[Gpu]) -> str | None:
    asked = parse_device(spec)
    if asked.uuid is not None:
        return _by_prefix(spec, gpus)
    if asked.kind == "CPU":
        message = f"{spec!a} is the CPU, and memlimit limits only GPU memory."
        raise WrongUseError(code="not-a-gpu", message=message)
    if asked.kind is None or asked.index is None:
        # A script's empty variable would otherwise silently mean GPU 0.
        message = f"--gpu takes one GPU, such as /gpu:0, 2 or a UUID; {spec!a} names none."
        raise WrongUseError(code="not-a-gpu", message=message)
    try:
        device = resolve(asked, gpus, soft=False)
    except BadAnswerError as error:
        if error.code != "no-such-device":
            raise
        raise _no_such_gpu(fact=f"No visible GPU is {spec!a}.") from None
    if device.uuid is None:
        message = f"GPU {spec!a} has no readable UUID, so it cannot be selected."
        raise BadAnswerError(code="no-uuid", message=message)
    return device.uuid


def _by_prefix(spec: str, gpus: Sequence[Gpu]) -> str:
    found = [
        device.uuid
        for device in visible_devices(gpus)
        if device.uuid and device.uuid.lower().startswith(spec.lower())
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise _no_such_gpu(fact=f"No visible GPU has a UUID that starts with {spec!a}.")
    raise _no_such_gpu(fact=f"{len(found)} visible GPUs have a UUID that starts with {spec!a}.")


def _no_such_gpu(*, fact: str) -> BadAnswerError:
    remedy = ("List the GPUs, and see why others are hidden: gpucheck list",)
    return BadAnswerError(code="no-such-gpu", message=fact, remedy=remedy)
