"""NVML child process: run by path, it loads further files of its folder.

The driver may hang in the kernel, so no other process of ours ever calls it. The parent starts
`python -I -S nvml_child.py DIRECTORY_OF_PYNVML`, writes one request a line to standard input and
reads JSON lines from standard output; NVML is initialised once, however many requests follow.
Standard library and pynvml only: nothing of gpucheck is imported here. Python compiles this file at
every start but caches the files that it loads, so it is kept short.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import SourceFileLoader
from types import ModuleType

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


def load_beside(name: str) -> Any:
    """Load the file of that name from this file's folder."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is slow to import
    module = ModuleType(name)
    SourceFileLoader(name, f"{folder}/{name}.py").exec_module(module)
    return module


class Session:
    """Answers requests through one NVML binding."""

    def __init__(self, door: Any, nvml: Any, refusal: type[Any]) -> None:
        self._door = door
        self._nvml = nvml
        self._refusal = refusal
        self._gpus = load_beside("nvml_gpu_child")
        door.added.update(self._gpus.first_forms(nvml))
        #: By index, for requests that come every second.
        self._readers: dict[int, Any] = {}

    def answer(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the documents that answer one request; the last is `end` or `failure`."""
        try:
            if request.get("health"):
                health = load_beside("nvml_health_child")
                arguments = (self._door, self._nvml, self._refusal, request.get("sample_s", 0.0))
                if request.get("gpus") is None:
                    yield from health.read_health(*arguments)
                else:
                    yield from health.read_condition(*arguments[:3], request["gpus"])
            elif request.get("processes_of") is not None:
                for index in request["processes_of"]:
                    if index not in self._readers:
                        self._readers[index] = self._reader(index)
                    yield self._readers[index].read_processes()
            else:
                yield from self._read(request)
        except self._refusal as refusal:
            yield {"part": "failure", **refusal.document()}
            return
        yield {"part": "end", "nvml_calls": self._door.calls}

    def _reader(self, index: int) -> Any:
        return self._gpus.GpuReader(self._door, self._nvml, self._refusal, index)

    def _read(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Read the system, every GPU from `first` on, and the topology."""
        system = self.read_system()
        yield system
        readers = [self._reader(index) for index in range(system["gpu_count"])]
        first = request.get("first", 0)
        for reader in readers[first:]:
            yield reader.read(
                process_utilization=bool(request.get("process_utilization")),
                sysfs=request.get("sysfs", ""),
            )
        if request.get("topology"):
            topology = load_beside("nvml_topology_child")
            handles = [self._handle(reader, request) for reader in readers]
            bus_id = self._gpus.kernel_bus_id
            yield topology.TopologyReader(self._door, self._refusal, bus_id, handles).read()

    def _handle(self, reader: Any, request: dict[str, Any]) -> Any:
        """Return the handle of a GPU, even if another child has read that GPU."""
        index = reader.document["index"]
        if index in request.get("silent", ()):
            function, slug = "nvmlDeviceGetHandleByIndex", "driver-not-answering"
            return self._refusal(function, None, slug, "the GPU did not answer")
        if index < request.get("first", 0):
            reader.open()
        return reader.handle

    def read_system(self) -> dict[str, Any]:
        """Read the driver's own versions and the number of GPUs."""
        system: dict[str, Any] = {"part": "system"}
        unavailable: dict[str, str] = {}
        questions = (
            ("driver_version", "nvmlSystemGetDriverVersion"),
            ("nvml_version", "nvmlSystemGetNVMLVersion"),
            ("cuda_driver_version", "nvmlSystemGetCudaDriverVersion"),
        )
        for name, function in questions:
            try:
                system[name] = self._door.ask(function)
            except self._refusal as refusal:
                unavailable[name] = refusal.reason()
        system["unavailable"] = unavailable
        system["gpu_count"] = self._door.ask("nvmlDeviceGetCount")
        return system


def main() -> None:
    """Answer requests from standard input until it ends."""
    if sys.argv[1]:  # an empty entry would be the current directory
        sys.path.append(sys.argv[1])
    # The driver's library must not be able to write between our lines.
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def say(document: dict[str, Any]) -> None:
        out.write(json.dumps(document) + "\n")
        out.flush()

    doors = load_beside("nvml_door_child")
    try:
        door, nvml = doors.open_nvml()
    except doors.Refusal as refusal:
        say({"part": "system", "library_path": doors.loaded_library()})
        say({"part": "failure", **refusal.document()})
        return
    session = Session(door, nvml, doors.Refusal)
    for line in sys.stdin:
        for document in session.answer(json.loads(line)):
            say(document)


if __name__ == "__main__":
    main()
