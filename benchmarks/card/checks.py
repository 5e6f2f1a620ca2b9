"""Parts without figures that check the kernels' results: pytest and sanitizers."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from benchmarks.card.children import GRACE_S, Children
from benchmarks.card.figures import NO_TIME, Figure, read_figures

_SANITIZERS = ("compute-sanitizer", "/usr/local/cuda/bin/compute-sanitizer")
#: memcheck reports a wait for an unfinished event as an error, which it is not.
_FURTHER = {"memcheck": ("--report-api-errors", "no")}
#: Exit code of compute-sanitizer after a finding.
_FOUND = 9
#: Exit code of pytest after a failed test, and of coreutils' timeout after it has interrupted
#: pytest; other codes except 0 mean that it could not run.
_FAILED, _LATE = 1, 124
#: Each worker has a CUDA context of its own.
_WORKERS = 4
_TESTS = ("tests/gpu/test_kernels.py", "tests/gpu/test_sdc.py")


def run_tests(children: Children, seconds: float) -> tuple[list[Figure], str | None]:
    """Run the kernels' tests on the card, if pytest is installed."""
    if importlib.util.find_spec("pytest") is None:
        return [], "pytest is not installed"
    # Warnings of libraries are not about our kernels.
    words = ["-m", "pytest", "-q", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider", *_TESTS]
    if importlib.util.find_spec("xdist") is not None:
        # Most of their time is compilation on the processor.
        words += ["-p", "xdist.plugin", "-n", str(_WORKERS)]
    # Interrupted, pytest still counts what has passed and failed.
    command = ["timeout", "--foreground", "-s", "INT", f"{seconds:.0f}", sys.executable, *words]
    ended = children.run(command, seconds + GRACE_S)
    if ended.code == 0 and " passed" not in ended.said:
        return [], f"none was run: {ended.said}"
    if ended.code not in (0, _FAILED, _LATE):
        return [], f"{ended.how}: {ended.said}"
    is_late = ended.code == _LATE and " failed" not in ended.said
    figure = Figure(
        part="tests",
        name="accuracy of every kernel",
        unit="",
        ours=1.0,
        verified=None if is_late else ended.code == 0,
        error=f"not all in time: {ended.said}" if is_late else None,
        details={"end": ended.said},
    )
    return [figure], None if ended.code == 0 else ended.said


def run_sanitizer(
    children: Children, tool: str, notes: Path, seconds: float
) -> tuple[list[Figure], str | None]:
    """Run every kernel once under one of compute-sanitizer's tools."""
    program = next(filter(None, map(shutil.which, _SANITIZERS)), None)
    if program is None:
        return [], "compute-sanitizer is not installed"
    command = [program, "--tool", tool, *_FURTHER.get(tool, ()), "--error-exitcode", str(_FOUND)]
    command += [sys.executable, "-m", "benchmarks.gpu", "--part", "exercise"]
    command += ["--notes", str(notes), "--seconds", str(seconds)]
    ended = children.run(command, seconds + GRACE_S)
    ran = read_figures(notes)
    if ended.code not in (0, _FOUND) or not ran:
        return [], f"{ended.how}: {ended.said}"
    launched = [figure for figure in ran if figure.error != NO_TIME]
    failed = [f"{figure.name}: {figure.error}" for figure in launched if figure.error]
    figure = Figure(
        part=tool,
        name=f"{len(launched)} of {len(ran)} kernels watched",
        unit="",
        ours=1.0,
        verified=ended.code == 0 and not failed and all(figure.verified for figure in launched),
        details={"end": ended.said, "failed": failed},
    )
    return [figure], "; ".join(failed) or None
