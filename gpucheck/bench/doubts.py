"""Doubts about a row that come from its samples, its rounds and its environment.

A doubt about the samples is raised only if the effect can move the median by more than the
precision that the row must reach. A figure that is known well enough raises no doubt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gpucheck.bench import stats
from gpucheck.bench.environment import HostState
from gpucheck.bench.gpu_case import ROTATION_IN_L2
from gpucheck.bench.kernel_traits import BLAS_USERS, WHOLE_TRANSFERS, needs_host
from gpucheck.bench.model import LARGER_SIZE, MORE_TIME, SMALLER_SIZE, Doubt, Fact, Scope
from gpucheck.bench.request_model import Fill
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.telemetry import LIMITED_READINGS, TROUBLE, SensorSummary, held_down

#: Other programs' share of the processor, and the hypervisor's, that can bend a figure by 1 %.
_OTHERS_PERCENT, _STEAL_PERCENT = 10.0, 2.0
#: Busy cores from which a row that uses every core slows down: it waits for the thread that shares.
_OTHERS_CORES = 0.5
#: Percentage of a cgroup's quota periods that may be used up before it matters.
_QUOTA_PERCENT = 5.0
#: The energy counter moves ten times a second; over this long that is 2 %.
_ENERGY_STEP_S, _ENERGY_WINDOW_S = 0.1, 4.9
#: Below this share of its highest clock, something holds a GPU down.
_LOW_CLOCK = 0.8
#: Transfers per second on a lane, and the share of bits that are data: 8b/10b, 128b/130b from
#: generation 3 on, and FLITs from generation 6 on (PCI-SIG's specifications).
_PCIE = {
    1: (2.5e9, 0.8),
    2: (5e9, 0.8),
    3: (8e9, 128 / 130),
    4: (16e9, 128 / 130),
    5: (32e9, 128 / 130),
    6: (64e9, 242 / 256),
    7: (128e9, 242 / 256),
}
#: With fewer samples than this the interval is wide in any case.
_FEWEST = 10
#: Rounds shorter than this many correlation lengths are not independent of each other. Converged
#: intervals then cover less than 95 % (`python -m benchmarks.coverage`, the stream with an
#: autocorrelation of 0.9).
_LENGTHS_IN_A_ROUND, _FEWEST_FOR_CORRELATION = 8.0, 12
_FEWEST_FOR_TREND = 6
#: Rounds differ if they are further apart than this, and than this multiple of their noise.
_ROUNDS_APART, _TIMES_NOISE, _FEWEST_IN_A_ROUND = 0.01, 2.0, 3
#: Leaving out half of the operations gives a factor of two, a cold start much less.
_FEWER_LOOPS = 1.6
#: Seconds to start an operation, and to wake a thread for it and wait for that thread.
_STARTING_S, _MEETING_S = 20e-6, 50e-6
#: The same in a framework, which hands over the next operations while a GPU computes.
_FRAMEWORK_STARTING_S = 1e-3
#: Standard deviations of Kendall's tau that show a trend with 99 % confidence.
_TREND = 2.576
#: A gap between two groups of samples, as a share of the median.
_MODE_GAP = 0.05
#: The same in interquartile ranges: `_FEW_GAP` / n for few samples, at least `_LEAST_GAP`. At most
#: one row in a hundred exceeds it by chance.
_LEAST_GAP, _FEW_GAP = 0.5, 27.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowEnvironment:
    """Run environment of one row; `gpu` is empty without sensors.

    `far`: this process may not run on any CPU near the row's GPU. `integrated`: the GPU shares the
    host's memory. `chip_to_chip`: its link to the host is NVLink, not PCIe (Grace). `clock_max_mhz`
    is the highest clock of its SMs. `old_blas` names the instructions that the BLAS uses if those
    are older than the processor's.
    """

    host: HostState
    gpu: SensorSummary = field(default_factory=SensorSummary)
    fill: Fill = Fill.NORMAL
    far: bool = False
    integrated: bool = False
    chip_to_chip: bool = False
    clock_max_mhz: float | None = None
    old_blas: str | None = None


_Rule = Callable[[CaseState, RowEnvironment], Doubt | None]


def doubts_about(state: CaseState, environment: RowEnvironment) -> tuple[Doubt, ...]:
    """Return every doubt about one row, most important first."""
    if not state.samples_s:
        return ()
    found = [doubt(state, environment) for doubt in _DOUBTS]
    return tuple(doubt for doubt in found if doubt is not None)


def _too_few_samples(state: CaseState, _: RowEnvironment) -> Doubt | None:
    """Doubt a median of few samples, unless their rounds agree well enough."""
    count = len(state.samples_s)
    if count >= _FEWEST or state.converged:
        return None
    return Doubt(
        code="too-few-samples",
        message=f"only {count} {'sample' if count == 1 else 'samples'} fitted into the time",
        next=f"{MORE_TIME}; {SMALLER_SIZE}",
        facts={"samples": count, "wanted": _FEWEST},
    )


def _unconverged(state: CaseState, _: RowEnvironment) -> Doubt | None:
    """Doubt a median that was not known well enough when the time ended."""
    rounds = len(state.medians_s)
    width = stats.half_width_share(state.medians_s)
    if state.converged:
        return None
    facts: dict[str, Fact] = {"rounds": rounds}
    if width is None:
        counted = "only one round" if rounds == 1 else f"only {rounds} rounds"
        message = f"{counted} fitted into the time: how much rounds differ is unknown"
    else:
        message = f"the median is known only to ±{width:.1%}; the target is ±{state.precision:.0%}"
        if width <= state.precision:
            message = f"its {rounds} rounds agree to ±{width:.1%}, but are too few to be sure"
        facts["half_width_share"] = width
    return Doubt(
        code="unconverged",
        message=message,
        next=f"{MORE_TIME}; run it again when the machine is idle",
        facts=facts,
    )


def _throttled(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    limits = held_down(environment.gpu)
    reasons = {name: share for name, share in limits.items() if name in TROUBLE}
    if not reasons:
        return None
    worst = max(reasons, key=lambda name: reasons[name])
    return Doubt(
        code="throttled",
        message=f"the GPU lowered its clock for {reasons[worst]:.0%} of the time: "
        f"{', '.join(sorted(reasons))}",
        next="check temperature, fans and power supply; run gpucheck detect for details",
        facts={f"{name}_share": share for name, share in reasons.items()},
    )


def _cache_resident(state: CaseState, _: RowEnvironment) -> Doubt | None:
    known = state.case.walked_and_cache_bytes
    if known is None:
        return None
    walked_bytes, cache_bytes = known
    if walked_bytes >= ROTATION_IN_L2 * cache_bytes:
        return None
    on_cpu = state.case.label.device == "cpu"
    cache = "last-level cache" if on_cpu else "L2"
    return Doubt(
        code="cache-resident" if on_cpu else "l2-resident",
        message=f"the data may stay in the {cache}, so this may not be the speed of the memory",
        next=f"{LARGER_SIZE} to measure the memory",
        facts={"walked_bytes": walked_bytes, "cache_bytes": cache_bytes},
    )


def _starved(state: CaseState, _: RowEnvironment) -> Doubt | None:
    share = state.case.starved_share
    if share < 0.05:
        return None
    return Doubt(
        code="starved",
        message=f"in {share:.0%} of the runs the GPU may have waited for the host",
        next=f"{LARGER_SIZE}, or reduce the load on the host",
        facts={"starved_share": share},
    )


def _power_capped(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    share = held_down(environment.gpu).get("power-cap")
    if share is None:
        return None
    return Doubt(
        code="power-capped",
        message=f"the GPU was at its power limit for {share:.0%} of the time, which is normal for "
        "products of random numbers",
        next="compare the percentage of peak at the measured clock (-v)",
        facts={"power_cap_share": share},
    )


def _clocks_locked(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    share = environment.gpu.reasons.get("application-clocks", 0.0)
    if share < LIMITED_READINGS:
        return None
    return Doubt(
        code="clocks-locked",
        message="a setting fixes the GPU's clocks: the GPU does not choose them",
        next="see them: nvidia-smi -q -d CLOCK; compare only with runs at the same clocks",
        facts={"application_clocks_share": share},
    )


def _clock_low(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if not state.sm_clocks_mhz or environment.clock_max_mhz is None:
        return None
    measured_mhz = stats.median(state.sm_clocks_mhz)
    if measured_mhz >= _LOW_CLOCK * environment.clock_max_mhz:
        return None
    explained = (_throttled, _power_capped, _clocks_locked)
    if any(doubt(state, environment) is not None for doubt in explained):
        return None
    named = sorted(set(held_down(environment.gpu)) - {"idle"})
    why = f"the driver names only {', '.join(named)}" if named else "the driver gives no reason"
    return Doubt(
        code="clock-low",
        message=f"the SMs ran at {measured_mhz:.0f} MHz, below their highest clock of "
        f"{environment.clock_max_mhz:.0f} MHz, and {why}",
        next="run nvidia-smi -q -d CLOCK,PERFORMANCE,POWER; in a virtual machine, check its host; "
        "compare the percentage of peak at the measured clock (-v)",
        facts={"sm_clock_mhz": measured_mhz, "clock_sm_max_mhz": environment.clock_max_mhz},
    )


def _gpu_shared(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if not environment.gpu.other_processes:
        return None
    pids = environment.gpu.other_processes
    who = f"process {pids[0]} also uses" if len(pids) == 1 else f"{len(pids)} other processes use"
    return Doubt(
        code="gpu-shared",
        message=f"{who} this GPU",
        next="list them: gpucheck list --processes; run it again when they have ended",
        facts={"processes": ", ".join(str(pid) for pid in pids)},
    )


def _claimed(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if environment.gpu.claimed_by is None:
        return None
    return Doubt(
        code="gpu-claimed",
        message=f"another process has claimed this GPU: it is {environment.gpu.claimed_by}",
        next="run it again when the claim is released: gpucheck place --claims",
        facts={"claimed_by": environment.gpu.claimed_by},
    )


def _new_errors(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if not environment.gpu.new_errors:
        return None
    errors = environment.gpu.new_errors
    counted = ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in errors.items())
    return Doubt(
        code="new-errors",
        message=f"the GPU counted new errors during the run: {counted}",
        next="run gpucheck detect to see what they mean",
        facts=dict(errors),
    )


def _far_from_gpu(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    label = state.case.label
    if not environment.far or (label.scope is Scope.RESIDENT and label.kernel != "transfer"):
        return None
    return Doubt(
        code="far-from-gpu",
        message="this process is not allowed on any CPU near the GPU: its copies cross from one "
        "processor to the other",
        next="start it without a CPU mask, or with one that includes the CPUs near the GPU: "
        "gpucheck list --topology",
        facts={"near_cpus_allowed": 0},
    )


def _energy_window_short(state: CaseState, _: RowEnvironment) -> Doubt | None:
    window_s = state.energy_window_s
    if state.joules_per_op is None or window_s is None or window_s >= _ENERGY_WINDOW_S:
        return None
    share = _ENERGY_STEP_S / window_s
    return Doubt(
        code="energy-window-short",
        message=f"its energy was counted for {window_s:.1f} s by a counter that moves every "
        f"{_ENERGY_STEP_S:g} s: it is known only to {share:.0%}",
        next=f"{MORE_TIME}: {_ENERGY_WINDOW_S:.0f} s for each row is enough",
        facts={"energy_window_s": window_s, "counter_step_s": _ENERGY_STEP_S},
    )


def _link_narrow(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    gpu, kernel = environment.gpu, state.case.label.kernel
    if environment.integrated or kernel != "transfer":
        return None
    if gpu.link is None or gpu.link_max is None:
        return None
    if gpu.link >= gpu.link_max:
        return None
    (generation, width), (best, widest) = gpu.link, gpu.link_max
    return Doubt(
        code="pcie-narrow",
        message=f"the PCIe link ran at generation {generation} x{width} under load, but can run at "
        f"{best} x{widest}",
        next="check the slot, the riser and the BIOS settings",
        facts={"generation": generation, "width": width},
    )


def _above_link(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    """Doubt transfers that are faster than the link: PCIe's rate on the wire, without protocol."""
    label, gpu = state.case.label, environment.gpu
    crossing = label.kernel == "transfer" or label.scope is Scope.END_TO_END
    if not crossing or label.kernel not in WHOLE_TRANSFERS:
        return None
    links = [link for link in (gpu.link, gpu.link_max) if link is not None]
    if not links or environment.integrated or environment.chip_to_chip:
        return None
    generation, width = max(links, key=lambda link: _lane_bytes_per_s(link[0]) * link[1])
    ways = 2 if label.variant.startswith("both-ways") else 1
    possible = ways * width * _lane_bytes_per_s(generation)
    reached = state.case.work.bytes_moved / stats.median(state.medians_s)
    if not possible or reached <= possible:
        return None
    return Doubt(
        code="above-link",
        message=f"{reached / 1e9:.3g} GB/s is more than PCIe generation {generation} x{width} can "
        f"carry ({possible / 1e9:.3g} GB/s)",
        next="check how it is timed: the copies cannot have ended when the clock was read",
        facts={"bytes_per_s": reached, "link_bytes_per_s": possible},
    )


def _lane_bytes_per_s(generation: int) -> float:
    """Return what a lane of PCIe carries one way: transfers a second times the share of data."""
    transfers, share = _PCIE.get(generation, _PCIE[max(_PCIE)])
    return transfers * share / 8


def _zeros(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if environment.fill is Fill.NORMAL:
        return None
    return Doubt(
        code="zeros",
        message="the arrays hold zeros, which draw less power than real data",
        next="omit --fill zeros for figures that can be compared",
        facts={"fill": environment.fill.value},
    )


def _host_busy(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    host = environment.host
    others, steal = host.others_percent or 0.0, host.steal_percent or 0.0
    crowded = others >= _OTHERS_PERCENT
    if host.cores is not None:
        # The row's threads and other programs may be more than the cores.
        busy = others / 100 * host.cores
        wanted = (state.case.label.threads or 1) + busy
        crowded |= busy >= _OTHERS_CORES and wanted > host.cores
    if not needs_host(state.case.label, state.facts) or not (crowded or steal >= _STEAL_PERCENT):
        return None
    who = "other programs" if crowded else "other virtual machines"
    share = others if crowded else steal
    return Doubt(
        code="host-busy",
        message=f"{who} took {share:.0f} % of the processor during the run",
        next="run it again when the machine is idle",
        facts={"others_percent": others, "steal_percent": steal},
    )


def _quota(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    reached = environment.host.quota_percent
    if reached is None or reached < _QUOTA_PERCENT:
        return None
    if not needs_host(state.case.label, state.facts):
        return None
    return Doubt(
        code="quota-reached",
        message=f"this process's cgroup used up its CPU quota in {reached:.0f} % of its periods: "
        "the threads had to wait",
        next="raise the quota (cpu.max, docker --cpus), or end what else runs in the container",
        facts={"quota_percent": reached},
    )


def _blas_older(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    label = state.case.label
    if environment.old_blas is None or label.device != "cpu" or label.kernel not in BLAS_USERS:
        return None
    if label.framework is not None:  # it has a BLAS of its own
        return None
    return Doubt(
        code="blas-older-than-cpu",
        message=f"{environment.old_blas}, but the processor has newer instructions: "
        "products may take twice as long as necessary",
        next="unset the variable that chooses the kernels (OPENBLAS_CORETYPE, "
        "MKL_ENABLE_INSTRUCTIONS, ...), or use a newer NumPy",
    )


def _rounds_differ(state: CaseState, _: RowEnvironment) -> Doubt | None:
    """Doubt an unconverged row whose rounds differ by more than their noise.

    The median of a converged row is known despite such differences.
    """
    rounds = len(state.medians_s)
    # One or two samples do not show the noise within a round.
    if rounds < stats.FEWEST_FOR_INTERVAL or len(state.samples_s) < _FEWEST_IN_A_ROUND * rounds:
        return None
    apart, noise = stats.spread_of_rounds(state.rounds)
    if state.converged or apart < max(_ROUNDS_APART, _TIMES_NOISE * noise):
        return None
    return Doubt(
        code="rounds-differ",
        message=f"its rounds differ by {apart:.1%}, and their noise explains {noise:.1%}: the rest "
        "comes from memory placement, the clock or other programs",
        next="run it again when the machine is idle",
        facts={"between_rounds_share": apart, "noise_share": noise},
    )


def _loops_missing(state: CaseState, _: RowEnvironment) -> Doubt | None:
    """Doubt a batch of operations that takes much less time than as many single ones.

    No other check detects a batch that does too little, since its result is still right. Starting
    an operation also takes time, for each of its threads.
    """
    if state.single_s is None or not state.samples_s:
        return None
    batched_s = stats.median(state.samples_s)
    threads = state.case.label.threads or 1
    start_s = _STARTING_S if threads == 1 else _MEETING_S * threads
    if state.case.label.framework is not None:
        start_s = _FRAMEWORK_STARTING_S
    if state.single_s - start_s < _FEWER_LOOPS * batched_s:
        return None
    return Doubt(
        code="loops-missing",
        message=f"an operation takes {state.single_s:.2g} s by itself and {batched_s:.2g} s in a "
        f"batch of {state.loops}: the batch may skip some of its work",
        next="run it again when the machine is idle; if the doubt remains, do not trust this row",
        facts={"single_s": state.single_s, "batched_s": batched_s, "loops": state.loops},
    )


def _drifting(state: CaseState, _: RowEnvironment) -> Doubt | None:
    """Doubt a median whose rounds get steadily slower or faster."""
    medians = state.medians_s
    count = len(medians)
    if count < _FEWEST_FOR_TREND:
        return None
    third = count // 3
    change = stats.median(medians[-third:]) / stats.median(medians[:third]) - 1
    tau = stats.trend(medians)
    # Without a trend tau is about normal with the variance 2 (2 n + 5) / (9 n (n - 1)).
    chance = _TREND * math.sqrt(2 * (2 * count + 5) / (9 * count * (count - 1)))
    if abs(tau) < chance or abs(change) < state.precision:
        return None
    return Doubt(
        code="drifting",
        message=f"its rounds get steadily {'slower' if tau > 0 else 'faster'}, the last third by "
        f"{abs(change):.1%} compared with the first: it has not reached its steady state",
        next=f"{MORE_TIME}; run it again now that the machine is warm",
        facts={"trend": tau, "change_share": change},
    )


def _autocorrelated(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    """Doubt an interval whose rounds may be correlated because their samples are.

    In a drift they always are; `drifting` covers that.
    """
    samples = state.samples_s
    count = len(samples)
    if count < _FEWEST_FOR_CORRELATION or _drifting(state, environment) is not None:
        return None
    alike = stats.autocorrelation(state.rounds)
    # Independent samples stay within 2.5 standard deviations of zero, each 1 / sqrt(n).
    if alike < 2.5 / math.sqrt(count):
        return None
    spread = stats.quantile(samples, 0.9) - stats.quantile(samples, 0.1)
    if spread < state.precision * stats.median(samples):
        return None
    # A process with the correlation r has a correlation length of (1 + r) / (1 - r).
    length = (1 + alike) / max(1e-9, 1 - alike)
    in_a_round = count / len(state.medians_s)
    if length * _LENGTHS_IN_A_ROUND < in_a_round:
        return None
    return Doubt(
        code="autocorrelated",
        message=f"its samples are correlated over {min(length, count):.0f} of them, and a round "
        f"has {in_a_round:.0f}: the interval may be too narrow",
        next=MORE_TIME,
        facts={"autocorrelation": alike, "samples_in_a_round": in_a_round},
    )


def _bimodal(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    """Doubt a median of two groups of samples, unless they are rounds that differ."""
    samples = state.samples_s
    count = len(samples)
    if count < _FEWEST or _rounds_differ(state, environment) is not None:
        return None
    gap = stats.mode_gap(samples)
    noise = stats.quantile(samples, 0.75) - stats.quantile(samples, 0.25)
    needed = max(_LEAST_GAP, _FEW_GAP / count)
    if gap < _MODE_GAP or gap * stats.median(samples) < needed * noise:
        return None
    # A large gap means little as a percentage of a small value.
    apart = f"{gap:.0%} apart" if gap < 1 else f"a factor of {1 + gap:.2g} apart"
    return Doubt(
        code="bimodal",
        message=f"the samples fall into two groups {apart}: the median describes only one of them",
        next="compare p10 and p90 (-v); run it again when the machine is idle",
        facts={"gap_share": gap},
    )


_DOUBTS: tuple[_Rule, ...] = (
    _too_few_samples,
    _unconverged,
    _throttled,
    _gpu_shared,
    _claimed,
    _new_errors,
    _clocks_locked,
    _clock_low,
    _host_busy,
    _quota,
    _blas_older,
    _rounds_differ,
    _bimodal,
    _loops_missing,
    _drifting,
    _autocorrelated,
    _starved,
    _cache_resident,
    _power_capped,
    _link_narrow,
    _above_link,
    _far_from_gpu,
    _energy_window_short,
    _zeros,
)
