"""`gpucheck detect`: is a GPU usable, and if not, which layer is broken first.

--wheel, --pid and --log ask about a framework's builds, a running program and a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from gpucheck.cli.options import GITHUB, JUNIT, PROMETHEUS, flag, option, typed_options
from gpucheck.cli.outlets import open_outlets
from gpucheck.cli.output import deliver, machine, split_words
from gpucheck.cli.shared import Shared
from gpucheck.cli.terminal import status_line
from gpucheck.report.errors import WrongUseError

#: How long NVML may take with --quick, if no GPU has to wake: a monitor waits for the answer.
QUICK_DEADLINE_S = 3.0
#: The kernel's ids are C's signed int; real ones end far below (pid_max).
MOST_PID = (1 << 31) - 1


def command(
    *,
    ctx: typer.Context,
    only: list[str] | None = option(
        "--only ID,...", "Run only these checks or layers.", group="What to check"
    ),
    skip: list[str] | None = option("--skip ID,...", "Skip these checks or layers."),
    framework: str | None = option(
        "--framework NAME",
        "Fail if pytorch, tensorflow, jax, cupy, numba or onnxruntime cannot use a GPU.",
    ),
    expect_gpus: int | None = option("--expect-gpus N", "Fail unless programs can use N GPUs."),
    deep: bool = flag("--deep", "Import every framework and run a kernel on every GPU."),
    python: str | None = option(
        "--python PATH",
        "The Python whose frameworks to check"
        " [default: the active environment's, else the one in PATH].",
    ),
    quick: bool = flag("--quick", "Ask NVML and files only; start no CUDA, no framework."),
    wheel: list[str] | None = option(
        "--wheel NAME,...",
        "Name the build of torch, jax, ... for these GPUs and this driver.",
        group="Questions of their own",
    ),
    pid: int | None = option(
        "--pid N", "Say which GPU a running program uses, or why it uses none."
    ),
    log: str | None = option(
        "--log FILE", "Find the first cause in a log (-: stdin), and look for it."
    ),
    list_checks: bool = flag(
        "--list-checks", "List the checks and exit.", group="About the checks"
    ),
    explain: str | None = option(
        "--explain ID", "Explain a check or a cause, with what to do, and exit."
    ),
    junit: Path | None = JUNIT,
    github: bool | None = GITHUB,
    prometheus: Path | None = PROMETHEUS,
    shared: Shared,
) -> int:
    """Say whether a GPU can be used, and which layer is broken first."""
    from gpucheck.detect.machine import DetectRequest
    from gpucheck.detect.run import describe_checks, detect

    if list_checks or explain is not None:
        question = "--explain" if explain is not None else "--list-checks"
        check_alone(ctx, question, ("wheel", "pid", "log", "junit", "github", "prometheus"))
        with machine("detect", shared, ("table", "json")) as probes:
            answer = describe_checks(explain)
        return deliver("detect", shared, answer, probes.time())
    if wheel is not None:
        check_alone(ctx, "--wheel", (*_OF_VERDICT, "pid", "log"))
        return _choose_wheels(shared, wheel)
    if shared.format == "shell":
        message = "--format shell is for --wheel: it writes what an install script needs."
        raise WrongUseError(code="unknown-format", message=message)
    if pid is not None:
        check_alone(ctx, "--pid", (*_OF_VERDICT, "log"))
        return _explain_process(shared, pid)
    if log is not None:
        check_alone(ctx, "--log", _OF_VERDICT)
        return _explain_log(shared, log)
    if expect_gpus is not None and expect_gpus < 1:
        message = f"--expect-gpus takes a number of 1 or more, not {expect_gpus}."
        raise WrongUseError(code="bad-gpu-count", message=message)
    if quick and shared.deadline_s is None:
        shared = shared._replace(deadline_s=QUICK_DEADLINE_S, wakes=True)
    request = DetectRequest(
        expect_gpus=expect_gpus,
        framework=framework,
        only=_names("--only", only),
        skip=_names("--skip", skip),
        deep=deep,
        python=_program(python),
        quick=quick,
    )

    outlets = open_outlets(junit, github=github, prometheus=prometheus)
    with outlets.guarded("detect"):
        # The status line ends before the report is written: the two may share a terminal.
        with machine("detect", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
            answer = detect(probes, request, tell)
        return deliver("detect", shared, answer, probes.time(), also=outlets.write)


#: Options of the verdict, which no other question takes.
_OF_VERDICT = (
    *("only", "skip", "deep", "quick", "framework", "python", "expect_gpus"),
    *("junit", "github", "prometheus"),
)


def check_alone(ctx: typer.Context, question: str, others: Sequence[str]) -> None:
    """Refuse options beside a question that has a document of its own.

    Raises:
        WrongUseError: one of these parameters is on the command line as well.
    """
    given = typed_options(ctx, others)
    if given:
        message = f"{question} is a question of its own: omit {', '.join(given)}."
        raise WrongUseError(code="two-questions", message=message)


def _names(option: str, values: list[str] | None) -> tuple[str, ...]:
    """Return the names of checks; an option without any name does not mean all."""
    names = split_words(values)
    if values and not names:
        message = f"{option} names no check."
        raise WrongUseError(code="no-checks", message=message)
    return names


def _program(python: str | None) -> str | None:
    """Return the path of the named Python, before anything is read from the machine."""
    if python is None:
        return None
    import os

    from gpucheck.drivers.python.interpreters import user_interpreter

    return user_interpreter(os.environ, python).path


# -------------------------------------------------------- questions with a document of their own


def _choose_wheels(shared: Shared, words: list[str]) -> int:
    """Choose a build of each framework that is named, and report it.

    Raises:
        WrongUseError: a framework is unknown or none is named, or one line is asked for several.
    """
    from gpucheck.detect.checks.frameworks import FRAMEWORKS
    from gpucheck.detect.run import known_frameworks, normal_framework
    from gpucheck.detect.wheels import advise

    titles = {check.ID: check.title for check in FRAMEWORKS}
    with machine("wheel", shared) as probes, status_line(shown=shared.verbosity >= 0) as tell:
        names = dict.fromkeys(normal_framework(word) or "" for word in split_words(words))
        if not names:
            message = f"--wheel names no framework; it knows {known_frameworks()}."
            raise WrongUseError(code="no-framework", message=message)
        if shared.format == "shell" and len(names) > 1:
            message = "--format shell writes one line, for one framework: ask once for each."
            raise WrongUseError(code="several-frameworks", message=message)
        tell("asking NVML")
        answer = advise(probes, {name: titles[name] for name in names})
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
