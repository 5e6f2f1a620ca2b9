"""Disturbed figures: those that show what others left of a machine, not what it can do.

Others only make a device slower. So a figure that they disturbed may pass, but it does not fail,
and nothing can be compared with it later: a slowdown would hide behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.bench.ci.decision import scatter, split_sessions, typical
from gpucheck.bench.ci.diagnosis import explained, find_disturbing, ruling
from gpucheck.bench.ci.model import Series
from gpucheck.bench.ci.run_data import MetricValues
from gpucheck.bench.model import Gate, GateClass, GateStatus

_IDLE = "run it again when the machine is idle"


def figures_of(series: Series) -> MetricValues:
    """Return a saved figure in the form that is judged."""
    return MetricValues(
        device=series.device,
        gpu_uuid=series.gpu_uuid,
        values=series.values,
        doubts=series.doubts,
    )


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
        gate = explained(gate, ruling(gate.status, figures_of(one), 0.0))
        steps = (_IDLE,) if gate.class_ is GateClass.NOISE else gate.next
        yield replace(gate, reason=one.disturbed, next=steps, repeat_helps=False)
