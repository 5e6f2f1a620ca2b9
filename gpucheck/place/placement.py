"""Placement of device strings such as `/gpu:0`, `cuda:1` or `0` on this machine's devices.

Soft placement follows TensorFlow's placement rules: type and id are both dropped; job, replica and
task are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpucheck.drivers.host.processes import program_of
from gpucheck.drivers.readings import CudaReading
from gpucheck.inventory.memory import free_bytes
from gpucheck.inventory.model import Gpu, GpuProcess, GpuState, MigInstance, Visibility
from gpucheck.inventory.visibility import bus_place, digits_of
from gpucheck.place.device_strings import DeviceSpec, malformed, parse_device
from gpucheck.place.model import PlacedDevice, Placement
from gpucheck.report.envelope import Notice
from gpucheck.report.errors import (
    BadAnswerError,
    GpucheckError,
    InconclusiveError,
    MissingError,
)
from gpucheck.report.text import quoted, shown

LOCAL_TASK = "/job:localhost/replica:0/task:0"


@dataclass(frozen=True, slots=True)
class CudaDevice:
    """A device that a program can get from CUDA: a GPU, or one of its MIG instances."""

    gpu: Gpu
    instance: MigInstance | None = None

    @property
    def cuda_index(self) -> int | None:
        """Return the device's ordinal; None if hidden, or in an order that only CUDA knows."""
        return self.instance.cuda_index if self.instance else self.gpu.cuda_index

    @property
    def uuid(self) -> str | None:
        """Return the UUID of the instance, or of the whole GPU."""
        return self.instance.uuid if self.instance else self.gpu.uuid

    @property
    def name(self) -> str | None:
        """Return the instance's name, or that of the GPU."""
        return (self.instance and self.instance.name) or self.gpu.name

    @property
    def memory_total_bytes(self) -> int | None:
        """Return the size of the device's memory."""
        return (self.instance or self.gpu).memory_total_bytes

    @property
    def memory_free_bytes(self) -> int | None:
        """Return the device's memory that is free for us; for an instance that is not a reading."""
        if self.instance is None:
            return free_bytes(self.gpu)
        total, used = self.instance.memory_total_bytes, self.instance.memory_used_bytes
        return None if total is None or used is None else total - used

    @property
    def processes(self) -> tuple[GpuProcess, ...]:
        """Return the processes that compute on the device."""
        mine = self.instance and self.instance.uuid
        return tuple(
            process
            for process in self.gpu.processes
            if process.type != "graphics" and (self.instance is None or process.mig_uuid == mine)
        )

    @property
    def pids(self) -> frozenset[int]:
        """Return the ids of the processes that compute on the device."""
        return frozenset(process.pid for process in self.processes)


def visible_devices(gpus: Sequence[Gpu]) -> tuple[CudaDevice, ...]:
    """Return the devices that CUDA enumerates, by ordinal; unknown ordinals come last.

    Raises:
        InconclusiveError: there are GPUs, but which of them are visible is unknown.
    """
    devices = [device for gpu in gpus for device in _devices_of(gpu)]
    # CUDA may see a GPU, or an instance of it, under an unknown number.
    if not devices and any(
        gpu.visible is None or bool(gpu.visible and gpu.mig.enabled and gpu.mig.instances)
        for gpu in gpus
    ):
        raise _order_unknown(gpus)
    last = len(devices)
    return tuple(
        sorted(devices, key=lambda d: (last if d.cuda_index is None else d.cuda_index, d.gpu.index))
    )


def _devices_of(gpu: Gpu) -> list[CudaDevice]:
    instances = [
        CudaDevice(gpu, instance)
        for instance in gpu.mig.instances
        if instance.cuda_index is not None
    ]
    whole = gpu.visible and not gpu.mig.enabled and gpu.state is not GpuState.LOST
    if instances or not (whole or gpu.cuda_index is not None):
        return instances
    return [CudaDevice(gpu)]


def _order_unknown(gpus: Sequence[Gpu]) -> InconclusiveError:
    reasons = (gpu.unavailable.get("visible") or gpu.unavailable.get("cuda_index") for gpu in gpus)
    reason = next((reason for reason in reasons if reason), "the rules leave it open")
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid]
    # No variable helps if a GPU does not answer, or two have the same UUID.
    broken = len(set(uuids)) < len(uuids) or any(gpu.state is not GpuState.OK for gpu in gpus)
    return InconclusiveError(
        code="cuda-order-unknown",
        message=f"The CUDA numbers of the GPUs are unknown: {reason}.",
        remedy=("Run: gpucheck detect",)
        if broken
        else ("Set CUDA_DEVICE_ORDER=PCI_BUS_ID.", "Or run it where the CUDA driver answers."),
    )


def resolve(spec: DeviceSpec, gpus: Sequence[Gpu], *, soft: bool) -> PlacedDevice:
    """Return the device that `spec` means among the visible GPUs and the CPU.

    A spec without a type gets the best device, the lowest GPU before the CPU. With `soft` that
    device also replaces one that does not exist, and `soft` in the result is true.

    Raises:
        WrongUseError: an index is negative.
        BadAnswerError: there is no such device, or it does not answer.
        MissingError: it is a GPU, and there is none at all.
        InconclusiveError: the answer depends on an order that is unknown.
    """
    if any(number is not None and number < 0 for number in (spec.index, spec.replica, spec.task)):
        raise malformed(
            fact=f"Malformed device specification {quoted(spec.text)}: a number in it is negative."
        )
    _check_task(spec)
    _check_uuids(gpus)
    devices = _ordered(spec, gpus)
    device = _find(spec, devices) if spec.uuid is None else _find_by_uuid(spec, devices)
    _check_answering(spec, gpus, devices, device)
    if device is not None:
        return _placed(spec, device, devices, soft=False)
    if not soft:
        raise _no_such_device(spec, gpus, devices)
    return _placed(spec, _best(devices), devices, soft=True)


def _check_uuids(gpus: Sequence[Gpu]) -> None:
    """Refuse GPUs that share a UUID: CUDA could mean either.

    Raises:
        InconclusiveError: two of them report the same UUID.
    """
    for gpu in gpus:
        same = [other.index for other in gpus if gpu.uuid and other.uuid == gpu.uuid]
        if len(same) > 1:
            names = " and ".join(str(index) for index in same)
            raise InconclusiveError(
                code="same-uuid",
                message=f"GPUs {names} report the same UUID, {gpu.uuid}: neither can be named for"
                " certain.",
                remedy=("Ask the vendor: a UUID is made from the serial number.",),
            )


def check_agreement(visibility: Visibility) -> None:
    """Refuse ordinals if CUDA enumerates the GPUs otherwise than NVIDIA's documents promise.

    `list` does not start CUDA and follows the documents: a different number here would lead to
    another GPU.

    Raises:
        InconclusiveError: with both orders.
    """
    if visibility.disagreement is not None:
        raise InconclusiveError(
            code="cuda-order-unknown",
            message=f"The CUDA numbers of the GPUs are not certain. {visibility.disagreement}",
            remedy=(
                "Choose by UUID instead: gpucheck place --count 1",
                "See what CUDA leaves out: gpucheck detect",
            ),
        )


def place_devices(texts: Sequence[str], gpus: Sequence[Gpu], *, soft: bool) -> Placement:
    """Resolve device strings (several are towers), with the variables for just these GPUs."""
    specs = [parse_device(text) for text in texts]
    devices = tuple(resolve(spec, gpus, soft=soft) for spec in specs)
    return Placement(devices=devices, environment=environment_for(devices))


_CPU = "CPU:0"
#: An empty list would hide all GPUs too, but a failed script may leave one by accident.
NO_GPU = "-1"


def _check_task(spec: DeviceSpec) -> None:
    """Refuse every task but this process, with soft placement too.

    The message is that of TensorFlow 2.21's eager mode, which fills in `CPU:0` for missing parts.
    """
    here = spec.job in (None, "localhost", "*") and not spec.replica and not spec.task
    if here:
        return
    full = DeviceSpec(
        text=spec.text,
        job="localhost" if spec.job in (None, "*") else spec.job,
        replica=spec.replica or 0,
        task=spec.task or 0,
        kind=spec.kind or "CPU",
        index=spec.index or 0,
    )
    raise BadAnswerError(
        code="no-such-task",
        message=f"{shown(full.canonical)} unknown device.",
        remedy=(f"This process is {LOCAL_TASK}; leave job, replica and task out.",),
    )


def _ordered(spec: DeviceSpec, gpus: Sequence[Gpu]) -> tuple[CudaDevice, ...]:
    """Return the visible GPUs; those of unknown order only if the order does not matter."""
    if spec.kind == "CPU" and not spec.index:
        return ()
    devices = visible_devices(gpus)
    if len(devices) > 1 and any(device.cuda_index is None for device in devices):
        raise _order_unknown(gpus)
    return devices


def _find(spec: DeviceSpec, devices: Sequence[CudaDevice]) -> CudaDevice | str | None:
    match spec.kind:
        case None:
            return _best(devices)
        case "CPU":
            return _CPU if not spec.index else None
        case "GPU":
            index = spec.index or 0
            if len(devices) == 1 and devices[0].cuda_index is None:
                return devices[0] if index == 0 else None
            return next((device for device in devices if device.cuda_index == index), None)
        case _:
            return None


def _check_answering(
    spec: DeviceSpec,
    gpus: Sequence[Gpu],
    devices: Sequence[CudaDevice],
    named: CudaDevice | str | None,
) -> None:
    """Refuse an ordinal that CUDA gives to a GPU that does not answer.

    CUDA counts its devices without a gap, so a missing ordinal belongs to a GPU that NVML could
    not name. Which GPU comes after the last known ordinal is unknown.
    """
    silent = [gpu for gpu in gpus if gpu.state is not GpuState.OK]
    wanted = spec.index or 0
    if named is not None or spec.kind != "GPU" or spec.uuid is not None or not silent:
        return
    known = {device.cuda_index for device in devices if device.cuda_index is not None}
    if wanted >= len(known) + len(silent):
        return
    names = ", ".join(str(gpu.index) for gpu in silent)
    states = " and ".join(sorted({_SILENT[gpu.state] for gpu in silent}))
    which = (
        f"GPU {names}, which {states}" if len(silent) == 1 else f"one of GPUs {names} ({states})"
    )
    raise BadAnswerError(
        code="gpu-not-answering",
        message=f"{quoted(spec.text)} can only be {which}.",
        remedy=(f"{_existing(devices)} and answer: name one of them.", "Run: gpucheck detect"),
    )


_SILENT = {GpuState.LOST: "is lost", GpuState.ERROR: "does not answer"}


def _find_by_uuid(spec: DeviceSpec, devices: Sequence[CudaDevice]) -> CudaDevice | None:
    start = (spec.uuid or "").lower()
    known = [device for device in devices if (device.uuid or "").lower().startswith(start)]
    if len(known) > 1:
        raise BadAnswerError(
            code="ambiguous-uuid",
            message=f"{len(known)} visible GPUs have a UUID that begins with {quoted(spec.text)}.",
            remedy=("Write more digits; gpucheck list shows them.",),
        )
    return known[0] if known else None


def _best(devices: Sequence[CudaDevice]) -> CudaDevice | str:
    return devices[0] if devices else _CPU


def _placed(
    spec: DeviceSpec, device: CudaDevice | str, devices: Sequence[CudaDevice], *, soft: bool
) -> PlacedDevice:
    if isinstance(device, str):
        return PlacedDevice(
            spec=spec.text,
            resolved=f"{LOCAL_TASK}/device:{_CPU}",
            kind="CPU",
            soft=soft,
            reason=_reason(spec, "the CPU", devices, soft=soft),
            names={"tensorflow": "/device:CPU:0", "pytorch": "cpu", "theano": "cpu", "jax": "cpu"},
        )
    ordinal = device.cuda_index or 0
    reason = _reason(spec, f"CUDA device {ordinal}", devices, soft=soft)
    return placed_gpu(device, ordinal, spec=spec.text, cuda_index=ordinal, reason=reason, soft=soft)


def placed_gpu(
    device: CudaDevice,
    ordinal: int,
    *,
    spec: str,
    cuda_index: int | None,
    reason: str,
    soft: bool = False,
) -> PlacedDevice:
    """Return a GPU or instance as the device of `spec`, under the ordinal that a program gives it.

    A MIG instance has no name in nvidia-smi: its number there is that of the whole card.
    """
    gpu = device.gpu
    names = {
        "tensorflow": f"/device:GPU:{ordinal}",
        "pytorch": f"cuda:{ordinal}",
        "theano": f"cuda{ordinal}",
        "cupy": str(ordinal),
        "jax": str(ordinal),
        "nvidia-smi": None if device.instance else str(gpu.index),
        "cuda-visible-devices": device.uuid or None,
    }
    return PlacedDevice(
        spec=spec,
        resolved=f"{LOCAL_TASK}/device:GPU:{ordinal}",
        kind="GPU",
        cuda_index=cuda_index,
        index=gpu.index,
        uuid=device.uuid,
        name=device.name,
        pci_bus_id=gpu.pci_bus_id,
        mig_instance=device.instance is not None,
        soft=soft,
        reason=reason,
        names={library: name for library, name in names.items() if name is not None},
        used_by=programs(device.processes, "{user}: {program} (process {pid})"),
    )


def programs(processes: Sequence[GpuProcess], form: str) -> tuple[str, ...]:
    """Return the user and the program of each process, alike ones once."""
    names = []
    for process in sorted(processes, key=lambda process: process.pid):
        program = program_of(process.command) or process.name
        known = process.user and program
        other = f"process {process.pid}" + (f" ({program})" if program else "")
        named = form.format(user=process.user, program=program, pid=process.pid)
        names.append(named if known else other)
    return tuple(dict.fromkeys(names))


def _reason(spec: DeviceSpec, chosen: str, devices: Sequence[CudaDevice], *, soft: bool) -> str:
    if soft:
        wanted = shown(spec.text if spec.uuid else spec.canonical)
        return f"there is no {wanted}; soft placement drops type and id, which leaves {chosen}"
    if spec.kind is None:
        return f"no type was given, and {chosen} is the best device"
    if spec.kind == "CPU":
        return "the CPU, which every process has"
    if len(devices) == 1:
        return f"{chosen}, the only visible one"
    # CUDA counts more devices than these: one of them does not answer.
    if any((device.cuda_index or 0) >= len(devices) for device in devices):
        return f"{chosen}, one of {len(devices)} that answer"
    rank = "the lowest" if spec.index is None and spec.uuid is None else "one"
    return f"{chosen}, {rank} of {len(devices)} visible ones"


def _no_such_device(
    spec: DeviceSpec, gpus: Sequence[Gpu], devices: Sequence[CudaDevice]
) -> GpucheckError:
    """Return the error with the devices that exist, and its details in TensorFlow's words.

    On a machine without any GPU, a GPU is something missing and not a bad answer.
    """
    wanted = DeviceSpec(
        text=spec.text, job="localhost", replica=0, task=0, kind=spec.kind, index=spec.index
    )
    which = "one of them" if devices else "it"
    remedy = [f"{_existing(devices)}: name {which}, or pass --soft."]
    hidden = [gpu for gpu in gpus if gpu.visible is False] if spec.kind == "GPU" else []
    if hidden:
        count = "1 GPU is" if len(hidden) == 1 else f"{len(hidden)} GPUs are"
        reason = next((f" ({gpu.hidden_reason})" for gpu in hidden if gpu.hidden_reason), "")
        remedy.append(f"{count} hidden from CUDA{reason}; see why: gpucheck list")
    needs_gpu = spec.kind == "GPU" or spec.uuid is not None
    kind = MissingError if needs_gpu and not gpus else BadAnswerError
    error = kind(
        code="no-such-device",
        message=f"There is no {quoted(spec.text)} here.",
        remedy=tuple(remedy),
    )
    if spec.uuid is None:
        words = f"could not satisfy device specification {quoted(wanted.canonical)}"
        error.details = (f"In TensorFlow's words: {words}.",)
    return error


def _existing(devices: Sequence[CudaDevice]) -> str:
    """Return a sentence on the devices that exist: "Only /cpu:0 exists here"."""
    ordinals = sorted(device.cuda_index or 0 for device in devices)
    if not ordinals:
        return "Only /cpu:0 exists here"
    if len(ordinals) > 1 and ordinals == list(range(len(ordinals))):
        return f"Only /cpu:0 and /gpu:0 to /gpu:{ordinals[-1]} exist here"
    *most, last = ["/cpu:0", *(f"/gpu:{ordinal}" for ordinal in ordinals)]
    return f"Only {', '.join(most)} and {last} exist here"


def environment_for(devices: Sequence[PlacedDevice]) -> dict[str, str]:
    """Return the variables that make only these GPUs visible, in this order.

    GPUs are named by UUID, which no order can change; without a readable UUID there are no
    variables. If none of the devices is a GPU, all GPUs are hidden.
    """
    gpus = list({(gpu.index, gpu.uuid): gpu for gpu in devices if gpu.kind == "GPU"}.values())
    if not gpus:
        value = NO_GPU
    elif all(gpu.uuid for gpu in gpus):
        value = ",".join(gpu.uuid for gpu in gpus if gpu.uuid)
    else:
        return {}
    return {"CUDA_VISIBLE_DEVICES": value, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def environment_by_index(
    placement: Placement,
    gpus: Sequence[Gpu],
    ask_cuda: Callable[[], CudaReading],
    *,
    ordered: bool,
) -> dict[str, str]:
    """Return CUDA_VISIBLE_DEVICES with CUDA's numbers of the GPUs.

    They are those under PCI_BUS_ID, with the variable that asks for it, if `ordered`; else those
    that CUDA gives in this environment. `gpus` are all GPUs. If there are several, `ask_cuda` reads
    what CUDA sees without CUDA_VISIBLE_DEVICES: a GPU that it leaves out would shift the numbers.

    Raises:
        InconclusiveError: the numbers are not certain.
    """
    chosen = list(dict.fromkeys(d.index for d in placement.devices if d.kind == "GPU"))
    in_order = _sort_by_cuda(gpus, ask_cuda, by_bus=ordered) if chosen else []
    numbers = (str(in_order.index(index)) for index in chosen if index is not None)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(numbers) or NO_GPU}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **visible} if ordered else visible


def _sort_by_cuda(
    gpus: Sequence[Gpu], ask_cuda: Callable[[], CudaReading], *, by_bus: bool
) -> list[int]:
    """Return NVML's indices by CUDA's number.

    Raises:
        InconclusiveError: the numbers are not certain.
    """
    cuda = CudaReading()
    doubt = _index_uncertainty(gpus)
    if doubt is None and len(gpus) > 1:
        cuda = ask_cuda()
        doubt = _cuda_uncertainty(gpus, cuda)
    if doubt is not None:
        raise InconclusiveError(
            code="index-not-certain",
            message=f"The CUDA numbers of the GPUs are not certain: {doubt}.",
            remedy=("Use UUIDs: --format uuid.",),
        )
    if by_bus or len(gpus) == 1:
        return [gpu.index for gpu in sorted(gpus, key=lambda gpu: bus_place(gpu.pci_bus_id))]
    by_uuid = {digits_of(gpu.uuid or ""): gpu.index for gpu in gpus}
    return [by_uuid[device.uuid_hex or ""] for device in cuda.devices]


def _index_uncertainty(gpus: Sequence[Gpu]) -> str | None:
    for gpu in gpus:
        if gpu.state is not GpuState.OK:
            return f"GPU {gpu.index} {_SILENT[gpu.state]}"
        if gpu.mig.enabled:
            return f"GPU {gpu.index} is split by MIG"
    places = {bus_place(gpu.pci_bus_id) for gpu in gpus}
    if len(gpus) > 1 and (len(places) < len(gpus) or None in {gpu.pci_bus_id for gpu in gpus}):
        return "not every GPU has a PCI bus id of its own"
    return None


def _cuda_uncertainty(gpus: Sequence[Gpu], cuda: CudaReading) -> str | None:
    if cuda.failure is not None:
        return f"CUDA did not answer ({cuda.failure.message})"
    seen = {device.uuid_hex for device in cuda.devices}
    known = {digits_of(gpu.uuid or ""): gpu for gpu in gpus}
    missing = [gpu for uuid, gpu in known.items() if uuid not in seen]
    if not missing:
        unique = len(known) == len(gpus) and seen <= known.keys()
        return None if unique else "the UUIDs of NVML and of CUDA are not the same"
    names = ", ".join(f"GPU {gpu.index}" for gpu in missing)
    return f"CUDA leaves out {names}, and nothing hides it"


def check_nameable(devices: Sequence[PlacedDevice], *, by_uuid: bool) -> None:
    """Refuse GPUs that a variable cannot name.

    Raises:
        BadAnswerError: a UUID cannot be read; for a whole GPU the index may do.
    """
    nameless = [device for device in devices if device.kind == "GPU" and not device.uuid]
    if nameless and (by_uuid or any(device.mig_instance for device in nameless)):
        raise BadAnswerError(
            code="uuid-not-known",
            message=f"The UUID of GPU {nameless[0].index} cannot be read.",
            remedy=("Use the index: --format index.", "Run: gpucheck detect"),
        )


def prohibited(gpus: Iterable[Gpu]) -> Iterator[Notice]:
    """Yield a warning for each of these GPUs whose compute mode forbids all programs."""
    for gpu in gpus:
        if gpu.compute_mode == "prohibited":
            message = (
                f"GPU {gpu.index} accepts no program: its compute mode is prohibited"
                f" (to allow programs: sudo nvidia-smi -i {gpu.index} -c DEFAULT)."
            )
            yield Notice(code="compute-mode-prohibited", message=message)
