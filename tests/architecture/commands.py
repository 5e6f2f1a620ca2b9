"""The commands as the program itself names and builds them."""

from __future__ import annotations

import functools
from typing import Any

from gpucheck.cli.app import build_app
from gpucheck.cli.commands import COMMANDS

COMMAND_NAMES = sorted(COMMANDS)


@functools.cache
def built_command(name: str) -> Any:
    """Return the parser's command with its parameters."""
    from typer.main import get_command

    return get_command(build_app(name)).commands[name]
