"""Text for people: display settings, safe outside text, amounts, durations, rates and ranges."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gpucheck.report.envelope import Report

T = TypeVar("T")
K = TypeVar("K")


class View(NamedTuple):
    """Display settings of a report. Nothing here changes the results.

    `source` is what --from named, an example or a file. `saved` is what is said of a document that
    is shown again.

    `chart_remedy` is how to get what draws charts, if it is missing: then a page has none.

    `width` is in columns; `indented` spreads JSON over lines; `color` and `unicode` say what the
    terminal can show; `verbosity` is -1 (quiet), 0 or more; `columns` chooses and orders the
    columns of a list, None means by width.
    """

    width: int = 80
    color: bool = False
    unicode: bool = True
    verbosity: int = 0
    columns: tuple[str, ...] | None = None
    processes: bool = False
    header: bool = True
    indented: bool = False
    source: str | None = None
    chart_remedy: tuple[str, ...] = ()
    saved: str | None = None


Renderer = Callable[[Report, View], str]


def exports(environment: Mapping[str, str]) -> str:
    """Return an `export` line of a shell for each variable."""
    import shlex

    return "".join(f"export {name}={shlex.quote(text)}\n" for name, text in environment.items())


def example_mark(source: str | None) -> str | None:
    """Return the line that marks an answer from an example recording; None for any other."""
    if source is None or not source.startswith("example:"):
        return None
    return f"{source.removeprefix('example:')}: recorded example, not this machine"


def origin(view: View) -> str | None:
    """Return the line above a report that is not about this machine now: recorded, or saved."""
    return example_mark(view.source) or view.saved


#: A command of ours at the end of a text that can answer from a recording.
_ANSWERS = re.compile(
    r"\bgpucheck (?:detect|list|place|memlimit)(?!.* --(?:from|explain|) )"
    r"(?: -[\w-]+(?:[ =][^\s-]\S*)?| /\S+| \d\S*)*$"
)


def step_on_recording(text: str, source: str | None) -> str:
    """Return a step whose command, at its end, answers from the same recording as the report."""
    if source is None or not _ANSWERS.search(text.rstrip(".")):
        return text
    import shlex

    end = text[len(text.rstrip(".")) :]
    return f"{text.rstrip('.')} --from {shlex.quote(source)}{end}"


#: Options that our steps name with a value; after others the next word is prose.
_TAKES_A_VALUE = (
    "from|save|baseline|explain|profile|board|wheel|framework|log|pid|only|python|allow-difference"
    "|(?:budget|count|processes|size)(?= [0-9])"
)
#: What no line is broken in: a number with its unit, a GPU with its number, and a command of ours
#: with its options.
_WHOLE = (
    r"\d (?:%|(?:s|ms|µs|min|h|W|MHz|°C|C|[KMGT]i?B|[GT](?:FL)?OP/s|[MGT]B/s)\b)"
    r"|\bgpucheck (?:detect|list|place|bench|compare|profile|memlimit|snapshot|show|report|fleet)\b"
    rf"(?: --(?:{_TAKES_A_VALUE}) (?:'[^']*'|[^\s']\S*)| --[\w-]+)*"
    r"|--allow-difference \S+|\b(?:GPUs?|nvidia-smi) \d[\d,-]*"
)
#: Stands for a blank in it while a text is wrapped: printable texts have none.
_BLANK = "\ue000"


def protect_blanks(text: str, width: int) -> str:
    """Return a text that can be wrapped at its blanks: amounts and commands have none left.

    What is wider than the line keeps its own. `restore_blanks` gives the blanks back.
    """

    def held(match: re.Match[str]) -> str:
        return match[0].replace(" ", _BLANK) if len(match[0]) <= width else match[0]

    return re.sub(_WHOLE, held, text)  # compiled only where a text is wrapped


def restore_blanks(text: str) -> str:
    """Return a part of what `protect_blanks` gave, as it was."""
    return text.replace(_BLANK, " ")


#: So many marks (accents) stand on a letter at most in any script that names are written in.
_MOST_MARKS = 4


def printable(text: str, most: int | None = None, *, unicode: bool = True) -> str:
    """Return outside text with control characters visible, so that no name controls a terminal.

    So are marks beyond those that a letter can have: piled up they would cover the lines around.
    At most `most` characters are left of it. Without `unicode` it is ASCII: typographic characters
    by likenesses, others escaped.
    """
    if most is not None and len(text) > most:
        text = f"{text[: most - 1]}…"
    if not (text.isascii() and text.isprintable()):
        text = "".join(_visible(text))
    if not unicode:
        text = text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
    return text


def _visible(text: str) -> Iterator[str]:
    """Yield the characters of a text, escaped where they cannot be shown."""
    from unicodedata import category  # only for other letters

    marks = 0
    for char in text:
        marks = marks + 1 if category(char).startswith("M") else 0
        plain = char.isprintable() and marks <= _MOST_MARKS
        yield char if plain else char.encode("unicode_escape").decode("ascii")


def quoted(text: str, most: int = 80) -> str:
    """Return outside text as a literal, in quotes: what a message says of a mistake."""
    return repr(text if len(text) <= most else f"{text[: most - 3]}...")


def shown(text: str, most: int = 200) -> str:
    """Return outside text as `quoted` has it, without the quotes."""
    return quoted(text, most)[1:-1]


#: What Markdown would act on: marks anywhere, addresses, and what begins a list at the start.
_MARKDOWN = re.compile(
    r"[\\`*_{}\[\]<>#|~$&@]|(?<=[A-Za-z]):(?=//)|(?<=[Ww]{3})\.|^[-+=](?=\s)|(?<=^\d)[.)](?=\s)"
)


def as_markdown(text: str, most: int | None = None) -> str:
    """Return outside text as Markdown that shows exactly this text, in one line."""
    return _MARKDOWN.sub(r"\\\g<0>", printable(text, most))


#: A name that is offered is at least so much like the word.
_LEAST_SIMILARITY = 0.65


def did_you_mean(word: str, known: Iterable[str], *, most: int = 1) -> str:
    """Return "Did you mean 'x'?" for a word like known ones or within them, else an empty text.

    Every message about an unknown name asks by this function.
    """
    import difflib  # only a mistake needs it

    # The dashes of options are like each other, and say nothing.
    by_lower = {name.lower().replace("_", "-").lstrip("-"): str(name) for name in known}
    lower = word[:100].lower().replace("_", "-").lstrip("-")
    near = [name for name in by_lower if len(lower) > 2 and lower in name]
    near = near or difflib.get_close_matches(lower, by_lower, most, _LEAST_SIMILARITY)
    names = " or ".join(repr(by_lower[name]) for name in near[:most])
    return f"Did you mean {names}?" if names else ""


#: ASCII for typographic characters, for terminals that have nothing else.
_ASCII = str.maketrans(
    {"…": "~", "·": "|", "└": "`", "├": "|", "─": "-", "×": "x", "±": "+-", "→": ">", "–": "-"}
    | {"°": "", "µ": "u", "✓": "ok", "✗": "FAIL"}
)


#: How a missing reading is shown in a table.
ABSENT = "-"


def count_of(number: int, noun: str = "GPU") -> str:
    """Return "1 GPU" or "8 GPUs", "1 process" or "8 processes"."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


#: Frameworks as people write them, by their names in documents and options.
_FRAMEWORKS = {
    "pytorch": "PyTorch", "tensorflow": "TensorFlow", "jax": "JAX", "cupy": "CuPy",
    "numba": "Numba", "numpy": "NumPy", "onnxruntime": "ONNX Runtime",
    "ggml": "ggml (llama.cpp, ollama)",
}  # fmt: skip


#: Other names that people type, which every option that names a framework takes.
FRAMEWORK_ALIASES = {"torch": "pytorch", "tf": "tensorflow", "onnx": "onnxruntime"}


def framework_name(text: str) -> str:
    """Return a framework's name in documents and options, from it or an alias in any case."""
    lower = text.strip().lower()
    return FRAMEWORK_ALIASES.get(lower, lower)


def framework_module(name: str) -> str:
    """Return the module that a framework is imported as."""
    return "torch" if name == "pytorch" else name


def framework_title(name: str) -> str:
    """Return a framework's name as people write it; an unknown one as it is."""
    return _FRAMEWORKS.get(name, name)


_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def ranges(numbers: Iterable[int], digits: int = 0) -> str:
    """Return numbers as ranges, of so many digits at least: 0, 1, 2, 5 -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ends = (dict.fromkeys((run[0], run[-1])) for run in runs)
    return ",".join("-".join(f"{number:0{digits}d}" for number in pair) for pair in ends)


def name_gpus(indices: Iterable[int]) -> str:
    """Return the GPUs in words: "GPU 1", "GPUs 0-3,7"."""
    numbers = set(indices)
    return f"GPU{'s' if len(numbers) > 1 else ''} {ranges(numbers)}"


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return items that are alike together, in the order of the first of each: to say it once."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def binary_bytes(value: int, *, digits: int = 1) -> str:
    """Return a byte count with a binary unit: 85899345920 -> "80.0 GiB"."""
    size = float(value)
    for unit in _BINARY[:-1]:
        # As it will be shown: 1023.99 KiB reads 1.0 MiB, not 1024.0 KiB.
        if abs(round(size, digits)) < 1024:
            return f"{value} B" if unit == "B" else f"{size:.{digits}f} {unit}"
        size /= 1024
    return f"{size:.{digits}f} {_BINARY[-1]}"


def percent_text(percent: float, gap: str = "") -> str:
    """Return a percentage without decimals."""
    return f"<1{gap}%" if percent < 0.5 else f"{percent:.0f}{gap}%"


def format_gib(value: int) -> str:
    """Return a byte count with one decimal in GiB, however small: "0.3 GiB"."""
    return f"{value / 1024**3:.1f} GiB"


def gibibytes(value: int) -> str:
    """Return a byte count in GiB without the unit, in at most five characters."""
    size = value / 1024**3
    return f"{size:.1f}" if size < 999.95 else f"{size:.0f}"


def duration(seconds: float) -> str:
    """Return seconds with three digits and a fitting unit: 0.00831 -> "8.31 ms"."""
    units = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
    return _scaled(seconds, units)


def elapsed(seconds: float) -> str:
    """Return a time that has passed, in whole units of which there are at least two: "3 h"."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def rate(value: float, unit: str) -> str:
    """Return work per second with three digits and a prefix: 2.07e11 FLOP/s -> "207 GFLOP/s"."""
    short = "img/s" if unit == "image/s" else unit
    prefixes = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
    return _scaled(value, tuple((scale, f"{prefix}{short}") for scale, prefix in prefixes))


def two_digits(factor: float) -> str:
    """Return a positive factor with two significant digits: 1.84 -> "1.8", 184.2 -> "180"."""
    return f"{factor:.1f}" if factor < 9.95 else f"{float(f'{factor:.2g}'):.0f}"


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return the value in the largest unit of which it holds at least one, else in the smallest."""
    # 0.9995 and not 1: 999.7 would be shown as "1000" of the smaller unit.
    fitting = [(scale, unit) for scale, unit in units if value >= 0.9995 * scale]
    scale, unit = fitting[0] if fitting else units[-1]
    number = value / scale
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"
