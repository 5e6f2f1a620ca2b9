"""Proof that a cap holds, through the same mechanisms as a limited command."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from itertools import repeat
from typing import Any

from gpucheck.drivers.cupy.errors import cache_variables
from gpucheck.drivers.cupy.install import install_cupy
from gpucheck.drivers.host.processes import memory_by_process
from gpucheck.drivers.live import DEADLINE_BASE_S
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.python.interpreters import Interpreter, OtherPythonError, run_script
from gpucheck.drivers.readings import CudaReading, NvmlRequest
from gpucheck.inventory.condition import spare_bytes
from gpucheck.memlimit.environment import limited_environment
from gpucheck.memlimit.model import GpuMemoryLimit, MemoryLimit, Verification, Way
from gpucheck.memlimit.watcher import READING_DEADLINE_S, SLACK_BYTES
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import ExitCode, MissingError, WrongUseError
from gpucheck.report.text import binary_bytes, did_you_mean, framework_name

#: Frameworks that can be tried, and their names in the plan.
PROVABLE = {"cupy": "cupy", "torch": "pytorch", "jax": "jax", "tensorflow": "tensorflow"}

#: The first use of a GPU loads gigabytes of libraries, and JAX compiles.
DEADLINE_S = 300.0
#: Each further GPU needs a context, and memory to be taken and held.
DEADLINE_PER_GPU_S = 60.0
#: Long enough to ask NVML while the memory is held.
HOLD_S = 1.0

#: process id, UUID and index of a GPU -> its bytes there, by NVML.
Measure = Callable[[int, str | None, int | None], int | None]

#: Number of equal steps up to the limit; smaller ones then locate the refusal.
STEPS = 16
#: A cap that does not hold is tried up to this multiple of its limit, so as not to fill the card.
_MOST_LIMITS = 2
#: The overhead outside the allocator is an estimate: NVML may count up to this multiple of it
#: above the limit, plus rounding.
_MOST_OVERHEADS = 2

#: Frameworks whose allocator reports the size of its whole pool.
_COUNT_THEIR_POOL = ("cupy", "torch")


def run_proof(
    interpreter: Interpreter,
    framework: str,
    limits: Sequence[tuple[int, int]],
    environment: Mapping[str, str],
    *,
    hold_s: float = 0.0,
    deadline_s: float = DEADLINE_S,
) -> Iterator[dict[str, Any]]:
    """Yield the steps of the proof as they come, one GPU after the other.

    `limits` are in CUDA's order: the bytes of a GPU's limit (0: not tried) and the most that may
    be taken there. At the refusal, memory is held for `hold_s`.

    Raises:
        OtherPythonError: it cannot be started, or takes longer than `deadline_s`.
    """
    cache = cache_variables(environment) if framework == "cupy" else {}
    documents = run_script(
        interpreter,
        "limit_proof_child.py",
        framework,
        ",".join(f"{limit}:{most}" for limit, most in limits),
        str(hold_s),
        environment={**environment, **cache},
        deadline_s=deadline_s,
    )
    yield from (document for document in documents if "step" in document)


@contextlib.contextmanager
def open_memory_reader() -> Iterator[Measure]:
    """Start NVML, which can take seconds, and yield a function for a process's bytes on a device.

    It returns None where the driver does not report them.
    """
    with contextlib.closing(NvmlSession()) as session:

        def measure(pid: int, uuid: str | None, index: int | None) -> int | None:
            question = NvmlRequest(processes_of=None if index is None else (index,))
            reading = session.read(question, deadline_s=READING_DEADLINE_S)
            return memory_by_process(reading.gpus).get(uuid, {}).get(pid)

        session.read(NvmlRequest(processes_of=()), deadline_s=DEADLINE_BASE_S)
        yield measure


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """GPUs that share the system's memory, by CUDA index, and how much of it may be used."""

    cuda_indices: frozenset[int] = frozenset()
    spare_bytes: int | None = None

    def has(self, gpu: GpuMemoryLimit) -> bool:
        """Return whether a GPU has no memory of its own, by CUDA or by NVML's missing total."""
        return gpu.cuda_index in self.cuda_indices or gpu.memory_source == "system"

    def refusal(self, needed: int) -> str | None:
        """Return why `needed` bytes must not be taken from the system's memory, or None."""
        if self.spare_bytes is None:
            return "it shares the system's memory, and how much of that is free is unknown"
        if needed <= self.spare_bytes:
            return None
        return (
            f"it shares the system's memory, of which {binary_bytes(self.spare_bytes)} may be"
            f" used; the proof needs {binary_bytes(needed)}, and filling it would stop the whole"
            " machine"
        )


NOTHING_SHARED = SharedMemory()


def shared_memory(reading: CudaReading, available_bytes: int | None) -> SharedMemory:
    """Return the GPUs that have no memory of their own, by CUDA, and how much may be used."""
    return SharedMemory(
        cuda_indices=frozenset(item.ordinal for item in reading.devices if item.integrated),
        spare_bytes=None if available_bytes is None else spare_bytes(available_bytes),
    )


#: (interpreter, framework, limits and maxima in bytes, environment, deadline) -> steps.
Runner = Callable[..., Iterable[Mapping[str, Any]]]
#: The last step of each kind, by name.
Steps = dict[str, Mapping[str, Any]]


def find_provable(names: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of frameworks whose limit can be proved, each once.

    Raises:
        WrongUseError: a name is not in PROVABLE.
    """
    modules = {framework: module for module, framework in PROVABLE.items()}
    modules_by_name = {name: modules.get(framework_name(name)) for name in names}
    for name, module in modules_by_name.items():
        if module is None:
            suggestion = did_you_mean(name, PROVABLE)
            message = (
                f"--verify-with takes {', '.join(PROVABLE)}, not {name!r}. {suggestion}".strip()
            )
            raise WrongUseError(code="unknown-framework", message=message)
    return tuple(dict.fromkeys(module for module in modules_by_name.values() if module is not None))


def prove(
    answer: Answer,
    plan: MemoryLimit,
    frameworks: Sequence[str],
    environment: Mapping[str, str],
    *,
    deadline_s: float | None = None,
    hook: bool = True,
    shared: SharedMemory = NOTHING_SHARED,
    cuda: CudaReading | None = None,
    run: Runner = run_proof,
    memory_reader: Callable[[], AbstractContextManager[Measure]] = open_memory_reader,
) -> Answer:
    """Try each cap on each GPU of the plan, and judge the results.

    `shared` names the GPUs that have no memory of their own. A CuPy that is missing is one for the
    driver that `cuda` is of.

    Raises:
        MissingError: there is no Python to try them with.
    """
    software = plan.software
    if software is None or software.interpreter is None:
        message = "There is no Python in PATH to try the limit with."
        remedy = ("Name one with --python.",)
        raise MissingError(code="no-python", message=message, remedy=remedy)
    limited = limited_environment(plan, environment, hook=hook)
    interpreter = Interpreter(path=software.interpreter)
    deadline = deadline_s or DEADLINE_S + DEADLINE_PER_GPU_S * (len(plan.gpus) - 1)
    times = {"deadline_s": deadline, "hold_s": HOLD_S}
    verifications: list[Verification] = []
    with memory_reader() as measure:
        for name in frameworks:
            bases = [_not_tried(plan, name, gpu) for gpu in plan.gpus]
            obstacle = _obstacle(plan, name, bases)
            if obstacle is not None:
                verifications.append(dataclasses.replace(obstacle, uuid=None, cuda_index=None))
                continue
            bases = [*map(_with_memory_fit, bases, plan.gpus, repeat(shared))]
            limits = [*map(_limits, bases, plan.gpus, repeat(shared))]
            steps = functools.partial(run, interpreter, name, limits, limited, **times)
            tried = any(limit for limit, _ in limits)
            verifications.extend(_prove_framework(plan, bases, steps, measure) if tried else bases)
    return _judge(answer, plan, tuple(verifications), cuda)


def _obstacle(plan: MemoryLimit, name: str, bases: Sequence[Verification]) -> Verification | None:
    """Return why a framework's cap cannot be tried at all, or None."""
    missing = _missing_reason(plan, name)
    if missing is not None:
        return dataclasses.replace(bases[0], reason=missing)
    if any(base.limit_bytes is None for base in bases):
        return dataclasses.replace(bases[0], reason="a GPU's limit is unknown")
    if bases[0].mechanism is None:
        return dataclasses.replace(bases[0], held=False, reason="no mechanism applies to it")
    return None


def _with_memory_fit(base: Verification, gpu: GpuMemoryLimit, shared: SharedMemory) -> Verification:
    """Note why a GPU is not tried: taking its last bytes would crash other programs."""
    limit, free = base.limit_bytes or 0, gpu.memory_free_bytes
    needed = limit + limit // STEPS + _overhead_bytes(gpu)
    if shared.has(gpu):
        return dataclasses.replace(base, reason=shared.refusal(needed))
    if free is None or free >= needed:
        return base
    reason = (
        f"only {binary_bytes(free)} is free and the proof needs {binary_bytes(needed)};"
        " other programs may need it"
    )
    return dataclasses.replace(base, reason=reason)


def _limits(base: Verification, gpu: GpuMemoryLimit, shared: SharedMemory) -> tuple[int, int]:
    """Return the limit to try (0: nothing is tried) and the most that may be taken."""
    if base.reason or not base.limit_bytes:
        return 0, 0
    most = _MOST_LIMITS * base.limit_bytes
    if shared.has(gpu):
        most = min(most, (shared.spare_bytes or 0) - _overhead_bytes(gpu))
    return base.limit_bytes, most


def _overhead_bytes(gpu: GpuMemoryLimit) -> int:
    """Return the estimated overhead of a CUDA program outside its allocator."""
    return (gpu.context_estimate_bytes or 0) + (gpu.library_estimate_bytes or 0)


def _missing_reason(plan: MemoryLimit, name: str) -> str | None:
    software = plan.software
    if software is None or software.frameworks is None or name in software.frameworks:
        return None
    return f"{software.interpreter} has no {name}"


def allowed_bytes(plan: MemoryLimit, name: str, gpu: GpuMemoryLimit) -> int | None:
    """Return a framework's allowance on a GPU; one setting may have to serve unequal GPUs."""
    limits = [item.allocator_limit_bytes for item in plan.gpus]
    own = gpu.allocator_limit_bytes
    if own is None or None in limits or name == "tensorflow":
        return own
    if name == "cupy" and plan.request.bytes is not None:
        return min(limit for limit in limits if limit is not None)
    shares = [
        Fraction(item.allocator_limit_bytes or 0, item.memory_total_bytes)
        for item in plan.gpus
        if item.memory_total_bytes
    ]
    by_code = name == "torch" and not any(
        item.applies and item.by is Way.ENVIRONMENT and item.framework == "pytorch"
        for item in plan.mechanisms
    )
    if by_code or len(shares) < len(plan.gpus) or gpu.memory_total_bytes is None:
        return own
    return min(own, int(min(shares) * gpu.memory_total_bytes))


def _not_tried(plan: MemoryLimit, name: str, gpu: GpuMemoryLimit) -> Verification:
    applied = [m.mechanism for m in plan.mechanisms if m.applies and m.framework == PROVABLE[name]]
    return Verification(
        framework=name,
        mechanism=", ".join(applied) or None,
        uuid=gpu.uuid,
        cuda_index=gpu.cuda_index,
        limit_bytes=allowed_bytes(plan, name, gpu),
        allocated_bytes=None,
        refused_bytes=None,
        refused_with=None,
        held=None,
    )


def _prove_framework(
    plan: MemoryLimit,
    bases: Sequence[Verification],
    run: Callable[[], Iterable[Mapping[str, Any]]],
    measure: Measure,
) -> list[Verification]:
    """Run one framework's proof, and ask NVML at each refusal."""
    steps: list[Steps] = [{} for _ in bases]
    by_nvml: dict[int, int | None] = {}
    problem = "it ended early"
    try:
        for document in run():
            ordinal = document.get("gpu")
            for step in steps if ordinal is None else [steps[ordinal]]:
                step[str(document["step"])] = document
            if document["step"] == "refused":
                gpu = plan.gpus[ordinal or 0]
                pid = int(steps[ordinal or 0].get("start", {}).get("pid") or 0)
                by_nvml[ordinal or 0] = measure(pid, gpu.uuid, gpu.index)
    except OtherPythonError as error:
        problem = str(error)
    return [
        base
        if base.reason
        else _with_nvml(read_steps(base, step, problem), by_nvml.get(ordinal), plan.gpus[ordinal])
        for ordinal, (base, step) in enumerate(zip(bases, steps, strict=True))
    ]


def _with_nvml(seen: Verification, by_nvml: int | None, gpu: GpuMemoryLimit) -> Verification:
    """Judge what NVML counted for the process: other allocations may exceed the limit."""
    if by_nvml is None:
        return seen
    most = (seen.limit_bytes or 0) + _MOST_OVERHEADS * _overhead_bytes(gpu) + SLACK_BYTES
    # The others take their pool at the start and count only what is in use.
    counted = seen.peak_bytes if seen.framework in _COUNT_THEIR_POOL else None
    extra = None if counted is None else by_nvml - counted
    seen = dataclasses.replace(seen, nvml_bytes=by_nvml, overhead_bytes=extra, nvml_most_bytes=most)
    if not seen.held or by_nvml <= most:
        return seen
    reason = (
        f"the allocator was refused at its limit, but NVML counts {by_nvml} bytes for the process:"
        f" {by_nvml - most} more than the limit plus twice the estimated overhead"
    )
    return dataclasses.replace(seen, held=False, reason=reason)


def read_steps(
    base: Verification, steps: Mapping[str, Mapping[str, Any]], problem: str
) -> Verification:
    """Judge the last step of each kind on one GPU; `problem` says why they ended."""
    start, took = steps.get("start", {}), steps.get("took", {})
    refused, end = steps.get("refused"), steps.get("end")
    allocated = int(took.get("taken") or 0)
    seen = dataclasses.replace(
        base,
        version=start.get("version") or None,
        allocated_bytes=allocated if start else None,
        refused_bytes=int(refused["size"]) if refused else None,
        refused_with=refused["error"] if refused else None,
        deviation_bytes=allocated - (base.limit_bytes or 0) if refused else None,
        restored=end.get("restored") if end else None,
        peak_bytes=took.get("counted"),
    )
    if "failed" in steps or end is None:
        failed = steps.get("failed", {})
        stated = f"{failed.get('error')}: {failed.get('message')}" if failed else problem
        return dataclasses.replace(seen, reason=stated)
    if refused is None:
        reason = f"{binary_bytes(allocated)} were allocated, and nothing was refused"
        return dataclasses.replace(seen, held=False, reason=reason)
    held, why = _judge_refusal(base.limit_bytes or 0, allocated, refused, end)
    return dataclasses.replace(seen, held=held, reason=why)


def _judge_refusal(
    limit: int, allocated: int, refused: Mapping[str, Any], end: Mapping[str, Any]
) -> tuple[bool | None, str | None]:
    """Return whether the limit holds, None if that is open, and why not or why it is open."""
    size = int(refused["size"])
    if not refused["proper"]:
        return False, f"it failed with another error: {refused['message']}"
    if allocated > limit:
        beyond = f"{allocated - limit} bytes above the limit of {limit} bytes"
        return False, f"it was refused too late, {beyond}, to within {size}"
    free = refused.get("free")
    if free is not None and free < size + SLACK_BYTES:
        full = f"the card itself was full ({binary_bytes(free)} free)"
        return None, f"{full}, so the limit was not reached"
    # Slightly less may be the card's total, which CUDA and NVML count differently.
    early = allocated + 2 * (limit // STEPS) < limit
    if early and free is None:
        below = "it was refused well below the limit"
        return None, f"{below}: the card was full, or another limit is lower"
    if not end["restored"]:
        return False, "freed memory could not be allocated again"
    return True, "it was refused below the limit: another limit is lower" if early else None


def _judge(
    answer: Answer,
    plan: MemoryLimit,
    verifications: tuple[Verification, ...],
    cuda: CudaReading | None,
) -> Answer:
    """Set the exit code: 1 a cap does not hold, 3 undecided, 4 the framework is missing."""
    broken = [verification for verification in verifications if verification.held is False]
    open_ = [verification for verification in verifications if verification.held is None]
    first = (broken or open_ or list(verifications))[0]
    result = dataclasses.replace(plan, verification=first, verifications=verifications)
    answer = answer._replace(result=result)
    if not broken and not open_:
        return answer
    remedy: tuple[str, ...]
    if broken:
        code, slug, verb = ExitCode.BAD, "limit-not-held", "does not hold"
        remedy = ("See what applies and why: gpucheck memlimit AMOUNT -v",)
    elif any(_missing_reason(plan, str(verification.framework)) is None for verification in open_):
        code, slug, verb = ExitCode.INCONCLUSIVE, "limit-not-tried", "could not be tried"
        remedy = ("Try a GPU with more free memory (--gpu), a smaller amount, or an idle GPU.",)
    else:
        code, slug, verb = ExitCode.MISSING, "framework-missing", "could not be tried"
        # gpucheck's own Python may be the one that lacks CuPy.
        own = plan.software is not None and plan.software.interpreter == sys.executable
        remedy = (
            *(install_cupy(reading=cuda) if own and first.framework == "cupy" else ()),
            _alternatives(plan),
        )
    which = "" if first.mechanism is None else f" ({first.mechanism})"
    alone = first.cuda_index is None or len(plan.gpus) == 1
    number = next((gpu.number for gpu in plan.gpus if gpu.uuid == first.uuid), first.cuda_index)
    where = "" if alone else f" on GPU {number}"
    message = f"The limit of {first.framework}{which} {verb}{where}: {first.reason}."
    failure = Failure(code=slug, message=message, remedy=remedy)
    return answer._replace(exit_code=code, error=failure)


def _alternatives(plan: MemoryLimit) -> str:
    """Return the steps to try instead if the framework is missing."""
    known = (plan.software.frameworks if plan.software else None) or {}
    there = ",".join(name for name in PROVABLE if name in known)
    if there:
        return f"Try what this Python has: --verify-with {there}"
    return "Name a Python that has it: --python FILE"
