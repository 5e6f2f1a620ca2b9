"""Disturbed figures: those that show what others left of a machine, not what it can do.

Others only make a device slower. So a disturbed baseline hides a slowdown, and nothing can be
compared with it. This is the one rule for a run that is saved and for one that is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench.ci.decision import scatter, typical
from gpucheck.bench.ci.diagnosis import ENVIRONMENT, ruled, ruling
from gpucheck.bench.ci.model import CarriedDoubt, Series
from gpucheck.bench.ci.run_data import MetricValues
from gpucheck.bench.model import Gate, GateClass, GateStatus
from gpucheck.report.text import count_of

#: Doubts that blame something else than the state that the device should be in.
_DISTURBING = ENVIRONMENT | {"throttled"}
IDLE = "run it again when the machine is idle"
#: Share of the processes in which it must be seen.
_MOST = 0.5


def disturbance(
    values: Sequence[float],
    doubts: Sequence[CarriedDoubt],
    tolerance_percent: float,
    sessions: Sequence[int] = (),
) -> str | None:
    """Return why the processes' figures do not show the machine itself, None if they do.

    Half of them were disturbed, or those of one session differ by more than the tolerance.
    """
    count = len(values)
    for one in doubts:
        if one.doubt.code in _DISTURBING and one.processes >= _MOST * count:
            return f"in {one.processes} of {count_of(count, 'process')} {one.doubt.message}"
    start = 0
    for size in sessions or (count,):
        share = scatter(values[start : start + size])
        if 100 * share > tolerance_percent:
            by = f"{100 * share:.1f} %" if share < 1 else f"a factor of {1 + share:.3g}"
            differ = f"its {size} processes differ by {by} (standard deviation)"
            return f"{differ}, more than {tolerance_percent:g} %"
        start += size
    return None


def marked(series: Series) -> Series:
    """Return a series with the reason why it was disturbed, if it was."""
    if series.disturbed is not None:
        return series
    tolerance, sessions = series.tolerance_percent, series.sessions
    found = disturbance(series.values, series.doubts or (), tolerance, sessions)
    return replace(series, disturbed=found)


def figures_of(series: Series) -> MetricValues:
    """Return a saved figure in the form that is judged."""
    return MetricValues(
        device=series.device,
        gpu_uuid=series.gpu_uuid,
        values=series.values,
        doubts=series.doubts or (),
    )


def disturbed_gates(series: Sequence[Series]) -> Iterator[Gate]:
    """Yield an undecided gate for each series that was disturbed."""
    for one in series:
        if one.disturbed is None:
            continue
        gate = Gate(
            id=one.id,
            device=one.device,
            gpu_uuid=one.gpu_uuid,
            status=GateStatus.INCONCLUSIVE,
            direction=one.direction,
            unit=one.unit,
            measured=math.exp(typical(one.values)),
            values=one.values,
        )
        said = replace(ruling(gate.status, figures_of(one), 0.0), repeat_helps=False)
        gate = ruled(gate, one.disturbed, said)
        yield replace(gate, next=(IDLE,)) if gate.class_ is GateClass.NOISE else gate
