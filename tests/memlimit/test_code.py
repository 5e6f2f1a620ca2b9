"""Code for a program: it is Python, and what cannot be written is refused."""

from __future__ import annotations

import ast

import pytest

from gpucheck.inventory.model import Gpu
from gpucheck.memlimit.code import WRITERS, write_code
from gpucheck.memlimit.model import MemoryLimit
from gpucheck.memlimit.plan import plan_limit
from gpucheck.report.errors import WrongUseError
from gpucheck.report.units import parse_amount

GIB = 1024**3


def plan(text: str, total: int | None = 80 * GIB, **environment: str) -> MemoryLimit:
    gpus = [
        Gpu(index=n, cuda_index=n, visible=True, uuid=f"GPU-{n}", memory_total_bytes=total)
        for n in (0, 1)
    ]
    return plan_limit(parse_amount(text), gpus, environment=environment)


@pytest.mark.parametrize("framework", WRITERS)
@pytest.mark.parametrize("amount", ["30%", "8GiB", "100%"])
def test_lines_are_python_and_name_no_percentage(framework: str, amount: str) -> None:
    tree = ast.parse(write_code(framework, plan(amount)))

    numbers = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert 30 not in numbers
    assert 8 not in numbers


def test_tensorflow_gets_mebibytes_and_the_others_bytes() -> None:
    limit = plan("8GiB")

    assert "sizes = [8192, 8192]" in write_code("tensorflow", limit)
    for framework in ("pytorch", "cupy", "onnxruntime"):
        assert str([8 * GIB] * 2) in write_code(framework, limit)


def test_jax_gets_the_name_that_is_set() -> None:
    limit = plan("30%", XLA_PYTHON_CLIENT_MEM_FRACTION="0.9")

    assert 'os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = "0.3"' in write_code("jax", limit)


@pytest.mark.parametrize(
    ("framework", "limit"),
    [
        ("caffe", plan("30%")),
        ("", plan("30%")),
        ("pytorch", plan("30%", None)),
        ("tensorflow", plan("1000B")),
        ("jax", plan("8GiB", None)),
        ("jax", plan("30%", XLA_PYTHON_CLIENT_ALLOCATOR="platform")),
    ],
)
def test_what_cannot_be_written_is_refused(framework: str, limit: MemoryLimit) -> None:
    with pytest.raises(WrongUseError) as caught:
        write_code(framework, limit)

    assert caught.value.message.endswith(".")
