"""Mutation check of the decision modules: does a feature's own test folder notice a wrong decision?

    python -m benchmarks.mutants --count 300 --seed 1 --output mutants.json
    python -m benchmarks.mutants --count 300 --seed 1 --survivors mutants.json

Draws changes of single expressions and statements (a comparison turned, a condition negated, a
number off by one, a statement dropped ...) with a fixed seed, each place with the same chance, and
runs the tests on a copy of the checkout for each: first the test file of the module's name, then
the folder of its feature, slow tests left out. `--survivors` runs all quick tests on those that
survived in an earlier output of the same draw. A mutant is killed if a test fails, whose name is in
the output, or if the tests take four times as long as unchanged, which is counted apart. Survivors
are printed with their diff: each wants a test, or a reason why it changes nothing. The exit code is
1 only if the unchanged tests fail.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contained import LATE

ROOT = Path(__file__).resolve().parents[1]
#: Folders of the package whose modules decide, and what in them does not: what draws is compared
#: with kept documents in tests/end_to_end/, and a child is run in another Python.
DECIDING = ("inventory", "detect", "place", "memlimit", "bench", "fleet", "integrations", "report")
NOT_DECIDING = ("view", "_child", "__init__", "report/formats/", "report/charts")
#: A run of the folder's tests that takes this many times as long as unchanged hangs.
PATIENCE = 4.0
LEAST_S = 30.0

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
#: How statements begin that decide nothing.
IDLE = ("if TYPE_CHECKING:", "time.sleep(")
#: Comparisons whose turned form is their negation.
EXACT = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
OPPOSITE: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Add,
}  # fmt: skip


class Mutant(NamedTuple):
    """One changed module: its path in the package, what was changed, and the new source."""

    module: str
    line: int
    change: str
    source: str


def modules(checkout: Path, only: str = "") -> list[Path]:
    """Return the modules whose decisions are changed, those whose path holds `only`."""
    package = checkout / "gpucheck"
    found = [
        path
        for folder in DECIDING
        for path in sorted((package / folder).rglob("*.py"))
        if not any(word in path.relative_to(package).as_posix() for word in NOT_DECIDING)
    ]
    return [path for path in found if only in path.relative_to(checkout).as_posix()]


def sites(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """Yield each place that can be changed: the number of its node, its line, how."""
    without_effect = _without_effect(tree)
    for number, node in enumerate(ast.walk(tree)):
        line = getattr(node, "lineno", 0)
        if id(node) in without_effect:
            continue
        if isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
            yield number, line, "turn the comparison"
        elif isinstance(node, ast.BoolOp):
            yield number, line, "exchange and, or"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield number, line, "drop the not"
        elif isinstance(node, ast.BinOp) and type(node.op) in OPPOSITE:
            yield number, line, "exchange the operator"
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            yield number, line, "change the number"
        elif isinstance(node, ast.If | ast.IfExp):
            yield number, line, "negate the condition"
        elif isinstance(node, ast.Return) and not _is_nothing(node.value):
            yield number, line, "return nothing"
        elif isinstance(node, ast.Raise):
            yield number, line, "raise nothing"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield | ast.Call):
            yield number, line, "drop the statement"


def _without_effect(tree: ast.Module) -> set[int]:
    """Return the nodes that no run evaluates or that only pass time: types, pauses."""
    found: set[int] = set()
    for node in ast.walk(tree):
        idle: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            idle = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            idle = [node.returns]
        elif isinstance(node, ast.If | ast.Expr) and ast.unparse(node).startswith(IDLE):
            idle = [node]
        found |= {id(inside) for each in idle if each for inside in ast.walk(each)}
    return found


def _is_nothing(value: ast.expr | None) -> bool:
    """Return whether a caller could not tell this from None: it is false, empty, or None."""
    if isinstance(value, ast.Tuple | ast.List):
        return not value.elts
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def mutant(path: Path, checkout: Path, site: tuple[int, int, str]) -> Mutant | None:
    """Return the module with one change, None if that leaves it as it is."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    number, line, change = site
    node = next(each for count, each in enumerate(ast.walk(tree)) if count == number)
    tree = _changed(tree, node, change)
    source = ast.unparse(tree)
    if source == ast.unparse(ast.parse(text)):
        return None
    return Mutant(path.relative_to(checkout).as_posix(), line, change, source)


def _changed(tree: ast.Module, node: Any, change: str) -> ast.Module:
    if change == "turn the comparison":
        node.ops[0] = TURNED[type(node.ops[0])]()
    elif change == "exchange and, or":
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif change == "exchange the operator":
        node.op = OPPOSITE[type(node.op)]()
    elif change == "change the number":
        node.value = node.value + 1 if isinstance(node.value, int) else node.value * 1.5 + 0.5
    elif change == "negate the condition":
        node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
    elif change == "return nothing":
        node.value = ast.Constant(value=None)
    else:
        new = node.operand if change == "drop the not" else ast.Pass()
        tree = _Exchange(node, new).visit(tree)
    return ast.fix_missing_locations(tree)


class _Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else super().visit(node)


def drawn(checkout: Path, count: int, seed: int, only: str = "") -> list[Mutant]:
    """Return `count` different mutants of the modules whose path holds `only`.

    Every site has the same chance. Two sites can give one mutant: a condition that is negated and
    its only comparison that is turned.
    """
    random_ = random.Random(seed)
    everything = [
        (path, site)
        for path in modules(checkout, only)
        for site in _of_code(path.read_text("utf-8"))
    ]
    random_.shuffle(everything)
    found: dict[tuple[str, str], Mutant] = {}
    for path, site in everything:
        if len(found) == count:
            break
        new = mutant(path, checkout, site)
        if new is not None:
            found.setdefault((new.module, _plain(new.source)), new)
    return list(found.values())


def _plain(source: str) -> str:
    """Return the source with `not a == b` written as `a != b`, to compare mutants."""
    return ast.unparse(_Plain().visit(ast.parse(source)))


class _Plain(ast.NodeTransformer):
    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        inner = node.operand
        if isinstance(node.op, ast.Not) and isinstance(inner, ast.Compare) and len(inner.ops) == 1:
            kind = type(inner.ops[0])
            if kind in EXACT:
                return ast.Compare(inner.left, [TURNED[kind]()], inner.comparators)
        return node


def _of_code(text: str) -> list[tuple[int, int, str]]:
    return list(sites(ast.parse(text)))


def tests_of(module: str, checkout: Path, *, anywhere: bool) -> dict[str, list[str]]:
    """Return the test file of the module's name and the folder of its feature, or all quick tests.

    Those that read the source's text are not among them: it has lost its comments.
    """
    if anywhere:
        return {"any": ["tests", "--ignore=tests/architecture"]}
    parts = Path(module).with_suffix("").parts[1:]
    own = checkout / "tests" / Path(*parts[:-1]) / f"test_{parts[-1]}.py"
    found = {}
    if own.is_file():
        found["own"] = [own.relative_to(checkout).as_posix()]
    if (checkout / "tests" / parts[0]).is_dir():
        found["folder"] = [f"tests/{parts[0]}"]
    return found


class Outcome(NamedTuple):
    """How tests ended (`passed`, `failed` or `late`), after how long, and the first that failed."""

    how: str
    took_s: float
    test: str | None


def run_tests(copy_of: Path, tests: list[str], timeout_s: float) -> Outcome:
    """Return how these tests ended."""
    command = [
        sys.executable, "-m", "benchmarks.contained", str(timeout_s),
        sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider",
        "-m", "not slow", *tests,
    ]  # fmt: skip
    begun = time.monotonic()
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy_of),
        "CI": "true",
    }
    # The tests' own bytecode is kept, or each run would compile them anew.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.run(
        command, cwd=copy_of, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, check=False, text=True, errors="replace",
    )  # fmt: skip
    took_s = time.monotonic() - begun
    if process.returncode == LATE:
        return Outcome("late", took_s, None)
    # 5: no test was collected, all of them being slow.
    if process.returncode in (0, 5):
        return Outcome("passed", took_s, None)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", process.stdout, re.MULTILINE)
    return Outcome("failed", took_s, failed and failed[1])


def write(target: Path, source: str) -> None:
    """Write a module, and remove its bytecode: size and second may be those of the last one."""
    target.write_text(source, encoding="utf-8")
    for compiled in (target.parent / "__pycache__").glob(f"{target.stem}.*.pyc"):
        compiled.unlink()


def judge(
    each: Mutant, copy_of: Path, usual_s: dict[str, float], *, anywhere: bool
) -> dict[str, Any]:
    """Return what became of a mutant: `killed_by` is `own`, `folder`, `any`, `time` or None.

    `test` is the first test that failed; None where not even the tests could be collected.
    """
    target = copy_of / each.module
    before = target.read_text(encoding="utf-8")
    write(target, each.source)
    killed_by = test = None
    try:
        for name, tests in tests_of(each.module, copy_of, anywhere=anywhere).items():
            limit_s = max(LEAST_S, PATIENCE * usual_s.get(" ".join(tests), LEAST_S))
            how, _, test = run_tests(copy_of, tests, limit_s)
            if how != "passed":
                killed_by = name if how == "failed" else "time"
                break
    finally:
        write(target, before)
    return {
        "module": each.module, "line": each.line, "change": each.change, "killed_by": killed_by,
        "test": test, "diff": diff_of(each, copy_of),
    }  # fmt: skip


def diff_of(each: Mutant, checkout: Path) -> list[str]:
    """Return the changed lines, as they were and as they are, without those around them."""
    texts = (checkout / each.module).read_text(encoding="utf-8"), each.source
    old, new = (ast.unparse(ast.parse(text)).splitlines() for text in texts)
    return [
        line
        for line in difflib.unified_diff(old, new, lineterm="", n=0)
        if line[0] in "+-" and not line.startswith(("+++", "---"))
    ]


def copies(checkout: Path, folder: Path, count: int) -> list[Path]:
    """Return copies of the checkout's files that may be changed."""
    left_out = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache")
    found = []
    for number in range(count):
        shutil.copytree(checkout, folder / str(number), ignore=left_out, symlinks=True)
        found.append(folder / str(number))
    return found


def check(
    checkout: Path, mutants: list[Mutant], jobs: int, *, anywhere: bool
) -> list[dict[str, Any]] | None:
    """Return what became of each mutant, None where the unchanged tests fail."""
    usual_s: dict[str, float] = {}
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpucheck-mutants-") as folder:
        trees = copies(checkout, Path(folder), jobs)
        for each in mutants:
            for tests in tests_of(each.module, checkout, anywhere=anywhere).values():
                if " ".join(tests) not in usual_s:
                    how, took_s, test = run_tests(trees[0], tests, 3600)
                    usual_s[" ".join(tests)] = took_s
                    if how != "passed":
                        print(f"unchanged, these fail: {' '.join(tests)[:200]}: {test or how}")
                        return None
        waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
        for each in mutants:
            waiting.put(each)

        def work(tree: Path) -> None:
            while True:
                try:
                    each = waiting.get_nowait()
                except queue.Empty:
                    return
                results.append(judge(each, tree, usual_s, anywhere=anywhere))
                if sys.stderr.isatty():
                    print(f"\r{len(results)} of {len(mutants)}", end="", file=sys.stderr)

        threads = [threading.Thread(target=work, args=(tree,)) for tree in trees]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def report(results: list[dict[str, Any]]) -> None:
    """Print the shares by folder, and every survivor."""
    total, killed = Counter[str](), Counter[str]()
    for each in results:
        folder = "/".join(each["module"].split("/")[1:-1])
        for name in (folder, "all"):
            total[name] += 1
            killed[name] += each["killed_by"] is not None
    print("| folder | mutants | killed |\n|--|--:|--:|")
    for name in sorted(total, key=lambda each: (each == "all", each)):
        print(f"| {name} | {total[name]} | {killed[name]} ({killed[name] / total[name]:.0%}) |")
    late = sum(each["killed_by"] == "time" for each in results)
    print(f"\nKilled because their time was over: {late}")
    for each in sorted(results, key=lambda each: (each["module"], each["line"])):
        if each["killed_by"] is None:
            print(f"\n{each['module']}:{each['line']}: {each['change']}")
            print(*(f"    {line}" for line in each["diff"]), sep="\n")


def main() -> None:
    """Draw, try and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", default="", help="modules whose path holds this")
    parser.add_argument("--output", type=Path, help="keep what became of each, as JSON")
    parser.add_argument("--survivors", type=Path, help="only those of this output, all quick tests")
    asked = parser.parse_args()
    checkout = asked.checkout.resolve()
    mutants = drawn(checkout, asked.count, asked.seed, asked.only)
    if asked.survivors:
        earlier = json.loads(asked.survivors.read_text(encoding="utf-8"))
        survived = [
            (each["module"], each["line"], each["diff"])
            for each in earlier
            if each["killed_by"] in (None, "time")
        ]
        mutants = [
            each
            for each in mutants
            if (each.module, each.line, diff_of(each, checkout)) in survived
        ]
    results = check(checkout, mutants, asked.jobs, anywhere=asked.survivors is not None)
    if results is None:
        sys.exit(1)
    if asked.output:
        asked.output.write_text(json.dumps(results, indent=1), encoding="utf-8")
    report(results)


if __name__ == "__main__":
    main()
