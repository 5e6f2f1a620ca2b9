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
    Corruption,
    FrameworkUse,
    Measurement,
    Roofline,
    SensorHistory,
    Telemetry,
)
from gpucheck.report.charts import Band, Chart, Drawn
from tests.fakes.bench_results import (
    environment,
    measurement,
    product,
    result_of,
    sensors,
)

WORK: dict[str, Any] = {"flops": 10**12, "bytes_moved": 10**9}


def charts(result: BenchResult) -> dict[str, Chart]:
    return {chart.id: chart for chart in bench_charts(result)}


def known(row: Measurement) -> Measurement:
    """Return a row whose time is known to half a percent."""
    assert row.time_s is not None
    return replace(row, repeat95_s=(0.995 * row.time_s, 1.005 * row.time_s))


def test_a_result_without_rows_has_no_chart() -> None:
    assert charts(result_of()) == {}


def test_a_wrong_or_failed_row_is_in_no_roofline() -> None:
    right = product(700.0, **WORK)
    assert right.verified is not None
    wrong = replace(right, verified=replace(right.verified, ok=False))

    assert "roofline" not in charts(result_of(wrong))


def test_points_stand_at_their_operations_for_each_byte_below_the_boards_roof() -> None:
    row = product(500.0, **WORK)
    found = charts(result_of(replace(row, time_s=2e-3)))["roofline"]
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


def test_a_measured_product_without_a_copy_is_a_ceiling_in_the_unit_of_the_rows() -> None:
    limit = Roofline(
        device="cpu", threads=2, copy_bytes_per_s=None, gemm_flops_per_s=5e9, gemm_dtype="float32"
    )
    row = replace(measurement("matmul", 1e9, unit="FLOP/s", **WORK), time_s=1.0, flops=4 * 10**9)
    result = result_of(row, environment=environment(rooflines=(limit,)))

    chart = charts(result)["roofline"]
    roof, points = chart.panels[0].series

    assert chart.panels[0].y.label == "speed (GFLOP/s)"
    assert (roof.limit, set(roof.y), points.y) == (True, {5.0}, (4.0,))
    assert chart.says == "1 row under the limits of arithmetic."
    (with_interval,) = [
        one
        for one in bench_charts(replace(result, measurements=(known(row),)))
        if one.id == chart.id
    ]
    assert "; the fastest is matmul float32 on cpu with 4.00 GFLOP/s." in with_interval.says


def transfers(*variants: str, sizes: int) -> BenchResult:
    return result_of(
        *(
            measurement("transfer", 1e9, device="gpu:0", variant=variant, shape=(4**n,))
            for variant in variants
            for n in reversed(range(8, 8 + sizes))
        )
    )


def test_transfers_are_a_curve_over_the_size_for_each_way() -> None:
    found = charts(transfers("to-gpu-pinned", "to-cpu-pinned", sizes=3))["transfer"]
    to_gpu, to_cpu = found.panels[0].series

    assert to_gpu.drawn is Drawn.LINE
    assert to_gpu.name != to_cpu.name
    assert to_gpu.x == to_cpu.x == (0.25, 1.0, 4.0)
    assert to_gpu.y == (1.0, 1.0, 1.0)


def test_two_sizes_of_a_transfer_are_no_curve() -> None:
    assert "transfer" not in charts(transfers("to-gpu-pinned", sizes=2))


def test_frameworks_stand_beside_our_own_code_as_shares_of_the_limit() -> None:
    use = FrameworkUse(name="pytorch", version="2", form="eager", python="python3")
    own = known(product(700.0, percent_of_peak=70.0))
    theirs = known(product(650.0, percent_of_peak=65.0, framework=use))
    guess = product(990.0, percent_of_peak=99.0, framework=replace(use, form="graph"))

    found = charts(result_of(own, theirs, guess))["frameworks"].panels[0]

    assert [(one.name, one.x) for one in found.series] == [
        ("gpucheck", (70.0,)),
        ("PyTorch eager", (65.0,)),
        ("limit", (100.0, 100.0)),
    ]
    assert "frameworks" not in charts(result_of(own))


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


def test_a_burn_shows_the_sensors_of_its_devices() -> None:
    device = BurnDevice(
        device="gpu:0",
        gpu_uuid="GPU-0",
        name="H100",
        corruption=Corruption(device="gpu:0", gpu_uuid=None),
        flops_per_s=5e13,
        telemetry=sensors(history=history()),
    )
    result = BurnResult(
        asked_s=1.0,
        duration_s=1.0,
        ended_by=BurnEnd.TIME,
        temperature_limit_c=None,
        devices=(device,),
        gates=(),
    )

    (found,) = burn_charts(result)

    assert found.id == "telemetry"
    assert list(burn_charts(replace(result, devices=()))) == []
