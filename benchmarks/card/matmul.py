"""Products of every format and layout compared with torch's, and the card's best shape."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.card.bench import Bench, ready, rivals_of
from benchmarks.card.figures import Bar, Figure, Timed, compete
from gpucheck.bench.gpu_case import ResidentCase
from gpucheck.bench.kernels.matmul import GpuMatmul, product_of
from gpucheck.bench.numerics import FORMATS, STORAGES

#: Least share of torch's rate; both call cuBLAS, and rounds differ by a percent.
_RIVAL_SHARE = 0.98
#: Seconds of work before the best product is taken, for the sustained rate.
_WARM_S = 2.0
_PRODUCTS = ("bfloat16", "float16", "float8", "tf32", "float32", "float64", "int8")
#: Layouts of a product, t for a factor stored transposed; these formats have only one.
_LAYOUTS, _ONE_LAYOUT = ("nn", "nt", "tn"), ("int8", "float8")
#: Formats whose best shape is searched for.
_SWEPT = ("bfloat16", "float16", "tf32", "float8")
#: Shapes of the sweep, as shares of the largest edge: (m, k, n).
_SWEEP = ((1, 1, 1), (0.5, 0.5, 0.5), (1, 0.5, 1), (0.5, 1, 1), (2, 0.5, 1))


def matmul(bench: Bench) -> None:
    """Compare every format's product with torch's, and find the best shape and layout."""
    # Halves of it are multiples of 16 too.
    edge = max(64, int(8192 * bench.share) // 32 * 32)
    for dtype in _PRODUCTS:
        work = edge if dtype not in ("float64", "float32") else edge // 2
        for task in tasks_in(dtype, (work,) * 3):
            bench.notes.take(task.name, "FLOP/s", partial(product, bench, task))
            bench.release()
    for dtype in _PRODUCTS:
        bench.notes.take(f"{dtype} checked", "", partial(checked_product, bench, dtype))
        bench.release()
    # The sweeps take longest, and come when every format has its figures.
    for dtype in _SWEPT:
        best = partial(best_product, bench, dtype, edge)
        bench.notes.take(f"{dtype} best", "FLOP/s", best)
        bench.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Product of (m, k) and (k, n); `layout` is nn, nt or tn, t for a factor stored transposed.

    `fast` is float8's fast accumulation.
    """

    dtype: str
    layout: str
    edges: tuple[int, int, int]
    fast: bool = False

    @property
    def shape(self) -> str:
        """Return its label among the format's products."""
        edges = self.edges if len(set(self.edges)) > 1 else self.edges[:1]
        fast = " fast" if self.fast else ""
        return f"{'x'.join(map(str, edges))} {self.layout}{fast}"

    @property
    def name(self) -> str:
        """Return the name of its row."""
        return f"{self.dtype} {self.shape}"


def tasks_in(dtype: str, edges: tuple[int, int, int]) -> list[Task]:
    """Return the products of these edges that a format supports."""
    layouts = ("nt",) if dtype in _ONE_LAYOUT else _LAYOUTS
    return [
        Task(dtype=dtype, layout=layout, edges=edges, fast=fast)
        for layout in layouts
        for fast in ((False, True) if dtype == "float8" else (False,))
    ]


def product(bench: Bench, task: Task) -> Figure:
    """Return the rate of one product and torch.mm's for the same shape and layout."""
    m, k, n = task.edges
    makers = {"torch": lambda torch: torch.product(m, k, n, task.dtype, task.layout, task.fast)}
    sides = {"ours": timed_product(bench, task), **rivals_of(bench, makers)}
    outcome, work = compete(sides), 2 * m * k * n
    rivals = outcome.rival_rates(work)
    return Figure(
        part="matmul",
        name=task.name,
        unit="FLOP/s",
        ours=outcome.rate(work),
        rivals=rivals,
        failures=outcome.failures,
        scatter=outcome.scatter,
        limit=bench.datasheet(task.dtype),
        limit_name="datasheet",
        bars=[Bar(what=rival, least=_RIVAL_SHARE) for rival in rivals],
    )


def timed_product(bench: Bench, task: Task) -> Timed:
    """Return the timer of cuBLAS' product through gpucheck's client."""
    gpu, (m, k, n), form = bench.gpu, task.edges, FORMATS[task.dtype]
    numbers = bench.numbers(task.dtype, m * k + k * n)
    first, second = (one == "t" for one in task.layout)
    left = gpu.upload(numbers[: m * k].reshape((k, m) if first else (m, k)))
    right = gpu.upload(numbers[m * k :].reshape((n, k) if second else (k, n)))
    out = gpu.allocate((m, n), STORAGES[form.output])
    how = product_of(
        form, left_transposed=first, right_transposed=second, fast_accumulation=task.fast
    )

    def timed(loops: int) -> float:
        def enqueue() -> None:
            for _ in range(loops):
                gpu.multiply(left, right, out, how)

        return gpu.span(enqueue).seconds

    return timed


def best_product(bench: Bench, dtype: str, edge: int) -> Figure:
    """Sweep shapes and layouts, and measure the best one again: its first time was lucky."""
    alone = replace(bench, torch=None)
    rates: dict[str, float] = {}
    tasks: dict[str, Task] = {}
    for shares in _SWEEP:
        edges = (int(edge * shares[0]), int(edge * shares[1]), int(edge * shares[2]))
        for task in tasks_in(dtype, edges):
            tasks[task.shape] = task
            rates[task.shape] = product(alone, task).ours or 0.0
            bench.gpu.release()
    best = max(rates, key=lambda one: rates[one])
    warm(timed_product(bench, tasks[best]), _WARM_S * bench.share)
    again = product(bench, tasks[best])
    return replace(again, name=f"{dtype} best", details={"shape": best, "tried": rates})


def warm(timed: Timed, seconds: float) -> None:
    """Keep the card busy until it has left its initial clock."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        timed(10)


def checked_product(bench: Bench, dtype: str) -> Figure:
    """Return whether products of this format are right in both of gpucheck's layouts."""
    name, edge = f"{dtype} checked", 1024 if bench.share == 1 else 64
    ok = True
    for transposed in (True,) if dtype in _ONE_LAYOUT else (False, True):
        operation = GpuMatmul(
            bench.order((edge, edge, edge), dtype), bench.gpu, transposed=transposed
        )
        with ready(ResidentCase(bench.gpu, operation)) as checked:
            ok = ok and checked.ok
    return Figure(part="matmul", name=name, unit="", ours=1.0, verified=ok)
