"""Options of `gpucheck bench` that mean nothing beside --profile or --burn are refused."""

from __future__ import annotations

from gpucheck.models.bench import BenchRequest
from gpucheck.models.errors import WrongUseError


def refuse_beside_profile(request: BenchRequest, **more: object) -> None:
    """Refuse options that say what is measured beside a profile, which says it already.

    `more` are further options by their names, with `_` for `-`; false ones are not given.

    Raises:
        WrongUseError: one of them is given.
    """
    named = _given(request, **more)
    if named:
        raise WrongUseError(
            code="profile-and-options",
            message=f"The profile says what is measured: leave {', '.join(named)} out.",
            remedy=("Copy the profile and change it: gpucheck profile list shows where it is.",),
        )


def refuse_beside_burn(request: BenchRequest, **more: object) -> None:
    """Refuse options that a burn has no use for; it takes --device, --size, --seed and --fill.

    Raises:
        WrongUseError: one of them is given.
    """
    wanted = ("--size", "--seed", "--fill")
    named = [name for name in _given(request, **more) if name not in wanted]
    if named:
        raise WrongUseError(
            code="burn-and-options",
            message=f"A burn repeats one product: leave {', '.join(named)} out.",
            remedy=(f"It takes --device, {', '.join(wanted)} and --burn-limit.",),
        )


def _given(request: BenchRequest, **more: object) -> list[str]:
    plain = BenchRequest()
    options = {
        "the kernels": request.kernels,
        "--size": request.size is not None,
        "--dtype": request.dtypes,
        "--quick and --full": request.mode is not plain.mode,
        "--budget": request.budget_s is not None,
        "--seed": request.seed != plain.seed,
        "--fill": request.fill is not plain.fill,
        "--temperature": request.temperature != plain.temperature,
        "--towers": request.towers != plain.towers,
        "--data": request.data_file,
        **{f"--{name.replace('_', '-')}": value for name, value in more.items()},
    }
    return [name for name, given in options.items() if given]
