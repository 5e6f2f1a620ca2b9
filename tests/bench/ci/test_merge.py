"""Several processes' documents as one: rows of the right process, sensors of all."""

from __future__ import annotations

from gpucheck.bench.ci.model import ProcessRun
from gpucheck.bench.ci.run import merged
from gpucheck.bench.corruption_model import Corruption
from gpucheck.bench.model import Extent
from gpucheck.report.envelope import Failure
from tests.fakes.bench_runs import runs_of


def test_nothing_makes_nothing() -> None:
    lost = ProcessRun(device="gpu:0", number=0, failure=Failure(code="x", message="x"))

    assert merged([]) is None
    assert merged([lost]) is None


def test_the_rows_are_those_of_each_devices_first_process() -> None:
    found = merged(runs_of({"gpu:0": [1e14, 2e14], "gpu:1": [3e14, 4e14]}))

    assert found is not None
    speeds = [row.throughput.value for row in found.measurements if row.throughput]
    assert speeds == [1e14, 3e14]
    assert [gpu.cuda_index for gpu in found.environment.gpus] == [0, 1]


def test_rows_under_load_win_over_those_alone() -> None:
    alone = runs_of({"gpu:0": [9e14]}, together=False)
    at_once = runs_of({"gpu:0": [7e14]})
    found = merged((*alone, *at_once))

    assert found is not None
    assert [row.throughput.value for row in found.measurements if row.throughput] == [7e14]


def test_a_device_whose_first_process_died_is_shown_by_the_next() -> None:
    lost = ProcessRun(device="gpu:0", number=0, together=True)
    found = merged((lost, *runs_of({"gpu:0": [1e14, 2e14]})))

    assert found is not None
    assert len(found.measurements) == 1


def test_the_sensors_of_all_processes_are_joined() -> None:
    first = runs_of(
        {"gpu:0": [1e14]},
        sensors={
            "temperature_c": Extent(low=40, median=60, high=70),
            "limited_s": {"power-cap": 1.0},
            "new_errors": {"ecc_corrected": 1},
            "reasons": {"power-cap": 1.0},
            "energy_j": 100.0,
        },
    )
    second = runs_of(
        {"gpu:0": [1e14]},
        sensors={
            "temperature_c": Extent(low=50, median=80, high=90),
            "limited_s": {"power-cap": 2.0, "software-thermal": 0.5},
            "new_errors": {"ecc_corrected": 2},
            "energy_j": 50.0,
        },
    )
    found = merged((*first, *second))

    assert found is not None
    assert found.telemetry is not None
    (gpu,) = found.telemetry.gpus
    assert gpu.temperature_c == Extent(low=40, median=80, high=90)
    assert gpu.limited_s == {"power-cap": 3.0, "software-thermal": 0.5}
    assert gpu.new_errors == {"ecc_corrected": 3}
    assert gpu.reasons == {"power-cap": 1.0}
    assert (gpu.energy_j, gpu.reading_count) == (150.0, 400)


def test_every_processes_products_are_kept() -> None:
    check = Corruption(device="gpu:0", gpu_uuid=None, products=5)
    found = merged(runs_of({"gpu:0": [1e14, 1e14]}, corruption=(check,)))

    assert found is not None
    assert len(found.corruption) == 2


def test_the_times_add_up() -> None:
    found = merged(runs_of({"gpu:0": [1e14, 1e14]}))

    assert found is not None
    assert found.environment.duration_s == 25.0
