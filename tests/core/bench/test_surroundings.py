from __future__ import annotations

from gpucheck.core.bench.surroundings import nearness

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
