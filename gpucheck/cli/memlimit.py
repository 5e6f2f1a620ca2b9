"""`gpucheck memlimit`: one amount as bytes on each GPU and as each framework's setting."""

from __future__ import annotations

import dataclasses
import os

from gpucheck.cli.options import COMMAND_LOG, Shared, check_command_log, refuse_beside
from gpucheck.cli.output import (
    check_runnable,
    deliver,
    machine,
    machine_for_child,
    refuse_recording,
    save,
)
from gpucheck.cli.terminal import write_message
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.memlimit.model import LimitedRun, MemoryLimit, WatchAction
from gpucheck.memlimit.plan import LimitOptions, find_limit
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import WrongUseError
from gpucheck.report.options import flag, option, words


def command(
    *,
    options: LimitOptions,
    watch: WatchAction = option(
        "--watch",
        "What to do if the command exceeds the limit.",
        WatchAction.WARN,
        group="The command that runs under it",
        not_with="--hard",
    ),
    log: str | None = COMMAND_LOG,
    hard: bool = flag(
        "--hard",
        "Let the driver enforce it on the command's cgroup (driver 615, root).",
        group="A limit by the driver",
    ),
    as_root: bool = flag("--as-root", "With --hard under sudo: run the command as root too."),
    verify: bool = flag(
        "--verify", "Prove the limit: allocate up to it and beyond.", group="Code and proof"
    ),
    verify_with: tuple[str, ...] = words(
        "--verify-with NAME",
        "Prove the limit with cupy, torch, jax or tensorflow.",
        not_with="--hard",
    ),
    shared: Shared,
) -> int:
    """Turn an amount into a GPU memory limit; -- CMD runs under it."""
    child = shared.context.child
    proofs = (*(("cupy",) if verify else ()), *verify_with)
    if proofs:
        from gpucheck.memlimit.verify import find_provable

        proofs = find_provable(proofs)
    options = dataclasses.replace(
        options,
        command=child,
        environment=dict(os.environ) if shared.recording is None else None,
        proofs=proofs,
    )
    check_command_log(shared, log)
    if hard or as_root:
        _check_hard(shared, hard=hard)
        refuse_recording(shared)
        from gpucheck.cli.memlimit_hard import run_hard

        return run_hard(options, shared, verify=verify, as_root=as_root, log=log)
    _check(options, shared)
    if child is None and "watch" in shared.typed:
        message = "--watch needs a command: add one after `--`."
        raise WrongUseError(code="watch-without-command", message=message)

    if child is None:
        formats = None
        if options.code is not None and shared.format == "table":
            shared, formats = shared._replace(format="code"), ("code",)
        with machine("memlimit", shared, formats) as probes:
            answer = find_limit(options, probes)
        if isinstance(answer.result, MemoryLimit) and shared.verbosity >= 0:
            _report_outer(answer.result)
            if shared.format == "shell":
                _report_unlimited(answer.result)
        return deliver("memlimit", shared, answer, probes.time())
    refuse_recording(shared)
    with machine_for_child("memlimit", shared) as probes:
        answer = find_limit(options, probes)
    check_runnable(answer, shared)
    if not isinstance(answer.result, MemoryLimit):
        raise AssertionError  # pragma: no cover - check_runnable raises where there is no result
    return _run(answer, answer.result, shared, watch=watch, hook=options.hook, log=log)


def _check_hard(shared: Shared, *, hard: bool) -> None:
    """Refuse --as-root alone, --hard without a command, and with what the frameworks need."""
    if not hard:
        raise WrongUseError(code="usage", message="--as-root needs --hard.")
    if shared.context.child is None:
        message = "--hard needs a command: add one after `--`."
        raise WrongUseError(code="hard-without-command", message=message)
    fact = "With --hard the driver limits every library"
    refuse_beside("--hard", shared, code="two-questions", fact=fact)


def _check(options: LimitOptions, shared: Shared) -> None:
    """Refuse options that contradict each other."""
    child = shared.context.child
    together = [
        name
        for name, given in (
            ("--verify", bool(options.proofs)),
            ("--code", options.code is not None),
            ("-- CMD", child is not None),
            ("--format shell", shared.format == "shell" and child is None),
        )
        if given
    ]
    if len(together) > 1:
        message = f"{' and '.join(together)} cannot be combined: use one at a time."
        raise WrongUseError(code="two-questions", message=message)
    if options.proofs:
        refuse_recording(shared)


def _run(
    answer: Answer,
    plan: MemoryLimit,
    shared: Shared,
    *,
    watch: WatchAction,
    hook: bool,
    log: str | None,
) -> int:
    from gpucheck.cli.after_command import AfterCommand
    from gpucheck.memlimit.environment import limited_environment, new_mark
    from gpucheck.memlimit.outcome import run_line
    from gpucheck.memlimit.watcher import open_watch
    from gpucheck.place.exec import environment_before, supervise

    mark = new_mark()
    environment = limited_environment(plan, environment_before(), hook=hook, mark=mark)
    if shared.verbosity >= 0:
        _report_plan(plan, details=shared.verbosity > 0)
    after = AfterCommand(log)
    with open_watch(plan, watch, _warn, mark=mark, deadline_s=shared.deadline_s) as watcher:
        exit_code = supervise(
            shared.context.child or (),
            environment,
            on_tick=watcher.tick if watcher else None,
            keep_descriptors=shared.context.keep,
        )
        REQUESTS.settle()  # the code is the command's
        unwatched = LimitedRun(exit_code=exit_code, peak_bytes=None, exceeded=None, action=None)
        run = watcher.finish(exit_code) if watcher else unwatched
    if watcher is None:
        reason = "--watch off" if watch is WatchAction.OFF else "the driver did not answer"
        run = dataclasses.replace(
            run, unavailable=dict.fromkeys(("peak_bytes", "exceeded"), reason)
        )
    elif shared.verbosity >= 0:
        write_message(run_line(run))
    fullest = max(run.gpus, key=lambda gpu: gpu.peak_bytes or 0, default=None)
    after.report(exit_code, shared, fullest)
    if shared.output is not None:
        answer = answer._replace(result=dataclasses.replace(plan, run=run))
        if run.exceeded:
            excess = Notice(code="limit-exceeded", message="The command exceeded the limit.")
            answer = answer._replace(warnings=(*answer.warnings, excess))
        save("memlimit", shared, answer)
    return exit_code


# ------------------------------------------------------------------------------ messages on stderr


def _warn(text: str) -> None:
    """Write a warning."""
    write_message(f"warning: {text}")


def _report_outer(plan: MemoryLimit) -> None:
    """Report a tighter limit of the `memlimit` that this command itself runs under."""
    from gpucheck.memlimit.environment import outer_limit
    from gpucheck.report.text import binary_bytes

    outer = outer_limit(plan, os.environ)
    if outer is not None:
        write_message(f"an outer memlimit stays in force: {binary_bytes(outer)}")


def _report_unlimited(plan: MemoryLimit) -> None:
    """Name the frameworks that the exported variables alone do not limit."""
    from gpucheck.memlimit.outcome import HOOK, framework_outcomes

    missed = [outcome.framework for outcome in framework_outcomes(plan) if outcome.by == HOOK]
    if missed:
        write_message(f"no variable limits {', '.join(missed)}: use -- COMMAND, or see --code")


def _report_plan(plan: MemoryLimit, *, details: bool) -> None:
    """Report the limit and its mechanisms in one line; with -v every variable too."""
    from gpucheck.inventory.memory import capped_sentences
    from gpucheck.memlimit.outcome import HOOK, caps_of, framework_outcomes, group_by_mechanism
    from gpucheck.report.text import binary_bytes, name_gpus

    for sentence in capped_sentences(caps_of(plan)):
        write_message(sentence)
    sizes = {gpu.limit_bytes for gpu in plan.gpus if gpu.limit_bytes is not None}
    limit = " or ".join(binary_bytes(size) for size in sorted(sizes)) or plan.request.text
    numbers = [gpu.number for gpu in plan.gpus if gpu.number is not None]
    where = name_gpus(numbers) if numbers else "the GPU"
    where = f"each of {where}" if len(plan.gpus) > 1 else where
    outcomes = framework_outcomes(plan)
    # It is unknown which Python a script starts, and with which options.
    unknown = plan.software is None or plan.software.interpreter is None
    reach = " in every Python that reads PYTHONPATH" if unknown else ""
    held = "; ".join(
        f"{names} by {by}{reach if by.endswith(HOOK) else ''}"
        for names, by in group_by_mechanism(outcomes)
    )
    if not details and not unknown:
        held = ", ".join(outcome.framework for outcome in outcomes if outcome.by is not None)
    reached = f", for {held}" if held else ": nothing enforces it"
    write_message(f"limit {limit} on {where}{reached}")
    _report_outer(plan)
    for outcome in outcomes:
        if outcome.is_warning:
            fact = " is not limited" if outcome.by is None else ""
            _warn(f"{outcome.framework}{fact}: {outcome.note}")
    if details:
        for name, value in plan.environment.items():
            write_message(f"{name}={value}")
