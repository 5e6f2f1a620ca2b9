"""Charts of a benchmark as values: what each shows, what it marks, and when there is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.charts_view import bench_charts, burn_charts
from gpucheck.bench.model import (
    BenchResult,
    BurnDevice,
    BurnEnd,
    BurnResult,
    Comparison,
    ComparisonSide,
    Corruption,
    FrameworkUse,
    Measurement,
    Roofline,
    SensorHistory,
    Telemetry,
)
from gpucheck.report.charts import Band, Chart, Drawn
from tests.fakes.bench_results import (
    FLOAT32,
    environment,
    measurement,
    product,
    result_of,
    sensors,
)

WORK: dict[str, Any] = {"flops": 10**12, "bytes_moved": 10**9}


def charts(result: BenchResult) -> dict[str, Chart]:
    return {chart.id: chart for chart in bench_charts(result)}


def side(device: str) -> ComparisonSide:
    return ComparisonSide(device=device, variant="v", threads=None, median_s=1.0, dtype=FLOAT32)


def comparison(edge: int, resident: float, moved: float | None = None) -> Comparison:
    return Comparison(
        kernel="matmul",
        dtype=FLOAT32,
        shape=(edge, edge),
        cpu=side("cpu"),
        gpu=side("gpu:0"),
        speedup_resident=resident,
        speedup_end_to_end=moved,
        speedup_amortised=None,
        reuse_count=10,
        break_even=None,
        sentence="",
    )


def test_a_result_without_rows_has_no_chart() -> None:
    assert charts(result_of()) == {}


def test_a_wrong_or_failed_row_is_in_no_roofline() -> None:
    right = product(700.0, **WORK)
    assert right.verified is not None
    wrong = replace(right, verified=replace(right.verified, ok=False))

    assert "roofline" not in charts(result_of(wrong))


def test_points_stand_at_their_operations_for_each_byte_below_the_boards_roof() -> None:
    row = product(500.0, **WORK)
    found = charts(result_of(replace(row, median_s=2e-3)))["roofline"]
    roof, points = found.panels[0].series

    assert (points.x, points.y) == ((1000.0,), (500.0,))
    assert roof.limit
    assert roof.name == "H100 SXM bfloat16"
    assert roof.y[1:] == (989.4, 989.4)
    assert roof.x[1] == pytest.approx(989.4e12 / 3350e9)
    assert roof.y[0] == pytest.approx(roof.x[0] * 3.35)


def test_the_processors_roof_is_the_one_of_most_threads() -> None:
    limits = [
        Roofline(
            device="cpu",
            threads=threads,
            copy_bytes_per_s=1e10 * threads,
            gemm_flops_per_s=1e11 * threads,
            gemm_dtype="float32",
        )
        for threads in (1, 2)
    ]
    row = measurement("matmul", 1e11, unit="FLOP/s", **WORK)
    result = result_of(row, environment=environment(rooflines=tuple(limits)))

    (roof, _) = charts(result)["roofline"].panels[0].series

    assert roof.y[-1] == pytest.approx(0.2)


def test_one_size_of_each_kernel_gives_a_row_each_and_three_give_a_curve() -> None:
    one = charts(result_of(comparisons=(comparison(64, 2.0, 0.5),)))["speedup"]
    sizes = [comparison(edge, fast, fast / 4) for edge, fast in ((64, 0.5), (128, 2), (256, 8))]
    curve = charts(result_of(comparisons=tuple(sizes)))["speedup"]

    assert one.panels[0].y.names == ("matmul float32 v",)
    assert curve.panels[0].y.names == ()
    resident, moved, limit = curve.panels[0].series
    assert resident.x == (64.0, 128.0, 256.0)
    assert resident.marked == ((1, "from 128"),)
    assert moved.marked == ((2, "from 256"),)
    assert limit.limit


def test_a_gpu_that_is_always_or_never_faster_has_no_break_even() -> None:
    for factors in ((2.0, 3.0, 4.0), (0.1, 0.2, 0.3)):
        sizes = zip((64, 128, 256), factors, strict=True)
        found = result_of(comparisons=tuple(comparison(edge, fast) for edge, fast in sizes))
        assert charts(found)["speedup"].panels[0].series[0].marked == ()


def test_the_speed_up_is_that_of_gpuchecks_own_code() -> None:
    use = FrameworkUse(name="jax", version=None, form="eager", python="python3")
    theirs = replace(comparison(64, 9.0), gpu=replace(side("gpu:0"), framework=use))

    assert "speedup" not in charts(result_of(comparisons=(theirs,)))


@pytest.mark.parametrize(("sizes", "drawn"), [(2, Drawn.BARS), (3, Drawn.LINE)])
def test_transfers_are_bars_or_a_curve_over_the_size(sizes: int, drawn: Drawn) -> None:
    rows = [
        measurement("transfer", 1e9, device="gpu:0", variant="to-gpu-pinned", shape=(4**n,))
        for n in range(8, 8 + sizes)
    ]

    (series,) = charts(result_of(*rows))["transfer"].panels[0].series

    assert series.drawn is drawn


def test_the_slowest_gpu_is_marked_only_if_it_is_behind() -> None:
    speeds = (700.0, 699.0, 698.0, 600.0)
    rows = [product(speed, f"gpu:{at}") for at, speed in enumerate(speeds)]
    found = charts(result_of(*rows))["gpus"]
    by_name = {one.name: one for one in found.panels[0].series}

    assert by_name["gpu:3"].marked == ((0, "gpu:3"),)
    assert by_name["gpu:3"].x[0] == pytest.approx(100 * (600 / 699 - 1))
    assert "gpu:3: -14.2 %" in found.says
    alike = charts(result_of(*rows[:3]))["gpus"]
    assert not any(one.marked for one in alike.panels[0].series)
    assert alike.says == "All GPUs are within 1 % of the middle one."


def test_one_gpu_is_not_beside_others() -> None:
    assert "gpus" not in charts(result_of(product(700.0)))


def test_frameworks_stand_beside_our_own_code_as_shares_of_the_limit() -> None:
    use = FrameworkUse(name="pytorch", version="2", form="eager", python="python3")
    own = product(700.0, percent_of_peak=70.0)
    theirs = product(650.0, percent_of_peak=65.0, framework=use)

    found = charts(result_of(own, theirs))["frameworks"].panels[0]

    assert [(one.name, one.x) for one in found.series] == [
        ("gpucheck", (70.0,)),
        ("PyTorch eager", (65.0,)),
        ("limit", (100.0, 100.0)),
    ]
    assert "frameworks" not in charts(result_of(own))


def rounds_row(*medians: float, **changes: Any) -> Measurement:
    return product(700.0, median_s=1.0, round_medians_s=medians, **changes)


def test_rounds_are_shares_of_the_median_with_its_interval_the_widest_first() -> None:
    calm = rounds_row(0.99, 1.0, 1.01, ci95_s=(0.995, 1.005))
    wild = rounds_row(0.5, 1.0, 1.5, device="gpu:1")

    found = charts(result_of(calm, wild))["rounds"]
    points, middle = found.panels[0].series

    assert points.x == pytest.approx((-50, 0, 50, -1, 0, 1))
    assert points.y == (0.0, 0.0, 0.0, 1.0, 1.0, 1.0)
    assert middle.low[0] is None
    assert middle.low[1] == pytest.approx(-0.5)
    assert "gpu:1" in found.says


def test_processes_count_instead_of_rounds_where_there_are_several() -> None:
    found = charts(result_of(rounds_row(1.0, 1.0, process_medians_s=(0.9, 1.1))))["rounds"]

    assert found.title == "Time of each process"
    assert found.panels[0].series[0].x == pytest.approx((-10, 10))


def history(**changes: Any) -> SensorHistory:
    return replace(SensorHistory(part_s=2.0, power_w=(100.0, None, 300.0)), **changes)


def test_sensors_are_lines_over_time_and_reasons_are_bands_with_their_gpus() -> None:
    both = (
        sensors("gpu:0", history=history(limited={"power-cap": ((0.0, 2.0), (5.0, 6.0))})),
        sensors("gpu:1", history=history(limited={"power-cap": ((1.0, 4.0),)})),
    )
    result = result_of(product(1.0), product(1.0, "gpu:1"))
    found = charts(replace(result, telemetry=Telemetry(gpus=both)))["telemetry"]

    (panel,) = found.panels  # what no sensor reads is left out
    assert panel.y.label == "power (W)"
    assert [one.name for one in panel.series] == ["gpu:0", "gpu:1"]
    assert (panel.series[0].x, panel.series[0].y) == ((1.0, 5.0), (100.0, 300.0))
    assert found.bands == (
        Band("power-cap, gpu:0-1", 0.0, 4.0),
        Band("power-cap, gpu:0-1", 5.0, 6.0),
    )
    assert "held down by power-cap" in found.says


def test_a_reason_that_is_trouble_is_a_grave_band() -> None:
    hot = sensors(history=history(limited={"hardware-thermal": ((0.0, 2.0),)}))
    result = replace(result_of(product(1.0)), telemetry=Telemetry(gpus=(hot,)))

    assert charts(result)["telemetry"].bands == (
        Band("hardware-thermal, gpu:0", 0.0, 2.0, grave=True),
    )


def test_without_a_history_there_is_no_chart_of_sensors() -> None:
    result = replace(result_of(product(1.0)), telemetry=Telemetry(gpus=(sensors(),)))

    assert "telemetry" not in charts(result)


def test_a_burn_shows_its_devices_and_marks_the_slow_one() -> None:
    devices = tuple(
        BurnDevice(
            device=f"gpu:{at}",
            gpu_uuid=f"GPU-{at}",
            name="H100",
            corruption=Corruption(device=f"gpu:{at}", gpu_uuid=None),
            flops_per_s=speed,
            last_flops_per_s=speed,
        )
        for at, speed in enumerate((50e12, 50e12, 40e12))
    )
    result = BurnResult(
        asked_s=1.0,
        duration_s=1.0,
        ended_by=BurnEnd.TIME,
        temperature_limit_c=None,
        devices=devices,
        gates=(),
    )

    (found,) = burn_charts(result)

    assert found.id == "gpus"
    assert found.panels[0].series[0].marked == ((2, "-20.0 %"),)
    assert [one.name for one in found.panels[0].series if one.x] == ["whole time", "last tenth"]
    assert list(burn_charts(replace(result, devices=()))) == []
