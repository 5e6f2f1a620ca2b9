"""CUDA versions: the oldest driver that runs each, and the GPUs that each has code for.

Also the GPU generations that a driver's flavour does or does not support.

Sources: NVIDIA, "CUDA Compatibility" (minimum drivers by major version) and "CUDA Toolkit 13.2
Update 2 Release Notes", table of toolkit and driver versions (Linux); for the architectures the
release notes of 11.0, 12.0, 12.8 and 13.0.
"""

from __future__ import annotations

import re

Version = tuple[int, ...]

#: CUDA major -> the oldest Linux driver that runs programs built for it.
MINIMUM_DRIVER: dict[int, Version] = {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}

#: The same for Windows drivers, which WSL2 uses; for CUDA 13 none is published.
MINIMUM_WINDOWS_DRIVER: dict[int, Version] = {11: (452, 39), 12: (528, 33)}

#: CUDA minor -> the Linux driver that came with it: below it, new code may not compile (222).
MATCHING_DRIVER: dict[Version, Version] = {
    (13, 2): (595, 45, 4),
    (13, 1): (590, 44, 1),
    (13, 0): (580, 65, 6),
    (12, 9): (575, 51, 3),
    (12, 8): (570, 26),
    (12, 6): (560, 28, 3),
    (12, 5): (555, 42, 2),
    (12, 4): (550, 54, 14),
    (12, 3): (545, 23, 6),
    (12, 2): (535, 54, 3),
    (12, 1): (530, 30, 2),
    (12, 0): (525, 60, 13),
    (11, 8): (520, 61, 5),
    (11, 7): (515, 43, 4),
    (11, 6): (510, 39, 1),
    (11, 5): (495, 29, 5),
    (11, 4): (470, 42, 1),
    (11, 3): (465, 19, 1),
    (11, 2): (460, 27, 3),
    (11, 1): (455, 23),
    (11, 0): (450, 51, 5),
}

#: CUDA major -> the oldest compute capability that it has code for.
OLDEST_CAPABILITY: dict[int, Version] = {11: (3, 5), 12: (5, 0), 13: (7, 5)}

#: Compute capability -> the first CUDA that has code for it; older code only runs as PTX.
FIRST_CUDA: dict[Version, Version] = {
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (12, 0): (12, 8),
}

#: The first PCI device ids of these generations. Source: pci.ids.
FIRST_TURING = 0x1E00
FIRST_BLACKWELL = 0x2900

_NUMBERS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})*(?![0-9])")
_CODE = re.compile(r"(sm|compute)_?([0-9]+?)([0-9])[af]?")


def parse_version(text: str | None) -> Version | None:
    """Return "580.95.05" as (580, 95, 5), or None if there is no version."""
    match = _NUMBERS.match(text or "")
    return tuple(int(part) for part in match[0].split(".")) if match else None


def show_version(version: Version) -> str:
    """Return (525, 60, 13) as "525.60.13": NVIDIA writes two digits from the second part on."""
    first, *rest = version
    return ".".join([str(first), *(f"{part:02d}" for part in rest)])


def cuda_of_driver(driver: str | None) -> str | None:
    """Return the newest CUDA of which it is known that this Linux driver came with it or later."""
    own = parse_version(driver)
    known = [cuda for cuda, least in MATCHING_DRIVER.items() if own is not None and least <= own]
    return ".".join(map(str, max(known))) if known else None


def newer_driver_for(cuda: str | None, driver: str | None, *, windows: bool = False) -> str | None:
    """Return the oldest driver for this CUDA if `driver` is older; None if not, or if unknown."""
    version, own = parse_version(cuda), parse_version(driver)
    table = MINIMUM_WINDOWS_DRIVER if windows else MINIMUM_DRIVER
    least = table.get(version[0]) if version else None
    return show_version(least) if least and own and own < least else None


def too_old_for(cuda: str | None, capability: str | None) -> bool:
    """Return whether this CUDA has dropped the GPU's architecture."""
    version, own = parse_version(cuda), parse_version(capability)
    oldest = OLDEST_CAPABILITY.get(version[0]) if version else None
    return oldest is not None and own is not None and own < oldest


def too_new_for(cuda: str | None, capability: str | None) -> bool:
    """Return whether this CUDA (with its minor version) is older than the GPU's architecture."""
    version, own = parse_version(cuda), parse_version(capability)
    if version is None or own is None or len(version) < 2:
        return False
    known = [first for least, first in FIRST_CUDA.items() if least <= own]
    return bool(known) and version < max(known)


def has_only_ptx(architectures: tuple[str, ...], capability: str | None) -> bool:
    """Return whether a list has PTX for a GPU, but no binary code."""
    binaries = tuple(name for name in architectures if not name.startswith("compute"))
    has_any = holds_code_for(architectures, capability) is True
    return has_any and not holds_code_for(binaries, capability)


def binary_for(architectures: tuple[str, ...], capability: str | None) -> str | None:
    """Return the newest binary code of a list that a GPU runs; None if it has none for it."""
    runs = [
        name
        for name in architectures
        if name.startswith("sm_") and holds_code_for((name,), capability)
    ]
    return max(runs, key=lambda name: int(name.removeprefix("sm_")), default=None)


def holds_code_for(architectures: tuple[str, ...], capability: str | None) -> bool | None:
    """Return whether a list such as sm_80, compute_90 has code for a GPU.

    Binary code runs on GPUs of the same major version and no smaller minor one, PTX on every newer
    GPU. None if the list or the GPU is unknown. Source: CUDA Programming Guide, "Binary and
    PTX Compatibility".
    """
    own = parse_version(capability)
    parsed = [match for match in map(_CODE.fullmatch, architectures) if match]
    if own is None or not parsed:
        return None
    for match in parsed:
        code = (int(match[2]), int(match[3]))
        if code <= own and (match[1] == "compute" or code[0] == own[0]):
            return True
    return False


def is_older_than_turing(device_id: str | None) -> bool:
    """Return whether a GPU, by its PCI device id, is too old for the open kernel module."""
    number = _number_of(device_id)
    return number is not None and number < FIRST_TURING


def is_blackwell_or_newer(device_id: str | None) -> bool:
    """Return whether a GPU, by its PCI device id, needs the open kernel module."""
    number = _number_of(device_id)
    return number is not None and number >= FIRST_BLACKWELL


def _number_of(device_id: str | None) -> int | None:
    try:
        return int(device_id or "", 16)
    except ValueError:
        return None
