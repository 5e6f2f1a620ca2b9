import os

from pretended_card import TOTAL, Pool, log

from cupy.cuda import memory, runtime  # noqa: F401

state = {"device": 0}


class Device:
    def __init__(self, ordinal=None):
        self.id = state["device"] if ordinal is None else ordinal

    def __enter__(self):
        self._before, state["device"] = state["device"], self.id
        return self

    def __exit__(self, *error):
        state["device"] = self._before


def _from_environment():
    text = os.environ.get("CUPY_GPU_MEMORY_LIMIT", "0")
    if text.endswith("%"):
        return int(float(text[:-1]) / 100 * TOTAL)
    return int(text)


class MemoryPool:
    def __init__(self):
        self._pools = {}

    def pool(self):
        ordinal = state["device"]
        if ordinal not in self._pools:
            self._pools[ordinal] = Pool(_from_environment())
            log("cupy", "pool", ordinal, self._pools[ordinal].limit)
        return self._pools[ordinal]

    def set_limit(self, size=None, fraction=None):
        log("cupy", "set_limit", state["device"], size)
        self.pool().limit = size

    def get_limit(self):
        return self.pool().limit

    def total_bytes(self):
        return self.pool().used

    def free_all_blocks(self):
        return None


pool = MemoryPool()
