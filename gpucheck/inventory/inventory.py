"""Inventory of the GPUs: their numbers in NVML and in CUDA, and the processes on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpucheck.drivers.interface import NvmlQuestion, Probes
from gpucheck.drivers.readings import GpuReading, KernelReading, NvmlReading, ProbeFailure
from gpucheck.inventory.gpu_row import describe_gpu, rows_of
from gpucheck.inventory.model import Gpu, GpuState, Inventory, Visibility
from gpucheck.inventory.topology import describe_topology
from gpucheck.inventory.visibility import apply_rules, is_mig, is_silent, join_driver
from gpucheck.report.envelope import Answer, Failure, Host, Notice
from gpucheck.report.errors import ExitCode, InconclusiveError, MissingError

#: Failures after which it is open whether there are GPUs: no answer, or no question asked.
UNDECIDED = frozenset({"driver-not-answering", "nvml-child-died", "not-recorded", "timeout"})
#: The next call into this driver would hang too.
HUNG = "driver-not-answering"

NEXT_STEP = "Run: gpucheck detect"

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


class ListRequest(NamedTuple):
    """Parts of the inventory beyond the GPUs themselves.

    `ask_driver` starts CUDA; otherwise it starts only where the rules leave the numbers open.
    Commands that name a device for a program set it.
    """

    ask_driver: bool = False
    topology: bool = False
    process_utilization: bool = False


def take_inventory(request: ListRequest, probes: Probes) -> Answer:
    """List the GPUs; without any the answer has exit code 4, with a hung driver 3."""
    question = NvmlQuestion(
        topology=request.topology, process_utilization=request.process_utilization
    )
    reading = probes.nvml(question)
    host = complete_host(probes.host(), reading)
    environment = probes.environment()
    rows = rows_of(reading)
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
    gpus = tuple(describe_gpu(row, visibility, kernel, identities, split=split) for row in rows)
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

    `ask_driver` as in ListRequest.

    Raises:
        InconclusiveError: the driver did not answer.
        MissingError: there is no GPU, or no driver to list it.
    """
    answer = take_inventory(ListRequest(ask_driver=ask_driver), probes)
    failure = answer.error
    if failure is not None:
        undecided = answer.exit_code is ExitCode.INCONCLUSIVE
        error = InconclusiveError if undecided else MissingError
        raise failure.as_error(error)
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
    """Apply the rules; ask the driver where they leave it open, or when told to.

    A card that does not answer may hang CUDA: then only `ask_driver` starts it.
    """
    visibility = apply_rules(
        environment.get("CUDA_VISIBLE_DEVICES"),
        environment.get("CUDA_DEVICE_ORDER"),
        rows,
        driver_version=driver_version,
    )
    silent = any(is_silent(row) for row in rows)
    question = visibility.open_question
    if not rows or not (ask_driver or question):
        return visibility
    hung = next((row.failure for row in rows if row.failure and row.failure.code == HUNG), None)
    if silent and not (ask_driver or hung):
        return visibility._replace(open_question=f"{question} (list --ask-driver starts CUDA)")
    if hung:
        unasked = "CUDA was not asked, because it may hang on that GPU too"
        return visibility._replace(open_question=f"{question}; {unasked}" if question else unasked)
    cuda = probes.cuda()
    joined = join_driver(visibility, cuda, rows)
    if joined is not None:
        return joined
    said = cuda.failure.message if cuda.failure else "its devices cannot be told apart"
    silence = f"the driver gave no answer: {said}"
    return visibility._replace(open_question=f"{question}; {silence}" if question else silence)


def _outcome(reading: NvmlReading) -> tuple[ExitCode, Failure | None]:
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
    number = "" if failure.library_code is None else f" (NVML {failure.library_code})"
    what = "Not every GPU can be listed" if some else "The GPUs cannot be listed"
    return Failure(
        code=f"nvml-{failure.code.removeprefix('nvml-')}",
        message=f"{what}: {failure.message}{number}.",
        remedy=(NEXT_STEP,),
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
        message = f"CUDA's numbering follows the documented rules alone: {question}."
        found.append(Notice(code="cuda-driver-silent", message=message))
    if request.topology and reading.gpus and reading.topology is None:
        found.append(Notice(code="topology-unknown", message="The topology was not read."))
    if inventory.visibility.disagreement or _EXPLAINED & environment.keys():
        # Imported only if needed: most machines set none of the variables.
        from gpucheck.inventory.advice import advise

        found += advise(inventory.visibility, reading.gpus, environment)
    return found


def _silent_notice(state: GpuState, indices: Sequence[int]) -> Notice:
    numbers = ", ".join(str(index) for index in indices)
    which = f"GPU {numbers} does" if len(indices) == 1 else f"GPUs {numbers} do"
    message = f"{which} not answer; gpucheck detect says what can be done."
    return Notice(code=f"gpu-{state}", message=message)
