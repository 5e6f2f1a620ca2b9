"""The parts of a card's measurement: each takes its figures with gpucheck's own kernels and door.

What is below the bar, wrong or missing is a figure too: no part ends because one of its rows did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from benchmarks.card.bench import Bench, ready, rivals_of, timed_case
from benchmarks.card.figures import Bar, Figure, compete
from benchmarks.card.matmul import matmul
from benchmarks.card.softmax import softmax, variants
from gpucheck.core.bench.gpu_case import ResidentCase
from gpucheck.core.bench.gpu_training import CopiedTraining, GpuTraining, MultiGpuTraining
from gpucheck.core.bench.kernel import Case
from gpucheck.core.bench.kernels.copy import BLOCK, DriverCopy, KernelCopy, stream_source
from gpucheck.core.bench.kernels.launch import LaunchCase
from gpucheck.core.bench.kernels.p2p import PeerCase
from gpucheck.core.bench.kernels.softmax import GpuSoftmax
from gpucheck.core.bench.kernels.transfer import TransferCase
from gpucheck.core.bench.kernels.triad import GpuTriad
from gpucheck.core.bench.training import Plan

#: What of a link's rate is left for data: packets of 128 or 256 bytes have headers.
_LINK_SHARE = 0.8
#: Towers that share one GPU.
_TOWERS = 4


def bandwidth(bench: Bench) -> None:
    """Copy and triad: ours, the driver's, torch's, and other unrollings of ours."""
    count = bench.bytes_of_a_side() // 4
    shape = (count // 1024, 1024)
    bytes_copied = 8 * shape[0] * shape[1]

    def copy() -> Figure:
        driver = ResidentCase(bench.gpu, DriverCopy(bench.order(shape), bench.gpu))
        own = ResidentCase(bench.gpu, KernelCopy(bench.order(shape), bench.gpu))
        makers = {"torch": lambda torch: torch.copy(shape[0] * shape[1])}
        with ready(own) as checked, ready(driver):
            sides = {"ours": own.run, "cudaMemcpy": driver.run, **rivals_of(bench, makers)}
            outcome = compete(sides)
            rivals = outcome.rival_rates(bytes_copied)
        bars = [Bar(what=name, least=0.98) for name in rivals]
        return Figure(
            part="bandwidth",
            name="copy",
            unit="B/s",
            ours=outcome.rate(bytes_copied),
            rivals=rivals,
            failures=outcome.failures,
            limit=bench.datasheet(),
            limit_name="datasheet",
            bars=bars,
            verified=checked.ok,
            details={"bytes": bytes_copied},
        )

    def triad() -> Figure:
        own = ResidentCase(bench.gpu, GpuTriad(bench.order(shape), bench.gpu))
        makers = {"torch": lambda torch: torch.triad(shape[0] * shape[1])}
        with ready(own) as checked:
            sides = {"ours": own.run, **rivals_of(bench, makers)}
            outcome, moved = compete(sides), 12 * shape[0] * shape[1]
            rivals = outcome.rival_rates(moved)
        bars = [Bar(what=name, least=0.98) for name in rivals]
        return Figure(
            part="bandwidth",
            name="triad",
            unit="B/s",
            ours=outcome.rate(moved),
            rivals=rivals,
            failures=outcome.failures,
            limit=bench.datasheet(),
            limit_name="datasheet",
            bars=bars,
            verified=checked.ok,
        )

    bench.notes.take("copy", "B/s", copy)
    bench.release()
    bench.notes.take("triad", "B/s", triad)
    bench.release()
    for unroll, per_sm in ((1, 0), (2, 0), (4, 0), (8, 0), (4, 8), (4, 16)):
        name = f"copy, {unroll} packs, " + (
            f"{per_sm} blocks per SM" if per_sm else "a block a tile"
        )
        bench.notes.take(name, "B/s", partial(unrolled, bench, name, unroll, per_sm))


def unrolled(bench: Bench, name: str, unroll: int, per_sm: int) -> Figure:
    """Return our copy's rate with another number of packs for a thread, or a smaller grid."""
    import numpy as np

    gpu, count = bench.gpu, bench.bytes_of_a_side() // 16
    function = gpu.compile(stream_source(), "copy", {"BLOCK": BLOCK, "UNROLL": unroll})
    x, y = (gpu.allocate((count, 4)) for _ in range(2))
    gpu.poison(x)
    grid = per_sm * gpu.facts.sm_count or -(-count // (BLOCK * unroll))

    def timed(loops: int) -> float:
        def enqueue() -> None:
            for _ in range(loops):
                function(grid, BLOCK, (x, y, np.int64(count)))

        return gpu.span(enqueue).seconds

    ours = compete({"ours": timed}).rate(32 * count)
    return Figure(part="bandwidth", name=name, unit="B/s", ours=ours)


def transfer(bench: Bench) -> None:
    """Pinned and pageable copies each way, and both at once."""
    count = int(2**26 * bench.share)
    for way in ("to-gpu", "from-gpu", "both-ways"):
        for pageable in (False, True) if way != "both-ways" else (False,):
            name = f"{way}, {'pageable' if pageable else 'pinned'}"

            def measure(way: str = way, pageable: bool = pageable, name: str = name) -> Figure:
                order = bench.order((count,))
                case = TransferCase(order, bench.gpu, way, (count,), pageable=pageable)
                makers = {"torch": lambda torch: torch.transfer(count, way)}
                shown = {} if pageable or way == "both-ways" else rivals_of(bench, makers)
                with ready(case) as checked:
                    outcome = compete({"ours": case.run, **shown}, rounds=5)
                    rivals = outcome.rival_rates(case.work.bytes_moved)
                bars = [Bar(what=rival, least=0.98) for rival in rivals]
                one_way = not pageable and way != "both-ways"
                link = bench.link_rate() if one_way else None
                linked = [Bar(what="link", least=_LINK_SHARE)] if link else []
                return Figure(
                    part="transfer",
                    name=name,
                    unit="B/s",
                    ours=outcome.rate(case.work.bytes_moved),
                    rivals=rivals,
                    failures=outcome.failures,
                    limit=link,
                    limit_name="link",
                    bars=[*bars, *linked],
                    verified=checked.ok,
                )

            bench.notes.take(name, "B/s", measure)
            bench.release()


def launch(bench: Bench) -> None:
    """Time an empty kernel one by one, in a graph, and there and back; then training's ways."""
    for way in ("stream", "graph", "round-trip"):
        name = f"empty kernel, {way}"
        empty = LaunchCase(bench.order(()), bench.gpu, way)
        bench.notes.take(name, "s", partial(timed_case, empty, "launch", name, "s"))
    order, gpu = bench.order((100,)), bench.gpu
    plan = Plan(kernel="train", batch=100)
    ways: dict[str, Case] = {
        "resident, one graph": GpuTraining(order, plan, gpu, "fused", fused=True),
        "resident, cuBLAS launches": GpuTraining(order, plan, gpu, "cublas"),
        "copied for each step": CopiedTraining(order, plan, gpu, "copied"),
    }
    for way, case in ways.items():
        name = f"train 100, {way}"
        measure = partial(timed_case, case, "launch", name, "image/s", 100)
        bench.notes.take(name, "image/s", measure)
        bench.release()


def towers(bench: Bench) -> None:
    """One tower, several on one GPU, all GPUs, and copies between each pair."""
    gpu, count, size = bench.gpu, len(bench.gpus), max(64, int(4096 * bench.share))
    order = bench.order((size,))
    one, several, everywhere = (
        Plan(kernel="towers", batch=size * number, towers=number) for number in (1, _TOWERS, count)
    )
    ways: dict[str, tuple[Case, Plan]] = {
        f"one tower of {size}": (GpuTraining(order, one, gpu, "one", fused=True), one),
        f"{_TOWERS} towers on one GPU": (
            GpuTraining(order, several, gpu, "several", fused=True),
            several,
        ),
    }
    if count > 1:
        apart = MultiGpuTraining(order, everywhere, bench.gpus, "all", fused=True)
        ways[f"a tower on each of {count} GPUs"] = (apart, everywhere)
    for name, (case, plan) in ways.items():
        measure = partial(timed_case, case, "towers", name, "image/s", plan.batch)
        bench.notes.take(name, "image/s", measure)
        bench.release()
    edge = int(8192 * math.sqrt(bench.share))
    for peer in bench.gpus[1:]:
        name = f"gpu:{peer.facts.cuda_index} to gpu:{gpu.facts.cuda_index}"
        copies = PeerCase(bench.order((edge, edge)), gpu, peer)
        work = copies.work.bytes_moved
        bench.notes.take(name, "B/s", partial(timed_case, copies, "towers", name, "B/s", work))


def exercise(bench: Bench) -> None:
    """Run every kernel once on little data: what compute-sanitizer watches."""
    gpu, batches = bench.gpu, bench.order((100,))
    cases: list[Case] = [
        ResidentCase(gpu, GpuSoftmax(bench.order((5, columns), dtype), gpu))
        for dtype in ("float32", "float16", "bfloat16")
        for columns in (1, 50, 1000, 4099, 30_001, 65_536, 300_001)
    ]
    cases += [
        ResidentCase(gpu, make(bench.order((33, 100)), gpu)) for make in (KernelCopy, GpuTriad)
    ]
    two = Plan(kernel="towers", batch=200, towers=2)
    cases.append(GpuTraining(batches, two, gpu, "towers", fused=True))
    cases.append(GpuTraining(batches, Plan(kernel="train", batch=100), gpu, "cublas"))
    for case in cases:
        bench.notes.take(case.label.text, "", partial(exercised, case))


def exercised(case: Case) -> Figure:
    """Return whether a case is right after a run."""
    with ready(case) as checked:
        return Figure(part="exercise", name=case.label.text, unit="", ours=1.0, verified=checked.ok)


#: The parts in the order in which they are run: the least dispensable first.
PARTS: Mapping[str, Callable[[Bench], None]] = MappingProxyType(
    {
        "bandwidth": bandwidth,
        "softmax": softmax,
        "matmul": matmul,
        "transfer": transfer,
        "launch": launch,
        "towers": towers,
        "variants": variants,
        "exercise": exercise,
    }
)
