"""Which of the visible GPUs `--gpu` means, and the variables that leave just these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpucheck.core.placement import place_devices, visible_devices
from gpucheck.models.device import Gpu
from gpucheck.models.errors import BadAnswerError, WrongUseError


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The chosen devices in their order, and what makes a program see no other."""

    uuids: tuple[str | None, ...]
    environment: dict[str, str] = field(default_factory=dict)


def choose_gpus(specs: Sequence[str], gpus: Sequence[Gpu]) -> Choice | None:
    """Resolve device strings as `gpucheck place` does, and UUIDs or their beginnings.

    Raises:
        WrongUseError: one names the CPU, or no grammar accepts it.
        BadAnswerError: there is no such GPU among the visible ones.
    """
    if not specs:
        return None
    uuids = tuple(dict.fromkeys(_uuid_of(spec, gpus) for spec in specs))
    value = ",".join(uuid for uuid in uuids if uuid)
    return Choice(
        uuids=uuids,
        environment={"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
    )


def _uuid_of(spec: str, gpus: Sequence[Gpu]) -> str | None:
    if spec.lower().startswith(("gpu-", "mig-")):
        return _by_prefix(spec, gpus)
    device = place_devices([spec], gpus, soft=False).devices[0]
    if device.kind != "GPU":
        message = f"{spec!a} is the {device.kind}, whose memory is not limited here."
        raise WrongUseError(code="not-a-gpu", message=message)
    if device.uuid is None:
        message = f"The GPU {spec!a} has no readable UUID, by which it would be chosen."
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
    what = "no visible GPU has" if not found else f"{len(found)} visible GPUs have"
    message = f"The UUID {spec!a} is not one GPU's: {what} it."
    raise BadAnswerError(code="no-such-gpu", message=message)
