"""Images to train on: MNIST's files (IDX as published, also gzipped, and Keras' NPZ), or generated.

The reader is strict: a file that is cut short, padded, of another type or of another shape is
refused with the reason, before anything is computed from it. Nothing in a file is ever executed.
"""

from __future__ import annotations

import gzip
import io
import math
import re
import zipfile
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpucheck.bench.case import CaseOrder
from gpucheck.bench.request_model import BenchMode, BenchRequest, Fill
from gpucheck.drivers.host.files import MIB, read_file
from gpucheck.report.errors import WrongUseError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    HostArray = NDArray[Any]

#: Edge of an image in pixels, number of classes, and inputs: the pixels and a constant 1.
EDGE, CLASSES = 28, 10
INPUTS = EDGE * EDGE + 1
#: Generated images by mode, images to test on, and pixels' scatter about the class' pattern.
_GENERATED = {BenchMode.QUICK: 6400, BenchMode.DEFAULT: 12800, BenchMode.FULL: 51200}
_TESTED, _SCATTER = 2000, 1.8
#: Most bytes of a file, and of everything unpacked from it; MNIST's arrays are 55 MB. A header that
#: claims more is wrong or malicious.
_MOST_BYTES = 256 * MIB
_TOO_LARGE = f"holds more than {_MOST_BYTES // MIB} MiB; MNIST holds 55 MB"
#: An IDX file begins with two zeros, the type (8: unsigned bytes) and the number of dimensions.
_IDX_HEAD = b"\x00\x00\x08"
#: Names of the training images as published, packed or not, and as some tools unpack them.
_IMAGES = tuple(f"train-images{sign}idx3-ubyte{packed}" for sign in "-." for packed in ("", ".gz"))
_NPZ_NAMES = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Images as (n, 785) float32 between 0 and 1 with a final 1, targets as (n, 10) of 0 and 1.

    `source` says whether the images are real; `test_labels` are classes.
    """

    images: HostArray
    targets: HostArray
    test_images: HostArray
    test_labels: HostArray
    source: str


def load_dataset(order: CaseOrder, least: int) -> Dataset:
    """Return the data of a group, at least `least` images; real ones if a file was named.

    Real images are repeated if there are fewer. Raises WrongUseError for an unusable file.
    """

    def load() -> Dataset:
        if order.request.data_file is not None:
            return _real(Path(order.request.data_file), least)
        return _generated(order, count)

    count = max(least, _GENERATED[order.request.mode])
    return order.data.keep(f"dataset-{count}", load)


def check_data_file(request: BenchRequest) -> None:
    """Read the data file, if one is named, before anything is measured.

    Raises:
        WrongUseError: it cannot be used.
    """
    if request.data_file is not None:
        _read_once(Path(request.data_file))


def _real(path: Path, least: int) -> Dataset:
    import numpy as np

    images, labels, *tested = _read_once(path)
    if not len(tested[1]):
        # Not the training images, unless there are hardly any.
        kept = max(1, len(images) - min(_TESTED, len(images) // 5))
        tested = [images[kept:], labels[kept:]] if kept < len(images) else [images, labels]
        images, labels = images[:kept], labels[:kept]
    wanted = np.arange(max(least, len(images))) % len(images)
    return Dataset(
        images=_inputs(images[wanted]),
        targets=_one_hot(labels[wanted]),
        test_images=_inputs(tested[0]),
        test_labels=tested[1],
        source="file",
    )


def _generated(order: CaseOrder, count: int) -> Dataset:
    """Draw images that scatter about one pattern for each class; these are not real digits."""
    import numpy as np

    generator = np.random.default_rng([order.data.seed, 784])
    patterns = generator.random((CLASSES, INPUTS - 1), dtype=np.float32)
    labels = generator.integers(0, CLASSES, count + _TESTED)
    images = generator.standard_normal((len(labels), INPUTS - 1), dtype=np.float32)
    images *= np.float32(_SCATTER)
    images += patterns[labels]
    np.clip(images, 0, 1, out=images)
    if order.data.fill is Fill.ZEROS:
        images[:] = 0
    return Dataset(
        images=_inputs(images[:count]),
        targets=_one_hot(labels[:count]),
        test_images=_inputs(images[count:]),
        test_labels=labels[count:],
        source="generated",
    )


def _inputs(pixels: HostArray) -> HostArray:
    """Return pixels (bytes, or 0 to 1) as float32, with the constant input added."""
    import numpy as np

    inputs = np.ones((len(pixels), INPUTS), dtype=np.float32)
    inputs[:, :-1] = pixels.reshape(len(pixels), -1)
    if pixels.dtype == np.uint8:
        inputs[:, :-1] /= np.float32(255)
    return inputs


def _one_hot(labels: HostArray) -> HostArray:
    import numpy as np

    return np.eye(CLASSES, dtype=np.float32)[labels]


# ------------------------------------------------------------------------------- MNIST's files


def read_mnist(path: Path) -> tuple[HostArray, ...]:
    """Return images (n, 28, 28) and labels (n,), unsigned bytes, and those of the test part.

    The test part may be empty.

    `path` is an NPZ with x_train, y_train, x_test and y_test; or the IDX file of the training
    images, with the label and test files under their usual names in the same folder; or that
    folder.

    Raises:
        WrongUseError: it cannot be read, or its content is not valid.
    """
    try:
        path.stat()
        if path.suffix.lower() == ".npz":
            return _checked(path, *_read_npz(path))
        images = _images_in(path) if path.is_dir() else path
        return _checked(images, *_read_idx_set(images))
    except OSError as error:
        # Not always the named file: its labels may be missing.
        at_fault = Path(error.filename) if isinstance(error.filename, str) else path
        raise unusable(at_fault, f"cannot be read: {error.strerror or error}") from None


#: Several groups train on one file.
_read_once = lru_cache(maxsize=1)(read_mnist)


def unusable(path: Path, problem: str) -> WrongUseError:
    """Return the error for an unusable file."""
    return WrongUseError(
        code="data-unusable",
        message=f"The data file {str(path)!r} {problem}.",
        remedy=(
            "Give MNIST's training images in IDX (train-images-idx3-ubyte[.gz]; the labels and "
            "the test files beside it), the folder of these, or its NPZ.",
        ),
    )


def _images_in(folder: Path) -> Path:
    """Return the file of the training images in a folder."""
    for name in _IMAGES:
        if (folder / name).exists():
            return folder / name
    raise unusable(folder, f"is a folder without {_IMAGES[0]}[.gz]")


def _read_idx_set(path: Path) -> tuple[HostArray, ...]:
    if not re.search("images[-.]idx3", path.name):
        raise unusable(
            path, "is not an NPZ, and its name is not like MNIST's images (…images-idx3…)"
        )
    labels = path.with_name(re.sub("images([-.])idx3", r"labels\1idx1", path.name))
    files = [path, labels]
    test = [item.with_name(item.name.replace("train", "t10k")) for item in files]
    if "train" in path.name and all(item.exists() for item in test):
        files += test
    arrays: list[HostArray] = []
    for place, file in enumerate(files):
        left = _MOST_BYTES - sum(array.nbytes for array in arrays)
        arrays.append(read_idx(file, 1 if place % 2 else 3, most_bytes=left))
    return tuple(arrays) if len(arrays) == 4 else (*arrays, arrays[0][:0], arrays[1][:0])


def read_idx(path: Path, dimensions: int, *, most_bytes: int = _MOST_BYTES) -> HostArray:
    """Read one IDX file of unsigned bytes, gzipped if it ends in .gz, up to `most_bytes`.

    Raises:
        WrongUseError: it is not such a file, or its length does not match its header.
    """
    import numpy as np

    content = _content(path, most_bytes)
    head = 4 + 4 * dimensions
    if content[:4] != _IDX_HEAD + bytes([dimensions]) or len(content) < head:
        raise unusable(path, f"is not an IDX file of unsigned bytes in {dimensions} dimensions")
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, head, 4))
    expected = head + math.prod(shape)
    if len(content) != expected:
        text = " x ".join(str(edge) for edge in shape)
        raise unusable(path, f"holds {len(content)} bytes; {text} needs {expected}")
    return np.frombuffer(content, dtype=np.uint8, offset=head).reshape(shape)


def _content(path: Path, most_bytes: int) -> bytes:
    """Return a file's bytes, unpacked; refuse a file that unpacks to too many."""
    content = _read(path)
    if path.suffix.lower() == ".gz":
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(most_bytes + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise unusable(path, f"is not a complete gzip file: {error}") from None
    if len(content) > most_bytes:
        raise unusable(path, _TOO_LARGE)
    return content


def _read(path: Path) -> bytes:
    """Return a file's bytes unchanged.

    Raises:
        OSError: it cannot be read, is not a file, or is too large; the error names it.
    """
    try:
        return read_file(path, _MOST_BYTES)
    except OSError as error:
        error.filename = str(path)
        raise


def _read_npz(path: Path) -> tuple[HostArray, ...]:
    try:
        with zipfile.ZipFile(io.BytesIO(_read(path))) as archive:
            members = set(archive.namelist())
            missing = [name for name in _NPZ_NAMES if f"{name}.npy" not in members]
            if missing:
                raise unusable(path, f"has no {', '.join(missing)}")
            arrays: list[HostArray] = []
            for name in _NPZ_NAMES:
                left = _MOST_BYTES - sum(array.nbytes for array in arrays)
                arrays.append(_read_npy(path, archive, name, left))
            return tuple(arrays)
    except (zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError) as error:
        raise unusable(path, f"is not a complete NPZ: {error}") from None


def _read_npy(path: Path, archive: zipfile.ZipFile, name: str, most_bytes: int) -> HostArray:
    """Read one array by its header, never by unpickling."""
    import numpy as np

    with archive.open(f"{name}.npy") as file:
        try:
            version = np.lib.format.read_magic(file)
            readers = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }
            shape, by_columns, dtype = readers[version](file)
        except (ValueError, KeyError) as error:
            raise unusable(path, f"has an unreadable {name}: {error}") from None
        if dtype.kind not in "ui" or by_columns:
            raise unusable(path, f"holds {name} as {dtype}, not as integers in row order")
        if len(shape) > 3 or any(type(edge) is not int or edge < 0 for edge in shape):
            raise unusable(path, f"gives {name} the shape {str(shape)[:60]}")
        size = math.prod(shape) * dtype.itemsize
        if size > most_bytes:
            raise unusable(path, _TOO_LARGE)
        content = file.read(size + 1)
    if len(content) != size:
        raise unusable(path, f"is cut short or padded in {name}")
    return np.frombuffer(content, dtype=dtype).reshape(shape)


def _checked(path: Path, *arrays: HostArray) -> tuple[HostArray, ...]:
    """Return the arrays as a data set, after checking that they match."""
    import numpy as np

    images, labels, test_images, test_labels = arrays
    for part, shown in ((images, labels), (test_images, test_labels)):
        if part.ndim != 3 or part.shape[1:] != (EDGE, EDGE):
            raise unusable(path, f"holds images of shape {part.shape[1:]}, not 28 x 28")
        if shown.shape != part.shape[:1]:
            raise unusable(path, f"holds {len(part)} images but {len(shown)} labels")
        if shown.size and not 0 <= int(shown.min()) <= int(shown.max()) < CLASSES:
            raise unusable(path, "holds labels outside 0 to 9")
        if part.size and not 0 <= int(part.min()) <= int(part.max()) <= 255:
            raise unusable(path, "holds pixels outside 0 to 255")
    if not len(images):
        raise unusable(path, "holds no image")
    return tuple(array.astype(np.uint8, copy=False) for array in arrays)
