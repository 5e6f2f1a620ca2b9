"""Run environment: the host's other load, its BLAS, and who holds the GPUs' memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.environment import (
    HostShare,
    holders_of,
    nearness,
    older_than_cpu,
    unified_notes,
    variables_of,
)
from gpucheck.drivers.host.blas import BlasFacts
from gpucheck.drivers.host.cpu import CpuLoad
from gpucheck.drivers.readings import ProcessIdentity, ProcessReading
from tests.fakes.bench import FakeClock, FakeCpu, FakeGpu

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


def test_only_a_gpu_without_memory_of_its_own_is_noted() -> None:
    plain = FakeGpu(FakeClock()).facts

    (note,) = unified_notes([plain, replace(plain, cuda_index=1, integrated=True)])

    assert note.startswith("gpu:1 shares the host's memory")


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
    ],
)
def test_kernels_that_are_older_than_the_processor(
    name: str, core: str | None, has: frozenset[str], variables: dict[str, str], older: bool
) -> None:
    assert (older_than_cpu(blas(name, core), has, variables) is not None) is older


def test_what_forces_them_is_named() -> None:
    said = older_than_cpu(blas(core="Haswell"), NEW, {"OPENBLAS_CORETYPE": "Haswell"})

    assert said == "openblas uses its kernels for Haswell (OPENBLAS_CORETYPE=Haswell)"
    assert older_than_cpu(None, NEW, {}) is None
