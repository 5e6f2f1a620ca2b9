"""Whether a cap holds: it is tried through the same mechanisms as a limited command's."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpucheck.core.memlimit.run import limited_environment
from gpucheck.models.errors import ExitCode, MissingError, WrongUseError
from gpucheck.models.memory import MemoryLimit, Verification
from gpucheck.models.report import Answer, Failure
from gpucheck.probes.limit_proof import DEADLINE_S, HOLD_S, memory_of, run_proof
from gpucheck.probes.other_python import Interpreter, OtherPythonError

#: What can be tried, and how the plan calls it.
PROVABLE = {"cupy": "cupy", "torch": "pytorch", "jax": "jax", "tensorflow": "tensorflow"}

#: Those whose allocator tells the size of its whole pool.
_COUNT_THEIR_POOL = ("cupy", "torch")

#: interpreter, framework, limit in bytes, environment, deadline -> steps.
Runner = Callable[..., Iterable[Mapping[str, Any]]]


def check_frameworks(names: Sequence[str]) -> None:
    """Refuse a name that cannot be tried.

    Raises:
        WrongUseError: it is none of PROVABLE.
    """
    for name in names:
        if name not in PROVABLE:
            message = f"--verify-with takes {', '.join(PROVABLE)}, not {name!a}."
            raise WrongUseError(code="unknown-framework", message=message)


def prove(
    answer: Answer,
    plan: MemoryLimit,
    frameworks: Sequence[str],
    environment: Mapping[str, str],
    *,
    deadline_s: float | None = None,
    hook: bool = True,
    run: Runner = run_proof,
    measure: Callable[[int], int | None] = memory_of,
) -> Answer:
    """Try the caps one after the other on the first GPU, and judge them.

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
    found = []
    for name in frameworks:
        lacking = _lacking(plan, name)
        if lacking is not None:
            found.append(_not_tried(plan, name, lacking))
            continue
        limit = plan.gpus[0].allocator_limit_bytes
        if limit is None:
            found.append(_not_tried(plan, name, "the limit of the first GPU is not known"))
            continue
        times = {"deadline_s": deadline_s or DEADLINE_S, "hold_s": HOLD_S}
        steps = functools.partial(run, interpreter, name, limit, limited, **times)
        found.append(_try(plan, name, limit, steps, measure))
    return _judge(answer, plan, tuple(found))


def _lacking(plan: MemoryLimit, name: str) -> str | None:
    software = plan.software
    if software is None or software.frameworks is None or name in software.frameworks:
        return None
    return f"{software.interpreter} has no {name}"


def _mechanism(plan: MemoryLimit, name: str) -> str | None:
    """Name the mechanisms that hold this framework."""
    framework = PROVABLE[name]
    applied = [m.mechanism for m in plan.mechanisms if m.applies and m.framework == framework]
    return ", ".join(applied) or None


def _not_tried(plan: MemoryLimit, name: str, reason: str) -> Verification:
    return Verification(
        framework=name,
        mechanism=_mechanism(plan, name),
        limit_bytes=plan.gpus[0].allocator_limit_bytes,
        allocated_bytes=None,
        refused_bytes=None,
        refused_with=None,
        held=None,
        reason=reason,
    )


def _try(
    plan: MemoryLimit,
    name: str,
    limit: int,
    run: Callable[[], Iterable[Mapping[str, Any]]],
    measure: Callable[[int], int | None],
) -> Verification:
    base = _not_tried(plan, name, "")
    if base.mechanism is None:
        return dataclasses.replace(base, held=False, reason="no mechanism applies to it here")
    steps: dict[str, Mapping[str, Any]] = {}
    by_nvml: int | None = None
    try:
        for document in run():
            steps[str(document["step"])] = document
            if document["step"] == "refused":
                by_nvml = measure(int(steps.get("start", {}).get("pid") or 0))
    except OtherPythonError as error:
        return dataclasses.replace(base, reason=str(error))
    seen = read_steps(base, steps, limit)
    counted = seen.peak_bytes
    # The pools of the others are taken at the start: what they count is only what is in use.
    known = by_nvml is not None and counted is not None and name in _COUNT_THEIR_POOL
    extra = (by_nvml or 0) - (counted or 0) if known else None
    return dataclasses.replace(seen, nvml_bytes=by_nvml, overhead_bytes=extra)


def read_steps(
    base: Verification, steps: Mapping[str, Mapping[str, Any]], limit: int
) -> Verification:
    """Judge the last step of each kind."""
    start, took = steps.get("start", {}), steps.get("took", {})
    refused, end = steps.get("refused"), steps.get("end")
    allocated = int(took.get("taken") or 0)
    size = int(start.get("size") or 0)
    seen = dataclasses.replace(
        base,
        version=start.get("version") or None,
        allocated_bytes=allocated if start else None,
        refused_bytes=size if refused else None,
        refused_with=refused["error"] if refused else None,
        restored=end.get("restored") if end else None,
        peak_bytes=took.get("counted"),
    )
    if "failed" in steps or end is None:
        failed = steps.get("failed", {})
        said = f"{failed.get('error')}: {failed.get('message')}" if failed else "it ended early"
        return dataclasses.replace(seen, reason=said)
    if refused is None:
        reason = f"{allocated} bytes were allocated, and nothing was refused"
        return dataclasses.replace(seen, held=False, reason=reason)
    return _judge_refusal(seen, refused, end, limit, size)


def _judge_refusal(
    seen: Verification,
    refused: Mapping[str, Any],
    end: Mapping[str, Any],
    limit: int,
    size: int,
) -> Verification:
    allocated = seen.allocated_bytes or 0
    if not refused["proper"]:
        return dataclasses.replace(
            seen, held=False, reason=f"it ended with another error: {refused['message']}"
        )
    if allocated > limit:
        reason = f"it was refused only above the limit of {limit} bytes"
        return dataclasses.replace(seen, held=False, reason=reason)
    free = refused.get("free")
    if free is not None and free < size:
        reason = f"the card itself was full ({free} bytes free): the cap was not reached"
        return dataclasses.replace(seen, held=None, reason=reason)
    if allocated + 2 * size < limit:
        reason = "it was refused well below the limit: the card was full, or another limit is lower"
        return dataclasses.replace(seen, held=None, reason=reason)
    if not end["restored"]:
        reason = "memory that was freed could not be taken again"
        return dataclasses.replace(seen, held=False, reason=reason)
    return dataclasses.replace(seen, held=True, reason=None)


def _judge(answer: Answer, plan: MemoryLimit, found: tuple[Verification, ...]) -> Answer:
    """Broken is 1, not tried for want of the framework 4, and not to be told 3."""
    broken = [each for each in found if each.held is False]
    open_ = [each for each in found if each.held is None]
    first = (broken or open_ or list(found))[0]
    result = dataclasses.replace(plan, verification=first, verifications=found)
    answer = answer._replace(result=result)
    if not broken and not open_:
        return answer
    if broken:
        code, slug, verb = ExitCode.BAD, "limit-not-held", "does not hold"
    elif any(_lacking(plan, str(each.framework)) is None for each in open_):
        code, slug, verb = ExitCode.INCONCLUSIVE, "limit-not-tried", "could not be tried"
    else:
        code, slug, verb = ExitCode.MISSING, "framework-missing", "could not be tried"
    which = first.mechanism or "there is none"
    message = f"The limit of {first.framework} ({which}) {verb}: {first.reason}."
    return answer._replace(exit_code=code, error=Failure(code=slug, message=message))
