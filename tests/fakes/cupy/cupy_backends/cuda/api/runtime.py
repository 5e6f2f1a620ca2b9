"""The runtime under its other name."""

from cupy.cuda.runtime import *  # noqa: F403
