"""Fuzzing runs properties that exist: a renamed one would be left out of the table."""

from __future__ import annotations

import re

import pytest

from benchmarks.fuzz import PROPERTIES, Property
from tests.architecture.house import ROOT


@pytest.mark.parametrize("item", PROPERTIES, ids=lambda item: item.parser)
def test_property_is_in_the_suite(item: Property) -> None:
    path, _, name = re.sub(" -k ", "::", item.test).partition("::")
    source = (ROOT / "tests" / path).read_text(encoding="utf-8")

    assert re.search(rf"@given\([^@]*?def {name or 'test'}\w*\(", source)
