"""Pages in a real browser: `python -m tests.browser.reports [--keep FOLDER] [--only NAME]`.

Each page of `tests/browser/samples.py` is opened as people see it: on a desk in light and dark, in
a narrow window, on a phone of 360 pixels, and on paper. Chromium's own log, its network and
computed styles say whether anything ran, left the file, overflowed or cannot be read. With --keep
the pictures stay, to be looked at.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.browser.chromium import PROGRAMS, Tab, browser, find_chromium
from tests.browser.samples import SAMPLES, page_of

_CHECKS = Path(__file__).with_name("page_checks.js").read_text(encoding="utf-8")


class Sight(NamedTuple):
    """Way of looking at a page; sizes in CSS pixels."""

    name: str
    width: int
    height: int
    dark: bool = False
    media: str = ""
    phone: bool = False


SIGHTS = (
    Sight("light", 1200, 900),
    Sight("dark", 1200, 900, dark=True),
    Sight("narrow", 1024, 768),
    Sight("phone", 360, 740, phone=True),
    Sight("phone-dark", 360, 740, dark=True, phone=True),
    Sight("print", 794, 1123, media="print"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the pages; return 1 if anything is wrong, 4 if there is no browser."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", type=Path, help="folder for the pages and pictures")
    parser.add_argument("--only", action="append", choices=sorted(SAMPLES), help="this page only")
    options = parser.parse_args(arguments)
    program = find_chromium()
    if program is None:
        print(f"No browser ({', '.join(PROGRAMS)}). On Debian: apt-get install chromium")
        return 4
    with tempfile.TemporaryDirectory() as folder:
        keep = options.keep or Path(folder)
        keep.mkdir(parents=True, exist_ok=True)
        with browser(program) as tab:
            wrong = sum(_look(tab, name, keep) for name in options.only or SAMPLES)
    print(f"{wrong} wrong" if wrong else "all well")
    return 1 if wrong else 0


def _look(tab: Tab, name: str, folder: Path) -> int:
    """Look at one page in every way; return how many things are wrong with it."""
    path = folder / f"{name}.html"
    path.write_text(page_of(name), encoding="utf-8")
    wrong = []
    for sight in SIGHTS:
        tab.show(*sight[1:3], dark=sight.dark, media=sight.media, phone=sight.phone)
        found = [*tab.open(path.resolve()), *tab.evaluate(_CHECKS)]
        wrong += [f"{sight.name}: {text}" for text in found]
        tab.screenshot(folder / f"{name}-{sight.name}.png")
    size = path.stat().st_size
    print(f"{'✗' if wrong else '✓'} {name}: {size / 1000:.0f} kB")
    for text in wrong:
        print(f"    {text}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
