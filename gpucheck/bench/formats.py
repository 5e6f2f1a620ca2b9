"""Number formats of the kernels: storage, rounding and labels."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from gpucheck.bench.model import DtypeSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Bytes of one number by NumPy's type for its bits.
_BYTES = MappingProxyType(
    {"float64": 8, "float32": 4, "int32": 4, "float16": 2, "uint16": 2, "int8": 1, "uint8": 1}
)


class Format(NamedTuple):
    """Number format. `storage` is NumPy's type for its bits: bfloat16 is stored as 16-bit integers.

    `roundoff` is the largest relative rounding error (0 for integers), `accumulate` and `output`
    are the formats of a product's sums and entries. `math_mode` names the arithmetic, and
    `capability` is the first compute capability that supports it. Numbers are multiplied by `scale`
    before they are rounded.
    """

    name: str
    storage: str
    roundoff: float
    accumulate: str
    output: str
    math_mode: str
    capability: tuple[int, int] = (0, 0)
    scale: float = 1.0

    @property
    def itemsize(self) -> int:
        """Return the bytes of one number."""
        return _BYTES[self.storage]

    @property
    def spec(self) -> DtypeSpec:
        """Return the label of a row in this format."""
        return DtypeSpec(
            input="float32" if self.name == "tf32" else self.name,
            accumulate=self.accumulate,
            output=self.output,
            math_mode=self.math_mode,
        )


#: tf32 is float32 in memory; the tensor cores use ten bits of its mantissa. float8 is e4m3, which
#: reaches from 2**-9 to 448: 16 times a normal number stays below a hundred, and one in a thousand
#: is so small that it loses precision. Four standard deviations fill the range of int8.
FORMATS = MappingProxyType(
    {
        form.name: form
        for form in (
            Format("float64", "float64", 2.0**-53, "float64", "float64", "fp64"),
            Format("float32", "float32", 2.0**-24, "float32", "float32", "fp32"),
            Format("tf32", "float32", 2.0**-11, "float32", "float32", "tf32", (8, 0)),
            Format("float16", "float16", 2.0**-11, "float32", "float16", "fp16", (7, 0)),
            Format("bfloat16", "uint16", 2.0**-8, "float32", "bfloat16", "bf16", (8, 0)),
            Format("float8", "uint8", 2.0**-4, "float32", "bfloat16", "fp8", (8, 9), 16.0),
            Format("int8", "int8", 0.0, "int32", "int32", "int8", (7, 5), 32.0),
        )
    }
)

#: Other names that people use for a format.
ALIASES = MappingProxyType(
    {
        alias: name
        for name, aliases in {
            "float64": ("double", "fp64", "f64"),
            "float32": ("float", "fp32", "f32"),
            "tf32": ("tensorfloat32",),
            "float16": ("half", "fp16", "f16"),
            "bfloat16": ("bf16",),
            "float8": ("fp8", "e4m3", "float8_e4m3fn"),
            "int8": ("i8",),
        }.items()
        for alias in aliases
    }
)

#: NumPy's type for the bits of each output format of a product.
STORAGES = MappingProxyType(
    {"int32": "int32"} | {form.name: form.storage for form in FORMATS.values()}
)
#: e4m3's largest number, and its single NaN pattern, without the sign.
_E4M3_LARGEST, _E4M3_NAN = 448.0, 0x7F
#: Numbers converted to e4m3 at once, to bound the memory of intermediate results.
_BLOCK = 2**16


def output_bytes(form: Format) -> int:
    """Return the bytes of one entry of a product in this format."""
    return _BYTES[STORAGES[form.output]]


def canonical(name: str) -> str:
    """Return a format's canonical name; an unknown name is returned unchanged."""
    word = name.strip().lower()
    return ALIASES.get(word, word)


def encode(values: HostArray, form: Format) -> HostArray:
    """Return float32 or float64 numbers, scaled and rounded to the format, as stored.

    int8 clamps them to 127, float8 to 448.
    """
    import numpy as np

    if form.name == "bfloat16":
        return _to_bfloat16(values.astype(np.float32, copy=False))
    if form.name == "int8":
        return np.clip(np.rint(values * form.scale), -127, 127).astype(np.int8)
    if form.name == "float8":
        stored = np.empty(values.shape, dtype=np.uint8)
        flat, numbers = stored.reshape(-1), values.reshape(-1)
        for low in range(0, len(flat), _BLOCK):
            flat[low : low + _BLOCK] = _to_e4m3(numbers[low : low + _BLOCK] * form.scale)
        return stored
    return values.astype(form.storage, copy=False)


def decode(stored: HostArray, name: str) -> HostArray:
    """Return stored numbers of the format `name` in a type that NumPy calculates with.

    float8 is divided by its scale again, as in a product; integers stay unchanged.
    """
    import numpy as np

    if name == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    if name == "float8":
        return _e4m3_numbers()[stored]
    return stored


def _to_bfloat16(values: HostArray) -> HostArray:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even; NaN stays."""
    import numpy as np

    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _to_e4m3(values: HostArray) -> HostArray:
    """Return the bits of the nearest e4m3 numbers, ties to even; NaN stays, the rest is clamped.

    A sign, four bits of exponent with the bias 7, three of mantissa, no infinity. Source: OCP 8-bit
    Floating Point Specification (OFP8).
    """
    import numpy as np

    values = values.astype(np.float32, copy=False)
    sizes = np.minimum(np.abs(values), np.float32(_E4M3_LARGEST))
    bits = sizes.view(np.uint32)
    # As for bfloat16, but with twenty bits fewer; float32's bias is 127.
    rounded = ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - np.uint32((127 - 7) << 3)
    # Below 2**-6 numbers are 2**-9 apart, as float32's are from 2**14 on.
    even = (sizes + np.float32(2**14)).view(np.uint32) & 0xF
    found = np.where(sizes < np.float32(2**-6), even, rounded)
    found = np.where(np.isnan(values), _E4M3_NAN, found) | (values.view(np.uint32) >> 24 & 0x80)
    stored: HostArray = found.astype(np.uint8)
    return stored


@cache
def _e4m3_numbers() -> HostArray:
    """Return the values of the 256 bit patterns of float8, without its scale."""
    import numpy as np

    bits = np.arange(256)
    exponents, mantissas = bits >> 3 & 15, bits & 7
    sizes = np.ldexp(mantissas + 8.0 * (exponents > 0), np.maximum(exponents, 1) - 10)
    sizes[bits & _E4M3_NAN == _E4M3_NAN] = np.nan
    signed = np.where(bits & 0x80, -sizes, sizes) / FORMATS["float8"].scale
    numbers: HostArray = signed.astype(np.float32)
    return numbers
