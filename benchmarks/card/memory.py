"""Memory: copy and triad on the card, and copies between card and host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial

from benchmarks.card.bench import Bench, ready, repeated, rivals_of
from benchmarks.card.figures import Bar, Figure, Timed, compete
from benchmarks.card.rivals import Torch
from gpucheck.bench.gpu_case import GpuOperation, ResidentCase
from gpucheck.bench.kernels.copy import BLOCK, DriverCopy, KernelCopy, stream_source
from gpucheck.bench.kernels.transfer import TransferCase
from gpucheck.bench.kernels.triad import GpuTriad

#: Least share of the best rival, and of a link's rate, whose packets of 128 or 256 bytes have
#: headers.
_RIVAL_SHARE, _LINK_SHARE = 0.98, 0.8
_WAYS = (
    ("to-gpu", False),
    ("to-gpu", True),
    ("from-gpu", False),
    ("from-gpu", True),
    ("both-ways", False),
)


def bandwidth(bench: Bench) -> None:
    """Copy and triad: ours, the driver's, torch's, and other unrollings of ours."""
    shape = (bench.bytes_of_a_side() // 4096, 1024)
    count, order = shape[0] * shape[1], bench.order(shape)
    copy, triad = KernelCopy(order, bench.gpu), GpuTriad(order, bench.gpu)
    driver = DriverCopy(order, bench.gpu)
    copied = {"torch": lambda torch: torch.copy(count)}
    added = {"torch": lambda torch: torch.triad(count)}
    bench.notes.take("copy", "B/s", partial(streamed, bench, "copy", copy, copied, driver))
    bench.release()
    bench.notes.take("triad", "B/s", partial(streamed, bench, "triad", triad, added))
    bench.release()
    for unroll, per_sm in ((1, 0), (2, 0), (4, 0), (8, 0), (4, 8), (4, 16)):
        grid = f"{per_sm} blocks per SM" if per_sm else "a block a tile"
        name = f"copy, {unroll} packs, {grid}"
        bench.notes.take(name, "B/s", partial(unrolled, bench, name, unroll, per_sm))


def streamed(
    bench: Bench,
    name: str,
    operation: GpuOperation,
    makers: Mapping[str, Callable[[Torch], Timed]],
    driver: DriverCopy | None = None,
) -> Figure:
    """Return the rates of a kernel, of torch, and of the driver if it has one."""
    own, work = ResidentCase(bench.gpu, operation), operation.work.bytes_moved
    with ExitStack() as stack:
        checked = stack.enter_context(ready(own))
        sides: dict[str, Timed] = {"ours": own.run}
        if driver is not None:
            copied = ResidentCase(bench.gpu, driver)
            stack.enter_context(ready(copied))
            sides["cudaMemcpy"] = copied.run
        outcome = compete(sides | rivals_of(bench, makers))
    return Figure(
        part="bandwidth",
        name=name,
        unit="B/s",
        ours=outcome.rate(work),
        rivals=outcome.rival_rates(work),
        failures=outcome.failures,
        scatter=outcome.scatter,
        limit=bench.datasheet(),
        limit_name="datasheet",
        bars=outcome.bars(_RIVAL_SHARE),
        verified=checked.ok,
        details={"bytes": work},
    )


def unrolled(bench: Bench, name: str, unroll: int, per_sm: int) -> Figure:
    """Return our copy's rate with other packs for each thread, or a smaller grid."""
    import numpy as np

    gpu, packs = bench.gpu, bench.bytes_of_a_side() // 16
    function = gpu.compile(stream_source(), "copy", {"BLOCK": BLOCK, "UNROLL": unroll})
    x, y = (gpu.allocate((packs, 4)) for _ in range(2))
    gpu.poison(x)
    grid = per_sm * gpu.facts.sm_count or -(-packs // (BLOCK * unroll))
    arguments = (x, y, np.int64(packs))
    ours = compete({"ours": repeated(gpu, lambda: function(grid, BLOCK, arguments))})
    return Figure(part="bandwidth", name=name, unit="B/s", ours=ours.rate(32 * packs))


def transfer(bench: Bench) -> None:
    """Pinned and pageable copies each way, and both at once."""
    for way, pageable in _WAYS:
        name = f"{way}, {'pageable' if pageable else 'pinned'}"
        bench.notes.take(name, "B/s", partial(moved, bench, name, way, pageable))
        bench.release()


def moved(bench: Bench, name: str, way: str, pageable: bool) -> Figure:
    """Return a way's rate; pinned and alone also torch's and the link's."""
    count = int(2**26 * bench.share)
    case = TransferCase(bench.order((count,)), bench.gpu, way, (count,), pageable=pageable)
    compared = not pageable and way != "both-ways"
    makers = {"torch": lambda torch: torch.transfer(count, way)} if compared else {}
    work = case.work.bytes_moved
    with ready(case) as checked:
        outcome = compete({"ours": case.run, **rivals_of(bench, makers)}, rounds=5)
    link = bench.link_rate() if compared else None
    linked = [Bar(what="link", least=_LINK_SHARE)] if link else []
    return Figure(
        part="transfer",
        name=name,
        unit="B/s",
        ours=outcome.rate(work),
        rivals=outcome.rival_rates(work),
        failures=outcome.failures,
        scatter=outcome.scatter,
        limit=link,
        limit_name="link",
        bars=[*outcome.bars(_RIVAL_SHARE), *linked],
        verified=checked.ok,
    )
