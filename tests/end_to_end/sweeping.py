"""Ask the probe children about many broken machines quickly; see forking_server.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from gpucheck.drivers.child import take_failure
from gpucheck.drivers.evidence import HealthReading, LaunchReading
from gpucheck.drivers.nvml.client import assemble, assemble_health
from gpucheck.drivers.readings import CudaReading, NvmlReading, NvmlRequest
from gpucheck.report.codec import from_plain
from tests.conftest import scrubbed_environment
from tests.fakes.libraries import flatten
from tests.fakes.machine import Machine

#: Every code that NVML's header knows, and the one for "unknown".
NVML_CODES = (*range(1, 31), 999)

EVERYTHING = NvmlRequest(topology=True, process_utilization=True)


class Forks:
    """A server that forks a probe child for each question."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._machine_files = [folder / "machine-0.txt", folder / "machine-1.txt"]
        self._asked = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.end_to_end.forking_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=scrubbed_environment(environment),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def nvml(self, machine: Machine, question: NvmlRequest = EVERYTHING) -> NvmlReading:
        """Return what NVML says on a machine."""
        request = {"child": "nvml", "question": question._asdict()}
        parts = self._ask(machine, request, {})
        return assemble(parts, take_failure(parts))

    def health(self, machine: Machine) -> HealthReading:
        """Return what NVML says of the health of a machine's GPUs."""
        request = {"child": "nvml", "question": {"health": True, "sample_s": 0.0}}
        parts = self._ask(machine, request, {})
        return assemble_health(parts, take_failure(parts))

    def launch(self, machine: Machine) -> LaunchReading:
        """Return what comes of running a kernel on every GPU of a machine."""
        (document,) = self._ask(machine, {"child": "launch"}, {})
        return from_plain(LaunchReading, document)

    def cuda(
        self, machine: Machine, variables: Mapping[str, str | None] | None = None
    ) -> CudaReading:
        """Return what libcuda says on a machine, under variables (None: unset)."""
        (document,) = self._ask(machine, {"child": "cuda"}, variables or {})
        return from_plain(CudaReading, document)

    def nvml_each(self, machines: Iterable[Machine]) -> Iterator[NvmlReading]:
        """Yield what NVML says on each machine; the next is asked while one is looked at."""
        request = {"child": "nvml", "question": EVERYTHING._asdict()}
        for parts in self._each(machines, request):
            yield assemble(parts, take_failure(parts))

    def launch_each(self, machines: Iterable[Machine]) -> Iterator[LaunchReading]:
        """Yield what comes of a kernel on each machine; the next runs while one is looked at."""
        for (document,) in self._each(machines, {"child": "launch"}):
            yield from_plain(LaunchReading, document)

    def cuda_each(self, machines: Iterable[Machine]) -> Iterator[CudaReading]:
        """Yield what libcuda says on each machine; the next is asked while one is looked at."""
        for (document,) in self._each(machines, {"child": "cuda"}):
            yield from_plain(CudaReading, document)

    def _each(
        self, machines: Iterable[Machine], request: dict[str, Any]
    ) -> Iterator[list[dict[str, Any]]]:
        for machine in machines:
            self._send(machine, request, {})
            if self._asked == 2:
                yield self._answer()
        while self._asked:
            yield self._answer()

    def _ask(
        self, machine: Machine, request: dict[str, Any], variables: Mapping[str, str | None]
    ) -> list[dict[str, Any]]:
        while self._asked:  # by somebody who did not wait for all answers
            self._answer()
        self._send(machine, request, variables)
        return self._answer()

    def _send(
        self, machine: Machine, request: dict[str, Any], variables: Mapping[str, str | None]
    ) -> None:
        # Two of them: one may be read while the next is written.
        self._machine_files.reverse()
        machine_file = self._machine_files[0]
        machine_file.write_bytes(flatten(machine))
        all_variables = {**variables, "FAKE_MACHINE_FILE": str(machine_file)}
        line = json.dumps({**request, "variables": all_variables}) + "\n"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
        self._asked += 1

    def _answer(self) -> list[dict[str, Any]]:
        self._asked -= 1
        return list(self._answers())

    def _answers(self) -> Iterable[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            document: dict[str, Any] = json.loads(line)
            if "status" in document:
                assert document["status"] == 0, "the child itself failed: see the captured stderr"
                return
            yield document
        raise AssertionError("the server ended")
