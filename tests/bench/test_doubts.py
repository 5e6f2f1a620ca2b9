from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpucheck.bench import doubts, stats
from gpucheck.bench.case import Work
from gpucheck.bench.doubt_table import find_wording, read_wordings
from gpucheck.bench.doubts import doubts_about
from gpucheck.bench.environment import RowEnvironment
from gpucheck.bench.model import Scope
from gpucheck.bench.request_model import Fill
from gpucheck.bench.sampler import CaseState
from gpucheck.bench.telemetry import SensorSummary
from tests.fakes.bench import PYTORCH, FakeCase, label
from tests.report.formats.recorded import in_lines, recorded

IDLE = RowEnvironment(others_percent=0.0, steal_percent=0.0)
UNREADABLE = RowEnvironment(others_percent=None, steal_percent=None)


def record(samples: Sequence[float], *, converged: bool = True) -> CaseState:
    rounds = [list(samples[low : low + 5]) for low in range(0, len(samples), 5)]
    return CaseState(case=FakeCase([]), rounds=rounds, converged=converged)


def noise(count: int = 40) -> list[float]:
    source = random.Random(2)
    return [source.gauss(1, 0.01) for _ in range(count)]


NO_SENSORS = SensorSummary()


def codes(
    found: CaseState,
    host: RowEnvironment = IDLE,
    gpu: SensorSummary = NO_SENSORS,
    fill: Fill = Fill.NORMAL,
) -> list[str]:
    environment = replace(host, gpu=gpu, fill=fill)
    return [doubt.code for doubt in doubts_about(found, environment)]


def on_gpu(kernel: str = "fake") -> CaseState:
    """Return a good record of a case on a GPU."""
    found = record(noise())
    found.case.label = replace(label("gpu:0"), kernel=kernel)  # type: ignore[misc]
    return found


def test_every_doubt_has_its_sentences_in_full_and_in_few_words() -> None:
    wanted = {"message", "next", "short", "short_next"}
    lacking = {
        words.get("code", name)
        for name, words in read_wordings().items()
        if not wanted <= words.keys()
    }

    assert lacking == {"side-in-doubt", "different-precision"}, "the comparison itself says it"


def test_every_wording_of_a_doubt_is_used_and_stands_in_the_table() -> None:
    folder = Path(doubts.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))

    assert not [name for name in read_wordings() if f'"{name}"' not in source]


def test_a_doubt_of_another_version_is_shown_by_its_code() -> None:
    assert find_wording("of-tomorrow") == {"short": "of-tomorrow", "short_next": "see -v"}


@pytest.mark.parametrize("host", [IDLE, UNREADABLE])
def test_a_good_row_raises_no_doubt(host: RowEnvironment) -> None:
    assert codes(record(noise()), host) == []


def test_a_row_without_samples_has_its_error_and_no_doubt() -> None:
    assert codes(record([], converged=False)) == []


def test_an_unconverged_row_says_how_wide_its_interval_is() -> None:
    (doubt,) = doubts_about(record(apart(0.2), converged=False), IDLE)

    assert doubt.code == "unconverged"
    assert doubt.message == "the time is known only to ±5.6%; the target is ±1%"
    assert doubt.facts == {"rounds": 8, "half_width_share": pytest.approx(0.056, abs=0.001)}


def test_a_row_of_too_few_rounds_for_an_interval_says_how_many_it_has() -> None:
    (doubt,) = doubts_about(record(noise(3), converged=False), IDLE)

    assert doubt.code == "unconverged"
    assert doubt.message.startswith("only one round")


BUSY = RowEnvironment(others_percent=90.0, steal_percent=0.0)
SHORT_OF_QUOTA = RowEnvironment(others_percent=0.0, steal_percent=0.0, quota_percent=40.0)


@pytest.mark.parametrize(("host", "code"), [(BUSY, "host-busy"), (SHORT_OF_QUOTA, "quota-reached")])
def test_what_kept_a_row_from_the_processor_is_its_only_doubt(
    host: RowEnvironment, code: str
) -> None:
    """More time would not help, so none of its remedies asks for it."""
    found = record(apart(0.2), converged=False)
    found.single_s = 9.0  # the single operations waited too

    (doubt,) = doubts_about(found, host)

    assert doubt.code == code
    assert "time" not in doubt.next
    assert "budget" not in doubt.next


@pytest.mark.parametrize("host", [BUSY, SHORT_OF_QUOTA])
def test_one_thread_whose_time_settled_is_not_doubted_for_having_waited(
    host: RowEnvironment,
) -> None:
    def of(threads: int, *, converged: bool = True, read: bool = True, **more: object) -> list[str]:
        found = record(apart(0.2), converged=converged)
        found.case.label = replace(found.case.label, threads=threads, **more)  # type: ignore[misc, arg-type]
        if read:
            found.cpu_rounds = found.rounds
        return codes(found, host)

    assert of(1) == []
    several, unknown = of(2), of(1, read=False)
    for doubted in (of(1, converged=False), several, unknown, of(1, framework=PYTORCH)):
        assert len(doubted) == 1


def apart(share: float) -> list[float]:
    """Return the samples of eight rounds, four of which are slower by a share."""
    source = random.Random(6)
    slow = (1, 2, 5, 7)
    return [
        (1 + share if place // 5 in slow else 1.0) + source.gauss(0, 0.001) for place in range(40)
    ]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [10, 16, 40, 200])
def test_noise_of_one_kind_has_no_two_groups_however_wide_it_is(count: int, seed: int) -> None:
    source = random.Random(seed)

    found = on_gpu()
    found.rounds = [[source.lognormvariate(0, 0.15) for _ in range(count)]]

    assert "bimodal" not in codes(found)


def test_two_modes_are_doubted_though_the_median_is_one_of_them() -> None:
    source = random.Random(5)
    samples = [source.choice([1.0, 1.0, 2.0]) + source.gauss(0, 0.01) for _ in range(60)]
    found = on_gpu()
    found.rounds = [samples]

    assert codes(found) == ["bimodal"]
    # A processor's figure is the fastest sample, whatever else there is.
    assert codes(record(samples)) == []


def test_a_few_outliers_are_no_second_mode() -> None:
    source = random.Random(6)
    samples = [*noise(), 2.0, 2.0, 2.1]
    source.shuffle(samples)
    found = on_gpu()
    found.rounds = [samples]

    assert codes(found) == []


@pytest.mark.parametrize(("device", "code"), [("gpu:0", "l2-resident"), ("cpu", "cache-resident")])
def test_data_that_fits_the_cache_is_doubted(device: str, code: str) -> None:
    found = record(noise())
    found.case.label = label(device)
    found.case.walked_and_cache_bytes = (299, 100)  # type: ignore[misc]
    assert codes(found) == [code]

    found.case.walked_and_cache_bytes = (300, 100)  # type: ignore[misc]
    assert codes(found) == []


def test_a_starved_gpu_is_doubted() -> None:
    found = record(noise())
    found.case.starved_share = 0.5  # type: ignore[misc]

    assert codes(found) == ["starved"]
    # On WSL2 a note of the run says it once.
    assert doubts_about(found, replace(IDLE, wsl=True)) == ()


@pytest.mark.parametrize(
    ("host", "who"),
    [
        (RowEnvironment(others_percent=30.0, steal_percent=0.0), "other programs took 30 %"),
        (RowEnvironment(others_percent=0.0, steal_percent=5.0), "other virtual machines took 5 %"),
    ],
)
def test_a_busy_host_is_doubted(host: RowEnvironment, who: str) -> None:
    (doubt,) = doubts_about(record(noise()), host)

    assert doubt.code == "host-busy"
    assert doubt.message.startswith(who)


@pytest.mark.parametrize(
    ("threads", "others_percent", "expected"),
    [
        (64, 1.0, ["host-busy"]),  # 0.64 cores that one of the 64 threads has to share
        (64, 0.5, []),
        (63, 100 / 64, []),  # one core of others, and 63 threads: each has its core
        (32, 9.0, []),
        (None, 9.0, []),
        (2, 11.0, ["host-busy"]),
    ],
)
def test_a_row_on_all_cores_has_to_share_with_half_a_core_of_others(
    threads: int | None, others_percent: float, expected: list[str]
) -> None:
    found = record(noise())
    found.case.label = replace(found.case.label, threads=threads)  # type: ignore[misc]
    host = RowEnvironment(others_percent=others_percent, steal_percent=0.0, cores=64)

    assert codes(found, host) == expected


def test_a_busy_host_does_not_slow_down_what_the_gpu_does_alone() -> None:
    busy = RowEnvironment(others_percent=90.0, steal_percent=9.0, quota_percent=50.0)
    moved = on_gpu()
    moved.case.label = replace(moved.case.label, scope=Scope.END_TO_END)  # type: ignore[misc]
    by_host = on_gpu("towers")
    by_host.facts = {"timed_by": "host"}

    assert codes(on_gpu("matmul"), busy) == []
    for found in (moved, by_host, on_gpu("transfer"), on_gpu("launch")):
        assert codes(found, busy) == ["host-busy", "quota-reached"]


@pytest.mark.parametrize(("percent", "expected"), [(4.0, []), (40.0, ["quota-reached"])])
def test_a_quota_that_is_used_up_is_doubted(percent: float, expected: list[str]) -> None:
    host = RowEnvironment(others_percent=0.0, steal_percent=0.0, quota_percent=percent)

    assert codes(record(noise()), host) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (SensorSummary(reasons={"hardware-thermal": 0.5}), ["throttled"]),
        (SensorSummary(reasons={"software-thermal": 0.04}), []),
        (SensorSummary(limited_share={"software-thermal": 0.02}), ["throttled"]),
        (SensorSummary(limited_share={"software-thermal": 0.005}), []),
        (
            SensorSummary(reasons={"power-brake": 1.0, "power-cap": 1.0}),
            ["throttled", "power-capped"],
        ),
        (SensorSummary(reasons={"power-cap": 1.0}), ["power-capped"]),
        (SensorSummary(reasons={"idle": 1.0, "display": 1.0, "sync-boost": 1.0}), []),
        (SensorSummary(reasons={"application-clocks": 1.0}), ["clocks-locked"]),
        (SensorSummary(other_processes=(41,)), ["gpu-shared"]),
        (SensorSummary(other_processes=(41, 42)), ["gpu-shared"]),
        (SensorSummary(claimed_by="alice (job 7)"), ["gpu-claimed"]),
        (SensorSummary(new_errors={"ecc_corrected": 2}), ["new-errors"]),
        (SensorSummary(link=(4, 16), link_max=(4, 16)), []),
        (SensorSummary(link=(1, 16), link_max=(4, 16)), []),
    ],
)
def test_what_the_sensors_say_becomes_a_doubt(state: SensorSummary, expected: list[str]) -> None:
    assert codes(on_gpu(), gpu=state) == expected


def test_two_reasons_at_once_are_both_named_with_their_share() -> None:
    state = SensorSummary(reasons={"software-thermal": 0.25, "hardware-slowdown": 0.75})

    (doubt,) = doubts_about(on_gpu(), RowEnvironment(gpu=state))

    assert "75%" in doubt.message
    assert "hardware-slowdown, software-thermal" in doubt.message
    assert doubt.facts["software-thermal_share"] == 0.25


def test_a_narrow_link_matters_to_transfers() -> None:
    state = SensorSummary(link=(3, 8), link_max=(4, 16))

    assert codes(on_gpu("transfer"), gpu=state) == ["pcie-narrow"]
    assert codes(on_gpu("matmul"), gpu=state) == []


def test_confidential_computing_is_named_where_it_slows_copies() -> None:
    state = SensorSummary(confidential=True)

    assert codes(on_gpu("transfer"), gpu=state) == ["confidential-computing"]
    assert codes(on_gpu("transfer"), gpu=SensorSummary()) == []
    assert codes(on_gpu("matmul"), gpu=state) == []


@pytest.mark.parametrize(
    ("variant", "bytes_per_s", "link", "expected"),
    [
        ("to-gpu-pinned", 138e9, (5, 16), ["above-link"]),
        ("to-gpu-pinned", 55e9, (5, 16), []),
        ("both-ways-pinned", 110e9, (5, 16), []),
        ("both-ways-pinned", 138e9, (5, 16), ["above-link"]),
        ("from-gpu-pinned", 55e9, (4, 16), ["above-link"]),
        ("from-gpu-pinned", 110e9, (6, 16), []),
        ("from-gpu-pinned", 5e12, None, []),
    ],
)
def test_transfers_faster_than_the_link_are_doubted(
    variant: str, bytes_per_s: float, link: tuple[int, int] | None, expected: list[str]
) -> None:
    moved = on_gpu("transfer")
    assert isinstance(moved.case, FakeCase)
    moved.case.label = replace(moved.case.label, variant=variant)
    seconds = stats.median(moved.medians_s)
    moved.case.work = Work(flops=0, bytes_moved=int(bytes_per_s * seconds), unit="B/s")

    # An idle link trains down: what NVML names as the most counts as well.
    state = SensorSummary(link=(1, 16) if link else None, link_max=link)
    found = {doubt.code for doubt in doubts_about(moved, RowEnvironment(gpu=state))}

    assert ("above-link" in found) is bool(expected)
    grace = RowEnvironment(gpu=state, chip_to_chip=True)
    assert "above-link" not in {doubt.code for doubt in doubts_about(moved, grace)}


def test_zeros_are_doubted() -> None:
    (doubt,) = doubts_about(record(noise()), RowEnvironment(fill=Fill.ZEROS))

    assert doubt.code == "zeros"
    assert doubt.facts == {"fill": "zeros"}


def test_every_doubt_has_a_remedy() -> None:
    state = SensorSummary(
        reasons=dict.fromkeys(("hardware-thermal", "power-cap", "application-clocks"), 1.0),
        other_processes=(1,),
        new_errors={"pcie_replays": 1},
        link=(1, 1),
        link_max=(5, 16),
        claimed_by="bob",
    )
    found = on_gpu("transfer")
    found.converged = False
    doubts = doubts_about(
        found,
        RowEnvironment(others_percent=50, steal_percent=9, gpu=state, fill=Fill.ZEROS),
    )

    assert len({doubt.code for doubt in doubts}) == len(doubts) == 9
    assert all(doubt.next and doubt.message and doubt.facts for doubt in doubts)


def test_a_short_count_of_energy_is_doubted_and_a_long_one_is_not() -> None:
    found = on_gpu()
    found.joules_per_op, found.energy_window_s = 0.1, 0.5

    (doubt,) = doubts_about(found, IDLE)

    assert doubt.code == "energy-window-short"
    assert "20%" in doubt.message
    found.energy_window_s = 5.0
    assert doubts_about(found, IDLE) == ()
    found.joules_per_op, found.energy_window_s = None, 0.5
    assert doubts_about(found, IDLE) == ()


def test_copies_are_doubted_where_no_cpu_next_to_the_gpu_may_be_used() -> None:
    transfer, resident = on_gpu("transfer"), on_gpu("softmax")
    moved = on_gpu("softmax")
    moved.case.label = replace(moved.case.label, scope=Scope.END_TO_END)  # type: ignore[misc]
    far = RowEnvironment(far=True)

    assert [doubt.code for doubt in doubts_about(transfer, far)] == ["far-from-gpu"]
    assert [doubt.code for doubt in doubts_about(moved, far)] == ["far-from-gpu"]
    assert doubts_about(resident, far) == ()


def clock_doubts(clock_mhz: float, gpu: SensorSummary) -> list[str]:
    found = on_gpu()
    found.sm_clocks_mhz = [clock_mhz] * 3
    environment = RowEnvironment(gpu=gpu, clock_max_mhz=1980.0)
    return [doubt.code for doubt in doubts_about(found, environment)]


@pytest.mark.parametrize(
    ("clock_mhz", "gpu", "expected"),
    [
        (1980.0, NO_SENSORS, []),
        (1600.0, SensorSummary(), []),
        (1000.0, NO_SENSORS, ["clock-low"]),
        (1000.0, SensorSummary(), ["clock-low"]),
        (1000.0, SensorSummary(reasons={"idle": 1.0}), ["clock-low"]),
        (1000.0, SensorSummary(reasons={"power-cap": 1.0}), ["power-capped"]),
        (1000.0, SensorSummary(reasons={"hardware-thermal": 1.0}), ["throttled"]),
        (1000.0, SensorSummary(reasons={"application-clocks": 1.0}), ["clocks-locked"]),
    ],
)
def test_a_low_clock_is_doubted_where_the_driver_does_not_explain_it(
    clock_mhz: float, gpu: SensorSummary, expected: list[str]
) -> None:
    assert clock_doubts(clock_mhz, gpu) == expected


def test_a_low_clock_names_both_clocks_and_the_drivers_reasons() -> None:
    found = on_gpu()
    found.sm_clocks_mhz = [1000.0]
    environment = RowEnvironment(gpu=SensorSummary(reasons={"display": 1.0}), clock_max_mhz=1980.0)

    (doubt,) = doubts_about(found, environment)

    assert doubt.facts == {"sm_clock_mhz": 1000.0, "clock_sm_max_mhz": 1980.0}
    assert "names only display" in doubt.message


def test_a_gpu_on_the_hosts_memory_has_no_narrow_link() -> None:
    narrow = SensorSummary(link=(1, 4), link_max=(4, 16))
    environment = RowEnvironment(gpu=narrow, integrated=True)

    assert doubts_about(on_gpu("transfer"), environment) == ()


@pytest.mark.parametrize(
    ("kernel", "device", "doubted"),
    [
        ("matmul", "cpu", True),
        ("train", "cpu", True),
        ("copy", "cpu", False),
        ("matmul", "gpu:0", False),
    ],
)
def test_products_by_a_slow_blas_are_doubted(kernel: str, device: str, doubted: bool) -> None:
    found = record(noise())
    found.case.label = replace(found.case.label, kernel=kernel, device=device)  # type: ignore[misc]

    codes = {one.code for one in doubts_about(found, replace(IDLE, slow_blas="for Haswell"))}

    assert ("blas-older-than-cpu" in codes) is doubted


# --------------------------------------------------------------------------- whole texts


def state_of(
    samples: Sequence[float] = (),
    *,
    device: str = "cpu",
    each: int = 5,
    case: dict[str, object] | None = None,
    label_of: dict[str, object] | None = None,
    **changes: object,
) -> CaseState:
    """Return a row of rounds of `each` samples, with changes of its case and its label."""
    samples = samples or noise()
    found = record(samples)
    found.rounds = [list(samples[low : low + each]) for low in range(0, len(samples), each)]
    found.case.label = replace(label(device), **(label_of or {}))  # type: ignore[misc, arg-type]
    for name, value in (case or {}).items():
        setattr(found.case, name, value)
    for name, value in changes.items():
        setattr(found, name, value)
    return found


def in_two(apart_by: float, share: int = 3, count: int = 60) -> list[float]:
    source = random.Random(9)
    return [1 + apart_by * (n % share == 0) + source.gauss(0, 0.01) for n in range(count)]


ROWS: dict[str, CaseState] = {
    "one sample": state_of([1.0], converged=False),
    "two rounds": state_of(noise(10), converged=False),
    "nine samples": state_of(noise(9), converged=False, each=3),
    "nine samples that agree": state_of(noise(9), each=3),
    "unconverged": state_of(converged=False),
    "target of 5 %": state_of(converged=False, precision=0.05),
    "rounds apart": state_of(apart(0.04), converged=False),
    "two groups": state_of(in_two(0.5), device="gpu:0"),
    "two groups far apart": state_of(in_two(2.5), device="gpu:0"),
    "two groups close together": state_of(in_two(0.06), device="gpu:0"),
    "one in five twice as long": state_of([1.0, 1.0, 1.0, 1.0, 2.0] * 12, device="gpu:0"),
    "one in five 2.5 times as long": state_of([1.0, 1.0, 1.0, 1.0, 2.5] * 12, device="gpu:0"),
    "two groups of ten": state_of(in_two(4.0, 2, 10), device="gpu:0"),
    "two groups of nine": state_of(in_two(4.0, 2, 9), device="gpu:0"),
    **{f"a batch {ratio} times as fast": state_of([1.0] * 20, loops=7, single_s=ratio)
       for ratio in (1.59, 1.61)},
    "a batch with starts": state_of([1e-5] * 20, loops=7, single_s=3.5e-5),
    "a batch with few starts": state_of([1e-5] * 20, loops=7, single_s=3.7e-5),
    "four threads": state_of([1e-5] * 20, loops=7, single_s=2.15e-4, label_of={"threads": 4}),
    "four threads at once": state_of([1e-5] * 20, loops=7, single_s=2.17e-4,
                                     label_of={"threads": 4}),
    **{f"{walked} of {device}'s cache": state_of(
        device=device, case={"walked_and_cache_bytes": (walked, 100)})
       for walked in (299, 300) for device in ("cpu", "gpu:0")},
    **{f"starved {share}": state_of(case={"starved_share": share}) for share in (0.049, 0.05)},
    **{f"energy for {window} s": state_of(joules_per_op=0.1, energy_window_s=window)
       for window in (0.5, 4.8, 4.9)},
    **{f"{clock} MHz": state_of(device="gpu:0", sm_clocks_mhz=[clock])
       for clock in (1583.0, 1584.0)},
}  # fmt: skip
GPU = SensorSummary(
    reasons={"hardware-thermal": 0.5, "power-brake": 0.06, "power-cap": 0.7,
             "application-clocks": 0.05},
    new_errors={"ecc_corrected": 2, "remapped_rows": 1},
    other_processes=(41, 42),
    link=(3, 8),
    link_max=(4, 16),
    claimed_by="held by alice",
)  # fmt: skip
HOSTS = {
    "9.9 % by others": RowEnvironment(others_percent=9.9, steal_percent=1.9, quota_percent=4.9),
    "10 % by others": RowEnvironment(others_percent=10.0, steal_percent=0.0),
    "2 % stolen": RowEnvironment(others_percent=0.0, steal_percent=2.0),
    "a quota": RowEnvironment(others_percent=None, steal_percent=None, quota_percent=5.0),
    "half a core of 8": RowEnvironment(others_percent=6.25, steal_percent=0.0, cores=8),
    "less than half a core of 8": RowEnvironment(others_percent=6.24, steal_percent=0.0, cores=8),
}
ENVIRONMENTS: dict[str, tuple[RowEnvironment, CaseState]] = {
    **{name: (host, state_of(label_of={"threads": 8}))
       for name, host in HOSTS.items()},
    "one other": (RowEnvironment(gpu=SensorSummary(other_processes=(41,))), state_of()),
    "all of the sensors": (
        RowEnvironment(gpu=GPU, fill=Fill.ZEROS, far=True),
        state_of(device="gpu:0", label_of={"kernel": "transfer"},
                 case={"work": Work(flops=0, bytes_moved=int(40e9), unit="B/s")}),
    ),
    "low without a word": (
        RowEnvironment(clock_max_mhz=1980.0), ROWS["1583.0 MHz"],
    ),
    "low with a word": (
        RowEnvironment(clock_max_mhz=1980.0,
                       gpu=SensorSummary(reasons={"display": 0.5, "idle": 0.5})),
        ROWS["1583.0 MHz"],
    ),
    "a link at its best": (
        RowEnvironment(gpu=SensorSummary(link=(4, 16), link_max=(4, 16))),
        state_of(device="gpu:0", label_of={"kernel": "transfer"}),
    ),
    "a link at its rate": (
        RowEnvironment(gpu=SensorSummary(link=(1, 16))),
        state_of([1.0] * 20, device="gpu:0", label_of={"kernel": "transfer"},
                 case={"work": Work(flops=0, bytes_moved=int(4e9), unit="B/s")}),
    ),
    "a product that is copied": (
        RowEnvironment(gpu=SensorSummary(link=(1, 16))),
        state_of(device="gpu:0", label_of={"kernel": "matmul", "scope": Scope.END_TO_END},
                 case={"work": Work(flops=0, bytes_moved=int(1e12), unit="B/s")}),
    ),
    "training that is copied in part": (
        RowEnvironment(gpu=SensorSummary(link=(1, 16))),
        state_of(device="gpu:0", label_of={"kernel": "train", "scope": Scope.END_TO_END},
                 case={"work": Work(flops=0, bytes_moved=int(1e12), unit="B/s")}),
    ),
    "a copy that stays": (
        RowEnvironment(gpu=SensorSummary(link=(1, 16))),
        state_of(device="gpu:0", label_of={"kernel": "copy"},
                 case={"work": Work(flops=0, bytes_moved=int(1e12), unit="B/s")}),
    ),
    "not low": (RowEnvironment(clock_max_mhz=1980.0), ROWS["1584.0 MHz"]),
    "an old BLAS": (RowEnvironment(slow_blas="openblas uses its kernels for Haswell"),
                    state_of(label_of={"kernel": "matmul"})),
    **{f"PCIe {generation} x16": (
        RowEnvironment(gpu=SensorSummary(link=(generation, 16))),
        state_of(device="gpu:0", label_of={"kernel": "transfer"},
                 case={"work": Work(flops=0, bytes_moved=int(1e12), unit="B/s")}),
    ) for generation in (1, 2, 3, 4, 5, 6, 7)},
}  # fmt: skip


def test_every_doubt_is_told_as_recorded() -> None:
    seen = {name: (IDLE, state) for name, state in ROWS.items()} | ENVIRONMENTS
    text = "".join(
        f"## {name}\n" + in_lines(doubts_about(state, environment))
        for name, (environment, state) in seen.items()
    )

    assert text == recorded("doubts", text)


#: Doubts that are about times with themselves, not with anything that has a length.
OF_TIMES = frozenset({"unconverged", "bimodal"})


@pytest.mark.parametrize("factor", [1 / 1024, 1024.0])
def test_doubts_about_times_do_not_depend_on_their_unit(factor: float) -> None:
    def told(state: CaseState) -> str:
        return in_lines(one for one in doubts_about(state, IDLE) if one.code in OF_TIMES)

    for state in ROWS.values():
        rounds = [[factor * one for one in samples] for samples in state.rounds]

        assert told(replace(state, rounds=rounds)) == told(state)
