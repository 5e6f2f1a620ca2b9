"""`gpucheck bench` in several processes: saved with --save, compared with --baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpucheck.models.report import Answer
from gpucheck.probes.interface import Probes

if TYPE_CHECKING:
    from gpucheck.cli.saving import Saving
    from gpucheck.cli.shared import Shared
    from gpucheck.models.bench import BenchRequest


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
    from gpucheck.cli.status import status_line
    from gpucheck.core.bench.processes.repeated import PROCESSES, run_repeated, work_plan
    from gpucheck.core.inventory import ListRequest, take_inventory
    from gpucheck.models.device import Inventory
    from gpucheck.probes.workers import ProcessWorkers

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
            ProcessWorkers(tell=tell),
            saving.baseline,
            saving.baseline_path,
            time=probes.time(),
            allowed=saving.allowed,
        )
    return saving.keep(kept, answer, shared)
