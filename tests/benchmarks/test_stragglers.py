"""How often stragglers are found, and healthy GPUs are named: small samples of the documents."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.decision import DOCUMENT
from benchmarks.stragglers import (
    FEWEST,
    GATES,
    HEAD,
    MEASUREMENTS,
    RULE,
    Cell,
    gates_cell,
    judged,
)
from gpucheck.bench.ci.gates import peer_gates
from gpucheck.bench.model import GateStatus, Severity
from tests.fakes.nodes import AcceptanceNode

COLUMNS = HEAD.count("|") - 1


def lines_of(document: Path, mark: str) -> dict[str, list[str]]:
    """Return the lines of a document's table by their first columns."""
    (table,) = re.findall(rf"<!-- {mark} -->\n(.*?)<!-- end -->", document.read_text("utf-8"), re.S)
    rows = [[item.strip() for item in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {" | ".join(row[:COLUMNS]): row[COLUMNS:] for row in rows}


def told(document: Path, mark: str, cell: Cell) -> list[list[float]]:
    """Return the percentages in the last columns of a cell's line."""
    last = lines_of(document, mark)[cell.text]
    return [[float(one) for one in column.split("/") if one] for column in last]


def test_every_kind_of_node_is_in_the_documents() -> None:
    assert set(lines_of(DOCUMENT, "gates")) == {cell.text for cell in GATES}
    assert set(lines_of(MEASUREMENTS, "rule")) == {cell.text for cell in RULE}


def test_the_rule_keeps_its_promises() -> None:
    def rule(cell: Cell, column: int) -> float:
        return told(MEASUREMENTS, "rule", cell)[column][0]

    for spread, least in ((0.01, 93.0), (0.02, 60.0)):
        assert rule(Cell("1 %", spread), 2) <= 1.0
        assert rule(Cell("1 %", spread), 3) <= 5.0
        assert rule(Cell("1 %", spread, 0.08), 0) >= least
    for noise in ("1 %", "2 %", "heavy tails (t, 2), 1.5 %", "drift of -4 %"):
        assert rule(Cell(noise, 0.01), 2) <= 0.05
    for spread in (0.001, 0.01, 0.02, 0.03):
        assert rule(Cell("1 %", spread, 0.25), 0) == 100.0
    assert rule(Cell("1 %", 0.01, 0.15, slow=3), 0) >= 95.0
    assert rule(Cell("1 %", 0.01, 0.15, in_one=True), 0) >= 99.0
    assert rule(Cell("1 %", 0.01, 0.15, gpus=3), 0) >= 99.0


def test_the_gates_keep_its_promises() -> None:
    for spread, least in ((0.01, 93.0), (0.02, 60.0)):
        (bad, *_), _, (_, warned) = told(DOCUMENT, "gates", Cell("1 %", spread))
        assert bad <= 1.0
        assert warned <= 5.0
        assert told(DOCUMENT, "gates", Cell("1 %", spread, 0.08))[0][0] >= least
    for noise in ("1 %", "2 %"):
        assert told(DOCUMENT, "gates", Cell(noise, 0.01))[0][0] == 0.0


@pytest.mark.parametrize(
    "cell",
    [
        Cell("1 %", 0.02),
        Cell("1 %", 0.02, 0.08),
        Cell("1 %", 0.02, 0.08, by_check=True),
        Cell("bimodal, 30 % at -6 %", 0.01),
        Cell("1 %", 0.01, 0.08, in_one=True),
        Cell("1 %", 0.02, 0.08, gpus=3),
    ],
    ids=lambda cell: cell.text,
)
def test_the_document_is_what_the_rule_does(cell: Cell) -> None:
    nodes, slow = 300, cell.slow if cell.slower else 0

    found = judged(cell.drawn(np.random.default_rng(11), nodes, FEWEST))

    counted = [100 * one[:, :slow].mean() for one in found if slow]
    counted += [100 * one[:, slow:].any(1).mean() for one in found]
    written = [one for column in told(MEASUREMENTS, "rule", cell) for one in column]
    for share, expected in zip(counted, written, strict=True):
        # Four standard deviations of a share of 300, and what one node is.
        allowed = 4 * (expected * (100 - expected) / nodes) ** 0.5 + 100 / nodes
        assert share == pytest.approx(expected, abs=allowed)


@pytest.mark.parametrize(
    "cell",
    [
        Cell("2 %", 0.03, 0.08),
        Cell("every tenth 5 to 40 % slower", 0.01, 0.08, gpus=3),
        Cell("1 %", 0.03, 0.08, by_check=True, slow=2),
    ],
    ids=str,
)
def test_the_rule_in_numpy_is_that_of_the_gates(cell: Cell) -> None:
    drawn = cell.drawn(np.random.default_rng(5), 5, FEWEST)
    fails, named = judged(drawn)

    for at, logs in enumerate(drawn):
        gates = list(peer_gates(AcceptanceNode(logs.tolist()).data(FEWEST)))
        bad = {one.device: one for one in gates if one.status is GateStatus.FAIL}
        found = [bad.get(f"gpu:{gpu}") for gpu in range(cell.gpus)]
        assert [one is not None for one in found] == named[at].tolist()
        severe = [one is not None and one.severity is Severity.ERROR for one in found]
        assert severe == fails[at].tolist()
    assert named.any()
    assert not named.all()


def test_nodes_end_as_the_document_says() -> None:
    healthy = gates_cell(Cell("1 %", 0.01), 2, seed=2)
    slow = gates_cell(Cell("1 %", 0.01, 0.15), 2, seed=2)
    pair = gates_cell(Cell("1 %", 0.01, 0.08, gpus=2), 2, seed=2)

    assert dict(healthy.ends) == {0: 2}
    assert not healthy.healthy
    assert dict(slow.ends) == {1: 2}
    assert (slow.slow[Severity.ERROR], slow.healthy.total()) == (2, 0)
    assert (pair.slow[Severity.WARN], pair.slow[Severity.ERROR]) == (2, 0)
