"""GPU cases: the rotation of their buffers, captured batches, and what a check looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gpucheck.bench.case import CaseLabel, Work
from gpucheck.bench.gpu_case import (
    EndToEndCase,
    GpuOperation,
    GpuTimer,
    ResidentCase,
    pinned_bytes,
    set_count,
)
from gpucheck.bench.model import Scope, Verified
from gpucheck.drivers.gpu import GpuArray, Span
from tests.fakes.bench import RIGHT, WRONG, FakeArray, FakeClock, FakeGpu, label

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

L2 = 2**20
OPERATION_S = 1e-4


class Copying(GpuOperation):
    """Copies its input; writes down the output of each operation, and skips those of `skipped`."""

    work = Work(flops=0, bytes_moved=L2, unit="B/s")
    output_shape = (4,)

    def __init__(self, gpu: FakeGpu, *, captured: bool = False) -> None:
        self._gpu = gpu
        self.captured = captured
        self.label: CaseLabel = label("gpu:0")
        self.outputs: list[GpuArray] = []
        self.skipped: list[GpuArray] = []
        self.compiled = 0
        self.verified = 0

    def inputs(self) -> Sequence[HostArray]:
        return [np.arange(4, dtype="float32")]

    def compile(self) -> None:
        self.compiled += 1

    def enqueue(self, inputs: Sequence[GpuArray], out: GpuArray) -> None:
        assert self.compiled
        self.outputs.append(out)
        if not any(out is one for one in self.skipped):
            self._gpu.copy(inputs[0], out)

    def verify(self, out: HostArray) -> Verified:
        self.verified += 1
        return RIGHT if np.array_equal(out, self.inputs()[0]) else WRONG


def resident(*, captured: bool = False) -> tuple[ResidentCase, Copying, FakeGpu]:
    """Return a prepared case with three sets of buffers."""
    gpu = FakeGpu(FakeClock(), l2_bytes=L2, operation_s=OPERATION_S)
    operation = Copying(gpu, captured=captured)
    case = ResidentCase(gpu, operation)
    case.prepare()
    return case, operation, gpu


def turns(case: ResidentCase, operation: Copying) -> list[int]:
    """Return the numbers of the sets that were worked on, in order."""
    outputs = [out for _, out in case._sets]
    return [next(at for at, one in enumerate(outputs) if one is out) for out in operation.outputs]


@pytest.mark.parametrize(
    ("set_bytes", "l2_bytes", "free_bytes", "count"),
    [
        (L2, L2, 2**33, 3),
        (3 * L2, L2, 2**33, 1),
        (3 * L2 - 1, L2, 2**33, 2),
        (L2, L2, 4 * L2, 2),  # half of the free memory
        (L2, L2, L2, 1),
        (1, L2, 2**33, 256),
        (0, L2, 2**33, 256),
        (L2, 0, 2**33, 1),
    ],
)
def test_so_many_sets_that_the_l2_forgets_each_if_the_memory_allows_it(
    set_bytes: int, l2_bytes: int, free_bytes: int, count: int
) -> None:
    gpu = FakeGpu(FakeClock(), l2_bytes=l2_bytes, memory_free_bytes=free_bytes)

    assert set_count(set_bytes, gpu.facts) == count


@pytest.mark.parametrize(
    ("size", "taken"), [(0, 512), (1, 512), (512, 512), (513, 1024), (1024, 1024), (1025, 2048)]
)
def test_page_locked_memory_comes_in_powers_of_two(size: int, taken: int) -> None:
    assert pinned_bytes(size) == taken


def test_batches_go_on_where_the_last_one_ended() -> None:
    case, operation, _ = resident()

    assert case.run(2) == pytest.approx(2 * OPERATION_S)
    assert case.run(5) == pytest.approx(5 * OPERATION_S)

    assert turns(case, operation) == [1, 2, 0, 1, 2, 0, 1]
    assert (case.loop_step, case.facts) == (1, {"launched_as": "stream"})
    assert case.sm_clock_mhz == 1500.0
    assert case.walked_and_cache_bytes == (3 * L2, L2)
    # Each turn reads other memory too.
    read = [array for inputs, _ in case._sets for array in inputs]
    assert len({id(array) for array in read}) == 3


def test_a_batch_is_captured_once_and_replayed() -> None:
    case, operation, gpu = resident(captured=True)

    seconds = [case.run(3), case.run(3), case.run(6)]

    assert seconds == pytest.approx([3 * OPERATION_S, 3 * OPERATION_S, 6 * OPERATION_S])
    assert gpu.captured == 2
    assert turns(case, operation) == [1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert (case.loop_step, case.facts) == (3, {"launched_as": "graph"})


def test_the_first_check_looks_at_every_set_and_later_ones_at_the_last() -> None:
    case, operation, _ = resident()
    case.run(1)

    assert case.check().ok
    assert operation.verified == 1 + 3
    assert case.check().ok
    assert operation.verified == 1 + 3 + 1


def test_a_single_set_is_checked_once() -> None:
    gpu = FakeGpu(FakeClock(), l2_bytes=L2 // 4)
    operation = Copying(gpu)
    case = ResidentCase(gpu, operation)
    case.prepare()
    case.run(1)

    assert case.check().ok
    assert (operation.verified, turns(case, operation)) == (1, [0])


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_set_that_is_skipped_keeps_its_nan_and_fails_the_check(number: int) -> None:
    case, operation, _ = resident()
    case.run(3)
    operation.skipped.append(case._sets[number][1])

    assert not case.check().ok


def test_a_wrong_last_output_fails_at_once() -> None:
    case, operation, _ = resident()
    case.run(1)
    case.poison()

    assert not case.check().ok
    assert operation.verified == 1
    assert turns(case, operation) == [1]


def test_a_case_gives_everything_back() -> None:
    case, _, gpu = resident(captured=True)
    case.run(3)
    case.release()
    case.prepare()
    case.run(3)

    assert (gpu.released, gpu.captured, len(case._sets)) == (1, 2, 3)


def test_the_share_of_spans_in_which_the_gpu_waited() -> None:
    starved = iter([True, False, False, True])

    class Waiting(FakeGpu):
        def span(self, enqueue: Callable[[], None], *, held: bool = True) -> Span:
            return Span(seconds=1.0, starved=next(starved), sm_clock_mhz=None)

    gpu = Waiting(FakeClock())
    timer = GpuTimer(gpu)
    case = ResidentCase(gpu, Copying(gpu))
    case.prepare()

    assert timer.starved_share == case.starved_share == 0.0
    shares = [(timer.seconds(lambda: None), timer.starved_share)[1] for _ in range(3)]
    assert shares == pytest.approx([1.0, 1 / 2, 1 / 3])
    case.run(1)
    assert case.starved_share == 1.0


def test_a_whole_trip_is_timed_until_the_output_has_arrived() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock, operation_s=OPERATION_S)
    operation = Copying(gpu)
    case = EndToEndCase(gpu, operation, clock)
    case.prepare()
    case.poison()
    assert not case.check().ok

    # The pretended GPU takes one operation to send and two to fetch.
    assert case.run(5) == pytest.approx(5 * 3 * OPERATION_S)

    assert case.check().ok
    assert case.label.scope is Scope.END_TO_END
    assert (case.walked_and_cache_bytes, case.facts, len(operation.outputs)) == (None, {}, 5)
    case.release()
    assert gpu.released == 1
    assert (case._host, case._device, case._host_out, case._device_out) == ([], [], None, None)


def test_an_output_in_gpu_memory_that_did_not_arrive_is_wrong() -> None:
    clock = FakeClock()
    gpu = FakeGpu(clock)
    case = EndToEndCase(gpu, Copying(gpu), clock)
    case.prepare()
    case.run(1)
    case.poison()

    assert not case.check().ok
    assert isinstance(case._device_out, FakeArray)
    assert np.isnan(case._device_out.values).all()
