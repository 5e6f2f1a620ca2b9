"""The pictures of the documents show what the program shows.

Where a change is meant: `python -m tests.pictures`, or `UPDATE_SNAPSHOTS=1 pytest` with this file.
"""

from __future__ import annotations

import os
import re

from tests.architecture.house import project_files
from tests.pictures import FOLDER, picture, screens, words_of


def test_pictures_are_up_to_date() -> None:
    drawn = {name: picture(name, *screen) for name, screen in screens().items()}
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        for name, svg in drawn.items():
            (FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")

    kept = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.svg")}

    # Not the drawing, which is rich's and may differ between its versions.
    assert {name: words_of(svg) for name, svg in kept.items()} == {
        name: words_of(svg) for name, svg in drawn.items()
    }


def test_a_picture_loads_nothing() -> None:
    for path in FOLDER.glob("*.svg"):
        svg = path.read_text("utf-8")
        addresses = set(re.findall(r"[a-z]+://[^\"') ]+", svg)) - {"http://www.w3.org/2000/svg"}

        assert addresses == set(), path.name
        assert "@font-face" not in svg


def test_every_picture_is_shown() -> None:
    documents = [path for path in project_files() if path.suffix == ".md"]
    shown = {
        name
        for path in documents
        for name in re.findall(r"pictures/([\w-]+)\.svg", path.read_text("utf-8"))
    }

    assert shown == {path.stem for path in FOLDER.glob("*.svg")}
