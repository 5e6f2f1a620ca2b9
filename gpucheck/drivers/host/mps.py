"""MPS daemon that would serve a CUDA program started now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

#: The default folder where daemon and clients meet. Source: NVIDIA's MPS guide.
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
DEFAULT_PIPE = "/tmp/nvidia-mps"  # the daemon's own default, not a file of ours
#: The names of the daemon and of its servers begin with this.
DAEMON = "nvidia-cuda-mps"


class MpsReading(NamedTuple):
    """`running` is null if there is a daemon's pipe but the daemon cannot be seen."""

    running: bool | None
    reason: str


def read_mps(environment: Mapping[str, str], root: Path = Path("/")) -> MpsReading:
    """Look for the control daemon's pipe and for the daemon."""
    directory = environment.get(PIPE_VARIABLE) or DEFAULT_PIPE
    inside = root / directory.lstrip("/")
    try:
        if not (inside / "control").exists():
            return MpsReading(running=False, reason=f"no MPS daemon has its pipe in {directory}")
        pid = int((inside / "nvidia-cuda-mps-control.pid").read_text(encoding="ascii"))
        name = (root / "proc" / str(pid) / "comm").read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        reason = f"there is an MPS pipe in {directory}, but its daemon cannot be seen from here"
        return MpsReading(running=None, reason=reason)
    if name.startswith(DAEMON):
        return MpsReading(running=True, reason=f"the MPS daemon {pid} serves {directory}")
    return MpsReading(running=False, reason=f"the MPS daemon of {directory} has ended")
