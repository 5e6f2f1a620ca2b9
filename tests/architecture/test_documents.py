"""What the documents say exists: links, files, commands and options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpucheck.bench.kernels import KERNELS
from gpucheck.bench.numerics import FORMATS
from gpucheck.cli.commands import COMMANDS
from gpucheck.data import read_table
from gpucheck.report.errors import ExitCode
from tests.architecture.commands import LEAVES, built_command, parsed
from tests.architecture.error_codes import codes
from tests.architecture.house import PACKAGE, ROOT, name_of, offenders, project_files

DOCUMENTS = [path for path in project_files() if path.suffix == ".md"]
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:^    \S.*\n?)+", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]+\.(?:py|md|cu|c|cpp)")
#: What a step tells its reader to write: one file, or a second one after `and`.
NEW_FILES = re.compile(r"\bWrite\s+`[^`]+`(?:\s+and\s+`[^`]+`)?")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
#: Where a shell's own words begin and end.
CALL = re.compile(r"""(?:^|[\s"(/])gpucheck (?P<words>[^#;&)\n]*)""")
#: What a document writes for a value, and one that the parser takes.
VALUES = {
    "AMOUNT": "30%", "CELSIUS": "80", "FILE...": "FILE", "N": "1", "PERCENT": "3",
    "SECONDS": "1", "X.Y": "8.0",
}  # fmt: skip


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """Return what the headings of a document are called in links."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text_of(path)), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


def shell_lines(path: Path) -> Iterator[str]:
    """Yield what a reader would copy into a shell: lines of blocks, and code within sentences."""
    text = text_of(path)
    for kind, block in FENCED.findall(text):
        if kind in ("sh", "console"):
            joined = block.replace("\\\n", " ").splitlines()
            prompt = "$ " if kind == "console" and "$ " in block else ""
            yield from (line.removeprefix(prompt) for line in joined if line.startswith(prompt))
    sentences = FENCED.sub("", text)
    for block in INDENTED.findall(sentences):
        yield from (line.strip() for line in block.splitlines())
    yield from INLINE.findall(INDENTED.sub("", sentences))


def calls(path: Path) -> Iterator[list[str]]:
    """Yield the words of every `gpucheck COMMAND ...` in a document."""
    for line in shell_lines(path):
        for found in CALL.finditer(line):
            words = shlex.split(found["words"].partition(" | ")[0].replace("…", ""))
            if words and words[0] in COMMANDS:
                yield words


def takes_a_value(command: Any, word: str) -> bool:
    """Return whether a word is an option of the command that would need another word."""
    return any(word in parameter.opts and not parameter.is_flag for parameter in options(command))


def options(command: Any) -> list[Any]:
    """Return the parameters that are options, not arguments."""
    return [each for each in command.params if each.param_type_name == "option"]


CALLS = [(path, words) for path in DOCUMENTS for words in calls(path)]


def known_options() -> set[str]:
    """Return the options of our commands, the pytest plug-in, the benchmarks and the fakes."""
    own = {
        option
        for line in LEAVES
        for parameter in built_command(line).params
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    scripts = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests" / "fakes").rglob("*.py")]
    scripts.append(PACKAGE / "integrations" / "pytest_plugin.py")
    others = {option for path in scripts for option in re.findall(r'"(--[a-z-]+)"', text_of(path))}
    return {*own, *others, "--help", "--help-all", "--version", "--config"}


def dead_links(path: Path) -> list[str]:
    dead = []
    for link in LINK.findall(FENCED.sub("", text_of(path))):
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


def test_links_lead_somewhere() -> None:
    assert offenders((path, dead_links(path)) for path in DOCUMENTS) == {}


def named_files(path: Path) -> set[str]:
    """Return the files that a document names, without those that its reader is to write."""
    spans = INLINE.findall(NEW_FILES.sub("", FENCED.sub("", text_of(path))))
    return {span for span in spans if FILE.fullmatch(span)}


def test_files_that_are_named_exist() -> None:
    files = [f"/{name_of(each)}" for each in project_files()]
    named = {path: named_files(path) for path in DOCUMENTS}
    known = {
        span
        for span in set().union(*named.values())
        if any(file.endswith(f"/{span}") for file in files)
    }

    assert known
    assert offenders((path, each - known) for path, each in named.items()) == {}


def test_files_to_be_written_are_new_ones_in_folders_that_exist() -> None:
    sentences = NEW_FILES.findall(text_of(ROOT / "CONTRIBUTING.md"))
    new = [ROOT / span for each in sentences for span in INLINE.findall(each) if "/" in span]

    assert len(new) > 8
    assert [path for path in new if path.exists() or not path.parent.is_dir()] == []


def test_every_document_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in LINK.findall(text_of(ROOT / "README.md"))}
    folders = {ROOT / "docs", ROOT / "docs" / "reference"}

    ours = {name_of(path) for path in DOCUMENTS if path.parent in folders}
    ours.add("docs/measurements/README.md")

    assert ours <= linked


def refusal(words: list[str]) -> str | None:
    """Return what the program's own parser has against a call; nothing is run."""
    name, *given = words
    own = given[: given.index("--")] if "--" in given else given
    actions = COMMANDS[name].actions
    if actions and (not own or own[0] not in actions):
        return None  # it speaks of the command
    command = built_command(f"{name} {own[0]}" if actions else name)
    if own and takes_a_value(command, own[-1]):
        own.pop()  # `bench --save` speaks of the option
    if len(own) <= bool(actions):  # the name alone speaks of the command
        return None
    try:
        parsed([name, *(VALUES.get(word, word.partition("|")[0]) for word in own)])
    except Exception as error:
        return f"{' '.join(words)}: {error}"
    return None


def test_commands_can_be_parsed() -> None:
    assert offenders((path, filter(None, [refusal(words)])) for path, words in CALLS) == {}


def unknown_options(path: Path, known: set[str]) -> set[str]:
    spans = INLINE.findall(FENCED.sub("", text_of(path)))
    named = {option for span in spans if span.startswith("--") for option in OPTION.findall(span)}
    return named - known


def test_options_in_sentences_exist() -> None:
    known = known_options()

    assert offenders((path, unknown_options(path, known)) for path in DOCUMENTS) == {}


def undescribed(line: str, texts: str) -> list[str]:
    """Return the options of a command that no guide names, by any of their spellings."""
    return [
        option.opts[0]
        for option in options(built_command(line))
        if not getattr(option, "hidden", False)
        and not any(
            re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", texts)
            for name in (*option.opts, *option.secondary_opts)
        )
    ]


def test_every_option_is_in_a_guide() -> None:
    guides = [ROOT / "README.md", *(path for path in DOCUMENTS if (ROOT / "docs") in path.parents)]
    texts = "\n".join(text_of(path) for path in guides)
    lacking = {line: undescribed(line, texts) for line in LEAVES}

    assert {line: names for line, names in lacking.items() if names} == {}


def test_enough_is_looked_at() -> None:
    assert {words[0] for _, words in CALLS} == set(COMMANDS)
    assert len({path for path, _ in CALLS}) >= 8


def tree_entries() -> Iterator[tuple[Path, str]]:
    """Yield (folder, name) for everything that the picture in architecture.md names."""
    picture = text_of(ROOT / "docs" / "architecture.md").partition("## Where things are")[2]
    block = FENCED.search(picture)
    assert block is not None
    folders: dict[int, Path] = {-1: ROOT}
    for line in block[2].splitlines():
        depth = len(line) - len(line.lstrip())
        if depth > 8:  # a description goes on
            continue
        names = re.split(r"\s{2,}", line.strip())[0].split()
        parent = folders[max(each for each in folders if each < depth)]
        folders = {each: path for each, path in folders.items() if each < depth}
        folders[depth] = parent / names[0]
        yield from ((parent, name) for name in names if not name.startswith("<"))


def not_there(folder: Path, name: str) -> list[str]:
    choice = re.search(r"\{(.*)\}", name)
    spelled = [name.replace(choice[0], part) for part in choice[1].split(",")] if choice else [name]
    return [each for each in spelled if not list(folder.glob(each.rstrip("/")))]


def test_the_picture_of_the_house_names_what_exists() -> None:
    entries = list(tree_entries())

    assert len(entries) > 20
    assert offenders((folder, not_there(folder, name)) for folder, name in entries) == {}


#: A module of the package as the documents name it, and a record of one.
MODULE = re.compile(r"`([a-z_/]+\.py)`")
RECORD = re.compile(r"`([A-Z]\w+)` \(`([a-z_/]+\.py)`\)")


def section(heading: str) -> str:
    """Return a part of architecture.md, up to the next heading."""
    text = text_of(ROOT / "docs" / "architecture.md")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def test_every_child_is_in_the_table_of_processes_with_who_starts_it() -> None:
    text = section("Processes")
    rows = [row.split("|")[1:3] for row in text.splitlines() if row.startswith("| `")]
    started = {
        (child, starter)
        for children, starters in rows
        for child in MODULE.findall(children)
        for starter in MODULE.findall(starters) or ["Child(__name__"]
    }
    children = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.stem.endswith(("worker", "_child")) or "Child(__name__" in text_of(path)
    }

    assert len(started) > 12
    assert sorted(child for child in children if Path(child).name not in text) == []
    for child, starter in started:
        source = text_of(PACKAGE / (child if starter.startswith("Child") else starter))
        word = starter if starter.startswith("Child") else Path(child).stem.strip("_")
        assert word in source, (child, starter)


def test_the_routes_of_a_reading_and_of_an_option_name_what_exists() -> None:
    text = section("Processes")
    named = {*MODULE.findall(text), *re.findall(r"[a-z_]+/[a-z_/]+\.py", text)}
    records = RECORD.findall(text)

    assert len(named) > 20
    assert {name for name in named if not [*PACKAGE.rglob(name)]} == set()
    assert len(records) > 3
    assert [
        (name, module)
        for name, module in records
        if re.search(rf"^class {name}\b", text_of(PACKAGE / module), re.MULTILINE) is None
    ] == []


def listed_errors() -> list[tuple[int, str]]:
    """Return (exit code, error code) for every row of the table in docs/json.md."""
    rows = re.findall(r"^\| (\d+) \| (`[^|]+) \|", text_of(ROOT / "docs" / "json.md"), re.MULTILINE)
    return [(int(number), code) for number, codes in rows for code in INLINE.findall(codes)]


def test_errors_for_scripts_are_the_programs() -> None:
    source = "\n".join(text_of(path) for path in PACKAGE.rglob("*.py"))
    listed = listed_errors()
    # toml_file.py composes two codes of the noun; config.py has one of its own instead.
    nouns = set(re.findall(r'(?:read_text|parse_toml|read_toml)\([^()"]*, "([a-z]+)"\)', source))
    nouns -= {"configuration"}
    composed = {code for noun in nouns for code in (f"bad-{noun}", f"{noun}-unreadable")}

    unknown = [
        code
        for number, code in listed
        if number not in set(ExitCode)
        or (f'"{code.removeprefix("nvml-")}"' not in source and code not in composed)
    ]

    assert len(listed) > 15
    assert unknown == []
    assert nouns >= {"graph", "profile", "rule"}
    assert composed - {code for _, code in listed} == set()


def test_every_code_is_named_for_scripts() -> None:
    named = set(INLINE.findall(text_of(ROOT / "docs" / "json.md")))
    listed = set(listed_errors())
    found = codes()

    assert len(found) > 200
    assert {code for code, _ in found} - named == set()
    assert {(number, code) for code, number in found if number is not None} - listed == set()


def test_documents_for_programs_are_the_schemas() -> None:
    text = text_of(ROOT / "docs" / "json.md")
    rows = set(re.findall(r"^\| `gpucheck/([a-z-]+)/1` \|", text, re.MULTILINE))

    assert rows == {path.stem for path in (PACKAGE / "data" / "schemas").glob("*.json")}


def test_doubts_are_explained() -> None:
    rows = text_of(ROOT / "docs" / "reference" / "bench.md").partition("| doubt | means |")[2]
    table = rows.partition("\n\n")[0]
    explained = {
        code for line in table.splitlines()[1:] for code in INLINE.findall(line.split("|")[1])
    }
    codes = {words.get("code", name) for name, words in read_table("doubts").items()}

    assert len(codes) > 15
    assert codes == explained


def test_kernels_and_formats_are_explained() -> None:
    text = text_of(ROOT / "docs" / "reference" / "bench.md")
    (formats,) = re.findall(r"^Formats \(`--dtype`\): `([^`]*)`", text, re.MULTILINE)
    kernels = re.findall(r"^\| `([a-z0-9-]+)` \|", text.partition("## Kernels")[2], re.MULTILINE)

    assert formats.split() == list(FORMATS)
    assert kernels[: len(KERNELS)] == list(KERNELS)
