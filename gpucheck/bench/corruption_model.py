"""Result of repeated identical matrix products, compared bit for bit."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.report.envelope import Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Result of repeated identical products on one device; each was compared with the first.

    `words` counts the numbers of one product. `mismatches` counts differing numbers over all
    `products`; `first_index` is the index of the first in the flattened result. `largest_ulp` is
    the largest difference in units in the last place (None without a difference, or only by a NaN),
    and `not_finite` counts differing pairs with a NaN. `digest` is that of the first product, equal
    on identical GPUs. `reference_ok` says whether the first product was right against float64, and
    `reference_error` gives its error, None if it held NaN. `dtype` is the product's format.
    `failure` says why it ended early.
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
