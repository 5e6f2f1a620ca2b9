"""A profile and this machine: which GPUs take part, what is run, and what is kept of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.bench.ci.model import SavedRun
from gpucheck.bench.ci.profile_model import Profile
from gpucheck.bench.ci.run import examine, node_of, wanted_devices
from gpucheck.drivers.readings import NvmlReading, ProbeFailure
from gpucheck.inventory.model import DecidedBy, Gpu, Inventory, Topology, TopologyLink, Visibility
from gpucheck.report.envelope import Answer
from gpucheck.report.errors import ExitCode, WrongUseError
from tests.fakes.bench_results import measurement
from tests.fakes.bench_runs import FakeWorkers, document
from tests.fakes.gates import CPU, NODE, profile_of
from tests.fakes.probes import FakeProbes, gpu_reading, reading_of


def inventory(*kinds: str | None) -> Inventory:
    gpus = tuple(
        Gpu(index=at, cuda_index=None if at == 3 else at, uuid=gpu_reading(at).uuid)
        for at in range(4)
    )
    links = tuple(TopologyLink(from_=0, to=at, kind=kind) for at, kind in enumerate(kinds, start=1))
    seen = Visibility(cuda_visible_devices=None, cuda_device_order=None, decided_by=DecidedBy.RULES)
    return Inventory(gpus=gpus, visibility=seen, topology=Topology(links=links))


READING = reading_of(*(gpu_reading(at) for at in range(4)))


def test_only_gpus_that_take_part_are_in_thenode_of() -> None:
    found = node_of(inventory(), READING, {"gpu:0", "gpu:2"})

    assert [gpu.device for gpu in found.gpus] == ["gpu:0", "gpu:2"]
    assert found.driver_version == READING.driver_version
    assert all(gpu.nvlink_links is None for gpu in found.gpus)
    ids = [gpu.pci_device_id for gpu in found.gpus]
    assert ids == [READING.gpus[0].pci_device_id, READING.gpus[2].pci_device_id]
    assert all(ids)


def test_the_worst_connection_to_another_gpu_counts() -> None:
    found = node_of(inventory("NV18", "NV6"), READING, {"gpu:0", "gpu:1"})

    assert [gpu.nvlink_links for gpu in found.gpus] == [6, 18]


def test_a_connection_over_the_bus_has_no_links() -> None:
    found = node_of(inventory("NV18", "SYS"), READING, {"gpu:0"})

    assert found.gpus[0].nvlink_links == 0


def test_a_processors_profile_needs_no_gpu() -> None:
    assert node_of(None, NvmlReading(), set()).gpus == ()


def test_a_connection_that_nobody_read_is_unknown() -> None:
    found = node_of(inventory(None), READING, {"gpu:0"})

    assert found.gpus[0].nvlink_links is None


ON_CPU, ON_GPUS = profile_of(CPU), profile_of(NODE)


@pytest.mark.parametrize(
    ("devices", "profile", "wanted"),
    [
        ((), ON_GPUS, ("gpu",)),
        (("all",), ON_GPUS, ("gpu",)),
        ((), ON_CPU, ("cpu",)),
        (("gpu:1",), ON_GPUS, ("gpu:1",)),
        (("cpu",), ON_CPU, ("cpu",)),
    ],
)
def test_devices_default_to_those_of_the_profile(
    devices: tuple[str, ...], profile: Profile, wanted: tuple[str, ...]
) -> None:
    assert wanted_devices(profile, devices) == wanted


@pytest.mark.parametrize(
    ("device", "profile"), [("cpu", ON_GPUS), ("gpu:0", ON_CPU), ("gpu", ON_CPU)]
)
def test_a_device_of_the_other_kind_is_refused(device: str, profile: Profile) -> None:
    with pytest.raises(WrongUseError, match=f"with --device {device}"):
        wanted_devices(profile, (device,))


@pytest.mark.parametrize("device", ["tpu", "gpu:x", "gpu:", "GPU:0", "0"])
def test_what_is_no_device_is_wrong_use_and_no_verdict(device: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        wanted_devices(ON_GPUS, ("gpu:0", device))

    assert caught.value.code == "bad-device"


# -------------------------------------------------------------------------------- examinations


def examined(
    profile: Profile,
    probes: FakeProbes,
    *,
    speed: float = 1e9,
    baseline: SavedRun | None = None,
) -> tuple[Answer, SavedRun | None, FakeWorkers]:
    rows = [measurement("copy", speed)]
    workers = FakeWorkers(lambda order, *_: document(order.device, speed, rows=rows))
    path = None if baseline is None else Path("before.json")
    wanted = wanted_devices(profile, ())
    answer, run = examine(profile, wanted, probes, workers, baseline, path)
    return answer, run, workers


def test_a_run_is_kept_with_its_profile() -> None:
    answer, run, _ = examined(ON_CPU, FakeProbes())

    assert answer.exit_code is ExitCode.OK
    assert run is not None
    assert run.profile == f"{ON_CPU.name}/{ON_CPU.version}/{ON_CPU.digest[:12]}"
    assert run.time == FakeProbes().time()
    assert [one.id for one in run.series] == ["copy"]


@pytest.mark.parametrize(("speed", "code"), [(1e9, ExitCode.OK), (5e8, ExitCode.BAD)])
def test_a_run_is_held_against_the_one_that_was_kept(speed: float, code: ExitCode) -> None:
    _, before, _ = examined(ON_CPU, FakeProbes())

    answer, _, _ = examined(ON_CPU, FakeProbes(), speed=speed, baseline=before)

    assert answer.exit_code is code


def test_a_driver_that_does_not_answer_is_no_verdict() -> None:
    failure = ProbeFailure(code="driver-not-answering", message="nothing came")
    answer, run, workers = examined(ON_GPUS, FakeProbes(readings=NvmlReading(failure=failure)))

    assert (answer.exit_code, answer.result, run) == (ExitCode.INCONCLUSIVE, None, None)
    assert workers.rounds == []


def test_gpus_that_no_program_sees_are_missing() -> None:
    probes = FakeProbes(readings=READING, variables={"CUDA_VISIBLE_DEVICES": ""})

    answer, run, workers = examined(ON_GPUS, probes)

    assert (answer.exit_code, run) == (ExitCode.MISSING, None)
    assert answer.error is not None
    assert "programs see none here" in answer.error.message
    assert workers.rounds == []
