"""`gpucheck detect`: is a GPU usable, and if not, which layer is broken first."""

from __future__ import annotations

from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import deliver
from gpucheck.cli.shared import Shared
from gpucheck.core.detect import detect


@with_shared_options
def command(*, shared: Shared) -> int:
    """Say whether a GPU can be used, and which layer is broken first."""
    return deliver("detect", shared, detect)
