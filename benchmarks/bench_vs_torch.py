"""Comparison of the CPU kernels with PyTorch's, in one process and alternating.

It needs PyTorch (any CPU build) as well as gpucheck. It prints the ratio of the speeds, with its
bar, for the float32 matrix product, and for a softmax at 4096 x 4096 and T = 0.7 against PyTorch's
best idiomatic and preallocated forms.

    python -m benchmarks.bench_vs_torch [--rounds 15] [--size 2048] [--threads 2]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from gpucheck.bench.case import CaseOrder
from gpucheck.bench.kernels.matmul import CpuMatmul
from gpucheck.bench.kernels.softmax import BlockedSoftmax
from gpucheck.bench.model import BenchRequest
from gpucheck.bench.numerics import HostData
from gpucheck.drivers.host.blas import Blas
from gpucheck.drivers.host.clock import monotonic_s
from gpucheck.drivers.host.cpu import LinuxCpu

TEMPERATURE = 0.7
SOFTMAX_EDGE = 4096
PAUSE_S = 0.3
BARS = {"matmul": 0.9, "softmax, idiomatic": 1.0, "softmax, preallocated": 0.85}


def order_of(shape: tuple[int, ...]) -> CaseOrder:
    """Return the order for a CPU case of gpucheck."""
    return CaseOrder(
        request=BenchRequest(temperature=TEMPERATURE),
        shape=shape,
        dtype="float32",
        data=HostData(0),
        cpu=LinuxCpu().facts(),
        clock=monotonic_s,
        blas=Blas(),
    )


def seconds(work: Callable[[], object], least_s: float = 0.1) -> float:
    """Return the seconds of one call, averaged over `least_s`.

    Both libraries' threads spin for a while after their work, on cores that the other uses next. A
    pause and an uncounted call come first.
    """
    time.sleep(PAUSE_S)
    work()
    start = time.perf_counter()
    count = 0
    while (now := time.perf_counter()) - start < least_s or not count:
        work()
        count += 1
    return (now - start) / count


def ratio(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> list[float]:
    """Return their time over ours for each round; the first one alternates."""
    found = []
    for number in range(rounds):
        if number % 2:
            their_s, our_s = seconds(theirs), seconds(ours)
        else:
            our_s, their_s = seconds(ours), seconds(theirs)
        found.append(their_s / our_s)
    return found


def report(name: str, found: list[float]) -> bool:
    """Print the median ratio and its bar, and return whether it is reached."""
    middle, bar = statistics.median(found), BARS[name]
    quartiles = statistics.quantiles(found, n=4, method="inclusive")
    verdict = "ok" if middle >= bar else "below"
    print(
        f"{name:<22} {middle:5.2f} of torch (quartiles {quartiles[0]:.2f} to {quartiles[2]:.2f}), "
        f"bar {bar:.2f}: {verdict}"
    )
    return middle >= bar


def compare_matmul(torch: object, edge: int, threads: int, rounds: int) -> bool:
    """Compare the products of two matrices of this edge, both preallocated."""
    case = CpuMatmul(order_of((edge, edge, edge)), threads)
    case.prepare()
    left, right = (torch.from_numpy(side) for side in (case._left, case._right))  # type: ignore[attr-defined]
    out = torch.empty((edge, edge))  # type: ignore[attr-defined]
    torch.mm(left, right, out=out)  # type: ignore[attr-defined]
    case.run(1)
    assert case.check().ok
    np.testing.assert_allclose(out.numpy(), case._out, rtol=0, atol=1e-2)
    found = ratio(
        case.step,
        lambda: torch.mm(left, right, out=out),  # type: ignore[attr-defined]
        rounds,
    )
    case.release()
    return report("matmul", found)


def compare_softmax(torch: object, threads: int, rounds: int) -> bool:
    """Compare the softmax with PyTorch's best idiomatic form and with its preallocated one."""
    case = BlockedSoftmax(order_of((SOFTMAX_EDGE, SOFTMAX_EDGE)), threads)
    case.prepare()
    source = torch.from_numpy(case._source)  # type: ignore[attr-defined]
    scaled, out = torch.empty_like(source), torch.empty_like(source)  # type: ignore[attr-defined]

    def preallocated() -> None:
        torch.mul(source, 1 / TEMPERATURE, out=scaled)  # type: ignore[attr-defined]
        torch.softmax(scaled, dim=1, out=out)  # type: ignore[attr-defined]

    idioms: dict[str, Callable[[], object]] = {
        "torch.softmax(x / T, dim=1)": lambda: torch.softmax(source / TEMPERATURE, dim=1),  # type: ignore[attr-defined]
        "(x / T).softmax(dim=1)": lambda: (source / TEMPERATURE).softmax(dim=1),
        "torch.softmax(x * (1 / T), dim=1)": lambda: torch.softmax(  # type: ignore[attr-defined]
            source * (1 / TEMPERATURE), dim=1
        ),
    }
    preallocated()
    case.run(1)
    assert case.check().ok
    np.testing.assert_allclose(out.numpy(), case._out, rtol=0, atol=1e-6)
    best = min(idioms, key=lambda name: min(seconds(idioms[name]) for _ in range(3)))
    print(f"torch's best idiomatic form here: {best}")
    fine = report("softmax, idiomatic", ratio(case.step, idioms[best], rounds))
    fine &= report("softmax, preallocated", ratio(case.step, preallocated, rounds))
    case.release()
    return fine


def main() -> None:
    """Print the ratios, the machine and the versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    chosen = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed here: this comparison needs it, gpucheck does not")
    torch.set_num_threads(chosen.threads)
    facts, blas = LinuxCpu().facts(), Blas().read()
    print(
        f"{facts.model}, {chosen.threads} threads; NumPy {np.__version__} with "
        f"{blas.name if blas else 'no BLAS'}; torch {torch.__version__}"
    )
    with torch.no_grad(), Blas().limited(chosen.threads):
        fine = compare_matmul(torch, chosen.size, chosen.threads, chosen.rounds)
        fine &= compare_softmax(torch, chosen.threads, chosen.rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak memory of this process: {peak / 1024:.0f} MiB")
    print("all bars reached" if fine else "not all bars reached on this run")


if __name__ == "__main__":
    main()
