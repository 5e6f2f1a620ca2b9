"""One burn on this machine: the devices chosen, claimed and loaded, and what it came to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from gpucheck.core.bench.burn import BurnPlan, run_burn
from gpucheck.core.bench.burn_gates import conclude_burn
from gpucheck.core.bench.claiming import hold_gpus
from gpucheck.core.bench.plan import check_numbers
from gpucheck.core.bench.processes.repeated import chosen_stations
from gpucheck.core.bench.surroundings import memory_holders, variables_of
from gpucheck.core.inventory import ListRequest, take_inventory
from gpucheck.core.picking import own_command
from gpucheck.models.burn import BurnMoment, BurnRequest
from gpucheck.models.device import Inventory
from gpucheck.models.errors import InconclusiveError, WrongUseError
from gpucheck.models.report import Answer
from gpucheck.models.snapshot import NvmlReading
from gpucheck.probes.burners import Burners
from gpucheck.probes.clock import MonotonicClock
from gpucheck.probes.interface import NvmlQuestion, Probes
from gpucheck.probes.telemetry import NoTelemeter, NvmlTelemeter


def check_burn(request: BurnRequest) -> None:
    """Refuse what makes no sense before a device is touched.

    Raises:
        WrongUseError: the time, the temperature, the size or the seed.
    """
    if not 0 < request.seconds < float("inf"):
        message = f"--burn takes seconds above 0, not {request.seconds:g}."
        raise WrongUseError(code="bad-burn", message=message)
    if request.limit_c is not None and not 30 <= request.limit_c <= 120:
        message = f"--burn-limit takes degrees Celsius from 30 to 120, not {request.limit_c:g}."
        raise WrongUseError(code="bad-burn-limit", message=message)
    check_numbers(request.product)


def burn_here(
    request: BurnRequest,
    probes: Probes,
    burners: Burners,
    environment: Mapping[str, str],
    tell: Callable[[BurnMoment], None],
) -> Answer:
    """Load the chosen devices until the burn ends, and conclude.

    Raises:
        MissingError: there is no GPU where one is asked for.
        InconclusiveError: somebody else has claimed one.
    """
    devices = request.product.devices
    on_gpus = set(devices) != {"cpu"}
    answer = take_inventory(ListRequest(ask_driver=on_gpus), probes)
    gpus = answer.result.gpus if isinstance(answer.result, Inventory) and on_gpus else ()
    stations = chosen_stations(devices, gpus, require_gpu=request.require_gpu)
    uuids = [station.gpu_uuid for station in stations if station.gpu_uuid]
    reading = probes.nvml(NvmlQuestion()) if uuids else NvmlReading()
    plan = BurnPlan(
        stations=stations,
        request=request.product,
        seconds=request.seconds,
        limit_c=request.limit_c,
        holders=memory_holders(probes, reading),
        variables=variables_of(environment),
    )
    telemeter = NvmlTelemeter() if uuids else NoTelemeter("no GPU is under load")
    with hold_gpus(uuids, reading, environment, own_command(sys.orig_argv)) as claimed:
        for uuid, reason in claimed.others.items():
            raise _claimed(uuid, reason)
        result = run_burn(plan, burners, telemeter, MonotonicClock(), tell)
    return conclude_burn(result, answer.host)


def _claimed(uuid: str, reason: str) -> InconclusiveError:
    """Return why a GPU is not burned: a full load would ruin the work of whoever holds it."""
    return InconclusiveError(
        code="gpu-claimed",
        message=f"{uuid} is {reason}.",
        remedy=("Burn the others: --device gpu:N", "See who: gpucheck place --claims"),
    )
