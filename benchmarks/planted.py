"""Planted errors: how often the checks of the benchmarks detect wrong results.

Right results come from NumPy, rounded as in each format. Each is then made wrong and given to the
check of `gpucheck bench`. False alarms on right results are counted as well.

    python -m benchmarks.planted [--tries 300] [--edge 4096] [--seeds 100]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpucheck.bench.kernels.copy import verify_copy
from gpucheck.bench.kernels.matmul import draw_inputs, verify_product
from gpucheck.bench.kernels.softmax import LOG2_E, Scaling, draw_input, softmax_rows, verify_order
from gpucheck.bench.mnist import load_dataset
from gpucheck.bench.model import Verified
from gpucheck.bench.numerics import FORMATS, HostData, decode, encode
from gpucheck.bench.training import expected_weights, verify_weights
from tests.fakes.bench import order

HostArray = NDArray[Any]

#: Rows of the results: the check of a row does not depend on their number.
ROWS = 64
#: Sizes of a planted error, as shares of a row's typical number.
SIZES = (1.0, 0.25, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class Subject:
    """Right result as stored, its format, and its check."""

    name: str
    right: HostArray
    form: str
    check: Callable[[HostArray], Verified]


def products(edge: int, seed: int = 0, rows: int = ROWS) -> Iterator[Subject]:
    """Yield products in each format, and those of truncating arithmetic."""
    for name in FORMATS:
        given = order((rows, edge, edge), dtype=name)
        object.__setattr__(given, "data", HostData(seed))
        transposed = name in ("int8", "float8")
        left, right = (decode(side, name) for side in draw_inputs(given, transposed=transposed))
        right = right.T if transposed else right
        for kind, out, fast in arithmetics(name, left, right):
            check = partial(verify_product, given, transposed=transposed, fast_accumulation=fast)
            stored = encode(out, FORMATS["bfloat16"]) if _is_bfloat16(name) else out
            yield Subject(f"matmul {kind}", stored, FORMATS[name].output, check)


def arithmetics(
    name: str, left: HostArray, right: HostArray
) -> Iterator[tuple[str, HostArray, bool]]:
    """Yield the ways in which a format's product may be computed; True for fast accumulation."""
    if name == "int8":
        yield name, (left.astype(float) @ right.astype(float)).astype(np.int32), False
    elif name == "float16":
        yield name, (left.astype(np.float32) @ right.astype(np.float32)).astype(np.float16), False
    elif name == "tf32":
        yield "tf32, rounded", tf32(left, rounded=True) @ tf32(right, rounded=True), False
        yield "tf32, truncated", tf32(left, rounded=False) @ tf32(right, rounded=False), False
    else:
        yield name, left @ right, False
    if name == "float8":
        for bits in (13, 14):
            yield f"float8, sums of {bits} bits", summed_short(left, right, bits), True


def tf32(values: HostArray, *, rounded: bool) -> HostArray:
    """Return float32 numbers with ten bits of mantissa, rounded to nearest or truncated."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    if rounded:
        bits = bits + 0xFFF + (bits >> 13 & 1)
    return (bits & np.uint32(0xFFFFE000)).view(np.float32)


def summed_short(left: HostArray, right: HostArray, bits: int) -> HostArray:
    """Return the product whose sums keep `bits` bits after each 32 terms, truncated."""
    sums = np.zeros((len(left), right.shape[1]))
    for low in range(0, left.shape[1], 32):
        part = slice(low, low + 32)
        fractions, exponents = np.frexp(sums + left[:, part].astype(float) @ right[part])
        sums = np.ldexp(np.trunc(np.ldexp(fractions, bits)), exponents - bits)
    return sums.astype(np.float32)


def _is_bfloat16(name: str) -> bool:
    return FORMATS[name].output == "bfloat16"


def softmaxes(edge: int, seed: int = 0, rows: int = ROWS) -> Iterator[Subject]:
    """Yield softmaxes of each format."""
    for name in ("float32", "float16", "bfloat16"):
        given = order((rows, edge), dtype=name)
        object.__setattr__(given, "data", HostData(seed))
        source = decode(draw_input(given), name).astype(np.float32)
        temperature = given.request.temperature
        wide = source.astype(float) / temperature
        raised = np.exp(wide - wide.max(axis=1, keepdims=True))
        right = encode((raised / raised.sum(axis=1, keepdims=True)).astype("f4"), FORMATS[name])
        if name == "float32":
            right = np.empty_like(source)
            softmax_rows(source, right, Scaling(np.exp2, LOG2_E / temperature, 30.0), 16)
        yield Subject(f"softmax {name}", right, name, partial(verify_order, given))


def others(edge: int, rows: int = ROWS) -> Iterator[Subject]:
    """Yield a copy, and the weights after the checked steps of a training."""
    given = order((rows, edge))
    source = given.data.normal("copy", given.shape)
    yield Subject("copy float32", source, "float32", partial(verify_copy, source))
    trained = order((100,))
    dataset = load_dataset(trained, 100)
    weights = expected_weights(trained, dataset, 100)
    check = partial(verify_weights, expected=weights)
    yield Subject("train, batch, towers", weights.astype(np.float32), "float32", check)


def typical_of(values: HostArray, row: int) -> float:
    """Return the root of the mean square of a row's numbers."""
    return float(np.sqrt(np.mean(np.square(values[row].astype(float)))))


def put(stored: HostArray, form: str, place: tuple[int, int], value: float) -> None:
    """Write a number at a place, as the format stores it."""
    one = np.array([value], dtype=np.float32 if form != "float64" else np.float64)
    rounded = encode(one, FORMATS[form]) if form in ("bfloat16", "float16") else one
    stored[place] = np.rint(value) if form == "int32" else rounded[0]


Fault = Callable[[HostArray, str, np.random.Generator], None]


def one_off(share: float, out: HostArray, form: str, source: np.random.Generator) -> None:
    """Move one number by this share of its row's typical size, up or down."""
    row, column = (int(source.integers(edge)) for edge in out.shape)
    values = decode(out[row : row + 1], form).astype(float)
    off = share * typical_of(values, 0) * source.choice([-1, 1])
    if form == "int32":
        off = np.sign(off) * max(1.0, abs(off))
    put(out, form, (row, column), float(values[0, column]) + off)


def one_bit(bit: int, out: HostArray, form: str, source: np.random.Generator) -> None:
    """Flip one bit of one number; 0 is its last."""
    words = out.view(f"u{out.itemsize}")
    row, column = (int(source.integers(edge)) for edge in out.shape)
    words[row, column] ^= words.dtype.type(1 << bit)


def in_the_field(out: HostArray, form: str, source: np.random.Generator) -> None:
    """Plant an error as seen on broken cards (arXiv 2605.04213).

    A single bit in 38 % of the cases, NaN in 1 %, else several bits of a number; in half of them
    the same lane of every warp along a row is hit, that is each 32nd column, else one number.
    """
    words = out.view(f"u{out.itemsize}")
    row, column = (int(source.integers(edge)) for edge in out.shape)
    step = 32 if source.random() < 0.5 else out.shape[1]
    columns = slice(column % step, None, step) if step < out.shape[1] else slice(column, column + 1)
    kind = source.random()
    if kind < 0.01 and form != "int32":
        put_nan = encode(np.full(1, np.nan, dtype=np.float32), FORMATS[form])
        out[row, columns] = put_nan[0]
        return
    width = 8 * out.itemsize
    bits = 1 if kind < 0.39 else int(source.integers(2, width // 2))
    mask = sum(1 << int(bit) for bit in source.choice(width, bits, replace=False))
    words[row, columns] ^= words.dtype.type(mask)


def wrong_row(out: HostArray, form: str, source: np.random.Generator) -> None:
    """Put another row's numbers in a row's place."""
    row = int(source.integers(1, len(out)))
    out[row] = out[row - 1]


def shifted_row(out: HostArray, form: str, source: np.random.Generator) -> None:
    """Shift a row by one column."""
    row = int(source.integers(len(out)))
    out[row] = np.roll(out[row], 1)


def exchanged(out: HostArray, form: str, source: np.random.Generator) -> None:
    """Exchange two neighbouring columns of a row."""
    row, column = int(source.integers(len(out))), int(source.integers(1, out.shape[1]))
    pair = [column - 1, column]
    out[row, pair] = out[row, pair[::-1]]


def stale_tile(out: HostArray, form: str, source: np.random.Generator) -> None:
    """Leave a tile of 16 x 16 numbers at zero, as if it had not been written."""
    row, column = (int(source.integers(max(1, edge - 15))) for edge in out.shape)
    out[row : row + 16, column : column + 16] = 0


def noticed(subject: Subject, fault: Fault, tries: int) -> float:
    """Return the share of the changed results that the check detected."""
    found, changed = 0, 0
    for seed in range(tries):
        out = subject.right.copy()
        fault(out, subject.form, np.random.default_rng([seed, 11]))
        if np.array_equal(out.view(f"u{out.itemsize}"), subject.right.view(f"u{out.itemsize}")):
            continue
        changed += 1
        with np.errstate(all="ignore"):
            found += not subject.check(out).ok
    return found / changed if changed else float("nan")


def percent(share: float) -> str:
    """Return a share in percent; a hyphen if the format cannot hold such an error."""
    return "-" if share != share else f"{100 * share:.3g}"


def table(head: list[str], rows: Iterator[list[str]]) -> None:
    """Print a table."""
    print(f"| {' | '.join(head)} |")
    print("|--" * len(head) + "|")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
    print()


def by_size(subjects: list[Subject], tries: int) -> Iterator[list[str]]:
    """Yield a row for each subject: detected, in percent, by the size of one wrong number."""
    for subject in subjects:
        found = [noticed(subject, partial(one_off, size), tries) for size in SIZES]
        yield [subject.name, *(percent(share) for share in found)]


def by_bit(subjects: list[Subject], tries: int) -> Iterator[list[str]]:
    """Yield a row for each subject: from the last bit to the first, detected, in percent."""
    for subject in subjects:
        width = 8 * subject.right.itemsize
        found = [noticed(subject, partial(one_bit, bit), tries) for bit in range(width)]
        seen = [bit for bit, share in enumerate(found) if share >= 0.99]
        half = [bit for bit, share in enumerate(found) if share >= 0.5]
        yield [
            subject.name,
            str(width),
            str(len(seen)),
            str(len(half)),
            percent(sum(found) / width),
        ]


def by_shape(subjects: list[Subject], tries: int) -> Iterator[list[str]]:
    """Yield a row for each subject: detected, in percent, by what went wrong."""
    faults: list[Fault] = [in_the_field, wrong_row, shifted_row, exchanged, stale_tile]
    for subject in subjects:
        yield [subject.name, *(percent(noticed(subject, fault, tries)) for fault in faults)]


def false_alarms(edge: int, seeds: int) -> Iterator[list[str]]:
    """Yield a row for each subject: right results called wrong, and the largest error."""
    found: dict[str, list[Verified]] = {}
    for seed in range(seeds):
        for subject in (*products(edge, seed), *softmaxes(edge, seed)):
            found.setdefault(subject.name, []).append(subject.check(subject.right))
    for name, checks in found.items():
        worst = max((one.error or 0.0) / one.bound for one in checks)
        wrong = sum(not one.ok for one in checks)
        yield [name, str(len(checks)), str(wrong), f"{worst:.2f}"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=300)
    parser.add_argument("--edge", type=int, default=4096)
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    subjects = [*products(given.edge), *softmaxes(given.edge), *others(given.edge)]
    print(f"{ROWS} rows of {given.edge}, {given.tries} tries each; detected, in percent\n")
    sizes = [f"{size:g}" for size in SIZES]
    table(
        ["one number wrong by, of its row's typical size", *sizes], by_size(subjects, given.tries)
    )
    faults = ["as in the field", "another row", "row shifted", "two exchanged", "tile missing"]
    table(["what went wrong", *faults], by_shape(subjects, given.tries))
    bits = ["one bit flipped", "bits", "detected to 99 %", "to 50 %", "of all, percent"]
    table(bits, by_bit(subjects, max(20, given.tries // 5)))
    print(f"right results, {ROWS} rows of {given.edge // 4}")
    table(
        ["right results", "checked", "called wrong", "largest error of its bound"],
        false_alarms(given.edge // 4, given.seeds),
    )


if __name__ == "__main__":
    main()
