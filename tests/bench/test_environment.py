"""Run environment: the host's other load, its BLAS, and who holds the GPUs' memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.environment import (
    HostShare,
    RowEnvironment,
    RunEnvironment,
    blas_text,
    cards_by_uuid,
    environment_of,
    explain_slow_blas,
    gpu_notes,
    holders_of,
    nearness,
    parallel_efficiency,
    run_environment_of,
    variables_of,
)
from gpucheck.bench.model import BenchEnvironment, Roofline
from gpucheck.bench.numerics import DESCRIPTIONS
from gpucheck.bench.request_model import BenchMode, Fill
from gpucheck.drivers.gpu import OpenedGpus
from gpucheck.drivers.host.blas import BlasFacts
from gpucheck.drivers.host.cpu import CpuLoad
from gpucheck.drivers.readings import (
    CudaDeviceReading,
    CudaReading,
    KernelReading,
    MigReading,
    NvmlReading,
    PciDeviceReading,
    ProbeFailure,
    ProcessIdentity,
    ProcessReading,
)
from tests.fakes.bench import FakeBlas, FakeClock, FakeCpu, FakeGpu
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of

FIRST, SECOND = frozenset({0, 1}), frozenset({2, 3})


def test_a_gpu_is_served_from_the_cpus_next_to_it_where_there_are_others() -> None:
    near, far = nearness({"GPU-0": FIRST, "GPU-1": SECOND}, frozenset({0, 1, 2}))

    assert near == {"GPU-0": FIRST, "GPU-1": frozenset({2})}
    assert far == frozenset()


def test_where_all_cpus_are_next_to_it_or_the_kernel_does_not_say_there_is_no_choice() -> None:
    near, far = nearness({"GPU-0": FIRST | SECOND, "GPU-1": frozenset()}, FIRST)

    assert near == {}
    assert far == frozenset()


def test_a_gpu_next_to_no_cpu_of_ours_is_far() -> None:
    near, far = nearness({"GPU-0": SECOND}, FIRST)

    assert near == {}
    assert far == {"GPU-0"}


def test_who_holds_the_memory_is_named_the_largest_first() -> None:
    sizes = {1: 2**30, 2: 5 * 2**30, 3: 3 * 2**30, 4: None, 5: 2**29}
    processes = [
        ProcessReading(pid=pid, type="compute", memory_used_bytes=size)
        for pid, size in sizes.items()
    ]
    # A process in two of NVML's lists is one process.
    processes.append(ProcessReading(pid=2, type="graphics", memory_used_bytes=2**20))

    found = holders_of(processes, {2: ProcessIdentity(pid=2, name="python")})

    assert found == (
        "process 2 (python) holds 5.0 GiB, process 3 holds 3.0 GiB, process 1 holds 1.0 GiB, "
        "and 2 more"
    )
    assert holders_of([], {}) is None
    assert (holders_of(processes[1:5], {}) or "").endswith("process 5 holds 0.5 GiB, and 1 more")
    assert (holders_of(processes[2:5], {}) or "").endswith("process 4 holds memory")


def test_only_variables_that_matter_are_recorded() -> None:
    assert variables_of({"HOME": "/x", "CUPY_TF32": "1"}) == {"CUPY_TF32": "1"}


def test_a_quota_counts_in_the_periods_of_all_stretches_and_without_one_there_is_no_share() -> None:
    before = CpuLoad(load_average_1m=0.0, busy_s=1.0, steal_s=0.0, own_s=1.0)
    limited = replace(before, quota_periods=100, quota_reached=7)
    share, free = (HostShare(facts=FakeCpu(cores=4).facts()) for _ in range(2))

    share.add(limited, replace(limited, quota_periods=110, quota_reached=9), 1.0)
    share.add(limited, replace(limited, quota_periods=110, quota_reached=7), 1.0)
    free.add(before, before, 1.0)

    assert share.state().quota_percent == pytest.approx(10.0)
    assert share.state().cores == 4
    assert free.state().quota_percent is None


def test_a_gpu_without_memory_or_peaks_of_its_own_is_noted() -> None:
    plain = FakeGpu(FakeClock()).facts
    virtual = replace(plain, cuda_index=2, unavailable={"board": "it is a vGPU"})
    part = replace(plain, cuda_index=3, unavailable={"board.bytes_per_s": "it has a share"})

    notes = gpu_notes([plain, replace(plain, cuda_index=1, integrated=True), virtual, part])

    assert [note.partition(":0")[0][:40] for note in notes] == [
        "gpu:1 shares the host's memory: its tran",
        "gpu:2: its peaks are unknown: it is a vG",
        "gpu:3: the peak of its memory is unknown",
    ]


NEW, MIDDLE = frozenset({"avx", "avx2", "avx512f", "sse2"}), frozenset({"avx", "avx2", "sse2"})


def blas(name: str = "openblas", core: str | None = None) -> BlasFacts:
    return BlasFacts(name=name, version="1", architecture=core, threads=1)


@pytest.mark.parametrize(
    ("name", "core", "has", "variables", "older"),
    [
        ("openblas", "SkylakeX", NEW, {}, False),
        ("openblas", "Cooperlake", NEW, {}, False),
        ("openblas", "Haswell", NEW, {}, True),
        ("openblas", "Zen", NEW, {}, True),
        ("openblas", "Haswell", MIDDLE, {}, False),
        ("openblas", "Zen", MIDDLE, {}, False),
        ("openblas", "Nehalem", MIDDLE, {}, True),
        ("openblas", "SkylakeX", MIDDLE, {}, False),
        ("openblas", "neoversev1", frozenset(), {}, False),
        ("openblas", "a core of next year", NEW, {}, False),
        ("openblas", None, NEW, {}, False),
        ("blis", "haswell", NEW, {}, True),
        ("blis", "zen4", NEW, {}, False),
        ("mkl", None, NEW, {}, False),
        ("mkl", None, NEW, {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, True),
        ("mkl", None, NEW, {"MKL_ENABLE_INSTRUCTIONS": "AVX512"}, False),
        ("flexiblas", "Haswell", NEW, {}, False),
        ("openblas", "Generic", NEW, {}, True),
        ("openblas", "armv8", frozenset(), {}, True),
        ("blis", "generic", frozenset(), {}, True),
        ("netlib", None, NEW, {}, True),
        ("none", None, frozenset(), {}, True),
    ],
)
def test_a_blas_with_kernels_older_than_the_processor_or_none_is_slow(
    name: str, core: str | None, has: frozenset[str], variables: dict[str, str], older: bool
) -> None:
    assert (explain_slow_blas(blas(name, core), has, variables) is not None) is older


def test_what_forces_them_is_named() -> None:
    said = explain_slow_blas(blas(core="Haswell"), NEW, {"OPENBLAS_CORETYPE": "Haswell"})

    assert said is not None
    assert said.startswith("openblas uses its kernels for Haswell (OPENBLAS_CORETYPE=Haswell), but")
    assert explain_slow_blas(None, NEW, {}) is None


# ------------------------------------------------------------------------------- the whole records


def test_the_facts_about_gpus_before_cuda_opens_them() -> None:
    held = ProcessReading(pid=7, type="compute", memory_used_bytes=2**30)
    readings = reading_of(
        gpu_reading(0, processes=(held,)),
        gpu_reading(1, pci_device_id=None),
        gpu_reading(2, uuid=None),
    )
    uuids = [gpu.uuid or "" for gpu in readings.gpus]
    places = [
        (gpu.pci_bus_id or "", near)
        for gpu, near in zip(readings.gpus, ("0-1", "2-3", "0"), strict=True)
    ]
    probes = FakeProbes(
        kernel_reading=KernelReading(
            pci_devices=(
                *(PciDeviceReading(bus, "0x10de", cpu_affinity=near) for bus, near in places),
                PciDeviceReading("0000:99:00.0", "0x10de"),
            )
        ),
        people={7: ProcessIdentity(pid=7, name="python")},
    )
    digits = [uuid.removeprefix("GPU-").replace("-", "") for uuid in uuids]
    cuda = CudaReading(
        devices=(
            CudaDeviceReading(ordinal=0, uuid_hex=digits[0], integrated=False),
            CudaDeviceReading(ordinal=1, uuid_hex=digits[1]),
            CudaDeviceReading(ordinal=2, integrated=True),
        )
    )
    variables = {"CUPY_TF32": "1", "HOME": "/x"}

    found = run_environment_of(probes, readings, cuda, variables, frozenset({0, 1, 4}))

    assert found == RunEnvironment(
        sensors=found.sensors,
        cards=cards_by_uuid(readings),
        processes={uuids[0]: frozenset({7}), uuids[1]: frozenset()},
        near_cpus={uuids[0]: frozenset({0, 1})},
        far=frozenset({uuids[1]}),
        holders={uuids[0]: "process 7 (python) holds 1.0 GiB"},
        integrated={uuids[0]: False},
        variables={"CUPY_TF32": "1"},
    )
    assert found.sensors.failure is None


def test_a_mig_instance_has_its_cards_place_and_only_its_own_processes() -> None:
    instances = tuple(
        MigReading(f"MIG-{at}", gpu_instance_id=at, compute_instance_id=0) for at in (1, 2)
    )
    processes = tuple(
        ProcessReading(pid, "compute", 2**30, gpu_instance_id=at, compute_instance_id=at and 0)
        for pid, at in ((7, 1), (8, 2), (9, None))
    )
    card = gpu_reading(
        0, mig_instances=instances, processes=processes, virtualization="pass-through"
    )
    near = PciDeviceReading(card.pci_bus_id or "", "0x10de", cpu_affinity="0-1")
    probes = FakeProbes(kernel_reading=KernelReading(pci_devices=(near,)))

    found = run_environment_of(probes, reading_of(card), CudaReading(), {}, frozenset({0, 1, 4}))

    assert found.cards["MIG-1"] is card
    assert found.near_cpus["MIG-1"] == {0, 1}
    assert found.processes["MIG-1"] == {7, 9}
    assert found.holders["MIG-2"] == "process 8 holds 1.0 GiB, process 9 holds 1.0 GiB"


def test_without_nvml_or_gpus_there_are_no_such_facts() -> None:
    silent = NvmlReading(failure=ProbeFailure(code="library-not-found", message="no NVML"))
    probes = FakeProbes(kernel_reading=KernelReading(pci_devices=None))
    cpu_only = FakeProbes()

    found = run_environment_of(probes, silent, CudaReading(), {}, frozenset({0}))
    none = run_environment_of(cpu_only, silent, None, {"CUPY_TF32": "1"}, frozenset({0}))

    assert found.sensors.failure == "no NVML"
    assert (found.near_cpus, found.holders, found.integrated) == ({}, {}, {})
    assert (none.variables, none.sensors.failure, cpu_only.asked) == (
        {"CUPY_TF32": "1"}, "no GPU is measured", [],
    )  # fmt: skip


def environment(opened: OpenedGpus, host: RowEnvironment, **changes: Any) -> BenchEnvironment:
    values: dict[str, Any] = {
        "load_average_1m": 0.5, "duration_s": 3.0, "budget_s": 9.0, "seed": 5, "rooflines": (),
        "data": DESCRIPTIONS[Fill.NORMAL], "mode": BenchMode.DEFAULT, "gpus": (),
        "other_load_percent": host.others_percent, "steal_percent": host.steal_percent,
        "variables": {"CUPY_TF32": "1"},
    }  # fmt: skip
    cpu = FakeCpu(cores=4)
    blas = changes.pop("blas", FakeBlas())
    return environment_of(cpu, cpu.facts(), blas, opened, **(values | changes))


def product(threads: int | None, flops: float | None, device: str = "cpu") -> Roofline:
    return Roofline(
        device=device, threads=threads, copy_bytes_per_s=None, gemm_flops_per_s=flops,
        gemm_dtype="float32",
    )  # fmt: skip


def test_the_environment_of_a_run_whose_parts_are_all_known() -> None:
    opened = OpenedGpus(cupy_version="14.2.0", cublas_version="12.9")
    limits = (product(1, 10.0), product(4, 30.0))

    found = environment(
        opened, RowEnvironment(others_percent=2.0, steal_percent=1.0), rooflines=limits
    )

    assert found.unavailable == {}
    assert (found.cpu_model, found.logical_cores, found.usable_cores) == ("Fake CPU", 4, 4)
    assert (found.blas_name, found.blas_version, found.blas_threads) == ("fakeblas", "1.0", 4)
    assert (found.cupy_version, found.cublas_version) == ("14.2.0", "12.9")
    assert (found.load_average_1m, found.other_load_percent, found.steal_percent) == (0.5, 2.0, 1.0)
    assert (found.parallel_efficiency, found.peak_memory_bytes) == (0.75, 2**27)
    assert (found.duration_s, found.budget_s, found.seed, found.data) == (
        3.0, 9.0, 5, "normal(0,1)",
    )  # fmt: skip
    assert (found.gpu_unavailable, found.gpu_silent, found.variables) == (
        None, False, {"CUPY_TF32": "1"},
    )  # fmt: skip


class NoBlas(FakeBlas):
    def read(self) -> None:
        """Return nothing: threadpoolctl knows none."""


def test_each_part_that_is_missing_has_its_reason() -> None:
    unread = RowEnvironment(others_percent=None, steal_percent=None)
    refused = {0: "it is lost", 2: "held by process 9"}
    one = OpenedGpus(devices=(FakeGpu(FakeClock()),), refused=refused, busy=True)
    none = OpenedGpus(unavailable="no driver", silent=True, names=("H100",), remedy=("do it",))

    some = environment(one, unread, blas=NoBlas(), load_average_1m=None)
    nothing = environment(none, unread, blas=NoBlas(), load_average_1m=None)

    common = {
        "blas_name": "threadpoolctl knows no BLAS in this process",
        "load_average_1m": "/proc/loadavg cannot be read",
        "other_load_percent": "/proc/stat cannot be read",
        "steal_percent": "/proc/stat cannot be read",
        "parallel_efficiency": "matmul was not measured at one and at all threads",
    }
    assert some.unavailable == common | {
        "cupy_version": "no GPU was requested", "cublas_version": "CuPy does not report it"
    }  # fmt: skip
    assert nothing.unavailable == common | {"cupy_version": "no driver"}
    assert some.gpu_unavailable == "gpu:0: it is lost; gpu:2: held by process 9"
    assert (nothing.gpu_unavailable, nothing.gpus_not_measured) == ("no driver", ("H100",))
    assert nothing.gpu_remedy == ("do it",)
    assert some.gpu_silent is nothing.gpu_silent is True
    assert blas_text(nothing) is None


@pytest.mark.parametrize(
    ("version", "core", "text"),
    [
        ("0.3.31", "SkylakeX", "openblas 0.3.31 (SkylakeX)"),
        (None, "Zen", "openblas (Zen)"),
        ("0.3", None, "openblas 0.3"),
    ],
)
def test_a_blas_in_words(version: str | None, core: str | None, text: str) -> None:
    found = environment(OpenedGpus(), RowEnvironment(others_percent=0.0, steal_percent=0.0))
    found = replace(found, blas_name="openblas", blas_version=version, blas_architecture=core)

    assert blas_text(found) == text


@pytest.mark.parametrize(
    ("limits", "efficiency"),
    [
        ([product(1, 10.0), product(2, 18.0), product(8, 40.0)], 0.5),
        ([product(1, 10.0)], None),
        ([product(8, 40.0)], None),
        ([product(1, 10.0), product(8, None)], None),
        ([product(1, 10.0), product(None, 90.0, "gpu:0"), product(8, 40.0, "gpu:0")], None),
        ([], None),
    ],
)
def test_the_efficiency_of_threads(limits: list[Roofline], efficiency: float | None) -> None:
    assert parallel_efficiency(limits) == efficiency


def test_other_programs_and_stolen_time_are_shares_of_all_cores() -> None:
    begun = CpuLoad(load_average_1m=0.0, busy_s=10.0, steal_s=1.0, own_s=4.0)
    share = HostShare(facts=FakeCpu(cores=4).facts())

    share.add(begun, replace(begun, busy_s=16.0, steal_s=3.0, own_s=8.0), 5.0)
    share.add(begun, replace(begun, busy_s=12.0, own_s=4.0), 5.0)

    # Of 40 seconds: (6 - 4) + 2 others, 2 stolen.
    assert share.state() == RowEnvironment(others_percent=10.0, steal_percent=5.0, cores=4)
    share.add(begun, replace(begun, busy_s=1000.0, steal_s=1000.0), 1.0)
    assert share.state() == RowEnvironment(others_percent=100.0, steal_percent=100.0, cores=4)
    share.add(begun, replace(begun, own_s=3000.0, steal_s=-3000.0), 1.0)
    assert share.state() == RowEnvironment(others_percent=0.0, steal_percent=0.0, cores=4)
    share.add(replace(begun, busy_s=None), begun, 1.0)
    assert share.state() == RowEnvironment(others_percent=None, steal_percent=None)
    assert HostShare(facts=FakeCpu().facts()).state().others_percent is None
