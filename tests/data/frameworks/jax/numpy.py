import math

import jax


class XlaRuntimeError(RuntimeError):
    pass


def zeros(shape, dtype=None):
    if any(edge >= 2**31 for edge in shape):
        raise OverflowError("an edge of more than 31 bits")
    size = math.prod(shape)

    def refuse(wanted, pool):
        return XlaRuntimeError(f"RESOURCE_EXHAUSTED: Out of memory allocating {wanted} bytes.")

    device = jax.current[-1] if jax.current else jax.devices()[0]
    return device.pool.take(size, refuse)
