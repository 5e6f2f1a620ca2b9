"""Checks that packages bring for `rapids doctor`, called as it calls them. Run by path.

It runs in the interpreter that has the packages (Python 3.8 or newer, otherwise standard library
only). The arguments are entry points, "module:function". Writes one JSON object for each.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from typing import Any

MOST_CHARACTERS = 400
MOST_WARNINGS = 10


def plain(thing: object) -> str:
    """Return a message as one short line."""
    return " ".join(str(thing).split())[:MOST_CHARACTERS]


def run(value: str) -> dict[str, Any]:
    """Call one check; what it raises has failed."""
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        try:
            module, _, path = value.partition("[")[0].strip().partition(":")
            check: Any = importlib.import_module(module.strip())
            for name in filter(None, path.strip().split(".")):
                check = getattr(check, name)
            warnings.simplefilter("always")
            check(verbose=False)
        except BaseException as raised:
            error = plain(raised) or type(raised).__name__
    texts = [plain(each.message) for each in caught[:MOST_WARNINGS]]
    return {"value": value, "error": error, "warnings": texts}


def main() -> None:
    """Run the checks in turn and write each result."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry not in ("", own)]
    os.chdir("/")
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for value in sys.argv[1:]:
        out.write(json.dumps(run(value)) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
