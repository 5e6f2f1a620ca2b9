"""Gates of a run: each check against its limit, all gates together, and the exit code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.bench.ci.decision import Decision
from gpucheck.bench.ci.gates import (
    _shortfall,
    _slowest,
    judge,
    series_of,
    settled,
)
from gpucheck.bench.ci.model import Baseline
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.ci.run_data import Node, RunData, doubts_of
from gpucheck.bench.ci.verdicts import GATES, exit_status, warnings
from gpucheck.bench.model import (
    BenchResult,
    Corruption,
    Extent,
    FrameworkUse,
    GateClass,
    GateStatus,
    Scope,
    Verified,
)
from gpucheck.bench.roofline import with_board
from gpucheck.bench.workers import WORKER_DIED, WORKER_LATE, WORKER_SILENT
from gpucheck.drivers.gpu import BenchGpu
from gpucheck.inventory.model import MigState, PcieLink
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from tests.fakes.bench_results import (
    doubt,
    environment,
    product,
    product_runs,
    result_of,
    run_of,
    sensors,
    uuid_of,
)
from tests.fakes.gates import (
    GOOD,
    HAVE,
    NODE,
    PEERS,
    SLOW,
    code,
    cpu_run_data,
    gate,
    node,
    profile_of,
    run_data,
    saved,
)
from tests.report.formats.recorded import in_lines, recorded

LIMITS = """
[stability]
max_temperature_c = 80
max_clock_drop_percent = 20
new_ecc_uncorrected = 0
new_ecc_corrected = 5
new_remapped_rows = 0
new_pcie_replays = 10
not_finite = 0
corruption = 0
straggler_percent = 5
spread_percent = 8
[stability.throttle_s]
hardware-thermal = 0.5
power-brake = 0
"""
MATCH = 'count = 2\nmig = false\nmin_driver = "580"\nnames = ["NVIDIA H100*"]\n'
WITH_ALL = (NODE + HAVE + LIMITS).replace("[run]\n", f"{MATCH}[run]\ncorruption_seconds = 5\n")


def figures(*processes: Any, wanted: Node | None = None) -> RunData:
    """Return what such processes bring on the GPUs 0 and 1, held against everything."""
    runs = [
        run_of(found, at, device)
        for device in ("gpu:0", "gpu:1")
        for at, found in enumerate(make(device) for make in processes)
    ]
    return RunData(profile=profile_of(WITH_ALL), node=wanted or node(2), runs=runs)


def well(device: str, factor: float = 1.0, row: Any = None, **changes: Any) -> BenchResult:
    check = Corruption(
        device=device, gpu_uuid=uuid_of(device), products=100, words=64, digest="aa",
        reference_ok=True, dtype="bfloat16", shape=(8, 8, 8), **changes.pop("check", {}),
    )  # fmt: skip
    found = product(700 * factor, device, **(row or {}))
    return result_of(found, telemetry=sensors(device, **changes), corruption=(check,))


def lacking() -> RunData:
    """Return a node that lacks all that is demanded, under a load that its link is slow in."""
    poor = node(
        3, memory_total_bytes=64 << 30, ecc_mode=False, persistence_mode=False,
        power_limit_w=500.0, mig=MigState(enabled=True), pci_bus_id="0000:01:00.0",
    )  # fmt: skip
    gpus = [*poor.gpus]
    gpus[2] = gpus[2]._replace(name="NVIDIA A100")
    return figures(
        *[partial(well, pcie_generation=4, pcie_width=8)] * 3,
        wanted=replace(
            poor,
            gpus=gpus,
            driver_version="575.57.08",
            nvlink_links=dict.fromkeys(poor.nvlink_links, 12),
            pci_device_ids=dict.fromkeys(poor.pci_device_ids, "20b210de"),
        ),
    )


def unknown() -> RunData:
    """Return a node of which nothing is known, whose sensors were not read."""
    nothing = dict.fromkeys(
        ("memory_total_bytes", "ecc_mode", "persistence_mode", "power_limit_w", "name")
    )
    blind = node(1, **nothing, pcie=PcieLink(), mig=MigState(enabled=None))
    without = replace(blind, nvlink_links={}, pci_device_ids={}, driver_version=None)
    return figures(*[lambda device: result_of(product(700, device))] * 3, wanted=without)


def strained() -> RunData:
    """Return a node that gets hot, is held down and counts errors."""
    strain = {
        "temperature_c": Extent(low=40, median=85, high=91.5),
        "clock_sm_mhz": Extent(low=900, median=1500, high=1980),
        "reasons": {"hardware-thermal": 0.2, "power-brake": 0.1, "power-cap": 0.9},
        "limited_s": {"hardware-thermal": 3.25},
        "new_errors": dict.fromkeys(
            ("ecc_uncorrected", "ecc_corrected", "remapped_rows", "pcie_replays"), 4
        ),
    }
    doubts = (doubt("throttled", **{"hardware-thermal_share": 0.4}),)
    slow = partial(well, factor=0.8, row={"doubts": doubts}, **strain)
    return figures(slow, slow, partial(well, factor=0.81))


def broken() -> RunData:
    """Return a node that computes wrong numbers in each way there is, and loses a GPU."""

    def wrong(device: str, error: float | None) -> BenchResult:
        bad = Verified(error=error, bound=1e-5, ok=False, reference="float64")
        row = {
            "time_s": None, "verified": bad, "error": Failure("wrong-result", "it is wrong")
        }  # fmt: skip
        flips = {"mismatches": 3, "first_index": 17, "largest_ulp": 4096, "not_finite": 1}
        return well(device, row=row, check=flips if device == "gpu:0" else {})

    def lost(device: str) -> BenchResult:
        return well(device, row={"time_s": None, "error": Failure("gpu-lost", "it is lost")})

    return figures(well, partial(wrong, error=0.5), partial(wrong, error=None), lost)


def dead() -> RunData:
    """Return processes that ended badly, each in its way, and one that is well."""
    ends = ("gpu-lost", WORKER_DIED, WORKER_LATE)
    runs = [
        run_of(None, at, "gpu:0", failure=Failure(end, f"it ended: {end}", ("do this",)))
        for at, end in enumerate(ends)
    ]
    runs += [run_of(None, 3, "gpu:0"), *product_runs(GOOD, "gpu:1")]
    return RunData(profile=profile_of(WITH_ALL), node=node(2), runs=runs)


SITUATIONS = {
    "healthy": lambda: figures(*[well] * 3),
    "lacking": lacking,
    "unknown": unknown,
    "strained": strained,
    "broken": broken,
    "dead": dead,
    "peers": lambda: run_data(
        [
            run
            for at, factor in enumerate((1.0, 1.02, 0.97, 0.86))
            for run in product_runs([factor * value for value in GOOD], f"gpu:{at}")
        ],
        PEERS,
    ),
    "baseline": lambda: cpu_run_data(SLOW, saved()),
    "noise": lambda: cpu_run_data((700.0, 600.0, 750.0, 640.0, 660.0), saved()),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_gate_of_a_run_is_as_recorded(name: str) -> None:
    gates = judge(SITUATIONS[name]())

    text = in_lines([*gates, *warnings(gates)])

    assert text == recorded(f"gates-{name}", text)


def test_zero_samples_never_pass() -> None:
    runs = [run_of(result_of(telemetry=sensors()), at, "gpu:0") for at in range(5)]
    found = run_data(runs)

    assert gate(found, "matmul").status is GateStatus.FAIL
    assert gate(found, "results").status is GateStatus.INCONCLUSIVE
    assert code(found) is ExitCode.BAD


def test_no_gate_at_all_is_inconclusive() -> None:
    assert exit_status(())[0] is ExitCode.INCONCLUSIVE


def test_only_skipped_gates_are_inconclusive() -> None:
    skipped = replace(gate(run_data(product_runs(GOOD)), "matmul"), status=GateStatus.SKIP)

    assert exit_status((skipped,))[0] is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("failure", "status", "class_"),
    [
        (Failure("gpu-lost", "the GPU stopped answering"), GateStatus.FAIL, GateClass.HARDWARE),
        (Failure("cupy-missing", "no CuPy"), GateStatus.FAIL, GateClass.SOFTWARE),
        (Failure("gpu-out-of-memory", "full"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        (Failure("memory-shared", "no room"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        (Failure("gpu-busy", "in use"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        (Failure(WORKER_DIED, "died"), GateStatus.FAIL, GateClass.SOFTWARE),
        (Failure(WORKER_SILENT, "silent"), GateStatus.INCONCLUSIVE, GateClass.SOFTWARE),
        (Failure(WORKER_LATE, "late"), GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_a_process_that_failed_is_a_verdict(
    failure: Failure, status: GateStatus, class_: GateClass
) -> None:
    found = run_data([run_of(None, at, "gpu:0", failure=failure) for at in range(5)])

    processes = gate(found, "processes")
    assert (processes.status, processes.class_) == (status, class_)
    assert (gate(found, "matmul").status, gate(found, "matmul").class_) == (status, class_)
    assert code(found) is (ExitCode.BAD if status is GateStatus.FAIL else ExitCode.INCONCLUSIVE)


def test_what_says_most_of_the_device_decides_whatever_failed_first() -> None:
    busy, lost = Failure("gpu-busy", "in use"), Failure("gpu-lost", "it stopped answering")
    runs = [run_of(None, at, "gpu:0", failure=why) for at, why in enumerate((busy, lost, busy))]
    found = run_data(runs)

    for name in ("processes", "matmul"):
        assert (gate(found, name).status, gate(found, name).class_) == (GateStatus.FAIL, "hardware")


def test_a_gpu_lost_in_mid_run_is_hardware_though_others_gave_figures() -> None:
    lost = product(700, time_s=None, error=Failure("gpu-lost", "it fell off the bus"))
    runs = [*product_runs(GOOD), run_of(result_of(lost, telemetry=sensors()), 5, "gpu:0")]
    found = run_data(runs)

    assert gate(found, "processes").class_ is GateClass.HARDWARE
    assert code(found) is ExitCode.BAD


def test_a_format_that_the_gpu_has_not_is_skipped() -> None:
    old = result_of(product(1))
    old = replace(
        old,
        measurements=(),
        environment=replace(
            old.environment,
            gpus=(replace(old.environment.gpus[0], compute_capability="7.0"),),
        ),
    )
    found = run_data([run_of(old, at, "gpu:0") for at in range(5)])

    assert gate(found, "matmul").status is GateStatus.SKIP
    assert "bfloat16" in (gate(found, "matmul").reason or "")


def test_gates_are_named_once() -> None:
    runs = [run for at in range(8) for run in product_runs(GOOD, f"gpu:{at}")]
    gates = judge(run_data(runs, PEERS + HAVE))

    names = [(one.id, one.device) for one in gates]
    assert len(names) == len(set(names))


# ---------------------------------------------------------------------------------- any run


DOUBTS = st.sampled_from(
    [
        "host-busy",
        "gpu-shared",
        "throttled",
        "power-capped",
        "clocks-locked",
        "new-errors",
        "bimodal",
    ]
)
ROWS = st.builds(
    lambda value, codes, ok: product(
        value,
        doubts=tuple(doubt(code) for code in codes),
        verified=Verified(error=0.0 if ok else None, bound=1.0, ok=ok, reference="r"),
    ),
    st.floats(1.0, 2000.0),
    st.lists(DOUBTS, max_size=2),
    st.booleans(),
)
FAILED = st.sampled_from(["gpu-lost", "cupy-missing", WORKER_DIED, WORKER_SILENT, "gpu-error"])


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.one_of(ROWS, FAILED, st.none()), st.booleans()), max_size=12
    )
)
def test_whatever_processes_bring_each_gate_is_explained_and_nothing_good_is_invented(
    brought: list[tuple[int, Any, bool]],
) -> None:
    runs = []
    for number, (at, what, with_sensors) in enumerate(brought):
        device = f"gpu:{at}"
        if what is None or isinstance(what, str):
            failure = None if what is None else Failure(what, "it failed")
            runs.append(run_of(None, number, device, failure=failure))
            continue
        row = replace(what, device=device, gpu_uuid=uuid_of(device))
        found = result_of(row, telemetry=sensors(device) if with_sensors else None)
        runs.append(run_of(found, number, device))
    judged = RunData(profile=profile_of(NODE + PEERS), node=node(3), runs=runs)

    gates = judge(judged)

    assert len({(one.id, one.device) for one in gates}) == len(gates)
    for one in gates:
        if one.status in (GateStatus.FAIL, GateStatus.INCONCLUSIVE):
            assert one.reason
            assert one.class_ is not None
        if one.status is GateStatus.PASS:
            assert one.measured is not None
            assert one.class_ is None
    if exit_status(gates)[0] is ExitCode.OK:
        assert all(run.result is not None for run in runs)
    settled(gates)
    series_of(judged)


def test_a_good_gpu_passes() -> None:
    found = run_data(product_runs(GOOD))

    assert {one.status for one in judge(found)} == {GateStatus.PASS}
    assert code(found) is ExitCode.OK
    assert gate(found, "matmul").limit == pytest.approx(665)
    assert gate(found, "matmul").values == GOOD


def test_a_slow_gpu_without_any_excuse_is_hardware() -> None:
    found = run_data(product_runs(SLOW))

    slow = gate(found, "matmul")
    assert (slow.status, slow.class_) == (GateStatus.FAIL, GateClass.HARDWARE)
    assert "10.0 % below 700" in (slow.reason or "")
    assert slow.next
    assert code(found) is ExitCode.BAD


@pytest.mark.parametrize(
    ("seen", "class_", "status"),
    [
        (doubt("starved"), GateClass.ENVIRONMENT, GateStatus.INCONCLUSIVE),
        (doubt("gpu-shared"), GateClass.ENVIRONMENT, GateStatus.INCONCLUSIVE),
        (doubt("throttled", **{"hardware-thermal_share": 0.4}), GateClass.THERMAL, GateStatus.FAIL),
        (doubt("throttled", **{"power-brake_share": 0.4}), GateClass.POWER_CAP, GateStatus.FAIL),
        (doubt("clocks-locked"), GateClass.CONFIG, GateStatus.FAIL),
        (doubt("pcie-narrow"), GateClass.CONFIG, GateStatus.FAIL),
        (doubt("new-errors", ecc_uncorrected=1.0), GateClass.HARDWARE, GateStatus.FAIL),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_what_was_seen_decides_whose_fault_it_is(
    seen: Any, class_: GateClass, status: GateStatus
) -> None:
    found = run_data(product_runs(SLOW, doubts=(seen,)))

    slow = gate(found, "matmul")
    assert (slow.status, slow.class_) == (status, class_)
    assert any(seen.code in one.source for one in slow.evidence)


def test_a_busy_host_excuses_no_product_in_place_but_one_with_transfers() -> None:
    busy = (doubt("host-busy", others_percent=60.0),)
    moved = NODE + 'scope = "end-to-end"\n'
    runs = product_runs(SLOW, doubts=busy, scope=Scope.END_TO_END)
    with_transfers = RunData(profile=profile_of(moved), node=node(), runs=runs)

    assert gate(run_data(product_runs(SLOW, doubts=busy)), "matmul").class_ is GateClass.HARDWARE
    assert gate(with_transfers, "matmul").class_ is GateClass.ENVIRONMENT


def test_a_busy_host_excuses_what_a_framework_hands_over_and_what_the_host_times() -> None:
    busy = (doubt("host-busy", others_percent=60.0),)
    by_host = run_data(product_runs(SLOW, doubts=busy, facts={"timed_by": "host"}))

    assert gate(by_host, "matmul").class_ is GateClass.ENVIRONMENT
    used = FrameworkUse(name="torch", version="2.12.0", form="eager", python="python")
    rows = [product(value, doubts=busy, framework=used) for value in SLOW]
    assert {one.doubt.code for one in doubts_of(rows)} == {"host-busy"}
    assert doubts_of([product(SLOW[0], doubts=busy)]) == ()


def test_a_load_during_one_process_of_five_excuses_nothing() -> None:
    runs = product_runs(SLOW)
    busy = product(SLOW[0], doubts=(doubt("gpu-shared"),))
    runs[0] = run_of(result_of(busy, telemetry=sensors()), 0, "gpu:0")

    assert gate(run_data(runs), "matmul").class_ is GateClass.HARDWARE


def test_a_lowered_power_limit_is_named() -> None:
    capped = product(630, doubts=(doubt("power-capped", power_cap_share=0.98),))
    low = sensors(power_limit_w=500.0)
    runs = [run_of(result_of(capped, telemetry=low), at, "gpu:0") for at in range(5)]

    slow = gate(run_data(runs), "matmul")

    assert slow.class_ is GateClass.POWER_CAP
    assert "500 W" in (slow.reason or "")


def test_a_power_cap_that_all_have_excuses_nothing() -> None:
    capped = (doubt("power-capped", power_cap_share=0.98),)
    runs = [
        run
        for at in range(4)
        for run in product_runs(SLOW if at == 0 else GOOD, f"gpu:{at}", doubts=capped)
    ]

    assert gate(run_data(runs), "matmul").class_ is GateClass.HARDWARE


def test_a_low_clock_at_the_power_limit_is_the_power_limits() -> None:
    capped = (doubt("power-capped", power_cap_share=0.98),)
    runs = product_runs(SLOW, doubts=capped, sm_clock_mhz=1400.0)
    for at in (1, 2, 3):
        runs += product_runs(GOOD, f"gpu:{at}", doubts=capped, sm_clock_mhz=1700.0)

    assert gate(run_data(runs), "matmul").class_ is GateClass.POWER_CAP


def test_noise_that_reaches_over_the_limit_is_undecided() -> None:
    found = run_data(product_runs((700.0, 600.0, 750.0, 640.0, 660.0)))

    noisy = gate(found, "matmul")
    assert (noisy.status, noisy.class_) == (GateStatus.INCONCLUSIVE, GateClass.NOISE)
    assert code(found) is ExitCode.INCONCLUSIVE
    assert not settled(judge(found))


def test_a_pass_beyond_the_warn_level_warns() -> None:
    found = run_data(product_runs([0.97 * value for value in GOOD]))

    assert gate(found, "matmul").warning
    assert code(found) is ExitCode.OK
    assert [one.code for one in warnings(judge(found))] == ["gate-warning"]


def test_two_processes_decide_nothing() -> None:
    found = gate(run_data(product_runs(GOOD[:2])), "matmul")

    assert found.status is GateStatus.INCONCLUSIVE
    # Its interval may well leave the limit out.
    assert ", from only 2 processes: " in (found.reason or "")


def test_one_process_gives_no_interval_and_no_end_of_300_digits() -> None:
    alone = gate(run_data(product_runs((0.9 * GOOD[0],))), "matmul")

    assert (alone.status, alone.interval) == (GateStatus.INCONCLUSIVE, None)
    assert alone.reason is not None
    assert "and one process gives no interval: a verdict takes at least 3 processes" in alone.reason
    assert len(alone.reason) < 200


def test_a_severity_of_warn_does_not_end_in_failure() -> None:
    text = NODE + 'severity = "warn"\n'
    found = RunData(profile=profile_of(text), node=node(), runs=product_runs(SLOW))

    assert gate(found, "matmul").status is GateStatus.FAIL
    assert code(found) is ExitCode.OK
    assert warnings(judge(found))


# ---------------------------------------------------------------------------------- baseline


def test_without_a_baseline_the_speed_is_skipped_and_the_results_count() -> None:
    found = cpu_run_data(GOOD, None)

    assert gate(found, "copy", "cpu").status is GateStatus.SKIP
    assert gate(found, "copy", "cpu").measured == pytest.approx(700, rel=1e-5)
    assert code(found) is ExitCode.OK


def test_the_same_again_passes() -> None:
    assert gate(cpu_run_data(GOOD, saved()), "copy", "cpu").status is GateStatus.PASS


def test_better_than_the_baseline_is_a_pass_that_says_so() -> None:
    better = gate(cpu_run_data([1.2 * value for value in GOOD], saved()), "copy", "cpu")

    assert better.status is GateStatus.PASS
    assert "save a new one" in (better.reason or "")


def test_a_load_on_the_same_cores_is_the_environments() -> None:
    found = cpu_run_data(SLOW, saved(), doubts=(doubt("host-busy", others_percent=50.0),))

    slow = gate(found, "copy", "cpu")
    assert (slow.status, slow.class_) == (GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT)
    assert code(found) is ExitCode.INCONCLUSIVE


def test_a_slow_processor_is_never_called_defective() -> None:
    slow = gate(cpu_run_data(SLOW, saved()), "copy", "cpu")

    assert (slow.status, slow.class_) == (GateStatus.FAIL, GateClass.ENVIRONMENT)


def test_another_fingerprint_decides_nothing_and_names_the_keys() -> None:
    found = cpu_run_data(GOOD, saved(differences={"cpu": ("blas: a -> b",)}))

    other = gate(found, "copy", "cpu")
    assert (other.status, other.class_) == (GateStatus.INCONCLUSIVE, GateClass.CONFIG)
    assert "blas: a -> b" in (other.reason or "")
    assert settled(judge(found)), "more processes would not change the fingerprint"


def test_a_disturbed_baseline_decides_nothing_and_is_to_be_replaced() -> None:
    before = saved()
    busy = tuple(replace(one, disturbed="others were at work") for one in before.series)
    found = cpu_run_data([0.5 * value for value in GOOD], replace(before, series=busy))

    other = gate(found, "copy", "cpu")
    assert (other.status, other.class_) == (GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT)
    assert other.reason == "the baseline was disturbed: others were at work"
    assert "--save FILE" in other.next[0]
    assert settled(judge(found)), "more processes would not change the baseline"


def test_a_check_says_from_which_process_on_it_is_slow() -> None:
    asked = gate(cpu_run_data([*GOOD[:4], 500.0], saved()), "copy", "cpu")
    slow = gate(cpu_run_data([*GOOD[:4], 500.0, 500.0], saved()), "copy", "cpu")

    assert asked.repeat_helps
    assert "slow from process 5 on, and more must show whether for good" in (asked.reason or "")
    assert slow.status is GateStatus.FAIL
    assert slow.measured == pytest.approx(500)
    assert ", slow from process 5 on: " in (slow.reason or "")


def test_a_fingerprint_that_differs_elsewhere_does_not_matter() -> None:
    found = cpu_run_data(GOOD, saved(differences={"gpu:3": ("vbios: 1 -> 2",)}))

    assert gate(found, "copy", "cpu").status is GateStatus.PASS


def test_a_baseline_without_this_check_is_no_pass() -> None:
    empty = Baseline(path="a.json", series=())

    assert gate(cpu_run_data(GOOD, empty), "copy", "cpu").status is GateStatus.FAIL


# ----------------------------------------------------------------------------- computed peaks

H20 = BenchGpu(
    cuda_index=0,
    uuid="GPU-00000000",
    name="NVIDIA H100 with half of everything",
    compute_capability="9.0",
    sm_count=78,
    l2_bytes=50 << 20,
    memory_total_bytes=96 << 30,
    memory_free_bytes=95 << 30,
    float32_math="fp32",
    pci_device_id="ffff10de",
    clock_sm_max_mhz=1980.0,
    clock_memory_max_mhz=2619.0,
    memory_bus_bits=6144,
)


def on_a_computed_board(
    tflops: float, profile: Profile, baseline: Baseline | None = None
) -> RunData:
    """Return a run on a board that is in no table, whose SMs and clock promise 633 TFLOP/s."""
    gpu = with_board(H20)
    runs = [
        replace(run, result=replace(run.result, environment=environment([gpu])))
        for run in product_runs([tflops * value / 700 for value in GOOD])
        if run.result is not None
    ]
    machine = node()
    machine = replace(machine, pci_device_ids={0: "ffff10de"})
    return RunData(profile=profile, node=machine, runs=runs, baseline=baseline)


@pytest.mark.parametrize("profile", ["default", "acceptance"])
def test_a_share_of_a_computed_peak_never_fails_a_board(profile: str) -> None:
    found = on_a_computed_board(148.0, load_profile(profile))

    slow = gate(found, "matmul-bfloat16")

    assert (slow.status, slow.class_) == (GateStatus.INCONCLUSIVE, GateClass.CONFIG)
    assert "its peak is only computed" in (slow.reason or "")
    assert not slow.repeat_helps
    assert not any(
        one.status is GateStatus.FAIL and one.measured for one in judge(found) if "matmul" in one.id
    )


def test_nothing_of_the_board_is_demanded_of_a_vgpu() -> None:
    gpu = with_board(replace(H20, pci_device_id="233010de", virtualization="vgpu"))
    runs = [
        replace(run, result=replace(run.result, environment=environment([gpu])))
        for run in product_runs(SLOW)
        if run.result is not None
    ]
    virtual = replace(node(memory_total_bytes=40 << 30), vgpus=frozenset({0}))
    profile = load_profile("default")
    demands = replace(profile.inventory, memory_total_gib=79)
    found = RunData(profile=replace(profile, inventory=demands), node=virtual, runs=runs)

    gates = {one.id: (one.status, one.reason) for one in judge(found)}

    share = "it is a vGPU, which has a share of its board"
    assert gates["matmul-bfloat16"] == (
        GateStatus.SKIP, f"nothing is expected of gpu:0: {share}",
    )  # fmt: skip
    assert gates["inventory-memory"] == (GateStatus.INCONCLUSIVE, share)


def test_a_computed_peak_can_be_reached() -> None:
    found = on_a_computed_board(500.0, load_profile("default"))

    assert gate(found, "matmul-bfloat16").status is GateStatus.PASS


def test_a_baseline_fails_a_board_whose_peak_is_computed() -> None:
    text = NODE.replace('value = 700\nunit = "TFLOP/s"', 'unit = "TFLOP/s"\nbaseline = true')
    profile = profile_of(text.replace('pci_device_ids = ["2330"]', ""))
    before = Baseline(path="a.json", series=series_of(on_a_computed_board(500.0, profile)))

    slow = gate(on_a_computed_board(400.0, profile, before), "matmul")

    assert (slow.status, slow.class_) == (GateStatus.FAIL, GateClass.HARDWARE)


def test_a_board_of_which_nothing_is_expected_is_skipped_by_its_name() -> None:
    text = NODE.replace('value = 700\nunit = "TFLOP/s"', 'unit = "TFLOP/s"') + (
        '[check.percent_of_peak]\n"A100 SXM 40 GB" = 86\n'
    )
    profile = profile_of(text.replace('pci_device_ids = ["2330"]', ""))
    found = RunData(profile=profile, node=node(), runs=product_runs(GOOD))

    skipped = gate(found, "matmul")

    assert skipped.status is GateStatus.SKIP
    assert "nothing is expected of H100 SXM" in (skipped.reason or "")


# ------------------------------------------------------------------------------ many figures


def test_of_many_figures_one_that_is_low_by_chance_does_not_fail() -> None:
    noisy = (0.93, 0.905, 0.955, 0.94, 0.92)
    low = product_runs([700 * factor for factor in noisy])
    others = [run for at in range(1, 40) for run in product_runs(GOOD, f"gpu:{at}")]

    alone, among_many = gate(run_data(low), "matmul"), gate(run_data([*low, *others]), "matmul")

    assert alone.status is GateStatus.FAIL
    assert among_many.status is GateStatus.INCONCLUSIVE
    assert among_many.repeat_helps
    assert "one of 40 figures may miss its limit by chance" in (among_many.reason or "")


def test_a_load_in_every_process_ends_the_repeating() -> None:
    shared = doubt("gpu-shared")
    always = run_data(product_runs(SLOW, doubts=(shared,)))
    mostly = [*product_runs(SLOW[:4], doubts=(shared,)), *product_runs(SLOW[4:])]

    assert settled(judge(always))
    assert not settled(judge(run_data(mostly)))


def test_a_shortfall_is_told_with_its_interval_or_why_it_has_none() -> None:
    slow = gate(run_data(product_runs(SLOW)), "matmul").reason or ""
    alone = gate(run_data(product_runs(SLOW[:1])), "matmul").reason or ""

    assert slow.startswith("10.0 % below 700 TFLOP/s (")
    assert alone.startswith("9.9 % below 700 TFLOP/s, and one process gives no interval")
    # A unit without a prefix gets one, as in the figure that it is said of.
    decision = Decision(
        status=GateStatus.FAIL,
        measured=1978.2,
        expected=2198.0,
        ratio=0.9,
        interval=(0.88, 0.92),
    )
    assert _shortfall(decision, "image/s") == "10.0 % below 2.20 kimg/s (-12.0 to -8.0 %)"


@pytest.mark.parametrize("factor", [0.97, 1.0, 1.04, 1.052])
def test_a_new_baseline_is_advised_only_if_all_of_the_interval_is_better(factor: float) -> None:
    found = gate(cpu_run_data([factor * value for value in GOOD], saved()), "copy", "cpu")

    assert (found.status, found.reason) == (GateStatus.PASS, None)


def test_better_than_a_fixed_expectation_needs_no_baseline() -> None:
    found = gate(run_data(product_runs([1.2 * value for value in GOOD])), "matmul")

    assert (found.status, found.reason, found.warning) == (GateStatus.PASS, None, False)


def test_the_error_counts_the_gates_and_names_the_first() -> None:
    passed = gate(run_data(product_runs(GOOD)), "matmul")
    bad = replace(
        passed,
        status=GateStatus.FAIL,
        class_=GateClass.HARDWARE,
        reason="it is slow",
        next=("Look",),
    )
    unsure = replace(passed, status=GateStatus.INCONCLUSIVE, reason="it is noisy")

    one, two, open_, several = (
        exit_status(found)[1]
        for found in ((passed, bad), (bad, bad), (passed, unsure), (unsure, unsure, unsure))
    )

    assert one is not None
    assert (one.code, one.remedy) == ("gate-failed", ("Look",))
    failed, undecided = GATES[GateStatus.FAIL], GATES[GateStatus.INCONCLUSIVE]
    assert one.message == f"matmul on gpu:0 {failed[1]} (hardware): it is slow."
    assert two is not None
    assert two.message.startswith(f"2 {failed[2]}; the first is matmul on gpu:0 (hardw")
    assert open_ is not None
    assert open_.message == f"matmul on gpu:0 {undecided[1]}: it is noisy."
    assert several is not None
    assert several.message.startswith(f"3 {undecided[2]}; the first is matmul on gpu:0:")


def test_the_slowest_gpu_is_the_node_with_its_reason_if_it_has_one() -> None:
    passed = gate(run_data(product_runs(GOOD)), "matmul")
    slower = replace(passed, device="gpu:1", measured=1.0)
    failed = replace(passed, device="gpu:2", status=GateStatus.FAIL, reason="it is slow")

    assert _slowest([passed, slower]).reason == "gpu:1 is the slowest"
    assert _slowest([passed, slower, failed]).reason == "gpu:2 is the slowest: it is slow"
    assert _slowest([passed, slower]).device == "node"
