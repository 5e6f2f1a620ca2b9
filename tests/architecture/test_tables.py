"""Every fact in a table of gpucheck/data has a name of its own, a source and a date."""

from __future__ import annotations

import datetime
from collections import Counter

from gpucheck.data import FOLDER, table

#: Before this nobody had read a source for gpucheck.
FIRST_DATE = datetime.date(2025, 1, 1)


def test_every_row_has_an_id_a_source_a_date_and_facts() -> None:
    offenders = [
        f"{path.name}: {row.get('id', row)}"
        for path in sorted(FOLDER.glob("*.toml"))
        for row in table(path.stem)
        if not (
            isinstance(row.get("id"), str)
            and isinstance(row.get("source"), str)
            and row["source"].strip()
            and type(row.get("date")) is datetime.date
            and FIRST_DATE <= row["date"] <= datetime.date.today()
            and set(row) - {"id", "source", "date"}
        )
    ]

    assert not offenders


def test_no_id_stands_twice_in_a_table() -> None:
    twice = [
        f"{path.name}: {name}"
        for path in sorted(FOLDER.glob("*.toml"))
        for name, count in Counter(row["id"] for row in table(path.stem)).items()
        if count > 1
    ]

    assert not twice
