"""`gpucheck detect`: is a GPU usable, and if not, which layer is broken first.

--wheel, --pid and --log ask about a framework's builds, a running program and a log.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpucheck.cli.options import Shared, refuse_beside
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.terminal import status_line
from gpucheck.detect.machine import DetectRequest
from gpucheck.report.errors import WrongUseError
from gpucheck.report.options import flag, option, words

#: How long NVML may take with --quick, if no GPU has to wake: a monitor waits for the answer.
QUICK_DEADLINE_S = 3.0
#: The kernel's ids are C's signed int; real ones end far below (pid_max).
MOST_PID = (1 << 31) - 1


def command(
    *,
    request: DetectRequest,
    wheel: tuple[str, ...] = words(
        "--wheel NAME,...",
        "Name the build of torch, jax, ... for these GPUs and this driver.",
        group="Questions of their own",
        not_with="--list-checks --explain",
    ),
    pid: int | None = option(
        "--pid N",
        "Say which GPU a running program uses, or why it uses none.",
        not_with="--list-checks --explain --wheel",
    ),
    log: str | None = option(
        "--log FILE",
        "Find the first cause in a log (-: stdin), and look for it.",
        not_with="--list-checks --explain --wheel --pid",
    ),
    list_checks: bool = flag(
        "--list-checks", "List the checks and exit.", group="About the checks"
    ),
    explain: str | None = option(
        "--explain ID", "Explain a check or a cause, with what to do, and exit."
    ),
    shared: Shared,
) -> int:
    """Say whether a GPU can be used, and which layer is broken first."""
    from gpucheck.detect.run import describe_checks, detect

    if list_checks or explain is not None:
        question = "--explain" if explain is not None else "--list-checks"
        _ask_alone(question, shared)
        with machine("detect", shared, ("table", "json")) as probes:
            answer = describe_checks(explain)
        return deliver("detect", shared, answer, probes.time())
    if wheel or "wheel" in shared.typed:
        _ask_alone("--wheel", shared)
        return _choose_wheels(shared, wheel)
    if shared.format == "shell":
        message = "--format shell is for --wheel: it writes what an install script needs."
        raise WrongUseError(code="unknown-format", message=message)
    if pid is not None:
        _ask_alone("--pid", shared)
        return _explain_process(shared, pid)
    if log is not None:
        _ask_alone("--log", shared)
        return _explain_log(shared, log)
    if request.expect_gpus is not None and request.expect_gpus < 1:
        message = f"--expect-gpus takes a number of 1 or more, not {request.expect_gpus}."
        raise WrongUseError(code="bad-gpu-count", message=message)
    for name, names in (("only", request.only), ("skip", request.skip)):
        if name in shared.typed and not names:  # which does not mean all
            raise WrongUseError(code="no-checks", message=f"--{name} names no check.")
    if request.quick and shared.deadline_s is None:
        shared = shared._replace(deadline_s=QUICK_DEADLINE_S, wakes=True)
    request = request._replace(python=_program(request.python))
    # The status line ends before the report is written: the two may share a terminal.
    with machine("detect", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
        answer = detect(probes, request, tell)
    return deliver("detect", shared, answer, probes.time())


def _ask_alone(question: str, shared: Shared) -> None:
    """Refuse options beside a question that has a document of its own."""
    fact = f"{question} is a question of its own"
    refuse_beside(question, shared, code="two-questions", fact=fact)


def _program(python: str | None) -> str | None:
    """Return the path of the named Python, before anything is read from the machine."""
    if python is None:
        return None
    import os

    from gpucheck.drivers.python.interpreters import user_interpreter

    return user_interpreter(os.environ, python).path


# -------------------------------------------------------- questions with a document of their own


def _choose_wheels(shared: Shared, wheels: Sequence[str]) -> int:
    """Choose a build of each framework that is named, and report it.

    Raises:
        WrongUseError: a framework is unknown or none is named, or one line is asked for several.
    """
    from gpucheck.detect.run import known_frameworks, normal_framework
    from gpucheck.detect.wheels import advise

    with machine("wheel", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
        names = dict.fromkeys(normal_framework(word) or "" for word in wheels)
        if not names:
            message = f"--wheel names no framework; it knows {known_frameworks()}."
            raise WrongUseError(code="no-framework", message=message)
        if shared.format == "shell" and len(names) > 1:
            message = "--format shell writes one line, for one framework: ask once for each."
            raise WrongUseError(code="several-frameworks", message=message)
        tell("asking NVML")
        answer = advise(probes, names)
    return deliver("wheel", shared, answer, probes.time())


def _explain_process(shared: Shared, pid: int) -> int:
    """Answer about one process.

    Raises:
        WrongUseError: there is no such process.
    """
    from gpucheck.detect.process import explain_process

    with machine("process", shared) as probes, status_line(shown=shared.verbosity >= 0):
        if not 1 <= pid <= MOST_PID:
            message = f"--pid takes the id of a process, from 1 to {MOST_PID}, not {pid}."
            raise WrongUseError(code="bad-pid", message=message)
        answer = explain_process(probes, pid)
    return deliver("process", shared, answer, probes.time())


def _explain_log(shared: Shared, name: str) -> int:
    """Answer about one log.

    Raises:
        WrongUseError: it cannot be read, or is no text.
    """
    from gpucheck.detect.log import check_log, read_log

    with machine("log", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
        answer = check_log(name, read_log(name, tell), probes, tell)
    return deliver("log", shared, answer, probes.time())
