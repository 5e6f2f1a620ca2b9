"""Inventory of the GPUs: their numbers in NVML and in CUDA, and the processes on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpucheck.drivers.interface import Probes
from gpucheck.drivers.readings import (
    HUNG,
    GpuReading,
    KernelReading,
    NvmlReading,
    NvmlRequest,
    ProbeFailure,
)
from gpucheck.inventory.gpu_row import describe_gpu, describe_topology, rows_of
from gpucheck.inventory.model import Gpu, GpuState, Inventory, Topology, Visibility
from gpucheck.inventory.visibility import PCI_BUS_ID, apply_rules, is_mig, is_silent, join_driver
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    GpucheckError,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.host import Host
from gpucheck.report.text import ranges

#: Failures after which it is open whether there are GPUs: no answer, or no question asked.
UNDECIDED = frozenset({"driver-not-answering", "nvml-child-died", "not-recorded", "timeout"})
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
    names_devices: bool = False,
    topology: bool = False,
    process_utilization: bool = False,
    reading: NvmlReading | None = None,
) -> Answer:
    """List the GPUs; without any the answer has exit code 4, with a hung driver 3.

    Where NVML's library is missing, they are those that CUDA enumerates.

    `ask_driver` starts CUDA; otherwise it starts only where the rules leave the numbers open, and
    not beside a card that does not answer. A command that `names_devices` for a program needs the
    numbers: CUDA is asked there too, and where its own order decides them. `reading` is what NVML
    has said already.
    """
    environment = probes.environment()
    if ask_driver or (names_devices and has_own_order(environment, probes.kernel().pci_devices)):
        probes.start_cuda()
    if reading is None:
        wanted = NvmlRequest(topology=topology, process_utilization=process_utilization)
        reading = probes.nvml(wanted)
    missing = reading.failure
    reading = complete_reading(reading, probes)
    from_cuda = missing is not None and reading.failure is None
    host = complete_host(probes.host(), reading)
    rows = rows_of(reading)
    visibility = see_visibility(
        rows,
        environment,
        probes,
        ask_driver=ask_driver or from_cuda,
        names_devices=names_devices,
        driver_version=reading.driver_version,
    )
    kernel = probes.kernel() if rows else KernelReading()
    identities = probes.identify({p.pid for row in rows for p in row.processes})
    split = any(is_mig(row) for row in rows)
    gpus = tuple(describe_gpu(row, visibility, kernel, identities, split=split) for row in rows)
    links = describe_topology(reading.topology, rows) if reading.topology else None
    inventory = Inventory(gpus=gpus, visibility=visibility, topology=links)
    notices = [*_notices(reading, inventory, environment, topology=topology)]
    if missing is not None and from_cuda:
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


def complete_reading(reading: NvmlReading, probes: Probes) -> NvmlReading:
    """Return NVML's reading; where its library is missing, what CUDA enumerates."""
    if reading.failure is None or reading.failure.code != NO_LIBRARY:
        return reading
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


def list_gpus(probes: Probes, *, names_devices: bool = False) -> tuple[Gpu, ...]:
    """Return the GPUs, or raise if there are none.

    `names_devices` as in take_inventory.

    Raises:
        InconclusiveError: the driver did not answer.
        MissingError: there is no GPU, or no driver to list it.
    """
    answer = take_inventory(probes, names_devices=names_devices)
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
    ask_driver: bool = False,
    names_devices: bool = False,
    driver_version: str | None = None,
) -> Visibility:
    """Apply the rules; ask the driver where they leave it open, or when told to.

    `ask_driver` and `names_devices` as in take_inventory.
    """
    visibility = apply_rules(
        environment.get("CUDA_VISIBLE_DEVICES"),
        environment.get("CUDA_DEVICE_ORDER"),
        rows,
        driver_version=driver_version,
    )
    silent = any(is_silent(row) for row in rows)
    question = visibility.open_question
    ask_driver |= names_devices and (bool(question) or has_own_order(environment, rows))
    if not rows or not (ask_driver or question):
        return visibility
    hung = next((row.failure for row in rows if row.failure and row.failure.code == HUNG), None)
    if silent and not (ask_driver or hung):
        return visibility._replace(open_question=f"{question} (list --ask-driver starts CUDA)")
    if hung:
        reason = "CUDA was not asked, because it may hang on that GPU too"
        return visibility._replace(open_question=f"{question}; {reason}" if question else reason)
    cuda = probes.cuda()
    joined = join_driver(visibility, cuda, rows)
    if joined is not None:
        return joined
    problem = cuda.failure.message if cuda.failure else "its devices cannot be told apart"
    reason = f"the driver gave no answer: {problem}"
    return visibility._replace(open_question=f"{question}; {reason}" if question else reason)


def has_own_order(environment: Mapping[str, str], cards: Sequence[object] | None) -> bool:
    """Return whether CUDA numbers these cards by its own order, and not by that of the bus."""
    return len(cards or ()) > 1 and environment.get("CUDA_DEVICE_ORDER") != PCI_BUS_ID


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
    clause = "Not every GPU can be listed: " if some else NOT_LISTED
    return Failure(
        code=f"nvml-{failure.code.removeprefix('nvml-')}",
        message=f"{clause}{failure.message}{number}.",
        remedy=(NEXT_STEP,),
    )


def _notices(
    reading: NvmlReading, inventory: Inventory, environment: Mapping[str, str], *, topology: bool
) -> list[Notice]:
    notices = [
        _silent_notice(state, [gpu.index for gpu in inventory.gpus if gpu.state is state])
        for state in dict.fromkeys(gpu.state for gpu in inventory.gpus)
        if state is not GpuState.OK
    ]
    question = inventory.visibility.open_question
    if question and inventory.visibility.visible is None:
        message = f"CUDA's device numbers are not known: {question}."
        notices.append(Notice(code="cuda-order-unknown", message=message))
    elif question:
        message = f"CUDA's device numbers follow the documented rules alone: {question}."
        notices.append(Notice(code="cuda-driver-silent", message=message))
    if topology and reading.gpus and reading.topology is None:
        notices.append(Notice(code="topology-unknown", message="The topology was not read."))
    if inventory.visibility.disagreement or _EXPLAINED & environment.keys():
        # Imported only if needed: most machines set none of the variables.
        from gpucheck.inventory.advice import advise

        notices += advise(inventory.visibility, reading.gpus, environment)
    return notices


def _silent_notice(state: GpuState, indices: Sequence[int]) -> Notice:
    numbers = ", ".join(str(index) for index in indices)
    which = f"GPU {numbers} does" if len(indices) == 1 else f"GPUs {numbers} do"
    message = f"{which} not answer: run gpucheck detect."
    return Notice(code=f"gpu-{state}", message=message)


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
        named = [gpu for gpu in gpus if str(gpu.index) == (name.lstrip("0") or "0")]
    elif folded.startswith(("gpu-", "mig-")):
        named = [
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
        named = [gpu for gpu in gpus if gpu.pci_bus_id == full]
    else:
        message = f"{name!r} names no GPU: give its index, its UUID or its PCI bus id."
        raise WrongUseError(code="bad-gpu-name", message=message)
    if not named:
        indices = ranges([gpu.index for gpu in gpus])
        message = f"There is no GPU {name!r} here, only GPU{'s' * (len(gpus) > 1)} {indices}."
        raise BadAnswerError(code="no-such-gpu", message=message)
    return named


def keep_user(inventory: Inventory, user: str | None) -> Inventory:
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
