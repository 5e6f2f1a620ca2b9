"""`gpucheck bench --profile`: processes judged by a profile, saved and compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpucheck.bench.ci.profile_model import Target
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.shared import Shared
from gpucheck.cli.terminal import status_line
from gpucheck.report.errors import WrongUseError

if TYPE_CHECKING:
    from gpucheck.cli.reporting import Outlets
    from gpucheck.cli.saving import Saving


def run_with_profile(
    name: str,
    devices: Sequence[str],
    shared: Shared,
    saving: Saving,
    outlets: Outlets,
    *,
    require_gpu: bool,
) -> int:
    """Measure and judge by a profile, save the figures, and report them to every output.

    Raises:
        WrongUseError: the profile cannot be used, or is not for the devices that are named.
    """
    from gpucheck.bench.ci.profiles import load_profile
    from gpucheck.bench.ci.run import examine, wanted_devices
    from gpucheck.bench.workers import Workers

    profile = load_profile(name)
    if require_gpu and profile.match.target is Target.CPU:
        message = f"The profile {profile.name} is for the processor: leave --require-gpu out."
        raise WrongUseError(code="other-device", message=message)
    wanted = wanted_devices(profile, devices)

    with machine("bench", shared) as probes:
        with status_line(shown=shared.verbosity >= 0) as tell:
            answer, run = examine(
                *(profile, wanted, probes, Workers(tell=tell)),
                *(saving.baseline, saving.baseline_path),
                allowed=saving.allowed,
            )
        answer = saving.keep(run, answer, shared)
    return deliver("bench", shared, answer, probes.time(), also=outlets.write)
