"""One file and one line each: what is on disk and what is registered are the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest

from gpucheck.data import read_table
from tests.architecture.commands import COMMAND_NAMES
from tests.architecture.house import PACKAGE, ROOT, ids_in, name_of, parse


def top_level_functions(path: Path) -> set[str]:
    return {node.name for node in parse(path).body if isinstance(node, ast.FunctionDef)}


def modules_with(function: str, layer: str) -> set[str]:
    """Return the modules of a layer that define a public function: what makes it a format, say."""
    return {
        name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in (PACKAGE / layer).rglob("*.py")
        if function in top_level_functions(path)
    }


def test_checks() -> None:
    from gpucheck.detect.checks import CHECKS, frameworks, gpu_health

    modules = {check.ID: check.__name__ for check in CHECKS if isinstance(check, ModuleType)}
    known = (*gpu_health.CARD, *vars(gpu_health).values())
    rows = {check.ID for check in known if isinstance(check, gpu_health.GpuCheck)}

    assert sorted(check.ID for check in CHECKS) == sorted([*modules, *rows, *frameworks.NAMES])
    assert set(modules.values()) == modules_with("check", "detect/checks")
    assert all(
        module == f"gpucheck.detect.checks.{name.replace('-', '_')}"
        for name, module in modules.items()
    )


def test_every_check_and_format_has_a_test_of_its_name() -> None:
    from gpucheck.detect.checks import CHECKS
    from gpucheck.detect.checks.frameworks import NAMES

    # The frameworks' checks share their judgement: tests/detect/test_frameworks.py. The rules that
    # `list` and `place` know too: tests/inventory/test_condition.py.
    checks = {check.ID for check in CHECKS} - {*NAMES}
    tables = {path.stem for path in (ROOT / "tests" / "data" / "checks").glob("*.toml")}
    formats = ids_in(PACKAGE / "report" / "formats")

    assert checks - tables == {"gpu-lost"}  # it needs a machine that changes meanwhile
    assert {f"test-{name}" for name in formats} <= ids_in(ROOT / "tests" / "report" / "formats")


def test_checks_come_after_what_they_require() -> None:
    from gpucheck.detect.checks import CHECKS

    seen: set[str] = set()
    for check in CHECKS:
        assert set(check.REQUIRES) <= seen
        seen.add(check.ID)


def test_kernels() -> None:
    from gpucheck.bench.kernels import KERNELS

    assert set(KERNELS) == ids_in(PACKAGE / "bench" / "kernels")
    assert {kernel.id for kernel in KERNELS.values()} == set(KERNELS)


def test_formats() -> None:
    from gpucheck.report.formats import FORMATS, open_format

    modules = {place.partition(":")[0].replace("_", "-") for place in FORMATS.values()}
    assert modules == ids_in(PACKAGE / "report" / "formats")
    assert all(callable(open_format(name)) for name in FORMATS)


def test_commands() -> None:
    from gpucheck.cli.commands import COMMANDS

    modules = {f"gpucheck.cli.{name}" for name in COMMANDS if not COMMANDS[name].actions}
    assert modules == modules_with("command", "cli")


def test_formats_of_the_commands_are_registered() -> None:
    from gpucheck.cli.commands import COMMANDS
    from gpucheck.report.formats import FORMATS

    assert {each for command in COMMANDS.values() for each in command.formats} <= set(FORMATS)


#: What a format takes from the features.
TAKES = {
    "csv": "rows",
    "jsonl": "records",
    "junit": "verdicts",
    "github": "verdicts",
    "prometheus": "metrics",
}


def test_mappings_exist_and_every_offered_format_has_its_own() -> None:
    from gpucheck.cli.commands import COMMANDS, load_documents
    from gpucheck.report.documents import Document, open_mapping

    documents = load_documents()
    mappings = {*TAKES.values(), "seconds"}
    assert {*Document._fields} == {"results", "view", *mappings}
    registered = [
        (mapping, name)
        for name in documents
        for mapping in mappings
        if getattr(documents[name], mapping)
    ]
    assert all(callable(open_mapping(mapping, name)) for mapping, name in registered)
    assert all(documents[name].view is not None for _, name in registered)
    offered = {
        (command, each)
        for command, entry in COMMANDS.items()
        for each in entry.formats
        if each in TAKES and command != "show"  # which has those of the document
    }
    assert len(offered) > 10
    assert [pair for pair in offered if (TAKES[pair[1]], pair[0]) not in registered] == []


def test_show_has_the_formats_of_every_document_that_has_a_view() -> None:
    from gpucheck.cli.commands import COMMANDS, TO_EVALUATE, formats_of, load_documents
    from gpucheck.report.documents import open_view

    documents = load_documents()
    saved = {name for name, document in documents.items() if document.results is not None}
    viewed = {name for name, document in documents.items() if document.view is not None}
    assert saved == {*viewed, "snapshot", "error"} - {"overview"}
    assert all(callable(open_view(name).blocks) for name in viewed)
    shown = {each for name in saved if name != "snapshot" for each in formats_of(name)}
    assert {*COMMANDS["show"].formats} == shown - TO_EVALUATE
    charts = {
        each for name, command in COMMANDS.items() if name != "show" for each in command.charts
    }
    assert {*COMMANDS["show"].charts} == charts


def test_every_feature_registers_the_documents_of_its_own_modules() -> None:
    from gpucheck.cli.commands import FEATURES, load_documents

    registering = {
        path.parent.name
        for path in PACKAGE.glob("*/__init__.py")
        if "DOCUMENTS.update(" in path.read_text(encoding="utf-8")
    }
    assert registering == {*FEATURES, "cli"}
    assert len(load_documents()) > 15


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_overview_says_what_the_command_says_of_itself(name: str) -> None:
    from gpucheck.cli.app import functions_of, summary_of
    from gpucheck.cli.commands import COMMANDS

    if not COMMANDS[name].actions:
        assert summary_of(functions_of(name)[name]) == COMMANDS[name].summary


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_command_has_a_readme_section(name: str) -> None:
    headings = [
        line
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    ]

    assert f"### gpucheck {name}" in headings


def keys_of(name: str, path: Path) -> set[str]:
    """Return the keys of a dictionary at the top of a file that is run by path, not imported."""
    for node in parse(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(node.value, ast.Dict)
            return {ast.literal_eval(key) for key in node.value.keys if key is not None}
    raise AssertionError(name)


def test_frameworks_that_bench_runs_have_a_file_a_form_and_a_place_in_the_help() -> None:
    from gpucheck.bench.frameworks import COMPILED, FORMS
    from gpucheck.bench.request_model import BenchRequest
    from gpucheck.report.options import options_of

    python = PACKAGE / "drivers" / "python"
    assert keys_of("FILES", python / "framework_bench_child.py") == set(FORMS)
    assert {form for forms in FORMS.values() for form in forms} > COMPILED
    assert options_of(BenchRequest)["frameworks"].help == f"Run {', '.join(FORMS)} too."


def test_frameworks_are_the_same_everywhere() -> None:
    from gpucheck.detect.checks import CHECKS
    from gpucheck.detect.checks.frameworks import NAMES
    from gpucheck.detect.model import Layer

    python = PACKAGE / "drivers" / "python"
    causes = read_table("causes")

    assert keys_of("FRAMEWORKS", python / "frameworks_child.py") == set(NAMES)
    assert set(read_table("wheels")["guide"]) == set(NAMES)
    assert {name for name in causes if "libraries-missing" in causes[name]} == set(NAMES)
    assert keys_of("DESCRIBE", python / "frameworks_child.py") == set(NAMES)
    assert keys_of("TESTS", python / "framework_test_child.py") == set(NAMES)
    of_packages = {check.ID for check in CHECKS if check.LAYER is Layer.FRAMEWORK}
    assert of_packages == set(NAMES)


def test_mechanisms() -> None:
    from gpucheck.memlimit.mechanisms import MECHANISMS, WRITERS

    folder = "memlimit/mechanisms"

    assert {each.__name__ for each in MECHANISMS} == modules_with("plan", folder)
    assert {each.__module__ for each in WRITERS.values()} == modules_with("code_lines", folder)


def test_hooked_frameworks_are_the_hooks() -> None:
    from gpucheck.memlimit.environment import FRAMEWORKS

    hook = PACKAGE / "memlimit" / "hook" / "gpucheck_limit_hook.py"
    other_names = {"jaxlib.xla_client": "jax"}

    assert {other_names.get(name, name) for name in keys_of("HANDLERS", hook)} == set(FRAMEWORKS)


ASKING = re.compile(r"get_close_matches|[Dd]id you mean '?[{a-z.]")


def test_one_function_asks_what_was_meant() -> None:
    """Its users give it their names; no other text asks, nor is likeness measured elsewhere."""
    own = {"report/text.py", "cli/output.py"}  # the second removes what the parser asks
    asking = {
        name_of(path).removeprefix("gpucheck/")
        for path in PACKAGE.rglob("*.py")
        if ASKING.search(path.read_text(encoding="utf-8"))
    }

    assert asking == own
