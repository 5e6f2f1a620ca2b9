"""What a processor cannot exceed, by its cores and instruction sets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpucheck.bench.case import least_seconds, most_flops_per_s
from gpucheck.bench.kernels.matmul import Matmul
from gpucheck.bench.numerics import FORMATS
from tests.fakes.bench import FakeCpu, label

FLOAT32, FLOAT64 = FORMATS["float32"].spec, FORMATS["float64"].spec
TWO_CORES = FakeCpu(cores=2).facts()


@pytest.mark.parametrize(
    ("sets", "per_cycle"),
    [
        ({"sse2", "avx", "avx2", "fma", "avx512f"}, 64),
        ({"sse2", "avx", "avx2", "fma"}, 32),
        ({"sse2", "avx"}, 16),
        ({"sse2"}, 8),
    ],
)
def test_the_ceiling_follows_cores_and_instruction_sets(sets: set[str], per_cycle: int) -> None:
    cpu = replace(TWO_CORES, instruction_sets=frozenset(sets))

    assert most_flops_per_s(cpu, FLOAT32) == pytest.approx(2 * 6.5e9 * per_cycle)
    assert most_flops_per_s(cpu, FLOAT64) == pytest.approx(6.5e9 * per_cycle)
    # Matrix units may multiply narrow formats.
    assert most_flops_per_s(cpu, FORMATS["bfloat16"].spec) is None


def test_an_unknown_processor_has_no_ceiling() -> None:
    work = Matmul().work((64, 64, 64), "float32")

    assert most_flops_per_s(TWO_CORES, FLOAT32) is None
    assert least_seconds(TWO_CORES, label(), work) is None


def test_a_product_needs_at_least_its_operations_time() -> None:
    cpu = replace(TWO_CORES, instruction_sets=frozenset({"avx2"}))

    found = least_seconds(cpu, label(), Matmul().work((1000, 1000, 1000), "float32"))

    assert found == pytest.approx(2e9 / 416e9)
