"""Device selection, memory fit, and the groups of a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpucheck.bench.case import Kernel
from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.plan import (
    Plan,
    Resources,
    fits,
    grow_beyond_cache,
    lacking_memory,
    long_enough,
    select_devices,
)
from gpucheck.bench.request_model import BenchMode, BenchRequest
from gpucheck.bench.roofline import with_board
from gpucheck.drivers.gpu import BenchGpu, OpenedGpus
from gpucheck.inventory.condition import spare_bytes
from gpucheck.report.errors import GpucheckError, InconclusiveError, MissingError, WrongUseError
from tests.fakes.bench import FakeClock, FakeGpu
from tests.report.formats.recorded import recorded


def card(number: int, *, free: int = 2**40) -> BenchGpu:
    return FakeGpu(FakeClock(), cuda_index=number, memory_free_bytes=free).facts


CARDS = tuple(card(number) for number in range(2))
PLENTY = Resources(host_bytes=2**40, gpus=CARDS)
NO_GPU = Resources(host_bytes=2**40)


def test_every_kernel_is_planned_when_none_is_named() -> None:
    plan = Plan(BenchRequest(), KERNELS, PLENTY)

    assert list(dict.fromkeys(group.kernel.id for group in plan.groups)) == list(KERNELS)
    assert not any(group.limit for group in plan.groups)
    assert plan.notes == ()


def test_a_kernel_named_twice_is_measured_once() -> None:
    plan = Plan(BenchRequest(kernels=("softmax", "softmax")), KERNELS, PLENTY)

    asked = [group.kernel.id for group in plan.groups if not group.limit]
    assert asked == ["softmax", "softmax"]
    assert [group.dtype for group in plan.groups if not group.limit] == ["float32", "bfloat16"]


@pytest.mark.parametrize("mode", BenchMode)
def test_each_mode_has_sizes_and_its_promised_time(mode: BenchMode) -> None:
    plan = Plan(BenchRequest(mode=mode), KERNELS, PLENTY)

    promised_s = {BenchMode.QUICK: 10, BenchMode.DEFAULT: 60, BenchMode.FULL: 600}
    assert 0 < plan.budget_s < promised_s[mode]
    assert all(min(group.shape) >= 1024 for group in plan.groups if len(group.shape) > 1)


def test_an_explicit_size_and_budget_are_taken() -> None:
    plan = Plan(BenchRequest(kernels=("matmul",), size=64, budget_s=2.5), KERNELS, PLENTY)

    assert {group.shape for group in plan.groups if not group.limit} == {(64, 64, 64)}
    assert plan.budget_s == 2.5


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (BenchRequest(kernels=("matmull",)), "unknown-kernel"),
        (BenchRequest(dtypes=("float12",)), "unknown-dtype"),
        (BenchRequest(kernels=("copy",), dtypes=("float16",)), "unknown-dtype"),
        (BenchRequest(kernels=("towers",), towers=1), "bad-towers"),
        (BenchRequest(kernels=("train",), data_file="/nowhere/train-images-idx3"), "data-unusable"),
        (BenchRequest(kernels=("batch",), data_file="/nowhere/x.npz"), "data-unusable"),
        (BenchRequest(kernels=("towers",), data_file="/nowhere/x.npz"), "data-unusable"),
        (BenchRequest(kernels=("towers",), towers=10**6), "bad-towers"),
        (BenchRequest(size=0), "bad-size"),
        (BenchRequest(size=-1), "bad-size"),
        (BenchRequest(budget_s=0.0), "bad-budget"),
        (BenchRequest(budget_s=float("nan")), "bad-budget"),
        (BenchRequest(budget_s=float("inf")), "bad-budget"),
        (BenchRequest(seed=-1), "bad-seed"),
        (BenchRequest(temperature=0.0), "bad-temperature"),
        (BenchRequest(temperature=-1.0), "bad-temperature"),
        (BenchRequest(temperature=float("nan")), "bad-temperature"),
        (BenchRequest(size=10**9), "size-does-not-fit"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    request_: BenchRequest, code: str
) -> None:
    with pytest.raises(WrongUseError) as caught:
        Plan(request_, KERNELS, PLENTY)

    assert caught.value.code == code
    assert caught.value.remedy


def test_the_temperature_does_not_matter_to_matmul() -> None:
    assert Plan(BenchRequest(kernels=("matmul",), temperature=0.0), KERNELS, PLENTY).groups


@pytest.mark.parametrize(
    ("device_id", "mode", "edge"),
    [
        ("1eb8", BenchMode.DEFAULT, 4096),  # T4: 134 MB take 0.4 ms
        ("2330", BenchMode.DEFAULT, 8192),  # H100: 40 us, so 0.16 ms
        ("2330", BenchMode.QUICK, 4096),
        ("2901", BenchMode.DEFAULT, 8192),  # B200
        ("2901", BenchMode.FULL, 16384),  # 0.07 ms, so 0.28 ms
    ],
)
def test_one_copy_takes_long_compared_with_its_launch(
    device_id: str, mode: BenchMode, edge: int
) -> None:
    gpu = replace(card(0), pci_device_id=f"{device_id}10de", sm_count=148)
    machine = replace(PLENTY, gpus=(with_board(gpu),))
    kernels = ("copy", "triad", "softmax", "transfer")

    plan = Plan(BenchRequest(mode=mode, kernels=kernels), KERNELS, machine)

    shapes = {group.kernel.id: group.shape for group in plan.groups if group.dtype == "float32"}
    assert shapes["copy"] == (edge, edge)
    if mode is not BenchMode.QUICK:
        assert shapes["softmax"] == (edge, edge)
        # A triad moves half as much again.
        assert shapes["triad"] == (min(edge, 8192), min(edge, 8192))
    # What crosses a link is another matter.
    assert set(shapes["transfer"]) == {KERNELS["transfer"].sizes[mode]}


@pytest.mark.parametrize(
    "memory",
    [
        Resources(host_bytes=10 * 2**20),
        Resources(gpus=(card(0, free=10 * 2**20),)),
    ],
    ids=["host", "gpu"],
)
def test_a_size_of_ours_is_reduced_with_a_statement(memory: Resources) -> None:
    plan = Plan(BenchRequest(kernels=("matmul",), dtypes=("fp32",)), KERNELS, memory)

    (edge,) = {group.shape[0] for group in plan.groups if not group.limit}
    assert edge < 2048
    assert edge.bit_count() == 1
    assert plan.notes == (
        f"matmul float32: size 2048 does not fit into the free memory; measured at {edge}",
    )


def test_an_explicit_size_is_refused_with_the_largest_that_fits() -> None:
    memory = Resources(host_bytes=100 * 2**20)
    with pytest.raises(WrongUseError) as caught:
        Plan(BenchRequest(kernels=("softmax",), size=100_000), KERNELS, memory)
    largest = int(caught.value.remedy[0].rstrip(".").split()[-1])

    Plan(BenchRequest(kernels=("softmax",), size=largest), KERNELS, memory)
    with pytest.raises(WrongUseError, match="does not fit"):
        Plan(BenchRequest(kernels=("softmax",), size=largest + 1), KERNELS, memory)


def test_no_memory_at_all_is_refused_and_not_reduced_to_nothing() -> None:
    memory = Resources(host_bytes=0)

    with pytest.raises(InconclusiveError, match="hardly any memory is free"):
        Plan(BenchRequest(), KERNELS, memory)


def test_gpu_kernels_are_left_out_with_a_note_where_there_is_no_gpu() -> None:
    plan = Plan(BenchRequest(), KERNELS, NO_GPU)

    assert {"transfer", "launch", "p2p"}.isdisjoint(group.kernel.id for group in plan.groups)
    assert plan.notes == ("transfer and launch need a GPU; p2p needs 2 GPUs: not measured",)


def test_one_gpu_is_not_enough_for_copies_between_two() -> None:
    plan = Plan(BenchRequest(), KERNELS, Resources(gpus=CARDS[:1]))

    assert plan.notes == ("p2p needs 2 GPUs: not measured",)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (BenchRequest(kernels=("transfer", "p2p")), "nothing-to-measure"),
        (BenchRequest(kernels=("matmul",), dtypes=("bf16",)), "nothing-to-measure"),
    ],
)
def test_kernels_that_cannot_run_are_missing_and_never_replaced(
    request_: BenchRequest, code: str
) -> None:
    with pytest.raises(MissingError) as caught:
        Plan(request_, KERNELS, NO_GPU)

    assert caught.value.code == code


def test_a_format_without_a_blas_is_measured_on_the_gpu_alone_with_a_note() -> None:
    plan = Plan(BenchRequest(kernels=("matmul",), dtypes=("half",)), KERNELS, PLENTY)
    group = plan.groups[0]

    assert group.dtype == "float16"
    assert not group.with_cpu
    assert group.gpus == {0, 1}
    assert "NumPy multiplies float16 without BLAS" in plan.notes[0]


def test_names_of_formats_are_understood_in_any_way_that_people_write_them() -> None:
    request = BenchRequest(kernels=("matmul",), dtypes=("FP64", "double", "float64"))
    plan = Plan(request, KERNELS, PLENTY)

    assert [group.dtype for group in plan.groups if not group.limit] == ["float64"]


def test_the_limits_are_measured_briefly_even_if_not_requested() -> None:
    plan = Plan(BenchRequest(kernels=("softmax",), mode=BenchMode.FULL), KERNELS, PLENTY)
    limits = {group.kernel.id: group for group in plan.groups if group.limit}

    assert set(limits) == {"copy", "matmul"}
    assert limits["copy"].gpus == {0, 1}
    assert limits["matmul"].gpus == frozenset()
    assert limits["matmul"].request.mode is BenchMode.QUICK


def test_a_gpu_whose_memory_is_taken_is_left_out_and_the_others_keep_their_size() -> None:
    full = card(0, free=3 * 2**18)
    holders = {full.uuid or "": "process 7 (py) holds 9 GiB"}
    machine = Resources(with_cpu=False, gpus=(full, CARDS[1]), holders=holders)

    plan = Plan(BenchRequest(kernels=("copy",)), KERNELS, machine)

    (group,) = plan.groups
    assert (group.gpus, set(group.taken)) == ({1}, {0})
    assert group.shape == (4096, 4096)
    assert group.taken[0].code == "gpu-memory-taken"
    assert "0.0 of 16.0 GiB" in group.taken[0].message
    assert "process 7 (py)" in group.taken[0].message
    assert plan.notes == (group.taken[0].message,)


def test_nothing_but_full_gpus_is_a_plan_of_rows_that_say_so() -> None:
    machine = Resources(with_cpu=False, gpus=(card(0, free=0),))

    plan = Plan(BenchRequest(kernels=("copy",), size=64), KERNELS, machine)

    (group,) = plan.groups
    assert (group.gpus, set(group.taken), group.with_cpu) == (frozenset(), {0}, False)
    assert "does not say" in group.taken[0].message


def test_a_size_that_does_not_fit_names_who_is_in_the_way() -> None:
    machine = Resources(
        gpus=(card(0, free=2**28),), holders={"GPU-00000000": "process 7 holds 9 GiB"}
    )

    with pytest.raises(WrongUseError) as caught:
        Plan(BenchRequest(kernels=("copy",), size=10**5), KERNELS, machine)

    assert not caught.value.remedy[0].endswith(" 0.")
    assert caught.value.remedy[1] == "gpu:0: process 7 holds 9 GiB."


def test_tf32_is_not_measured_where_the_environment_replaces_it() -> None:
    machine = Resources(gpus=CARDS, variables={"NVIDIA_TF32_OVERRIDE": "0"})
    request = BenchRequest(kernels=("matmul",), dtypes=("tf32", "float32"))

    plan = Plan(request, KERNELS, machine)

    assert [group.dtype for group in plan.groups if not group.limit] == ["float32"]
    assert any("NVIDIA_TF32_OVERRIDE=0" in note for note in plan.notes)


def test_a_small_copy_is_no_limit_and_a_large_one_is_measured_too() -> None:
    plan = Plan(BenchRequest(kernels=("copy",), size=512), KERNELS, PLENTY)

    (limit,) = [group for group in plan.groups if group.limit and group.kernel.id == "copy"]
    assert limit.shape == (4096, 4096)
    assert (limit.with_cpu, limit.gpus) == (True, {0, 1})


@pytest.mark.parametrize(
    ("kernel", "size", "cache_mib", "copies"),
    [
        # 32 MiB of softmax may stay in a cache of 32, not in one of 8.
        ("softmax", 2048, 32, [4096, 2048]),
        ("softmax", 2048, 8, [4096]),
        ("softmax", 4096, 32, [4096]),
        # A triad has three arrays for the copy's two.
        ("triad", 1000, 32, [4096, 1224]),
        ("copy", 512, 32, [4096]),
    ],
)
def test_what_may_stay_in_the_cache_has_a_copy_of_as_many_bytes(
    kernel: str, size: int, cache_mib: int, copies: list[int]
) -> None:
    machine = Resources(host_bytes=2**40, cache_bytes=cache_mib * 2**20)

    plan = Plan(BenchRequest(kernels=(kernel,), size=size), KERNELS, machine)

    limits = [group for group in plan.groups if group.limit and group.kernel.id == "copy"]
    assert [group.shape for group in limits] == [(edge, edge) for edge in copies]
    assert all(group.with_cpu for group in limits)


def test_the_processors_limit_is_a_copy_beyond_its_cache() -> None:
    machine = Resources(gpus=CARDS, cache_bytes=100 * 2**20)

    plan = Plan(BenchRequest(kernels=("copy",)), KERNELS, machine)

    (limit,) = [group for group in plan.groups if group.limit and group.kernel.id == "copy"]
    assert limit.shape == (8192, 8192)
    assert (limit.with_cpu, limit.gpus) == (True, frozenset())


@pytest.mark.parametrize(("size", "expected"), [(64, [1024]), (1024, []), (2048, [])])
def test_a_small_product_is_not_the_limit_of_the_processor(size: int, expected: list[int]) -> None:
    plan = Plan(BenchRequest(kernels=("matmul",), size=size), KERNELS, Resources())

    limits = [group for group in plan.groups if group.limit and group.kernel.id == "matmul"]

    assert [group.shape[0] for group in limits] == expected
    assert plan.groups[-1].limit or not expected


def test_limits_that_do_not_fit_are_left_out() -> None:
    machine = Resources(host_bytes=2**20)
    plan = Plan(BenchRequest(kernels=("softmax",), size=8), KERNELS, machine)

    assert all(min(group.shape) < 1024 for group in plan.groups if group.limit)


GIB = 2**30


@pytest.mark.parametrize(
    ("available", "largest"),
    [
        # 12 bytes of the GPU and 20 of the host for each of the copy's numbers, of 12 and 80 GiB.
        (20 * GIB, 2**14),
        (100 * GIB, 2**15),
    ],
)
def test_memory_that_a_gpu_shares_is_counted_once_and_never_filled(
    available: int, largest: int
) -> None:
    shared = replace(card(0, free=2**40), integrated=True)
    machine = Resources(with_cpu=False, gpus=(shared,), host_bytes=available)
    copy = KERNELS["copy"]

    assert fits(copy, "float32", largest, machine, machine.gpus)
    assert not fits(copy, "float32", 2 * largest, machine, machine.gpus)
    taken = copy.device_bytes((largest, largest), "float32") + copy.host_bytes(
        (largest, largest), "float32", 1
    )
    assert taken <= spare_bytes(available)
    with pytest.raises(WrongUseError):
        Plan(BenchRequest(kernels=("copy",), size=2 * largest), KERNELS, machine)


@pytest.mark.parametrize("available", [None, 8 * GIB])
def test_without_memory_to_spare_a_gpu_that_shares_it_is_not_measured(
    available: int | None,
) -> None:
    shared = replace(card(0), integrated=True)

    with pytest.raises(InconclusiveError) as caught:
        Plan(
            BenchRequest(kernels=("matmul",)),
            KERNELS,
            Resources(gpus=(shared,), host_bytes=available),
        )

    assert caught.value.code == "memory-shared"
    assert "at least 8 GiB" in caught.value.message


@pytest.mark.parametrize(("silent", "kind"), [(True, InconclusiveError), (False, MissingError)])
def test_without_an_answer_of_the_driver_a_gpu_is_unknown(
    silent: bool, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="the reason"):
        select_devices(["gpu:0"], OpenedGpus(unavailable="the reason", silent=silent))


def test_the_processor_is_there_whatever_the_gpus_are() -> None:
    assert select_devices(["all"], OpenedGpus(unavailable="the reason")) == (True, [])


@pytest.mark.parametrize(("name", "measured"), [("numpy", True), ("cupy", False)])
def test_the_processor_is_left_to_frameworks_that_compute_on_it(name: str, measured: bool) -> None:
    request = BenchRequest(kernels=("matmul",), frameworks=(name,))

    plan = Plan(request, KERNELS, replace(NO_GPU, frameworks=(name,)))

    assert {group.frameworks_on_cpu for group in plan.groups if not group.limit} == {measured}


def test_a_format_that_no_framework_has_on_the_processor_measures_nothing() -> None:
    request = BenchRequest(kernels=("matmul",), dtypes=("bfloat16",), frameworks=("numpy",))

    with pytest.raises(MissingError, match="NumPy multiplies bfloat16 without BLAS"):
        Plan(request, KERNELS, replace(NO_GPU, frameworks=("numpy",)))


def test_a_gpu_that_frameworks_alone_can_use_is_chosen_like_others() -> None:
    gpus = OpenedGpus(unavailable="no CuPy", for_frameworks=(card(0), card(1)))

    assert select_devices(["gpu:1"], gpus) == (False, [card(1)])
    assert select_devices(["all"], gpus) == (True, [card(0), card(1)])


@pytest.mark.parametrize("name", ["gpu0", "gpu:", "gpu:-1", "gpu:x", "gpu:٣", "", "CPU"])
def test_a_name_that_is_not_a_device_is_refused(name: str) -> None:
    with pytest.raises(WrongUseError, match="does not know"):
        select_devices([name], OpenedGpus())


def test_a_gpu_that_another_process_has_is_not_missing() -> None:
    with pytest.raises(InconclusiveError) as caught:
        select_devices(["gpu:0"], OpenedGpus(unavailable="busy", remedy=("see who",), busy=True))

    assert caught.value.code == "gpu-busy"
    assert caught.value.remedy[0] == "see who"


# ----------------------------------------------------------------------------- plans, their memory


def least(holds: Callable[[int], bool]) -> int:
    """Return the smallest whole number that something holds for, up to a pebibyte."""
    low, high = 0, 2**50
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def needs(kernel: Kernel, dtype: str) -> dict[str, int]:
    """Return the least memory of the host and of a GPU for which a size of 300 fits."""

    def fitting(host: int | None, free: int, *frameworks: str, integrated: bool = False) -> bool:
        gpus = (replace(card(0, free=free), integrated=integrated), card(1))
        machine = Resources(gpus=gpus, host_bytes=host, frameworks=frameworks)
        return fits(kernel, dtype, 300, machine, gpus)

    return {
        "host": least(lambda host: fitting(host, 2**50)),
        "gpu": least(lambda free: fitting(None, free)),
        "host with two frameworks": least(lambda host: fitting(host, 2**50, "torch", "jax")),
        "gpu with two frameworks": least(lambda free: fitting(None, free, "torch", "jax")),
        "shared": least(lambda host: fitting(host, 2**50, integrated=True)),
    }


def test_the_work_the_sizes_and_the_memory_of_each_kernel_are_as_recorded() -> None:
    fast = with_board(replace(card(0), pci_device_id="290110de", sm_count=148))
    lines = []
    for name, kernel in KERNELS.items():
        sizes = {mode.value: kernel.sizes[mode] for mode in BenchMode}
        lines.append(f"## {name}  {sizes}  gpus_needed={kernel.gpus_needed}")
        longer = [long_enough(kernel, "float32", mode, [*CARDS, fast]) for mode in BenchMode]
        caches = [None, 2**20, 2**26, 3 * 2**26, 2**28]
        walked = [grow_beyond_cache(kernel, 1024, cache) for cache in caches]
        lines.append(f"with fast memory: {longer}  beyond caches: {walked}")
        for dtype in kernel.dtypes[BenchMode.FULL]:
            work = kernel.work(kernel.shape(300), dtype)
            figures = (work.flops, work.bytes_moved, work.items, work.unit)
            lines += [f"{dtype} {kernel.shape(300)} {figures}  {needs(kernel, dtype)}"]
    text = "\n".join(lines) + "\n"

    assert text == recorded("kernels", text)


FULL = card(0, free=2**28)
HELD = {"GPU-00000000": "process 7 (python) holds 9.0 GiB"}
PLANS: dict[str, tuple[BenchRequest, Resources]] = {
    "all kernels, two GPUs": (BenchRequest(), PLENTY),
    "all kernels, no GPU": (BenchRequest(mode=BenchMode.QUICK), NO_GPU),
    "all kernels, GPUs alone": (BenchRequest(), replace(PLENTY, with_cpu=False)),
    "little memory": (BenchRequest(kernels=("matmul", "softmax")), Resources(host_bytes=2**24)),
    "a small card": (BenchRequest(kernels=("copy", "triad")), Resources(gpus=(FULL, CARDS[1]))),
    "a full card": (
        BenchRequest(kernels=("copy",)),
        Resources(gpus=(card(0, free=2**20), CARDS[1]), holders=HELD),
    ),
    "a size of a full card": (
        BenchRequest(kernels=("copy",), size=10**5), Resources(gpus=(FULL,), holders=HELD)
    ),
    "a small size": (BenchRequest(kernels=("matmul", "copy"), size=300), PLENTY),
    "a size and formats": (
        BenchRequest(kernels=("matmul",), size=2048, dtypes=("fp8", "int8", "tf32", "half")),
        PLENTY,
    ),
    "tf32 replaced": (
        BenchRequest(kernels=("matmul",)),
        Resources(gpus=CARDS, variables={"NVIDIA_TF32_OVERRIDE": "0"}),
    ),
    "an old card": (
        BenchRequest(kernels=("matmul",)),
        Resources(gpus=(replace(CARDS[0], compute_capability="7.0"),)),
    ),
    "frameworks": (
        BenchRequest(kernels=("matmul", "softmax"), frameworks=("torch",)),
        replace(PLENTY, frameworks=("torch",)),
    ),
    "one GPU for two": (BenchRequest(kernels=("p2p",)), Resources(gpus=CARDS[:1])),
    "GPUs for a processor": (BenchRequest(kernels=("launch",)), NO_GPU),
    "a processor's format": (BenchRequest(kernels=("matmul",), dtypes=("float8",)), NO_GPU),
    "nothing free": (BenchRequest(kernels=("copy",)), Resources(host_bytes=1000)),
    "a shared memory that is full": (
        BenchRequest(kernels=("copy",)),
        Resources(gpus=(replace(card(0), integrated=True),), host_bytes=2**33),
    ),
}  # fmt: skip


def test_every_plan_and_refusal_is_as_recorded() -> None:
    lines = []
    for name, (request, machine) in PLANS.items():
        lines.append(f"## {name}")
        try:
            plan = Plan(request, KERNELS, machine)
        except GpucheckError as error:
            lines += [f"{type(error).__name__} {error.code}: {error.message}", *error.remedy]
            continue
        lines += [f"note: {note}" for note in (*plan.notes, f"{plan.budget_s:g} s")]
        for group in plan.groups:
            kind = "limit" if group.limit else "asked"
            taken = {number: failure.message for number, failure in group.taken.items()}
            lines.append(
                f"{kind} {group.kernel.id} {group.dtype} {group.shape} cpu={group.with_cpu}"
                f" gpus={sorted(group.gpus)} frameworks={group.frameworks_on_cpu}"
                f" {group.request.mode.value} {taken or ''}".rstrip()
            )
    text = "\n".join(lines) + "\n"

    assert text == recorded("bench-plans", text)


@pytest.mark.parametrize(("lacking", "left_out"), [(0, False), (1, True)])
def test_a_card_is_left_out_below_a_sixteenth_of_the_size(lacking: int, left_out: bool) -> None:
    copy = KERNELS["copy"]
    sixteenth = copy.device_bytes(copy.shape(4096 // 16), "float32")
    gpu = card(0, free=-(-sixteenth * 10 // 8) - lacking)

    found = lacking_memory(copy, "float32", gpu, 4096, Resources(), exact=False)
    exact = lacking_memory(copy, "float32", gpu, 4096, Resources(), exact=True)

    assert (found is not None) is left_out
    assert exact is None
    # A card that is too small even when nobody uses it is not taken by others.
    tiny = replace(gpu, memory_total_bytes=gpu.memory_free_bytes)
    assert lacking_memory(copy, "float32", tiny, 4096, Resources(), exact=False) is None


@pytest.mark.parametrize(("size", "least"), [(8, 1), (16, 1), (31, 1), (32, 2)])
def test_a_gpu_takes_part_while_a_sixteenth_of_the_size_fits(size: int, least: int) -> None:
    kernel = KERNELS["copy"]
    needed = kernel.device_bytes(kernel.shape(least), "float32")
    request = kernel, "float32"

    def error(free: int) -> object:
        return lacking_memory(*request, card(0, free=free), size, NO_GPU, exact=False)

    assert error(2 * needed) is None
    assert error(needed) is not None
