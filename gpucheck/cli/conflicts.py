"""Checks for `gpucheck bench` options that conflict with --profile or --burn."""

from __future__ import annotations

from gpucheck.bench.model import BenchRequest
from gpucheck.report.errors import WrongUseError


def refuse_beside_profile(request: BenchRequest, **more: object) -> None:
    """Check that no option conflicts with a profile, which decides what is measured.

    `more` are further options by their names, with `_` for `-`; false ones are not given.

    Raises:
        WrongUseError: an option conflicts.
    """
    named = _given(request, **more)
    if named:
        raise WrongUseError(
            code="profile-and-options",
            message=f"The profile decides what is measured: omit {', '.join(named)}.",
            remedy=("Copy the profile and change it: gpucheck profile list shows where it is.",),
        )


def refuse_beside_burn(request: BenchRequest, **more: object) -> None:
    """Check the options of a burn; it takes --device, --size, --seed and --fill.

    Raises:
        WrongUseError: an option has no meaning for a burn.
    """
    wanted = ("--size", "--seed", "--fill")
    named = [name for name in _given(request, **more) if name not in wanted]
    if named:
        raise WrongUseError(
            code="burn-and-options",
            message=f"A burn repeats one product: omit {', '.join(named)}.",
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
