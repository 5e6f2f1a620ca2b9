"""What `bench --profile` makes of the machine before anything is measured."""

from __future__ import annotations

import pytest

from gpucheck.cli.gating import _node, _wanted, check_alone
from gpucheck.models.bench import BenchMode, BenchRequest
from gpucheck.models.device import (
    DecidedBy,
    Gpu,
    Inventory,
    Topology,
    TopologyLink,
    Visibility,
)
from gpucheck.models.errors import WrongUseError
from gpucheck.models.snapshot import NvmlReading
from tests.fakes.probes import gpu_reading, reading_of


def inventory(*kinds: str | None) -> Inventory:
    gpus = tuple(
        Gpu(index=at, cuda_index=None if at == 3 else at, uuid=gpu_reading(at).uuid)
        for at in range(4)
    )
    links = tuple(TopologyLink(from_=0, to=at, kind=kind) for at, kind in enumerate(kinds, start=1))
    seen = Visibility(cuda_visible_devices=None, cuda_device_order=None, decided_by=DecidedBy.RULES)
    return Inventory(gpus=gpus, visibility=seen, topology=Topology(links=links))


READING = reading_of(*(gpu_reading(at) for at in range(4)))


def test_only_gpus_that_take_part_are_in_the_node() -> None:
    found = _node(inventory(), READING, {"gpu:0", "gpu:2"})

    assert [gpu.device for gpu in found.gpus] == ["gpu:0", "gpu:2"]
    assert found.driver_version == READING.driver_version
    assert all(gpu.nvlink_links is None for gpu in found.gpus)


def test_the_worst_connection_to_another_gpu_counts() -> None:
    found = _node(inventory("NV18", "NV6"), READING, {"gpu:0", "gpu:1"})

    assert [gpu.nvlink_links for gpu in found.gpus] == [6, 18]


def test_a_connection_over_the_bus_has_no_links() -> None:
    found = _node(inventory("NV18", "SYS"), READING, {"gpu:0"})

    assert found.gpus[0].nvlink_links == 0


def test_a_processors_profile_needs_no_gpu() -> None:
    assert _node(None, NvmlReading(), set()).gpus == ()


@pytest.mark.parametrize(
    ("devices", "on_cpu", "wanted"),
    [((), False, ("gpu",)), (("all",), False, ("gpu",)), ((), True, ("cpu",)),
     (("gpu:1",), False, ("gpu:1",)), (("cpu",), True, ("cpu",))],
)  # fmt: skip
def test_devices_default_to_those_of_the_profile(
    devices: tuple[str, ...], on_cpu: bool, wanted: tuple[str, ...]
) -> None:
    assert _wanted(devices, on_cpu=on_cpu) == wanted


@pytest.mark.parametrize(("device", "on_cpu"), [("cpu", False), ("gpu:0", True), ("gpu", True)])
def test_a_device_of_the_other_kind_is_refused(device: str, on_cpu: bool) -> None:
    with pytest.raises(WrongUseError, match=f"--device {device} is none"):
        _wanted((device,), on_cpu=on_cpu)


def test_a_plain_request_is_alone() -> None:
    check_alone(BenchRequest(devices=("gpu:1",)), corruption_s=0.0, processes=None, burn=None)


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (BenchRequest(mode=BenchMode.QUICK), "--quick and --full"),
        (BenchRequest(seed=3), "--seed"),
        (BenchRequest(kernels=("copy",), size=4), "the kernels, --size"),
    ],
)
def test_what_the_profile_says_already_is_refused(request_: BenchRequest, named: str) -> None:
    with pytest.raises(WrongUseError, match=f"leave {named} out"):
        check_alone(request_, corruption_s=0.0, processes=None, burn=None)
