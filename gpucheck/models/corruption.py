"""What became of identical matrix products that were repeated and compared bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.models.report import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """What repeated identical products on one device showed; each was compared with the first.

    `words` are the numbers of one product. `mismatches` counts differing numbers over all
    `products`, `first_index` is the place of the first one in the flattened result, `largest_ulp`
    the most units in the last place by which one differs (None where none does, or only by a NaN),
    `not_finite` the differing pairs that hold a NaN. `digest` is of the first product: identical
    GPUs have the same. `reference_ok` says whether the first product was right against float64,
    `reference_error` by how much it was off, None if it held NaN. `dtype` is the
    product's format. `failure` says why it ended early.
    """

    device: str
    gpu_uuid: str | None
    products: int = 0
    words: int = 0
    mismatches: int = 0
    first_index: int | None = None
    largest_ulp: int | None = None
    not_finite: int = 0
    digest: str | None = None
    reference_ok: bool | None = None
    reference_error: float | None = None
    reference_bound: float | None = None
    dtype: str = ""
    shape: tuple[int, ...] = ()
    seconds: float = 0.0
    failure: Failure | None = None
