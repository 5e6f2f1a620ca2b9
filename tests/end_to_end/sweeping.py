"""Ask the probe children about many broken machines quickly; see forking_server.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from gpucheck.models.codec import from_plain
from gpucheck.models.evidence import HealthReading, LaunchReading
from gpucheck.models.snapshot import CudaReading, NvmlReading
from gpucheck.probes.interface import NvmlQuestion
from gpucheck.probes.nvml import assemble, assemble_health
from tests.conftest import scrubbed_environment
from tests.fakes.libraries import flatten
from tests.fakes.machine import Machine

#: Every code that NVML's header knows, and the one for "unknown".
NVML_CODES = (*range(1, 31), 999)

EVERYTHING = NvmlQuestion(topology=True, process_utilization=True)


class Forks:
    """A server that forks a probe child for each question."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self._machine_file = folder / "machine.txt"
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
        self._process.wait(timeout=10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def nvml(self, machine: Machine, question: NvmlQuestion = EVERYTHING) -> NvmlReading:
        """Return what NVML says on a machine."""
        request = {"child": "nvml", "question": question._asdict()}
        return assemble(self._ask(machine, request, {}), None)

    def health(self, machine: Machine) -> HealthReading:
        """Return what NVML says of the health of a machine's GPUs."""
        request = {"child": "nvml", "question": {"health": True, "sample_s": 0.0}}
        return assemble_health(self._ask(machine, request, {}), None)

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

    def _ask(
        self, machine: Machine, request: dict[str, Any], variables: Mapping[str, str | None]
    ) -> list[dict[str, Any]]:
        self._machine_file.write_bytes(flatten(machine))
        all_variables = {**variables, "FAKE_MACHINE_FILE": str(self._machine_file)}
        line = json.dumps({**request, "variables": all_variables}) + "\n"
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode())
        self._process.stdin.flush()
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
