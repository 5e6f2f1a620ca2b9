"""Environment of a limited command: additions, and what an outer run left there."""

from __future__ import annotations

from gpucheck.inventory.model import Gpu
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.memlimit.plan import plan_limit
from gpucheck.memlimit.run import RUNS_VARIABLE, limited_environment, new_mark
from gpucheck.report.units import parse_amount


def plan() -> MemoryLimit:
    gpu = Gpu(index=0, cuda_index=0, visible=True, uuid="GPU-0", memory_total_bytes=16 << 30)
    return plan_limit(parse_amount("30%"), [gpu], environment={})


def test_the_users_variables_stay_and_ours_come_on_top() -> None:
    inherited = {"HOME": "/home/me", "CUPY_GPU_MEMORY_LIMIT": "90%"}

    limited = limited_environment(plan(), inherited, hook=False)

    assert (limited["HOME"], limited["CUPY_GPU_MEMORY_LIMIT"]) == ("/home/me", "30%")
    assert "PYTHONPATH" not in limited
    assert inherited == {"HOME": "/home/me", "CUPY_GPU_MEMORY_LIMIT": "90%"}


def test_a_run_inside_a_run_bears_both_marks() -> None:
    outer = limited_environment(plan(), {}, hook=True, mark="first")
    inner = limited_environment(plan(), outer, hook=True, mark="second")

    assert outer[RUNS_VARIABLE] == "first"
    assert inner[RUNS_VARIABLE] == "first,second"


def test_without_a_watcher_there_is_no_mark() -> None:
    assert RUNS_VARIABLE not in limited_environment(plan(), {}, hook=True)


def test_no_two_marks_are_the_same() -> None:
    assert len({new_mark() for _ in range(100)}) == 100
