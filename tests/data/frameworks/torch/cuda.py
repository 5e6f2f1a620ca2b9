import os

from pretended_card import COUNT, FREE, Pool, log, total_bytes

VERSION = ""
pools = {}
current = 0
_queued = []
_starting = False


class OutOfMemoryError(RuntimeError):
    pass


def refuse(size, pool):
    return OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes")


class Properties:
    def __init__(self, ordinal):
        self.total_memory = total_bytes(ordinal)
        self.uuid = os.environ.get("STUB_UUIDS", ",,,,,,,,").split(",")[ordinal] or None


def is_initialized():
    return bool(pools) and not _starting


def _lazy_call(call):
    log("torch", "_lazy_call")
    if is_initialized():
        call()
    else:
        _queued.append(call)


def _lazy_init():
    global _starting
    if pools or _starting:
        return
    log("torch", "cuda-init")
    text = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", os.environ.get("PYTORCH_ALLOC_CONF", ""))
    fraction = 0.0
    for entry in filter(None, text.split(",")):
        key, _, value = entry.partition(":")
        if key == "per_process_memory_fraction":
            if tuple(map(int, VERSION.split(".")[:2])) < (2, 10):
                raise RuntimeError("Unrecognized CachingAllocator option: " + key)
            fraction = float(value)
    for ordinal in range(COUNT):
        pools[ordinal] = Pool(int(fraction * total_bytes(ordinal)))
    _starting = True
    for call in _queued:
        call()
    _starting = False


def device_count():
    return COUNT


def current_device():
    _lazy_init()
    return current


def set_device(device):
    global current
    log("torch", "set_device", device)
    current = device


def get_device_properties(ordinal):
    _lazy_init()
    return Properties(ordinal)


def set_per_process_memory_fraction(fraction, device=None):
    _lazy_init()
    if not isinstance(fraction, float):
        raise TypeError("must be float")
    log("torch", "set_per_process_memory_fraction", fraction, device)
    pools[device].limit = int(fraction * total_bytes(device))


def memory_reserved(device):
    _lazy_init()
    return pools[device].used


def empty_cache():
    log("torch", "empty_cache")


def mem_get_info(device):
    _lazy_init()
    return (FREE - pools[device].used, total_bytes(device))
