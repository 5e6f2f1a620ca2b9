"""Burn on this machine: choosing and claiming its devices, loading them, and the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from gpucheck.bench.burn import BurnPlan, run_burn
from gpucheck.bench.burn_gates import conclude_burn
from gpucheck.bench.burn_model import BurnMoment, BurnRequest
from gpucheck.bench.burners import Burners
from gpucheck.bench.ci.run import chosen_stations
from gpucheck.bench.claiming import hold_gpus
from gpucheck.bench.environment import memory_holders, variables_of
from gpucheck.bench.plan import check_numbers
from gpucheck.drivers.host.clock import MonotonicClock
from gpucheck.drivers.interface import NvmlQuestion, Probes
from gpucheck.drivers.nvml.telemetry import NoTelemeter, NvmlTelemeter
from gpucheck.drivers.readings import NvmlReading
from gpucheck.inventory.inventory import ListRequest, take_inventory
from gpucheck.inventory.model import Inventory
from gpucheck.place.lease import own_command
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import InconclusiveError, WrongUseError


def check_burn(request: BurnRequest) -> None:
    """Refuse an invalid request before a device is touched.

    Raises:
        WrongUseError: the time, the temperature, the size or the seed is invalid.
    """
    if not 0 < request.seconds < float("inf"):
        message = f"--burn needs more than 0 seconds, not {request.seconds:g}."
        raise WrongUseError(code="bad-burn", message=message)
    if request.limit_c is not None and not 30 <= request.limit_c <= 120:
        message = f"--burn-limit must be 30 to 120 degrees Celsius, not {request.limit_c:g}."
        raise WrongUseError(code="bad-burn-limit", message=message)
    check_numbers(request.product)


def burn_here(
    request: BurnRequest,
    probes: Probes,
    burners: Burners,
    environment: Mapping[str, str],
    tell: Callable[[BurnMoment], None],
) -> Answer:
    """Load the chosen devices until the burn ends, and return the answer.

    Raises:
        MissingError: a GPU is required and there is none.
        InconclusiveError: another process has claimed one.
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
    """Return why a GPU is not burned: a full load would ruin the work of its holder."""
    return InconclusiveError(
        code="gpu-claimed",
        message=f"{uuid} is {reason}.",
        remedy=("Burn the others: --device gpu:N", "See who holds it: gpucheck place --claims"),
    )
