"""GPU sensors during a benchmark: client of the process that reads them through NVML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpucheck.drivers.child import Child, Session
from gpucheck.drivers.nvml.start import binding_directory
from gpucheck.drivers.readings import HUNG

_WORKER = "gpucheck.drivers.nvml.sensor_worker"
_WORDS = (
    (HUNG, "the NVIDIA driver did not answer within {}"),
    ("nvml-child-died", "the process that reads the sensors {}"),
)
#: Twenty readings a second of up to two GPUs, fewer of more: NVML refreshes its sensors no faster,
#: and each reading takes the driver's time.
PERIOD_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One reading of one GPU; `values` has what the driver gave, under the child's keys."""

    time_s: float
    uuid: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorBatch:
    """Readings since the last batch, and the counters at its end, by UUID."""

    samples: Sequence[Sample] = ()
    counters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unavailable: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class NvmlSensors:
    """Sensors through NVML, read by a child process so that a hung driver hangs only that.

    No method raises: `failure` says why there are no readings. One that is given from the start is
    the reason why nothing is to be read. `period_s` is the time between two readings.
    """

    period_s = PERIOD_S

    def __init__(
        self, failure: str | None = None, *, deadline_s: float = 10.0, worker: str = _WORKER
    ) -> None:
        self.failure = failure
        self._deadline_s = deadline_s
        self._session = Session(lambda: Child(worker, binding_directory()), _WORDS)

    def start(self, uuids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Start the child and let it read these GPUs; return their facts and counters by UUID."""
        if self.failure is not None:
            return {}
        self.period_s = PERIOD_S * max(1, len(uuids) / 2)
        answer = self._ask({"ask": "start", "uuids": list(uuids), "period_s": self.period_s})
        return {gpu["uuid"]: gpu for gpu in answer.get("gpus", ())}

    def window(self) -> SensorBatch:
        """Return the readings since the last call."""
        answer = self._ask({"ask": "window"})
        samples = tuple(
            Sample(time_s=time_s, uuid=uuid, values=values)
            for time_s, uuid, values in answer.get("samples", ())
        )
        return SensorBatch(
            samples=samples,
            counters=answer.get("counters", {}),
            unavailable=answer.get("unavailable", {}),
        )

    def joules(self, uuid: str) -> float | None:
        """Return a GPU's energy counter, None if it has none."""
        answer: float | None = self._ask({"ask": "energy", "uuid": uuid}).get("joules")
        return answer

    def close(self) -> None:
        """End the child."""
        self._session.close()

    def _ask(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the child's one answer; after a failure, or the end, there are no more."""
        if self.failure is not None or (self._session.child is None and request["ask"] != "start"):
            return {}
        answers, failure = self._session.ask(
            request, lambda child: [next(child.documents(self._deadline_s))]
        )
        self.failure = failure and failure.message
        return answers[0] if answers else {}
