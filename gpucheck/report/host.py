"""Machine of a report, as every document names it."""

from __future__ import annotations

from typing import NamedTuple


class Host(NamedTuple):
    """Machine of a report; null where it could not be read or was not recorded.

    `recorded`: the answer is that of a snapshot (--from), not of this machine.
    """

    name: str | None = None
    os: str | None = None
    kernel: str | None = None
    python: str | None = None
    container: str | None = None
    driver_version: str | None = None
    cuda_driver_version: str | None = None
    recorded: bool = False

    @property
    def is_wsl(self) -> bool:
        """Whether this is WSL2, where the Windows driver owns the GPU."""
        return (self.os or "").endswith("(WSL2)")
