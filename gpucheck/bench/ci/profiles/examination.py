"""Run of `gpucheck bench --profile`: find the GPUs, measure, judge, and return what to save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gpucheck.bench.asked import check_device_names
from gpucheck.bench.ci.gates.facts import Node, NodeGpu
from gpucheck.bench.ci.gates.verdict import series_of
from gpucheck.bench.ci.processes.baseline import baseline_against, saved_run
from gpucheck.bench.ci.processes.fingerprint import fingerprints_of, profile_key
from gpucheck.bench.ci.processes.workers import stations_of
from gpucheck.bench.ci.profile_model import Profile, Target
from gpucheck.bench.ci.profiles.run import Outcome, conclude_profile, run_profile
from gpucheck.bench.ci.run_model import Baseline, ProcessRun
from gpucheck.bench.ci.saved_run_model import SavedRun
from gpucheck.bench.workers import Workers
from gpucheck.drivers.host.cpu import LinuxCpu
from gpucheck.drivers.interface import NvmlQuestion, Probes
from gpucheck.drivers.readings import NvmlReading
from gpucheck.inventory.inventory import ListRequest, complete_host, take_inventory
from gpucheck.inventory.model import Inventory
from gpucheck.report.envelope import Answer, Failure, Host
from gpucheck.report.errors import ExitCode, WrongUseError


def wanted_devices(profile: Profile, devices: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that a profile is for: all GPUs if none is named.

    Raises:
        WrongUseError: a device of the other kind is named, or one that is none.
    """
    check_device_names(devices)
    on_cpu = profile.match.target is Target.CPU
    named = tuple(name for name in devices if name != "all")
    wrong = [name for name in named if (name == "cpu") is not on_cpu]
    if wrong:
        kind = "the processor" if on_cpu else "GPUs"
        raise WrongUseError(
            code="other-device",
            message=f"The profile is for {kind}, so it cannot be used with --device {wrong[0]}.",
        )
    return named or (("cpu",) if on_cpu else ("gpu",))


def examine(
    profile: Profile,
    wanted: Sequence[str],
    probes: Probes,
    workers: Workers,
    baseline: SavedRun | None,
    path: Path | None,
    *,
    allowed: Sequence[str] = (),
) -> tuple[Answer, SavedRun | None]:
    """Measure and judge; return the answer and the run to save, None if nothing was measured."""
    topology = profile.inventory.nvlink_links is not None
    reading = probes.nvml(NvmlQuestion(topology=topology))
    host = complete_host(probes.host(), reading)
    found: Inventory | None = None
    if profile.match.target is not Target.CPU:
        answer = _inventory(probes, topology=topology)
        if not isinstance(answer.result, Inventory):
            return answer, None
        found = answer.result
    stations = stations_of(wanted, found.gpus if found is not None else ())
    if not stations:
        return _no_device(profile, host), None
    node = node_of(found, reading, {station.device for station in stations})
    against = _baseline_for(profile, baseline, path, allowed)
    outcome = run_profile(profile, node, stations, workers, against)
    answer = conclude_profile(outcome, host, LinuxCpu().facts())
    return answer, _kept(outcome, probes.time())


def _inventory(probes: Probes, *, topology: bool) -> Answer:
    """Return the GPUs, or the answer without a result that says why there are none."""
    answer = take_inventory(ListRequest(topology=topology), probes)
    if isinstance(answer.result, Inventory) and all(
        gpu.cuda_index is None for gpu in answer.result.gpus
    ):
        # The rules leave open what CUDA sees, so the driver is asked.
        answer = take_inventory(ListRequest(topology=topology, ask_driver=True), probes)
    return answer if answer.exit_code is ExitCode.OK else answer._replace(result=None)


def _no_device(profile: Profile, host: Host) -> Answer:
    failure = Failure(
        code="no-gpu",
        message=f"The profile {profile.name} is for GPUs, and programs see none here.",
        remedy=("gpucheck list shows which are hidden, and why", "gpucheck detect"),
    )
    return Answer(result=None, exit_code=ExitCode.MISSING, host=host, error=failure)


def node_of(found: Inventory | None, reading: NvmlReading, devices: set[str]) -> Node:
    """Return the GPUs that take part, with what only NVML knows about them."""
    if found is None:
        return Node(driver_version=reading.driver_version)
    ids = {gpu.uuid: gpu.pci_device_id for gpu in reading.gpus if gpu.uuid is not None}
    gpus = tuple(
        NodeGpu(
            gpu=gpu,
            device=f"gpu:{gpu.cuda_index}",
            pci_device_id=ids.get(gpu.uuid or ""),
            nvlink_links=_fewest_links(found, gpu.index),
        )
        for gpu in found.gpus
        if gpu.cuda_index is not None and f"gpu:{gpu.cuda_index}" in devices
    )
    return Node(gpus=gpus, driver_version=reading.driver_version)


def _fewest_links(found: Inventory, index: int) -> int | None:
    """Return the fewest NVLink connections to another GPU, None if the topology was not read."""
    links = found.topology.links if found.topology is not None else ()
    kinds = [link.kind for link in links if index in (link.from_, link.to)]
    counts = [int(kind[2:]) if kind.startswith("NV") else 0 for kind in kinds if kind]
    return min(counts, default=None)


def _baseline_for(
    profile: Profile, baseline: SavedRun | None, path: Path | None, allowed: Sequence[str]
) -> Callable[[Sequence[ProcessRun]], Baseline | None]:
    """Return the function that prepares a saved run for comparison with processes."""

    def against(runs: Sequence[ProcessRun]) -> Baseline | None:
        if baseline is None or path is None:
            return None
        return baseline_against(
            baseline, path, fingerprints_of(runs, profile_key(profile)), allowed
        )

    return against


def _kept(outcome: Outcome, time: str) -> SavedRun | None:
    """Return the checks' figures as they are saved for the next run, None if there are none."""
    facts = outcome.facts
    series = series_of(facts)
    if not series:
        return None
    return saved_run(facts.runs, series, time=time, profile=profile_key(facts.profile))
