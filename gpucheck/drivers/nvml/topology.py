"""NVML's readings of the topology, loaded by the NVML child on demand."""

from __future__ import annotations

from gpucheck.drivers.nvml.binding import MOST_LINKS, NO_SUCH_LINK, NvmlError, kernel_bus_id
from gpucheck.drivers.nvml.gpu import UNREADABLE, unreadable

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpucheck.drivers.nvml.binding import Binding

#: Source: nvml.h (nvmlIntNvLinkDeviceType_t).
REMOTE_TYPES = {0: "gpu", 1: "ibm-npu", 2: "switch"}


class TopologyReader:
    """Reader of the PCIe ancestor of each pair of GPUs and of every NVLink of each GPU.

    `handles` are NVML's, or the error of a GPU that does not answer.
    """

    def __init__(self, binding: Binding, handles: list[Any]) -> None:
        self._binding = binding
        self._handles = handles

    def read(self) -> dict[str, Any]:
        """Return the topology's document."""
        count = len(self._handles)
        pairs = [
            self._pair(first, second)
            for first in range(count)
            for second in range(first + 1, count)
        ]
        links = [link for index in range(count) for link in self._nvlinks(index)]
        return {"part": "topology", "pairs": pairs, "nvlinks": links}

    def _pair(self, first: int, second: int) -> dict[str, Any]:
        pair: dict[str, Any] = {"from": first, "to": second, "level": None, "unavailable": None}
        handles = (self._handles[first], self._handles[second])
        try:
            for handle in handles:
                if isinstance(handle, NvmlError):
                    raise handle
            pair["level"] = self._binding.ask("nvmlDeviceGetTopologyCommonAncestor", *handles)
        except NvmlError as error:
            pair["unavailable"] = error.reason()
        return pair

    def _nvlinks(self, index: int) -> Iterator[dict[str, Any]]:
        handle = self._handles[index]
        if isinstance(handle, NvmlError):
            return
        for link in range(MOST_LINKS):
            document = {"gpu": index, "link": link, "active": False}
            try:
                document["active"] = bool(
                    self._binding.ask("nvmlDeviceGetNvLinkState", handle, link)
                )
            except NvmlError as error:
                if error.code not in NO_SUCH_LINK:
                    yield document | {"unavailable": error.reason()}
                return
            yield document | (self._peer(handle, link) if document["active"] else {})

    def _peer(self, handle: Any, link: int) -> dict[str, Any]:
        peer: dict[str, Any] = {"remote_type": None, "remote_pci_bus_id": None}
        try:
            kind = self._binding.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            peer["remote_type"] = REMOTE_TYPES.get(kind)
        except NvmlError:
            peer["remote_type"] = None
        try:
            remote = self._binding.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            peer["remote_pci_bus_id"] = kernel_bus_id(remote.busId)
        except NvmlError as error:
            if peer["remote_type"] in (None, "gpu"):
                peer["unavailable"] = error.reason()
        except UNREADABLE as error:
            peer["unavailable"] = unreadable(error)
        return peer
