"""Comparison of CPU and GPU: resident, end-to-end and amortised speed-ups, and break-even."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gpucheck.bench.doubt_table import make_doubt
from gpucheck.bench.model import (
    Comparison,
    ComparisonSide,
    Doubt,
    Measurement,
    Scope,
    shared_fields,
)
from gpucheck.report.text import framework_title, two_digits

if TYPE_CHECKING:
    from gpucheck.bench.case import CaseLabel

#: How many operations on the same data the amortised speed-up assumes.
REUSE_COUNT = 10
#: The doubt of a comparison with a slowed-down side, and the doubts of rows that mean it.
SIDE_IN_DOUBT = "side-in-doubt"
_SLOWED = (
    *("throttled", "gpu-shared", "gpu-claimed", "clock-low", "host-busy", "quota-reached"),
    "blas-older-than-cpu",
)
#: Share of the time to which it must be known for a sentence.
_KNOWN_TO = 0.25
#: Doubts of a row whose figure is that of other programs, or of chance.
_DISTURBED = frozenset({"host-busy", "quota-reached"})
#: The code for a side with too few rounds for an interval.
_NO_INTERVAL = "no-interval"
#: More GPUs than this share one sentence.
_MOST_ALONE = 2
#: What a GPU is whose speed-up may as well be none.
_UNKNOWN = "not known to be faster or slower"
#: Formats of less precision than float32: a CPU's float32 row answers for them.
_BELOW_FLOAT32 = frozenset({"tf32", "float16", "bfloat16", "float8", "int8"})


def maker_of(row: Measurement | ComparisonSide | CaseLabel) -> str | None:
    """Return the framework that ran a row; None for gpucheck's own code."""
    return row.framework.name if row.framework is not None else None


def maker_text(name: str | None) -> str:
    """Return who ran a row in words."""
    return "gpucheck" if name is None else framework_title(name)


def compare(
    measurements: Sequence[Measurement], faster_cpu: Mapping[str, str] | None = None
) -> tuple[Comparison, ...]:
    """Return one comparison for each kernel, shape, format, GPU and maker with times on both sides.

    A maker is gpucheck itself or a framework. The GPU's side is the maker's fastest row, the CPU's
    the fastest row of all makers, so that a GPU does not win against a slow CPU kernel: in the same
    format or, for a format of less precision, in float32. Rows that failed or have no time are left
    out. `faster_cpu` tells, by kernel, how to get a CPU side that is known to be faster.
    """
    timed = [
        row
        for row in measurements
        if row.time_s and row.error is None and row.verified and row.verified.ok
    ]
    comparisons = []
    for gpu in _fastest_gpu_rows(timed):
        problem = (gpu.kernel, gpu.shape, gpu.parameters)
        same = [row for row in timed if (row.kernel, row.shape, row.parameters) == problem]
        cpus = [other for other in same if other.device == "cpu"]
        rivals = _rivals(cpus, gpu)
        if rivals:
            lacking = (faster_cpu or {}).get(gpu.kernel)
            comparisons.append(_comparison(rivals, gpu, _end_to_end(same, gpu), lacking))
    return tuple(comparisons)


def _rivals(cpus: Iterable[Measurement], gpu: Measurement) -> list[Measurement]:
    """Return the CPU's rows that do a GPU row's work in no less precision."""
    alike = [cpu for cpu in cpus if cpu.dtype == gpu.dtype]
    plain = [cpu for cpu in cpus if cpu.dtype.math_mode == "fp32" and cpu not in alike]
    if gpu.dtype.format in _BELOW_FLOAT32:
        return [*alike, *plain]
    return alike or plain


def time_of(row: Measurement) -> float:
    """Return the time of a row that has one."""
    assert row.time_s is not None
    return row.time_s


def _fastest_gpu_rows(timed: Sequence[Measurement]) -> list[Measurement]:
    """Return each maker's fastest resident row by problem, format and GPU, in the rows' order."""
    best: dict[tuple[object, ...], Measurement] = {}
    for row in timed:
        if row.device == "cpu" or row.scope is not Scope.RESIDENT:
            continue
        work = (row.kernel, row.shape, tuple(row.parameters.items()), row.dtype)
        problem = (*work, row.device, maker_of(row))
        if problem not in best or time_of(row) < time_of(best[problem]):
            best[problem] = row
    return list(best.values())


def _end_to_end(rows: Sequence[Measurement], gpu: Measurement) -> Measurement | None:
    """Return a maker's fastest row with transfers on its GPU, if such a row was measured."""
    wanted = (Scope.END_TO_END, gpu.device, gpu.dtype, maker_of(gpu))
    pairs = (
        other
        for other in rows
        if (other.scope, other.device, other.dtype, maker_of(other)) == wanted
    )
    return min(pairs, key=time_of, default=None)


def _comparison(
    rivals: Sequence[Measurement],
    gpu: Measurement,
    end_to_end: Measurement | None,
    lacking: str | None,
) -> Comparison:
    cpu = min(rivals, key=time_of)
    own_s = min((time_of(row) for row in rivals if maker_of(row) == maker_of(gpu)), default=None)
    cpu_s, gpu_s = time_of(cpu), time_of(gpu)
    resident = cpu_s / gpu_s
    moved = amortised = break_even = None
    if end_to_end is not None:
        end_to_end_s = time_of(end_to_end)
        # The end-to-end time may be the shorter one by noise: then the transfer cost nothing.
        transfer_s = max(0.0, end_to_end_s - gpu_s)
        moved = cpu_s / end_to_end_s
        amortised = cpu_s / (gpu_s + transfer_s / REUSE_COUNT)
        break_even = break_even_count(cpu_s, gpu_s, transfer_s)
    resident_repeat95, moved_repeat95 = _ratio_range(cpu, gpu), _ratio_range(cpu, end_to_end)
    return Comparison(
        kernel=gpu.kernel,
        dtype=gpu.dtype,
        shape=gpu.shape,
        cpu=ComparisonSide(**shared_fields(cpu, ComparisonSide)),
        gpu=ComparisonSide(**shared_fields(gpu, ComparisonSide)),
        speedup_resident=resident,
        speedup_end_to_end=moved,
        speedup_amortised=amortised,
        speedup_own_cpu=None if own_s is None else own_s / gpu_s,
        reuse_count=REUSE_COUNT,
        break_even=break_even,
        sentence=sentence(
            resident,
            moved,
            break_even,
            *_sides_text(cpu, gpu),
            differs=(not holds_one(resident_repeat95), not holds_one(moved_repeat95)),
        ),
        resident_repeat95=resident_repeat95,
        end_to_end_repeat95=moved_repeat95,
        doubts=(
            *_different_precision(cpu, gpu),
            *_sides_in_doubt(cpu, gpu),
            *([] if lacking is None else [make_doubt("faster-cpu-exists", how=lacking)]),
        ),
    )


def _ratio_range(cpu: Measurement, gpu: Measurement | None) -> tuple[float, float] | None:
    """Return from where to where a speed-up can lie: its sides' intervals against each other."""
    if gpu is None or cpu.repeat95_s is None or gpu.repeat95_s is None:
        return None
    return cpu.repeat95_s[0] / gpu.repeat95_s[1], cpu.repeat95_s[1] / gpu.repeat95_s[0]


def holds_one(interval: tuple[float, float] | None) -> bool:
    """Return whether the sides of a speed-up with this interval may be equally fast."""
    return interval is None or interval[0] <= 1 <= interval[1]


def is_known(row: Measurement) -> bool:
    """Return whether a row's time is known well enough for a sentence about it."""
    if row.error is not None or row.ci95_s is None or not row.time_s:
        return False
    width = (row.ci95_s[1] - row.ci95_s[0]) / 2
    return width <= _KNOWN_TO * row.time_s and not is_disturbed(row)


def is_disturbed(row: Measurement) -> bool:
    """Return whether other programs, or a quota, kept a row from the processor."""
    return any(doubt.code in _DISTURBED for doubt in row.doubts)


def _sides_text(cpu: Measurement, gpu: Measurement) -> tuple[str, str]:
    """Return each side's own part: " with PyTorch in float32", empty where both are alike."""
    with_frameworks = maker_of(cpu) is not None or maker_of(gpu) is not None
    texts = []
    for row in (cpu, gpu):
        who = f" with {side_text(row)}" if with_frameworks else ""
        texts.append(who + (f" in {row.dtype.format}" if cpu.dtype != gpu.dtype else ""))
    return texts[0], texts[1]


def side_text(side: Measurement | ComparisonSide) -> str:
    """Return who ran a side, and which of its code: "PyTorch eager", "gpucheck's blas"."""
    if side.framework is None:
        return f"gpucheck's {side.variant.removesuffix('-1-thread')}"
    return side.framework.text


def _different_precision(cpu: Measurement, gpu: Measurement) -> tuple[Doubt, ...]:
    """Doubt a comparison whose sides compute in different precisions, unless a row says so."""
    said = any(doubt.code == "reduced-precision" for row in (cpu, gpu) for doubt in row.doubts)
    if cpu.dtype == gpu.dtype or said:
        return ()
    wording = "different-precision" if gpu.framework is None else "different-precision-framework"
    facts = {"cpu": cpu.dtype.math_mode, "gpu": gpu.dtype.math_mode}
    return (make_doubt(wording, facts),)


def _sides_in_doubt(cpu: Measurement, gpu: Measurement) -> tuple[Doubt, ...]:
    """Return the doubt that something slowed one side down, or that its time has no interval."""
    slowed = {
        side: [doubt.code for doubt in row.doubts if doubt.code in _SLOWED]
        + ([_NO_INTERVAL] if row.ci95_s is None else [])
        for side, row in (("cpu", cpu), ("gpu", gpu))
    }
    because = {side: ", ".join(codes) for side, codes in slowed.items() if codes}
    if not because:
        return ()
    facts = {"codes": ", ".join(dict.fromkeys(code for of in slowed.values() for code in of))}
    if len(because) == 2:
        return (make_doubt("side-in-doubt-both", facts, **because),)
    ((side, codes),) = because.items()
    return (make_doubt(SIDE_IN_DOUBT, facts, side=side.upper(), because=codes),)


def break_even_count(cpu_s: float, gpu_s: float, transfer_s: float) -> int | None:
    """Return the fewest operations on moved data from which the GPU is at least as fast.

    The data moves once: n cpu_s >= transfer_s + n gpu_s. None if the GPU's kernel is not faster.
    """
    if gpu_s >= cpu_s:
        return None
    return max(1, math.ceil(transfer_s / (cpu_s - gpu_s)))


def sentence(
    resident: float,
    end_to_end: float | None,
    break_even: int | None,
    cpu: str = "",
    gpu: str = "",
    *,
    differs: tuple[bool, bool] = (True, True),
) -> str:
    """Return the speed-ups in plain words; `cpu` and `gpu` qualify the sides: " in float32".

    `differs`: each speed-up's sides are known to differ.
    """
    stays = _times(resident, cpu) if differs[0] else f"{_UNKNOWN} than the CPU{cpu}"
    first = f"for this size the GPU{gpu} is {stays} if the data stays there"
    if end_to_end is None:
        return f"{first}; transfers were not measured"
    text = f"{first}, {_times(end_to_end) if differs[1] else _UNKNOWN} with transfers"
    if differs[1] and end_to_end < 1 and break_even is not None:
        text += f"; moving pays from {break_even} operations on the same data"
    return text


def _times(factor: float, cpu: str = "") -> str:
    """Return a speed-up in words, with two significant digits.

    `cpu` qualifies the processor's side, which is then named.
    """
    if 0.95 <= factor < 1.05:
        return f"as fast as the CPU{cpu}"
    than = f" than the CPU{cpu}" if cpu else ""
    if factor >= 1:
        return f"{two_digits(factor)} times faster{than}"
    return f"{two_digits(1 / factor)} times slower{than}"


def headline(comparisons: Sequence[Comparison]) -> str | None:
    """Return the speed-ups of all kernels in one sentence, None if there are none.

    Each GPU and each maker has a part. Only what is known to be faster or slower counts; where
    kernels were compared in equal precision, only those.
    """
    known = [item for item in comparisons if not holds_one(item.resident_repeat95)]
    fair = [item for item in known if item.cpu.dtype == item.gpu.dtype] or known
    devices = list(dict.fromkeys(item.gpu.device for item in fair))
    said = []
    for maker in dict.fromkeys(maker_of(item.gpu) for item in fair):
        mine = [item for item in fair if maker_of(item.gpu) == maker]
        who = "" if maker is None else f"{maker_text(maker)} on "
        if len(devices) > _MOST_ALONE:
            said.append(_reached(f"{who}each of {len(devices)} GPUs", mine))
            continue
        by_device = ([item for item in mine if item.gpu.device == name] for name in devices)
        said += [_reached(f"{who}{here[0].gpu.device}", here) for here in by_device if here]
    return "; ".join(said) or None


def _reached(who: str, here: Sequence[Comparison]) -> str:
    """Return the speed-ups that a device, or some of them, reach in these comparisons."""
    names = {_named(item) for item in here}
    where = f" in {names.pop()}" if len(names) == 1 else ""
    stays = _range([(item.speedup_resident, _named(item)) for item in here], named=not where)
    text = f"{who} reaches {stays} the CPU's speed{where} if the data stays there"
    moved = [
        (item.speedup_end_to_end, _named(item))
        for item in here
        if item.speedup_end_to_end is not None and not holds_one(item.end_to_end_repeat95)
    ]
    if moved:
        text += f", {_range(moved, named=not where)} with transfers"
    codes = dict.fromkeys(
        code
        for item in here
        for doubt in item.doubts
        if doubt.code == SIDE_IN_DOUBT
        for code in str(doubt.facts["codes"]).split(", ")
    )
    return f"{text} (in doubt: {', '.join(codes)})" if codes else text


def _range(values: Sequence[tuple[float, str]], *, named: bool) -> str:
    """Return the smallest and the largest speed-up; `named` with kernel and format, each once."""
    (low, low_name), (high, high_name) = min(values), max(values)
    ends = [(low, low_name)] * (low_name != high_name) + [(high, high_name)]
    if not named or len(ends) == 1:
        text = " to ".join(dict.fromkeys(_factor(value) for value in (low, high)))
        return f"{text} times" + (f" ({high_name})" if named else "")
    return " to ".join(f"{_factor(value)} ({name})" for value, name in ends) + " times"


def _named(comparison: Comparison) -> str:
    return f"{comparison.kernel} {comparison.dtype.format}"


def _factor(value: float) -> str:
    return f"{value:.2g}" if value < 0.995 else two_digits(value)
