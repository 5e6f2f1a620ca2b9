"""`gpucheck memlimit AMOUNT --hard -- CMD`: a limit that the driver enforces on a cgroup."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpucheck.cli.after_command import AfterCommand
from gpucheck.cli.options import Shared
from gpucheck.cli.output import check_runnable, machine_for_child, save
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
    Missing,
    choose_place,
    error_of,
    missing_prerequisites,
    refused_limit,
)
from gpucheck.memlimit.model import GpuMemoryLimit, MemoryLimit
from gpucheck.memlimit.outcome import caps_of, hard_sentences
from gpucheck.memlimit.plan import LimitOptions, find_hard_limit
from gpucheck.place.exec import environment_before, start_first, supervise
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import MissingError

#: A user's or a group's number, as sudo gives it.
_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


def run_hard(
    options: LimitOptions, shared: Shared, *, verify: bool, as_root: bool, log: str | None = None
) -> int:
    """Run the command in a cgroup of its own that the driver limits, and return its exit code."""
    command = shared.context.child or ()
    root = Path(os.environ.get(ROOT_VARIABLE) or "/")
    session = NvmlSession()
    try:
        deadline_s = shared.deadline_s or DEADLINE_BASE_S
        _clear(root, session, deadline_s)
        with machine_for_child("memlimit", shared) as probes:
            answer = find_hard_limit(options, probes)
        check_runnable(answer, shared)
        plan = answer.result
        if not isinstance(plan, MemoryLimit):
            raise AssertionError  # pragma: no cover - check_runnable raises without a result
        for sentence in capped_sentences(caps_of(plan)):
            write_message(sentence)
        facts = _facts(root, answer, plan, session, deadline_s)
        missing = missing_prerequisites(facts)
        if missing or facts.place is None:
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
        exit_code = _run(run, plan, shared, verify=verify, as_root=as_root)
    finally:
        session.close()
    outcome = run.outcome(exit_code)
    if shared.verbosity >= 0:
        write_message(hard_sentences(run.limit)[1])
    after.report(exit_code, shared)
    if shared.output is not None:
        result = dataclasses.replace(plan, run=outcome, hard=run.limit)
        save("memlimit", shared, answer._replace(result=result))
    return exit_code


def _run(run: CappedRun, plan: MemoryLimit, shared: Shared, *, verify: bool, as_root: bool) -> int:
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
        search_path=os.environ.get("PATH", ""),
    )
    if group.version == 2:
        place = choose_place(root, group, shutil.which("systemd-run"))
        if isinstance(place, Missing):
            facts = dataclasses.replace(facts, place_problem=place)
        else:
            facts = dataclasses.replace(facts, place=place)
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
