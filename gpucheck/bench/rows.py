"""Report row of a finished record: figures, doubts, and reasons for missing figures."""

from __future__ import annotations

from gpucheck.bench import stats
from gpucheck.bench.doubts import Around, doubts_about
from gpucheck.bench.model import Measurement, Throughput
from gpucheck.bench.sampler import Record

_INTERVALS = ("ci95_s", "repeat95_s")


def row_of(record: Record, around: Around) -> Measurement:
    """Return the row of a record, with figures computed from its samples.

    The median is the median of the rounds' medians: each round counts the same.
    """
    label, work = record.case.label, record.case.work
    samples, medians = record.samples_s, record.medians_s
    median_s = stats.median(medians) if medians else None
    return Measurement(
        id=label.id,
        kernel=label.kernel,
        variant=label.variant,
        device=label.device,
        gpu_uuid=label.gpu_uuid,
        dtype=label.dtype,
        shape=label.shape,
        scope=label.scope,
        threads=label.threads,
        parameters=label.parameters,
        flops=work.flops,
        bytes_moved=work.bytes_moved,
        loops=record.loops if samples else None,
        samples_s=tuple(samples),
        round_sizes=tuple(len(round_s) for round_s in record.rounds if round_s),
        round_medians_s=tuple(medians),
        warmup_s=tuple(record.warmup_s),
        cold_s=record.cold_s,
        summary=stats.summarise(samples) if samples else None,
        median_s=median_s,
        ci95_s=stats.interval(medians),
        repeat95_s=stats.repeat_interval(medians),
        converged=record.converged,
        throughput=Throughput(value=work.amount / median_s, unit=work.unit) if median_s else None,
        sm_clock_mhz=stats.median(record.sm_clocks_mhz) if record.sm_clocks_mhz else None,
        joules_per_op=record.joules_per_op,
        facts=record.facts,
        verified=record.verified,
        doubts=doubts_about(record, around),
        error=record.error,
        interrupted=record.interrupted,
        unavailable=_unavailable(record),
    )


def _unavailable(record: Record) -> dict[str, str]:
    on_cpu = record.case.label.device == "cpu"
    reasons = {
        "percent_of_peak": "no limit was measured to compare it with",
        "percent_of_copy": "no copy was measured to compare it with",
    }
    if record.joules_per_op is None:
        reasons["joules_per_op"] = (
            "energy is not read on processors" if on_cpu else "only --full counts energy"
        )
    if not record.samples_s:
        why = "it was interrupted" if record.interrupted else "see the row's error"
        return reasons | dict.fromkeys(("median_s", *_INTERVALS, "throughput"), why)
    if len(record.medians_s) < stats.FEWEST_FOR_INTERVAL:
        needed = f"an interval needs {stats.FEWEST_FOR_INTERVAL} rounds"
        reasons |= dict.fromkeys(_INTERVALS, needed)
    if not on_cpu and not record.sm_clocks_mhz:
        reasons["sm_clock_mhz"] = "timed by the host's clock, or the GPU reported no clock"
    return reasons
