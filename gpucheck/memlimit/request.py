"""Answer of `gpucheck memlimit` to the options of its command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.drivers.host.mps import read_mps
from gpucheck.drivers.interface import Probes
from gpucheck.drivers.live import ROOT_VARIABLE
from gpucheck.drivers.python.frameworks import FrameworksReading, find_interpreter, read_frameworks
from gpucheck.drivers.python.other_python import Interpreter, meant_interpreter
from gpucheck.inventory.inventory import ListRequest, take_inventory
from gpucheck.inventory.model import Gpu, Inventory
from gpucheck.memlimit.choice import choose_gpus
from gpucheck.memlimit.code import write_code
from gpucheck.memlimit.folklore import warn_of_folklore
from gpucheck.memlimit.hooking import hook_state
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.memlimit.plan import PlanRequest, plan_limit
from gpucheck.memlimit.situation import HookState
from gpucheck.place.placement import prohibited
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import WrongUseError
from gpucheck.report.units import Amount


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LimitRequest:
    """Options of `gpucheck memlimit`; `environment` is None for a recording."""

    amount: Amount
    gpus: tuple[str, ...] = ()
    include_overhead: bool = False
    code: str | None = None
    python: str | None = None
    hook: bool = True
    command: tuple[str, ...] | None = None
    environment: Mapping[str, str] | None = None
    proofs: tuple[str, ...] = ()


def find_limit(request: LimitRequest, probes: Probes) -> Answer:
    """Plan the limit, and prove it if requested.

    Raises:
        GpucheckError: the amount, a GPU or a framework cannot be used.
    """
    answer = take_inventory(ListRequest(ask_driver=True), probes)
    if answer.error is not None or not isinstance(answer.result, Inventory):
        return answer._replace(result=None)
    plan = _plan(request, probes, answer, answer.result.gpus)
    if request.code is not None:
        plan = dataclasses.replace(plan, code=write_code(request.code, plan))
    inherited = request.environment if request.environment is not None else probes.environment()
    warnings = (
        *answer.warnings,
        *_warn_of_cards(plan, answer.result.gpus),
        *warn_of_folklore(inherited),
    )
    answer = answer._replace(result=plan, warnings=warnings)
    if not request.proofs:
        return answer
    from gpucheck.memlimit.proof import prove, shared_memory

    root = Path(inherited.get(ROOT_VARIABLE) or "/")
    shared = shared_memory(probes.cuda(), LinuxCpu(root).facts().memory_available_bytes)
    return prove(answer, plan, request.proofs, inherited, hook=request.hook, shared=shared)


def _warn_of_cards(plan: MemoryLimit, gpus: Sequence[Gpu]) -> Iterator[Notice]:
    """Yield warnings about the limited GPUs."""
    limited = {limit.index for limit in plan.gpus}
    for limit in plan.gpus:
        if limit.memory_source == "system":
            message = (
                f"GPU {limit.index} shares its memory with the processor: the limit is a part of"
                " the system's memory, which every other program uses too."
            )
            yield Notice(code="memory-shared", message=message)
    yield from prohibited(gpu for gpu in gpus if gpu.index in limited)


def _plan(
    request: LimitRequest, probes: Probes, answer: Answer, gpus: Sequence[Gpu]
) -> MemoryLimit:
    choice = choose_gpus(request.gpus, gpus)
    inherited = request.environment
    interpreter = None if inherited is None else _interpreter(request, inherited)
    frameworks, mps, hook = None, None, HookState()
    if inherited is not None:
        frameworks = read_frameworks(interpreter, inherited)
        if request.python is not None and frameworks.frameworks is None:
            raise _not_a_python(request.python, frameworks.reason)
        mps = read_mps(inherited, Path(inherited.get(ROOT_VARIABLE) or "/"))
        if request.command is not None or request.proofs or not request.hook:
            hook = hook_state(interpreter, wanted=request.hook)
    else:
        frameworks = FrameworksReading(reason="not recorded")
    plan = plan_limit(
        request.amount,
        gpus,
        environment=probes.environment() if inherited is None else inherited,
        request=PlanRequest(
            include_overhead=request.include_overhead,
            chosen=None if choice is None else choice.uuids,
        ),
        cuda_version=answer.host.cuda_driver_version,
        frameworks=frameworks,
        mps=mps,
        hook=hook,
    )
    if choice is None:
        return plan
    return dataclasses.replace(plan, environment={**plan.environment, **choice.environment})


def _interpreter(request: LimitRequest, environment: Mapping[str, str]) -> Interpreter | None:
    if request.command is not None and request.python is None:
        return find_interpreter(_innermost(request.command), environment)
    return meant_interpreter(environment, request.python)


def _innermost(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that an inner `gpucheck … -- COMMAND` runs."""
    while Path(command[0]).name == "gpucheck" and "--" in command[:-1]:
        command = command[command.index("--") + 1 :]
    return command


def _not_a_python(named: str, reason: str) -> WrongUseError:
    return WrongUseError(
        code="not-a-python",
        message=f"--python does not name a working Python: {named[:200]!a}: {reason}.",
        remedy=("Name an interpreter: --python .venv/bin/python",),
    )
