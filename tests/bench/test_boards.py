"""Boards of the table are found by a name of theirs, and by no part of it."""

from __future__ import annotations

import pytest

from gpucheck.bench.boards import board_called, find_board, load_boards
from gpucheck.report.errors import WrongUseError


@pytest.mark.parametrize(
    "name", ["H200 SXM", "h200 sxm", " H200  SXM ", "h200-sxm", "NVIDIA H200", "2335"]
)
def test_a_board_has_several_names(name: str) -> None:
    assert board_called(name).name == "H200 SXM"


def test_every_name_leads_to_its_own_board() -> None:
    astray = [
        name
        for board in load_boards()
        for name in (board.name, board.id, *board.product_names, *board.pci_device_ids)
        if board_called(name) is not board
    ]

    assert not astray


def test_the_beginning_of_several_names_is_none() -> None:
    with pytest.raises(WrongUseError, match="does not name one board") as caught:
        board_called("H100")

    assert caught.value.code == "ambiguous-board"
    assert {"H100 PCIe", "H100 SXM", "H100 NVL"} <= set(
        caught.value.remedy[0].removeprefix("Name it in full: ").split(", ")
    )


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("H100 SMX", " Did you mean 'H100 SXM'?"),
        ("RTX 2080", " Did you mean"),
        ("Radeon VII", ""),
        ("", ""),
        ("H10", ""),
        ("\x1b[2J", ""),
    ],
)
def test_another_name_is_refused(name: str, asked: str) -> None:
    with pytest.raises(WrongUseError) as caught:
        board_called(name)

    assert caught.value.code in ("unknown-board", "ambiguous-board")
    assert asked in caught.value.message
    assert "\x1b" not in caught.value.message


def test_two_boards_are_several_and_long_names_are_cut() -> None:
    with pytest.raises(WrongUseError) as two:
        board_called("H200")
    with pytest.raises(WrongUseError, match=f"called '{'x' * 100}'\\.") as long:
        board_called("x" * 101)

    assert two.value.code == "ambiguous-board"
    assert long.value.code == "unknown-board"


def test_the_pci_device_id_decides_even_against_the_name() -> None:
    by_id = find_board("NVIDIA H200", "233010de")
    unknown = find_board("NVIDIA H200", "ffff10de")

    assert by_id is not None
    assert by_id.name == "H100 SXM"
    assert unknown is None
    assert find_board(None, None) is None
    assert find_board("GRID H100-40C", "233010de", "vgpu") is None
