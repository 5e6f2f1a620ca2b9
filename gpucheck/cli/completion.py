"""Completion for bash, zsh and fish: words from the parser, values from our registries and NVML.

A shell runs a script of data/completion, which calls this program with $_GPUCHECK_COMPLETE and the
words so far; bash, which splits words at colons too, with its whole line and the characters that
split it. The program is the one that was typed, or the one in PATH if that is an alias of it. After
"--" stands a command of the user's, which the shell completes as it does elsewhere. A mistake or a
driver that does not answer gives no words and no message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from types import MappingProxyType
from typing import Any

from typer.main import get_command

from gpucheck.cli.app import PARSER, build_app, functions_of, options_of_command, summary_of
from gpucheck.cli.commands import COMMANDS
from gpucheck.cli.terminal import write_stdout
from gpucheck.report.errors import ExitCode

#: A shell waits for this: no driver is waited for longer.
GPUS_WITHIN_S = 1.0

#: A word to offer, or with what it is.
Offer = str | tuple[str, str]


# --------------------------------------------------------------------------------- the values


def _dtypes(_: Any) -> Iterator[Offer]:
    from gpucheck.bench.kernels import KERNELS
    from gpucheck.bench.request_model import BenchMode

    of_all = (name for kernel in KERNELS.values() for name in kernel.dtypes[BenchMode.FULL])
    yield from dict.fromkeys(of_all)


def _boards(_: Any) -> Iterator[Offer]:
    from gpucheck.bench.boards import load_boards

    return (board.name for board in load_boards())


def _boards_or_every(ctx: Any) -> Iterator[Offer]:
    from gpucheck.bench.peaks import EVERY

    yield (EVERY, "every board")
    yield from _boards(ctx)


def _checks(_: Any) -> Iterator[Offer]:
    from gpucheck.detect.checks import CHECKS
    from gpucheck.detect.model import Layer

    ids = [check.ID for check in CHECKS]
    yield from ids
    yield from ((str(layer), "a layer") for layer in Layer if str(layer) not in ids)


def _profiles(_: Any) -> Iterator[Offer]:
    from gpucheck.bench.ci.profiles import shipped

    return ((name, "a built-in profile") for name in shipped())


def _fields(_: Any) -> Iterator[Offer]:
    from gpucheck.inventory.columns import ALIASES, COLUMNS

    return ((name, ALIASES.get(name, "")) for name in (*ALIASES, *COLUMNS))


def _examples(_: Any) -> Iterator[Offer]:
    from gpucheck.cli.examples import EXAMPLES, PREFIX

    return ((f"{PREFIX}{name}", shows) for name, shows in EXAMPLES.items())


def _gpus(ctx: Any) -> Sequence[tuple[int, str]]:
    """Return index and name of the GPUs, of the recording that --from names if there is one."""
    from gpucheck.cli.examples import find_recording
    from gpucheck.drivers import open_probes
    from gpucheck.drivers.readings import NvmlRequest

    source = ctx.params.get("from_")
    recording = find_recording(source) if source else None
    with closing(open_probes(recording, deadline_s=GPUS_WITHIN_S)) as probes:
        return [(gpu.index, gpu.name or "") for gpu in probes.nvml(NvmlRequest()).gpus]


def _indices(ctx: Any) -> Iterator[Offer]:
    return ((str(index), name) for index, name in _gpus(ctx))


def _specs(ctx: Any) -> Iterator[Offer]:
    yield from ((f"/gpu:{index}", name) for index, name in _gpus(ctx))
    yield "/cpu:0", "the processor"


def _bench_devices(ctx: Any) -> Iterator[Offer]:
    yield from (("cpu", "the processor"), ("gpu", "every GPU"), ("all", "both"))
    yield from ((f"gpu:{index}", name) for index, name in _gpus(ctx))


#: Parameter (of one command, or of all that have it) -> its values: the name of a registry, or
#: what finds them out.
VALUES: Mapping[str, str | Callable[[Any], Iterable[Offer]]] = MappingProxyType(
    {
        "kernels": "gpucheck.bench.kernels:KERNELS",
        "devices": _bench_devices,
        "bench profile": _profiles,
        "bench board": _boards_or_every,
        "profile names": _profiles,
        "place specs": _specs,
        "place name": lambda ctx: dict.fromkeys(name for _, name in _gpus(ctx)),
        "gpus": _specs,
        "gpu": _indices,
        "exclude": _indices,
        "dtypes": _dtypes,
        "only": _checks,
        "skip": _checks,
        "explain": _checks,
        "framework": "gpucheck.detect.checks.frameworks:NAMES",
        "frameworks": "gpucheck.bench.frameworks:FORMS",
        "wheel": "gpucheck.detect.checks.frameworks:NAMES",
        "format_": lambda ctx: COMMANDS[ctx.command_path.split()[1]].formats,
        "select": _fields,
        "sort": _fields,
        "from_": _examples,
        "code": "gpucheck.memlimit.mechanisms:WRITERS",
        "verify_with": "gpucheck.memlimit.verify:PROVABLE",
        "board": _boards,
        "show_completion": "gpucheck.cli.app:SHELLS",
    }
)


# ------------------------------------------------------------------------------ the completion


def complete(shell: str, words: Sequence[str]) -> int:
    """Print the words that may come next, a line each; never a message."""
    try:
        if shell == "bash":
            text, incomplete = _bash()
        else:
            *text, incomplete = words[1:]
        offers = list(_offers(text, incomplete))
        write_stdout("".join(f"{line}\n" for line in _lines(shell, offers, incomplete)))
    except Exception:  # a shell in the middle of a line has no place for a message
        return int(ExitCode.OK)
    return int(ExitCode.OK)


def _bash() -> tuple[list[str], str]:
    """Return the words before the one to complete, and that one, from the line of bash."""
    module = import_module(f"{PARSER}.shell_completion")
    line = os.environ.get("_GPUCHECK_LINE", "")
    words = [str(word) for word in module.split_arg_string(line)][1:]
    if not words or line[-1:].isspace():
        return words, ""
    return words[:-1], words[-1]


def _lines(shell: str, offers: Iterable[tuple[str, str]], incomplete: str) -> Iterator[str]:
    """Yield the offers as the shell's script reads them."""
    if shell == "bash":
        breaks = os.environ.get("_GPUCHECK_BREAKS", " :=")
        # Bash replaces only what follows the last of these.
        kept = max((incomplete.rfind(char) + 1 for char in ":=" if char in breaks), default=0)
        typed = os.environ.get("_GPUCHECK_LINE", "").removesuffix(incomplete)
        space = " " if typed[-1:] in ("'", '"') else "\\ "
        yield from (word[kept:].replace(" ", space) for word, _ in offers)
    elif shell == "zsh":
        for word, purpose in offers:
            escaped = word.replace("\\", "\\\\").replace(":", "\\:")
            yield f"{escaped}:{purpose}" if purpose else escaped
    else:
        yield from (f"{word}\t{purpose}" if purpose else word for word, purpose in offers)


def _offers(words: list[str], incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the words that may stand after `words` and begin with `incomplete`."""
    if "--" in words:
        return  # a command of the user's
    if words[:1] == ["help"]:
        words = words[1:]
    elif not words and "help".startswith(incomplete):
        yield "help", "explain a command"
    name = next((word for word in words if word in COMMANDS), None)
    program: Any = get_command(build_app(name))
    items = _completed(program, name, words, incomplete)
    if not items and not incomplete and name is not None and not _wants_value(program, words):
        items = _completed(program, name, words, "-")
    purposes = {command: COMMANDS[command].summary for command in COMMANDS}
    if name is not None:
        purposes = {key: summary_of(function) for key, function in functions_of(name).items()}
    # Shells match the whole word, of which the parser completes what follows the sign.
    option, sign, _ = incomplete.partition("=")
    begun = option + sign if sign and option.startswith("--") else ""
    for item in items:
        if item.type != "plain":
            continue  # files: the shell completes these itself
        word = str(item.value)
        # The parser cuts the purpose of a command short.
        purpose = purposes.get(word, item.help or "")
        yield begun + word, " ".join(purpose.split())


def _wants_value(command: Any, words: Sequence[str]) -> bool:
    """Return whether the last word is an option whose value comes next."""
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    return any(
        words[-1] in parameter.opts and not parameter.is_flag and not parameter.count
        for parameter in command.params
        if parameter.param_type_name == "option"
    )


def _completed(program: Any, name: str | None, words: list[str], incomplete: str) -> list[Any]:
    """Ask the parser, whose parameters get the values of this module."""
    module = import_module(f"{PARSER}.shell_completion")
    functions = {} if name is None else functions_of(name)
    lists = {
        key
        for function in functions.values()
        for key, option in options_of_command(function).items()
        if option.commas
    }
    _teach(program, name or "", module.CompletionItem, lists)
    # Only get_completions is used: the scripts above and `_lines` take the others' place.
    base = module.ShellComplete
    kind = type("Completer", (base,), dict.fromkeys(getattr(base, "__abstractmethods__", ())))
    items: list[Any] = kind(program, {}, "gpucheck", "").get_completions(words, incomplete)
    return items


def _teach(command: Any, name: str, item: Any, lists: Collection[str]) -> None:
    """Give the parameters of a command, and of those within it, their values."""
    for parameter in command.params:
        key = f"{name} {parameter.name}"
        key = key if key in VALUES else str(parameter.name)
        if key in VALUES:
            parameter._custom_shell_complete = _completer(
                VALUES[key], item, many=parameter.name in lists
            )
    for within in getattr(command, "commands", {}).values():
        _teach(within, name, item, lists)


def _completer(
    values: str | Callable[[Any], Iterable[Offer]], item: Any, *, many: bool
) -> Callable[[Any, Any, str], list[Any]]:
    def offer(ctx: Any, parameter: Any, incomplete: str) -> list[Any]:
        before, comma, begun = incomplete.rpartition(",") if many else ("", "", incomplete)
        given = ctx.params.get(parameter.name) if parameter.multiple or parameter.nargs < 0 else ()
        taken = {*before.split(","), *(given or ())}
        if isinstance(values, str):
            module, _, name = values.partition(":")
            offers: Iterable[Offer] = getattr(import_module(module), name)
        else:
            offers = values(ctx)
        pairs = ((text, "") if isinstance(text, str) else text for text in offers)
        return [
            item(f"{before}{comma}{word}", help=purpose)
            for word, purpose in pairs
            if word.startswith(begun) and word not in taken
        ]

    return offer
