"""NVML child process: reads GPUs, their processes, health and topology on request.

The driver may hang in the kernel, so only this process and that of sensor_worker.py call NVML.
Each request is a line on standard input; its answer is lines of JSON, the last of them `end` or
`failure`. NVML is initialised once, however many requests follow.
"""

from __future__ import annotations

import json
import sys
from functools import partial

from gpucheck.drivers.native import loaded_library, take_over_output
from gpucheck.drivers.nvml.binding import (
    MOST_LINKS,
    NO_SUCH_LINK,
    NvmlError,
    kernel_bus_id,
    open_nvml,
)
from gpucheck.drivers.nvml.gpu import UNREADABLE, GpuReader, answer_limits, unreadable

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpucheck.drivers.nvml.binding import Binding

#: Source: nvml.h (nvmlIntNvLinkDeviceType_t).
REMOTE_TYPES = {0: "gpu", 1: "ibm-npu", 2: "switch"}


class Session:
    """Answers requests through one NVML binding."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        #: By index, for requests that come every second.
        self._readers: dict[int, GpuReader] = {}
        #: NVML's handles by UUID, likewise.
        self._handles: dict[str, Any] = {}

    def answer(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the documents that answer one request; the last is `end` or `failure`."""
        try:
            if request.get("health"):
                yield from self._read_health(request)
            elif request.get("limits"):
                yield from answer_limits(self._binding, request["limits"], self._handles)
            elif request.get("command_lines"):
                from gpucheck.drivers.command_lines import answer as command_lines

                yield from command_lines(request)
            elif request.get("processes_of") is not None:
                for index in request["processes_of"]:
                    if index not in self._readers:
                        self._readers[index] = GpuReader(self._binding, index)
                    yield self._readers[index].read_processes()
            else:
                yield from self._read(request)
        except NvmlError as error:
            yield {"part": "failure", **error.document()}
            return
        yield {"part": "end", "nvml_calls": self._binding.calls}

    def _read_health(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        from gpucheck.drivers.nvml.health import read_condition, read_health

        if request.get("gpus") is None:
            return read_health(self._binding, request.get("sample_s", 0.0))
        return read_condition(self._binding, request["gpus"])

    def _read(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Read the system, every GPU from `first` on, and the topology."""
        system = self.read_system()
        yield system
        readers = [GpuReader(self._binding, index) for index in range(system["gpu_count"])]
        first = request.get("first", 0)
        for reader in readers[first:]:
            yield reader.read(
                process_utilization=bool(request.get("process_utilization")),
                sysfs=request.get("sysfs", ""),
                whole_card=bool(request.get("whole_cards")),
                limits_of=request.get("limits_of", ""),
            )
        if request.get("topology"):
            handles = [_handle(reader, request) for reader in readers]
            yield TopologyReader(self._binding, handles).read()

    def read_system(self) -> dict[str, Any]:
        """Read the driver's own versions and the number of GPUs."""
        system: dict[str, Any] = {"part": "system"}
        unavailable: dict[str, str] = {}
        ask = self._binding.ask
        questions = (
            ("driver_version", partial(ask, "nvmlSystemGetDriverVersion")),
            ("nvml_version", partial(ask, "nvmlSystemGetNVMLVersion")),
            ("cuda_driver_version", partial(ask, "nvmlSystemGetCudaDriverVersion")),
            ("confidential_computing", self._binding.confidential_computing),
        )
        for name, question in questions:
            try:
                system[name] = question()
            except NvmlError as error:
                unavailable[name] = error.reason()
        system["unavailable"] = unavailable
        system["gpu_count"] = self._binding.ask("nvmlDeviceGetCount")
        return system


def _handle(reader: GpuReader, request: dict[str, Any]) -> Any:
    """Return the handle of a GPU, even if another child has read that GPU."""
    index = reader.document["index"]
    if index in request.get("silent", ()):
        function, slug = "nvmlDeviceGetHandleByIndex", "driver-not-answering"
        return NvmlError(function, None, slug, "the GPU did not answer")
    if index < request.get("first", 0):
        reader.open()
    return reader.handle


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


def main(binding_directory: str) -> None:
    """Answer requests from standard input until it ends."""
    if binding_directory:  # an empty entry would be the current directory
        sys.path.append(binding_directory)
    write_answer = take_over_output()
    try:
        session = Session(open_nvml())
    except NvmlError as error:
        write_answer({"part": "system", "library_path": loaded_library("libnvidia-ml.so")})
        write_answer({"part": "failure", **error.document()})
        return
    for line in sys.stdin:
        for document in session.answer(json.loads(line)):
            write_answer(document)
