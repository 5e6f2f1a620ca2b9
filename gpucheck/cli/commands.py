"""Registry of the commands: the module of each, and its text in --help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple

from gpucheck.report.documents import DOCUMENTS, Document


class Command(NamedTuple):
    """Module of a command (with the function `command`), and its text in --help.

    `formats` are what --format takes, `charts` what --chart takes; `examples` are command lines
    with what each is for. `actions` are commands of its own, in the same module: `gpucheck profile
    list` is its `list_`. `common` are the groups of options that --help shows, where it does not
    show all.
    """

    module: str
    summary: str
    formats: tuple[str, ...] = ("table", "json")
    examples: tuple[tuple[str, str], ...] = ()
    actions: Mapping[str, Command] = MappingProxyType({})
    charts: tuple[str, ...] = ()
    common: tuple[str, ...] = ()


#: Charts of a benchmark, the most telling first; `show` draws them again.
CHARTS = ("roofline", "transfer", "frameworks", "telemetry")

#: Only the called command is imported: the overview needs no more than this.
COMMANDS = MappingProxyType(
    {
        "detect": Command(
            "gpucheck.cli.detect",
            "Say whether a GPU can be used, and which layer is broken first.",
            formats=(
                *("table", "json", "jsonl", "line", "shell", "junit", "github", "prometheus"),
                "html",
                "markdown",
            ),
            examples=(
                ("gpucheck detect", "usable or not, and what to do"),
                ("gpucheck detect --framework pytorch --deep", "let PyTorch itself try"),
                ("gpucheck detect --wheel torch", "which build runs on these GPUs"),
                ("gpucheck detect --pid 4711", "why is this program not on the GPU?"),
                ("gpucheck detect --log train.log", "why did it die, and is that still so?"),
                ("gpucheck detect --expect-gpus 8 --strict", "a gate for a node's health"),
                ("gpucheck detect --quick --format line", "80 bytes at most, for a monitor"),
            ),
        ),
        "list": Command(
            "gpucheck.cli.list",
            "List the GPUs: their numbers, state, users and links.",
            formats=("table", "json", "jsonl", "csv", "prometheus", "html", "markdown"),
            examples=(
                ("gpucheck list --processes --watch 2", "who uses them, refreshed"),
                ("gpucheck list --select index,uuid,temperature_c --format csv", "for a script"),
            ),
        ),
        "place": Command(
            "gpucheck.cli.place",
            "Show which device a program gets; after -- run it there.",
            formats=("table", "json", "uuid", "index", "env", "shell"),
            examples=(
                ("gpucheck place /gpu:0", "which card is that?"),
                ("gpucheck place --soft --run /gpu:9", "run where it really lands"),
                ("gpucheck place --count 2 --wait -- python train.py", "on two free GPUs"),
            ),
        ),
        "bench": Command(
            "gpucheck.cli.bench",
            "Time the CPU against the GPU, and verify both.",
            formats=(
                *("table", "json", "jsonl", "csv", "junit", "github", "prometheus", "html"),
                "markdown",
            ),
            charts=CHARTS,
            common=("What to measure", "How long", "Judge and compare"),
            examples=(
                ("gpucheck bench --quick", "the first look"),
                ("gpucheck bench matmul --dtype float16,bfloat16 --device gpu:0", "tensor cores"),
                ("gpucheck bench --full --json --output node17.json", "everything, kept"),
                ("gpucheck bench --profile acceptance --junit node17.xml", "a verdict, for CI"),
            ),
        ),
        "compare": Command(
            "gpucheck.cli.compare",
            "Compare two benchmark runs, with intervals and a verdict.",
            formats=("table", "json", "jsonl", "csv", "junit", "github", "html", "markdown"),
            examples=(
                ("gpucheck compare before.json after.json", "two runs of bench --save"),
                ("gpucheck compare before.json after.json --tolerance 3", "slower by over 3 %?"),
            ),
        ),
        "profile": Command(
            "gpucheck.cli.profile",
            "List, check and explain profiles for bench --profile.",
            examples=(
                ("gpucheck profile list", "the built-in profiles, and their files"),
                ("gpucheck profile lint mine.toml", "every mistake, with its line and remedy"),
                ("gpucheck profile explain default --board H100", "what each limit amounts to"),
            ),
            actions=MappingProxyType(
                {
                    "list": Command(
                        "gpucheck.cli.profile",
                        "List the built-in profiles.",
                        examples=(("gpucheck profile list", "their names and files"),),
                    ),
                    "lint": Command(
                        "gpucheck.cli.profile",
                        "Find the mistakes in profiles.",
                        examples=(
                            ("gpucheck profile lint mine.toml", "with line and remedy of each"),
                        ),
                    ),
                    "explain": Command(
                        "gpucheck.cli.profile",
                        "Show what each limit of a profile amounts to.",
                        examples=(
                            ("gpucheck profile explain default --board H100", "on one board"),
                        ),
                    ),
                }
            ),
        ),
        "memlimit": Command(
            "gpucheck.cli.memlimit",
            "Turn an amount into a GPU memory limit; -- CMD runs under it.",
            formats=("table", "json", "shell"),
            examples=(
                ("gpucheck memlimit 30% -- python train.py", "run an unmodified program"),
                ("gpucheck memlimit 8GiB --code pytorch", "the lines for your own program"),
                ("gpucheck memlimit 30% --verify", "prove that the limit holds"),
            ),
        ),
        "fleet": Command(
            "gpucheck.cli.fleet",
            "Check many machines: run a check on all, or compare what they answered.",
            formats=("table", "json", "jsonl", "junit", "prometheus", "html", "markdown", "nodes"),
            examples=(
                ("gpucheck fleet report results/", "what every node wrote there"),
                ("gpucheck fleet report out/ --expect @hosts.txt", "and who is missing"),
                ("gpucheck fleet run detect --local 3", "ask a cluster; here, three workers"),
            ),
            actions=MappingProxyType(
                {
                    "report": Command(
                        "gpucheck.cli.fleet",
                        "Compare what many machines answered; name the missing, failed, slow and"
                        " different.",
                        examples=(
                            ("gpucheck fleet report results/", "what every node wrote there"),
                            ("gpucheck fleet report out/ --expect @hosts.txt", "who is missing?"),
                            ("gpucheck fleet report - --max-missing 5 --json", "for a program"),
                            ("gpucheck fleet report out/ --format nodes", "for a scheduler"),
                        ),
                    ),
                    "run": Command(
                        "gpucheck.cli.fleet",
                        "Run a check on every node of a Dask cluster; name the missing, failed,"
                        " slow, different.",
                        examples=(
                            ("gpucheck fleet run detect --local 3", "try it on this machine"),
                            (
                                "gpucheck fleet run detect --scheduler tls://head:8786"
                                " --results r.jsonl",
                                "every node",
                            ),
                            (
                                "gpucheck fleet run bench --scheduler tls://head:8786 --wave 5%"
                                " -- --quick",
                                "in waves",
                            ),
                        ),
                    ),
                }
            ),
        ),
        "show": Command(
            "gpucheck.cli.show",
            "Show a saved JSON document again, as a table or otherwise.",
            formats=(
                *("table", "json", "jsonl", "csv", "line", "junit", "github", "prometheus"),
                *("nodes", "html", "markdown"),
            ),
            charts=CHARTS,
            examples=(
                ("gpucheck show node17.json", "what CI kept, as the command showed it"),
                ("gpucheck bench --quick --json | tee run.json | gpucheck show -", "both at once"),
            ),
        ),
        "report": Command(
            "gpucheck.cli.report",
            "Write what a ticket needs into one archive: detect, list, a snapshot.",
            examples=(
                ("gpucheck report ticket.tar.gz", "to attach; names are redacted"),
                ("gpucheck report ticket.tar.gz --bench", "with a quick benchmark"),
                ("gpucheck report ticket/", "as a folder, to look at first"),
            ),
        ),
        "snapshot": Command(
            "gpucheck.cli.snapshot",
            "Record this machine to a file that --from answers from.",
            formats=("json",),
            examples=(("gpucheck snapshot --redact machine.json", "for a bug report"),),
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


def find_command(words: Sequence[str]) -> Command | None:
    """Return the command of these words, such as ("profile", "lint"); None without words."""
    if not words or words[0] not in COMMANDS:
        return None
    command = COMMANDS[words[0]]
    return command.actions.get(words[1]) if words[1:] else command


#: Commands that run another one given after `--`; elsewhere `--` only ends the options.
RUNS_A_COMMAND = frozenset({"place", "memlimit"})
#: Options of the program itself; all others are a command's, or of the short answer without one.
PROGRAM_OPTIONS = ("--help", "-h", "--version", "-V", "--list-examples", "--show-completion")
