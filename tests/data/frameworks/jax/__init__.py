"""Stands in for JAX: one pool, whose size is a fraction in the environment."""

import contextlib
import os

from pretended_card import TOTAL, Pool

__version__ = "0.10.2"


def fraction():
    new = os.environ.get("XLA_CLIENT_MEM_FRACTION")
    old = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    if new and old:
        raise ValueError("specified together")
    return float(new or old or 0.75)


class _Device:
    def __init__(self):
        self.pool = Pool(int(fraction() * TOTAL))

    def memory_stats(self):
        return {"bytes_in_use": self.pool.used}


_devices = []


def devices(kind=None):
    if not _devices:
        _devices.append(_Device())
    return _devices


@contextlib.contextmanager
def default_device(device):
    yield device
