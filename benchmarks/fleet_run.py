"""Measures of `fleet run` with many workers on one machine: time, memory, and nodes that fail.

    python -m benchmarks.fleet_run                    50, 100 and 200 workers
    python -m benchmarks.fleet_run --workers 50 25
    python -m benchmarks.fleet_run --registered 250 500 --workers     only registration
    python -m benchmarks.fleet_run --write            ... written to docs/measurements/fleet_run.md

Needs the extra `fleet`. Each worker is a process with a host's name of its own, forked from one
that has imported the engine, so that 200 fit on a laptop. What a node runs prints a document of
eight GPUs and ends: the figures are those of asking, not of checking. The part with failures
freezes (SIGSTOP) and kills workers by what they run; the deadline ends it.

More workers than that are objects in a few processes: to the scheduler they are workers that
register, hold their connections and send heartbeats, but no command is run on them. What they cost
the scheduler is fitted by a power law through the two largest, and that is carried on to 10,000.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "measurements" / "fleet_run.md"
#: Of each kind, in the part with failures; and when that part ends.
FAILING, DEADLINE_S = 5, 30
BEGIN, END = "<!-- registered -->", "<!-- end of registered -->"
#: Processes that hold the workers that only register, and the fleet that their cost is carried to.
HOLDERS, TEN_THOUSAND = 4, 10_000
#: 200 workers on two cores have time for nothing else than these, which a real node does not feel.
_QUIET = {
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "5s",
    "DASK_DISTRIBUTED__ADMIN__TICK__CYCLE": "5s",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL": "10s",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
}
_NODE = """#!/bin/sh
case "$GPUCHECK_BENCHMARK_NODE:$1" in
  frozen:detect) kill -STOP $PPID;;
  dead:detect) kill -KILL $PPID;;
  slow:detect) exec sleep infinity;;
  *) exec cat {folder}/$GPUCHECK_BENCHMARK_HOST.json;;
esac
"""


class Row(NamedTuple):
    """One run: what was asked, the time, the memory of gpucheck and its child, the outcomes."""

    what: str
    seconds: float
    peak_mib: float
    code: int
    outcomes: dict[str, int]


class Load(NamedTuple):
    """What a scheduler bears once all its workers have registered."""

    workers: int
    seconds: float
    cpu_s: float
    resident_mib: float
    descriptors: int
    list_s: float | None = None


def load_of(pid: int, workers: int, seconds: float) -> Load:
    """Return what a process has used so far, from /proc."""
    folder = Path("/proc") / str(pid)
    fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    resident = int((folder / "statm").read_text(encoding="utf-8").split()[1])
    resident_mib = resident * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return Load(workers, seconds, cpu_s, resident_mib, len(list((folder / "fd").iterdir())))


@contextmanager
def cluster(
    workers: int, folder: Path, fork: Callable[[str, int, Path], list[int]]
) -> Iterator[tuple[str, Load]]:
    """Yield a scheduler's address, and its load when all that `fork` started had registered."""
    scheduler = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "fleet" / "dask_node.py"), "scheduler"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert scheduler.stdout is not None
    address = scheduler.stdout.readline().strip()
    os.environ.update(_QUIET)
    import distributed  # noqa: F401 - the children have it without an import of their own

    begun_s = time.monotonic()
    pids = fork(address, workers, folder)
    try:
        asyncio.run(all_registered(address, workers))
        yield address, load_of(scheduler.pid, workers, time.monotonic() - begun_s)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        scheduler.kill()
        scheduler.wait()


def fork_workers(address: str, workers: int, folder: Path) -> list[int]:
    """Start a process for each worker."""
    return [fork_worker(address, number, folder) for number in range(workers)]


def fork_holders(address: str, workers: int, folder: Path) -> list[int]:
    """Start a few processes that hold so many workers, which only register."""
    return [fork_holder(address, range(one, workers, HOLDERS), folder) for one in range(HOLDERS)]


def fork_holder(address: str, numbers: range, folder: Path) -> int:
    """Start a process that holds a worker of each number."""
    pid = os.fork()
    if pid:
        return pid
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    asyncio.run(hold(address, numbers, folder))
    os._exit(0)


async def hold(address: str, numbers: range, folder: Path) -> None:
    """Be so many workers until the end, a few of them at a time registering."""
    from distributed import Worker

    options = {"nthreads": 1, "host": "127.0.0.1", "memory_limit": 0, "dashboard": False}
    slots = asyncio.Semaphore(8)
    held = []

    async def register(number: int) -> None:
        async with slots:
            held.append(
                await Worker(
                    address, name=f"node{number:05d}", local_directory=str(folder), **options
                )
            )

    await asyncio.gather(*(register(number) for number in numbers))
    await asyncio.Event().wait()


def fork_worker(address: str, number: int, folder: Path) -> int:
    """Start one worker; the first of them will fail when they are told to `detect`."""
    pid = os.fork()
    if pid:
        return pid
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
    name = f"node{number:04d}"
    platform.node = lambda: name
    kinds = ["frozen", "dead", "slow"]
    kind = kinds[number // FAILING] if number < FAILING * len(kinds) else "good"
    os.environ["GPUCHECK_BENCHMARK_NODE"] = kind
    os.environ["GPUCHECK_BENCHMARK_HOST"] = name
    os.environ["PATH"] = f"{folder}:{os.defpath}"
    asyncio.run(work(address, name))
    os._exit(0)


async def work(address: str, name: str) -> None:
    """Be a worker until the end."""
    from distributed import Worker

    options = {"nthreads": 1, "host": "127.0.0.1", "resources": {"GPU": 1}, "dashboard": False}
    async with Worker(address, name=name, memory_limit=0, **options) as worker:
        await worker.finished()


async def all_registered(address: str, count: int) -> None:
    """Wait for so many workers."""
    from distributed import Client

    async with Client(address, asynchronous=True) as client:
        await client.wait_for_workers(count)


def measured(what: str, address: str, *words: str) -> Row:
    """Run gpucheck once."""
    command = [sys.executable, "-m", "gpucheck", "fleet", "run", "--json"]
    command += ["--scheduler", address, *words]
    begun_s = time.monotonic()
    with tempfile.TemporaryFile() as out:
        child = os.posix_spawn(
            command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        )
        _, status, usage = os.wait4(child, 0)
        seconds = time.monotonic() - begun_s
        out.seek(0)
        document = json.load(out)
    nodes = document["result"]["nodes"] if document["result"] else []
    outcomes = dict(Counter(node["outcome"] for node in nodes))
    # Of gpucheck and of the child that it waited for, the larger.
    peak_mib = usage.ru_maxrss / 1024
    return Row(what, seconds, peak_mib, os.waitstatus_to_exitcode(status), outcomes)


def runs(address: str, folder: Path) -> Iterator[Row]:
    """Yield the rows; the one that leaves frozen workers behind comes last."""
    results = str(folder / "results.jsonl")
    yield measured("list, kept in a file", address, "list", "--results", results)
    yield measured("bench, waves of 5 %", address, "bench")
    deadline = ("--deadline", str(DEADLINE_S), "--node-timeout", "5")
    what = f"detect, {FAILING} frozen, {FAILING} killed, {FAILING} without end"
    yield measured(what, address, "detect", *deadline)


def carried_on(loads: Sequence[Load]) -> list[str]:
    """Return the rows of the workers that only registered, and of 10,000 by their power law."""
    lines = [
        f"| {load.workers:,} | {load.seconds:.0f} s | {load.cpu_s:.1f} s |"
        f" {load.resident_mib:.0f} MiB | {load.descriptors:,} |"
        for load in loads
    ]
    if len(loads) < 2:
        return lines
    one, two = loads[-2:]
    power = math.log(two.cpu_s / one.cpu_s) / math.log(two.workers / one.workers)
    cpu_s = two.cpu_s * (TEN_THOUSAND / two.workers) ** power
    more = (TEN_THOUSAND - two.workers) / (two.workers - one.workers)
    mib = two.resident_mib + more * (two.resident_mib - one.resident_mib)
    descriptors = two.descriptors + more * (two.descriptors - one.descriptors)
    lines.append(
        f"| 10,000, carried on | | {cpu_s:.0f} s (power {power:.2f}) | {mib:.0f} MiB |"
        f" {descriptors:,.0f} |"
    )
    return lines


def section(light: Sequence[Load], busy: float) -> str:
    """Return the part of the page about workers that only register.

    `busy` is how many processes wanted a core before it began.
    """
    lines = [
        BEGIN,
        "## More workers than fit",
        "",
        f"Workers that are objects in {HOLDERS} processes: they register, hold their connections",
        "and send heartbeats, but run nothing. The last row is no measurement: processor time is",
        "carried on by a power law through the two rows before it, memory and descriptors by a",
        f"straight line. When it began, {busy:.0f} other processes wanted a core, which makes the",
        "times by the clock longer.",
        "",
        "| workers | all registered after | scheduler's CPU by then | its memory |"
        " its descriptors |",
        "|--:|--:|--:|--:|--:|",
        *carried_on(light),
        END,
    ]
    return "\n".join(lines)


def described(rows: Sequence[Row], loads: Sequence[Load], kib: float, about_more: str) -> str:
    """Return the page, `about_more` a part of it."""
    import distributed

    lines = [
        "# `fleet run` with many workers on one machine",
        "",
        "Written by `python -m benchmarks.fleet_run --write`. All workers, the scheduler and",
        f"gpucheck share one machine ({cpu_model()}, {os.cpu_count()} cores), over loopback",
        "without TLS: times are pessimistic. What a node runs prints a document of eight GPUs",
        f"({kib:.0f} KiB) and ends: the figures are those of asking. Distributed",
        f"{distributed.__version__}, Python {platform.python_version()}; the workers' ticks,",
        "monitors and profilers slowed down, which would take both cores.",
        "",
        "## A scheduler and its workers",
        "",
        "| workers | all registered after | scheduler's CPU by then | its memory |"
        " its descriptors | `fleet run list` |",
        "|--:|--:|--:|--:|--:|--:|",
        *(
            f"| {load.workers} | {load.seconds:.1f} s | {load.cpu_s:.2f} s |"
            f" {load.resident_mib:.0f} MiB | {load.descriptors} | {load.list_s:.1f} s |"
            for load in loads
        ),
        "",
        f"## {loads[-1].workers} workers",
        "",
        "| asked | seconds | peak MiB | exit code | outcomes |",
        "|--|--:|--:|--:|--|",
    ]
    for row in rows:
        outcomes = ", ".join(f"{number} {name}" for name, number in sorted(row.outcomes.items()))
        lines.append(
            f"| {row.what} | {row.seconds:.1f} | {row.peak_mib:.0f} | {row.code} | {outcomes} |"
        )
    lines += [
        "",
        "In the last row the command has 5 s on a node; a frozen worker is silent 10 s later.",
        "The workers that were killed and the commands without end are told apart from it, and",
        "every other node has its answer.",
        "",
        about_more,
        "",
    ]
    return "\n".join(lines)


def cpu_model() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def main() -> None:
    """Measure, and print or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[50, 100, 200])
    parser.add_argument("--registered", type=int, nargs="*", default=[250, 500])
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.name}")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.fleet.documents import detect

    busy = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        light = []
        for workers in sorted(options.registered):
            with cluster(workers, folder, fork_holders) as (_, load):
                light.append(load)
        about_more = section(light, busy)
        if not options.workers:
            if options.write:
                before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
                _, _, after = rest.partition(END)
                DOCUMENT.write_text(f"{before}{about_more}{after}", encoding="utf-8")
            print(about_more)
            return
        for number in range(max(options.workers)):
            host = f"node{number:04d}"
            (folder / f"{host}.json").write_text(json.dumps(detect(host)), encoding="utf-8")
        program = folder / "gpucheck"
        program.write_text(_NODE.format(folder=folder), encoding="utf-8")
        program.chmod(0o755)
        loads, rows = [], []
        for workers in sorted(options.workers):
            with cluster(workers, folder, fork_workers) as (
                address,
                load,
            ):
                asked = measured("list, all at once", address, "list")
                loads.append(load._replace(list_s=asked.seconds))
                if workers == max(options.workers):
                    rows = [asked, *runs(address, folder)]
    kib = len(json.dumps(detect("node"))) / 1024
    page = described(rows, loads, kib, about_more)
    if options.write:
        DOCUMENT.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
