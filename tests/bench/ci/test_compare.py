"""Two saved runs: pass, fail or open for each row, and the code that they come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpucheck.bench.ci.baseline import row_series, saved_run
from gpucheck.bench.ci.compare import compare_runs, conclude_comparison, gate_of_row
from gpucheck.bench.ci.diagnosis import FURTHER_SESSIONS
from gpucheck.bench.ci.model import RunComparison, SavedRun
from gpucheck.bench.ci.run_data import row_id
from gpucheck.bench.model import Direction, FrameworkUse, GateClass, GateStatus, Scope
from gpucheck.report.envelope import Failure
from gpucheck.report.errors import ExitCode
from gpucheck.report.host import Host
from tests.fakes.bench_results import doubt
from tests.fakes.bench_runs import row, runs_of
from tests.report.formats.recorded import in_lines, recorded

FILES = (Path("a.json"), Path("b.json"))
BUSY = doubt("host-busy")
#: Five processes that differ by about one percent.
NOISE = (0.99, 1.0, 1.01, 1.005, 0.995)


def run(speed: float = 7e14, device: str = "gpu:0", count: int = 5, **changes: Any) -> SavedRun:
    runs = runs_of({device: [speed * factor for factor in NOISE[:count]]}, **changes)
    return saved_run(runs, row_series(runs), time="2026-11-21T03:32:00Z", profile=None)


def at(factors: tuple[float, ...]) -> SavedRun:
    """Return a run of processes that are so far from the usual speed."""
    runs = runs_of({"gpu:0": [7e14 * factor for factor in factors]})
    return saved_run(runs, row_series(runs), time="2026-11-21T03:32:00Z", profile=None)


def compared(first: SavedRun, second: SavedRun, **options: Any) -> RunComparison:
    return compare_runs(first, second, files=FILES, **options)


def code(found: RunComparison) -> ExitCode:
    return conclude_comparison(found, Host()).exit_code


@pytest.mark.parametrize(
    ("factor", "status", "expected"),
    [
        (1.0, GateStatus.PASS, ExitCode.OK),
        (0.98, GateStatus.PASS, ExitCode.OK),
        (1.5, GateStatus.PASS, ExitCode.OK),
        (0.95, GateStatus.INCONCLUSIVE, ExitCode.INCONCLUSIVE),
        (0.9, GateStatus.FAIL, ExitCode.BAD),
    ],
)
def test_a_change_is_judged_by_its_interval(
    factor: float, status: GateStatus, expected: ExitCode
) -> None:
    found = compared(run(), run(7e14 * factor))
    (only,) = found.rows

    assert only.status is status
    assert code(found) is expected
    assert only.ratio == pytest.approx(factor)
    assert only.interval is not None
    assert only.interval[0] < factor < only.interval[1]


def test_times_are_better_when_they_are_lower() -> None:
    slow = [row("gpu:0", 6e14, throughput=None)]
    fast = [row("gpu:0", 7e14, throughput=None)]

    assert code(compared(run(rows=fast), run(rows=slow))) is ExitCode.BAD
    assert code(compared(run(rows=slow), run(rows=fast))) is ExitCode.OK


def test_the_tolerance_can_be_given() -> None:
    assert code(compared(run(), run(6.3e14), tolerance_percent=15.0)) is ExitCode.OK
    assert code(compared(run(), run(6.86e14), tolerance_percent=0.5)) is ExitCode.BAD


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_processes_decide_nothing(count: int) -> None:
    found = compared(run(), run(3e14, count=count))
    (only,) = found.rows

    assert (only.status, only.class_) == (GateStatus.INCONCLUSIVE, GateClass.NOISE)
    assert "too few processes" in only.reason
    assert only.interval is None


def test_another_driver_is_inconclusive_and_named() -> None:
    second = run(3e14)
    (device,) = second.devices
    changed = replace(device, fingerprint=replace(device.fingerprint, driver="590.1"))
    found = compared(run(), replace(second, devices=(changed,)))
    answer = conclude_comparison(found, Host())

    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert found.rows[0].class_ is GateClass.CONFIG
    assert "driver: 580.95.05 -> 590.1" in found.rows[0].reason
    assert answer.error is not None
    assert answer.error.remedy == (
        "save a new baseline with --save FILE, or allow it: --allow-difference driver",
    )
    # Allowed, it is judged, and still told.
    allowed = compared(run(), replace(second, devices=(changed,)), allowed=["driver"])
    assert code(allowed) is ExitCode.BAD
    assert allowed.differences == {"gpu:0": ("driver: 580.95.05 -> 590.1",)}


def test_rows_that_one_side_lacks_are_open() -> None:
    other = run(rows=[row("gpu:0", 1e12, kernel="copy")])
    found = compared(run(), other)

    assert [one.reason for one in found.rows] == [
        "the first run does not have this row",
        "the second run does not have this row",
    ]
    assert all("allow-difference" not in step for one in found.rows for step in one.next)
    assert code(found) is ExitCode.INCONCLUSIVE


def test_a_row_that_one_side_has_with_other_threads_says_with_how_many() -> None:
    first, second = (
        run(device="cpu", rows=[row("cpu", 1e12, kernel="softmax", threads=threads)])
        for threads in (2, 1)
    )

    assert [one.reason for one in compared(first, second).rows] == [
        "the first run has this row with 2 threads",
        "the second run has this row with 1 thread",
    ]


def test_of_several_numbers_of_threads_the_greatest_is_named() -> None:
    several = run(
        device="cpu",
        rows=[row("cpu", 1e12, kernel="softmax", threads=threads) for threads in (2, 4)],
    )
    one = run(device="cpu", rows=[row("cpu", 1e12, kernel="softmax", threads=1)])

    assert "the first run has this row with 4 threads" in [
        found.reason for found in compared(several, one).rows
    ]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("framework-missing", "the second run has no figure for it: no JAX"),
        ("framework-error", "the second run does not have this row"),
    ],
)
def test_a_framework_without_a_process_has_one_reason_for_all_its_rows(
    code: str, said: str
) -> None:
    jax = FrameworkUse(name="jax", version="0.11", form="jax.jit", python="/py")
    sizes = [row("gpu:0", 1e12, kernel="batch", shape=(size,), framework=jax) for size in (1, 16)]
    second = run(rows=[row("gpu:0", 1e12, kernel="copy")])
    (device,) = second.devices
    failures = {row_id(sizes[0]): Failure(code=code, message="no JAX")}

    found = compared(
        run(rows=sizes), replace(second, devices=(replace(device, failures=failures),))
    )

    assert [one.reason for one in found.rows[1:]] == [
        "the second run has no figure for it: no JAX",
        said,
    ]


def test_a_device_that_is_gone_is_told() -> None:
    found = compared(run(device="gpu:1"), run(device="cpu"))

    assert {(one.device, one.status) for one in found.rows} == {
        ("cpu", GateStatus.INCONCLUSIVE),
        ("gpu:1", GateStatus.INCONCLUSIVE),
    }


def test_a_gpu_is_held_against_one_of_its_board() -> None:
    found = compared(run(device="gpu:0"), run(device="gpu:3"))

    assert [(one.device, one.status) for one in found.rows] == [("gpu:3", GateStatus.PASS)]
    assert code(found) is ExitCode.OK


@pytest.mark.parametrize(
    ("code_", "status", "expected"),
    [
        # A product on the GPU does not wait for the host.
        ("host-busy", GateStatus.FAIL, GateClass.HARDWARE),
        ("gpu-shared", GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT),
        ("throttled", GateStatus.FAIL, GateClass.THERMAL),
        ("pcie-narrow", GateStatus.FAIL, GateClass.CONFIG),
        ("bimodal", GateStatus.FAIL, GateClass.HARDWARE),
    ],
)
def test_what_the_run_said_of_itself_explains_a_slowdown(
    code_: str, status: GateStatus, expected: GateClass
) -> None:
    (only,) = compared(run(), run(5e14, doubts=(code_,))).rows

    assert (only.status, only.class_) == (status, expected)
    assert only.next


def test_a_slow_row_is_not_excused_by_the_doubts_of_another() -> None:
    slow = row("gpu:0", 5e14)
    disturbed = row("gpu:0", 5e14, scope=Scope.END_TO_END, doubts=(BUSY,))
    now = run(rows=[replace(slow, time_s=2 * (slow.time_s or 0), throughput=None), disturbed])
    before = run(rows=[replace(slow, throughput=None), replace(disturbed, doubts=())])

    found = {one.id.rpartition("/")[2]: one for one in compared(before, now).rows}

    assert found["4096x4096x4096"].status is GateStatus.FAIL
    assert found["4096x4096x4096"].class_ is GateClass.HARDWARE
    assert found["end-to-end"].status is GateStatus.PASS


def scattered(speed: float = 7e14) -> SavedRun:
    """Return a run whose processes differ by more than the tolerance."""
    runs = runs_of({"gpu:0": [speed * factor for factor in (0.8, 1.0, 1.2, 0.9, 1.1)]})
    return saved_run(runs, row_series(runs), time="2026-11-21T03:32:00Z", profile=None)


@pytest.mark.parametrize("factor", [0.8, 1.0, 1.5])
@pytest.mark.parametrize("doubt", ["gpu-shared", "throttled", "quota-reached", None])
def test_nothing_is_compared_with_a_disturbed_baseline(doubt: str | None, factor: float) -> None:
    before = run(doubts=(doubt,)) if doubt else scattered()

    found = compared(before, run(7e14 * factor))
    (only,) = found.rows

    assert (only.status, only.class_) == (GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT)
    said = doubt or "its 5 processes differ by 17.4 %"
    assert only.reason.startswith(f"the first run was disturbed: {said}")
    assert only.next == ("save a new baseline with --save FILE",)
    assert code(found) is ExitCode.INCONCLUSIVE


@pytest.mark.parametrize("doubt", ["gpu-shared", "quota-reached", "gpu-claimed", "starved"])
def test_others_only_make_a_run_slower_so_it_may_pass_but_never_fails(doubt: str) -> None:
    (alike,) = compared(run(), run(doubts=(doubt,))).rows
    (slower,) = compared(run(), run(5e14, doubts=(doubt,))).rows

    assert alike.status is GateStatus.PASS
    assert (slower.status, slower.class_) == (GateStatus.INCONCLUSIVE, GateClass.ENVIRONMENT)


def test_a_run_whose_processes_differ_is_judged_by_its_interval() -> None:
    (open_,) = compared(run(), scattered()).rows
    (slower,) = compared(run(), scattered(3e14)).rows

    assert (open_.status, open_.class_) == (GateStatus.INCONCLUSIVE, GateClass.NOISE)
    assert open_.repeat_helps
    assert slower.status is GateStatus.FAIL


def test_a_row_says_from_which_process_on_it_is_slow() -> None:
    (asked,) = compared(run(), at((1.0, 1.01, 0.99, 1.0, 0.7))).rows
    (slow,) = compared(run(), at((1.0, 1.01, 0.99, 1.0, 0.7, 0.7))).rows

    assert asked.repeat_helps
    assert asked.reason.endswith(": slow from process 5 on, and more must show whether for good")
    assert slow.status is GateStatus.FAIL
    assert slow.reason.startswith("30.0 % worse: slow from process 5 on, 5 % is allowed; ")
    assert (slow.first, slow.second) == pytest.approx((7e14, 4.9e14), rel=1e-3)


@pytest.mark.parametrize(
    ("code_", "expected"), [("no-time", GateClass.NOISE), ("gpu-lost", GateClass.HARDWARE)]
)
def test_a_row_without_a_figure_says_why_it_has_none(code_: str, expected: GateClass) -> None:
    why = Failure(code=code_, message="it came to nothing")
    nothing = replace(row("gpu:0", 1e12, kernel="copy"), time_s=None, throughput=None, error=why)
    copy = row("gpu:0", 1e12, kernel="copy")

    found = compared(run(rows=[row("gpu:0", 7e14), copy]), run(rows=[row("gpu:0", 7e14), nothing]))

    (open_,) = [one for one in found.rows if one.second is None]
    assert (open_.status, open_.class_) == (GateStatus.INCONCLUSIVE, expected)
    assert open_.reason == "the second run has no figure for it: it came to nothing"

    # The same where it is the earlier run that has none.
    found = compared(run(rows=[row("gpu:0", 7e14), nothing]), run(rows=[row("gpu:0", 7e14), copy]))
    (open_,) = [one for one in found.rows if one.first is None]
    assert (open_.status, open_.class_) == (GateStatus.INCONCLUSIVE, expected)
    assert open_.reason == "the first run has no figure for it: it came to nothing"


def test_of_many_rows_one_that_is_slow_by_chance_does_not_fail() -> None:
    noisy = (0.93, 0.905, 0.955, 0.94, 0.92)
    (alone,) = compared(run(), at(noisy)).rows
    others = [row("gpu:0", 7e14, kernel="copy", shape=(side, side)) for side in range(1, 40)]
    first, second = run(rows=others), run(rows=others)
    first = replace(first, series=(*run().series, *first.series))
    many = replace(second, series=(*at(noisy).series, *second.series))

    among_many = compared(first, many).rows[0]

    assert alone.status is GateStatus.FAIL
    assert among_many.status is GateStatus.INCONCLUSIVE
    assert "one of 40 rows may miss its limit by chance" in among_many.reason


def test_nothing_in_common_is_never_a_pass() -> None:
    empty = RunComparison(
        first=compared(run(), run()).first, second=compared(run(), run()).second, rows=()
    )

    assert code(empty) is ExitCode.INCONCLUSIVE


def test_a_fail_outweighs_what_is_open() -> None:
    slow = run(5e14)
    other = run(1e12, rows=[row("gpu:0", 1e12, kernel="copy")])
    both = replace(slow, series=(*slow.series, *other.series))

    assert code(compared(run(), both)) is ExitCode.BAD


# --------------------------------------------------------------------------------- single runs


def single(speed: float, factor: float | None = 1.04, count: int = 1, **changes: Any) -> SavedRun:
    """Return a run of so few processes, whose rounds say how far another run may be."""
    found = run(speed, count=count, **changes)
    return replace(found, series=tuple(replace(one, repeat_factor=factor) for one in found.series))


@pytest.mark.parametrize(
    ("factor", "status", "said"),
    [
        (1.0, GateStatus.PASS, "no difference shown: 0.0 %"),
        (1.5, GateStatus.PASS, "50.0 % better, and two identical runs may be 4.0 % apart"),
        (0.98, GateStatus.INCONCLUSIVE, "no difference shown: 2.0 % worse"),
        (0.93, GateStatus.INCONCLUSIVE, "more than 5 % is not shown"),
        (0.9, GateStatus.FAIL, "10.0 % worse, and two identical runs may be 4.0 % apart"),
    ],
)
def test_two_single_runs_are_held_against_how_far_runs_are_apart(
    factor: float, status: GateStatus, said: str
) -> None:
    (only,) = compared(single(7e14), single(7e14 * factor)).rows

    assert only.status is status
    assert said in only.reason
    assert only.by_repeat
    assert only.interval == pytest.approx((factor / 1.04, factor * 1.04))


def test_the_run_that_says_the_most_noise_counts() -> None:
    (only,) = compared(single(7e14, 1.02), single(6.3e14, 1.2)).rows

    assert only.status is GateStatus.INCONCLUSIVE
    assert "20.0 % apart" in only.reason


def test_a_side_with_enough_processes_needs_no_word_of_its_rounds() -> None:
    (only,) = compared(run(), single(6.3e14)).rows

    assert only.status is GateStatus.FAIL
    assert only.by_repeat


def test_enough_processes_on_both_sides_count_and_not_their_rounds() -> None:
    (only,) = compared(single(7e14, 2.0, count=5), single(6.3e14, 2.0, count=5)).rows

    assert only.status is GateStatus.FAIL
    assert not only.by_repeat


@pytest.mark.parametrize("factors", [(None, 1.04), (1.04, None), (None, None)])
def test_single_runs_whose_rounds_say_nothing_decide_nothing(
    factors: tuple[float | None, float | None],
) -> None:
    (only,) = compared(single(7e14, factors[0]), single(3e14, factors[1])).rows

    assert only.status is GateStatus.INCONCLUSIVE
    assert "too few processes" in only.reason
    assert (only.interval, only.by_repeat) == (None, False)


def test_undecided_single_runs_are_told_to_be_repeated() -> None:
    found = compared(single(7e14), single(6.8e14))
    answer = conclude_comparison(found, Host())

    assert answer.error is not None
    assert answer.error.remedy == found.rows[0].next
    assert "more processes" in found.rows[0].next[0]


def test_undecided_since_others_were_at_work_is_told_to_wait_for_them() -> None:
    second = run(5e14, doubts=("gpu-shared",))

    answer = conclude_comparison(compared(run(), second), Host())

    assert answer.exit_code is ExitCode.INCONCLUSIVE
    assert answer.error is not None
    assert answer.error.remedy == compared(run(), second).rows[0].next


def test_a_processor_is_not_called_defective() -> None:
    (only,) = compared(run(1e11, "cpu"), run(8e10, "cpu")).rows

    assert (only.status, only.class_) == (GateStatus.FAIL, GateClass.ENVIRONMENT)


def test_that_a_side_failed_is_told() -> None:
    found = compared(replace(run(), exit_code=1), run())

    assert (found.first.exit_code, found.second.exit_code) == (1, None)
    (notice,) = conclude_comparison(found, Host()).warnings
    assert notice.message == "the first run, 'a.json', failed."


@pytest.mark.parametrize(
    ("sessions", "factor", "status", "advised"),
    [
        ((), 0.5, GateStatus.FAIL, True),
        ((5,), 0.5, GateStatus.FAIL, True),
        ((2, 3), 0.5, GateStatus.FAIL, False),
        ((), 0.95, GateStatus.INCONCLUSIVE, False),
        ((), 1.0, GateStatus.PASS, False),
    ],
)
def test_a_fail_against_one_session_advises_to_add_sessions(
    sessions: tuple[int, ...], factor: float, status: GateStatus, advised: bool
) -> None:
    first = run()
    first = replace(first, series=tuple(replace(one, sessions=sessions) for one in first.series))

    (only,) = compared(first, run(7e14 * factor)).rows

    assert only.status is status
    assert (FURTHER_SESSIONS in only.next) is advised


@pytest.mark.parametrize(
    ("factor", "said"),
    [(0.994, "0.6 % worse,"), (1.006, "0.6 % better,"), (1.0001, "0.0 %,"), (0.98, "2.0 % worse,")],
)
def test_a_small_change_has_its_direction_unless_it_rounds_to_nothing(
    factor: float, said: str
) -> None:
    (only,) = compared(run(), run(7e14 * factor)).rows

    assert only.reason.startswith(said)


@pytest.mark.parametrize("changes", [{"unit": "B/s"}, {"direction": Direction.LOWER}])
def test_figures_of_another_kind_are_not_compared(changes: dict[str, Any]) -> None:
    second = run()
    second = replace(second, series=tuple(replace(one, **changes) for one in second.series))

    (only,) = compared(run(), second).rows

    assert (only.status, only.ratio) == (GateStatus.INCONCLUSIVE, None)
    gate = gate_of_row(only)
    assert (gate.measured, gate.expected, gate.limit) == (only.second, None, None)


def throttled() -> SavedRun:
    slow = [row("gpu:0", 6e14, doubts=(doubt("throttled", **{"hardware-thermal_share": 0.4}),))]
    return run(rows=slow)


def of_profile(name: str | None) -> SavedRun:
    found = run(rows=[row("gpu:0", 1e12, kernel="copy")])
    return replace(found, profile=name)


def with_driver(version: str) -> SavedRun:
    found = run(6.3e14)
    (device,) = found.devices
    fingerprint = replace(device.fingerprint, driver=version)
    return replace(found, devices=(replace(device, fingerprint=fingerprint),))


PAIRS: dict[str, Callable[[], RunComparison]] = {
    "the same": lambda: compared(run(), run()),
    "slower": lambda: compared(run(), run(6.3e14)),
    "at the limit": lambda: compared(run(), run(6.65e14)),
    "faster": lambda: compared(run(), run(9e14)),
    "a tolerance of 15 %": lambda: compared(run(), run(6.3e14), tolerance_percent=15.0),
    "two processes": lambda: compared(run(), run(6.3e14, count=2)),
    "three processes": lambda: compared(run(count=3), run(6.3e14, count=3)),
    "one process each": lambda: compared(run(count=1), run(6.3e14, count=1)),
    "noise": lambda: compared(run(), at((1.0, 0.8, 1.2, 0.9, 1.1))),
    "throttled": lambda: compared(run(), throttled()),
    "another driver": lambda: compared(run(), with_driver("590.1")),
    "another driver, allowed": lambda: compared(run(), with_driver("590.1"), allowed=["driver"]),
    "other rows": lambda: compared(run(), of_profile(None)),
    "other rows, by a profile": lambda: compared(run(), of_profile("nodes")),
    "other devices": lambda: compared(run(device="gpu:1"), run(device="cpu")),
    "two devices": lambda: compared(
        run(rows=[row("gpu:0", 7e14), row("gpu:1", 7e14)]),
        run(rows=[row("gpu:0", 7e14), row("gpu:1", 5e14), row("gpu:0", 1e12, kernel="copy")]),
    ),
    "a run that failed": lambda: compared(replace(run(), exit_code=1), run()),
}


def test_comparisons_are_as_recorded() -> None:
    text = ""
    for name, compare in PAIRS.items():
        found = compare()
        answer = conclude_comparison(found, Host())
        text += f"## {name}: {answer.exit_code.value}\n" + in_lines(found.rows)
        text += in_lines([*answer.warnings, *([answer.error] if answer.error else [])])
        text += f"{found.differences}\n" if found.differences else ""

    assert text == recorded("comparisons", text)
