"""Bits of stored numbers: how those of two arrays differ, and a digest, as sdc.cu computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Formats of sdc.cu, with its number for each.
ELEMENTS = {"float32": 0, "float16": 1, "bfloat16": 2, "float64": 3, "int32": 4}
#: splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators").
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
#: Numbers handled at once, to bound the memory.
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BitDifferences:
    """Numbers whose bits differ between two arrays; `first` is None if none does."""

    count: int = 0
    first: int | None = None
    largest_ulp: int | None = None
    nan_count: int = 0


def compare_bits(left: HostArray, other: HostArray, format_name: str) -> BitDifferences:
    """Return how two arrays of stored numbers differ, as the kernel `differ` counts it."""
    import numpy as np

    first_words, second_words = _words(left), _words(other)
    differences = BitDifferences()
    for low in range(0, len(first_words), _BLOCK):
        here = slice(low, low + _BLOCK)
        places = np.flatnonzero(first_words[here] != second_words[here])
        if not len(places):
            continue
        pair = (first_words[here][places], second_words[here][places])
        nan = _is_nan(pair[0], format_name) | _is_nan(pair[1], format_name)
        distances = _ulps_between(pair[0][~nan], pair[1][~nan], format_name)
        part = BitDifferences(
            count=len(places),
            first=low + int(places[0]),
            largest_ulp=int(distances.max()) if len(distances) else None,
            nan_count=int(nan.sum()),
        )
        differences = combined(differences, part)
    return differences


def combined(first: BitDifferences, other: BitDifferences) -> BitDifferences:
    """Return the sum of two counts."""
    firsts = [part.first for part in (first, other) if part.first is not None]
    ulps = [part.largest_ulp for part in (first, other) if part.largest_ulp is not None]
    return BitDifferences(
        count=first.count + other.count,
        first=min(firsts, default=None),
        largest_ulp=max(ulps, default=None),
        nan_count=first.nan_count + other.nan_count,
    )


def digest(values: HostArray, format_name: str) -> str:
    """Return the digest of stored numbers in sixteen hexadecimal digits, as the kernel sums it."""
    import numpy as np

    assert format_name in ELEMENTS
    words, total = _words(values), 0
    for low in range(0, len(words), _BLOCK):
        part = words[low : low + _BLOCK].astype(np.uint64)
        places = np.arange(low + 1, low + 1 + len(part), dtype=np.uint64)
        # NumPy's unsigned arrays wrap around silently, as intended.
        mixed = part + places * np.uint64(_GOLDEN)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX_1)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_2)
        total += int(np.sum(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64))
    return f"{total % 2**64:016x}"


def _words(values: HostArray) -> HostArray:
    """Return the numbers' bits as unsigned integers, in one row."""
    import numpy as np

    return np.ascontiguousarray(values).reshape(-1).view(f"u{values.dtype.itemsize}")


#: Sign bit and infinity, by format; larger magnitudes are NaN.
_LAYOUTS = {
    "float32": (0x8000_0000, 0x7F80_0000),
    "float16": (0x8000, 0x7C00),
    "bfloat16": (0x8000, 0x7F80),
    "float64": (0x8000_0000_0000_0000, 0x7FF0_0000_0000_0000),
}


def _is_nan(words: HostArray, format_name: str) -> HostArray:
    import numpy as np

    if format_name == "int32":
        return np.zeros(len(words), dtype=bool)
    sign, infinite = _LAYOUTS[format_name]
    nan: HostArray = (words.astype(np.uint64) & np.uint64(sign - 1)) > np.uint64(infinite)
    return nan


def _ulps_between(left: HostArray, other: HostArray, format_name: str) -> HostArray:
    """Return the distance of each pair in numbers of the format; both zeros are one number."""
    import numpy as np

    if format_name == "int32":
        signed = [side.view(np.int32).astype(np.int64) for side in (left, other)]
        distance: HostArray = np.abs(signed[0] - signed[1]).astype(np.uint64)
        return distance
    sign, _ = _LAYOUTS[format_name]
    wide = [side.astype(np.uint64) for side in (left, other)]
    low, high = (side & np.uint64(sign - 1) for side in wide)
    same_sign = ((wide[0] ^ wide[1]) & np.uint64(sign)) == 0
    apart = np.where(low < high, high - low, low - high)
    return np.where(same_sign, apart, low + high)


def read_differences(counters: HostArray) -> BitDifferences:
    """Return the four results of the kernel `differ`."""
    count, first, largest, nans = (int(number) for number in counters)
    if not count:
        return BitDifferences()
    return BitDifferences(
        count=count,
        first=first,
        # If every differing pair holds a NaN, there is no distance.
        largest_ulp=largest if nans < count else None,
        nan_count=nans,
    )
