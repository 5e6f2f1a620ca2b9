"""Gates of a run: each check against its limit, all gates together, and the exit code."""

from __future__ import annotations

from collections.abc import Callable
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
from gpucheck.bench.ci.model import Reference, Series
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
    cpu_run_data,
    gate,
    node,
    profile_of,
    reference_of,
    run_data,
    saved,
    show_gates,
)
from tests.report.formats.recorded import in_lines, in_sections, recorded

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
    "two-peers": lambda: run_data(
        [
            run
            for at, factor in enumerate((1.0, 0.86))
            for run in product_runs([factor * value for value in GOOD], f"gpu:{at}")
        ],
        PEERS,
    ),
    "baseline": lambda: cpu_run_data(SLOW, saved()),
    "noise": lambda: cpu_run_data((700.0, 600.0, 750.0, 640.0, 660.0), saved()),
}


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
    tflops: float, profile: Profile, reference: Reference | None = None
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
    return RunData(profile=profile, node=machine, runs=runs, reference=reference)


#: A run, and the gates that it is about; none are all.
Situations = dict[str, tuple[RunData, list[str]]]
BUSY = doubt("host-busy", others_percent=60.0)


def ended(*ends: Failure) -> RunData:
    """Return processes that ended so, one each or five alike."""
    failures = ends * 5 if len(ends) == 1 else ends
    return run_data([run_of(None, at, "gpu:0", failure=why) for at, why in enumerate(failures)])


def failed_processes() -> Situations:
    lost = Failure("gpu-lost", "the GPU stopped answering")
    busy = Failure("gpu-busy", "in use")
    failures = (
        lost,
        Failure("cupy-missing", "no CuPy"),
        Failure("gpu-out-of-memory", "full"),
        Failure("memory-shared", "no room"),
        busy,
        Failure(WORKER_DIED, "died"),
        Failure(WORKER_SILENT, "silent"),
        Failure(WORKER_LATE, "late"),
    )
    both = ["processes", "matmul"]
    broken_row = product(700, time_s=None, error=Failure("gpu-lost", "it fell off the bus"))
    last = run_of(result_of(broken_row, telemetry=sensors()), 5, "gpu:0")
    nothing = [run_of(result_of(telemetry=sensors()), at, "gpu:0") for at in range(5)]
    old = result_of(product(1))
    turing = replace(old.environment.gpus[0], compute_capability="7.0")
    old = replace(old, measurements=(), environment=replace(old.environment, gpus=(turing,)))
    return {
        **{f"every process failed: {failure.code}": (ended(failure), both) for failure in failures},
        "what says most of the device decides": (ended(busy, lost, busy), both),
        "lost in mid run": (run_data([*product_runs(GOOD), last]), both),
        "no sample": (run_data(nothing), ["matmul", "results"]),
        "a format that the GPU has not": (
            run_data([run_of(old, at, "gpu:0") for at in range(5)]), ["matmul"],
        ),
    }  # fmt: skip


def speeds() -> Situations:
    capped = (doubt("power-capped", power_cap_share=0.98),)
    low = sensors(power_limit_w=500.0)
    limited = [
        run_of(result_of(product(630, doubts=capped), telemetry=low), at, "gpu:0")
        for at in range(5)
    ]
    seen = {
        "starved": doubt("starved"),
        "shared": doubt("gpu-shared"),
        "held down by heat": doubt("throttled", **{"hardware-thermal_share": 0.4}),
        "held down by the power brake": doubt("throttled", **{"power-brake_share": 0.4}),
        "clocks that are locked": doubt("clocks-locked"),
        "a narrow link": doubt("pcie-narrow"),
        "new errors": doubt("new-errors", ecc_uncorrected=1.0),
        "a busy host": BUSY,
    }
    once = product_runs(SLOW)
    shared = product(SLOW[0], doubts=(doubt("gpu-shared"),))
    once[0] = run_of(result_of(shared, telemetry=sensors()), 0, "gpu:0")
    mostly = product_runs(SLOW[:4], doubts=(doubt("gpu-shared"),))
    all_capped = [
        run
        for at in range(4)
        for run in product_runs(SLOW if at == 0 else GOOD, f"gpu:{at}", doubts=capped)
    ]
    low_clock = product_runs(SLOW, doubts=capped, sm_clock_mhz=1400.0)
    for at in (1, 2, 3):
        low_clock += product_runs(GOOD, f"gpu:{at}", doubts=capped, sm_clock_mhz=1700.0)
    moved = RunData(
        profile=profile_of(NODE + 'scope = "end-to-end"\n'), node=node(),
        runs=product_runs(SLOW, doubts=(BUSY,), scope=Scope.END_TO_END),
    )  # fmt: skip
    warned = RunData(
        profile=profile_of(NODE + 'severity = "warn"\n'), node=node(), runs=product_runs(SLOW)
    )
    by_host = product_runs(SLOW, doubts=(BUSY,), facts={"timed_by": "host"})
    noisy = product_runs([700 * factor for factor in (0.93, 0.905, 0.955, 0.94, 0.92)])
    many = [run for at in range(1, 40) for run in product_runs(GOOD, f"gpu:{at}")]
    runs = {
        "good": product_runs(GOOD),
        "slow without any excuse": product_runs(SLOW),
        "a busy host and a time by the host": by_host,
        "a load during one process of five": once,
        "a load during four processes of five": [*mostly, *product_runs(SLOW[4:])],
        "a lowered power limit": limited,
        "a power cap that all have": all_capped,
        "a low clock at the power limit": low_clock,
        "noise that reaches over the limit": product_runs((700.0, 600.0, 750.0, 640.0, 660.0)),
        "beyond the level that warns": product_runs([0.97 * value for value in GOOD]),
        "better than expected": product_runs([1.2 * value for value in GOOD]),
        "two processes": product_runs(GOOD[:2]),
        "one process": product_runs((0.9 * GOOD[0],)),
        "low by chance, alone": noisy,
        "low by chance, among many": [*noisy, *many],
    }
    return {
        **{name: (run_data(brought), ["matmul"]) for name, brought in runs.items()},
        **{
            f"slow, and seen: {name}": (run_data(product_runs(SLOW, doubts=(one,))), ["matmul"])
            for name, one in seen.items()
        },
        "a busy host and transfers": (moved, ["matmul"]),
        "slow, which only warns": (warned, ["matmul"]),
    }  # fmt: skip


def baselines() -> Situations:
    busy = (doubt("host-busy", others_percent=50.0),)
    before = saved().run

    def holding(*series: Series) -> Reference:
        return replace(saved(), run=replace(before, series=series))

    disturbed = (replace(one, disturbed="others were at work") for one in before.series)
    beside = (replace(one, device="gpu:9", values=(1.0,)) for one in before.series)
    other = saved(blas="a", blas_architecture="b")
    (own,) = before.devices
    changed = replace(own, device="gpu:3", fingerprint=replace(own.fingerprint, vbios="1"))
    elsewhere = replace(saved(), run=replace(before, devices=(own, changed)))
    better = {
        f"{factor} times the baseline": cpu_run_data([factor * value for value in GOOD], saved())
        for factor in (0.97, 1.0, 1.04, 1.052, 1.2)
    }
    runs = {
        "no baseline": cpu_run_data(GOOD, None),
        "slow": cpu_run_data(SLOW, saved()),
        "slow beside others on its cores": cpu_run_data(SLOW, saved(), doubts=busy),
        "another fingerprint": cpu_run_data(GOOD, other),
        "a fingerprint that differs elsewhere": cpu_run_data(GOOD, elsewhere),
        "a baseline of another device too": cpu_run_data(SLOW, holding(*beside, *before.series)),
        "a disturbed baseline": cpu_run_data([0.5 * value for value in GOOD], holding(*disturbed)),
        "slow in the last process": cpu_run_data([*GOOD[:4], 500.0], saved()),
        "slow from the fifth process on": cpu_run_data([*GOOD[:4], 500.0, 500.0], saved()),
        "a baseline without this check": cpu_run_data(GOOD, holding()),
        "a baseline without this device": cpu_run_data(
            GOOD, replace(saved(), run=replace(before, devices=()))
        ),
        "another fingerprint that is allowed": cpu_run_data(
            GOOD, replace(other, allowed=("blas", "blas_architecture"))
        ),
    }
    return {name: (data, ["copy"]) for name, data in (runs | better).items()}


def computed_peaks() -> Situations:
    """Return runs on boards that are in no table, or of which only a share is there."""
    in_units = NODE.replace('value = 700\nunit = "TFLOP/s"', 'unit = "TFLOP/s"')
    in_units = in_units.replace('pci_device_ids = ["2330"]', "")
    by_baseline = profile_of(in_units.replace('"TFLOP/s"', '"TFLOP/s"\nbaseline = true', 1))
    before = reference_of(on_a_computed_board(500.0, by_baseline))
    other_board = in_units + '[check.percent_of_peak]\n"A100 SXM 40 GB" = 86\n'
    gpu = with_board(replace(H20, pci_device_id="233010de", virtualization="vgpu"))
    runs = [
        replace(run, result=replace(run.result, environment=environment([gpu])))
        for run in product_runs(SLOW)
        if run.result is not None
    ]
    virtual = replace(node(memory_total_bytes=40 << 30), vgpus=frozenset({0}))
    profile = load_profile("default")
    demands = replace(profile, inventory=replace(profile.inventory, memory_total_gib=79))
    products = [f"matmul-{dtype}" for dtype in ("bfloat16", "float32", "tf32", "float64")]
    return {
        "slow, by the default profile": (on_a_computed_board(148.0, profile), products),
        "slow, by the acceptance profile": (
            on_a_computed_board(148.0, load_profile("acceptance")), products,
        ),
        "good": (on_a_computed_board(500.0, profile), products[:1]),
        "slower than a baseline": (on_a_computed_board(400.0, by_baseline, before), ["matmul"]),
        "a vGPU": (
            RunData(profile=demands, node=virtual, runs=runs), [products[0], "inventory-memory"],
        ),
        "a board of which nothing is expected": (
            RunData(profile=profile_of(other_board), node=node(), runs=product_runs(GOOD)),
            ["matmul"],
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", SITUATIONS)
def test_every_gate_of_a_run_is_as_recorded(name: str) -> None:
    gates = judge(SITUATIONS[name]())

    text = in_lines([*gates, *warnings(gates)])

    assert text == recorded(f"gates-{name}", text)
    assert len({(one.id, one.device) for one in gates}) == len(gates)


@pytest.mark.parametrize("group", [failed_processes, speeds, baselines, computed_peaks])
def test_gates_on_speeds_are_as_recorded(group: Callable[[], Situations]) -> None:
    shown = {name: show_gates(data, *names) for name, (data, names) in group().items()}
    text = in_sections(shown)

    assert text == recorded(f"gates-of-{group.__name__.replace('_', '-')}", text)


def test_no_gate_and_only_skipped_gates_are_inconclusive() -> None:
    skipped = replace(gate(run_data(product_runs(GOOD)), "matmul"), status=GateStatus.SKIP)

    assert exit_status(())[0] is ExitCode.INCONCLUSIVE
    assert exit_status((skipped,))[0] is ExitCode.INCONCLUSIVE


def test_a_busy_host_disturbs_what_a_framework_hands_over() -> None:
    used = FrameworkUse(name="torch", version="2.12.0", form="eager", python="python")
    rows = [product(value, doubts=(BUSY,), framework=used) for value in SLOW]

    assert {one.doubt.code for one in doubts_of(rows)} == {"host-busy"}
    assert doubts_of([product(SLOW[0], doubts=(BUSY,))]) == ()


def test_a_shortfall_gives_a_unit_its_prefix() -> None:
    # A unit without a prefix gets one, as in the figure that it is said of.
    decision = Decision(
        status=GateStatus.FAIL,
        measured=1978.2,
        expected=2198.0,
        ratio=0.9,
        interval=(0.88, 0.92),
    )
    assert _shortfall(decision, "image/s") == "10.0 % below 2.20 kimg/s (-12.0 to -8.0 %)"


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
