import jax


class XlaRuntimeError(RuntimeError):
    pass


def zeros(size, dtype=None):
    def refuse(wanted, pool):
        return XlaRuntimeError(f"RESOURCE_EXHAUSTED: Out of memory allocating {wanted} bytes.")

    return jax.devices()[0].pool.take(size, refuse)
