"""`gpucheck bench --profile`: processes measured and held against a profile, saved and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpucheck.cli.output import deliver
from gpucheck.cli.shared import Shared
from gpucheck.cli.status import status_line
from gpucheck.models.bench import BenchRequest
from gpucheck.models.errors import ExitCode, WrongUseError
from gpucheck.models.profile import Target
from gpucheck.models.report import Answer

if TYPE_CHECKING:
    from gpucheck.cli.reporting import Outlets
    from gpucheck.cli.saving import Saving
    from gpucheck.core.bench.gates.facts import Node
    from gpucheck.core.bench.profiles.run import Outcome
    from gpucheck.models.bench_run import Baseline, ProcessRun
    from gpucheck.models.device import Inventory
    from gpucheck.models.profile import Profile
    from gpucheck.models.saved_run import SavedRun
    from gpucheck.models.snapshot import NvmlReading
    from gpucheck.probes.interface import Probes


def check_alone(
    request: BenchRequest, *, corruption_s: float, processes: int | None, burn: float | None
) -> None:
    """Refuse options that say what is measured beside a profile, which says it already.

    Raises:
        WrongUseError: one of them is given.
    """
    plain = BenchRequest(devices=request.devices, samples=request.samples)
    options = {
        "the kernels": request.kernels,
        "--size": request.size,
        "--dtype": request.dtypes,
        "--quick and --full": request.mode is not plain.mode,
        "--budget": request.budget_s,
        "--seed": request.seed != plain.seed,
        "--fill": request.fill is not plain.fill,
        "--temperature": request.temperature != plain.temperature,
        "--towers": request.towers != plain.towers,
        "--data": request.data_file,
        "--corruption": corruption_s,
        "--processes": processes,
        "--burn": burn,
    }
    named = [name for name, given in options.items() if given]
    if named:
        raise WrongUseError(
            code="profile-and-options",
            message=f"The profile says what is measured: leave {', '.join(named)} out.",
            remedy=("Copy the profile and change it: gpucheck profile list shows where it is.",),
        )


def run_with_profile(
    name: str, devices: Sequence[str], shared: Shared, saving: Saving, outlets: Outlets
) -> int:
    """Measure and judge what a profile says, keep the figures, and report them everywhere."""
    from gpucheck.core.bench.profiles.store import load_profile

    profile = load_profile(name)
    wanted = _wanted(devices, on_cpu=profile.match.target is Target.CPU)

    def find(probes: Probes) -> Answer:
        answer, outcome = _measure(profile, wanted, shared, probes, saving)
        if outcome is not None:
            saving.keep(_to_keep(outcome, probes.time()), quiet=shared.verbosity < 0)
        return answer

    return deliver("bench", shared, find, also=outlets.write)


def _measure(
    profile: Profile, wanted: Sequence[str], shared: Shared, probes: Probes, saving: Saving
) -> tuple[Answer, Outcome | None]:
    from gpucheck.core.bench.processes.workers import stations_of
    from gpucheck.core.bench.profiles.run import conclude_profile, run_profile
    from gpucheck.core.inventory import complete_host
    from gpucheck.probes.cpu import LinuxCpu
    from gpucheck.probes.interface import NvmlQuestion
    from gpucheck.probes.workers import ProcessWorkers

    on_cpu = profile.match.target is Target.CPU
    reading = probes.nvml(NvmlQuestion(topology=profile.inventory.nvlink_links is not None))
    host = complete_host(probes.host(), reading)
    found = None if on_cpu else _inventory(profile, probes)
    if isinstance(found, Answer):
        return found, None
    gpus = found.gpus if found is not None else ()
    stations = stations_of(wanted, gpus)
    if not stations:
        return _no_device(profile, host=Answer(result=None, host=host)), None
    node = _node(found, reading, {station.device for station in stations})
    with status_line(shown=shared.verbosity >= 0) as tell:
        outcome = run_profile(
            profile, node, stations, ProcessWorkers(tell=tell), _baseline_for(profile, saving)
        )
    return conclude_profile(outcome, host, LinuxCpu().facts()), outcome


def _wanted(devices: Sequence[str], *, on_cpu: bool) -> tuple[str, ...]:
    """Return the devices of a profile's kind: all GPUs where none is named.

    Raises:
        WrongUseError: a device of the other kind is named.
    """
    named = tuple(name for name in devices if name != "all")
    wrong = [name for name in named if (name == "cpu") is not on_cpu]
    if wrong:
        kind = "the processor" if on_cpu else "GPUs"
        raise WrongUseError(
            code="other-device",
            message=f"The profile is for {kind}: --device {wrong[0]} is none of them.",
        )
    return named or (("cpu",) if on_cpu else ("gpu",))


def _inventory(profile: Profile, probes: Probes) -> Inventory | Answer:
    """Return the GPUs, or the answer that says why there are none."""
    from gpucheck.core.inventory import ListRequest, take_inventory
    from gpucheck.models.device import Inventory

    topology = profile.inventory.nvlink_links is not None
    answer = take_inventory(ListRequest(topology=topology), probes)
    if isinstance(answer.result, Inventory) and all(
        gpu.cuda_index is None for gpu in answer.result.gpus
    ):
        # The rules left it open what CUDA sees: it is asked itself.
        answer = take_inventory(ListRequest(topology=topology, ask_driver=True), probes)
    if answer.exit_code is not ExitCode.OK or not isinstance(answer.result, Inventory):
        return answer._replace(result=None)
    return answer.result


def _no_device(profile: Profile, *, host: Answer) -> Answer:
    from gpucheck.models.report import Failure

    return host._replace(
        exit_code=ExitCode.MISSING,
        error=Failure(
            code="no-gpu",
            message=f"The profile {profile.name} is for GPUs, and no program sees one here.",
            remedy=("gpucheck list says which are hidden, and why", "gpucheck detect"),
        ),
    )


def _node(found: Inventory | None, reading: NvmlReading, devices: set[str]) -> Node:
    """Return the GPUs that take part, with what only NVML knows of them."""
    from gpucheck.core.bench.gates.facts import Node, NodeGpu

    if found is None:
        return Node(driver_version=reading.driver_version)
    ids = {gpu.uuid: gpu.pci_device_id for gpu in reading.gpus if gpu.uuid is not None}
    links = found.topology.links if found.topology is not None else ()
    gpus = []
    for gpu in found.gpus:
        device = f"gpu:{gpu.cuda_index}" if gpu.cuda_index is not None else None
        own = [link.kind for link in links if gpu.index in (link.from_, link.to)]
        counts = [int(kind[2:]) if (kind or "").startswith("NV") else 0 for kind in own if kind]
        if device in devices:
            gpus.append(
                NodeGpu(
                    gpu=gpu,
                    device=device,
                    pci_device_id=ids.get(gpu.uuid or ""),
                    nvlink_links=min(counts) if counts else None,
                )
            )
    return Node(gpus=tuple(gpus), driver_version=reading.driver_version)


def _baseline_for(
    profile: Profile, saving: Saving
) -> Callable[[Sequence[ProcessRun]], Baseline | None]:
    """Return what makes a saved run ready to hold processes against."""
    from gpucheck.core.bench.processes.baseline import baseline_against
    from gpucheck.core.bench.processes.fingerprint import fingerprints_of
    from gpucheck.core.bench.profiles.run import profile_key

    def baseline(runs: Sequence[ProcessRun]) -> Baseline | None:
        if saving.baseline is None or saving.baseline_path is None:
            return None
        now = fingerprints_of(runs, profile_key(profile))
        return baseline_against(saving.baseline, saving.baseline_path, now, saving.allowed)

    return baseline


def _to_keep(outcome: Outcome, time: str) -> SavedRun | None:
    """Return the checks' figures as they are kept for the next run, None if there are none."""
    from gpucheck.core.bench.gates.verdict import series_of
    from gpucheck.core.bench.processes.baseline import saved_run
    from gpucheck.core.bench.profiles.run import profile_key

    facts = outcome.facts
    series = series_of(facts)
    if not series:
        return None
    return saved_run(facts.runs, series, time=time, profile=profile_key(facts.profile))
