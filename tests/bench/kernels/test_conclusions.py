"""Conclusions from the rows of a kernel: launch overhead, knee, scaling of towers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.kernels.batch import Batch, batch_sizes
from gpucheck.bench.kernels.launch import Launch
from gpucheck.bench.kernels.towers import Towers
from gpucheck.bench.kernels.train import Train
from gpucheck.bench.model import Measurement, Scope, Throughput
from gpucheck.bench.request_model import BenchMode
from tests.fakes.bench import FLOAT32, RIGHT


def row(kernel: str, variant: str, images_per_s: float, device: str = "cpu") -> Measurement:
    return Measurement(
        kernel=kernel,
        variant=variant,
        device=device,
        gpu_uuid=None,
        dtype=FLOAT32,
        shape=(1,),
        scope=Scope.RESIDENT,
        time_s=1 / images_per_s,
        throughput=Throughput(value=images_per_s, unit="image/s"),
        verified=RIGHT,
    )


def test_the_knee_is_the_smallest_batch_near_the_best() -> None:
    speeds = {1: 10.0, 8: 70.0, 64: 93.0, 512: 100.0, 4096: 95.0}
    rows = [replace(row("batch", "numpy", speed), shape=(size,)) for size, speed in speeds.items()]

    (found,) = Batch().conclude(rows)

    assert found.code == "knee"
    assert found.facts["batch"] == 64
    assert "93 % of the best" in found.sentence


def test_a_curve_that_still_grows_has_no_knee_and_says_so() -> None:
    rows = [replace(row("batch", "numpy", float(size)), shape=(size,)) for size in (1, 8, 64)]

    (found,) = Batch().conclude(rows)

    assert "still grows at batch 64" in found.sentence
    assert Batch().conclude(rows[:1]) == []


def test_batches_grow_to_the_largest_whatever_it_is() -> None:
    assert batch_sizes(4096, BenchMode.QUICK) == [1, 16, 256, 4096]
    assert batch_sizes(100, BenchMode.DEFAULT) == [1, 8, 64, 100]
    assert batch_sizes(1, BenchMode.FULL) == [1]


def test_launching_costs_what_a_graph_saves() -> None:
    rows = [row("launch", "stream", 2e5, "gpu:0"), row("launch", "graph", 5e5, "gpu:0")]

    (found,) = Launch().conclude(rows)

    assert found.facts["overhead_s"] == pytest.approx(3e-6)
    assert "3.0 us" in found.sentence
    assert Launch().conclude(rows[:1]) == []


def tower(device: str, towers: int, speed: float, simulated: str = "no") -> Measurement:
    found = row("towers", f"{towers}-towers", speed, device)
    facts = {"simulated": simulated} if towers > 1 else {}
    return replace(found, parameters={"towers": towers}, facts=facts)


def test_towers_at_once_are_held_against_the_sum_of_each_alone() -> None:
    rows = [tower("gpu:0", 1, 100.0), tower("gpu:1", 1, 80.0), tower("gpu:0", 2, 150.0)]

    (found,) = Towers().conclude(rows)

    assert found.facts["efficiency"] == pytest.approx(150 / 180)
    assert "the rest is no measure of the machine; the slowest alone is gpu:1" in found.sentence
    # Without the second GPU's own figure, two would seem to reach 150 %.
    assert Towers().conclude([rows[0], rows[2]]) == []
    with_cpu = [tower("cpu", 1, 9.0), tower("cpu", 2, 8.1, "yes"), *rows]
    efficiencies = [one.facts["efficiency"] for one in Towers().conclude(with_cpu)]
    assert efficiencies == pytest.approx([0.9, 150 / 180])


def test_simulated_towers_show_the_price_of_merging_and_no_scaling() -> None:
    rows = [tower("cpu", 1, 100.0), tower("cpu", 2, 93.0, "yes")]

    (found,) = Towers().conclude(rows)

    assert found.facts["efficiency"] == pytest.approx(0.93)
    assert "simulated" in found.sentence
    assert Towers().conclude(rows[1:]) == []


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("generated", "6400 generated images (--data takes MNIST)"),
        ("file", "6400 images from the file"),
    ],
)
def test_training_says_what_was_learnt_and_from_which_images(source: str, said: str) -> None:
    facts: dict[str, str | int | float] = {
        "accuracy": 0.918,
        "accuracy_steps": 1000,
        "images": source,
        "trained_images": 6400,
        "tested_images": 2000,
    }
    rows = [replace(row("train", variant, 1e5), facts=facts) for variant in ("numpy", "other")]

    (found,) = Train().conclude(rows)

    assert found.sentence == (f"cpu: 91.8% accuracy on 2000 test images after 1000 steps on {said}")
    assert Train().conclude([row("train", "numpy", 1e5)]) == []
