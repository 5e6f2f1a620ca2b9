"""The training kernels: their step against float64, towers against one tower, real files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpucheck.bench import training
from gpucheck.bench.gpu_training import CopiedTraining, GpuTraining, MultiGpuTraining
from gpucheck.bench.mnist import load_dataset
from gpucheck.bench.model import Scope
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.sampler import describe_deviation
from gpucheck.bench.training import (
    CpuTraining,
    TrainingPlan,
    expected_weights,
    reference_weights,
    step_work,
    verify_sums,
    verify_weights,
)
from tests.fakes.bench import FakeClock, FakeGpu, order

QUICK = BenchRequest(mode=BenchMode.QUICK)
ORDER = order((100,), request=QUICK)


def train(plan: TrainingPlan, steps: int) -> np.ndarray:
    """Return the weights after so many steps from zero."""
    case = CpuTraining(ORDER, plan, 1, "numpy")
    case.prepare()
    case.poison()
    case.run(steps)
    return case._weights.copy()


def test_a_step_is_the_reference_in_float32() -> None:
    dataset = load_dataset(ORDER, 100)

    found = train(TrainingPlan(kernel="train", batch=100), 30)

    expected = reference_weights(dataset, 100, 30)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize("towers", [2, 4, 5])
def test_towers_give_what_one_tower_gives_on_the_whole_batch(towers: int) -> None:
    one = train(TrainingPlan(kernel="towers", batch=200), 20)
    many = train(TrainingPlan(kernel="towers", batch=200, towers=towers), 20)

    np.testing.assert_allclose(many, one, atol=2e-6)


def test_training_learns_the_generated_classes() -> None:
    case = CpuTraining(ORDER, TrainingPlan(kernel="train", batch=100, trained=True), 1, "numpy")
    case.prepare()
    case.poison()
    case.run(1)

    assert case.check().ok
    assert 0.5 < case.facts["accuracy"] <= 1.0  # type: ignore[operator]
    assert case.facts["accuracy_steps"] == 1000
    assert case.facts["images"] == "generated"
    assert (case.facts["trained_images"], case.facts["tested_images"]) == (6400, 2000)
    assert case._training.steps_done == 1000
    # Once is enough; and where it was not asked for, it is not there.
    assert case.check().ok
    assert case._training.steps_done == 20
    plain = CpuTraining(ORDER, TrainingPlan(kernel="train", batch=100), 1, "numpy")
    plain.prepare()
    plain.poison()
    assert plain.check().ok
    memory_bytes = 4 * (100 * (785 + 20) + 2 * 7850)
    assert plain.facts == {"images": "generated", "memory_bytes": memory_bytes}


@pytest.mark.parametrize("rate", [0.1001, 0.05, -0.1])
def test_a_step_with_another_learning_rate_is_caught(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "RATE", rate)
    case = CpuTraining(ORDER, TrainingPlan(kernel="train", batch=100), 1, "numpy")
    case.prepare()
    case.poison()
    case.run(1)

    assert not case.check().ok


def test_weights_that_went_to_nan_in_the_timed_steps_are_caught() -> None:
    case = CpuTraining(ORDER, TrainingPlan(kernel="train", batch=100), 1, "numpy")
    case.prepare()
    case.poison()
    case.run(1)
    case._weights[3, 3] = np.nan

    found = case.check()

    assert not found.ok
    assert found.error is None


def test_the_merge_of_gpus_that_are_there_is_right_too() -> None:
    clock = FakeClock()
    gpus = [FakeGpu(clock, cuda_index=number) for number in range(3)]
    plan = TrainingPlan(kernel="towers", batch=300, towers=3)
    case = MultiGpuTraining(ORDER, plan, gpus, "3-towers")
    case.prepare()
    case.poison()
    case.run(3)

    assert case.check().ok
    assert case.facts["simulated"] == "no"
    # Only neighbours reach each other directly, here as with bridges of two.
    assert case.facts["route"] == "through the host"
    case.release()
    assert all(gpu.released for gpu in gpus)


def test_gradients_go_directly_where_each_gpu_and_the_first_reach_each_other() -> None:
    gpus = [FakeGpu(FakeClock(), cuda_index=number) for number in range(2)]
    asked = []
    for gpu in gpus:
        reaches = gpu.reaches
        gpu.reaches = lambda peer, own=gpu, reaches=reaches: (  # type: ignore[method-assign]
            asked.append((own.facts.cuda_index, peer.facts.cuda_index)) or reaches(peer)
        )
    case = MultiGpuTraining(
        ORDER, TrainingPlan(kernel="towers", batch=200, towers=2), gpus, "2-towers"
    )

    case.prepare()

    assert case.facts["route"] == "direct"
    assert asked == [(0, 1), (1, 0)]


def test_a_merge_that_forgets_a_tower_is_caught() -> None:
    clock = FakeClock()
    gpus = [FakeGpu(clock, cuda_index=number) for number in range(2)]
    case = MultiGpuTraining(
        ORDER, TrainingPlan(kernel="towers", batch=200, towers=2), gpus, "2-towers"
    )
    case.prepare()
    case.poison()
    case._plan = replace(case._plan, towers=1)  # what it merges

    case.run(1)

    assert not case.check().ok


def test_towers_on_one_gpu_are_simulated_and_say_so() -> None:
    case = GpuTraining(
        ORDER, TrainingPlan(kernel="towers", batch=200, towers=2), FakeGpu(FakeClock()), "2-towers"
    )
    case.prepare()
    case.poison()
    case.run(2)

    assert case.check().ok
    assert case.facts["simulated"] == "yes"
    assert case.label.shape == (100,)
    assert case.label.parameters == {"towers": 2}


@pytest.mark.parametrize("towers", [1, 2])
@pytest.mark.parametrize("fused", [True, False])
def test_steps_as_a_graph_and_as_launches_train_the_same(towers: int, fused: bool) -> None:
    gpu = FakeGpu(FakeClock())
    plan = TrainingPlan(kernel="towers", batch=200, towers=towers)
    case = GpuTraining(ORDER, plan, gpu, "steps", fused=fused)
    case.prepare()
    case.poison()
    batches = len(case._towers[0].batches[0])
    for _ in range(4):
        case.run(batches // 2)

    assert case.check().ok
    # Two places in the data from which half of it is walked through.
    assert gpu.captured == (2 if fused else 0)
    assert case.facts["launched_as"] == ("graph" if fused else "stream")


def test_a_graph_goes_on_where_the_last_one_ended() -> None:
    gpu = FakeGpu(FakeClock())
    plan = TrainingPlan(kernel="train", batch=100)
    one, other = (GpuTraining(ORDER, plan, gpu, "steps", fused=fused) for fused in (True, False))
    for case in (one, other):
        case.prepare()
        case.poison()
        for loops in (1, 7, 7, 7, 100):
            case.run(loops)

    weights = [gpu.download(case._towers[0].weights) for case in (one, other)]

    np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-7)


def test_a_batch_sent_for_each_step_trains_the_same_and_counts_its_way() -> None:
    clock = FakeClock()
    given = replace(ORDER, clock=clock)
    case = CopiedTraining(given, TrainingPlan(kernel="train", batch=100), FakeGpu(clock), "copied")
    case.prepare()
    case.poison()

    seconds = case.run(3)

    assert case.check().ok
    assert case.label.scope is Scope.END_TO_END
    assert seconds > 0
    assert len(case._towers[0].batches[0]) == 1


def test_work_counts_two_products_and_every_image() -> None:
    work = step_work(100)

    assert work.flops == 2 * 2 * 100 * 785 * 10
    assert work.bytes_moved == 4 * (2 * 100 * 785 + 3 * 785 * 10)
    assert work.amount == 100
    assert work.unit == "image/s"


def test_one_wrong_weight_is_noticed_in_what_the_checked_and_the_timed_steps_left() -> None:
    dataset = load_dataset(ORDER, 100)
    expected = expected_weights(ORDER, dataset, 100)
    typical = float(np.sqrt(np.mean(np.square(expected))))
    found = expected.astype(np.float32)
    assert verify_weights(found, expected).ok
    assert verify_sums(found, 20).ok

    found[300, 4] += np.float32(0.01 * typical)

    assert not verify_weights(found, expected).ok
    assert not verify_sums(found, 20).ok
    # A quarter of the typical weight still shows after a hundred thousand steps.
    found[300, 4] += np.float32(0.25 * typical)
    assert not verify_sums(found, int(0.2 * typical / 1e-7)).ok
    found[0, 0] = np.nan
    assert not verify_sums(found, 20).ok


def test_a_weight_that_goes_wrong_in_a_timed_step_fails_the_row() -> None:
    case = CpuTraining(ORDER, TrainingPlan(kernel="train", batch=100), 1, "numpy")
    case.prepare()
    case.poison()
    case.run(50)
    good = case.check()
    assert good.ok
    assert good.reference == "float64 after a few steps from zero"
    case.poison()
    case.run(50)
    case._weights[300, 4] += np.float32(0.05)
    case.run(50)

    found = case.check()

    assert not found.ok
    assert describe_deviation(found).startswith(
        "its deviation from the zero sum that every step preserves is "
    )


def test_a_weight_that_goes_wrong_in_a_step_for_the_accuracy_fails_the_row() -> None:
    class Broken(CpuTraining):
        def step(self) -> None:
            super().step()
            if self._training.steps_done == 500:
                self._weights[300, 4] += np.float32(0.05)

    case = Broken(ORDER, TrainingPlan(kernel="train", batch=100, trained=True), 1, "numpy")
    case.prepare()
    case.poison()

    assert not case.check().ok


@pytest.mark.parametrize(("step_s", "counted"), [(0.019, True), (0.021, False)])
def test_the_accuracy_is_left_out_where_it_would_take_the_time_of_other_rows(
    step_s: float, counted: bool
) -> None:
    clock = FakeClock()

    class Slow(CpuTraining):
        def step(self) -> None:
            super().step()
            clock.seconds += step_s

    plan = TrainingPlan(kernel="train", batch=100, trained=True)
    case = Slow(replace(ORDER, clock=clock), plan, 1, "numpy")
    case.prepare()
    case.poison()

    assert case.check().ok

    assert ("accuracy" in case.facts) is counted
    if not counted:
        assert case.facts["accuracy_unavailable"] == "1000 steps would take 21.0 s"
        assert case._training.steps_done == 20


def test_rounding_of_large_weights_is_no_wrong_step() -> None:
    # Several towers' steps may not converge: thousands of them leave weights of hundreds.
    weights = np.array([[420.0, -419.98], [1.0, -1.0]], dtype=np.float32)

    assert verify_sums(weights, 5800).ok
    assert not verify_sums(weights, 20).ok
    for broken in (np.nan, np.inf):
        assert not verify_sums(np.array([[broken, 1.0]], dtype=np.float32), 5800).ok


@pytest.mark.parametrize(("towers", "said"), [(1, None), (2, 2), (4, 4)])
def test_several_towers_are_counted_in_the_facts(towers: int, said: int | None) -> None:
    case = CpuTraining(ORDER, TrainingPlan(kernel="towers", batch=200, towers=towers), 1, "numpy")
    case.prepare()

    assert case.facts.get("towers") == said
    assert case.facts.get("simulated") == (None if said is None else "yes")


def test_weights_are_set_to_zero_between_steps_and_not_during_one() -> None:
    calls: list[str] = []

    class Recording(FakeGpu):
        def synchronize(self) -> None:
            calls.append("synchronize")

        def send(self, host: Any, array: Any) -> None:
            calls.append("send")
            super().send(host, array)

    plan = TrainingPlan(kernel="train", batch=100)
    case = GpuTraining(ORDER, plan, Recording(FakeClock()), "gpu")
    case.prepare()
    calls.clear()

    case.poison()

    assert calls == ["synchronize", "send", "synchronize"]


# -------------------------------------------------------------------------------- the order


class NotingGpu(FakeGpu):
    """A GPU that notes each launch with its threads, and each copy and each wait, in one list."""

    def __init__(self, clock: FakeClock, notes: list[tuple[Any, ...]], cuda_index: int = 0) -> None:
        super().__init__(clock, cuda_index=cuda_index)
        self._notes, self._number = notes, cuda_index

    def compile(self, source: str, name: str, *_: Any) -> Any:
        launch = super().compile(source, name)

        def noted(grid: int, block: int, arguments: tuple[Any, ...]) -> None:
            self._notes.append((self._number, name, grid, block))
            launch(grid, block, arguments)

        return noted

    def multiply(self, *arguments: Any) -> None:
        self._notes.append((self._number, "multiply"))
        super().multiply(*arguments)

    def copy_from(self, peer: Any, source: Any, out: Any) -> None:
        self._notes.append((self._number, "copy_from", peer.facts.cuda_index))
        super().copy_from(peer, source, out)

    def synchronize(self) -> None:
        self._notes.append((self._number, "synchronize"))
        super().synchronize()


def noting(count: int) -> tuple[list[NotingGpu], list[tuple[Any, ...]]]:
    clock, notes = FakeClock(), list[tuple[Any, ...]]()
    return [NotingGpu(clock, notes, number) for number in range(count)], notes


def test_gpus_wait_for_each_other_before_a_copy_and_at_the_end_of_a_step() -> None:
    gpus, notes = noting(3)
    plan = TrainingPlan(kernel="towers", batch=303, towers=3)
    case = MultiGpuTraining(ORDER, plan, gpus, "3-towers", fused=True)
    case.prepare()
    case.poison()
    notes.clear()

    case.step()

    # 101 images take 101 warps of 32 lanes in blocks of 128; 785 inputs one warp each of 512 / 32;
    # 7850 weights a thread each in blocks of 128.
    gradients = [(n, *launch) for n in range(3) for launch in (
        ("forward", 26, 128), ("project", 25, 512))]  # fmt: skip
    assert notes == [
        *gradients,
        (1, "synchronize"), (0, "copy_from", 1),
        (2, "synchronize"), (0, "copy_from", 2),
        (0, "merge", 62, 128), (0, "synchronize"),
        (1, "copy_from", 0), (2, "copy_from", 0),
        (1, "synchronize"), (2, "synchronize"),
    ]  # fmt: skip


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_is_two_launches_or_two_products_and_one_launch(fused: bool) -> None:
    (gpu,), notes = noting(1)
    case = GpuTraining(ORDER, TrainingPlan(kernel="train", batch=129), gpu, "steps", fused=fused)
    case.prepare()
    case.poison()
    notes.clear()

    case.step()

    assert notes == (
        [(0, "forward", 33, 128), (0, "project", 25, 512)] if fused
        else [(0, "multiply"), (0, "gradient", 2, 128), (0, "multiply")]
    )  # fmt: skip
    assert case.loop_step == (len(case._towers[0].batches[0]) if fused else 1)


def test_poison_leaves_no_result_of_an_earlier_step_and_release_no_graph() -> None:
    (gpu,), notes = noting(1)
    case = GpuTraining(ORDER, TrainingPlan(kernel="train", batch=100), gpu, "steps", fused=True)
    for captured in (1, 2):
        case.prepare()
        case.poison()
        (tower,) = case._towers
        for array in (tower.gradients, tower.errors):
            assert np.isnan(gpu.download(array)).all()
        assert not gpu.download(tower.weights).any()
        assert (0, "synchronize") in notes
        case.run(3)
        case.run(len(tower.batches[0]) - 3)
        case.run(3)
        # The same steps are replayed; released, they are captured anew.
        assert gpu.captured == 2 * captured
        case.release()
    assert case.facts["gpu_memory_used_bytes"] == gpu.memory_used_bytes()


def test_the_memory_of_a_step() -> None:
    # Images, targets and logits of three, weights and gradient, four bytes each.
    assert training.step_memory_bytes(3) == 4 * (3 * 785 + 2 * 3 * 10 + 2 * 785 * 10)
