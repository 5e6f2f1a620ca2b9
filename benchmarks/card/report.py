"""What a card's measurement leaves: a JSON document, a page for people, and a table."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.card.figures import NO_TIME, Figure

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"))
_HEAD = ("figure", "ours", "best rival", "ours/rival", "limit", "of it", "verdict")


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
        shown += f"; {', '.join(figure.failures)} failed"
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
        text_of(figure.limit, figure.unit),
        share,
        verdict or ("right" if figure.verified else ""),
    )


def table(figures: Sequence[Figure]) -> str:
    """Return the figures in columns."""
    rows = [_HEAD, *(row_of(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def summary(figures: Sequence[Figure]) -> str:
    """Return one sentence on how many bars were reached."""
    count = {
        word: sum(figure.verdict == word for figure in figures)
        for word in ("ok", "below", "wrong", "half", "no figure")
    }
    text = f"{count['ok']} at their bar, {count['below']} below, {count['wrong']} wrong"
    if count["half"]:
        text += f", {count['half']} without what they are held against"
    late = sum(figure.error == NO_TIME for figure in figures)
    text += f", {count['no figure'] - late} failed"
    return text + (f", {late} not begun in time" if late else "")


def is_short(figure: Figure) -> bool:
    """Return whether a figure belongs into the short table: what has a bar, or is no good."""
    if figure.error == NO_TIME:
        return False
    if figure.verdict in ("wrong", "below", "no figure") or figure.bars:
        return True
    return figure.part not in ("variants", "bandwidth", "matmul") or figure.name.endswith("best")


def failures(figures: Sequence[Figure]) -> list[str]:
    """Return why rivals have no value, each reason once."""
    found = {
        f"{name} failed ({figure.part}: {figure.name}): {why}"
        for figure in figures
        for name, why in figure.failures.items()
    }
    return sorted(found)


def slug(name: str) -> str:
    """Return a card's name as a file name: `nvidia-h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gpu"


def write(
    folder: Path, facts: Mapping[str, object], figures: Sequence[Figure], notes: Sequence[str]
) -> tuple[Path, Path]:
    """Write `<card>.json` and `<card>.md` and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = slug(str(facts.get("card") or "gpu"))
    document = {
        "facts": dict(facts),
        "notes": list(notes),
        "figures": [
            {**asdict(figure), "verdict": figure.verdict, "ratios": _ratios(figure)}
            for figure in figures
        ],
    }
    data, page = folder / f"{stem}.json", folder / f"{stem}.md"
    data.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    page.write_text(_page(facts, figures, notes), encoding="utf-8")
    return data, page


def _ratios(figure: Figure) -> dict[str, float | None]:
    names = [*figure.rivals, *([figure.limit_name] if figure.limit_name else [])]
    return {name: figure.ratio(name) for name in names}


def _page(facts: Mapping[str, object], figures: Sequence[Figure], notes: Sequence[str]) -> str:
    lines = [f"# {facts.get('card') or 'a GPU'}", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items() if name != "card"]
    lines += ["", summary(figures) + ".", ""]
    lines += [f"- {note}" for note in (*notes, *failures(figures))]
    lines += ["", "| " + " | ".join(_HEAD) + " |", "|" + "--|" * len(_HEAD)]
    lines += ["| " + " | ".join(row_of(figure)) + " |" for figure in figures]
    return "\n".join(lines) + "\n"
