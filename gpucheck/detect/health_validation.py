"""NVIDIA Health Validation's checks beside ours: its thresholds, severity and actions, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpucheck.data import read_table

NAME = "NVIDIA Health Validation"


def beside(check_id: str | None) -> Iterator[str]:
    """Yield a line for each of its checks on the question of ours; None: what we do not ask."""
    for row in read_table("health_validation")["row"]:
        if row.get("check") == check_id:
            yield f"{NAME}, {row['id']}: {'; '.join(_parts(row))}"


def of_xid(number: int) -> str | None:
    """Return what it does about an Xid; None if that is not known."""
    rows = (
        row for row in read_table("health_validation")["row"] if row["id"] == f"gpu_xid_{number}"
    )
    return next((_verdict(row) for row in rows), None)


def _parts(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield a row's thresholds, its verdict, and why ours differs."""
    limits = [f"{name} {_value(value)}" for name, value in row.get("thresholds", {}).items()]
    products = ", ".join(row.get("architectures", ()))
    if products:
        yield f"for {products}{': ' if limits else ''}{', '.join(limits)}"
    if "severity" in row:
        yield _verdict(row)
    if "because" in row:
        ours = "not judged" if row["judgement"] == "none" else row["judgement"]
        yield f"here {ours}, because {row['because']}"


def _verdict(row: Mapping[str, Any]) -> str:
    actions = ", then ".join(row.get("actions", ()))
    return f"{row['severity']}{': ' if actions else ''}{actions}"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return " or ".join(f"{item:g} ({name})" for name, item in value.items())
    return f"{value:g}"
