from __future__ import annotations

from gpucheck.drivers.host.clock import monotonic_s


def test_the_clock_moves_and_never_back() -> None:
    readings = [monotonic_s() for _ in range(100_000)]

    assert readings == sorted(readings)
    assert readings[-1] > readings[0]
