import os

from pretended_card import log


def generate_pjrt_gpu_plugin_options():
    new = os.environ.get("XLA_CLIENT_MEM_FRACTION")
    old = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION")
    if new and old:
        raise ValueError("specified together")
    log("jax", "options", new, old)
    return {"memory_fraction": float(new or old or 0.75)}
