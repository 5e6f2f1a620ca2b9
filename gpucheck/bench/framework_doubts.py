"""Doubts that only a framework's rows have: threads, precision, compilation, accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench.doubt_table import make_doubt
from gpucheck.bench.model import Doubt, FrameworkFacts, Measurement
from gpucheck.report.text import count_of, framework_title

#: Points of accuracy within which the same training should end, in whatever framework.
ACCURACY_POINTS = 0.3
#: Share of the first run, and multiple of the median, from which a sample may hold a compilation.
_AS_THE_FIRST, _TIMES_MEDIAN = 0.5, 10.0


def with_framework_doubts(
    rows: Sequence[Measurement], frameworks: Sequence[FrameworkFacts]
) -> list[Measurement]:
    """Return the rows, those of frameworks with the doubts that follow from all of the run."""
    return [
        row
        if row.framework is None or row.time_s is None
        else replace(row, doubts=(*row.doubts, *_doubts(row, rows, frameworks)))
        for row in rows
    ]


def _doubts(
    row: Measurement, rows: Sequence[Measurement], frameworks: Sequence[FrameworkFacts]
) -> Iterator[Doubt]:
    assert row.framework is not None
    facts = next((one for one in frameworks if one.name == row.framework.name), None)
    title = framework_title(row.framework.name)
    yield from _other_threads(row, rows, facts, title)
    yield from _reduced_precision(row, rows, title)
    yield from _compiled_again(row, title)
    yield from _other_accuracy(row, rows, title)


def _other_threads(
    row: Measurement, rows: Sequence[Measurement], facts: FrameworkFacts | None, title: str
) -> Iterator[Doubt]:
    """Doubt a row of all threads if the framework says that it uses another number."""
    if row.device != "cpu" or row.threads is None or facts is None or facts.threads_intra is None:
        return
    most = max(one.threads or 0 for one in rows if one.device == "cpu")
    if row.threads != most or facts.threads_intra == most:
        return
    found = {"threads_intra": facts.threads_intra, "threads": most}
    counted = count_of(facts.threads_intra, "thread")
    yield make_doubt("threads-differ", found, title=title, counted=counted)


def _reduced_precision(
    row: Measurement, rows: Sequence[Measurement], title: str
) -> Iterator[Doubt]:
    """Doubt a float32 product that the framework computes in TF32 unless it is told not to."""
    if row.dtype.input != "float32" or row.dtype.math_mode == "fp32":
        return
    if any(doubt.code == "other-precision" for doubt in row.doubts):
        return  # its error shows that it was float32, whatever is set
    what = (row.kernel, row.device, row.framework and row.framework.name)
    exact = any(
        (one.kernel, one.device, one.framework and one.framework.name) == what
        and one.dtype.math_mode == "fp32"
        for one in rows
    )
    if exact:  # the format was asked for
        return
    yield make_doubt("reduced-precision", {"math_mode": row.dtype.math_mode}, title=title)


def _compiled_again(row: Measurement, title: str) -> Iterator[Doubt]:
    """Doubt samples of which one took as long as the first run, in which the code was compiled."""
    form = row.framework.form if row.framework is not None else ""
    if row.cold_s is None or not row.time_s or row.loops is None or form.startswith("eager"):
        return
    longest_s = max(row.samples_s, default=0.0) * row.loops
    usual_s = row.time_s * row.loops
    compile_s = row.cold_s - row.time_s
    if longest_s - usual_s < _AS_THE_FIRST * compile_s or compile_s < _TIMES_MEDIAN * usual_s:
        return
    facts = {"longest_s": longest_s, "first_s": row.cold_s}
    yield make_doubt("compiled-again", facts, title=title, form=form)


def _other_accuracy(row: Measurement, rows: Sequence[Measurement], title: str) -> Iterator[Doubt]:
    """Doubt training that does not end where gpucheck's ends, by the same steps and images."""
    accuracy = row.facts.get("accuracy")
    alike = ("accuracy_steps", "trained_images", "tested_images", "images")
    own = next(
        (
            one.facts["accuracy"]
            for one in rows
            if one.framework is None
            and (one.kernel, one.shape) == (row.kernel, row.shape)
            and "accuracy" in one.facts
            and all(one.facts.get(name) == row.facts.get(name) for name in alike)
        ),
        None,
    )
    if not isinstance(accuracy, float) or not isinstance(own, float):
        return
    points = 100 * abs(accuracy - own)
    if points <= ACCURACY_POINTS:
        return
    facts = {"accuracy": accuracy, "gpucheck_accuracy": own, "points": points}
    yield make_doubt("accuracy-differs", facts, title=title)
