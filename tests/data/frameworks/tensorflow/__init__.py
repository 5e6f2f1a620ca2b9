"""Stands in for TensorFlow: devices start once, and then nothing can be configured."""

import contextlib

from pretended_card import FREE, Pool, log

from tensorflow import config
from tensorflow.python.eager import context

__version__ = "2.21.0"
uint8 = "uint8"


class errors:
    class ResourceExhaustedError(Exception):
        pass


def refuse(size, pool):
    return errors.ResourceExhaustedError(f"OOM when allocating {size} bytes")


_pools = {}
_current = [0]


@contextlib.contextmanager
def device(name):
    _current.append(int(name.rpartition(":")[2]))
    yield name
    _current.pop()


def zeros(shape, dtype=None):
    context.context().ensure_initialized()
    limits = config.list_logical_sizes()
    if not limits:
        return None
    here = _current[-1]
    pool = _pools.setdefault(here, Pool(limits[here] or FREE))
    config.pools[f"GPU:{here}"] = pool
    log("tensorflow", "zeros", shape[0])
    return pool.take(shape[0], refuse)
