"""Which driver and which GPU each CUDA takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpucheck.detect.cuda_versions import (
    FIRST_CUDA,
    MATCHING_DRIVER,
    MINIMUM_DRIVER,
    MINIMUM_WINDOWS_DRIVER,
    OLDEST_CAPABILITY,
    cuda_of_driver,
    has_only_ptx,
    holds_code_for,
    is_blackwell_or_newer,
    is_older_than_turing,
    newer_driver_for,
    parse_version,
    show_version,
    too_new_for,
    too_old_for,
)


@pytest.mark.parametrize(
    ("cuda", "driver", "expected"),
    [
        ("12.8", "525.60.13", None),
        ("12.0", "525.60.12", "525.60.13"),
        ("12", "470.256.02", "525.60.13"),
        ("13.0", "580.65.06", None),
        ("13.2", "579.99", "580"),
        ("11.8", "450.80.02", None),
        ("11.0", "450.51.05", "450.80.02"),
        ("10.2", "300.1", None),
        (None, "580.65.06", None),
        ("12.8", None, None),
        ("garbage", "580", None),
    ],
)
def test_minimum_driver(cuda: str | None, driver: str | None, expected: str | None) -> None:
    assert newer_driver_for(cuda, driver) == expected


@pytest.mark.parametrize(
    ("cuda", "capability", "old", "new"),
    [
        ("13.0", "7.0", True, False),
        ("13.0", "7.5", False, False),
        ("12.6", "6.1", False, False),
        ("12.4", "12.0", False, True),
        ("12.8", "12.0", False, False),
        ("12.4", "10.3", False, True),
        ("11.7", "9.0", False, True),
        ("12", "12.0", False, False),
        (None, "9.0", False, False),
        ("12.4", None, False, False),
    ],
)
def test_architectures(cuda: str | None, capability: str | None, *, old: bool, new: bool) -> None:
    assert (too_old_for(cuda, capability), too_new_for(cuda, capability)) == (old, new)


@pytest.mark.parametrize(
    ("codes", "capability", "expected"),
    [
        (("sm_80",), "8.6", True),
        (("sm_86",), "8.0", False),
        (("sm_80",), "9.0", False),
        (("sm_80", "compute_80"), "9.0", True),
        (("compute_90",), "8.0", False),
        (("sm_120",), "12.0", True),
        (("sm_90a",), "9.0", True),
        ((), "9.0", None),
        (("sm_80",), None, None),
        (("gfx90a",), "9.0", None),
    ],
)
def test_lists(codes: tuple[str, ...], capability: str | None, expected: bool | None) -> None:
    assert holds_code_for(codes, capability) is expected


def test_a_driver_that_came_with_a_cuda_runs_it() -> None:
    for cuda, driver in MATCHING_DRIVER.items():
        if cuda != (11, 0):  # its first driver is older than what minor versions need
            assert driver >= MINIMUM_DRIVER[cuda[0]]


def test_versions_are_shown_as_nvidia_writes_them() -> None:
    assert show_version((525, 60, 13)) == "525.60.13"
    assert show_version((450, 80, 2)) == "450.80.02"
    assert show_version((580,)) == "580"


@given(st.text())
def test_any_text(text: str) -> None:
    parse_version(text)
    holds_code_for((text,), text)
    newer_driver_for(text, text)


@pytest.mark.parametrize(
    ("architectures", "capability", "only"),
    [
        (("sm_60", "compute_70"), "7.5", True),
        (("sm_60", "compute_90"), "9.0", True),
        (("sm_90", "compute_90"), "9.0", False),
        (("sm_80",), "8.6", False),
        (("sm_80",), "9.0", False),
        ((), "9.0", False),
    ],
)
def test_code_that_has_to_be_compiled_first(
    architectures: tuple[str, ...], capability: str, *, only: bool
) -> None:
    assert has_only_ptx(architectures, capability) is only


@pytest.mark.parametrize(
    ("cuda", "driver", "least"),
    [("12.4", "528.33", None), ("12.4", "526.98", "528.33"), ("13.0", "400.1", None)],
)
def test_drivers_of_windows(cuda: str, driver: str, least: str | None) -> None:
    assert newer_driver_for(cuda, driver, windows=True) == least


def test_a_version_has_no_thousand_digits() -> None:
    assert parse_version("5" * 5000) is None
    assert parse_version("580." + "5" * 5000) == (580,)


#: As the documents named in the module print them.
DRIVERS = """
13.2 595.45.04
13.1 590.44.01
13.0 580.65.06
12.9 575.51.03
12.8 570.26
12.6 560.28.03
12.5 555.42.02
12.4 550.54.14
12.3 545.23.06
12.2 535.54.03
12.1 530.30.02
12.0 525.60.13
11.8 520.61.05
11.7 515.43.04
11.6 510.39.01
11.5 495.29.05
11.4 470.42.01
11.3 465.19.01
11.2 460.27.03
11.1 455.23
11.0 450.51.05
"""
FIRST_CODE = "8.0 11.0, 8.6 11.1, 8.9 11.8, 9.0 11.8, 10.0 12.8, 12.0 12.8"


def test_the_tables_are_those_of_the_documents() -> None:
    printed = {
        ".".join(map(str, cuda)): show_version(driver) for cuda, driver in MATCHING_DRIVER.items()
    }
    first = {f"{show_number(own)} {show_number(cuda)}" for own, cuda in FIRST_CUDA.items()}

    assert printed == dict(line.split() for line in DRIVERS.split("\n") if line)
    assert first == set(FIRST_CODE.split(", "))
    assert MINIMUM_DRIVER == {11: (450, 80, 2), 12: (525, 60, 13), 13: (580,)}
    assert MINIMUM_WINDOWS_DRIVER == {11: (452, 39), 12: (528, 33)}
    assert OLDEST_CAPABILITY == {11: (3, 5), 12: (5, 0), 13: (7, 5)}


def show_number(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


@pytest.mark.parametrize(
    ("device_id", "old", "new"),
    [
        ("0x1db6", True, False),  # V100
        ("0x1dff", True, False),
        ("0x1e00", False, False),
        ("0x1eb8", False, False),  # T4
        ("0x28ff", False, False),
        ("0x2900", False, True),
        ("0x2b85", False, True),  # RTX 5090
        ("", False, False),
        (None, False, False),
        ("no number", False, False),
    ],
)
def test_generations(device_id: str | None, *, old: bool, new: bool) -> None:
    assert (is_older_than_turing(device_id), is_blackwell_or_newer(device_id)) == (old, new)


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("580.65.06", "13.0"),
        ("580.65.05", "12.9"),
        ("610.10", "13.2"),
        ("450.51.05", "11.0"),
        ("450.51.04", None),
        (None, None),
    ],
)
def test_the_cuda_that_a_driver_surely_has(driver: str | None, cuda: str | None) -> None:
    assert cuda_of_driver(driver) == cuda
