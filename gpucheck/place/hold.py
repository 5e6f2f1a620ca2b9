"""GPU lease for a Python program: named or chosen GPUs, held while a `with` block runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

from gpucheck.drivers.interface import Probes
from gpucheck.inventory.inventory import ListRequest, take_inventory
from gpucheck.inventory.model import Gpu, Inventory
from gpucheck.place.choice import check_request
from gpucheck.place.claim_model import MOST_SHARES
from gpucheck.place.device_strings import parse_device
from gpucheck.place.model import ChoiceRequest, PlacedDevice, Placement, Preference
from gpucheck.place.picking import Picked, Wish, hold_named, own_command, pick_gpus
from gpucheck.place.placement import check_agreement, place_devices
from gpucheck.report.arguments import check_argument
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import (
    BadAnswerError,
    ExitCode,
    InconclusiveError,
    MissingError,
    WrongUseError,
)
from gpucheck.report.units import parse_amount


@contextmanager
def hold_devices(
    specs: Sequence[str],
    request: ChoiceRequest | None,
    wish: Wish,
    *,
    soft: bool,
    probes: Probes,
) -> Iterator[tuple[PlacedDevice, ...]]:
    """Yield the named devices, or those chosen for a request; hold them inside the block.

    Raises:
        WrongUseError: a device string or the request is invalid.
        BadAnswerError: there is no such device, or too few are available.
        MissingError: there is no GPU, no driver, or no directory for the claims.
        InconclusiveError: the driver does not answer.
    """
    _check(wish)
    wish = replace(wish, command=own_command(sys.orig_argv))
    picked: Picked | None = None
    try:
        try:
            if request is not None:
                picked = pick_gpus(request, wish, probes, os.environ)
            else:
                picked = _name(specs, wish, probes, soft=soft)
        finally:
            probes.close()
        yield _devices(picked.answer)
    finally:
        if picked is not None:
            picked.held.close()


def _check(wish: Wish) -> None:
    problem = None
    check_argument("share", wish.share, "a whole number", Integral)
    if wish.timeout_s is not None:
        check_argument("timeout_s", wish.timeout_s, "seconds", Real)
    if not 1 <= wish.share <= MOST_SHARES:
        problem = f"share takes 1 to {MOST_SHARES} claims per GPU, not {wish.share}."
    elif wish.timeout_s is not None and not wish.wait:
        problem = "timeout_s needs wait=True."
    elif wish.timeout_s is not None and not 0 <= wish.timeout_s < float("inf"):
        problem = f"timeout_s takes seconds, not {wish.timeout_s:g}."
    if problem is not None:
        raise WrongUseError(code="usage", message=problem)


def request_of(
    specs: Sequence[str],
    *,
    count: int | None,
    min_free: str | None = None,
    prefer: str = Preference.FREE_MEMORY.value,
    **criteria: Any,
) -> ChoiceRequest | None:
    """Return the request for a choice; None if devices are named instead.

    Raises:
        WrongUseError: both are given, or a value is invalid.
    """
    for spec in specs:
        check_argument("place", spec, "names such as '/gpu:0' or '0'", str)
    if count is not None:
        check_argument("count", count, "a whole number", Integral)
    if min_free is not None:
        check_argument("min_free", min_free, "a text such as '8GiB' or '30%'", str)
    _check_criteria(criteria)
    if specs and count is not None:
        raise WrongUseError(
            code="usage", message="Name devices, or give a count of GPUs to choose, but not both."
        )
    if specs:
        return None
    try:
        preference = Preference(prefer)
    except ValueError:
        known = ", ".join(Preference)
        raise WrongUseError(
            code="usage", message=f"prefer takes {known}, not {str(prefer)[:40]!a}."
        ) from None
    request = ChoiceRequest(
        count=1 if count is None else count,
        min_free=None if min_free is None else parse_amount(min_free),
        prefer=preference,
        **criteria,
    )
    check_request(request)
    return request


def _check_criteria(criteria: Mapping[str, Any]) -> None:
    texts, numbers = ("min_compute_capability", "name"), ("max_utilization_percent",)
    for key, value in criteria.items():
        if value is None:
            continue
        if key in texts:
            check_argument(key, value, "a text", str)
        elif key in numbers:
            check_argument(key, value, "a number", Real)
        elif key == "share":
            check_argument(key, value, "a whole number", Integral)
        elif key == "exclude":
            check_argument(key, value, "a tuple or list of texts", tuple, list)
            for item in value:
                check_argument(key, item, "a tuple or list of texts", str)


def _name(specs: Sequence[str], wish: Wish, probes: Probes, *, soft: bool) -> Picked:
    for spec in specs:
        parse_device(spec)
    answer = take_inventory(ListRequest(ask_driver=True), probes)
    failure = answer.error
    if failure is not None and answer.exit_code is ExitCode.INCONCLUSIVE:
        raise failure.as_error(InconclusiveError)
    inventory = answer.result
    gpus: Sequence[Gpu] = ()
    if isinstance(inventory, Inventory):
        check_agreement(inventory.visibility)
        gpus = inventory.gpus
    try:
        placement = place_devices(specs, gpus, soft=soft)
    except MissingError as error:
        if failure is None:
            raise
        raise MissingError(
            code=failure.code, message=failure.message, remedy=(*failure.remedy, *error.remedy)
        ) from None
    return hold_named(Answer(result=placement), gpus, wish, os.environ)


def _devices(answer: Answer) -> tuple[PlacedDevice, ...]:
    failure = answer.error
    if failure is not None:
        raise failure.as_error(BadAnswerError)
    return answer.result.devices if isinstance(answer.result, Placement) else ()
