"""Stands in for JAX: one pool, whose size is a fraction in the environment."""

import contextlib

from jaxlib import xla_client
from pretended_card import COUNT, TOTAL, Pool

__version__ = "0.10.2"


class _Device:
    def __init__(self):
        fraction = xla_client.generate_pjrt_gpu_plugin_options()["memory_fraction"]
        self.pool = Pool(int(fraction * TOTAL))

    def memory_stats(self):
        return {"bytes_in_use": self.pool.used}


_devices = []


current = []


def devices(kind=None):
    if not _devices:
        _devices.extend(_Device() for _ in range(COUNT))
    return _devices


@contextlib.contextmanager
def default_device(device):
    current.append(device)
    yield device
    current.pop()
