"""Parts of a card's measurement, each with gpucheck's own kernels and CuPy client.

A result below the bar, wrong or missing is a figure too: no part ends because of one row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from benchmarks.card.bench import Bench, ready, timed_case
from benchmarks.card.figures import Figure
from benchmarks.card.matmul import matmul
from benchmarks.card.memory import bandwidth, transfer
from benchmarks.card.softmax import softmax
from benchmarks.card.variants import variants
from gpucheck.bench.case import Case
from gpucheck.bench.gpu_case import ResidentCase
from gpucheck.bench.gpu_training import CopiedTraining, GpuTraining, MultiGpuTraining
from gpucheck.bench.kernels.copy import KernelCopy
from gpucheck.bench.kernels.launch import LaunchCase
from gpucheck.bench.kernels.p2p import PeerCase
from gpucheck.bench.kernels.softmax import GpuSoftmax
from gpucheck.bench.kernels.triad import GpuTriad
from gpucheck.bench.training import TrainingPlan

#: Towers that share one GPU.
_TOWERS = 4


def launch(bench: Bench) -> None:
    """Time an empty kernel one by one, in a graph and as a round trip; then ways of training."""
    for way in ("stream", "graph", "round-trip"):
        name = f"empty kernel, {way}"
        empty = LaunchCase(bench.order(()), bench.gpu, way)
        bench.notes.take(name, "s", partial(timed_case, empty, "launch", name, "s"))
    order, gpu = bench.order((100,)), bench.gpu
    plan = TrainingPlan(kernel="train", batch=100)
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
        TrainingPlan(kernel="towers", batch=size * number, towers=number)
        for number in (1, _TOWERS, count)
    )
    ways: dict[str, tuple[Case, TrainingPlan]] = {
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
    """Run every kernel once on little data, for compute-sanitizer."""
    gpu, batches = bench.gpu, bench.order((100,))
    cases: list[Case] = [
        ResidentCase(gpu, GpuSoftmax(bench.order((5, columns), dtype), gpu))
        for dtype in ("float32", "float16", "bfloat16")
        for columns in (1, 50, 1000, 4099, 30_001, 65_536, 300_001)
    ]
    cases += [
        ResidentCase(gpu, make(bench.order((33, 100)), gpu)) for make in (KernelCopy, GpuTriad)
    ]
    two = TrainingPlan(kernel="towers", batch=200, towers=2)
    cases.append(GpuTraining(batches, two, gpu, "towers", fused=True))
    cases.append(GpuTraining(batches, TrainingPlan(kernel="train", batch=100), gpu, "cublas"))
    for case in cases:
        bench.notes.take(case.label.text, "", partial(exercised, case))


def exercised(case: Case) -> Figure:
    """Return whether a case is right after a run."""
    with ready(case) as checked:
        return Figure(part="exercise", name=case.label.text, unit="", ours=1.0, verified=checked.ok)


#: Parts that measure in a process of their own, by name.
MEASURED: Mapping[str, Callable[[Bench], None]] = MappingProxyType(
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
