"""`gpucheck compare`: two runs, saved or as JSON reports, compared offline."""

from __future__ import annotations

from pathlib import Path

from gpucheck.cli.options import Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.report.errors import WrongUseError
from gpucheck.report.options import option, words


def command(
    *,
    first: Path = option("FIRST", "The earlier run: saved, or its JSON report.", ..., group="Runs"),
    second: Path = option("SECOND", "The later run, likewise.", ...),
    tolerance: float | None = option(
        "--tolerance PERCENT",
        "How much worse a row may be [default: as saved, else 5].",
        group="Judge",
    ),
    allow_difference: tuple[str, ...] = words(
        "--allow-difference KEY", "Compare even if this key differs (such as driver)."
    ),
    shared: Shared,
) -> int:
    """Compare two benchmark runs, with intervals and a verdict."""
    from gpucheck.bench.ci.baseline import allowed_keys, check_same_temperature, read_run
    from gpucheck.bench.ci.compare import compare_runs, conclude_comparison

    if tolerance is not None and not 0 < tolerance < 100:
        message = f"--tolerance takes percent between 0 and 100, not {tolerance:g}."
        raise WrongUseError(code="bad-tolerance", message=message)
    with machine("compare", shared) as probes:
        before, now = read_run(first), read_run(second)
        check_same_temperature(before, now)
        comparison = compare_runs(
            before,
            now,
            files=(first, second),
            tolerance_percent=tolerance,
            allowed=allowed_keys(allow_difference),
        )
        answer = conclude_comparison(comparison, probes.host())
    return deliver("compare", shared, answer, probes.time())
