from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpucheck.bench.case import Case, CaseOrder, Kernel, Work
from gpucheck.bench.environment import (
    WSL_NOTE,
    HostShare,
    RunEnvironment,
    parallel_efficiency,
)
from gpucheck.bench.frameworks import Framework, Frameworks
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.model import BenchResult, Conclusion, Fact, Measurement, Roofline, Scope
from gpucheck.bench.request_model import BenchMode, BenchRequest, SampleDetail
from gpucheck.bench.run import Bench, alternating
from gpucheck.bench.sampler import CaseState
from gpucheck.drivers.gpu import GpuDevice, OpenedGpus
from gpucheck.drivers.host.cpu import CpuLoad
from gpucheck.drivers.nvml.sensors import Sample, SensorBatch
from gpucheck.drivers.readings import GpuReading
from gpucheck.report.errors import InconclusiveError, MissingError, WrongUseError
from tests.fakes.bench import (
    FakeBlas,
    FakeCase,
    FakeClock,
    FakeCpu,
    FakeGpu,
    ScriptedSensors,
    label,
)
from tests.fakes.probes import HERE, ON_WSL2
from tests.report.formats.recorded import in_lines, recorded

if TYPE_CHECKING:
    from gpucheck.drivers.python.framework_bench import FrameworkProcess

#: Without `copy`, whose arrays would be large ones.
PLAIN: dict[str, Kernel] = {name: KERNELS[name] for name in ("matmul", "softmax")}
NO_GPU = OpenedGpus(unavailable="CuPy is not installed, so no GPU can be measured")


@dataclass
class FakeKernel(Kernel):
    """A kernel whose cases are scripted."""

    clock: FakeClock
    id: str = "fake"
    step: float | BaseException = 0.02
    gpus_needed: int = 0
    sizes = MappingProxyType(dict.fromkeys(BenchMode, 8))

    def validate(self, request: BenchRequest) -> None:
        assert request.seed >= 0

    def shape(self, size: int) -> tuple[int, ...]:
        return (size,)

    def work(self, shape: tuple[int, ...], dtype: str) -> Work:
        return Work(flops=shape[0], bytes_moved=shape[0], unit="FLOP/s")

    def host_bytes(self, shape: tuple[int, ...], dtype: str, gpu_count: int) -> int:
        return shape[0] * (1 + gpu_count)

    def device_bytes(self, shape: tuple[int, ...], dtype: str) -> int:
        return shape[0]

    def conclude(self, rows: Sequence[Measurement]) -> Sequence[Conclusion]:
        return [
            Conclusion(kernel=self.id, device=row.device, code="counted", sentence="one row")
            for row in rows
        ]

    def cpu_cases(self, order: CaseOrder) -> list[Case]:
        named = replace(label(), kernel=self.id)
        return [FakeCase(itertools.repeat(self.step), self.clock, label=named)]


def run(
    request: BenchRequest,
    *,
    clock: FakeClock | None = None,
    gpus: OpenedGpus = NO_GPU,
    cpu: FakeCpu | None = None,
    kernels: Mapping[str, Kernel] = KERNELS,
    run_environment: RunEnvironment | None = None,
) -> tuple[BenchResult, list[tuple[str, float, float]]]:
    told: list[tuple[str, float, float]] = []
    result = Bench(
        request=request,
        clock=clock or FakeClock(),
        cpu=cpu or FakeCpu(),
        blas=FakeBlas(),
        gpus=gpus,
        kernels=kernels,
        run_environment=run_environment or RunEnvironment(),
    ).run(progress=lambda *news: told.append(news))
    return result, told


def run_softmax(clock: FakeClock, found: RunEnvironment, **changes: Any) -> BenchResult:
    """Return a small softmax in one format on a GPU."""
    one: dict[str, Any] = {"kernels": ("softmax",), "dtypes": ("float32",), "devices": ("gpu",)}
    request = BenchRequest(**one | {"size": 64, "mode": BenchMode.FULL, "budget_s": 2.0} | changes)
    gpus = OpenedGpus(devices=[FakeGpu(clock)])
    return run(request, clock=clock, gpus=gpus, kernels=PLAIN, run_environment=found)[0]


def test_rows_facts_and_progress_of_a_scripted_run() -> None:
    clock = FakeClock()

    result, told = run(BenchRequest(seed=3), clock=clock, kernels={"fake": FakeKernel(clock)})

    (row,) = result.measurements
    assert row.converged
    assert row.id == "fake/scripted/-/-/float32/8/resident"
    assert row.framework is None
    assert row.time_s == pytest.approx(0.02)
    assert row.throughput is not None
    assert row.throughput.value == pytest.approx(100 / 0.02)
    assert row.summary is not None
    assert row.summary.count == len(row.samples_s)
    assert "percent_of_peak" in row.unavailable
    assert result.environment.seed == 3
    assert result.environment.gpu_unavailable == NO_GPU.unavailable
    assert result.environment.unavailable["cupy_version"] == NO_GPU.unavailable
    assert [fraction for _, fraction, _ in told] == sorted(fraction for _, fraction, _ in told)
    assert all(0 <= fraction <= 1 and left >= 0 for _, fraction, left in told)


@pytest.mark.parametrize("memory_bytes", [2**34, None])
def test_each_round_has_inputs_of_its_own(memory_bytes: int | None) -> None:
    clock = FakeClock()
    seen: list[object] = []

    class Drawing(FakeKernel):
        def cpu_cases(self, order: CaseOrder) -> list[Case]:
            def draw() -> None:
                seen.append(order.data.normal("input", (9, 9)))

            steps = itertools.repeat(0.02)
            return [FakeCase(steps, self.clock, label=label(), prepare=draw)]

    cpu = FakeCpu(memory_available_bytes=memory_bytes)
    result, _ = run(BenchRequest(), clock=clock, cpu=cpu, kernels={"fake": Drawing(clock)})

    (row,) = result.measurements
    assert len(row.round_sizes) == len(seen) == len({id(array) for array in seen})
    assert sum(row.round_sizes) == len(row.samples_s)


@pytest.mark.parametrize(
    ("free_bytes", "devices", "kept_from_bytes"),
    [
        # Eight bytes are needed, sixteen with a GPU; up to a quarter may be kept.
        (33, ("cpu",), 32 * 2**20),
        (32, ("cpu",), math.inf),
        (None, ("cpu",), math.inf),
        (65, ("gpu",), 0.0),
        (64, ("gpu",), math.inf),
    ],
)
def test_large_inputs_are_kept_where_there_is_room_and_all_that_only_gpus_need(
    free_bytes: int | None, devices: tuple[str, ...], kept_from_bytes: float
) -> None:
    clock = FakeClock()
    seen: list[float] = []

    class Looking(FakeKernel):
        def cpu_cases(self, order: CaseOrder) -> list[Case]:
            seen.append(order.data._kept_from_bytes)
            return super().cpu_cases(order)

        def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> list[Case]:
            return self.cpu_cases(order)

    run(
        BenchRequest(devices=devices),
        clock=clock,
        cpu=FakeCpu(memory_available_bytes=free_bytes),
        gpus=OpenedGpus(devices=[FakeGpu(clock)]),
        kernels={"fake": Looking(clock)},
    )

    assert seen == [kept_from_bytes]


def test_rows_beyond_the_budget_are_noted_with_the_same_budget_as_in_their_errors() -> None:
    class Ticking(FakeClock):
        """A clock on which everything takes a millisecond, so that there are rates to plan by."""

        def __call__(self) -> float:
            self.seconds += 1e-3
            return self.seconds

    clock = Ticking()

    class Costly(FakeKernel):
        def cpu_cases(self, order: CaseOrder) -> list[Case]:
            cases = []
            for variant, flops, seconds in (
                ("all", 10**9, 0.02),
                ("naive", 10**12, 5.0),
                ("worse", 10**13, 50.0),
            ):
                named = replace(label(variant=variant), threads=1)
                case = FakeCase(itertools.repeat(seconds), self.clock, label=named)
                case.work = Work(flops=flops, bytes_moved=1, unit="FLOP/s")
                cases.append(case)
            return list(cases)

    result = Bench(
        request=BenchRequest(budget_s=10.0),
        clock=clock,
        cpu=FakeCpu(),
        blas=FakeBlas(),
        gpus=NO_GPU,
        kernels={"fake": Costly(clock)},
    ).run()

    (note,) = result.notes
    assert "10 s is too short for every row; left out: fake float32 8 naive" in note
    measured, *late = result.measurements
    assert measured.ci95_s is not None
    assert [row.error.code for row in late if row.error] == ["no-time"] * 2
    texts = [note, *(row.error.remedy[0] for row in late if row.error)]
    assert len({text.partition("--budget ")[2].split()[0] for text in texts}) == 1


def test_a_summary_keeps_counts_and_quantiles_only() -> None:
    clock = FakeClock()

    result, _ = run(
        BenchRequest(samples=SampleDetail.SUMMARY),
        clock=clock,
        kernels={"fake": FakeKernel(clock)},
    )

    (row,) = result.measurements
    assert row.samples_s == row.warmup_s == ()
    assert row.summary is not None
    assert row.summary.count > 10
    assert row.ci95_s is not None


def test_an_interrupt_marks_the_kernels_that_never_started() -> None:
    clock = FakeClock()
    kernels: dict[str, Kernel] = {
        "one": FakeKernel(clock, "one"),
        "two": FakeKernel(clock, "two", KeyboardInterrupt()),
        "three": FakeKernel(clock, "three"),
    }

    result, _ = run(BenchRequest(), clock=clock, kernels=kernels)

    assert result.interrupted
    assert [row.kernel for row in result.measurements] == ["one", "two", "three"]
    # The first has had its turn of the first round, and more were to come.
    assert [row.interrupted for row in result.measurements] == [True, True, True]
    assert result.measurements[0].median_s is not None
    assert result.measurements[2].unavailable["median_s"] == "it was interrupted"


def test_a_busy_host_is_seen_and_said() -> None:
    clock = FakeClock()
    # Read at the start of the run, and at both ends of the group's first turns.
    cpu = FakeCpu(busy_s=itertools.chain([0.0, 0.0], itertools.repeat(1e3)))

    result, _ = run(BenchRequest(), clock=clock, cpu=cpu, kernels={"fake": FakeKernel(clock)})

    assert [doubt.code for doubt in result.measurements[0].doubts] == ["host-busy"]


@pytest.mark.parametrize(
    ("devices", "code", "error"),
    [
        (("tpu",), "bad-device", WrongUseError),
        (("gpu:x",), "bad-device", WrongUseError),
        (("gpu",), "no-gpu", MissingError),
        (("gpu:0",), "no-gpu", MissingError),
    ],
)
def test_devices_that_cannot_be_measured(
    devices: tuple[str, ...], code: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        run(BenchRequest(devices=devices))

    assert getattr(caught.value, "code", None) == code


def test_cpu_and_gpu_are_verified_and_compared() -> None:
    clock = FakeClock()
    gpus = OpenedGpus(devices=[FakeGpu(clock)], cupy_version="0.0-fake")

    request = BenchRequest(
        kernels=("matmul", "softmax"),
        dtypes=("float32",),
        mode=BenchMode.QUICK,
        size=96,
        devices=("gpu:0",),
        budget_s=1.0,
    )

    result, _ = run(request, clock=clock, gpus=gpus, kernels=PLAIN)

    assert {row.device for row in result.measurements} == {"gpu:0"}
    assert {row.scope for row in result.measurements} == set(Scope)
    for row in result.measurements:
        assert row.error is None
        assert row.verified is not None
        assert row.verified.ok
        assert row.gpu_uuid == "GPU-00000000"
    medians = {(row.kernel, row.scope): row.time_s for row in result.measurements}
    assert medians["matmul", Scope.RESIDENT] == pytest.approx(1e-4)
    # Two inputs sent, one output fetched in twice the time of a copy.
    assert medians["matmul", Scope.END_TO_END] == pytest.approx(4e-4)
    assert medians["softmax", Scope.END_TO_END] == pytest.approx(3e-4)
    assert result.environment.cupy_version == "0.0-fake"
    assert result.environment.gpu_unavailable is None


def test_a_wrong_gpu_is_caught_and_never_compared() -> None:
    clock = FakeClock()
    gpus = OpenedGpus(devices=[FakeGpu(clock, wrong_by=0.01)], cupy_version="0.0-fake")

    result, _ = run(
        BenchRequest(
            kernels=("matmul", "softmax"),
            dtypes=("float32",),
            mode=BenchMode.QUICK,
            size=96,
            devices=("gpu",),
            budget_s=4.0,
        ),
        clock=clock,
        gpus=gpus,
        kernels=PLAIN,
    )

    assert {row.error.code for row in result.measurements if row.error} == {"wrong-result"}
    assert all(row.time_s is None for row in result.measurements)
    assert result.comparisons == ()


def test_a_lost_and_a_full_gpu_keep_their_rows_and_the_good_one_goes_on() -> None:
    clock = FakeClock()
    lost = InconclusiveError(code="gpu-lost", message="gone")
    full = InconclusiveError(code="gpu-out-of-memory", message="full")
    devices = [
        FakeGpu(clock, cuda_index=0, failures={"span": [lost], "upload": []}),
        FakeGpu(clock, cuda_index=1, failures={"allocate": [full, full]}),
        FakeGpu(clock, cuda_index=2),
    ]

    result, _ = run(
        BenchRequest(
            kernels=("matmul",),
            dtypes=("float32",),
            mode=BenchMode.QUICK,
            size=64,
            devices=("gpu",),
            budget_s=4.0,
        ),
        clock=clock,
        kernels=PLAIN,
        gpus=OpenedGpus(devices=devices, cupy_version="0.0-fake"),
    )

    codes = [row.error.code if row.error else None for row in result.measurements]
    assert codes == ["gpu-lost", None, "gpu-out-of-memory", "gpu-out-of-memory", None, None]
    assert all(device.released for device in devices)


@pytest.mark.slow
def test_only_the_use_of_others_is_counted_over_all_periods() -> None:
    before = CpuLoad(load_average_1m=0.0, busy_s=10.0, steal_s=1.0, own_s=5.0)
    after = CpuLoad(load_average_1m=0.0, busy_s=22.0, steal_s=1.4, own_s=7.0)
    share = HostShare(facts=FakeCpu(cores=4).facts())

    share.add(before, after, 10.0)
    share.add(after, replace(after, busy_s=24.0, own_s=9.0), 10.0)

    state = share.state()
    assert state.others_percent == pytest.approx(12.5)
    assert state.steal_percent == pytest.approx(0.5)


def test_the_devices_alternate_whatever_the_order_of_the_rows() -> None:
    devices = ["cpu", "cpu", "cpu", "gpu:0", "gpu:0", "gpu:1"]
    records = [CaseState(case=FakeCase([], label=label(device))) for device in devices]

    found = alternating(records)

    order = [records.index(record) for record in found]
    assert [devices[place] for place in order] == ["cpu", "gpu:0", "gpu:1", "cpu", "gpu:0", "cpu"]
    assert [place for place in order if devices[place] == "cpu"] == [0, 1, 2]
    assert alternating([]) == []


def test_unreadable_counters_and_no_time_at_all_say_nothing_of_the_host() -> None:
    load = CpuLoad(load_average_1m=0.0, busy_s=10.0, steal_s=1.0, own_s=5.0)
    idle, unreadable = (HostShare(facts=FakeCpu(cores=4).facts()) for _ in range(2))

    unreadable.add(replace(load, busy_s=None), load, 10.0)

    assert unreadable.state().others_percent is None
    assert idle.state().others_percent is None


def test_parallel_efficiency_needs_both_thread_counts() -> None:
    one = Roofline(
        device="cpu", threads=1, copy_bytes_per_s=None, gemm_flops_per_s=10.0, gemm_dtype="float32"
    )
    four = replace(one, threads=4, gemm_flops_per_s=32.0)

    assert parallel_efficiency([one, four]) == pytest.approx(0.8)
    assert parallel_efficiency([one]) is None
    assert parallel_efficiency([]) is None


def test_the_limits_are_kept_apart_from_the_requested_rows() -> None:
    clock = FakeClock()
    request = BenchRequest(
        kernels=("softmax",), devices=("gpu:0",), size=64, budget_s=4.0, mode=BenchMode.QUICK
    )

    # So little memory that the limits are measured on small arrays.
    small = FakeGpu(clock, memory_free_bytes=2**20, l2_bytes=2**10)

    result, _ = run(
        request,
        clock=clock,
        gpus=OpenedGpus(devices=[small]),
        cpu=FakeCpu(memory_available_bytes=2**22),
    )

    assert {row.kernel for row in result.measurements} == {"softmax"}
    by_device = {(one.device, one.threads): one for one in result.environment.rooflines}
    assert by_device["gpu:0", None].copy_bytes_per_s


@pytest.mark.parametrize(
    ("mode", "warmed_s", "precision"),
    [
        (BenchMode.QUICK, 0.2, 0.1),
        (BenchMode.DEFAULT, 1.0, 0.1),
        (BenchMode.FULL, 3.0, 0.03),
    ],
)
def test_each_mode_warms_up_for_its_time_and_wants_its_precision(
    mode: BenchMode, warmed_s: float, precision: float
) -> None:
    clock = FakeClock()
    watched: list[CaseState] = []

    result = Bench(
        request=BenchRequest(mode=mode, budget_s=100.0),
        clock=clock,
        cpu=FakeCpu(),
        blas=FakeBlas(),
        gpus=NO_GPU,
        kernels={"fake": FakeKernel(clock, step=2**-6)},
    ).run(watch=watched.extend)

    (row,), (state,) = result.measurements, watched
    # One run finds the repetitions; later slices warm up for a quarter of their time.
    first = row.warmup_s[1:]
    assert first[: int(warmed_s * 2**6)] == (2**-6,) * int(warmed_s * 2**6)
    assert sum(row.warmup_s) == pytest.approx(sum(state.warmup_s))
    assert state.precision == precision


def test_what_is_there_is_offered_while_the_driver_hangs() -> None:
    clock = FakeClock()
    offered: list[Callable[[], BenchResult]] = []
    seen: list[BenchResult] = []

    class Looking(FakeKernel):
        def cpu_cases(self, order: CaseOrder) -> list[Case]:
            def look() -> None:
                seen.append(offered[0]())

            steps = itertools.repeat(0.02)
            return [FakeCase(steps, self.clock, label=label(), prepare=look)]

    Bench(
        request=BenchRequest(),
        clock=clock,
        cpu=FakeCpu(),
        blas=FakeBlas(),
        gpus=NO_GPU,
        kernels={"fake": Looking(clock)},
    ).run(offer=offered.append)

    assert [one.interrupted for one in seen] == [True] * len(seen)
    assert [len(one.measurements[0].round_sizes) for one in seen] == list(range(len(seen)))
    assert all(one.measurements[0].interrupted for one in seen)


def test_a_gpu_whose_memory_others_hold_has_its_rows_with_the_reason() -> None:
    clock = FakeClock()
    devices = [FakeGpu(clock, memory_free_bytes=0), FakeGpu(clock, cuda_index=1)]
    request = BenchRequest(
        kernels=("softmax",), dtypes=("float32",), size=64, budget_s=4.0, mode=BenchMode.QUICK,
        devices=("gpu",),
    )  # fmt: skip

    result, _ = run(request, clock=clock, gpus=OpenedGpus(devices=devices), kernels=PLAIN)

    found = [(row.device, row.error.code if row.error else None) for row in result.measurements]
    assert sorted({device for device, _ in found}) == ["gpu:0", "gpu:1"]
    assert {code for device, code in found if device == "gpu:0"} == {"gpu-memory-taken"}
    assert {code for device, code in found if device == "gpu:1"} == {None}
    assert len({row.id for row in result.measurements}) == len(found) / 2


def test_a_framework_has_rows_of_what_was_requested_on_every_device_that_takes_part() -> None:
    clock = FakeClock()

    class Broken:
        name, pid, running, facts = "pytorch", None, False, MappingProxyType({})
        interpreter = SimpleNamespace(path="/py")

        def wait(self) -> None:
            raise InconclusiveError(
                code="framework-failed", message="pytorch could not be imported"
            )

    told: list[str] = []
    result = Bench(
        request=BenchRequest(
            kernels=("softmax",),
            dtypes=("float32",),
            size=64,
            budget_s=4.0,
            mode=BenchMode.QUICK,
            devices=("gpu",),
        ),
        clock=clock,
        cpu=FakeCpu(),
        blas=FakeBlas(),
        gpus=OpenedGpus(devices=[FakeGpu(clock), FakeGpu(clock, cuda_index=1)]),
        kernels=PLAIN,
        frameworks=Frameworks([Framework(process=cast("FrameworkProcess", Broken()))]),
    ).run(progress=lambda text, fraction, seconds_left: told.append(f"{text} {seconds_left:.2g}"))

    assert told[0] == "importing PyTorch 4"
    made = [row for row in result.measurements if row.framework is not None]
    assert [(row.kernel, row.device) for row in made] == [
        ("softmax", "gpu:0"),
        ("softmax", "gpu:1"),
    ]
    assert {row.error.code for row in made if row.error} == {"framework-failed"}
    own = [row for row in result.measurements if row.framework is None]
    assert {row.device for row in own} == {"gpu:0", "gpu:1"}
    assert result.environment.frameworks[0].failure is not None
    assert {one.kernel for one in result.conclusions} <= {"softmax"}


def test_conclusions_are_drawn_from_good_rows() -> None:
    clock = FakeClock()
    kernels: dict[str, Kernel] = {"one": FakeKernel(clock, "one")}

    result, _ = run(BenchRequest(), clock=clock, kernels=kernels)

    assert [(one.kernel, one.code) for one in result.conclusions] == [("one", "counted")]


@pytest.mark.parametrize("devices", [("cpu",), ("gpu",), ("cpu", "gpu")])
def test_a_processor_that_is_compared_names_the_faster_version_that_it_lacks(
    devices: tuple[str, ...],
) -> None:
    class Lacking(FakeKernel):
        def cpu_cases(self, order: CaseOrder) -> list[Case]:
            (case,) = super().cpu_cases(order)
            case.faster_version = "install it"
            return [case]

        def gpu_cases(self, order: CaseOrder, gpu: GpuDevice) -> list[Case]:
            named = replace(label(), kernel=self.id, device=gpu.facts.device)
            return [FakeCase(itertools.repeat(self.step), self.clock, label=named)]

    clock = FakeClock()
    gpus = OpenedGpus(devices=[FakeGpu(clock)])
    request = BenchRequest(devices=devices)

    result, _ = run(request, clock=clock, gpus=gpus, kernels={"one": Lacking(clock, "one")})

    said = [item.sentence for item in result.conclusions if item.code == "faster-cpu-kernel"]
    if len(devices) == 1:
        assert said == []
    else:
        assert said == [
            "compiled by numba, the processor's one is several times faster: install it"
        ]
        assert [doubt.code for doubt in result.comparisons[0].doubts][-1] == "faster-cpu-exists"


@pytest.mark.parametrize(
    ("facts", "count"), [({}, 0), ({"accuracy": 0.9}, 1), ({"steps": 7}, 0)], ids=str
)
def test_a_row_without_an_interval_concludes_something_if_it_has_an_accuracy(
    facts: dict[str, Fact], count: int
) -> None:
    class Short(FakeKernel):
        def cpu_cases(self, order: CaseOrder) -> list[Case]:
            case = FakeCase(itertools.repeat(6.0), self.clock, label=replace(label(), kernel="one"))
            case.facts = facts
            return [case]

    clock = FakeClock()
    result, _ = run(BenchRequest(budget_s=10.0), clock=clock, kernels={"one": Short(clock, "one")})

    (row,) = result.measurements
    assert row.error is None
    assert row.ci95_s is None
    assert len(result.conclusions) == count


def test_a_group_that_takes_too_long_leaves_the_later_ones_some_time() -> None:
    clock = FakeClock()
    kernels: dict[str, Kernel] = {
        "slow": FakeKernel(clock, "slow", 60.0),
        "next": FakeKernel(clock, "next", 0.01),
    }

    result, told = run(BenchRequest(budget_s=10.0), clock=clock, kernels=kernels)

    slow, later = result.measurements
    assert slow.error is not None
    assert slow.error.code == "no-time"
    assert later.error is None
    assert later.samples_s
    assert [fraction for _, fraction, _ in told] == sorted(fraction for _, fraction, _ in told)


def test_each_row_is_judged_by_the_highest_clock_of_its_own_gpu() -> None:
    clock = FakeClock()
    devices = [FakeGpu(clock), FakeGpu(clock, cuda_index=1)]
    for gpu, most_mhz in zip(devices, (1500.0, 3000.0), strict=True):
        gpu.facts = replace(gpu.facts, clock_sm_max_mhz=most_mhz)
    request = BenchRequest(
        kernels=("softmax",), dtypes=("float32",), size=64, budget_s=1.0, mode=BenchMode.QUICK,
        devices=("gpu",),
    )  # fmt: skip

    result, _ = run(request, clock=clock, gpus=OpenedGpus(devices=devices), kernels=PLAIN)

    low = {row.device for row in result.measurements if "clock-low" in str(row.doubts)}
    assert {row.device for row in result.measurements} == {"gpu:0", "gpu:1"}
    assert low == {"gpu:1"}


def test_sensors_become_telemetry_doubts_and_energy() -> None:
    clock = FakeClock()
    counters = {"limited_ns": {}, "processes": [4242]}

    def read() -> SensorBatch:
        values = {"reasons": 0x4 | 0x40, "power_mw": 650_000}
        samples = [
            Sample(time_s=clock() - clock.seconds * step / 200, uuid="GPU-00000000", values=values)
            for step in range(201)
        ]
        return SensorBatch(samples=samples, counters={"GPU-00000000": counters})

    facts = {"counters": counters, "power_limit_mw": 700_000}
    sensors = ScriptedSensors(facts, read, joules=itertools.count(100.0, 100.0))
    found = RunEnvironment(
        sensors=sensors,
        cards={"GPU-00000000": GpuReading(index=0, pci_device_id="233010de")},
        processes={"GPU-00000000": frozenset({4242})},
        claims={"GPU-00000000": "alice"},
    )
    result = run_softmax(clock, found)

    row = result.measurements[0]
    codes = {doubt.code for doubt in row.doubts}
    assert {"throttled", "power-capped", "gpu-shared", "gpu-claimed"} <= codes
    assert row.joules_per_op is not None
    assert row.joules_per_op > 0
    assert row.sm_clock_mhz == 1500.0
    assert row.percent_of_peak is not None
    assert row.limits["peak"] == "H100 SXM, datasheet"
    assert result.environment.gpus[0].board is not None
    assert result.telemetry is not None
    assert result.telemetry.gpus[0].power_w is not None
    assert result.telemetry.gpus[0].power_w.high == 650.0
    assert result.telemetry.gpus[0].power_limit_w == 700.0
    assert result.telemetry.gpus[0].other_processes == (4242,)
    assert sensors.closed


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (BenchMode.QUICK, "only --full counts energy"),
        (BenchMode.FULL, "the GPU's energy was not counted here"),
    ],
)
def test_without_sensors_the_reason_is_given(mode: BenchMode, why: str) -> None:
    result = run_softmax(FakeClock(), RunEnvironment(), mode=mode)

    assert result.telemetry is not None
    assert result.telemetry.unavailable
    assert {row.unavailable["joules_per_op"] for row in result.measurements} == {why}


def test_energy_gets_half_of_the_time_at_most_in_equal_parts() -> None:
    clock = FakeClock()
    read_at_s: list[float] = []

    def joules() -> Iterator[float]:
        for count in itertools.count(1):
            read_at_s.append(clock.seconds)
            yield 100.0 * count

    sensors = ScriptedSensors({"counters": {}}, SensorBatch, joules=joules())
    result = run_softmax(clock, RunEnvironment(sensors=sensors))

    windows_s = [end - start for start, end in zip(read_at_s[::2], read_at_s[1::2], strict=True)]
    counted = [row for row in result.measurements if row.joules_per_op is not None]
    assert len(windows_s) == len(counted) >= 2
    # A window ends with the operations that are under way.
    share_s = 1.0 / len(counted)
    assert all(share_s <= window_s < share_s + 0.006 for window_s in windows_s)


def test_wsl2_is_stated_once_for_the_run() -> None:
    on_windows, here = (
        run_softmax(FakeClock(), RunEnvironment(host=host), budget_s=1.0).notes
        for host in (ON_WSL2, HERE)
    )

    assert on_windows.count(WSL_NOTE) == 1
    assert WSL_NOTE not in here


#: Kernels, budget and mode of runs on two pretended GPUs, one slower than the other.
RUNS: dict[str, BenchRequest] = {
    "quick": BenchRequest(
        kernels=("softmax", "matmul"), dtypes=("float32",), size=32, budget_s=30.0,
        mode=BenchMode.QUICK,
    ),
    "default": BenchRequest(
        kernels=("softmax", "p2p"), dtypes=("float32",), size=32, budget_s=120.0
    ),
    "full": BenchRequest(
        kernels=("matmul",), dtypes=("float32",), size=32, budget_s=60.0, mode=BenchMode.FULL
    ),
    "too short": BenchRequest(
        kernels=("softmax", "matmul", "launch"), dtypes=("float32",), size=32, budget_s=1.5
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_a_whole_run_on_a_clock_of_its_own_is_as_recorded(name: str) -> None:
    clock = FakeClock()
    seconds = (1e-2, 1.5e-2)
    devices = tuple(
        FakeGpu(clock, cuda_index=at, operation_s=each) for at, each in enumerate(seconds)
    )
    kernels = {name: kernel for name, kernel in KERNELS.items() if name != "copy"}
    request = replace(RUNS[name], devices=("gpu",), samples=SampleDetail.SUMMARY)

    result, told = run(request, clock=clock, gpus=OpenedGpus(devices=devices), kernels=kernels)

    # Errors of products depend on the BLAS of the machine.
    rows = [replace(row, verified=None) for row in result.measurements]
    text = in_lines([*rows, *result.comparisons, *result.conclusions])
    text += "".join(f"{note}\n" for note in result.notes)
    text += "".join(f"{label} {share:.4f} {left_s:.4g}\n" for label, share, left_s in told)
    assert all(row.verified is None or row.verified.ok for row in result.measurements)
    assert text == recorded(f"bench-run-{name.replace(' ', '-')}", text)
