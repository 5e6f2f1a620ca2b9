from pretended_card import COUNT, log

from tensorflow.python.eager import context

_logical = {}
_growth = {}
pools = {}


class LogicalDeviceConfiguration:
    def __init__(self, memory_limit):
        self.memory_limit = memory_limit


class experimental:
    @staticmethod
    def get_memory_info(name):
        return {"current": pools[name].used if name in pools else 0}

    @staticmethod
    def set_memory_growth(gpu, on):
        if gpu in _logical:
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        _growth[gpu] = on

    @staticmethod
    def get_memory_growth(gpu):
        return _growth.get(gpu)


def list_physical_devices(kind=None):
    log("tensorflow", "list_physical_devices")
    return [f"/physical_device:GPU:{i}" for i in range(COUNT)]


def get_logical_device_configuration(gpu):
    return _logical.get(gpu)


def set_logical_device_configuration(gpu, devices):
    if context.context()._initialized:
        raise RuntimeError("Virtual devices cannot be modified after being initialized")
    log("tensorflow", "set_logical", gpu, [device.memory_limit for device in devices])
    _logical[gpu] = devices


def list_logical_sizes():
    return [
        int(_logical[gpu][0].memory_limit or 0) << 20 if gpu in _logical else 0
        for gpu in [f"/physical_device:GPU:{i}" for i in range(COUNT)]
    ]
