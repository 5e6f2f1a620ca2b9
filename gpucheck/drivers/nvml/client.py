"""Client of the NVML child: starts it, asks within a deadline, assembles its answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpucheck.drivers.child import Child, ChildSilentError, Session
from gpucheck.drivers.nvml.start import take
from gpucheck.drivers.readings import (
    HUNG,
    LIMIT_FIELDS,
    GpuReading,
    LimitReading,
    MigReading,
    NvlinkReading,
    NvmlReading,
    NvmlRequest,
    PairReading,
    ProbeFailure,
    ProcessReading,
    TopologyReading,
)

if TYPE_CHECKING:
    from gpucheck.drivers.evidence import HealthReading

#: Between the two samples of the growing counters.
SAMPLE_S = 0.1
WORDS = (
    (HUNG, "the NVIDIA driver did not answer within {}"),
    ("nvml-child-died", "the process that asks NVML {}"),
)
#: With persistence mode off the first client wakes each GPU, in about this time; so long is the
#: first GPU waited for, whose answer tells the mode.
WAKE_S = 2.0
FIRST_S = 2.5
#: At most so many GPUs are given up, each with a child that may never end; then the driver is.
MOST_GIVEN_UP = 3


class NvmlSession(Session):
    """One NVML child: it initialises NVML once and answers any number of requests."""

    def __init__(self, child: Child | None = None) -> None:
        super().__init__(take, WORDS, child)

    def read(
        self,
        request: NvmlRequest,
        *,
        deadline_s: float,
        sysfs: str = "",
        whole_cards: bool = False,
        limits_of: str = "",
        wakes: bool = False,
    ) -> NvmlReading:
        """Read every GPU. A failure says why there are no more answers; those before it are kept.

        A GPU that takes half of the remaining time, while others wait behind it, is given up: a
        new child reads those in the time that is left. With `sysfs`, the kernel's folder of PCI
        devices, facts that it lacks are read from the driver. `limits_of` is the folder of a cgroup
        whose limits only NVML knows, and `whole_cards` tells that the memory of the cards is to be
        read although our cgroup has a limit. With `wakes`, a deadline too short for GPUs that sleep
        is lengthened once the first answer tells that persistence mode is off.
        """
        message: dict[str, Any] = {**request._asdict(), "sysfs": sysfs}
        if whole_cards or limits_of:
            message |= {"whole_cards": whole_cards, "limits_of": limits_of}
        deadline = _Deadline(deadline_s, wakes=wakes)
        parts, failure = self._ask(message, deadline)
        hung: list[int] = []
        while failure is not None and failure.code == HUNG and len(hung) < MOST_GIVEN_UP:
            index = _first_without(parts, hung)
            if index is None:
                break
            hung.append(index)
            if _first_without(parts, hung) is None and not request.topology:
                break
            rest = {**message, "first": index + 1, "silent": hung}
            later, failure = self._ask(rest, deadline)
            parts += later
            if not later:  # now the driver itself does not answer
                break
        if hung:
            parts += [_silent(index, deadline.seconds) for index in hung]
            reached = _first_without(parts) is None
            failure = _given_up(hung, deadline.seconds, None if reached else failure)
        return assemble(parts, failure)

    def read_health(self, gpus: Sequence[int] | None = None, *, deadline_s: float) -> HealthReading:
        """Read the health of every GPU, or only what decides whether `gpus` are fit for work."""
        part = {"sample_s": SAMPLE_S} if gpus is None else {"gpus": list(gpus)}
        request = {"health": True, **part}
        return assemble_health(*self._ask(request, _Deadline(deadline_s)))

    def set_limits(
        self, group: str, limits: Mapping[str, tuple[int, int] | None], *, deadline_s: float
    ) -> dict[str, ProbeFailure | None]:
        """Set a cgroup's soft and hard limit in bytes on each GPU, by UUID; None clears both.

        Return what NVML refused, by UUID; where it did not answer, that is the failure of all.
        """
        wanted = {uuid: pair or (None, None) for uuid, pair in limits.items()}
        documents, failure = self._ask_limits(group, wanted, deadline_s, sets=True)
        failures = {part["uuid"]: _failure_of(part) for part in documents}
        return {uuid: failures.get(uuid, failure) for uuid in limits}

    def limits(
        self, group: str, uuids: Iterable[str], *, deadline_s: float
    ) -> dict[str, LimitReading]:
        """Read a cgroup's limits on GPUs, and how much it uses of each."""
        requested = dict.fromkeys(uuids)
        documents, failure = self._ask_limits(group, requested, deadline_s, sets=False)
        readings = {
            part["uuid"]: LimitReading(
                soft_bytes=part.get("soft_bytes"),
                hard_bytes=part.get("hard_bytes"),
                used_bytes=part.get("used_bytes"),
                failure=_failure_of(part),
            )
            for part in documents
        }
        return {uuid: readings.get(uuid, LimitReading(failure=failure)) for uuid in requested}

    def _ask_limits(
        self, group: str, gpus: Mapping[str, Any], deadline_s: float, *, sets: bool
    ) -> tuple[list[dict[str, Any]], ProbeFailure | None]:
        request = {"limits": {"group": group, "gpus": gpus, "set": sets}}
        parts, failure = self._ask(request, _Deadline(deadline_s))
        return [part for part in parts if part["part"] == "limit"], failure

    def _ask(
        self, request: Mapping[str, Any], deadline: _Deadline
    ) -> tuple[list[dict[str, Any]], ProbeFailure | None]:
        """Return the documents received in time, and the failure that stopped them."""
        return self.ask(request, lambda child: _answers(child, request, deadline))


class _Deadline:
    """Seconds for one answer from now on; with `wakes` there are more for GPUs that sleep."""

    def __init__(self, seconds: float, *, wakes: bool = False) -> None:
        self.seconds = seconds
        self._begun = time.monotonic()
        self._wakes = wakes

    def wait_s(self, *, alone: bool) -> float:
        """Return how long to wait for the next document: half of the rest if others follow it."""
        left = max(0.0, self._begun + self.seconds - time.monotonic())
        share = left if alone else left / 2
        return max(share, min(left, FIRST_S)) if self._wakes else share

    def note(self, document: Mapping[str, Any], gpu_count: int) -> None:
        """Put the end off if the first GPU that tells its persistence mode has it off."""
        if self._wakes and document.get("persistence_mode") is not None:
            self._wakes = False
            if not document["persistence_mode"]:
                self.seconds = max(self.seconds, 1 + WAKE_S * gpu_count)


def _answers(
    child: Child, request: Mapping[str, Any], deadline: _Deadline
) -> Iterator[dict[str, Any]]:
    """Yield the documents of one answer.

    Raises:
        ChildSilentError: one did not come in time, or a GPU's within half of the remaining time.
        ChildDiedError: the child ended, or wrote something unreadable.
    """
    behind = gpu_count = 0
    while True:
        document = child.next_document(deadline.wait_s(alone=behind <= 1))
        if document is None:
            child.abandon()
            raise ChildSilentError(deadline.seconds)
        yield document
        behind -= 1
        deadline.note(document, gpu_count)
        if "gpu_count" in document:
            gpu_count = document["gpu_count"]
            behind = gpu_count - request.get("first", 0) + bool(request.get("topology"))
        if document["part"] in ("end", "failure"):
            return


def _failure_of(part: Mapping[str, Any]) -> ProbeFailure | None:
    return ProbeFailure(**part["failure"]) if part.get("failure") else None


def _first_without(parts: Iterable[Mapping[str, Any]], hung: Sequence[int] = ()) -> int | None:
    """Return the first GPU that has neither answered nor been given up, None if there is none."""
    counts = [part["gpu_count"] for part in parts if "gpu_count" in part]
    known = {part["index"] for part in parts if part["part"] == "gpu"}.union(hung)
    return next((index for index in range(max(counts, default=0)) if index not in known), None)


def _silent(index: int, deadline_s: float) -> dict[str, Any]:
    """Return the document of a GPU that was given up."""
    message = f"it did not answer in time (deadline {deadline_s:g} s)"
    names = set(GpuReading._fields) - {"index", "unavailable", "failure"} - LIMIT_FIELDS
    failure = {"code": HUNG, "message": message}
    reasons = dict.fromkeys(sorted(names), message)
    return {"part": "gpu", "index": index, "unavailable": reasons, "failure": failure}


def _given_up(hung: Sequence[int], deadline_s: float, failure: ProbeFailure | None) -> ProbeFailure:
    """Describe which GPUs did not answer, and the `failure` of those behind them."""
    which = f"GPU {hung[0]}" if len(hung) == 1 else f"GPUs {', '.join(map(str, hung))}"
    message = f"{which} did not answer in time (deadline {deadline_s:g} s)"
    if failure is not None:
        message += f"; and after that: {failure.message}"
    return ProbeFailure(code=HUNG, message=message)


def assemble(parts: Iterable[dict[str, Any]], failure: ProbeFailure | None) -> NvmlReading:
    """Assemble the child's documents into one reading."""
    system: dict[str, Any] = {}
    gpus: list[GpuReading] = []
    topology: TopologyReading | None = None
    for part in parts:
        match part.pop("part"):
            case "gpu":
                gpus.append(_gpu(part))
            case "topology":
                pairs = (PairReading(from_=pair.pop("from"), **pair) for pair in part["pairs"])
                links = (NvlinkReading(**link) for link in part["nvlinks"])
                topology = TopologyReading(tuple(pairs), tuple(links))
            case _:
                system |= part
    gpus.sort(key=lambda gpu: gpu.index)
    return NvmlReading(**system, gpus=tuple(gpus), topology=topology, failure=failure)


def _gpu(part: dict[str, Any]) -> GpuReading:
    # The child is of this version: its keys are our fields, so no decoder is needed.
    part["failure"] = _failure_of(part)
    processes = tuple(ProcessReading(**item) for item in part.pop("processes", ()))
    instances = tuple(MigReading(**item) for item in part.pop("mig_instances", ()))
    return GpuReading(**part, processes=processes, mig_instances=instances)


def assemble_health(parts: Iterable[dict[str, Any]], failure: ProbeFailure | None) -> HealthReading:
    """Assemble the child's documents about health into one reading."""
    from gpucheck.drivers.evidence import GpuHealthReading, HealthReading

    gpus: list[GpuHealthReading] = []
    for part in parts:
        if part.pop("part") == "health":
            part["failure"] = _failure_of(part)
            gpus.append(GpuHealthReading(**part))
    return HealthReading(gpus=tuple(gpus), failure=failure)
