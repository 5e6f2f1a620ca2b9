"""The commands as the program itself names and builds them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from gpucheck.cli.app import build_app
from gpucheck.cli.commands import COMMANDS

COMMAND_NAMES = sorted(COMMANDS)
#: Every command that does something: "list", "profile list".
LEAVES = [
    " ".join(words)
    for name in COMMAND_NAMES
    for words in ([(name, action) for action in COMMANDS[name].actions] or [(name,)])
]


@functools.cache
def built_command(line: str) -> Any:
    """Return the parser's command, or that of an action, with its parameters."""
    from typer.main import get_command

    name, *action = line.split()
    command = get_command(build_app(name)).commands[name]
    return command.commands[action[0]] if action else command


def parsed(words: Sequence[str], **more: Any) -> Any:
    """Parse a call, an action's too, and return its context."""
    name, *own = words
    if COMMANDS[name].actions:
        action, *own = own
        name = f"{name} {action}"
    return built_command(name).make_context(name, own, **more)
