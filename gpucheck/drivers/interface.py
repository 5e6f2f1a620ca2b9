"""Probes of the machine as the features see it: of this one, or of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from gpucheck.drivers.live import LiveProbes
    from gpucheck.drivers.recorded import RecordedProbes

#: Both answer the same questions. A broken machine is a reading, never an exception.
Probes: TypeAlias = "LiveProbes | RecordedProbes"
