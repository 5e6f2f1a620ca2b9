"""Doubts about a row that come from its samples, its rounds and its environment.

One cause raises one doubt. A figure that is known well enough raises none about its samples.
"""

from __future__ import annotations

from collections.abc import Callable

from gpucheck.bench import stats
from gpucheck.bench.doubt_table import make_doubt
from gpucheck.bench.environment import RowEnvironment
from gpucheck.bench.gpu_case import ROTATION_IN_L2
from gpucheck.bench.kernels import kernels_with, needs_host
from gpucheck.bench.model import Doubt, Scope
from gpucheck.bench.request_model import Fill
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.telemetry import LIMITED_READINGS, TROUBLE, held_down

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
#: With fewer samples than this, two groups are chance.
_FEWEST = 10
#: Leaving out half of the operations gives a factor of two, a cold start much less.
_FEWER_LOOPS = 1.6
#: Seconds to start an operation, and to wake a thread for it and wait for that thread.
_STARTING_S, _MEETING_S = 20e-6, 50e-6
#: The same in a framework, which hands over the next operations while a GPU computes.
_FRAMEWORK_STARTING_S = 1e-3
#: A gap between two groups of samples, as a share of the median.
_MODE_GAP = 0.05
#: The same in interquartile ranges: `_FEW_GAP` / n for few samples, at least `_LEAST_GAP`. At most
#: one row in a hundred exceeds it by chance.
_LEAST_GAP, _FEW_GAP = 0.5, 27.0


_Rule = Callable[[CaseState, RowEnvironment], Doubt | None]


def doubts_about(state: CaseState, environment: RowEnvironment) -> tuple[Doubt, ...]:
    """Return every doubt about one row, most important first."""
    if not state.samples_s:
        return ()
    doubts = [doubt(state, environment) for doubt in _DOUBTS]
    return tuple(doubt for doubt in doubts if doubt is not None)


def _unconverged(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    """Doubt a figure that was not known well enough when the time ended, for no other reason."""
    width = state.half_width_share
    if state.converged or is_disturbed(state, environment):
        return None
    rounds = len(state.medians_s)
    if width is None:
        counted = "one round" if rounds == 1 else f"{rounds} rounds"
        return make_doubt("unconverged-unknown", {"rounds": rounds}, counted=counted)
    if width <= state.precision:  # it was interrupted before it was over
        return None
    facts = {"rounds": rounds, "half_width_share": width}
    return make_doubt("unconverged", facts, precision=state.precision)


def is_disturbed(state: CaseState, environment: RowEnvironment) -> bool:
    """Return whether other programs, or a quota, kept a row from the processor.

    A single thread's own CPU time tells what it can do; that it waited is no doubt if that settles.
    """
    return any(doubt(state, environment) is not None for doubt in (_host_busy, _quota))


def _throttled(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    limits = held_down(environment.gpu)
    reasons = {name: share for name, share in limits.items() if name in TROUBLE}
    if not reasons:
        return None
    facts = {f"{name}_share": share for name, share in reasons.items()}
    named = ", ".join(sorted(reasons))
    return make_doubt("throttled", facts, share=max(reasons.values()), reasons=named)


def _cache_resident(state: CaseState, _: RowEnvironment) -> Doubt | None:
    known = state.case.walked_and_cache_bytes
    if known is None:
        return None
    walked_bytes, cache_bytes = known
    if walked_bytes >= ROTATION_IN_L2 * cache_bytes:
        return None
    code = "cache-resident" if state.case.label.device == "cpu" else "l2-resident"
    return make_doubt(code, {"walked_bytes": walked_bytes, "cache_bytes": cache_bytes})


def _starved(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    share = state.case.starved_share
    return (
        None if share < 0.05 or environment.wsl else make_doubt("starved", {"starved_share": share})
    )


def _power_capped(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    share = held_down(environment.gpu).get("power-cap")
    return None if share is None else make_doubt("power-capped", {"power_cap_share": share})


def _clocks_locked(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    share = environment.gpu.reasons.get("application-clocks", 0.0)
    if share < LIMITED_READINGS:
        return None
    return make_doubt("clocks-locked", {"application_clocks_share": share})


def _clock_low(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if not state.sm_clocks_mhz or environment.clock_max_mhz is None:
        return None
    measured_mhz = stats.median(state.sm_clocks_mhz)
    if measured_mhz >= _LOW_CLOCK * environment.clock_max_mhz:
        return None
    explained = (_throttled, _power_capped, _clocks_locked)
    if any(doubt(state, environment) is not None for doubt in explained):
        return None
    named = ", ".join(sorted(set(held_down(environment.gpu)) - {"idle"}))
    facts = {"sm_clock_mhz": measured_mhz, "clock_sm_max_mhz": environment.clock_max_mhz}
    return make_doubt("clock-low-named" if named else "clock-low", facts, named=named)


def _gpu_shared(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    pids = environment.gpu.other_processes
    if not pids:
        return None
    wording = "gpu-shared-with-one" if len(pids) == 1 else "gpu-shared"
    return make_doubt(wording, {"processes": ", ".join(map(str, pids))}, count=len(pids))


def _claimed(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    claimed_by = environment.gpu.claimed_by
    return None if claimed_by is None else make_doubt("gpu-claimed", {"claimed_by": claimed_by})


def _new_errors(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    facts = environment.gpu.new_errors
    errors = ", ".join(f"{name.replace('_', ' ')} +{count}" for name, count in facts.items())
    return make_doubt("new-errors", facts, errors=errors) if facts else None


def _crosses_link(state: CaseState) -> bool:
    """Return whether a row's data crosses the link between host and GPU."""
    label = state.case.label
    return label.kernel == "transfer" or label.scope is Scope.END_TO_END


def _far_from_gpu(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if not environment.far or not _crosses_link(state):
        return None
    return make_doubt("far-from-gpu", {"near_cpus_allowed": 0})


def _energy_window_short(state: CaseState, _: RowEnvironment) -> Doubt | None:
    window_s = state.energy_window_s
    if state.joules_per_op is None or window_s is None or window_s >= _ENERGY_WINDOW_S:
        return None
    facts = {"energy_window_s": window_s, "counter_step_s": _ENERGY_STEP_S}
    share = _ENERGY_STEP_S / window_s
    return make_doubt("energy-window-short", facts, share=share, enough_s=_ENERGY_WINDOW_S)


def _confidential(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    """Doubt copies between host and GPU that pass through an encrypted buffer."""
    if not _crosses_link(state) or not environment.gpu.confidential:
        return None
    return make_doubt("confidential-computing")


def _link_narrow(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    gpu, kernel = environment.gpu, state.case.label.kernel
    if environment.integrated or kernel != "transfer":
        return None
    if gpu.link is None or gpu.link_max is None:
        return None
    if gpu.link >= gpu.link_max:
        return None
    (generation, width), (best, widest) = gpu.link, gpu.link_max
    facts = {"generation": generation, "width": width}
    return make_doubt("pcie-narrow", facts, best=best, widest=widest)


def _exceeds_link(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    """Doubt transfers that are faster than the link: PCIe's rate on the wire, without protocol."""
    label, gpu = state.case.label, environment.gpu
    if not _crosses_link(state) or label.kernel not in kernels_with("transfers_all"):
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
    return make_doubt(
        "above-link",
        {"bytes_per_s": reached, "link_bytes_per_s": possible},
        generation=generation,
        width=width,
        reached_gb=reached / 1e9,
        possible_gb=possible / 1e9,
    )


def _lane_bytes_per_s(generation: int) -> float:
    """Return the rate of a PCIe lane one way: transfers a second times the share of data."""
    transfers, share = _PCIE.get(generation, _PCIE[max(_PCIE)])
    return transfers * share / 8


def _zeros(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    if environment.fill is Fill.NORMAL:
        return None
    return make_doubt("zeros", {"fill": environment.fill.value})


def _shares_host(state: CaseState) -> bool:
    """Return whether what else the host does is in a row's figure."""
    known = state.one_thread and state.converged
    return needs_host(state.case.label, state.facts) and not known


def _host_busy(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    others, steal = environment.others_percent or 0.0, environment.steal_percent or 0.0
    crowded = others >= _OTHERS_PERCENT
    if environment.cores is not None:
        # The row's threads and other programs may be more than the cores.
        busy = others / 100 * environment.cores
        wanted = (state.case.label.threads or 1) + busy
        crowded |= busy >= _OTHERS_CORES and wanted > environment.cores
    if not _shares_host(state) or not (crowded or steal >= _STEAL_PERCENT):
        return None
    wording = "host-busy" if crowded else "host-busy-stolen"
    return make_doubt(wording, {"others_percent": others, "steal_percent": steal})


def _quota(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    reached = environment.quota_percent
    if reached is None or reached < _QUOTA_PERCENT or not _shares_host(state):
        return None
    return make_doubt("quota-reached", {"quota_percent": reached})


def _blas_older(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    label = state.case.label
    if (
        environment.slow_blas is None
        or label.device != "cpu"
        or label.kernel not in kernels_with("uses_blas")
    ):
        return None
    if label.framework is not None:  # it has a BLAS of its own
        return None
    return make_doubt("blas-older-than-cpu", blas=environment.slow_blas)


def _loops_missing(state: CaseState, environment: RowEnvironment) -> Doubt | None:
    """Doubt a batch of operations that takes much less time than as many single ones.

    No other check detects a batch that does too little, since its result is still right. Starting
    an operation also takes time, for each of its threads; beside other programs it takes any time.
    """
    if state.single_s is None or is_disturbed(state, environment):
        return None
    batched_s = stats.median(state.samples_s)
    threads = state.case.label.threads or 1
    start_s = _STARTING_S if threads == 1 else _MEETING_S * threads
    if state.case.label.framework is not None:
        start_s = _FRAMEWORK_STARTING_S
    if state.single_s - start_s < _FEWER_LOOPS * batched_s:
        return None
    facts = {"single_s": state.single_s, "batched_s": batched_s, "loops": state.loops}
    return make_doubt("loops-missing", facts)


def _bimodal(state: CaseState, _: RowEnvironment) -> Doubt | None:
    """Doubt a median of two groups of samples."""
    samples = state.samples_s
    count = len(samples)
    if count < _FEWEST or state.estimator is not stats.MEDIAN:
        return None
    gap = stats.mode_gap(samples)
    noise = stats.quantile(samples, 0.75) - stats.quantile(samples, 0.25)
    needed = max(_LEAST_GAP, _FEW_GAP / count)
    if gap < _MODE_GAP or gap * stats.median(samples) < needed * noise:
        return None
    wording = "bimodal" if gap < 1 else "bimodal-factor"
    return make_doubt(wording, {"gap_share": gap}, factor=1 + gap)


_DOUBTS: tuple[_Rule, ...] = (
    _unconverged, _throttled, _gpu_shared, _claimed, _new_errors, _clocks_locked, _clock_low,
    _host_busy, _quota, _blas_older, _bimodal, _loops_missing, _starved, _cache_resident,
    _power_capped, _confidential, _link_narrow, _exceeds_link, _far_from_gpu, _energy_window_short,
    _zeros,
)  # fmt: skip
