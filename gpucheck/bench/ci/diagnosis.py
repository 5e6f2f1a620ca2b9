"""Diagnosis of a bad figure from what the run itself saw, the ruling on it, and disturbed figures.

Causes outside the device come first: a GPU is called defective only if nothing else explains the
figure. A slow processor is never called defective, because its neighbours, heat and clock cannot
be seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from gpucheck.bench import stats
from gpucheck.bench.ci.decision import FEWEST_PROCESSES, scatter, split_sessions, typical
from gpucheck.bench.ci.model import Series
from gpucheck.bench.ci.run_data import MetricValues
from gpucheck.bench.model import NO_TIME, Doubt, Gate, GateClass, GateStatus, shared_fields
from gpucheck.bench.telemetry import HEAT
from gpucheck.bench.workers import WORKER_INTERRUPTED, WORKER_SILENT
from gpucheck.data import read_table
from gpucheck.report.envelope import Evidence, Failure
from gpucheck.report.text import count_of

#: Doubts that blame others than the device, and those that blame chance.
ENVIRONMENT = frozenset({"host-busy", "quota-reached", "gpu-shared", "gpu-claimed", "starved"})
#: What else helps if a figure is worse than a baseline of one session.
FURTHER_SESSIONS = (
    "add sessions from other days to the baseline with --save FILE --append: days can differ more "
    "than the processes of one run"
)
#: Classes that further processes can settle; the others stay however often they are measured.
_BY_REPETITION = frozenset({GateClass.NOISE, GateClass.ENVIRONMENT, GateClass.THERMAL})
NOISE = frozenset({"unconverged", "bimodal"})
_CONFIG = frozenset({"clocks-locked", "pcie-narrow", "blas-older-than-cpu"})
#: Share of the processes in which a cause must be seen to explain the figure of all.
_MOST = 0.5
#: A power limit below this share of the board's default counts as lowered.
_LOWERED = 0.98

#: Failures of a process that leave the state of the device open.
_OPEN = frozenset({WORKER_SILENT, WORKER_INTERRUPTED, NO_TIME})

#: Classes of failures by their code; any other is software.
_FAILURES = {
    "gpu-lost": GateClass.HARDWARE,
    "wrong-result": GateClass.HARDWARE,
    "out-of-memory": GateClass.ENVIRONMENT,
    "system-limit": GateClass.ENVIRONMENT,
    "gpu-out-of-memory": GateClass.ENVIRONMENT,
    "gpu-busy": GateClass.ENVIRONMENT,
    "gpu-memory-taken": GateClass.ENVIRONMENT,
    "memory-shared": GateClass.ENVIRONMENT,
    "memory-taken": GateClass.ENVIRONMENT,
    "worker-interrupted": GateClass.ENVIRONMENT,
    "worker-late": GateClass.ENVIRONMENT,
    "interrupted": GateClass.ENVIRONMENT,
    NO_TIME: GateClass.NOISE,
    "clock-stuck": GateClass.ENVIRONMENT,
    "size-does-not-fit": GateClass.CONFIG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Where to look for the cause: its class, a sentence, what was seen, and what to do.

    `status` is the verdict on what did not simply pass; `repeat_helps` says that further processes
    may decide an undecided figure.
    """

    class_: GateClass
    sentence: str
    evidence: tuple[Evidence, ...] = ()
    next: tuple[str, ...] = ()
    status: GateStatus = GateStatus.FAIL
    repeat_helps: bool = False


def diagnose(
    case: str,
    said: Mapping[str, object] = MappingProxyType({}),
    evidence: tuple[Evidence, ...] = (),
    class_: GateClass | None = None,
) -> Diagnosis:
    """Return the diagnosis of a case in the table of gates, with its steps or its class's."""
    texts = _texts_of(case)
    class_ = class_ or GateClass(texts["class"])
    steps = texts.get("next") or read_table("gates")["class"][class_]
    return Diagnosis(
        class_=class_,
        sentence=texts["sentence"].format_map(said),
        evidence=evidence,
        next=tuple(step.format_map(said) for step in steps),
    )


def explain_unread(case: str, why: object) -> str:
    """Return why a gate is undecided for which nothing was read."""
    return str(_texts_of(case)["unread"]).format(why=why)


def _texts_of(case: str) -> Mapping[str, Any]:
    texts: Mapping[str, Any] = read_table("gates")[case]
    return {**_texts_of(texts["like"]), **texts} if "like" in texts else texts


def ruling(
    status: GateStatus, figures: MetricValues, limit: float, peers: Sequence[MetricValues] = ()
) -> Diagnosis:
    """Return the ruling on a failing or undecided figure, by the one rule for every comparison.

    A figure that others disturbed in most of its processes does not show the state of the device,
    so it is undecided. If they disturbed every process, repeating does not help.
    """
    if status is GateStatus.FAIL and _with_codes(figures, ENVIRONMENT) is None:
        return _explain(figures, limit, peers)
    diagnosis = _diagnose_doubts(figures)
    always_disturbed = any(
        doubt.doubt.code in ENVIRONMENT and doubt.processes >= len(figures.values)
        for doubt in figures.doubts
    )
    helps = bool(figures.values) and diagnosis.class_ in _BY_REPETITION and not always_disturbed
    return replace(diagnosis, status=GateStatus.INCONCLUSIVE, repeat_helps=helps)


def find_disturbing(figures: MetricValues) -> Doubt | None:
    """Return the doubt that others, or heat, slowed a figure in most of its processes."""
    return _with_codes(figures, ENVIRONMENT | {"throttled"})


def class_of_failure(failure: Failure) -> GateClass:
    """Return where to look for the cause of a failed process or row."""
    return _FAILURES.get(failure.code, GateClass.SOFTWARE)


def leaves_open(failure: Failure) -> bool:
    """Return whether this failure leaves the state of the device open."""
    return failure.code in _OPEN or class_of_failure(failure) is GateClass.ENVIRONMENT


def decisive(failures: Sequence[Failure]) -> Failure:
    """Return the first failure that says something about the device, else the first of all.

    A GPU that was lost is lost, even if another process found it busy before.
    """
    return next((item for item in failures if not leaves_open(item)), failures[0])


def _explain(figures: MetricValues, limit: float, peers: Sequence[MetricValues]) -> Diagnosis:
    """Return why an undisturbed figure is worse than its limit; `peers` are other GPUs."""
    diagnosis = (
        _blame(figures, GateClass.HARDWARE, {"new-errors"}, share=0.0)
        or _throttled(figures)
        or _blame(figures, GateClass.CONFIG, _CONFIG)
        or _power_cap(figures, limit, peers)
    )
    if diagnosis is not None:
        return diagnosis
    case = "unexplained-cpu" if figures.device == "cpu" else "unexplained"
    return diagnose(case, evidence=_seen(figures))


def _diagnose_doubts(figures: MetricValues) -> Diagnosis:
    """Return why a figure is too uncertain to decide."""
    diagnosis = (
        _blame(figures, GateClass.ENVIRONMENT, ENVIRONMENT, share=0.0)
        or _throttled(figures)
        or _blame(figures, GateClass.CONFIG, _CONFIG)
    )
    if diagnosis is not None:
        return diagnosis
    noisy = _with_codes(figures, NOISE, share=0.0)
    case = "noise-of-one" if len(figures.values) == 1 else "noise"
    diagnosis = diagnose(case, {"fewest": FEWEST_PROCESSES}, _seen(figures))
    return (
        diagnosis
        if noisy is None
        else replace(diagnosis, sentence=f"{diagnosis.sentence}; {noisy.message}")
    )


def _blame(
    figures: MetricValues, class_: GateClass, codes: Collection[str], *, share: float = _MOST
) -> Diagnosis | None:
    """Return the diagnosis by the most common of these doubts, if enough processes have it."""
    doubt = _with_codes(figures, codes, share=share)
    return None if doubt is None else _blamed(class_, doubt, figures)


def _throttled(figures: MetricValues) -> Diagnosis | None:
    doubt = _with_codes(figures, {"throttled"})
    if doubt is None:
        return None
    reasons = {name.removesuffix("_share") for name in doubt.facts}
    by_heat = not reasons or bool(reasons & HEAT)
    return _blamed(GateClass.THERMAL if by_heat else GateClass.POWER_CAP, doubt, figures)


def _power_cap(
    figures: MetricValues, limit: float, peers: Sequence[MetricValues]
) -> Diagnosis | None:
    """Blame the power limit if it was lowered, or if the GPU would pass at its peers' clock.

    A product of random numbers takes every GPU to its power limit, so that alone means nothing.
    """
    doubt = _with_codes(figures, {"power-capped"})
    if doubt is None:
        return None
    for gpu in figures.telemetry:
        now, default = gpu.power_limit_w, gpu.power_limit_default_w
        if now is not None and default is not None and now < _LOWERED * default:
            return replace(
                _blamed(GateClass.POWER_CAP, doubt, figures),
                sentence=f"its power limit is {now:.0f} W; the board's default is {default:.0f} W",
                next=(f"restore it: sudo nvidia-smi -pl {default:.0f}",),
            )
    reference, own = _reference_clock(figures, peers), figures.clock_mhz
    measured = stats.median(figures.values) if figures.values else None
    if reference is None or own is None or measured is None or own >= reference:
        return None
    if measured * reference / own < limit:
        return None
    text = f"its clock was {own:.0f} MHz at the power limit; {reference:.0f} MHz is usual"
    return replace(_blamed(GateClass.POWER_CAP, doubt, figures), sentence=text)


def _reference_clock(figures: MetricValues, peers: Sequence[MetricValues]) -> float | None:
    """Return a good GPU's clock in this check: that of at least two peers, else the board's."""
    clocks = [peer.clock_mhz for peer in peers if peer.clock_mhz is not None]
    if len(clocks) >= 2:
        return stats.median(clocks)
    board = figures.gpu.board if figures.gpu is not None else None
    return board.tensor_clock_mhz if board is not None else None


def _with_codes(
    figures: MetricValues, codes: Collection[str], *, share: float = _MOST
) -> Doubt | None:
    """Return the most common of these doubts, if at least a share of the processes have it."""
    carried = next((item for item in figures.doubts if item.doubt.code in codes), None)
    if carried is None or carried.processes < share * len(figures.values):
        return None
    return carried.doubt


def _blamed(class_: GateClass, doubt: Doubt, figures: MetricValues) -> Diagnosis:
    return Diagnosis(
        class_=class_, sentence=doubt.message, evidence=_seen(figures), next=(doubt.next,)
    )


def _seen(figures: MetricValues) -> tuple[Evidence, ...]:
    """Return the evidence: doubts with the number of processes that have them, and sensors."""
    evidence = [
        Evidence(
            f"doubt {item.doubt.code}",
            f"{item.processes} of {count_of(len(figures.values), 'process')}",
        )
        for item in figures.doubts
    ]
    if figures.clock_mhz is not None:
        evidence.append(Evidence("SM clock", f"{figures.clock_mhz:.0f} MHz"))
    evidence.extend(_sensors(figures))
    return tuple(evidence)


def _sensors(figures: MetricValues) -> Iterator[Evidence]:
    hot = [gpu.temperature_c.high for gpu in figures.telemetry if gpu.temperature_c is not None]
    drawn = [gpu.power_w.median for gpu in figures.telemetry if gpu.power_w is not None]
    if hot:
        yield Evidence("temperature", f"{max(hot):.0f} °C at most")
    if drawn:
        yield Evidence("power", f"{stats.median(drawn):.0f} W")


def explained(gate: Gate, diagnosis: Diagnosis, before: str = "") -> Gate:
    """Return a gate that did not pass, with its diagnosis; the reason may begin with a text."""
    return replace(gate, **shared_fields(diagnosis, Gate), reason=f"{before}{diagnosis.sentence}")


# ------------------------------------------------------------------------- disturbed figures
# They show what others left of a machine, not what it can do. Others only make a device slower:
# such a figure may pass, but it does not fail, and nothing is compared with it later, since a
# slowdown would hide behind it.

_IDLE = "run it again when the machine is idle"


def figures_of(series: Series) -> MetricValues:
    """Return a saved figure in the form that is judged."""
    return MetricValues(**shared_fields(series, MetricValues))


def marked(series: Series) -> Series:
    """Return a series with the reason why it was disturbed, if it was."""
    if series.disturbed is not None:
        return series
    doubt = find_disturbing(figures_of(series))
    return replace(series, disturbed=_scattered(series) if doubt is None else doubt.message)


def _scattered(series: Series) -> str | None:
    """Return by how much the processes of a session differ, None if the tolerance allows it."""
    tolerance = series.tolerance_percent
    for values in split_sessions(series.values, series.sessions):
        share = scatter(values)
        if 100 * share > tolerance:
            by = f"{100 * share:.1f} %" if share < 1 else f"a factor of {1 + share:.3g}"
            differ = f"its {len(values)} processes differ by {by} (standard deviation)"
            return f"{differ}, more than {tolerance:g} %"
    return None


def disturbed_gates(series: Sequence[Series]) -> Iterator[Gate]:
    """Yield an undecided gate for each series that was disturbed."""
    for item in series:
        if item.disturbed is None:
            continue
        gate = Gate(
            id=item.id,
            device=item.device,
            gpu_uuid=item.gpu_uuid,
            status=GateStatus.INCONCLUSIVE,
            direction=item.direction,
            unit=item.unit,
            measured=math.exp(typical(item.values)),
            values=item.values,
        )
        gate = explained(gate, ruling(gate.status, figures_of(item), 0.0))
        steps = (_IDLE,) if gate.class_ is GateClass.NOISE else gate.next
        yield replace(gate, reason=item.disturbed, next=steps, repeat_helps=False)
