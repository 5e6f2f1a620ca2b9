"""Cards of the pretended machine as a CUDA program sees them, and their speed.

Which cards there are, in which order and under which number, is asked of the pretended libcuda, so
that CUDA_VISIBLE_DEVICES means one thing. Everything else is read from FAKE_MACHINE_FILE, the file
that the libraries themselves read.
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass
from pathlib import Path

from .errors import CUDARuntimeError, failed
from .script import SCRIPT

#: CUDA's version that the pretended CuPy was built for.
RUNTIME_VERSION = 1000 * int(os.environ.get("FAKE_CUPY_CUDA", "12")) + 90 * (
    os.environ.get("FAKE_CUPY_CUDA", "12") == "12"
)

#: Dense fp16 operations with fp32 sums for each SM and clock, by compute capability.
#: Source: NVIDIA's architecture papers; consumer cards have half of it for fp32 sums.
_TENSOR = {
    "7.0": 1024,
    "7.2": 1024,
    "7.5": 1024,
    "8.0": 2048,
    "8.6": 1024,
    "8.7": 2048,
    "8.9": 1024,
    "9.0": 4096,
    "10.0": 8192,
    "10.3": 8192,
    "12.0": 1024,
    "12.1": 1024,
}
#: fp64 as a share of fp32.
_DOUBLE = {"6.0": 0.5, "7.0": 0.5, "8.0": 0.5, "9.0": 0.5, "10.0": 0.5}
#: Bytes a second and lane of PCIe, by generation, after encoding.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
#: Bytes a second of one NVLink in one direction.
_NVLINK = 25e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One device of a CUDA program: a GPU or a MIG instance. `gpu` is NVML's number.

    Rates are of the hardware; `efficiency_*` is what of them is reached.
    """

    ordinal: int
    gpu: int
    mig: int | None
    uuid: bytes
    name: str
    capability: tuple[int, int]
    sm_count: int
    l2_bytes: int
    memory_bytes: int
    used_bytes: int
    clock_hz: float
    memory_clock_hz: float
    bus_bits: int
    pci: tuple[int, int, int]
    memory_rate: float
    flops: dict[str, float]
    link_rate: float
    efficiency_memory: float
    efficiency_gemm: float
    efficiency_link: float
    integrated: bool


@functools.cache
def machine_values() -> dict[str, str]:
    """Return the machine's readings by key."""
    path = os.environ.get("FAKE_MACHINE_FILE")
    if path is None:
        return {}
    text = Path(path).read_bytes().decode("utf-8", "surrogateescape")
    pairs = (line.partition(" ") for line in text.split("\n") if line)
    return {key: value for key, _, value in pairs}


def number(key: str, absent: float = 0.0) -> float:
    """Return one reading as a number."""
    return float(machine_values().get(key, absent))


def row(key: str) -> list[int]:
    """Return one reading that is a row of numbers."""
    return [int(word) for word in machine_values().get(key, "").split()]


class Libcuda:
    """The pretended driver library in this process."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise failed("cudaErrorInsufficientDriver") from None
        self._ask("cuInit", 0)
        version = ctypes.c_int()
        self._ask("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        if self.version // 1000 < RUNTIME_VERSION // 1000:
            raise failed("cudaErrorInsufficientDriver")

    def _ask(self, function: str, *arguments: object) -> None:
        status = int(getattr(self.library, function)(*arguments))
        if status:
            raise CUDARuntimeError(status)

    def count(self) -> int:
        """Return how many devices the program sees."""
        found = ctypes.c_int()
        self._ask("cuDeviceGetCount", ctypes.byref(found))
        return found.value

    def uuid(self, ordinal: int) -> bytes:
        """Return a device's sixteen bytes."""
        raw = (ctypes.c_ubyte * 16)()
        self._ask("cuDeviceGetUuid_v2", raw, ordinal)
        return bytes(raw)

    def retain(self, ordinal: int) -> None:
        """Make the device's primary context."""
        context = ctypes.c_void_p()
        self._ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)


@functools.cache
def libcuda() -> Libcuda:
    """Return the library; raises what the runtime raises without a driver."""
    return Libcuda()


@functools.cache
def cards() -> tuple[Card, ...]:
    """Return the devices that the program sees."""
    library = libcuda()
    return tuple(_card(ordinal, library.uuid(ordinal)) for ordinal in range(library.count()))


def _seat(uuid: bytes) -> tuple[int, int | None]:
    """Return NVML's number of the GPU, and of the MIG instance, with this UUID."""
    wanted = uuid.hex()
    for key, value in machine_values().items():
        words = key.split(".")
        if words[0] == "gpu" and words[-1] == "uuid" and value[4:].replace("-", "") == wanted:
            return int(words[1]), int(words[3]) if len(words) == 5 else None
    raise failed("cudaErrorUnknown")


def _card(ordinal: int, uuid: bytes) -> Card:
    gpu, mig = _seat(uuid)
    base = f"gpu.{gpu}"
    seat = base if mig is None else f"{base}.mig.{mig}"
    major, _, minor = machine_values()[f"{base}.compute_capability"].partition(".")
    capability = (int(major), int(minor))
    sms = int(number(f"{seat}.sm_count"))
    share = sms / number(f"{base}.sm_count", sms)
    memory = number(f"{seat}.memory_total_bytes")
    memory_share = memory / number(f"{base}.memory_total_bytes", memory)
    clock_hz = 1e6 * number(f"{base}.clock_sm_max_mhz", 1500)
    memory_clock_hz = 1e6 * number(f"{base}.clock_memory_max_mhz", 1000)
    bus_bits = int(number(f"{base}.memory_bus_width_bits", 256))
    domain, bus, slot = machine_values()[f"{base}.pci_bus_id"].split(":")
    whole = number(f"{base}.cuda_memory_total_bytes")
    return Card(
        ordinal=ordinal,
        gpu=gpu,
        mig=mig,
        uuid=uuid,
        name=machine_values()[f"{seat}.name"],
        capability=capability,
        sm_count=sms,
        l2_bytes=int(number(f"{base}.l2_bytes") * memory_share),
        memory_bytes=int(
            whole if mig is None else memory - number(f"{seat}.memory_reserved_bytes")
        ),
        used_bytes=int(number(f"{seat}.memory_used_bytes"))
        + int(SCRIPT.factor("used", "bytes", gpu, 0)),
        clock_hz=clock_hz,
        memory_clock_hz=memory_clock_hz,
        bus_bits=bus_bits,
        pci=(int(domain, 16), int(bus, 16), int(slot.partition(".")[0], 16)),
        memory_rate=2 * memory_clock_hz * bus_bits / 8 * memory_share,
        flops=_flops(
            capability,
            number(f"{base}.core_count", 128 * sms) * share,
            # Consumer cards have half the rate where sums are kept in fp32.
            sms / 2 if "GeForce" in machine_values()[f"{base}.name"] else sms,
            clock_hz,
        ),
        link_rate=_LANE[int(number(f"{base}.pcie_generation_max", 4))]
        * number(f"{base}.pcie_width", 16),
        efficiency_memory=SCRIPT.factor("efficiency", "memory", gpu, 0.92),
        efficiency_gemm=SCRIPT.factor("efficiency", "gemm", gpu, 0.78),
        efficiency_link=SCRIPT.factor("efficiency", "link", gpu, 0.88),
        integrated=bool(number(f"{base}.integrated", 0)) or any(SCRIPT.about("unified", gpu)),
    )


def _flops(
    capability: tuple[int, int], cores: float, sms: float, clock_hz: float
) -> dict[str, float]:
    """Return operations a second by arithmetic; what the card has not is left out."""
    version = ".".join(map(str, capability))
    found = {"fp32": 2 * cores * clock_hz}
    found["fp64"] = found["fp32"] * _DOUBLE.get(version, 1 / 64)
    tensor = _TENSOR.get(version, 0) * sms * clock_hz
    if capability >= (7, 0):
        found["fp16"] = tensor
    if capability >= (7, 5):
        found["int8"] = 2 * tensor
    if capability >= (8, 0):
        found["bf16"], found["tf32"] = tensor, tensor / 2
    if capability >= (8, 9):
        found["fp8"] = 2 * tensor
    return found


def can_reach(one: Card, other: Card) -> bool:
    """Return whether a card reads another's memory directly."""
    if one.gpu == other.gpu or one.mig is not None or other.mig is not None:
        return False
    if any(SCRIPT.about("no-peers", one.gpu)) or any(SCRIPT.about("no-peers", other.gpu)):
        return False
    reads = row(f"gpu.{one.gpu}.p2p_read")
    return reads[other.gpu] == 0


def peer_rate(one: Card, other: Card) -> float:
    """Return the bytes a second between two cards that reach each other."""
    linked = row(f"gpu.{one.gpu}.p2p_nvlink")
    if linked and linked[other.gpu] == 0:
        return _NVLINK * max(1, _links(one.gpu, other.gpu))
    return min(one.link_rate, other.link_rate)


def _links(gpu: int, other: int) -> int:
    """Count the active NVLinks of a GPU to another one, or to the switches in between."""
    wanted, found = machine_values()[f"gpu.{other}.pci_bus_id"], 0
    for place in range(int(number(f"gpu.{gpu}.nvlink.count"))):
        active, to_switch, address = machine_values()[f"gpu.{gpu}.nvlink.{place}"].split()
        found += active == "1" and (to_switch == "2" or address == wanted)
    return found
