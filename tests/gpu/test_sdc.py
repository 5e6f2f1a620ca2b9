"""Comparison and digest kernels on a real card, against their NumPy twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpucheck.bench.bits import ELEMENTS, compare_bits, digest, read_differences
from gpucheck.bench.request_model import BenchRequest
from gpucheck.bench.sdc import SOURCE, stress_product
from gpucheck.drivers.cupy.device import GpuDevice, open_gpus
from gpucheck.drivers.host.blas import Blas
from gpucheck.drivers.host.clock import monotonic_s
from gpucheck.drivers.host.cpu import LinuxCpu

pytestmark = pytest.mark.gpu
STORED = {"float32": "f4", "float16": "f2", "bfloat16": "u2", "float64": "f8", "int32": "i4"}
COUNT = 1_000_003


@pytest.fixture(name="gpu", scope="module")
def _gpu() -> GpuDevice:
    opened = open_gpus([0])
    if not opened.devices:
        pytest.skip(opened.unavailable or "no GPU")
    return opened.devices[0]


def numbers(form: str) -> Any:
    """Return every kind of number: any bits make one."""
    width = np.dtype(STORED[form]).itemsize
    drawn = np.random.default_rng(3).integers(0, 256, COUNT * width, dtype=np.uint8)
    return drawn.view(STORED[form])


def bits(values: Any) -> Any:
    """Return numbers as the unsigned words that the kernels take."""
    return values.view(f"u{values.dtype.itemsize}")


def launched(gpu: GpuDevice, name: str, form: str, arguments: tuple[object, ...]) -> None:
    source = SOURCE.read_text(encoding="utf-8")
    gpu.compile(source, name, {"ELEMENT": ELEMENTS[form]})(64, 256, arguments)
    gpu.synchronize()


@pytest.mark.parametrize("form", STORED)
@pytest.mark.parametrize("flips", [0, 1, 1000])
def test_the_kernel_counts_as_its_twin(gpu: GpuDevice, form: str, flips: int) -> None:
    one = numbers(form)
    other = one.copy()
    places = np.random.default_rng(flips).choice(COUNT, flips, replace=False)
    bits(other)[places] ^= 1 << (flips % 7)
    found = gpu.upload(np.array([0, 2**64 - 1, 0, 0], dtype=np.uint64))

    compared = gpu.upload(bits(other))
    arguments = (gpu.upload(bits(one)), compared, np.int64(COUNT), found)
    launched(gpu, "differ", form, arguments)

    assert set(gpu.download(compared).tobytes()) == {0x80 if form == "int32" else 0xFF}
    assert read_differences(gpu.download(found)) == compare_bits(one, other, form)


@pytest.mark.parametrize("form", STORED)
def test_the_kernels_digest_is_its_twins(gpu: GpuDevice, form: str) -> None:
    values = numbers(form)
    total = gpu.upload(np.zeros(1, dtype=np.uint64))

    launched(gpu, "digest", form, (gpu.upload(bits(values)), np.int64(COUNT), total))

    assert f"{int(gpu.download(total)[0]):016x}" == digest(values, form)


# Small results fill 4 GiB; large ones would leave other tests no memory.
@pytest.mark.parametrize(("size", "held"), [(1024, None), (4096, "the other tests")])
def test_a_sound_card_repeats_every_bit(gpu: GpuDevice, size: int, held: str | None) -> None:
    repetition = stress_product(
        gpu,
        BenchRequest(size=size),
        clock=monotonic_s,
        cpu=LinuxCpu().facts(),
        blas=Blas(),
        held=held,
    )
    repetition.begin()
    repetition.run_for(1.0)
    check = repetition.end()

    assert check.failure is None
    assert check.reference_ok is True
    assert check.products > 1  # one is compared with the next
    assert (check.mismatches, check.not_finite) == (0, 0)
