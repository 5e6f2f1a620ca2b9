from __future__ import annotations

import gzip
import io
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpucheck.bench import mnist
from gpucheck.bench.mnist import load_dataset, read_idx, read_mnist
from gpucheck.bench.request_model import BenchMode, BenchRequest, Fill
from gpucheck.report.errors import WrongUseError
from tests.fakes.bench import order

QUICK = BenchRequest(mode=BenchMode.QUICK)
NUMBERS = np.random.default_rng(0)
IMAGES = NUMBERS.integers(0, 256, (6, 28, 28), dtype=np.uint8)
LABELS = np.array([0, 1, 9, 3, 3, 7], dtype=np.uint8)


def idx(values: Any) -> bytes:
    head = bytes([0, 0, 8, values.ndim])
    return head + b"".join(edge.to_bytes(4, "big") for edge in values.shape) + values.tobytes()


def write_set(folder: Path, *, test: bool = True, suffix: str = "") -> Path:
    packed = gzip.compress if suffix else bytes
    for name, count in (("train", 6), ("t10k", 4)) if test else (("train", 6),):
        (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(packed(idx(IMAGES[:count])))
        (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(packed(idx(LABELS[:count])))
    return folder / f"train-images-idx3-ubyte{suffix}"


def write_npz(path: Path, **changes: Any) -> Path:
    arrays = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:2], "y_test": LABELS[:2]}
    kept = {name: value for name, value in (arrays | changes).items() if value is not None}
    np.savez(path, **kept)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_with_its_labels_and_its_test_files(tmp_path: Path, suffix: str) -> None:
    found = read_mnist(write_set(tmp_path, suffix=suffix))

    assert np.array_equal(found[0], IMAGES)
    assert np.array_equal(found[1], LABELS)
    assert len(found[2]) == len(found[3]) == 4


def test_idx_without_test_files_has_an_empty_test_part(tmp_path: Path) -> None:
    found = read_mnist(write_set(tmp_path, test=False))

    assert len(found[2]) == len(found[3]) == 0


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_folder_of_the_files_will_do(tmp_path: Path, suffix: str) -> None:
    write_set(tmp_path, suffix=suffix)

    assert np.array_equal(read_mnist(tmp_path)[0], IMAGES)


def test_names_with_a_dot_as_some_programs_unpack_them(tmp_path: Path) -> None:
    write_set(tmp_path)
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("-idx", ".idx")))

    found = read_mnist(tmp_path / "train-images.idx3-ubyte")

    assert np.array_equal(found[1], LABELS)
    assert len(found[3]) == 4
    assert np.array_equal(read_mnist(tmp_path)[0], IMAGES)


def test_a_missing_file_beside_the_named_one_is_named(tmp_path: Path) -> None:
    path = write_set(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()

    with pytest.raises(WrongUseError, match="train-labels-idx1-ubyte' cannot be read: No such"):
        read_mnist(path)


def test_a_folder_without_them_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="is a folder without train-images-idx3-ubyte"):
        read_mnist(tmp_path)


def test_npz(tmp_path: Path) -> None:
    found = read_mnist(write_npz(tmp_path / "mnist.npz", y_train=LABELS.astype(np.int64)))

    assert np.array_equal(found[0], IMAGES)
    assert found[1].dtype == np.uint8
    assert len(found[3]) == 2


def test_an_npz_with_the_second_version_of_numpy_s_head(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (("train", IMAGES), ("test", IMAGES[:2])):
            for kind, values in (("x", array), ("y", LABELS[: len(array)])):
                with archive.open(f"{kind}_{name}.npy", "w") as file:
                    np.lib.format.write_array(file, values, version=(2, 0))

    found = read_mnist(path)

    assert np.array_equal(found[0], IMAGES)
    assert np.array_equal(found[3], LABELS[:2])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_test": None}, "has no x_test"),
        ({"x_train": IMAGES.astype(np.float32)}, "not as integers"),
        ({"x_train": np.asfortranarray(IMAGES)}, "not as integers in row order"),
        ({"x_train": IMAGES[:, :27]}, "not 28 x 28"),
        ({"x_train": IMAGES[0]}, "images of shape"),
        ({"y_train": LABELS[:5]}, "6 images but 5 labels"),
        ({"y_train": LABELS + 5}, "outside 0 to 9"),
        ({"y_train": LABELS.astype(np.int64) - 1}, "outside 0 to 9"),
        ({"x_train": IMAGES.astype(np.int32) * 2}, "outside 0 to 255"),
        ({"x_train": IMAGES[:0], "y_train": LABELS[:0]}, "no image"),
        ({"x_train": np.array([{"a": 1}], dtype=object)}, "x_train"),
    ],
)
def test_an_npz_that_is_not_mnist_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = write_npz(tmp_path / "mnist.npz", **changes)

    with pytest.raises(WrongUseError) as caught:
        read_mnist(path)

    assert words in caught.value.message
    assert caught.value.remedy


def test_a_head_that_claims_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "huge.npz"
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": (2**40, 28, 28)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", head.getvalue())

    with pytest.raises(WrongUseError, match="more than 256 MiB"):
        read_mnist(path)


@pytest.mark.parametrize(
    "shape", ["(True, 28, 28)", "(" + "1, " * 200 + ")", "(-1, 28, 28)", "(2, 28, 28, 1)"]
)
def test_a_head_with_an_impossible_shape_is_refused(tmp_path: Path, shape: str) -> None:
    path = write_npz(tmp_path / "mnist.npz")
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, head if name == "x_train.npy" else content)

    with pytest.raises(WrongUseError, match="x_train"):
        read_mnist(path)


def test_the_limit_is_for_all_arrays_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npz = write_npz(tmp_path / "mnist.npz")
    packed = write_set(tmp_path, suffix=".gz")
    with np.load(npz) as arrays:
        in_sum = sum(array.nbytes for array in arrays.values())
        largest = max(array.nbytes for array in arrays.values())
    assert largest < in_sum - 1

    for path in (npz, packed):
        monkeypatch.setattr(mnist, "_read", lambda path: path.read_bytes())
        monkeypatch.setattr(mnist, "_MOST_BYTES", in_sum - 1)
        with pytest.raises(WrongUseError, match="holds more than"):
            read_mnist(path)


@pytest.mark.parametrize("name", ["endless.npz", "train-images-idx3-ubyte"])
def test_what_never_ends_is_not_opened(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.symlink_to("/dev/zero")

    with pytest.raises(WrongUseError, match="it is not a regular file"):
        read_mnist(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an IDX file"),
        (b"\x00\x00\x08", "not an IDX file"),
        (b"\x00\x00\x09\x03" + bytes(12), "not an IDX file"),
        (b"\x00\x00\x08\x01" + bytes(12), "not an IDX file"),
        (idx(IMAGES)[:-1], "needs"),
        (idx(IMAGES) + b"x", "needs"),
    ],
)
def test_an_idx_that_is_not_whole_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = write_set(tmp_path)
    path.write_bytes(content)

    with pytest.raises(WrongUseError) as caught:
        read_mnist(path)

    assert words in caught.value.message


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_a_gzip_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_set(tmp_path, suffix=".gz")
    path.write_bytes(path.read_bytes()[:cut])

    with pytest.raises(WrongUseError, match="not a complete gzip"):
        read_mnist(path)


def test_a_file_that_is_not_there_or_not_named_so_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongUseError, match="No such file"):
        read_mnist(tmp_path / "train-images-idx3-ubyte")
    with pytest.raises(WrongUseError, match="No such file"):
        read_mnist(tmp_path / "digits.bin")
    (tmp_path / "digits.bin").write_bytes(idx(IMAGES))
    with pytest.raises(WrongUseError, match="its name is not like"):
        read_mnist(tmp_path / "digits.bin")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04torn")
    with pytest.raises(WrongUseError, match="not a complete NPZ"):
        read_mnist(tmp_path / "torn.npz")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=st.binary(max_size=64), dimensions=st.sampled_from([1, 3]))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes, dimensions: int) -> None:
    path = tmp_path / "any"
    path.write_bytes(bytes([0, 0, 8, dimensions]) + content)

    try:
        found = read_idx(path, dimensions)
    except WrongUseError:
        return

    assert found.ndim == dimensions
    assert found.size == len(content) - 4 * dimensions


def test_real_images_are_scaled_and_repeated_to_fill_a_batch(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mnist.npz")
    wanted = order((10,), request=replace(QUICK, data_file=str(path)))

    found = load_dataset(wanted, 10)

    assert found.source == "file"
    assert found.images.shape == (10, 785)
    assert np.array_equal(found.images[:6, :-1], (IMAGES.reshape(6, -1) / 255).astype(np.float32))
    assert np.all(found.images[:, -1] == 1)
    assert np.array_equal(found.targets.argmax(axis=1), [*LABELS, *LABELS[:4]])


def test_real_images_without_a_test_part_are_tested_on_some_that_were_not_learnt(
    tmp_path: Path,
) -> None:
    path = write_npz(tmp_path / "mnist.npz", x_test=IMAGES[:0], y_test=LABELS[:0])
    wanted = order((5,), request=replace(QUICK, data_file=str(path)))

    found = load_dataset(wanted, 5)

    assert found.test_labels.tolist() == [LABELS[5]]
    assert found.targets.argmax(axis=1).tolist() == LABELS[:5].tolist()


def test_an_unusable_file_is_wrong_use(tmp_path: Path) -> None:
    wanted = order((10,), request=replace(QUICK, data_file=str(tmp_path / "missing.npz")))

    with pytest.raises(WrongUseError):
        load_dataset(wanted, 10)


def test_each_mode_generates_its_number_of_images_and_at_least_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mnist, "_generated", lambda order, count: count)

    counts = [load_dataset(order((9,), request=BenchRequest(mode=mode)), 9) for mode in BenchMode]

    assert dict(zip(BenchMode, counts, strict=True)) == {
        BenchMode.QUICK: 6400,
        BenchMode.DEFAULT: 12800,
        BenchMode.FULL: 51200,
    }
    assert load_dataset(order((9,), request=QUICK), 7000) == 7000


def test_a_seed_gives_the_same_images_and_zeros_are_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(mnist._GENERATED, BenchMode.QUICK, 640)
    one = load_dataset(order((100,), request=QUICK), 100)
    two = load_dataset(order((100,), request=QUICK), 100)
    zeros = load_dataset(order((9,), request=replace(QUICK, fill=Fill.ZEROS)), 9)

    assert np.array_equal(one.images, two.images)
    assert (one.images.shape, one.test_images.shape) == ((640, 785), (2000, 785))
    # They scatter about ten patterns, so that most lie near their own class' mean.
    means = np.stack([one.images[one.targets[:, each] == 1].mean(axis=0) for each in range(10)])
    nearness = one.test_images @ means.T - np.square(means).sum(axis=1) / 2
    assert 0.85 < np.mean(nearness.argmax(axis=1) == one.test_labels) < 0.9
    assert not zeros.images[:, :-1].any()
