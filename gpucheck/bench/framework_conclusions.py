"""Conclusions and doubts about frameworks: their share of the limit, and what holds them back.

A maker is gpucheck itself or a framework; each stands for its fastest form. Only rows whose time
is known to a quarter count, and that nothing disturbed, so that no sentence rests on one sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpucheck.bench.comparison import is_known, maker_of, maker_text, side_text, time_of
from gpucheck.bench.doubt_table import make_doubt
from gpucheck.bench.model import (
    Comparison,
    Conclusion,
    Doubt,
    Fact,
    FrameworkFacts,
    Measurement,
    Scope,
)
from gpucheck.report.text import (
    count_of,
    duration,
    framework_title,
    group_by,
    percent_text,
    two_digits,
)

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
    facts = next((item for item in frameworks if item.name == row.framework.name), None)
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
    most = max(item.threads or 0 for item in rows if item.device == "cpu")
    if row.threads != most or facts.threads_intra == most:
        return
    counts = {"threads_intra": facts.threads_intra, "threads": most}
    counted = count_of(facts.threads_intra, "thread")
    yield make_doubt("threads-differ", counts, title=title, counted=counted)


def _reduced_precision(
    row: Measurement, rows: Sequence[Measurement], title: str
) -> Iterator[Doubt]:
    """Doubt a float32 product that the framework computes in TF32 unless it is told not to."""
    if row.dtype.input != "float32" or row.dtype.math_mode == "fp32":
        return
    if any(doubt.code == "other-precision" for doubt in row.doubts):
        return  # its error shows that it was float32, whatever is set
    place = (row.kernel, row.device, row.framework and row.framework.name)
    exact = any(
        (item.kernel, item.device, item.framework and item.framework.name) == place
        and item.dtype.math_mode == "fp32"
        for item in rows
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
            item.facts["accuracy"]
            for item in rows
            if item.framework is None
            and (item.kernel, item.shape) == (row.kernel, row.shape)
            and "accuracy" in item.facts
            and all(item.facts.get(name) == row.facts.get(name) for name in alike)
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


#: Share of the time in which the host hands over work, from which a GPU waits for the host.
WAITS_FOR_HOST = 0.9
#: Factor from which one form, or one BLAS, is called faster than another.
_FORM_FASTER, _BLAS_FASTER = 1.05, 1.01
#: The form in which each operation is handed over by itself starts with this.
_EAGER = "eager"

#: Kernels whose rows differ in size: a sentence about each would be too many.
_SWEEPS = ("batch", "launch")


def framework_conclusions(
    rows: Sequence[Measurement],
    comparisons: Sequence[Comparison],
    frameworks: Sequence[FrameworkFacts],
    blas: str | None,
) -> tuple[Conclusion, ...]:
    """Return the conclusions about frameworks, none where none was measured.

    `blas` names the library behind gpucheck's own products on the processor.
    """
    if not any(row.framework for row in rows):
        return ()
    good = [row for row in rows if is_known(row)]
    conclusions = list(_break_even_sizes(comparisons))
    for kernel in dict.fromkeys(row.kernel for row in good if row.kernel not in _SWEEPS):
        mine = [row for row in good if row.kernel == kernel and row.scope is Scope.RESIDENT]
        for problem in group_by(mine, _problem).values():
            first = problem[0]
            formats = {row.dtype.format for row in mine if row.device == first.device}
            start = f"{first.dtype.format}: " if len(formats) > 1 else ""
            conclusions.extend(
                replace(conclusion, sentence=start + conclusion.sentence)
                for conclusion in _problem_conclusions(problem, frameworks, blas)
            )
    return (*conclusions, *_same_accuracy(rows))


def _break_even_sizes(comparisons: Sequence[Comparison]) -> Iterator[Conclusion]:
    """Yield, for each maker and GPU of a sweep over batches, from which on the GPU is faster."""
    sweeps: dict[tuple[str, str | None], dict[int, Comparison]] = {}
    for item in comparisons:
        if item.kernel == "batch":
            sweep = sweeps.setdefault((item.gpu.device, maker_of(item.gpu)), {})
            sweep[item.shape[0]] = item
    for (device, maker), sweep in sweeps.items():
        sizes = sorted(sweep)
        slower = [size for size in sizes if not _is_faster(sweep[size])]
        first = next((size for size in sizes if not slower or size > slower[-1]), None)
        if len(sizes) < 2:
            continue
        who = f"{maker_text(maker)} on {device}"
        facts: dict[str, Fact] = {"largest_batch": sizes[-1]}
        if first is None:
            text = f"{who} is not known to be faster than the CPU up to batches of {sizes[-1]}"
            text += ", the largest"
        else:
            facts["break_even_batch"] = first
            text = f"{who} is faster than the CPU from batches of {first} on"
            factor = two_digits(sweep[sizes[-1]].speedup_resident)
            text += f" ({factor} times with {sizes[-1]})" if first < sizes[-1] else ""
        yield Conclusion(
            kernel="batch", device=device, code="break-even-size", sentence=text, facts=facts
        )


def _is_faster(comparison: Comparison) -> bool:
    """Return whether a GPU is known to be faster than the CPU."""
    return comparison.resident_repeat95 is not None and comparison.resident_repeat95[0] > 1


def _problem(row: Measurement) -> tuple[object, ...]:
    """Return what rows have in common that only different makers tell apart."""
    return (row.device, row.dtype, row.shape, tuple(sorted(row.parameters.items())))


def _problem_conclusions(
    rows: Sequence[Measurement], frameworks: Sequence[FrameworkFacts], blas: str | None
) -> Iterator[Conclusion]:
    """Yield the conclusions about one kernel, format and size on one device."""
    most = max(row.threads or 0 for row in rows)
    whole = [row for row in rows if (row.threads or 0) == most]
    if not any(row.framework for row in whole):
        return
    best = _fastest_by_maker(whole)
    yield from _shares(best)
    for name, row in best.items():
        if name is not None:
            forms = [item for item in whole if maker_of(item) == name]
            yield from _compiling(forms)
            yield from _waiting(row, forms)
    if rows[0].kernel == "matmul" and rows[0].device == "cpu":
        for threads in dict.fromkeys(row.threads for row in rows):
            here = [row for row in rows if row.threads == threads]
            yield from _faster_blas(_fastest_by_maker(here), frameworks, blas)


def _fastest_by_maker(rows: Iterable[Measurement]) -> dict[str | None, Measurement]:
    """Return each maker's fastest row, the fastest maker first."""
    fastest: dict[str | None, Measurement] = {}
    for row in sorted(rows, key=time_of):
        fastest.setdefault(maker_of(row), row)
    return fastest


def _faster(quick: Measurement, slow: Measurement, factor: float) -> bool:
    """Return whether a row is faster by this factor, and their intervals do not meet."""
    if quick.ci95_s is None or slow.ci95_s is None or quick.ci95_s[1] >= slow.ci95_s[0]:
        return False
    return time_of(slow) >= factor * time_of(quick)


# --------------------------------------------------------------------------------- shares


def _shares(best: Mapping[str | None, Measurement]) -> Iterator[Conclusion]:
    """Yield each maker's share of the device's limit, or of the fastest maker's speed."""
    first = next(iter(best.values()))
    percents, limit = _percents(best.values())
    if len(best) == 1 and not percents:
        return
    if not percents:
        limit = f"the speed of {side_text(first)}"
        percents = [100 * time_of(first) / time_of(row) for row in best.values()]
    texts: list[str] = []
    facts: dict[str, Fact] = {}
    for (name, row), percent in zip(best.items(), percents, strict=True):
        facts[f"{name or 'gpucheck'}_percent"] = round(percent, 2)
        if limit.endswith(side_text(row)):
            continue
        of = f" of {limit}" if not texts else ""
        texts.append(f"{_possessive(row, first=not texts)} {percent_text(percent, ' ')}{of}")
    yield Conclusion.of(first, "framework-share", ", ".join(texts), **facts)


def _percents(rows: Iterable[Measurement]) -> tuple[list[float], str]:
    """Return the rows' percentages and the limit that they refer to; empty if one has none."""
    rows = list(rows)
    units = {row.throughput.unit for row in rows if row.throughput is not None}
    if not units <= {"B/s", "FLOP/s"}:
        return [], ""
    where = "this CPU's" if rows[0].device == "cpu" else f"{rows[0].device}'s"
    copies = [row.percent_of_copy for row in rows]
    peaks = [row.percent_of_peak for row in rows]
    if rows[0].device == "cpu" and None not in (*copies, *peaks):
        return [value for value in peaks if value is not None], f"{where} exponentials"
    if rows[0].kernel != "copy" and None not in copies:
        return [value for value in copies if value is not None], f"{where} copy"
    if None not in peaks:
        limit = "best product" if rows[0].device == "cpu" else "peak"
        return [value for value in peaks if value is not None], f"{where} {limit}"
    return [], ""


def _possessive(row: Measurement, *, first: bool) -> str:
    """Return "PyTorch's softmax (eager) reaches", and in short after the first."""
    form = row.variant.removesuffix("-1-thread") if row.framework is None else row.framework.form
    who = maker_text(maker_of(row))
    return f"{who}'s {row.kernel} ({form}) reaches" if first else f"{who}'s ({form})"


# ------------------------------------------------------------------------- what holds it back


def _compiling(forms: Sequence[Measurement]) -> Iterator[Conclusion]:
    """Yield the gain of compiling over the eager form, and the time from which it pays off."""
    eager = _quickest(row for row in forms if _is_eager(row))
    compiled = _quickest(row for row in forms if not _is_eager(row))
    if eager is None or compiled is None or compiled.framework is None:
        return
    who = f"{maker_text(maker_of(compiled))}'s {compiled.framework.form}"
    facts: dict[str, Fact] = {"speedup": time_of(eager) / time_of(compiled)}
    if _faster(compiled, eager, _FORM_FASTER):
        text = f"{who} is {_factor(eager, compiled)} as fast as its eager code"
        compile_s = compile_seconds(compiled)
        if compile_s is not None:
            pays = max(1, round(compile_s / (time_of(eager) - time_of(compiled))))
            facts |= {"compile_s": compile_s, "pays_off_from": pays}
            text += f"; compiling takes {duration(compile_s)} once, which pays off from "
            text += count_of(pays, "operation")
    elif _faster(eager, compiled, _FORM_FASTER):
        text = f"{who} gains nothing here: its eager code is {_factor(compiled, eager)} as fast"
    else:
        return
    yield Conclusion.of(compiled, "compiling", text, **facts)


def compile_seconds(row: Measurement) -> float | None:
    """Return how long a compiled form's first run took beyond a usual one, None if unknown.

    It is unknown if the first run was no slower: something else disturbed the others.
    """
    if row.framework is None or _is_eager(row) or row.cold_s is None or row.time_s is None:
        return None
    return row.cold_s - row.time_s if row.cold_s > row.time_s else None


def _is_eager(row: Measurement) -> bool:
    return row.framework is not None and row.framework.form.startswith(_EAGER)


def _quickest(rows: Iterable[Measurement]) -> Measurement | None:
    return min(rows, key=time_of, default=None)


def _factor(slow: Measurement, quick: Measurement) -> str:
    return f"{two_digits(time_of(slow) / time_of(quick))} times"


def _waiting(row: Measurement, forms: Sequence[Measurement]) -> Iterator[Conclusion]:
    """Yield that a framework's fastest form on a GPU waits for the host, and what helps."""
    share = float(row.facts.get("enqueue_share", 0.0))
    if row.framework is None or row.device == "cpu" or share < WAITS_FOR_HOST:
        return
    larger = "take larger batches" if row.kernel in ("train", "batch") else "take larger arrays"
    steps = [f"{larger} (--size; size in a profile)"]
    if _is_eager(row) and all(map(_is_eager, forms)):
        steps.append("compile the code")
    sentence = (
        f"{side_text(row)} on {row.device} waits for the host, which hands over work for "
        f"{100 * share:.0f} % of the time: {', or '.join(steps)}"
    )
    yield Conclusion.of(row, "waits-for-host", sentence, enqueue_share=share)


# ------------------------------------------------------------------------------------ BLAS


def _faster_blas(
    best: Mapping[str | None, Measurement], frameworks: Sequence[FrameworkFacts], blas: str | None
) -> Iterator[Conclusion]:
    """Yield that a framework's product is faster than gpucheck's, with both libraries."""
    libraries = {item.name: item.blas for item in frameworks}
    # The same version of a library that is faster elsewhere is not another library.
    others = {
        name: row
        for name, row in best.items()
        if name is not None and (libraries.get(name) or "?").split()[-1] not in (blas or "")
    }
    own, quickest = best.get(None), next(iter(others.values()), None)
    if own is None or quickest is None or not _faster(quickest, own, _BLAS_FASTER):
        return
    name = maker_of(quickest)
    theirs = libraries.get(name or "")
    percent = 100 * (time_of(own) / time_of(quickest) - 1)
    threads = "" if own.threads is None else f" with {count_of(own.threads, 'thread')}"
    uses = f" ({theirs})" if theirs else ""
    named = {"blas": blas or "unknown", "faster_blas": theirs or "unknown"}
    sentence = (
        f"{maker_text(name)}{uses} multiplies {percent:.0f} % faster than gpucheck's own "
        f"BLAS, {named['blas']},{threads}"
    )
    counted = {"percent": percent, "threads": own.threads or 0}
    yield Conclusion.of(own, "faster-blas", sentence, **counted, **named)


# -------------------------------------------------------------------------------- accuracy


def _same_accuracy(rows: Sequence[Measurement]) -> Iterator[Conclusion]:
    """Yield that all makers learn alike; one that does not has a doubt."""
    reached: dict[str | None, float] = {}
    trained = [row for row in rows if row.kernel == "train" and "accuracy" in row.facts]
    for row in trained:
        reached.setdefault(maker_of(row), float(row.facts["accuracy"]))
    if len(reached) < 2:
        return
    low, high = min(reached.values()), max(reached.values())
    if 100 * (high - low) > ACCURACY_POINTS:
        return
    ends = list(dict.fromkeys(f"{100 * value:.1f}" for value in (low, high)))
    *others, last = map(maker_text, reached)
    sentence = f"{', '.join(others)} and {last} learn the same: {' to '.join(ends)} % accuracy"
    yield Conclusion.of(trained[0], "same-accuracy", sentence, lowest=low, highest=high)
