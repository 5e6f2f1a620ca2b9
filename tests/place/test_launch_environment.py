"""Environment of a command, without what Python adds to its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpucheck.place.launch_environment import environment_before


@pytest.mark.parametrize(
    ("now", "first", "after"),
    [
        ("C.UTF-8", b"A=b\0PATH=/bin\0", None),
        ("C.UTF-8", b"", None),
        ("C.UTF-8", b"A=b\0LC_CTYPE=C\0", "C"),
        ("C.UTF-8", b"LC_CTYPE=\0", ""),
        ("C.UTF-8", b"LC_CTYPE=C.UTF-8\0A=b\0", "C.UTF-8"),
        ("UTF-8", b"XLC_CTYPE=POSIX\0", None),
        ("de_DE.UTF-8", b"", "de_DE.UTF-8"),
        ("C.UTF-8", b"LC_CTYPE=\xff\0", "\udcff"),
    ],
)
def test_the_locale_is_what_it_was_before_python_started(
    tmp_path: Path, now: str, first: bytes, after: str | None
) -> None:
    entries = tmp_path / "environ"
    entries.write_bytes(first)

    found = environment_before({"LC_CTYPE": now, "A": "b"}, entries)

    assert found.pop("A") == "b"
    assert found == ({} if after is None else {"LC_CTYPE": after})


def test_without_the_variable_nothing_is_looked_at(tmp_path: Path) -> None:
    assert environment_before({"A": "b"}, tmp_path) == {"A": "b"}


def test_what_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    environment = {"LC_CTYPE": "C.UTF-8"}

    assert environment_before(environment, tmp_path / "none") == environment
