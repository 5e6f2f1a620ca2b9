from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.drivers.host.cpu import LinuxCpu, cpu_shares, parse_cpu_list, running_on

CACHE = "sys/devices/system/cpu/cpu0/cache"


def plant(root: Path, **files: str) -> LinuxCpu:
    """Write files below the root; double underscores in a name mean slashes."""
    for name, text in files.items():
        write(root, name.replace("__", "/"), text)
    return LinuxCpu(root)


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_an_empty_root_answers_with_nothing_and_no_error(tmp_path: Path) -> None:
    cpu = LinuxCpu(tmp_path)

    facts, load = cpu.facts(), cpu.load()

    assert (
        facts.model is facts.quota_cores is facts.l2_bytes is facts.memory_available_bytes is None
    )
    assert facts.usable_cores >= facts.threads >= 1
    assert load.busy_s is load.steal_s is load.load_average_1m is None
    assert load.own_s > 0


def test_model_memory_and_caches(tmp_path: Path) -> None:
    cpu = plant(
        tmp_path,
        proc__cpuinfo="processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: sse2 avx2\n",
        proc__meminfo="MemTotal: 100 kB\nMemAvailable:     64 kB\n",
    )
    for index, (level, size) in enumerate([("1", "32K"), ("2", "1024K"), ("3", "32M")]):
        write(tmp_path, f"{CACHE}/index{index}/level", level)
        write(tmp_path, f"{CACHE}/index{index}/size", size)

    facts = cpu.facts()

    assert facts.model == "Some CPU @ 2.0GHz"
    assert facts.instruction_sets == {"sse2", "avx2"}
    assert facts.memory_available_bytes == 64 * 1024
    assert facts.l2_bytes == 2**20
    assert facts.last_level_bytes == 32 * 2**20


def test_the_tightest_cgroup_limit_counts(tmp_path: Path) -> None:
    cpu = plant(tmp_path, proc__self__cgroup="0::/a/b\n", proc__meminfo="MemAvailable: 1000 kB\n")
    write(tmp_path, "sys/fs/cgroup/a/b/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/a/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.max", "500000\n")
    write(tmp_path, "sys/fs/cgroup/a/memory.current", "100000\n")

    facts = cpu.facts()

    assert facts.quota_cores == 1.5
    assert facts.threads == 1
    assert facts.memory_available_bytes == 400_000


@pytest.mark.parametrize(("quota", "cores"), [("50000", 0.5), ("-1", None)])
def test_the_quota_of_a_version_1_cgroup(tmp_path: Path, quota: str, cores: float | None) -> None:
    cpu = plant(
        tmp_path,
        sys__fs__cgroup__cpu__cpu_quota="",
    )
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")

    assert cpu.facts().quota_cores == cores
    assert cpu.facts().threads >= 1


def test_load_counts_seconds_of_all_cores(tmp_path: Path) -> None:
    cpu = plant(
        tmp_path,
        proc__loadavg="1.25 0.5 0.1 2/90 12345\n",
        proc__stat="cpu  100 20 30 4000 50 6 4 200 0 0\ncpu0 1 2 3 4\n",
    )

    load = cpu.load()

    assert load.load_average_1m == 1.25
    # 160 ticks of user, nice, system and interrupts, 200 of steal, at 100 ticks a second.
    assert load.busy_s == pytest.approx(1.6)
    assert load.steal_s == pytest.approx(2.0)


def test_the_innermost_quota_tells_how_often_it_was_used_up(tmp_path: Path) -> None:
    cpu = plant(tmp_path, proc__self__cgroup="0::/a/b\n")
    write(tmp_path, "sys/fs/cgroup/a/b/cpu.stat", "usage_usec 9\nnr_periods 0\nnr_throttled 0\n")
    write(tmp_path, "sys/fs/cgroup/a/cpu.stat", "nr_periods 40\nnr_throttled 3\n")

    load = cpu.load()

    assert (load.quota_periods, load.quota_reached) == (40, 3)


def test_without_a_quota_no_period_is_counted(tmp_path: Path) -> None:
    cpu = plant(tmp_path, proc__self__cgroup="0::/\n", sys__fs__cgroup__x="")
    write(tmp_path, "sys/fs/cgroup/cpu.stat", "usage_usec 9\nuser_usec 5\n")

    load = cpu.load()

    assert load.quota_periods is load.quota_reached is None


@given(st.text(max_size=60))
def test_no_text_in_proc_is_an_error(text: str) -> None:
    class Scripted(LinuxCpu):
        def _text(self, path: str) -> str | None:
            return text

    Scripted().facts()
    Scripted().load()


def test_peak_memory_is_what_a_python_holds_at_least() -> None:
    assert (LinuxCpu().peak_memory_bytes() or 0) > 2**22


def test_a_thread_is_kept_on_some_cpus_for_a_block_and_set_free_after_it() -> None:
    before = os.sched_getaffinity(0)
    one = frozenset({min(before)})

    with running_on(one):
        assert os.sched_getaffinity(0) == one

    assert os.sched_getaffinity(0) == before


def test_an_error_sets_the_thread_free_too() -> None:
    before = os.sched_getaffinity(0)

    with pytest.raises(KeyError), running_on(frozenset({min(before)})):
        raise KeyError

    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("cpus", [None, frozenset(), frozenset({10**6})])
def test_cpus_that_we_may_not_use_change_nothing(cpus: frozenset[int] | None) -> None:
    before = os.sched_getaffinity(0)

    with running_on(cpus):
        assert os.sched_getaffinity(0) == before


@given(st.sets(st.integers(0, 255), min_size=1), st.integers(1, 300))
def test_cpus_are_dealt_out_so_that_no_two_threads_share_one(cpus: set[int], count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.sched_getaffinity", lambda _: cpus)
        shares = cpu_shares(count)

    assert len(shares) == count
    if count > len(cpus):
        assert set(shares) == {frozenset(cpus)}
    else:
        assert all(shares)
        assert sum(map(len, shares)) == len(cpus)
        assert frozenset.union(*shares) == cpus


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3", {0, 1, 2, 3}),
        ("0-1,8,10-11", {0, 1, 8, 10, 11}),
        ("7", {7}),
        (None, set()),
        ("", set()),
        ("a-b", set()),
        ("3-1", set()),
        ("1-", set()),  # the kernel never writes it: not understood rather than guessed
        ("-1", set()),
        ("0-99999999999", set()),  # more than there can be
        ("9" * 5000, set()),
    ],
)
def test_cpu_lists(text: str | None, expected: set[int]) -> None:
    assert parse_cpu_list(text) == expected


@given(st.text())
def test_any_text_is_a_list_of_cpus_or_none(text: str) -> None:
    assert all(number >= 0 for number in parse_cpu_list(text[:20]))
