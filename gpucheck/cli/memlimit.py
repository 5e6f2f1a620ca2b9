"""`gpucheck memlimit`: one amount as bytes on each GPU and as each framework's setting.

With --hard the driver enforces it on the cgroup of a command.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from gpucheck.cli.after_command import AfterCommand
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
from gpucheck.drivers.host.cgroups import read_cgroup
from gpucheck.drivers.host.sysfs import read_text
from gpucheck.drivers.interrupts import REQUESTS
from gpucheck.drivers.live import DEADLINE_BASE_S, ROOT_VARIABLE
from gpucheck.drivers.nvml.client import NvmlSession
from gpucheck.drivers.readings import ProbeFailure
from gpucheck.inventory.condition import spare_bytes
from gpucheck.inventory.memory import capped_sentences
from gpucheck.memlimit.capped_run import ANSWER_S, CappedRun, clear_dead_groups
from gpucheck.memlimit.hard import (
    HardFacts,
    choose_place,
    error_of,
    missing_prerequisites,
    refused_limit,
)
from gpucheck.memlimit.model import GpuMemoryLimit, LimitedRun, MemoryLimit, WatchAction
from gpucheck.memlimit.outcome import (
    HOOK,
    caps_of,
    framework_outcomes,
    group_by_mechanism,
    hard_sentences,
    run_line,
)
from gpucheck.memlimit.plan import LimitOptions, find_hard_limit, find_limit
from gpucheck.place.exec import environment_before, start_first, supervise
from gpucheck.report.envelope import Answer, Notice
from gpucheck.report.errors import MissingError, WrongUseError
from gpucheck.report.options import flag, option, words
from gpucheck.report.text import binary_bytes, name_gpus

#: A user's or a group's number, as sudo gives it.
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


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
        return _run_hard(options, shared, verify=verify, as_root=as_root, log=log)
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
    plan = check_runnable(answer, shared, MemoryLimit)
    return _run(answer, plan, shared, watch=watch, hook=options.hook, log=log)


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
    if options.python is not None and shared.recording is not None:
        message = "--python names a Python of this machine: omit it, or --from."
        raise WrongUseError(code="two-questions", message=message)


def _run(
    answer: Answer,
    plan: MemoryLimit,
    shared: Shared,
    *,
    watch: WatchAction,
    hook: bool,
    log: str | None,
) -> int:
    from gpucheck.memlimit.environment import limited_environment, new_mark
    from gpucheck.memlimit.watcher import open_watch

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

    outer = outer_limit(plan, os.environ)
    if outer is not None:
        write_message(f"an outer memlimit stays in force: {binary_bytes(outer)}")


def _report_unlimited(plan: MemoryLimit) -> None:
    """Name the frameworks that the exported variables alone do not limit."""

    missed = [outcome.framework for outcome in framework_outcomes(plan) if outcome.by == HOOK]
    if missed:
        write_message(f"no variable limits {', '.join(missed)}: use -- COMMAND, or see --code")


def _report_plan(plan: MemoryLimit, *, details: bool) -> None:
    """Report the limit and its mechanisms in one line; with -v every variable too."""

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


# ------------------------------------------------------------------- --hard: a limit by the driver


def _run_hard(
    options: LimitOptions, shared: Shared, *, verify: bool, as_root: bool, log: str | None = None
) -> int:
    """Run the command in a cgroup of its own that the driver limits, and return its exit code."""
    command = shared.context.child or ()
    root = Path(os.environ.get(ROOT_VARIABLE) or "/")
    with closing(NvmlSession()) as session:
        deadline_s = shared.deadline_s or DEADLINE_BASE_S
        _clear(root, session, deadline_s)
        with machine_for_child("memlimit", shared) as probes:
            answer = find_hard_limit(options, probes)
        plan = check_runnable(answer, shared, MemoryLimit)
        for sentence in capped_sentences(caps_of(plan)):
            write_message(sentence)
        facts = _facts(root, answer, plan, session, deadline_s)
        missing = missing_prerequisites(facts)
        if missing or not isinstance(facts.place, str):
            raise error_of(missing, options.amount.text, command)

        def refused(failure: ProbeFailure, folder: Path) -> MissingError:
            one = refused_limit(facts, failure, folder)
            return error_of([one], options.amount.text, command)

        run = CappedRun(
            root,
            plan,
            session,
            place=facts.place,
            parent=facts.group.folder or root,
            user=None if as_root else _user(os.environ),
            refused=refused,
        )
        after = AfterCommand(log)
        exit_code = _run_capped(run, plan, shared, verify=verify, as_root=as_root)
    outcome = run.outcome(exit_code)
    if shared.verbosity >= 0:
        write_message(hard_sentences(run.limit)[1])
    after.report(exit_code, shared)
    if shared.output is not None:
        result = dataclasses.replace(plan, run=outcome, hard=run.limit)
        save("memlimit", shared, answer._replace(result=result))
    return exit_code


def _run_capped(
    run: CappedRun, plan: MemoryLimit, shared: Shared, *, verify: bool, as_root: bool
) -> int:
    """Start the command behind the gate, and wait for its end."""
    command = shared.context.child or ()
    environment = {**environment_before(), **plan.environment}
    if not as_root:
        environment |= _home(environment)
    path: list[str] = []
    start_first(command, environment, lambda found: _check_executable(found, path))
    free = {gpu.uuid or "": _usable_bytes(gpu) for gpu in plan.gpus}

    def announce_command(_folder: Path) -> None:
        if verify:
            run.prove(environment, free)
        if shared.verbosity >= 0:
            write_message(hard_sentences(run.limit)[0])
            if run.limit.user is not None:
                uid, _, name = run.limit.user.split(":", 2)
                write_message(f"it runs as {name or uid}; --as-root keeps root's rights")

    with run.open() as ends:
        words = run.words(path[0], command, ends, shutil.which("systemd-run"))
        exit_code = supervise(
            words,
            environment,
            on_start=lambda pid: run.admit(pid, announce_command),
            on_tick=run.tick,
            keep_descriptors=(*shared.context.keep, *ends),
        )
        REQUESTS.settle()  # the code is the command's
        return exit_code


def _usable_bytes(gpu: GpuMemoryLimit) -> int | None:
    """Return how much the proof may take: of memory that the processor shares, not all."""
    free = gpu.memory_free_bytes
    return spare_bytes(free) if free is not None and gpu.memory_source == "system" else free


def _check_executable(path: str, paths: list[str]) -> int:
    """Note a file that can be executed, or raise as its start would."""
    if not os.access(path, os.X_OK):
        os.stat(path)  # noqa: PTH116 - raises where there is none
        raise PermissionError(13, "Permission denied")
    paths.append(path)
    return 0


def _clear(root: Path, session: NvmlSession, deadline_s: float) -> None:
    """Remove what killed runs have left, and say so."""
    removed, kept = clear_dead_groups(root, session, deadline_s=deadline_s)
    if removed:
        which = "cgroup" if removed == 1 else f"{removed} cgroups"
        write_message(f"removed the {which} of a run that was killed")
    if kept:
        count = "A cgroup" if kept == 1 else f"{kept} cgroups"
        why = "its command still runs, or NVML does not clear its limit"
        write_message(f"{count} of a killed run cannot be removed yet: {why}")


def _facts(
    root: Path, answer: Answer, plan: MemoryLimit, session: NvmlSession, deadline_s: float
) -> HardFacts:
    """Read what the prerequisites are judged by; NVML is asked last, and only where that helps."""
    group = read_cgroup(root)
    facts = HardFacts(
        os_name=answer.host.os or "",
        kernel=answer.host.kernel or "",
        driver_version=answer.host.driver_version,
        is_root=_is_root(root),
        group=group,
        mig_indices=tuple(
            gpu.index for gpu in plan.gpus if gpu.mig_instance and gpu.index is not None
        ),
        python=sys.executable,
        words=_own_words(sys.argv),
        place=choose_place(root, group, shutil.which("systemd-run"))
        if group.version == 2
        else None,
        search_path=os.environ.get("PATH", ""),
    )
    uuids = [gpu.uuid for gpu in plan.gpus if gpu.uuid]
    if not missing_prerequisites(facts) and group.folder is not None:
        limits = session.limits(str(group.folder), uuids, deadline_s=max(deadline_s, ANSWER_S))
        failures = [limit.failure for limit in limits.values() if limit.failure is not None]
        facts = dataclasses.replace(facts, failure=failures[0] if failures else None)
    return facts


def _own_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command line that calls us again from anywhere."""
    program = os.path.abspath(argv[0])  # noqa: PTH100 - shown, not opened
    if program.endswith("/__main__.py"):
        return (sys.executable, "-m", "gpucheck", *argv[1:])
    return (program, *argv[1:])


def _is_root(root: Path) -> bool:
    """Return whether our effective user is root, by /proc/self/status below the root."""
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        words = line.split()
        if words and words[0] == "Uid:" and len(words) > 2:
            return words[2] == "0"
    return os.geteuid() == 0


# ------------------------------------------------------------------------------------- the user


def _user(environment: Mapping[str, str]) -> str | None:
    """Return who called sudo, as `uid:gid:name`; None without sudo, or if that was root."""
    uid, gid = environment.get("SUDO_UID", ""), environment.get("SUDO_GID", "")
    if os.geteuid() != 0 or not (_ID.fullmatch(uid) and _ID.fullmatch(gid)) or int(uid) == 0:
        return None
    import pwd

    try:
        name = pwd.getpwuid(int(uid)).pw_name
    except (KeyError, OverflowError):
        name = ""
    return f"{int(uid)}:{int(gid)}:{name}"


def _home(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that name the user who called sudo, as sudo itself sets them."""
    user = _user(os.environ)
    if user is None:
        return {}
    import pwd

    try:
        entry = pwd.getpwuid(int(user.partition(":")[0]))
    except KeyError:
        return {}
    variables = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    known = {*environment, "HOME"}
    return {name: value for name, value in variables.items() if name in known}
