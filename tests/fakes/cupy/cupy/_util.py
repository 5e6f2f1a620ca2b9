"""cupy._util: CuPy's warning about slowness."""

from ._pretended.arrays import PerformanceWarning

__all__ = ["PerformanceWarning"]
