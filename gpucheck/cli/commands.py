"""Registry of the commands: what each is called, says in --help, and can write."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple

from gpucheck.report.documents import DOCUMENTS, Document


class Command(NamedTuple):
    """Text of a command in --help; the function `command` of its module of cli has its options.

    `formats` are what --format takes, `charts` what --chart takes. `actions` are commands of its
    own: `gpucheck profile list` is the function `list_`, whose docstring is its text. `common` are
    the groups of options that --help shows, where it does not show all.
    """

    summary: str
    formats: tuple[str, ...] = ("table", "json")
    charts: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


#: Charts of a benchmark, the most telling first; `show` draws them again.
CHARTS = ("roofline", "transfer", "frameworks", "telemetry")

#: Only the called command is imported: the overview needs no more than this.
COMMANDS = MappingProxyType(
    {
        "detect": Command(
            "Say whether a GPU can be used, and which layer is broken first.",
            formats=(
                *("table", "json", "jsonl", "line", "shell", "junit", "github", "prometheus"),
                *("html", "markdown"),
            ),
        ),
        "list": Command(
            "List the GPUs: their numbers, state, users and links.",
            formats=("table", "json", "jsonl", "csv", "prometheus", "html", "markdown"),
        ),
        "place": Command(
            "Show which device a program gets; after -- run it there.",
            formats=("table", "json", "uuid", "index", "env", "shell"),
        ),
        "bench": Command(
            "Time the CPU against the GPU, and verify both.",
            formats=(
                *("table", "json", "jsonl", "csv", "junit", "github", "prometheus"),
                *("html", "markdown"),
            ),
            charts=CHARTS,
            common=("What to measure", "How long", "Judge and compare"),
        ),
        "compare": Command(
            "Compare two benchmark runs, with intervals and a verdict.",
            formats=("table", "json", "jsonl", "csv", "junit", "github", "html", "markdown"),
        ),
        "profile": Command(
            "List, check and explain profiles for bench --profile.",
            actions=("list", "lint", "explain"),
        ),
        "memlimit": Command(
            "Turn an amount into a GPU memory limit; -- CMD runs under it.",
            formats=("table", "json", "shell"),
        ),
        "fleet": Command(
            "Check many machines: run a check on all, or compare what they answered.",
            formats=("table", "json", "jsonl", "junit", "prometheus", "html", "markdown", "nodes"),
            actions=("report", "run"),
        ),
        "show": Command(
            "Show a saved JSON document again, as a table or otherwise.",
            formats=(
                *("table", "json", "jsonl", "csv", "line", "junit", "github", "prometheus"),
                *("nodes", "html", "markdown"),
            ),
            charts=CHARTS,
        ),
        "report": Command("Write what a ticket needs into one archive: detect, list, a snapshot."),
        "snapshot": Command(
            "Record this machine to a file that --from answers from.", formats=("json",)
        ),
    }
)


#: Formats of the documents that an option of a command asks for, or that every failure is.
OF_OPTIONS = MappingProxyType(
    {
        "burn": ("table", "json", "jsonl", "junit", "github", "prometheus", "html", "markdown"),
        "claims": ("table", "json"),
        "error": ("table", "json"),
        "log": ("table", "json", "line"),
        "peaks": ("table", "json"),
        "process": ("table", "json", "line"),
        "wheel": ("table", "json", "shell"),
    }
)
#: Formats for people: they draw the same, and say themselves what a saved document is.
FOR_PEOPLE = frozenset({"table", "html", "markdown"})
#: Lines for a shell or a variable: an answer for the machine at hand, never from a saved document.
TO_EVALUATE = frozenset({"uuid", "index", "env", "shell", "code"})


#: Each registers its documents when it is imported: a command has those of its own features.
FEATURES = ("bench", "detect", "fleet", "inventory", "memlimit", "place")


def load_documents() -> Mapping[str, Document]:
    """Import the features, so that the documents of all are registered, and return those."""
    for feature in FEATURES:
        import_module(f"gpucheck.{feature}")
    return DOCUMENTS


def formats_of(document: str) -> tuple[str, ...]:
    """Return the formats that the document of a command, or of one of its options, has."""
    return OF_OPTIONS[document] if document in OF_OPTIONS else COMMANDS[document].formats


#: Commands that run another one given after `--`; elsewhere `--` only ends the options.
RUNS_A_COMMAND = frozenset({"place", "memlimit"})
#: Options of the program itself; all others are a command's, or of the short answer without one.
PROGRAM_OPTIONS = ("--help", "-h", "--version", "-V", "--list-examples", "--show-completion")
