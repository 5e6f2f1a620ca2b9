"""NumPy's functions on a device, and a GPU that cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from gpucheck.drivers.cupy.arrays import ArrayDevice, as_our_error, open_cpu, open_gpu
from gpucheck.report.errors import GpucheckError


def test_each_operation_computes_what_numpy_says() -> None:
    cpu = open_cpu()
    x = cpu.constant((2, 3), [1, -2, 3, 4, 5, 6])

    assert x.dtype == np.float32
    assert cpu.matmul(x, cpu.constant((3, 1), [1.0])).tolist() == [[2], [15]]
    assert cpu.add([x, x, cpu.constant((), [1.0])]).tolist() == (2 * x + 1).tolist()
    assert cpu.relu(x).min() == 0
    assert cpu.total(x, None).tolist() == 17
    assert cpu.total(x, 0).tolist() == [5, 3, 9]
    assert cpu.softmax(x, 2.0).sum(axis=-1) == pytest.approx([1, 1])


def test_a_copy_is_one() -> None:
    cpu = open_cpu()
    x = cpu.constant((2,), [1, 2])
    copied = cpu.receive(x)
    x[0] = 9

    assert copied.tolist() == [1, 2]


def test_an_array_of_a_gpu_is_fetched() -> None:
    class OnGpu:
        def get(self) -> object:
            return np.array([1.0, 2.0])

    assert open_cpu().receive(OnGpu()).tolist() == [1, 2]


def test_its_device_is_current_and_waited_for() -> None:
    log: list[str] = []

    @contextmanager
    def current() -> Iterator[None]:
        log.append("enter")
        yield
        log.append("leave")

    gpu = ArrayDevice(np, bring=np.copy, current=current, wait=lambda: log.append("wait"))
    gpu.receive(gpu.constant((1,), [1.0]))
    gpu.wait()

    assert log == ["enter", "leave", "enter", "wait", "leave", "enter", "wait", "leave"]


def test_a_gpu_that_cannot_be_opened() -> None:
    try:
        open_gpu(10_000)
    except GpucheckError as error:
        said = error.message
    assert said.startswith("The graph cannot run on CUDA device 10000: ")


def test_errors_are_ours() -> None:
    assert as_our_error(ValueError("a\nb")).message.endswith("ValueError: a.")
