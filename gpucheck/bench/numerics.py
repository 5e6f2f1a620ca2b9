"""Numbers of the benchmarks: their formats, drawn inputs, and sums that check every number."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from gpucheck.bench.model import DtypeSpec
from gpucheck.bench.request_model import Fill

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

# -------------------------------------------------------------------------------- formats

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
    codes = np.where(sizes < np.float32(2**-6), even, rounded)
    codes = np.where(np.isnan(values), _E4M3_NAN, codes) | (values.view(np.uint32) >> 24 & 0x80)
    stored: HostArray = codes.astype(np.uint8)
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


# ---------------------------------------------------------------------------- drawn inputs

#: Zeros or ramps take less power than random numbers and can run a GPU up to 13 % faster.
DESCRIPTIONS = {Fill.NORMAL: "normal(0,1)", Fill.ZEROS: "zeros"}

#: Numbers drawn from one generator for any number of threads: a seed gives one array.
_CHUNK = 2**20

#: Smaller arrays lie in a few pages of the heap, which moves with every allocation.
_SMALLEST_MAPPING = 2**18
#: NumPy requests huge pages from this size on, and so does `fresh_array`.
_HUGE_PAGES_FROM = 2**22

T = TypeVar("T")


class HostData:
    """Host arrays by name, each made at first use: the inputs of a round, and arrays that are kept.

    Inputs are made anew for each round, in other memory but with the same numbers, unless they have
    at least `kept_from_bytes`. Groups may share kept arrays: the names tell them apart.
    """

    def __init__(
        self,
        seed: int,
        fill: Fill = Fill.NORMAL,
        *,
        kept_from_bytes: float = math.inf,
        kept: dict[str, object] | None = None,
    ) -> None:
        self.seed = seed
        self.fill = fill
        self._kept_from_bytes = kept_from_bytes
        self._inputs: dict[str, object] = {}
        self._kept: dict[str, object] = {} if kept is None else kept

    def normal(self, name: str, shape: tuple[int, ...], dtype: str = "float32") -> HostArray:
        """Return numbers from the standard normal distribution, the same for each seed.

        `dtype` is float32 or float64. With the fill `zeros` they are zeros.
        """

        def draw() -> HostArray:
            import numpy as np

            if self.fill is Fill.ZEROS:
                return np.zeros(shape, dtype=dtype)
            # The name is part of the seed, so that two inputs of a kernel differ.
            values = fresh_array((math.prod(shape),), dtype)
            _fill_normal(values, [self.seed, *name.encode()])
            return values.reshape(shape)

        size_bytes = math.prod(shape) * (8 if dtype == "float64" else 4)
        return self.once(f"{name}-{shape}-{dtype}", draw, size_bytes)

    def once(self, name: str, make: Callable[[], HostArray], size_bytes: int) -> HostArray:
        """Return the input that `make` makes, once in a round; it has `size_bytes`.

        Where inputs may be kept, a round copies it, which takes a tenth of drawing it.
        """
        if size_bytes >= self._kept_from_bytes:
            return self.keep(name, make)
        if math.isinf(self._kept_from_bytes):
            return _made(self._inputs, name, make)
        return _made(self._inputs, name, lambda: _copied(self.keep(name, make)))

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """Return the array that `make` makes, once for all rounds; for untimed or small arrays."""
        return _made(self._kept, name, make)

    def renew(self) -> None:
        """Release the inputs, so that the next caller gets new ones."""
        self._inputs.clear()


def _made(place: dict[str, object], name: str, make: Callable[[], T]) -> T:
    if name not in place:
        place[name] = make()
    return cast("T", place[name])


def _copied(source: HostArray) -> HostArray:
    target = fresh_array(source.shape, source.dtype.str)
    target[...] = source
    return target


def fresh_array(shape: tuple[int, ...], dtype: str) -> HostArray:
    """Return an uninitialised array in pages that this process has not used before.

    The allocator reuses freed memory, at its old address and in its old pages: all rounds would
    then share the luck of the first.
    """
    import numpy as np

    size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if size_bytes < _SMALLEST_MAPPING:
        return np.empty(shape, dtype=dtype)
    try:
        pages = mmap.mmap(-1, size_bytes)
    except OSError as error:
        raise MemoryError from error
    if size_bytes >= _HUGE_PAGES_FROM and hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=dtype).reshape(shape)


def _fill_normal(values: HostArray, seed: list[int]) -> None:
    """Fill a one-dimensional array with standard normal numbers, in chunks on all cores."""
    import numpy as np

    def draw(number: int) -> None:
        chunk = values[number * _CHUNK : (number + 1) * _CHUNK]
        # NumPy draws directly into the array, and releases the interpreter lock meanwhile.
        np.random.default_rng([*seed, number]).standard_normal(dtype=chunk.dtype, out=chunk)

    chunks = range(-(-len(values) // _CHUNK))
    if len(chunks) > 1:
        try:
            with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
                list(pool.map(draw, chunks))
            return
        except RuntimeError:  # no thread can be started: the numbers are the same without
            pass
    for number in chunks:
        draw(number)


# ------------------------------------------------------------------------------ block sums
# A row is cut into blocks of up to 32 numbers, and each block is summed with random weights of
# either sign. A number that is off by d moves its block's sum by at least 0.75 d. Rounding grows
# only with the root of the block's width. A sum over a whole row would hide a wrong number in the
# rounding of thousands of others. The right sums of a product take O(n^3 / 32) operations, as in
# Freivalds' test with a vector for each block. Weights of different sizes detect exchanged columns.
# Freivalds (1977), "Probabilistic machines can use less running time"; Huang and Abraham (1984),
# "Algorithm-based fault tolerance for matrix operations".

#: Number of blocks per row, if their width stays between the narrowest and the widest.
_BLOCKS, NARROWEST, WIDEST = 128, 8, 32
#: Range of the weights' sizes.
_LIGHTEST, _HEAVIEST = 0.75, 1.25
_SEED = 7


def block_width(columns: int) -> int:
    """Return the width of a block: 8, 16 or 32."""
    width = NARROWEST
    while width < WIDEST and width * _BLOCKS < columns:
        width *= 2
    return width


def block_count(columns: int) -> int:
    """Return the number of blocks in a row; the last one may be narrower."""
    return -(-columns // block_width(columns))


def block_weights(columns: int) -> HostArray:
    """Return the weight of each column, the same on every call."""
    import numpy as np

    generator = np.random.default_rng([_SEED, columns])
    signs = generator.choice([-1.0, 1.0], columns)
    weights: HostArray = signs * generator.uniform(_LIGHTEST, _HEAVIEST, columns)
    return weights


def sums_over_columns(rows: HostArray, weights: HostArray, width: int) -> HostArray:
    """Return the weighted sums of each row's blocks, (rows, blocks); all in float64."""
    import numpy as np

    whole = len(weights) // width
    edge = whole * width
    inner = np.einsum(
        "rbw,bw->rb",
        rows[:, :edge].reshape(len(rows), whole, width),
        weights[:edge].reshape(whole, width),
    )
    if edge == len(weights):
        sums: HostArray = inner
        return sums
    return np.column_stack([inner, rows[:, edge:] @ weights[edge:]])


def sums_over_rows(rows: HostArray, weights: HostArray, width: int) -> HostArray:
    """Return the sums of blocks of rows of a transposed matrix, (blocks, columns)."""
    import numpy as np

    starts = range(0, len(weights), width)
    return np.stack([weights[low : low + width] @ rows[low : low + width] for low in starts])
