"""Commands as the parser sees them: each option of one value once, and help texts in groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from gpucheck.cli.commands import COMMANDS, RUNS_A_COMMAND
from gpucheck.cli.options import DEFAULTS, MACHINE, OUTPUT, SHARED
from gpucheck.cli.terminal import write_stdout
from gpucheck.data import read_table

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
OPTIONS = "Options"

#: So many groups of a command's own come before its output, for the first screen.
_COMMON = 3
#: Options of the output that --help shows where it does not show all.
_COMMON_OUTPUT = ("json", "output", "verbose")


def wants_bold() -> bool:
    """Return whether help goes to a terminal that has bold type, and nobody refused it."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def grouped(parameters: Iterable[Any], first: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Return the parameters by group as help shows them: the groups named `first` come first."""
    groups: dict[str, list[Any]] = {}
    # In a group that every command has, a command's own come after those of all.
    for item in sorted(parameters, key=lambda item: item.name not in SHARED):
        groups.setdefault(getattr(item, "rich_help_panel", None) or DEFAULTS, []).append(item)
    own = [title for title in groups if title not in (OUTPUT, MACHINE, DEFAULTS, *first)]
    own = [*first, *own]
    titles = (*own[:_COMMON], OUTPUT, *own[_COMMON:], MACHINE, DEFAULTS)
    return {title: groups[title] for title in titles if title in groups}


class _Page:
    """Sections of a help page on Click's formatter, with headings in bold."""

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter
        self._bold = wants_bold()

    def heading(self, text: str) -> None:
        self._formatter.write_paragraph()
        self._formatter.write(f"{BOLD}{text}:{PLAIN}\n" if self._bold else f"{text}:\n")

    def definitions(self, title: str, rows: Sequence[tuple[str, str]], width: int) -> None:
        """Write a section of rows whose second column begins at the same place in all sections."""
        self.heading(title)
        self._formatter.indent()
        padded = [(f"{word:{width}}", text) for word, text in rows]
        self._formatter.write_dl(padded, col_max=max(width, 20), col_spacing=2)
        self._formatter.dedent()

    def prose(self, title: str, text: str) -> None:
        """Write a section of one paragraph."""
        self.heading(title)
        self._formatter.indent()
        self._formatter.write_text(text)
        self._formatter.dedent()

    def examples(self, command: str) -> None:
        """Write command lines as they are, to be copied, and below each its purpose."""
        examples = read_table("command_examples").get(command, {})
        if not examples:
            return
        self.heading("Examples")
        indent = self._formatter.indentation
        with indent(), indent(), indent():
            for line, purpose in examples.items():
                self._formatter.write(f"  {line}\n")
                self._formatter.write_text(purpose)


def _words(ctx: Any) -> tuple[str, ...]:
    """Return the words of the command: ("profile", "lint")."""
    return tuple(ctx.command_path.split()[1:])


#: Help page with the options that few people need, too, and the key in Click's notes that says so.
_EVERY_OPTION = "--help-all"


def _is_common(ctx: Any, item: Any) -> bool:
    """Return whether --help shows a parameter; the others are for --help-all."""
    common = _common_groups(ctx)
    if not common or not item.expose_value:
        return True
    return item.rich_help_panel in common or item.name in _COMMON_OUTPUT


def _common_groups(ctx: Any) -> tuple[str, ...]:
    name = (*_words(ctx), "")[0]
    return COMMANDS[name].common if name in COMMANDS else ()


def _show_help(ctx: Any, option: Any, wanted: bool) -> None:
    """Print the help page as a report is printed: a full or closed stdout is an error of ours."""
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_EVERY_OPTION] = _EVERY_OPTION in option.opts
        write_stdout(f"{ctx.get_help()}\n")
        ctx.exit()


def _with_own_writer(option: Any) -> Any:
    option.callback = _show_help
    return option


def _refusing_repeated_and_empty(parser: Any, ctx: Any) -> Any:
    """Return the parser, which then refuses an option of one value that is given again, or empty.

    By itself it takes the last one without a word, and an unset variable's value for the current
    directory or for all.
    """
    parse = parser.parse_args

    def parse_and_check(args: list[str]) -> tuple[Any, Any, Any]:
        values, rest, order = parse(args)
        for item in () if ctx.resilient_parsing else dict.fromkeys(order):
            times, option, value = order.count(item), max(item.opts, key=len), values[item.name]
            if item.param_type_name == "option" and "" in (value if item.multiple else [value]):
                ctx.fail(f"{option} is empty: give it a value, or leave it out")
            if times > 1 and not (item.multiple or item.is_flag or item.count):
                often = "twice" if times == 2 else f"{times} times"
                ctx.fail(f"{option} takes one value, but is given {often}")
        return values, rest, order

    parser.parse_args = parse_and_check
    return parser


class HelpfulCommand(TyperCommand):
    """Command whose help is grouped, with a plain usage line: AMOUNT, not {AMOUNT}."""

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser of the command's words."""
        return _refusing_repeated_and_empty(super().make_parser(ctx), ctx)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help, which prints with our own errors."""
        return _with_own_writer(super().get_help_option(ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with the option that shows all where --help does not."""
        parameters: list[Any] = super().get_params(ctx)
        if hidden := [item for item in parameters if not _is_common(ctx, item)]:
            more = {"is_flag": True, "is_eager": True, "expose_value": False}
            text = f"Show the other {len(hidden)} options, too."
            option = type(parameters[-1])(param_decls=[_EVERY_OPTION], help=text, **more)
            parameters.append(_with_own_writer(option))
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line after the command's name."""
        pieces = [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]
        return [*pieces, "[-- COMMAND...]"] if ctx.info_name in RUNS_A_COMMAND else pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the parameters in groups."""
        page, parameters = _Page(formatter), self.get_params(ctx)
        if not ctx.meta.get(_EVERY_OPTION):
            parameters = [item for item in parameters if _is_common(ctx, item)]
        groups = {
            title: [
                (word.strip("{}"), text)
                for word, text in (item.get_help_record(ctx) for item in items)
            ]
            for title, items in grouped(parameters, _common_groups(ctx)).items()
        }
        words = [word for rows in groups.values() for word, _ in rows]
        width = max((len(word) for word in words if len(word) <= _WIDEST), default=0)
        for title, rows in groups.items():
            page.definitions(title, rows, width)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        _Page(formatter).examples(" ".join(_words(ctx)))


#: A longer option takes a line of its own, rather than push all explanations to the right.
_WIDEST = 26


class HelpfulGroup(TyperGroup):
    """Commands, the program's or those of one command, with their options and examples."""

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser of the words before the command."""
        return _refusing_repeated_and_empty(super().make_parser(ctx), ctx)

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option --help, which prints with our own errors."""
        return _with_own_writer(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands first, then the options."""
        page = _Page(formatter)
        rows = [
            (name, command.help or "")
            for name, command in self.commands.items()
            if not command.hidden
        ]
        records = [
            record
            for item in self.get_params(ctx)
            if (record := item.get_help_record(ctx)) is not None
        ]
        page.definitions("Commands", rows, max(len(name) for name, _ in rows))
        page.definitions(OPTIONS, records, max(len(word) for word, _ in records))
        if not _words(ctx):
            page.prose("Without a command", ALONE)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        _Page(formatter).examples(" ".join(_words(ctx)) or "overview")


#: What `gpucheck` alone takes.
ALONE = (
    "The short answer, with the options --json, --output, --from, --deadline, --strict, -v and -q,"
    " which mean the same as in gpucheck detect --help."
)
