"""`gpucheck bench` in several processes: saved with --save, compared with --baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.drivers.interface import Probes
from gpucheck.report.envelope import Answer

if TYPE_CHECKING:
    from gpucheck.bench.model import BenchRequest
    from gpucheck.cli.saving import Saving
    from gpucheck.cli.shared import Shared


def repeat(
    request: BenchRequest,
    probes: Probes,
    saving: Saving,
    shared: Shared,
    *,
    corruption_s: float,
    require_gpu: bool,
) -> Answer:
    """Measure in several processes, save the run if requested, and return the answer."""
    from gpucheck.bench.ci.run import PROCESSES, run_repeated, work_plan
    from gpucheck.bench.workers import Workers
    from gpucheck.cli.terminal import status_line
    from gpucheck.inventory.inventory import ListRequest, take_inventory
    from gpucheck.inventory.model import Inventory

    found = take_inventory(ListRequest(ask_driver=set(request.devices) != {"cpu"}), probes).result
    plan = work_plan(
        request,
        found.gpus if isinstance(found, Inventory) else (),
        processes=saving.processes or PROCESSES,
        corruption_s=corruption_s,
        more=saving.baseline is not None,
        require_gpu=require_gpu,
    )
    with status_line(shown=shared.verbosity >= 0) as tell:
        answer, kept = run_repeated(
            plan,
            Workers(tell=tell),
            saving.baseline,
            saving.baseline_path,
            time=probes.time(),
            allowed=saving.allowed,
        )
    return saving.keep(kept, answer, shared)
