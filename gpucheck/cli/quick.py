"""Fast path for `gpucheck list` with flags only, which does not load the parser.

Importing the parser takes longer than everything else that `gpucheck list` does. Options that
take a value, abbreviations, --help, mistakes and a configuration file are the parser's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gpucheck.cli.listing import ListOptions
from gpucheck.cli.shared import Shared

#: Flag -> what it sets, for the list and for every command. A test compares both with the parser.
LIST_FLAGS: dict[str, dict[str, Any]] = {
    "--visible": {"visible": True},
    "--processes": {"processes": True},
    "-p": {"processes": True},
    "--topology": {"topology": True},
    "-t": {"topology": True},
    "--ask-driver": {"ask_driver": True},
}
SHARED_FLAGS: dict[str, dict[str, Any]] = {
    "--json": {"format": "json"},
    "--strict": {"strict": True},
    "--quiet": {"verbosity": -1},
    "-q": {"verbosity": -1},
}


def parse_flags(words: Sequence[str]) -> tuple[ListOptions, Shared] | None:
    """Return the options of a `list` with flags only, or None if the parser must read them."""
    if "GPUCHECK_CONFIG" in os.environ:
        return None
    options, shared = ListOptions(), Shared()
    for word in words[1:]:
        if word in LIST_FLAGS:
            options = options._replace(**LIST_FLAGS[word])
        elif word in SHARED_FLAGS:
            shared = shared._replace(**SHARED_FLAGS[word])
        else:
            return None
    return options, shared
