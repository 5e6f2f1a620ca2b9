"""`gpucheck memlimit`: one amount as bytes on each GPU and as each framework's setting."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Annotated

import typer

from gpucheck.cli.memlimit_remarks import say_after, say_before, say_what_variables_miss, warn
from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import (
    Context,
    check_runnable,
    deliver,
    machine,
    machine_for_child,
    refuse_recording,
    save,
)
from gpucheck.cli.shared import Shared, split_words
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.memlimit.model import LimitedRun, MemoryLimit, WatchAction
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import WrongUseError
from gpucheck.report.units import parse_amount


@with_shared_options
def command(
    *,
    ctx: typer.Context,
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT", help="30%, 0.3 (the same), 8GiB, 8GB or 512M.")
    ],
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="SPEC", help="Only this GPU (/gpu:0, cuda:1, 2, a UUID)."),
    ] = None,
    include_overhead: Annotated[
        bool,
        typer.Option(
            "--include-overhead",
            help="Count the CUDA context too, so that nvidia-smi's number stays below the limit.",
        ),
    ] = False,
    code: Annotated[
        str | None,
        typer.Option(
            "--code",
            metavar="FRAMEWORK",
            help="Print code for a program: tensorflow, pytorch, jax, cupy, onnxruntime.",
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            "--python", metavar="FILE", help="The Python to plan for [default: the command's]."
        ),
    ] = None,
    hook: Annotated[
        bool,
        typer.Option(
            "--hook/--no-hook", help="Cap frameworks that need code when the program imports them."
        ),
    ] = True,
    watch: Annotated[
        WatchAction,
        typer.Option("--watch", help="What to do if the command exceeds the limit."),
    ] = WatchAction.WARN,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove the cap: allocate up to it and beyond.")
    ] = False,
    verify_with: Annotated[
        list[str] | None,
        typer.Option(
            "--verify-with",
            metavar="NAME",
            help="Prove the cap with cupy, torch, jax or tensorflow.",
        ),
    ] = None,
    shared: Shared,
) -> int:
    """Turn an amount into a GPU memory limit; -- CMD runs under it."""
    from gpucheck.memlimit.request import LimitRequest, find_limit

    context: Context = ctx.obj
    request = LimitRequest(
        amount=parse_amount(amount),
        gpus=tuple(gpu or ()),
        include_overhead=include_overhead,
        code=code,
        python=python,
        hook=hook,
        command=context.child,
        environment=dict(os.environ) if shared.recording is None else None,
        proofs=_proofs(verify, verify_with),
    )
    _check(request.proofs, code, context, shared)
    source = ctx.get_parameter_source("watch")
    if context.child is None and source is not None and source.name == "COMMANDLINE":
        message = "--watch needs a command: add one after `--`."
        raise WrongUseError(code="watch-without-command", message=message)

    if context.child is None:
        formats = None
        if code is not None and shared.format == "table":
            shared, formats = shared._replace(format="code"), ("code",)
        with machine("memlimit", shared, formats) as probes:
            answer = find_limit(request, probes)
        if shared.format == "shell" and shared.verbosity >= 0:
            say_what_variables_miss(answer)
        return deliver("memlimit", shared, answer, probes.time())
    refuse_recording(shared)
    with machine_for_child("memlimit", shared) as probes:
        answer = find_limit(request, probes)
    check_runnable(answer)
    if not isinstance(answer.result, MemoryLimit):
        raise AssertionError  # pragma: no cover - check_runnable raises where there is no result
    return _run(context, answer, answer.result, shared, watch=watch, hook=hook)


def _proofs(verify: bool, verify_with: Sequence[str] | None) -> tuple[str, ...]:
    named = split_words(verify_with)
    return tuple(dict.fromkeys((*(("cupy",) if verify else ()), *named)))


def _check(proofs: tuple[str, ...], code: str | None, context: Context, shared: Shared) -> None:
    """Refuse options that contradict each other."""
    if proofs:
        from gpucheck.memlimit.proof import check_frameworks

        check_frameworks(proofs)
    together = [
        name
        for name, given in (
            ("--verify", bool(proofs)),
            ("--code", code is not None),
            ("-- CMD", context.child is not None),
            ("--format shell", shared.format == "shell" and context.child is None),
        )
        if given
    ]
    if len(together) > 1:
        message = f"{' and '.join(together)} cannot be combined: use one at a time."
        raise WrongUseError(code="two-questions", message=message)
    if proofs:
        refuse_recording(shared)


def _run(
    context: Context,
    answer: Answer,
    plan: MemoryLimit,
    shared: Shared,
    *,
    watch: WatchAction,
    hook: bool,
) -> int:
    from gpucheck.memlimit.run import limited_environment, new_mark, open_watch
    from gpucheck.place.launch import supervise
    from gpucheck.place.launch_environment import environment_before

    mark = new_mark()
    environment = limited_environment(plan, environment_before(), hook=hook, mark=mark)
    if shared.verbosity >= 0:
        say_before(plan, details=shared.verbosity > 0)
    with open_watch(plan, watch, warn, mark=mark, deadline_s=shared.deadline_s) as watcher:
        exit_code = supervise(
            context.child or (),
            environment,
            on_tick=watcher.tick if watcher else None,
            keep_descriptors=context.keep,
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
        say_after(run)
    if shared.output is not None:
        warnings = (*answer.warnings, *_excess(run))
        result = dataclasses.replace(plan, run=run)
        save("memlimit", shared, answer._replace(result=result, warnings=warnings))
    return exit_code


def _excess(run: LimitedRun) -> tuple[Notice, ...]:
    """Return the document's warning about a command that exceeded the limit."""
    if not run.exceeded:
        return ()
    return (Notice(code="limit-exceeded", message="The command exceeded the limit."),)
