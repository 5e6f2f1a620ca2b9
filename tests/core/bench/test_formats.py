from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.core.bench.formats import ALIASES, FORMATS, UNSUPPORTED, canonical, decode, encode

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e4, max_value=1e4)


@given(st.lists(FLOATS, min_size=1, max_size=50))
def test_rounding_is_within_the_roundoff(numbers: list[float]) -> None:
    values = np.array(numbers, dtype=np.float32)
    for name in ("float32", "float16", "bfloat16"):
        form = FORMATS[name]
        back = decode(encode(values, form), name).astype(np.float64)
        # The smallest numbers of a format are evenly spaced.
        slack = 2.0**-24 if name == "float16" else 2.0**-133
        assert np.all(np.abs(back - values) <= form.roundoff * np.abs(values) + slack)


def test_bfloat16_is_the_nearest_with_ties_to_even() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]

    ours = encode(values, FORMATS["bfloat16"])

    with np.errstate(over="ignore"):
        theirs = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    assert np.array_equal(ours, theirs)


def test_nan_stays_nan_and_infinity_stays_infinite() -> None:
    special = np.array([np.nan, np.inf, -np.inf, -np.nan], dtype=np.float32)

    back = decode(encode(special, FORMATS["bfloat16"]), "bfloat16")

    assert np.isnan(back[[0, 3]]).all()
    assert np.array_equal(back[1:3], special[1:3])


def test_int8_is_scaled_rounded_and_held_within_its_range() -> None:
    values = np.array([0.0, 1.0, -1.0, 10.0, -10.0, 1 / 64], dtype=np.float32)

    assert encode(values, FORMATS["int8"]).tolist() == [0, 32, -32, 127, -127, 0]


def test_names_lead_to_a_format_or_to_a_reason() -> None:
    for alias, name in ALIASES.items():
        assert canonical(alias.upper()) == name
        assert name in FORMATS or name in UNSUPPORTED
    assert canonical(" BF16 ") == "bfloat16"
    assert canonical("complex64") == "complex64"
