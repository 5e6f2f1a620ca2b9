"""Limits of a profile on a board, and the units that they are in."""

from __future__ import annotations

import pytest

from gpucheck.bench.ci.gates import judge
from gpucheck.bench.ci.limits import base_unit, explain, limit_on, peak_of
from gpucheck.bench.ci.profile_model import Metric, Profile
from gpucheck.bench.ci.profiles import load_profile
from gpucheck.bench.ci.run_data import RunData
from gpucheck.drivers.gpu import Board
from gpucheck.report.errors import WrongUseError
from tests.bench.ci.test_profile_lint import GOOD
from tests.fakes.bench_results import H100, product_runs
from tests.fakes.gates import node, profile_of


def profile(text: str = GOOD) -> Profile:
    return profile_of(text)


def test_a_value_is_written_out_with_its_factor_and_its_share_of_the_peak() -> None:
    limit = limit_on(profile().checks[0], H100)

    assert limit is not None
    assert limit.sentence == ("739 TFLOP/s = 795 x 0.93 = 74.7 % of peak (989 TFLOP/s, datasheet)")
    assert limit.limit == pytest.approx(739.35)


def test_a_share_is_written_out() -> None:
    limit = limit_on(profile().checks[1], H100)

    assert limit is not None
    assert limit.sentence == "2546 GB/s = 80 % of 3350 (datasheet) x 0.95 = 76.0 % of peak"


def test_a_baseline_has_no_number_yet() -> None:
    limit = limit_on(profile().checks[2], None)

    assert limit is not None
    assert limit.limit is None
    assert limit.sentence == "at least 0.95 x the baseline (--baseline FILE)"


def test_a_shorter_time_is_better() -> None:
    text = GOOD.replace("baseline = true", 'metric = "time"\nbaseline = true')

    limit = limit_on(profile(text).checks[2], None)

    assert limit is not None
    assert limit.sentence.startswith("at most 1.05 x")


def test_of_a_range_the_lower_end_counts() -> None:
    unknown = Board(
        name="new",
        source="computed",
        flops_per_s={"bfloat16": 100e12},
        high_flops_per_s={"bfloat16": 200e12},
    )

    assert peak_of(profile().checks[0], unknown) == 100


def test_every_demand_is_explained() -> None:
    told = {limit.id: limit.sentence for limit in explain(profile(), None)}

    assert told["inventory-memory"] == "at least 79 GiB"
    assert told["inventory-ecc"] == "must be on"
    assert told["match-mig"] == "must be off"
    assert told["throttle-hardware-thermal"] == "at most 0 s"
    assert told["straggler"] == (
        "at most 5 % below the median of the others, or as far as healthy GPUs differ"
    )
    assert told["match-board"] == "PCI device id 2330, named NVIDIA H100*"
    assert told["match-count"] == "exactly 8"
    assert told["match-driver"] == "535 or newer"
    assert told["inventory-pcie-generation"] == "at least generation 5 under load"
    # As the gates are named, so that a verdict can be looked up; wrong results always fail.
    text = GOOD.replace("[inventory]", "[inventory]\npersistence_mode = true\npcie_full = true")
    whole = profile(text)
    runs = [run for at in range(8) for run in product_runs((700.0,) * 3, f"gpu:{at}")]
    gates = {one.id for one in judge(RunData(profile=whole, node=node(8), runs=runs))}
    own = {check.id for check in whole.checks}
    explained = {limit.id for limit in explain(whole, None)} - own
    spreads = {name for name in gates if name.endswith("-spread")}
    assert explained - {"spread"} == gates - own - spreads - {"processes", "results"}
    assert ("spread" in explained) is bool(spreads)


def test_a_board_is_chosen_by_a_part_of_its_name() -> None:
    boards = {limit.board for limit in explain(load_profile("default"), "a100 sxm")}

    assert boards - {None} == {"A100 SXM 40 GB", "A100 SXM 80 GB"}


def test_an_unknown_board_is_refused_with_the_known_ones() -> None:
    with pytest.raises(WrongUseError, match="no board called") as caught:
        explain(load_profile("default"), "H900")

    assert "H100 SXM" in caught.value.remedy[0]


@pytest.mark.parametrize(
    ("metric", "kernel", "unit"),
    [
        (Metric.TIME, "matmul", "s"),
        (Metric.TIME, "no-such-kernel", "s"),
        (Metric.FACT, "matmul", None),
        (Metric.THROUGHPUT, "matmul", "FLOP/s"),
        (Metric.THROUGHPUT, "copy", "B/s"),
        (Metric.THROUGHPUT, "no-such-kernel", None),
    ],
)
def test_base_unit(metric: Metric, kernel: str, unit: str | None) -> None:
    assert base_unit(metric, kernel, "float32") == unit
