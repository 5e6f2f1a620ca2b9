"""Readings of the topology: GPUs that do not answer, and the remote end of a link."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpucheck.drivers.nvml.binding import Binding, NvmlError
from gpucheck.drivers.nvml.worker import TopologyReader
from tests.fakes.pynvml_double import FakeNvml, error


def read_topology(nvml: FakeNvml, handles: list[Any]) -> dict[str, Any]:
    """Read the topology as the child does."""
    return TopologyReader(Binding(nvml), handles).read()


def test_topology_of_a_gpu_that_does_not_answer() -> None:
    lost = NvmlError(*("nvmlDeviceGetUUID", 15, "gpu-is-lost", "gone"))
    nvml = FakeNvml(nvmlDeviceGetTopologyCommonAncestor=50, nvmlDeviceGetNvLinkState=error(2))

    found = read_topology(nvml, ["a", lost, "c"])

    assert [(pair["from"], pair["to"], pair["level"]) for pair in found["pairs"]] == [
        (0, 1, None), (0, 2, 50), (1, 2, None),
    ]  # fmt: skip
    assert found["pairs"][0]["unavailable"] == "gone (NVML error 15)"
    assert found["nvlinks"] == []


@pytest.mark.parametrize(
    ("answers", "link"),
    [
        ({"Type": 2, "PciInfo": SimpleNamespace(busId=b"00000000:05:00.0")},
         {"active": True, "remote_type": "switch", "remote_pci_bus_id": "0000:05:00.0"}),
        ({"Type": error(13), "PciInfo": SimpleNamespace(busId="00000000:05:00.0")},
         {"active": True, "remote_type": None, "remote_pci_bus_id": "0000:05:00.0"}),
        ({"Type": 2, "PciInfo": error(999)},
         {"active": True, "remote_type": "switch", "remote_pci_bus_id": None}),
        ({"Type": 0, "PciInfo": SimpleNamespace(busId="nonsense")},
         {"active": True, "remote_type": "gpu", "remote_pci_bus_id": None,
          "unavailable": "the driver's answer could not be read (ValueError)"}),
    ],
)  # fmt: skip
def test_the_other_end_of_a_link(answers: dict[str, Any], link: dict[str, Any]) -> None:
    nvml = FakeNvml(
        nvmlDeviceGetNvLinkState=lambda handle, number: 1 if number == 0 else error(2),
        nvmlDeviceGetNvLinkRemoteDeviceType=answers["Type"],
        nvmlDeviceGetNvLinkRemotePciInfo=answers["PciInfo"],
    )

    found = read_topology(nvml, ["a"])

    assert found["nvlinks"] == [{"gpu": 0, "link": 0, **link}]
