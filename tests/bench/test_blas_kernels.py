"""A BLAS with older kernels than the CPU supports is detected, without guessing."""

from __future__ import annotations

import pytest

from gpucheck.bench.blas_kernels import older_than_cpu
from gpucheck.drivers.host.blas import BlasFacts

NEW, MIDDLE = frozenset({"avx", "avx2", "avx512f", "sse2"}), frozenset({"avx", "avx2", "sse2"})


def blas(name: str = "openblas", core: str | None = None) -> BlasFacts:
    return BlasFacts(name=name, version="1", architecture=core, threads=1)


@pytest.mark.parametrize(
    ("name", "core", "has", "variables", "older"),
    [
        ("openblas", "SkylakeX", NEW, {}, False),
        ("openblas", "Cooperlake", NEW, {}, False),
        ("openblas", "Haswell", NEW, {}, True),
        ("openblas", "Zen", NEW, {}, True),
        ("openblas", "Haswell", MIDDLE, {}, False),
        ("openblas", "Zen", MIDDLE, {}, False),
        ("openblas", "Nehalem", MIDDLE, {}, True),
        ("openblas", "SkylakeX", MIDDLE, {}, False),
        ("openblas", "neoversev1", frozenset(), {}, False),
        ("openblas", "a core of next year", NEW, {}, False),
        ("openblas", None, NEW, {}, False),
        ("blis", "haswell", NEW, {}, True),
        ("blis", "zen4", NEW, {}, False),
        ("mkl", None, NEW, {}, False),
        ("mkl", None, NEW, {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, True),
        ("mkl", None, NEW, {"MKL_ENABLE_INSTRUCTIONS": "AVX512"}, False),
        ("flexiblas", "Haswell", NEW, {}, False),
    ],
)
def test_kernels_that_are_older_than_the_processor(
    name: str, core: str | None, has: frozenset[str], variables: dict[str, str], older: bool
) -> None:
    assert (older_than_cpu(blas(name, core), has, variables) is not None) is older


def test_what_forces_them_is_named() -> None:
    said = older_than_cpu(blas(core="Haswell"), NEW, {"OPENBLAS_CORETYPE": "Haswell"})

    assert said == "openblas uses its kernels for Haswell (OPENBLAS_CORETYPE=Haswell)"
    assert older_than_cpu(None, NEW, {}) is None
