"""Inventory of the GPUs: their numbers in NVML and in CUDA, and the processes on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpucheck.drivers.interface import NvmlRequest, Probes
from gpucheck.drivers.native import gives_nvml_code
from gpucheck.drivers.readings import (
    LIMIT_FIELDS,
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
from gpucheck.inventory.model import (
    Gpu,
    GpuProcess,
    GpuState,
    Inventory,
    MigInstance,
    MigState,
    PcieLink,
    Topology,
    Visibility,
)
from gpucheck.inventory.topology import describe_topology
from gpucheck.inventory.visibility import (
    AFTER_INVALID,
    apply_rules,
    is_mig,
    is_silent,
    join_driver,
)
from gpucheck.report.envelope import Answer, Failure, Host, Notice
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.text import ranges

#: Failures after which it is open whether there are GPUs: no answer, or no question asked.
UNDECIDED = frozenset({"driver-not-answering", "nvml-child-died", "not-recorded", "timeout"})
#: The next call into this driver would hang too.
HUNG = "driver-not-answering"
#: There is no NVML, as on a Jetson or without a container's `utility` capability; CUDA may work.
NO_LIBRARY = "library-not-found"
_CUDA_ALONE = (
    "these are the GPUs that CUDA enumerates, without what NVML alone knows (memory in use, load,"
    " programs, health)."
)

NEXT_STEP = "Run: gpucheck detect"
#: Beginning of the sentence that no GPU can be listed.
NOT_LISTED = "The GPUs cannot be listed: "

#: Variables that change which GPUs are visible, or what their numbers mean.
_EXPLAINED = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "CUDA_DEVICE_ORDER",
        "CUDA_MPS_PIPE_DIRECTORY",
        "NVIDIA_VISIBLE_DEVICES",
        "SLURM_JOB_ID",
    }
)


def take_inventory(
    probes: Probes,
    *,
    ask_driver: bool = False,
    topology: bool = False,
    process_utilization: bool = False,
    reading: NvmlReading | None = None,
) -> Answer:
    """List the GPUs; without any the answer has exit code 4, with a hung driver 3.

    Where NVML's library is missing, they are those that CUDA enumerates.

    `ask_driver` starts CUDA; otherwise it starts only where the rules leave the numbers open.
    Commands that name a device for a program set it. `reading` is what NVML has said already.
    """
    if reading is None:
        wanted = NvmlRequest(topology=topology, process_utilization=process_utilization)
        reading = probes.nvml(wanted)
    environment = probes.environment()
    missing = reading.failure
    reading, seen = complete_reading(reading, probes)
    host = complete_host(probes.host(), reading)
    rows = rows_of(reading)
    visibility = see_visibility(
        rows,
        environment,
        probes,
        ask_driver=ask_driver,
        driver_version=reading.driver_version,
        seen=seen,
    )
    kernel = probes.kernel() if rows else KernelReading()
    identities = probes.identify({p.pid for row in rows for p in row.processes})
    split = any(is_mig(row) for row in rows)
    gpus = tuple(describe_gpu(row, visibility, kernel, identities, split=split) for row in rows)
    links = describe_topology(reading.topology, rows) if reading.topology else None
    inventory = Inventory(gpus=gpus, visibility=visibility, topology=links)
    notices = [*_notices(reading, inventory, environment, topology=topology)]
    if seen is not None and missing is not None:
        notices.insert(0, Notice(code="nvml-missing", message=f"{missing.message}: {_CUDA_ALONE}"))
    code, failure = outcome_of(reading)
    if failure is not None:
        # Imported only if needed: most machines have a GPU.
        from gpucheck.inventory.without_nvml import explain_failure

        failure, words = explain_failure(failure, reading, probes)
        notices += words
    return Answer(
        result=inventory, exit_code=code, host=host, error=failure, warnings=tuple(notices)
    )


def complete_reading(
    reading: NvmlReading, probes: Probes
) -> tuple[NvmlReading, CudaReading | None]:
    """Return NVML's reading; where its library is missing, CUDA's, and what a program sees."""
    if reading.failure is None or reading.failure.code != NO_LIBRARY:
        return reading, None
    # Imported only if needed: most machines have the library.
    from gpucheck.inventory.without_nvml import ask_cuda_alone

    return ask_cuda_alone(reading.failure, probes)


def judge_list(answer: Answer) -> Answer:
    """Return the answer of `list`, which has exit code 1 where none of the GPUs answers."""
    inventory = answer.result
    if answer.error is not None or not isinstance(inventory, Inventory) or not inventory.gpus:
        return answer
    if any(gpu.state is GpuState.OK for gpu in inventory.gpus):
        return answer
    count = len(inventory.gpus)
    which = "The GPU does not answer" if count == 1 else f"None of the {count} GPUs answers"
    message = f"{which}: {inventory.gpus[0].error}."
    failure = Failure(code="no-gpu-answers", message=message, remedy=(NEXT_STEP,))
    return answer._replace(exit_code=ExitCode.BAD, error=failure)


def list_gpus(probes: Probes, *, ask_driver: bool = False) -> tuple[Gpu, ...]:
    """Return the GPUs, or raise if there are none.

    `ask_driver` as in take_inventory.

    Raises:
        InconclusiveError: the driver did not answer.
        MissingError: there is no GPU, or no driver to list it.
    """
    answer = take_inventory(probes, ask_driver=ask_driver)
    if answer.error is not None:
        raise error_of(answer)
    inventory = answer.result
    return inventory.gpus if isinstance(inventory, Inventory) else ()


def error_of(answer: Answer) -> GpucheckError:
    """Return the error of an answer, of the class that its exit code has."""
    kinds = {ExitCode.BAD: BadAnswerError, ExitCode.INCONCLUSIVE: InconclusiveError}
    kind = kinds.get(answer.exit_code, MissingError)
    failure = answer.error
    if failure is None:
        return kind(code="no-inventory", message="The GPUs cannot be listed.")
    return failure.as_error(kind)


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
    seen: CudaReading | None = None,
) -> Visibility:
    """Apply the rules; ask the driver where they leave it open, or when told to.

    `seen` is what the driver has said already. A card that does not answer may hang CUDA: then only
    `ask_driver` starts it.
    """
    visibility = apply_rules(
        environment.get("CUDA_VISIBLE_DEVICES"),
        environment.get("CUDA_DEVICE_ORDER"),
        rows,
        driver_version=driver_version,
    )
    silent = any(is_silent(row) for row in rows)
    question = visibility.open_question
    if not rows or not (ask_driver or question or seen):
        return visibility
    hung = next((row.failure for row in rows if row.failure and row.failure.code == HUNG), None)
    if silent and not (ask_driver or hung):
        return visibility._replace(open_question=f"{question} (list --ask-driver starts CUDA)")
    if hung:
        reason = "CUDA was not asked, because it may hang on that GPU too"
        return visibility._replace(open_question=f"{question}; {reason}" if question else reason)
    cuda = probes.cuda() if seen is None else seen
    joined = join_driver(visibility, cuda, rows)
    if joined is not None:
        return joined
    problem = cuda.failure.message if cuda.failure else "its devices cannot be told apart"
    reason = f"the driver gave no answer: {problem}"
    return visibility._replace(open_question=f"{question}; {reason}" if question else reason)


def outcome_of(reading: NvmlReading) -> tuple[ExitCode, Failure | None]:
    """Return the exit code and the error of a reading: 4 without a GPU, 3 where that is open."""
    failure = reading.failure
    if failure is None:
        if reading.gpu_count:
            return ExitCode.OK, None
        failure = ProbeFailure(code="no-gpu", message="NVML answers, but lists no GPU")
    code = ExitCode.INCONCLUSIVE if failure.code in UNDECIDED else ExitCode.MISSING
    return code, nvml_failure(failure, reading.gpus)


def nvml_failure(failure: ProbeFailure, rows: Iterable[GpuReading] = ()) -> Failure:
    """Return NVML's failure with the sentence and the remedy that every command gives.

    `rows` are the GPUs that were read nevertheless.
    """
    some = any(row.failure is None for row in rows)
    number = "" if failure.library_code is None else f" (NVML error {failure.library_code})"
    what = "Not every GPU can be listed: " if some else NOT_LISTED
    return Failure(
        code=f"nvml-{failure.code.removeprefix('nvml-')}",
        message=f"{what}{failure.message}{number}.",
        remedy=(NEXT_STEP,),
    )


def _notices(
    reading: NvmlReading,
    inventory: Inventory,
    environment: Mapping[str, str],
    *,
    topology: bool,
) -> list[Notice]:
    found = [
        _silent_notice(state, [gpu.index for gpu in inventory.gpus if gpu.state is state])
        for state in dict.fromkeys(gpu.state for gpu in inventory.gpus)
        if state is not GpuState.OK
    ]
    question = inventory.visibility.open_question
    if question and inventory.visibility.visible is None:
        message = f"CUDA's device numbers are not known: {question}."
        found.append(Notice(code="cuda-order-unknown", message=message))
    elif question:
        message = f"CUDA's device numbers follow the documented rules alone: {question}."
        found.append(Notice(code="cuda-driver-silent", message=message))
    if topology and reading.gpus and reading.topology is None:
        found.append(Notice(code="topology-unknown", message="The topology was not read."))
    if inventory.visibility.disagreement or _EXPLAINED & environment.keys():
        # Imported only if needed: most machines set none of the variables.
        from gpucheck.inventory.advice import advise

        found += advise(inventory.visibility, reading.gpus, environment)
    return found


def _silent_notice(state: GpuState, indices: Sequence[int]) -> Notice:
    numbers = ", ".join(str(index) for index in indices)
    which = f"GPU {numbers} does" if len(indices) == 1 else f"GPUs {numbers} do"
    message = f"{which} not answer: run gpucheck detect."
    return Notice(code=f"gpu-{state}", message=message)


# ------------------------------------------------------------------------ the row of a GPU


_SAME_NAME = set(Gpu._fields) & set(GpuReading._fields)
_MEMORY = ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes")
_APART = {"processes", "unavailable", "numa_node", "cpu_affinity", *_MEMORY}
_COPIED = tuple(sorted(_SAME_NAME - _APART))
#: Fields of a reading that are nested in the document.
_NESTED = {
    "pcie_generation": "pcie.generation",
    "pcie_generation_max": "pcie.generation_max",
    "pcie_width": "pcie.width",
    "pcie_width_max": "pcie.width_max",
    "mig_enabled": "mig.enabled",
    "mig_instances": "mig.instances",
    "process_utilization": "processes.utilization_sm_percent",
}
#: The reading that no field of the document shows.
_NOT_SHOWN = "pci_device_id"
#: What is absent of a GPU that does not answer.
UNANSWERED = frozenset({*_COPIED, *_MEMORY, *_NESTED, "processes"} - {"index", *LIMIT_FIELDS})
#: Why CUDA's total is no figure of the card's.
SHARED_MEMORY = "the GPU shares the CPU's memory"


def rows_of(reading: NvmlReading) -> tuple[GpuReading, ...]:
    """Return a reading for each GPU that NVML counted, even if it never answered."""
    failure = reading.failure
    if failure is None or reading.gpu_count is None:
        return reading.gpus
    reasons = dict.fromkeys(UNANSWERED, failure.message)
    answered = {gpu.index: gpu for gpu in reading.gpus}
    return tuple(
        answered.get(index) or GpuReading(index=index, failure=failure, unavailable=reasons)
        for index in range(reading.gpu_count)
    )


def describe_gpu(
    row: GpuReading,
    visibility: Visibility,
    kernel: KernelReading,
    identities: Mapping[int, ProcessIdentity],
    *,
    split: bool,
) -> Gpu:
    """Return the row of one GPU.

    `split`: some GPU is in MIG mode, and then older drivers show a program only one instance.
    """
    processes = _processes(row, identities)
    unavailable = _reasons(row, processes)
    pci = next(
        (each for each in kernel.pci_devices or () if each.pci_bus_id == row.pci_bus_id),
        PciDeviceReading(pci_bus_id="", vendor_id=""),
    )
    locality = {}
    for name in ("numa_node", "cpu_affinity"):
        by_kernel = getattr(pci, name)
        locality[name] = getattr(row, name) if by_kernel is None else by_kernel
        unavailable.pop(name, None)
        if locality[name] is None:
            unavailable[name] = _not_in_kernel(row, kernel, pci)
    visible, cuda_index, hidden = _seen(row, visibility, split=split)
    if cuda_index is None:
        split_up = "CUDA numbers its MIG instances instead"
        unavailable["cuda_index"] = hidden or visibility.open_question or split_up
    if visible is None:
        unavailable["visible"] = visibility.open_question or "the GPU has no readable UUID"
    migs = tuple(_mig_instance(mig, visibility) for mig in row.mig_instances)
    for position, instance in enumerate(migs):
        if instance.cuda_index is None:
            reason = visibility.open_question or hidden or "CUDA does not enumerate it"
            unavailable[f"mig.instances[{position}].cuda_index"] = reason
    memory = {name: getattr(row, name) for name in _MEMORY}
    source = "driver"
    if _shares_memory(row, kernel):
        total, free = kernel.memory_total_bytes, kernel.memory_available_bytes
        used = None if total is None or free is None else total - free
        memory = dict(zip(_MEMORY, (total, used, free), strict=True))
        source = "system"
        for name, value in memory.items():
            if value is not None:
                unavailable.pop(name, None)
    return Gpu(
        **{name: getattr(row, name) for name in _COPIED},
        **memory,
        memory_source=source,
        cuda_index=cuda_index,
        visible=visible,
        hidden_reason=hidden,
        pcie=PcieLink(
            generation=row.pcie_generation,
            generation_max=row.pcie_generation_max,
            width=row.pcie_width,
            width_max=row.pcie_width_max,
        ),
        **locality,
        mig=MigState(enabled=row.mig_enabled, instances=migs),
        processes=processes,
        state=_state(row),
        error=_trouble(row),
        unavailable=unavailable,
    )


def _shares_memory(row: GpuReading, kernel: KernelReading) -> bool:
    """Return whether the GPU has no memory of its own (GB10, Jetson, integrated boards).

    Only there NVML answers "not supported" (3) when asked for the size; CUDA tells it apart.
    """
    reason = row.unavailable.get("memory_total_bytes", "")
    shared = reason == SHARED_MEMORY or gives_nvml_code(reason, 3)
    offered = row.memory_total_bytes is not None or not shared
    return row.failure is None and not offered and kernel.memory_total_bytes is not None


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
        no_load = "not requested"
    for name, reason in (
        ("memory_used_bytes", "the driver does not report it for every process"),
        ("utilization_sm_percent", no_load or "the driver has no sample of every process"),
        ("age_s", "/proc does not show when every process started"),
    ):
        if any(getattr(process, name) is None for process in processes):
            found[f"processes.{name}"] = reason
    return found


def _not_in_kernel(row: GpuReading, kernel: KernelReading, pci: PciDeviceReading) -> str:
    if kernel.pci_unavailable is not None:
        return kernel.pci_unavailable
    if row.pci_bus_id is None:
        return "its PCI bus id is not known"
    return "the kernel does not report it" if pci.pci_bus_id else "the kernel does not list the GPU"


def _state(row: GpuReading) -> GpuState:
    if row.failure is not None and row.failure.code == "gpu-is-lost":
        return GpuState.LOST
    return GpuState.OK if _trouble(row) is None else GpuState.ERROR


def _trouble(row: GpuReading) -> str | None:
    """Return why the GPU as a whole does not answer; a failed single reading is no reason."""
    if row.failure is not None:
        return row.failure.message
    if row.uuid is None and row.name is None and row.memory_total_bytes is None:
        return row.unavailable.get("uuid", "it answers none of the basic queries")
    return None


def _seen(
    row: GpuReading, visibility: Visibility, *, split: bool
) -> tuple[bool | None, int | None, str | None]:
    """Return whether CUDA sees the GPU, its ordinal, and why not."""
    if visibility.visible == ():
        return False, None, _hidden_reason(row, visibility, split=split)
    if row.uuid is None:
        return None, None, None  # without a UUID it cannot be found among CUDA's devices
    if visibility.visible is None:
        return None, None, None
    ordinals = {uuid: ordinal for ordinal, uuid in enumerate(visibility.visible)}
    if row.uuid in ordinals:
        return True, ordinals[row.uuid], None
    if any(mig.uuid in ordinals for mig in row.mig_instances):
        return True, None, None
    return False, None, _hidden_reason(row, visibility, split=split)


def _hidden_reason(row: GpuReading, visibility: Visibility, *, split: bool) -> str:
    if is_mig(row) and not row.mig_instances and "mig_instances" not in row.unavailable:
        return "MIG is enabled, but there is no instance"
    if row.failure is not None:
        return "no answer to NVML"
    text = visibility.cuda_visible_devices
    if text is None:
        beside = " beside a MIG instance" if split and visibility.visible else ""
        return f"not enumerated by the CUDA driver{beside}"
    if text == "":
        return "CUDA_VISIBLE_DEVICES is empty"
    dropped = [entry for entry in visibility.entries if entry.status == "dropped"]
    if dropped and len(dropped) == len(visibility.entries):
        return f"CUDA_VISIBLE_DEVICES={text!r} names no GPU: {dropped[0].reason}"
    ended = next((one.reason for one in dropped if one.reason.startswith(AFTER_INVALID)), "")
    return f"not named in CUDA_VISIBLE_DEVICES={text!r}{ended.replace('it comes after', ' before')}"


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
        key = (process.pid, process.gpu_instance_id, process.compute_instance_id)
        merged.setdefault(key, []).append(process)
    by_pid = sorted(merged.values(), key=lambda readings: readings[0].pid)
    return tuple(_process(row, readings, identities) for readings in by_pid)


def _process(
    row: GpuReading,
    readings: Sequence[ProcessReading],
    identities: Mapping[int, ProcessIdentity],
) -> GpuProcess:
    first = readings[0]
    identity = identities.get(first.pid, ProcessIdentity(pid=first.pid, namespace="unknown"))
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
        name=identity.name,
        user=identity.user,
        command=identity.command,
        memory_used_bytes=max(used) if used else None,
        utilization_sm_percent=(row.process_utilization or {}).get(str(first.pid)),
        mig_uuid=mig,
        namespace=identity.namespace,
        age_s=identity.age_s,
    )


# ----------------------------------------------------------------------- filters and order


_BUS_ID = re.compile(r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]", re.ASCII | re.I)


def select_gpus(inventory: Inventory, wanted: Sequence[str]) -> Inventory:
    """Keep the GPUs named by NVML index, UUID (or the beginning of one) or PCI bus id.

    Raises:
        WrongUseError: a name has none of these forms.
        BadAnswerError: no GPU has that name.
    """
    if not wanted or not inventory.gpus:
        return inventory
    kept = {gpu.index for name in wanted for gpu in _named(name, inventory.gpus)}
    return keep(inventory, lambda gpu: gpu.index in kept)


def _named(name: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    folded = name.casefold()
    if name.isascii() and name.isdigit():
        # As text: a number may have more digits than int() takes.
        found = [gpu for gpu in gpus if str(gpu.index) == (name.lstrip("0") or "0")]
    elif folded.startswith(("gpu-", "mig-")):
        found = [
            gpu
            for gpu in gpus
            if any(
                uuid and uuid.casefold().startswith(folded)
                for uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig.instances))
            )
        ]
    elif _BUS_ID.fullmatch(name):
        domain, _, short = name.lower().rpartition(":")[0].rpartition(":")
        full = f"{int(domain or '0', 16):04x}:{short}:{name.lower().rpartition(':')[2]}"
        found = [gpu for gpu in gpus if gpu.pci_bus_id == full]
    else:
        message = f"{name!r} names no GPU: give its index, its UUID or its PCI bus id."
        raise WrongUseError(code="bad-gpu-name", message=message)
    if not found:
        indices = ranges([gpu.index for gpu in gpus])
        message = f"There is no GPU {name!r} here, only GPU{'s' * (len(gpus) > 1)} {indices}."
        raise BadAnswerError(code="no-such-gpu", message=message)
    return found


def of_user(inventory: Inventory, user: str | None) -> Inventory:
    """Keep the GPUs on which this user runs something, with only that user's processes."""
    if user is None:
        return inventory
    gpus = (
        gpu._replace(processes=tuple(p for p in gpu.processes if p.user == user))
        for gpu in inventory.gpus
    )
    return keep(inventory._replace(gpus=tuple(gpus)), lambda gpu: bool(gpu.processes))


def keep(inventory: Inventory, wanted: Callable[[Gpu], bool]) -> Inventory:
    """Keep the GPUs for which `wanted` holds, and the links among them."""
    gpus = tuple(gpu for gpu in inventory.gpus if wanted(gpu))
    indices = {gpu.index for gpu in gpus}
    topology = inventory.topology
    if topology is not None:
        links = tuple(x for x in topology.links if x.from_ in indices and x.to in indices)
        topology = Topology(links=links)
    return inventory._replace(gpus=gpus, topology=topology)


def sort_gpus(
    inventory: Inventory,
    value: Callable[[Gpu], str | int | float | bool | None],
    *,
    descending: bool,
) -> Inventory:
    """Order the GPUs by a value; ties keep their order, and GPUs without the value come last."""
    present = [gpu for gpu in inventory.gpus if value(gpu) is not None]
    absent = [gpu for gpu in inventory.gpus if value(gpu) is None]
    ordered = sorted(present, key=value, reverse=descending)  # type: ignore[arg-type]
    return inventory._replace(gpus=(*ordered, *absent))
