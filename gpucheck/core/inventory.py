"""Which GPUs there are, what NVML and CUDA each call them, and who uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpucheck.core.topology import describe_topology
from gpucheck.core.visibility import apply_rules, is_mig, join_driver
from gpucheck.models.device import (
    Gpu,
    GpuProcess,
    GpuState,
    Inventory,
    MigInstance,
    MigState,
    PcieLink,
    Visibility,
)
from gpucheck.models.errors import ExitCode, InconclusiveError, MissingError
from gpucheck.models.report import Answer, Failure, Host, Notice
from gpucheck.models.snapshot import (
    CudaReading,
    GpuReading,
    KernelReading,
    MigReading,
    NvmlReading,
    PciDeviceReading,
    ProbeFailure,
    ProcessIdentity,
    ProcessReading,
)
from gpucheck.probes.interface import NvmlQuestion, Probes

#: Failures that leave it open whether there are GPUs: the driver did not tell, or nobody asked.
UNDECIDED = frozenset({"driver-not-answering", "nvml-child-died", "not-recorded", "timeout"})
#: Whoever asks this driver next waits for it in vain.
HUNG = "driver-not-answering"

NEXT_STEP = "Run: gpucheck detect"

_SAME_NAME = set(Gpu._fields) & set(GpuReading._fields)
_COPIED = tuple(sorted(_SAME_NAME - {"processes", "unavailable"}))
#: Fields of a reading that stand nested in the document.
_NESTED = {
    "pcie_generation": "pcie.generation",
    "pcie_generation_max": "pcie.generation_max",
    "pcie_width": "pcie.width",
    "pcie_width_max": "pcie.width_max",
    "mig_enabled": "mig.enabled",
    "mig_instances": "mig.instances",
    "process_utilization": "processes.utilization_sm_percent",
}
#: Variables that change what is seen, or what its numbers mean.
_EXPLAINED = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_MPS_PIPE_DIRECTORY",
        "NVIDIA_VISIBLE_DEVICES",
        "SLURM_JOB_ID",
    }
)
#: The reading that no field of the document shows.
_NOT_SHOWN = "pci_device_id"


class ListRequest(NamedTuple):
    """What to find out beyond the GPUs themselves."""

    ask_driver: bool = False
    topology: bool = False
    process_utilization: bool = False


def take_inventory(request: ListRequest, probes: Probes) -> Answer:
    """List the GPUs; a machine without any is an answer with exit code 4, a hung driver with 3."""
    question = NvmlQuestion(
        topology=request.topology, process_utilization=request.process_utilization
    )
    reading = probes.nvml(question)
    host = complete_host(probes.host(), reading)
    environment = probes.environment()
    rows = _with_silent_rows(reading)
    visibility = see_visibility(
        rows,
        environment,
        probes,
        ask_driver=request.ask_driver,
        driver_version=reading.driver_version,
    )
    kernel = probes.kernel() if rows else KernelReading()
    identities = probes.identify({p.pid for row in rows for p in row.processes})
    split = any(is_mig(row) for row in rows)
    gpus = tuple(_gpu(row, visibility, kernel, identities, split=split) for row in rows)
    topology = describe_topology(reading.topology, rows) if reading.topology else None
    inventory = Inventory(gpus=gpus, visibility=visibility, topology=topology)
    code, failure = _outcome(reading)
    return Answer(
        result=inventory,
        exit_code=code,
        host=host,
        error=failure,
        warnings=tuple(_notices(request, reading, inventory, environment)),
    )


def list_gpus(probes: Probes) -> tuple[Gpu, ...]:
    """Return the GPUs, for programs that want an exception instead of an answer without any.

    Raises:
        InconclusiveError: the driver did not answer.
        MissingError: there is no GPU, or no driver to list it.
    """
    answer = take_inventory(ListRequest(), probes)
    failure = answer.error
    if failure is not None:
        undecided = answer.exit_code is ExitCode.INCONCLUSIVE
        error = InconclusiveError if undecided else MissingError
        raise error(code=failure.code, message=failure.message, remedy=failure.remedy)
    inventory = answer.result
    return inventory.gpus if isinstance(inventory, Inventory) else ()


def complete_host(host: Host, reading: NvmlReading) -> Host:
    """Add the driver's versions to the description of the operating system."""
    version = reading.cuda_driver_version
    return host._replace(
        driver_version=reading.driver_version,
        cuda_driver_version=None if version is None else cuda_version(version),
    )


def cuda_version(number: int) -> str:
    """Return CUDA's 12020 as "12.2". Source: cuDriverGetVersion, 1000 x major + 10 x minor."""
    return f"{number // 1000}.{number % 1000 // 10}"


def see_visibility(
    rows: Sequence[GpuReading],
    environment: Mapping[str, str],
    probes: Probes,
    *,
    ask_driver: bool,
    driver_version: str | None = None,
) -> Visibility:
    """Apply the rules; ask the driver where they leave it open, or when told to."""
    visibility = apply_rules(
        environment.get("CUDA_VISIBLE_DEVICES"),
        environment.get("CUDA_DEVICE_ORDER"),
        rows,
        driver_version=driver_version,
    )
    if not rows or not (ask_driver or visibility.open_question):
        return visibility
    hung = next((row.failure for row in rows if row.failure and row.failure.code == HUNG), None)
    cuda = CudaReading(failure=hung) if hung else probes.cuda()
    joined = join_driver(visibility, cuda, rows)
    if joined is not None:
        return joined
    said = cuda.failure.message if cuda.failure else "it does not name its devices"
    silence = f"the driver gave no answer: {said}"
    question = visibility.open_question
    return visibility._replace(open_question=f"{question}; {silence}" if question else silence)


def _with_silent_rows(reading: NvmlReading) -> tuple[GpuReading, ...]:
    """Add a row for each GPU that NVML counted but that never answered."""
    failure = reading.failure
    if failure is None or reading.gpu_count is None:
        return reading.gpus
    said = failure.message
    silent = (
        GpuReading(
            index=index,
            failure=failure,
            unavailable=dict.fromkeys({*_COPIED, *_NESTED, "processes"} - {"index"}, said),
        )
        for index in range(len(reading.gpus), reading.gpu_count)
    )
    return (*reading.gpus, *silent)


def _outcome(reading: NvmlReading) -> tuple[ExitCode, Failure | None]:
    failure = reading.failure
    if failure is None:
        if reading.gpu_count:
            return ExitCode.OK, None
        failure = ProbeFailure(code="no-gpu", message="NVML answers, but lists no GPU")
    code = ExitCode.INCONCLUSIVE if failure.code in UNDECIDED else ExitCode.MISSING
    return code, nvml_failure(failure)


def nvml_failure(failure: ProbeFailure) -> Failure:
    """Return NVML's failure as the sentence and the next step that every command gives."""
    number = "" if failure.library_code is None else f" (NVML {failure.library_code})"
    return Failure(
        code=f"nvml-{failure.code.removeprefix('nvml-')}",
        message=f"The GPUs cannot be listed: {failure.message}{number}.",
        remedy=(NEXT_STEP,),
    )


def _gpu(
    row: GpuReading,
    visibility: Visibility,
    kernel: KernelReading,
    identities: Mapping[int, ProcessIdentity],
    *,
    split: bool,
) -> Gpu:
    processes = _processes(row, identities)
    unavailable = _reasons(row, processes)
    pci = _pci_device(row, kernel) or PciDeviceReading(pci_bus_id="", vendor_id="")
    for name in ("numa_node", "cpu_affinity"):
        if getattr(pci, name) is None:
            unavailable[name] = _not_in_kernel(row, kernel, pci)
    visible, cuda_index, hidden = _seen(row, visibility, split=split)
    if cuda_index is None:
        unavailable["cuda_index"] = hidden or visibility.open_question or "CUDA numbers its parts"
    if visible is None:
        unavailable["visible"] = visibility.open_question or "the GPU has no readable UUID"
    migs = tuple(_mig_instance(mig, visibility) for mig in row.mig_instances)
    for position, instance in enumerate(migs):
        if instance.cuda_index is None:
            reason = visibility.open_question or hidden or "CUDA does not enumerate it"
            unavailable[f"mig.instances[{position}].cuda_index"] = reason
    return Gpu(
        **{name: getattr(row, name) for name in _COPIED},
        cuda_index=cuda_index,
        visible=visible,
        hidden_reason=hidden,
        pcie=PcieLink(
            generation=row.pcie_generation,
            generation_max=row.pcie_generation_max,
            width=row.pcie_width,
            width_max=row.pcie_width_max,
        ),
        numa_node=pci.numa_node,
        cpu_affinity=pci.cpu_affinity,
        mig=MigState(enabled=row.mig_enabled, instances=migs),
        processes=processes,
        state=_state(row),
        error=_trouble(row),
        unavailable=unavailable,
    )


def _reasons(row: GpuReading, processes: Sequence[GpuProcess]) -> dict[str, str]:
    """Return why readings are absent, under the document's names for them."""
    found = {
        _NESTED.get(name, name): reason
        for name, reason in row.unavailable.items()
        if name not in (_NOT_SHOWN, "process_utilization")
    }
    for position, mig in enumerate(row.mig_instances):
        for name, reason in mig.unavailable.items():
            found[f"mig.instances[{position}].{name}"] = reason
    no_load = row.unavailable.get("process_utilization")
    if no_load is None and row.process_utilization is None:
        no_load = "it was not asked for"
    for name, reason in (
        ("memory_used_bytes", "the driver does not tell it for every process"),
        ("utilization_sm_percent", no_load or "the driver has no sample of every process"),
    ):
        if any(getattr(process, name) is None for process in processes):
            found[f"processes.{name}"] = reason
    return found


def _not_in_kernel(row: GpuReading, kernel: KernelReading, pci: PciDeviceReading) -> str:
    if kernel.pci_unavailable is not None:
        return kernel.pci_unavailable
    if row.pci_bus_id is None:
        return "its PCI bus id is not known"
    return "the kernel does not tell it" if pci.pci_bus_id else "the kernel does not list the GPU"


def _pci_device(row: GpuReading, kernel: KernelReading) -> PciDeviceReading | None:
    for device in kernel.pci_devices or ():
        if device.pci_bus_id == row.pci_bus_id:
            return device
    return None


def _state(row: GpuReading) -> GpuState:
    if row.failure is not None and row.failure.code == "gpu-is-lost":
        return GpuState.LOST
    return GpuState.OK if _trouble(row) is None else GpuState.ERROR


def _trouble(row: GpuReading) -> str | None:
    """Say why the GPU as a whole does not answer; single readings may fail without that."""
    if row.failure is not None:
        return row.failure.message
    if row.uuid is None and row.name is None and row.memory_total_bytes is None:
        return row.unavailable.get("uuid", "it answers none of the basic questions")
    return None


def _seen(
    row: GpuReading, visibility: Visibility, *, split: bool
) -> tuple[bool | None, int | None, str | None]:
    """Return whether CUDA sees the GPU, its ordinal, and why not.

    `split`: some GPU is in MIG mode, and then older drivers show a program one instance alone.
    """
    if visibility.visible == ():
        return False, None, _hidden_reason(row, visibility, split=split)
    if row.uuid is None:
        return None, None, None  # without a UUID it cannot be found among CUDA's devices
    if visibility.visible is None:
        # Unset hides nothing, whatever the order is.
        unset = visibility.cuda_visible_devices is None
        return (True if unset and row.failure is None and not split else None), None, None
    ordinals = {uuid: ordinal for ordinal, uuid in enumerate(visibility.visible)}
    if row.uuid in ordinals:
        return True, ordinals[row.uuid], None
    if any(mig.uuid in ordinals for mig in row.mig_instances):
        return True, None, None
    return False, None, _hidden_reason(row, visibility, split=split)


def _hidden_reason(row: GpuReading, visibility: Visibility, *, split: bool) -> str:
    if is_mig(row) and not row.mig_instances and "mig_instances" not in row.unavailable:
        return "MIG is enabled on it, but it has no instance"
    if row.failure is not None:
        return "it does not answer"
    text = visibility.cuda_visible_devices
    if text is None:
        beside = " beside a MIG instance" if split and visibility.visible else ""
        return f"the CUDA driver does not enumerate it{beside}"
    if text == "":
        return "CUDA_VISIBLE_DEVICES is empty"
    dropped = [entry for entry in visibility.entries if entry.status == "dropped"]
    if dropped and len(dropped) == len(visibility.entries):
        return f"CUDA_VISIBLE_DEVICES={text!r} names no GPU: {dropped[0].reason}"
    return f"CUDA_VISIBLE_DEVICES={text!r} does not name it"


def _mig_instance(mig: MigReading, visibility: Visibility) -> MigInstance:
    visible = visibility.visible or ()
    return MigInstance(
        uuid=mig.uuid,
        name=mig.name,
        memory_total_bytes=mig.memory_total_bytes,
        memory_used_bytes=mig.memory_used_bytes,
        gpu_instance_id=mig.gpu_instance_id,
        compute_instance_id=mig.compute_instance_id,
        cuda_index=visible.index(mig.uuid) if mig.uuid in visible else None,
    )


def _processes(
    row: GpuReading, identities: Mapping[int, ProcessIdentity]
) -> tuple[GpuProcess, ...]:
    """Merge NVML's lists: one row for each process and MIG instance."""
    merged: dict[tuple[int, int | None, int | None], list[ProcessReading]] = {}
    for process in row.processes:
        place = (process.pid, process.gpu_instance_id, process.compute_instance_id)
        merged.setdefault(place, []).append(process)
    return tuple(
        _process(row, readings, identities) for _, readings in sorted(merged.items(), key=_pid)
    )


def _pid(item: tuple[tuple[int, int | None, int | None], list[ProcessReading]]) -> int:
    return item[0][0]


def _process(
    row: GpuReading,
    readings: Sequence[ProcessReading],
    identities: Mapping[int, ProcessIdentity],
) -> GpuProcess:
    first = readings[0]
    who = identities.get(first.pid, ProcessIdentity(pid=first.pid, namespace="unknown"))
    # The lists repeat the same total for a process that is in two of them.
    used = [r.memory_used_bytes for r in readings if r.memory_used_bytes is not None]
    mig = next(
        (
            mig.uuid
            for mig in row.mig_instances
            if first.gpu_instance_id is not None
            and (mig.gpu_instance_id, mig.compute_instance_id)
            == (first.gpu_instance_id, first.compute_instance_id)
        ),
        None,
    )
    return GpuProcess(
        pid=first.pid,
        type="+".join(dict.fromkeys(reading.type for reading in readings)),
        name=who.name,
        user=who.user,
        command=who.command,
        memory_used_bytes=max(used) if used else None,
        utilization_sm_percent=(row.process_utilization or {}).get(str(first.pid)),
        mig_uuid=mig,
        namespace=who.namespace,
    )


def _notices(
    request: ListRequest,
    reading: NvmlReading,
    inventory: Inventory,
    environment: Mapping[str, str],
) -> list[Notice]:
    found = [
        _silent_notice(state, [gpu.index for gpu in inventory.gpus if gpu.state is state])
        for state in dict.fromkeys(gpu.state for gpu in inventory.gpus)
        if state is not GpuState.OK
    ]
    question = inventory.visibility.open_question
    if question and inventory.visibility.visible is None:
        message = f"CUDA's numbering is not known: {question}."
        found.append(Notice(code="cuda-order-unknown", message=message))
    elif question:
        message = f"CUDA's numbering is by the documented rules alone: {question}."
        found.append(Notice(code="cuda-driver-silent", message=message))
    if request.topology and reading.gpus and reading.topology is None:
        found.append(Notice(code="topology-unknown", message="The topology was not read."))
    found += _entry_notices(inventory.visibility)
    if inventory.visibility.disagreement or _EXPLAINED & environment.keys():
        # Imported where there is something to explain: most machines set none of them.
        from gpucheck.core.visibility_advice import advise

        found += advise(inventory.visibility, reading.gpus, environment)
    return found


def _silent_notice(state: GpuState, indices: Sequence[int]) -> Notice:
    numbers = ", ".join(str(index) for index in indices)
    which = f"GPU {numbers} does" if len(indices) == 1 else f"GPUs {numbers} do"
    message = f"{which} not answer; gpucheck detect says what can be done."
    return Notice(code=f"gpu-{state}", message=message)


def _entry_notices(visibility: Visibility) -> list[Notice]:
    for entry in visibility.entries:
        if entry.status == "dropped":
            message = (
                f"CUDA_VISIBLE_DEVICES={visibility.cuda_visible_devices!r}: "
                f"the entry {entry.text!r} is dropped: {entry.reason}."
            )
            return [Notice(code="visible-devices-entry", message=message)]
    return []
