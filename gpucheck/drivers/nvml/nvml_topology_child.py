"""NVML's readings of the topology, loaded by the NVML child on demand.

Each call goes through the binding of nvml_door_child.py, which turns errors into its `Refusal`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

#: More links than any GPU has; the driver rejects the first that does not exist.
MOST_LINKS = 64
#: The codes of a link that the GPU does not have: invalid argument, or not offered.
NO_SUCH_LINK = frozenset({2, 3, 13})
#: Source: nvml.h (nvmlIntNvLinkDeviceType_t).
REMOTE_TYPES = {0: "gpu", 1: "ibm-npu", 2: "switch"}
#: Exceptions from converting an answer of an unexpected shape.
UNREADABLE = (ValueError, TypeError, AttributeError)


class TopologyReader:
    """Reader of the PCIe ancestor of each pair of GPUs and of every NVLink of each GPU.

    `handles` are NVML's, or the error of a GPU that does not answer; `bus_id` converts NVML's form
    of a bus id into the kernel's.
    """

    def __init__(
        self,
        door: Any,
        refusal: type[Any],
        bus_id: Callable[[bytes | str], str],
        handles: list[Any],
    ) -> None:
        self._door = door
        self._refusal = refusal
        self._bus_id = bus_id
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
                if isinstance(handle, self._refusal):
                    raise handle
            pair["level"] = self._door.ask("nvmlDeviceGetTopologyCommonAncestor", *handles)
        except self._refusal as refusal:
            pair["unavailable"] = refusal.reason()
        return pair

    def _nvlinks(self, index: int) -> Iterator[dict[str, Any]]:
        handle = self._handles[index]
        if isinstance(handle, self._refusal):
            return
        for link in range(MOST_LINKS):
            document = {"gpu": index, "link": link, "active": False}
            try:
                document["active"] = bool(self._door.ask("nvmlDeviceGetNvLinkState", handle, link))
            except self._refusal as refusal:
                if refusal.code not in NO_SUCH_LINK:
                    yield document | {"unavailable": refusal.reason()}
                return
            yield document | (self._peer(handle, link) if document["active"] else {})

    def _peer(self, handle: Any, link: int) -> dict[str, Any]:
        peer: dict[str, Any] = {"remote_type": None, "remote_pci_bus_id": None}
        try:
            kind = self._door.ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
            peer["remote_type"] = REMOTE_TYPES.get(kind)
        except self._refusal:
            peer["remote_type"] = None
        try:
            remote = self._door.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
            peer["remote_pci_bus_id"] = self._bus_id(remote.busId)
        except self._refusal as refusal:
            if peer["remote_type"] in (None, "gpu"):
                peer["unavailable"] = refusal.reason()
        except UNREADABLE as error:
            kind = type(error).__name__
            peer["unavailable"] = f"the driver's answer could not be read ({kind})"
        return peer
