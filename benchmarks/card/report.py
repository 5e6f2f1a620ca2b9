"""Report of a card's measurement: a JSON document, a readable page, and a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import cast

from benchmarks.card.figures import NO_TIME, Figure, figure_of

_PREFIXES = (
    *((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")),
    *((1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u")),
)
HEAD = ("figure", "ours", "best rival", "ours/rival", "scatter", "limit", "of it", "verdict")
#: Characters of a table with every row; a longer one is shortened.
_MOST_CHARACTERS = 9_000
#: Facts that make two runs comparable, so that one document may hold both.
IDENTITY = ("card", "driver", "CuPy", "cuBLAS", "torch", "kernels")


def text_of(value: float | None, unit: str) -> str:
    """Return a value with three digits and a prefix for its unit, a dash for none."""
    if value is None:
        return "-"
    if not unit:
        return "yes" if value else "no"
    size, prefix = next(
        ((size, prefix) for size, prefix in _PREFIXES if value >= size), (1e-9, "n")
    )
    return f"{value / size:.3g} {prefix}{unit}"


def best_rival(figure: Figure) -> tuple[str, float] | None:
    """Return the rival that was best."""
    rivals = {name: value for name, value in figure.rivals.items() if value}
    if not rivals:
        return None
    choose = min if figure.unit == "s" else max
    name = choose(rivals, key=lambda one: rivals[one])
    return name, rivals[name]


def row_of(figure: Figure) -> tuple[str, ...]:
    """Return a figure as a row of the table."""
    rival = best_rival(figure)
    shown = f"{text_of(rival[1], figure.unit)} ({rival[0]})" if rival else "-"
    if figure.failures:
        shown += f"; no {', '.join(figure.failures)}"
    ratios = (
        figure.ratio(rival[0]) if rival else None,
        figure.ratio(figure.limit_name) if figure.limit_name else None,
    )
    beside, share = ("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
    verdict = figure.verdict if figure.error is None else f"no figure: {figure.error}"[:70]
    return (
        f"{figure.part}: {figure.name}",
        text_of(figure.ours, figure.unit),
        shown,
        beside,
        "-" if figure.scatter is None else f"{figure.scatter:.1%}",
        text_of(figure.limit, figure.unit),
        share,
        verdict or ("right" if figure.verified else ""),
    )


def table(figures: Sequence[Figure]) -> str:
    """Return the figures in columns, without empty ones."""
    rows = [HEAD, *(row_of(figure) for figure in figures)]
    used = [column for column in zip(*rows, strict=True) if set(column[1:]) - {"-", ""}]
    widths = [max(map(len, column)) for column in used]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*used, strict=True)
    )


def summary(figures: Sequence[Figure]) -> str:
    """Return one sentence on how many bars were reached."""
    count = {
        word: sum(figure.verdict == word for figure in figures)
        for word in ("ok", "below", "wrong", "half", "no figure")
    }
    text = f"{count['ok']} at their bar, {count['below']} below, {count['wrong']} wrong"
    if count["half"]:
        text += f", {count['half']} without a comparison"
    late = sum(figure.error == NO_TIME for figure in figures)
    text += f", {count['no figure'] - late} failed"
    return text + (f", {late} not begun in time" if late else "")


def is_short(figure: Figure) -> bool:
    """Return whether a figure belongs in the short table: it has a bar, or failed."""
    if figure.error == NO_TIME:
        return False
    if figure.verdict in ("wrong", "below", "no figure") or figure.bars:
        return True
    return figure.part not in ("variants", "bandwidth", "matmul") or figure.name.endswith("best")


def failures(figures: Sequence[Figure]) -> list[str]:
    """Return why rivals have no value: each reason once, with the first figure concerned."""
    found: dict[tuple[str, str], list[str]] = {}
    for figure in figures:
        for name, why in figure.failures.items():
            found.setdefault((name, why), []).append(f"{figure.part}: {figure.name}")
    return [
        f"{name} failed ({places[0]}{f' and {len(places) - 1} more' if places[1:] else ''}): {why}"
        for (name, why), places in found.items()
    ]


def slug(name: str) -> str:
    """Return a card's name as a file name: `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"


class Report:
    """Results of a run so far: in files from the first figure on, printed at its end.

    Figures of parts that do not run are kept, if they are of the same card and software.
    """

    def __init__(self, folder: Path, facts: Mapping[str, object], parts: Sequence[str]) -> None:
        stem = slug(str(facts.get("card") or "gpu"))
        self._data, self._page = folder / f"{stem}.json", folder / f"{stem}.md"
        #: File for the documents of gpucheck's own commands.
        self.documents = folder / f"{stem}-documents.json"
        self._facts = dict(facts)
        run = {"date": self._facts.pop("date", None), "command": self._facts.pop("command", None)}
        self._parts = parts
        self._notes: list[str] = []
        self._run: dict[str, object] = {**run, "parts": list(parts), "notes": self._notes}
        self._figures, self._runs = _earlier(self._data, self._facts, parts)
        if not self._runs:  # documents of another card or software do not stay either
            self.documents.unlink(missing_ok=True)
        self.stopped = False

    @property
    def figures(self) -> list[Figure]:
        """Return all figures, part by part."""
        return [figure for figures in self._figures.values() for figure in figures]

    def without_figures(self, parts: Sequence[str]) -> list[str]:
        """Return the parts without any figure: nothing was begun, or all that was begun failed."""
        measured = {figure.part for figure in self.figures if figure.error is None}
        return [part for part in parts if part not in measured]

    def put(self, part: str, figures: Sequence[Figure]) -> None:
        """Replace a part's figures."""
        if list(figures) != self._figures.get(part, []):
            self._figures[part] = list(figures)
            self.save()

    def remark(self, text: str) -> None:
        """Add a sentence on a failure."""
        self._notes.append(text)
        self.save()

    def stop(self) -> None:
        """Mark the run as stopped before its end."""
        self.stopped = True
        self.remark("stopped before its end")

    def save(self) -> None:
        """Write both files, each atomically."""
        document = {
            "facts": self._facts,
            "runs": [*self._runs, self._run],
            "figures": [
                {**asdict(figure), "verdict": figure.verdict, "ratios": _ratios(figure)}
                for figure in self.figures
            ],
        }
        _replace(self._data, json.dumps(document, indent=1) + "\n")
        _replace(self._page, self._page_text())

    @property
    def text(self) -> str:
        """Return the end of a run on the terminal: the table of its parts last."""
        found = [figure for part in self._parts for figure in self._figures.get(part, [])]
        facts = "; ".join(f"{name}: {value}" for name, value in self._facts.items())
        lines = [facts, f"all figures: {self._data} and {self._page}"]
        lines += [*self._notes, *failures(found)[:5]]
        # All rows, if they fit into a log of a few thousand characters.
        whole = table([figure for figure in found if figure.error != NO_TIME])
        short = table([figure for figure in found if is_short(figure)])
        lines += [whole if len(whole) < _MOST_CHARACTERS else short, summary(found)]
        return "\n".join(lines)

    def _page_text(self) -> str:
        found = self.figures
        lines = [f"# {self._facts.get('card') or 'a GPU'}", ""]
        lines += [f"- {name}: {value}" for name, value in self._facts.items() if name != "card"]
        for run in (*self._runs, self._run):
            lines += ["", f"{run['date']}: `{run['command']}`", ""]
            lines += [f"- {note}" for note in cast("list[str]", run["notes"])]
        lines += ["", summary(found) + ".", "", *(f"- {note}" for note in failures(found))]
        lines += ["", "| " + " | ".join(HEAD) + " |", "|" + "--|" * len(HEAD)]
        lines += ["| " + " | ".join(row_of(figure)) + " |" for figure in found]
        return "\n".join(lines) + "\n"


def _earlier(
    path: Path, facts: Mapping[str, object], parts: Sequence[str]
) -> tuple[dict[str, list[Figure]], list[dict[str, object]]]:
    """Return the other parts' figures and their runs, if they may be kept."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        known = document["facts"]
        if any(known.get(name) != facts.get(name) for name in IDENTITY):
            return {}, []
        kept = [figure_of(raw) for raw in document["figures"] if raw["part"] not in parts]
        runs = [run for run in document["runs"] if not set(run["parts"]) <= set(parts)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or not ours
        return {}, []
    figures: dict[str, list[Figure]] = {}
    for figure in kept:
        figures.setdefault(figure.part, []).append(figure)
    return figures, runs if kept else []


def _ratios(figure: Figure) -> dict[str, float | None]:
    names = [*figure.rivals, *([figure.limit_name] if figure.limit_name else [])]
    return {name: figure.ratio(name) for name in names}


def _replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
