"""The number formats that kernels are measured in: how each is stored, rounded and labelled."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gpucheck.models.bench import DtypeSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format. `storage` is NumPy's type for its bits: bfloat16 travels as 16-bit integers.

    `roundoff` is the largest relative error of rounding a number to it (0 for integers), `output`
    the format of a product's entries, `capability` the first compute capability that has it.
    """

    name: str
    storage: str
    itemsize: int
    roundoff: float
    accumulate: str
    output: str
    math_mode: str
    capability: tuple[int, int] = (0, 0)

    @property
    def spec(self) -> DtypeSpec:
        """Return the label of a row in this format."""
        stored = "float32" if self.name == "tf32" else self.name
        return DtypeSpec(
            input=stored,
            accumulate=self.accumulate,
            output=self.output,
            math_mode=self.math_mode,
        )


#: tf32 is float32 in memory, of which the tensor cores use ten bits of mantissa.
FORMATS = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Format(
                name="float64",
                storage="float64",
                itemsize=8,
                roundoff=2.0**-53,
                accumulate="float64",
                output="float64",
                math_mode="fp64",
            ),
            Format(
                name="float32",
                storage="float32",
                itemsize=4,
                roundoff=2.0**-24,
                accumulate="float32",
                output="float32",
                math_mode="fp32",
            ),
            Format(
                name="tf32",
                storage="float32",
                itemsize=4,
                roundoff=2.0**-11,
                accumulate="float32",
                output="float32",
                math_mode="tf32",
                capability=(8, 0),
            ),
            Format(
                name="float16",
                storage="float16",
                itemsize=2,
                roundoff=2.0**-11,
                accumulate="float32",
                output="float16",
                math_mode="fp16",
                capability=(7, 0),
            ),
            Format(
                name="bfloat16",
                storage="uint16",
                itemsize=2,
                roundoff=2.0**-8,
                accumulate="float32",
                output="bfloat16",
                math_mode="bf16",
                capability=(8, 0),
            ),
            Format(
                name="int8",
                storage="int8",
                itemsize=1,
                roundoff=0.0,
                accumulate="int32",
                output="int32",
                math_mode="int8",
                capability=(7, 5),
            ),
        )
    }
)

#: What people also write for a format.
ALIASES = MappingProxyType(
    {
        "double": "float64",
        "fp64": "float64",
        "f64": "float64",
        "float": "float32",
        "fp32": "float32",
        "f32": "float32",
        "tensorfloat32": "tf32",
        "half": "float16",
        "fp16": "float16",
        "f16": "float16",
        "bf16": "bfloat16",
        "i8": "int8",
        "fp8": "float8",
    }
)

#: Named, so that asking for it gets a reason: CuPy binds no cuBLASLt, and nothing replaces it here.
UNSUPPORTED = MappingProxyType(
    {"float8": "float8 is not supported: CuPy has no door to cuBLASLt, which alone multiplies it."}
)

#: NumPy's type for the bits of each format that a product may be written in.
STORAGES = MappingProxyType(
    {"int32": "int32"} | {entry.name: entry.storage for entry in FORMATS.values()}
)
#: Standard deviation of int8 data: four of them fill the range.
_INT8_SCALE = 32.0


def canonical(name: str) -> str:
    """Return a format's one name for what a person wrote; an unknown name as it is."""
    word = name.strip().lower()
    return ALIASES.get(word, word)


def encode(values: HostArray, form: Format) -> HostArray:
    """Return float32 or float64 numbers rounded to the format, as it is stored.

    int8 numbers are the values times 32, rounded and held within 127.
    """
    import numpy as np

    if form.name == "bfloat16":
        return _to_bfloat16(values.astype(np.float32, copy=False))
    if form.name == "int8":
        return np.clip(np.rint(values * _INT8_SCALE), -127, 127).astype(np.int8)
    return values.astype(form.storage, copy=False)


def decode(stored: HostArray, name: str) -> HostArray:
    """Return stored numbers of the format `name` in a type that NumPy calculates with."""
    import numpy as np

    if name == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def _to_bfloat16(values: HostArray) -> HostArray:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even; NaN stays."""
    import numpy as np

    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
