import jax


class XlaRuntimeError(RuntimeError):
    pass


def zeros(size, dtype=None):
    def refuse(wanted, pool):
        return XlaRuntimeError(f"RESOURCE_EXHAUSTED: Out of memory allocating {wanted} bytes.")

    device = jax.current[-1] if jax.current else jax.devices()[0]
    return device.pool.take(size, refuse)
