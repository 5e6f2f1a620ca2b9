"""Our side of the NVML child: start it, ask within a deadline, put its answers together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from gpucheck.models.snapshot import (
    GpuReading,
    MigReading,
    NvlinkReading,
    NvmlReading,
    PairReading,
    ProbeFailure,
    ProcessReading,
    TopologyReading,
)
from gpucheck.probes.child import Child, ChildDiedError, ChildSilentError
from gpucheck.probes.interface import NvmlQuestion
from gpucheck.probes.nvml_start import take

if TYPE_CHECKING:
    from gpucheck.models.evidence import HealthReading

#: Between the two looks at the counters that grow.
SAMPLE_S = 0.1
NOT_ANSWERING = "driver-not-answering"


class NvmlSession:
    """One NVML child: it initialises NVML once and answers any number of questions.

    `child` is one that was started already; by default it is started by the first question.
    """

    def __init__(self, child: Child | None = None) -> None:
        self._child = child

    def read(self, question: NvmlQuestion, *, deadline_s: float) -> NvmlReading:
        """Ask once. What came before a failure is kept; the failure says why there is no more."""
        return assemble(*self._ask(question._asdict(), deadline_s))

    def read_health(self, *, deadline_s: float) -> HealthReading:
        """Ask for the health of every GPU."""
        return assemble_health(*self._ask({"health": True, "sample_s": SAMPLE_S}, deadline_s))

    def _ask(
        self, request: Mapping[str, Any], deadline_s: float
    ) -> tuple[list[dict[str, Any]], ProbeFailure | None]:
        """Return the documents that came, and why there are no more of them."""
        parts: list[dict[str, Any]] = []
        failure: ProbeFailure | None = None
        try:
            if self._child is None:
                self._child = take()
            self._child.ask(request)
            for document in self._child.documents(deadline_s):
                parts.append(document)
                if document["part"] in ("end", "failure"):
                    break
        except ChildSilentError:
            message = f"the NVIDIA driver did not answer within {deadline_s:g} s"
            failure = ProbeFailure(code=NOT_ANSWERING, message=message)
        except ChildDiedError as error:
            message = f"the process that asks NVML {error.how}"
            failure = ProbeFailure(code="nvml-child-died", message=message)
        if failure is not None:
            self.close()
        return parts, failure

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
            self._child = None


def assemble(parts: Iterable[dict[str, Any]], failure: ProbeFailure | None) -> NvmlReading:
    """Put the child's documents together into one reading."""
    system: dict[str, Any] = {}
    gpus: list[GpuReading] = []
    topology: TopologyReading | None = None
    for part in parts:
        match part.pop("part"):
            case "gpu":
                gpus.append(_gpu(part))
            case "topology":
                topology = _topology(part)
            case "failure":
                failure = ProbeFailure(**part)
            case _:
                system |= part
    return NvmlReading(**system, gpus=tuple(gpus), topology=topology, failure=failure)


def _gpu(part: dict[str, Any]) -> GpuReading:
    # The child is ours and of this version: its keys are our fields, no decoder is needed.
    failure = part.pop("failure")
    processes = tuple(ProcessReading(**item) for item in part.pop("processes", ()))
    instances = tuple(MigReading(**item) for item in part.pop("mig_instances", ()))
    return GpuReading(
        **part,
        processes=processes,
        mig_instances=instances,
        failure=ProbeFailure(**failure) if failure else None,
    )


def _topology(part: dict[str, Any]) -> TopologyReading:
    return TopologyReading(
        pairs=tuple(PairReading(from_=pair.pop("from"), **pair) for pair in part["pairs"]),
        nvlinks=tuple(NvlinkReading(**link) for link in part["nvlinks"]),
    )


def assemble_health(parts: Iterable[dict[str, Any]], failure: ProbeFailure | None) -> HealthReading:
    """Put the child's documents about health together into one reading."""
    from gpucheck.models.evidence import GpuHealthReading, HealthReading

    gpus: list[GpuHealthReading] = []
    for part in parts:
        match part.pop("part"):
            case "health":
                broken = part.pop("failure")
                over = ProbeFailure(**broken) if broken else None
                gpus.append(GpuHealthReading(**part, failure=over))
            case "failure":
                failure = ProbeFailure(**part)
    return HealthReading(gpus=tuple(gpus), failure=failure)
