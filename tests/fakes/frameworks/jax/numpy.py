"""Stand-in for jax.numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from stand_in import break_run, call

import jax

float64, float32, float16 = np.dtype("float64"), np.dtype("float32"), np.dtype("float16")
bfloat16, int32 = np.dtype(ml_dtypes.bfloat16), np.dtype("int32")
dtype = np.dtype


def matmul(left: Any, right: Any, *, precision: str | None) -> Any:
    """Multiply in float32 or wider."""
    chosen = precision or jax.config.jax_default_matmul_precision
    call(f"matmul {left.dtype} on {left.where} precision={chosen}")
    wrong = break_run()
    wide = np.float64 if left.dtype == float64 else np.float32
    found = left.array.astype(wide) @ right.array.astype(wide) + (1 if wrong else 0)
    return jax.Array(found.astype(left.dtype), left.where)


def array(x: Any, *, copy: bool) -> Any:
    """Return a copy."""
    assert copy
    call(f"copy on {x.where}")
    return jax.Array(x.array.copy(), x.where)


def take_along_axis(x: Any, index: Any, *, axis: int) -> Any:
    """Return the numbers at an index."""
    return jax.Array(np.take_along_axis(x.array, index.array, axis=axis), x.where)
