"""Probes: the only code that touches the machine, or a recording of one.

This package is imported first, to start the NVML child. So it imports nothing itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from gpucheck.drivers.interface import Probes


def open_probes(
    recording: Path | None = None, *, deadline_s: float | None = None, wakes: bool = False
) -> Probes:
    """Open this machine, or the snapshot file `recording`.

    `deadline_s` bounds each wait for a driver; by default it grows with the number of GPUs. With
    `wakes`, NVML gets more where GPUs sleep, because their persistence mode is off.

    Raises:
        WrongUseError: the recording cannot be read or is not a snapshot.
    """
    if recording is not None:
        from gpucheck.drivers.recorded import RecordedProbes, read_snapshot

        return RecordedProbes(read_snapshot(recording))
    from gpucheck.drivers.live import LiveProbes

    return LiveProbes(deadline_s=deadline_s, wakes=wakes)
