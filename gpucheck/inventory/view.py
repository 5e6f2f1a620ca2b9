"""View of `gpucheck list`: a row for each GPU, or their topology; and the processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpucheck.drivers.host.processes import program_of
from gpucheck.inventory.capped import capped_sentences, caps_of
from gpucheck.inventory.columns import COLUMNS, CSV_COLUMNS, link_now
from gpucheck.inventory.condition import troubles
from gpucheck.inventory.model import (
    Gpu,
    GpuHolder,
    GpuProcess,
    GpuState,
    GpuTrouble,
    Inventory,
    MigInstance,
    Topology,
)
from gpucheck.inventory.unowned import is_much
from gpucheck.report.blocks import (
    Block,
    Column,
    Command,
    Gap,
    Head,
    Headline,
    Inline,
    Line,
    Row,
    Span,
    Table,
    head,
    limited,
    plain,
)
from gpucheck.report.envelope import CheckStatus, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import ABSENT, View, binary_bytes, gibibytes, ranges


class Layout(NamedTuple):
    """Columns for a terminal of at least `width` columns; the GPU's name takes the rest."""

    width: int
    columns: tuple[str, ...]
    bar: int
    gap: int = 2


BASE = ("index", "cuda_index", "name", "memory")
STATE = ("utilization_gpu_percent", "temperature_c", "power_w")
MORE = ("clock_sm_mhz", "performance_state", "processes", "pcie", "numa_node", "pci_bus_id")

#: By width alone, so that the columns of --watch stay where they are. Below the last, and where a
#: value is too wide for its row, each GPU becomes a short block.
LAYOUTS = (
    Layout(160, BASE + STATE + MORE, bar=20),
    Layout(140, BASE + STATE + MORE, bar=12),
    Layout(110, (*BASE, *STATE, "clock_sm_mhz", "pcie", "numa_node"), bar=12),
    Layout(80, (*BASE, *STATE, "pcie"), bar=8, gap=1),
    Layout(64, BASE + STATE, bar=0, gap=1),
)
BLOCK_BAR = 8
#: Columns whose values change get room for their usual widest value: they do not jump.
WIDTHS = {"utilization_gpu_percent": 4, "temperature_c": 5, "clock_sm_mhz": 8, "pcie": 8}

#: What -v adds below each row, unless the row has it: fields, and the word before each.
DETAILS = (
    ("uuid", ""),
    ("pci_bus_id", "bus"),
    ("serial", "serial"),
    ("architecture", ""),
    ("compute_capability", "compute capability"),
    ("clock_sm_mhz", "SM clock"),
    ("clock_sm_max_mhz", "of"),
    ("utilization_memory_percent", "memory load"),
    ("fan_percent", "fan"),
    ("performance_state", "state"),
    ("persistence_mode", "persistence"),
    ("compute_mode", "compute mode"),
    ("ecc_mode", "ECC"),
    ("mig", "MIG"),
    ("processes", "processes"),
    ("numa_node", "NUMA node"),
    ("cpu_affinity", "CPUs"),
)
DETAIL_INDENT = 4

#: A GPU's name is cut to fit its numbers, but never below this.
SHORTEST_NAME = 8
MAKER = "NVIDIA "

#: Share of memory in use at which the bar changes colour.
NEARLY_FULL = 0.90
WELL_FILLED = 0.70
#: An idle GPU has a few MiB in use; less than this share is shown as nothing.
SOMETHING = 0.005
#: Less load than this is idle, in percent.
IDLE_PERCENT = 5
#: From this share of its power limit on a card runs at the limit.
AT_POWER_LIMIT = 0.98

#: A command is cut to fit the rest, but never below this.
SHORTEST_COMMAND = 16
LONGEST_USER = 16
#: In a narrow terminal a command is shown on so many lines at most.
COMMAND_LINES = 3

#: So many processes that hold a card are named.
MOST_HOLDERS = 3

UNKNOWN = "?"
#: The width of a column of the matrix with its gap: "GPU63 ".
COLUMN = 6
WORDS = {
    "NV#": "NVLinks",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "one host bridge",
    "NODE": "one NUMA node",
    "SYS": "across NUMA nodes",
}

#: Warnings that the table shows at the GPU itself.
IN_ROWS = ("gpu-lost", "gpu-error")

Kinds = dict[tuple[int, int], str]


def in_table(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows; a topology has no rows of GPUs."""
    found = report.result
    return () if isinstance(found, Inventory) and found.topology is not None else IN_ROWS


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield what a list of GPUs shows."""
    inventory = _inventory(report)
    gpus = inventory.gpus
    if view.header and view.verbosity >= 0:
        yield heading(report, inventory)
    if not gpus:
        return
    yield from (Line(text, CheckStatus.WARN) for text in capped_sentences(caps_of(gpus)))
    if inventory.topology is not None:
        yield from _topology(inventory.topology, gpus, view)
        return
    if view.columns is None:
        yield from _rows_or_lines(gpus, view)
    else:
        yield from _chosen(gpus, view.columns, view)
    yield from unwell(gpus, view)
    yield from unowned(gpus)
    yield from limited([*_hidden(gpus), *_shared(gpus)], view)
    if view.processes:
        yield Gap()
        yield from _processes(gpus, view)


def headline(report: Report) -> Headline:
    """Return how many GPUs there are, and the first warning about them."""
    word, *counts = _counts(report, _inventory(report).gpus)
    statuses = {Status.OK: CheckStatus.OK, Status.WARN: CheckStatus.WARN}
    status = statuses.get(report.status, CheckStatus.FAIL)
    text = "; ".join([*counts, *(one.message for one in report.warnings[:1])])
    return Headline(text, status, word)


def rows(
    report: Report, view: View
) -> tuple[Sequence[str], list[list[str | int | float | bool | None]]]:
    """Return the heading and the rows of CSV: the document's field names and plain values."""
    names = view.columns or CSV_COLUMNS
    gpus = report.result.gpus if isinstance(report.result, Inventory) else ()
    return names, [[COLUMNS[name].value(gpu) for name in names] for gpu in gpus]


def records(result: object) -> Iterator[tuple[str, object]]:
    """Yield the lines of a list for JSON lines: the GPUs, then the links if they were asked for."""
    if isinstance(result, Inventory):
        yield from (("gpu", gpu) for gpu in result.gpus)
        if result.topology is not None:
            yield from (("link", link) for link in result.topology.links)


def _inventory(report: Report) -> Inventory:
    if not isinstance(report.result, Inventory):
        raise TypeError(type(report.result).__name__)
    return report.result


def heading(report: Report, inventory: Inventory) -> Head:
    """Return the head line: machine, driver, and how many GPUs CUDA sees."""
    cuda = report.host.cuda_driver_version
    return head(report, cuda and f"CUDA {cuda}", *_counts(report, inventory.gpus))


def _counts(report: Report, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    if not gpus and report.error is None:
        return ("no GPU matches",)
    if not gpus:
        undecided = report.exit_code is ExitCode.INCONCLUSIVE
        return ("GPUs not known" if undecided else "no GPU listed",)
    seen = sum(gpu.visible is True for gpu in gpus)
    unknown = sum(gpu.visible is None for gpu in gpus)
    visible = f"{seen} visible to CUDA" + (f", {unknown} not known" if unknown else "")
    if unknown == len(gpus):
        visible = "visible to CUDA: not known"
    return (f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s"), visible)


# ---------------------------------------------------------------------------------- the table


def _rows_or_lines(gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield a row for each GPU and MIG instance, or a few lines where a row is too narrow."""
    layout = next((item for item in LAYOUTS if item.width <= view.width), None)
    if layout is not None:
        for maker in (True, False):
            table = _table(gpus, layout, view, maker=maker)
            # Without the maker's name the last resort is a shorter name.
            if excess(table, view, cut=not maker) <= 0:
                yield table
                return
    for gpu in gpus:
        yield from _gpu_lines(gpu, view)


def _table(gpus: Sequence[Gpu], layout: Layout, view: View, *, maker: bool) -> Table:
    rows: list[Row] = []
    for gpu in gpus:
        marked = bool(_troubles(gpu))
        cells: dict[str, Inline] = {
            "index": _marked_index(gpu) if marked else str(gpu.index),
            "name": _name(gpu, maker=maker),
            "memory": _memory(gpu, layout.bar, view),
        }
        row = [cells.get(name) or _cell(name, gpu) for name in layout.columns]
        below = tuple(_details(gpu, layout.columns)) if view.verbosity > 0 else ()
        rows.append(Row(row, _style(gpu), below))
        for position, instance in enumerate(_instances(gpu)):
            cells = _instance_cells(gpu, position, instance)
            cells["memory"] = _memory(instance, layout.bar, view)
            rows.append(Row([cells.get(name, "") for name in layout.columns]))
    return Table([_column(name) for name in layout.columns], rows, gap=layout.gap)


def excess(table: Table, view: View, *, cut: bool = True) -> int:
    """Return by how many columns a table is too wide, `cut` after cutting what may be cut."""
    width = table.gap * (len(table.columns) - 1)
    for place, column in enumerate(table.columns):
        cells = (len(plain(row.cells[place])) for row in table.rows)
        natural = max(len(column.text), *cells, 1)
        width += natural if column.least is None or not cut else min(natural, column.least)
    return width - view.width


def _instances(gpu: Gpu) -> tuple[MigInstance, ...]:
    return gpu.mig.instances if gpu.state is GpuState.OK else ()


def _column(name: str) -> Column:
    if name == "memory":
        return Column("Memory")
    least = SHORTEST_NAME if name == "name" else None
    return Column(COLUMNS[name].heading, right=COLUMNS[name].right, least=least)


def _style(gpu: Gpu) -> str:
    if gpu.state is not GpuState.OK:
        return "red"
    return "dim" if gpu.visible is False else ""


def _name(gpu: Gpu, *, maker: bool = True) -> str:
    name = gpu.name or ""
    if not maker:
        name = name.removeprefix(MAKER)
    return name if gpu.state is GpuState.OK else f"{gpu.state.value.upper()} {name}".rstrip()


def _cell(name: str, gpu: Gpu) -> Inline:
    """Return a cell with room for its usual values, coloured where the value means something."""
    text = (link_now(gpu) or ABSENT) if name == "pcie" else COLUMNS[name].show(gpu)
    text = _power(gpu) if name == "power_w" else text
    text = f"{text:>{WIDTHS.get(name, 0)}}"
    color = _color(name, gpu)
    return (Span(text, color),) if color else text


def _power(gpu: Gpu) -> str:
    """Return the watts, as wide as those of the limit."""
    text = COLUMNS["power_w"].show(gpu)
    limit = "" if gpu.power_limit_w is None else f"{gpu.power_limit_w:.0f}"
    return text if text == ABSENT else f"{text:>{2 * len(limit) + 3}}"


def _color(name: str, gpu: Gpu) -> str:
    """Return the style of a reading: green in use, yellow at its limit, red beyond it."""
    if name == "utilization_gpu_percent" and gpu.utilization_gpu_percent is not None:
        return "green" if gpu.utilization_gpu_percent >= IDLE_PERCENT else "dim"
    if name == "temperature_c":
        hot = next((one.status for one in _troubles(gpu) if one.cause == "gpu-hot"), CheckStatus.OK)
        return {CheckStatus.WARN: "yellow", CheckStatus.FAIL: "red"}.get(hot, "")
    if name == "power_w" and gpu.power_w is not None and gpu.power_limit_w:
        return "yellow" if gpu.power_w >= AT_POWER_LIMIT * gpu.power_limit_w else ""
    return ""


def _instance_cells(gpu: Gpu, position: int, instance: MigInstance) -> dict[str, Inline]:
    """Return an instance's cells; its index is written as NVIDIA writes it: "0:1"."""
    return {
        "index": f"{gpu.index}:{position}",
        "cuda_index": ABSENT if instance.cuda_index is None else str(instance.cuda_index),
        "name": (Span(f"└ MIG {_profile(instance)}", "dim"),),
    }


def _profile(instance: MigInstance) -> str:
    """Return what tells instances apart: "3g.20gb" of "NVIDIA A100 MIG 3g.20gb"."""
    return (instance.name or instance.uuid or "?").rpartition("MIG ")[2]


def _memory(device: Gpu | MigInstance, bar: int, view: View) -> Inline:
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if total is None:
        return ABSENT
    space = " " if bar else ""
    if used is None:
        return f"{'':{bar}}{space}{'?':>5}/{gibibytes(total)} GiB"
    share = used / total if total else 0.0
    figures = Span(f"{space}{gibibytes(used):>5}/{gibibytes(total)} GiB")
    return (*_bar(share, bar, view), figures)


def _bar(share: float, width: int, view: View) -> tuple[Span, ...]:
    full, empty = ("█", "░") if view.unicode else ("#", "-")
    filled = min(width, max(0, round(share * width)))
    if share >= SOMETHING and filled == 0:
        filled = min(1, width)  # something is in use: an empty bar would deny it
    color = "red" if share >= NEARLY_FULL else "yellow" if share >= WELL_FILLED else "green"
    return (Span(full * filled, color), Span(empty * (width - filled), "dim"))


def _details(gpu: Gpu, shown: Sequence[str]) -> Iterator[Line]:
    """Yield the line of further facts that -v adds."""
    facts: list[str] = []
    for name, word in DETAILS:
        text = COLUMNS[name].show(gpu)
        if name in shown or text == ABSENT:
            continue
        if word == "of":
            facts[-1:] = [f"{facts[-1]} of {text}"] if "clock_sm_mhz" not in shown else []
            continue
        facts.append(f"{word} {text}" if word else text)
    if facts:
        yield Line(" · ".join(facts), indent=DETAIL_INDENT, style="dim")


# ------------------------------------------------------------------------------ the short form


#: Columns of the short form; the users of a card stand behind them.
BRIEF = ("index", "name", "memory", "utilization_gpu_percent", "temperature_c")
SHORTEST_USERS = 8
#: Of each user so many programs are named.
MOST_PROGRAMS = 2


def brief(gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield a row for each GPU: name, memory, load, temperature and who uses it."""
    if view.verbosity > 0:
        yield from _rows_or_lines(gpus, view)
        return
    whole = _brief_table(gpus, view, maker=True)
    # The maker's name goes before the users are cut.
    yield whole if excess(whole, view, cut=False) <= 0 else _brief_table(gpus, view, maker=False)


def _brief_table(gpus: Sequence[Gpu], view: View, *, maker: bool) -> Table:
    """Return the table of the short form, in which only the users may be cut."""
    whole = _table(gpus, Layout(0, BRIEF, bar=0), view, maker=maker)
    columns = [column._replace(least=None) for column in whole.columns]
    used_by: list[str] = []
    for gpu in gpus:
        used_by += [users_of(gpu), *("" for _ in _instances(gpu))]
    rows = [
        row._replace(cells=[*row.cells, users])
        for row, users in zip(whole.rows, used_by, strict=True)
    ]
    return Table([*columns, Column("Used by", least=SHORTEST_USERS)], rows, names=2)


def users_of(gpu: Gpu) -> str:
    """Return who uses a GPU and with what: "alice: python, jupyter; bob: blender"."""
    found: dict[str, dict[str, None]] = {}
    for process in gpu.processes:
        user = process.user or "unknown user"
        program = program_of(process.command) or process.name or f"PID {process.pid}"
        found.setdefault(user, {})[program] = None
    if not found:
        return UNKNOWN if "processes" in gpu.unavailable else ""
    return "; ".join(f"{user}: {_first(list(programs))}" for user, programs in found.items())


def _first(programs: Sequence[str]) -> str:
    more = f" +{len(programs) - MOST_PROGRAMS}" if len(programs) > MOST_PROGRAMS else ""
    return ", ".join(programs[:MOST_PROGRAMS]) + more


# ---------------------------------------------------------------------------- lines, by GPU


def _gpu_lines(gpu: Gpu, view: View) -> Iterator[Block]:
    """Yield a few short lines for each GPU."""
    mark = CheckStatus.WARN if _troubles(gpu) else None
    yield Line(_title(gpu), mark, style=f"bold {_style(gpu)}".strip())
    if gpu.state is not GpuState.OK:
        return
    yield Line(_memory(gpu, BLOCK_BAR, view), indent=2)
    facts = [_fact(name, gpu) for name in (*STATE, "pcie")]
    known = [fact for fact in facts if fact != ABSENT]
    if known:
        yield Line(" · ".join(known), indent=2)
    if view.verbosity > 0:
        yield from (line._replace(indent=2) for line in _details(gpu, (*BASE, *STATE, "pcie")))
    for position, instance in enumerate(gpu.mig.instances):
        cuda = ABSENT if instance.cuda_index is None else instance.cuda_index
        yield Line(f"{gpu.index}:{position} (CUDA {cuda}) MIG {_profile(instance)}", indent=2)
        yield Line(_memory(instance, BLOCK_BAR, view), indent=4)


def _fact(name: str, gpu: Gpu) -> str:
    """Return a reading that says of what it is."""
    if name == "pcie":
        return link_now(gpu) or ABSENT
    text = COLUMNS[name].show(gpu)
    return f"{text} load" if name == "utilization_gpu_percent" and text != ABSENT else text


def _title(gpu: Gpu) -> str:
    cuda = ABSENT if gpu.cuda_index is None else str(gpu.cuda_index)
    return f"GPU {gpu.index} (CUDA {cuda}) {_name(gpu)}".rstrip()


def _chosen(gpus: Sequence[Gpu], names: Sequence[str], view: View) -> Iterator[Block]:
    """Yield the requested columns, uncut, or a line for each of them, GPU by GPU."""
    columns = [Column(COLUMNS[name].heading, right=COLUMNS[name].right) for name in names]
    rows = [Row([COLUMNS[name].show(gpu) for name in names], _style(gpu)) for gpu in gpus]
    table = Table(columns, rows, gap=1)
    if excess(table, view) <= 0:
        yield table
        return
    for gpu in gpus:
        yield Line(f"GPU {gpu.index}", style=f"bold {_style(gpu)}".strip())
        for name in names:
            heading = Span(f"{COLUMNS[name].heading}: ", "dim")
            yield Line((heading, Span(COLUMNS[name].show(gpu))), indent=2)


# ---------------------------------------------------------------------------- below the table


def _troubles(gpu: Gpu) -> Sequence[GpuTrouble]:
    """Return what is wrong with a card, by its row alone where its health was not asked for."""
    return troubles(gpu, None) if gpu.troubles is None else gpu.troubles


def _marked_index(gpu: Gpu) -> Inline:
    """Return the index of a card that is not well: as wide as the others, up to GPU 99."""
    color = "red" if _troubles(gpu)[0].status is CheckStatus.FAIL else "yellow"
    return (Span("!", f"bold {color}"), Span(f"{gpu.index:>2}"))


def unwell(gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield a line for each cause that makes cards unwell, the gravest first."""
    found: dict[str, list[tuple[Gpu, GpuTrouble]]] = {}
    for gpu in gpus:
        for trouble in _troubles(gpu):
            found.setdefault(trouble.cause or trouble.summary, []).append((gpu, trouble))
    grave = sorted(found.values(), key=lambda each: each[0][1].status is not CheckStatus.FAIL)
    for concerned in grave:
        yield Line(_in_one_line(concerned), CheckStatus.WARN)
    # An error says itself what to run.
    failed = any(gpu.state is GpuState.ERROR for each in grave for gpu, _ in each)
    if grave and not failed and view.verbosity >= 0:
        yield Line("what to do: gpucheck detect", indent=2, style="dim")


def _in_one_line(concerned: Sequence[tuple[Gpu, GpuTrouble]]) -> str:
    """Return what several cards have, where their figures differ with those of the first."""
    summaries = {gpu.index: _summary(gpu, trouble) for gpu, trouble in concerned}
    summary = next(iter(summaries.values()))
    same = [index for index, each in summaries.items() if each == summary]
    others = [index for index, each in summaries.items() if each != summary]
    more = f"; {which(others)} alike" if others else ""
    return f"{which(same)}: {summary}{more}"


def unowned(gpus: Sequence[Gpu]) -> Iterator[Block]:
    """Yield a line for each explanation of memory without an owner: who holds it."""
    alike: dict[object, list[Gpu]] = {}
    for gpu in filter(is_much, gpus):
        pids = tuple(holder.pid for holder in gpu.holders or ())
        alike.setdefault((pids, gpu.unavailable.get("holders")), []).append(gpu)
    for group in alike.values():
        amount = binary_bytes(sum(gpu.memory_unaccounted_bytes or 0 for gpu in group))
        fact = f"{which(gpu.index for gpu in group)}: {amount} in use belong to no listed process"
        explained, command = _explained(group[0])
        yield Line(f"{fact}; {explained}", CheckStatus.WARN)
        if command is not None:
            yield Command(command)


def _explained(gpu: Gpu) -> tuple[str, str | None]:
    """Return who holds the memory, and the command that ends a process left over."""
    gap, holders = gpu.unavailable.get("holders"), gpu.holders or ()
    left = [holder for holder in holders if holder.end_command is not None]
    if left:
        who, held = f"{_named(left[0])}, {left[0].state},", "still has the card open. To end it:"
        if len(left) > 1:
            held = f"and {len(left) - 1} more still have the card open. To end the first:"
        return f"{who} {held}", left[0].end_command
    if holders:
        names = ", ".join(_named(holder) for holder in holders[:MOST_HOLDERS])
        more = f" and {len(holders) - MOST_HOLDERS} more" if holders[MOST_HOLDERS:] else ""
        return f"open there: {names}{more}", None
    if gap:
        return f"who holds them is not known: {gap}", None
    return "the driver holds them, or a process in another container", None


def _named(holder: GpuHolder) -> str:
    who = f"{holder.user}: " if holder.user else ""
    return f"PID {holder.pid} ({who}{program_of(holder.command) or holder.name or UNKNOWN})"


def _summary(gpu: Gpu, trouble: GpuTrouble) -> str:
    """Return what is wrong; of a narrow link also its generation, which the table has room for."""
    link = COLUMNS["pcie"].show(gpu)
    narrow = trouble.cause == "pcie-narrow" and link != ABSENT
    return f"PCIe {link}" if narrow else trouble.summary


def which(indices: Iterable[int]) -> str:
    """Return the GPUs in words: "GPU 1", "GPUs 0-3,7"."""
    found = list(indices)
    return f"GPU{'s' if len(found) > 1 else ''} {ranges(found)}"


def _by_reason(reasons: Iterable[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    """Return each reason once, with the GPUs that it concerns."""
    found: dict[str, list[int]] = {}
    for reason, index in reasons:
        found.setdefault(reason, []).append(index)
    return list(found.items())


def _hidden(gpus: Sequence[Gpu]) -> Iterator[Line]:
    """Yield a line for each reason, with the GPUs that it hides."""
    hidden = [
        (gpu.hidden_reason, gpu.index)
        for gpu in gpus
        if gpu.visible is False and gpu.hidden_reason and gpu.state is GpuState.OK
    ]
    for reason, indices in _by_reason(hidden):
        verb = "are" if len(indices) > 1 else "is"
        yield Line(f"{which(indices)} {verb} hidden from CUDA: {reason}", style="dim")


def _shared(gpus: Sequence[Gpu]) -> Iterator[Line]:
    """Yield a note on the GPUs that share the CPU's memory."""
    shared = [gpu.index for gpu in gpus if gpu.memory_source == "system"]
    if shared:
        verb = "share" if len(shared) > 1 else "shares"
        text = f"{verb} the CPU's memory; the figures are those of the whole system"
        yield Line(f"{which(shared)} {text}", style="dim")


# -------------------------------------------------------------------------------- topology


def _topology(topology: Topology, gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield the matrix in as many blocks of columns as the width needs, and its legend."""
    kinds: Kinds = {}
    for link in topology.links:
        kinds[link.from_, link.to] = kinds[link.to, link.from_] = link.kind or UNKNOWN
    whole = _matrix(kinds, gpus, gpus, places=True)
    if excess(whole, view) <= 0:
        yield whole
    else:
        yield from _matrix_parts(kinds, gpus, view)
    gaps = [link.unavailable for link in topology.links if link.kind is None and link.unavailable]
    for reason in dict.fromkeys(gaps):
        yield Line(f"{UNKNOWN}: {reason}", style="dim")
    legend = ", ".join(f"{kind} {word}" for kind, word in WORDS.items())
    yield Line(f"{legend}. Nearest first.", style="dim")


def _matrix_parts(kinds: Kinds, gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield blocks of as many columns as fit, and one block with the location of the GPUs."""
    most = max(1, view.width // COLUMN - 1)
    for start in range(0, len(gpus), most):
        yield _matrix(kinds, gpus, gpus[start : start + most])
    places = _matrix(kinds, gpus, (), places=True)
    if excess(places, view) <= 0:
        yield places
        return
    for gpu in gpus:
        numa, cpus = COLUMNS["numa_node"].show(gpu), COLUMNS["cpu_affinity"].show(gpu)
        yield Line(f"GPU{gpu.index}: NUMA {numa}, CPUs {cpus}")


def _matrix(
    kinds: Kinds, rows: Sequence[Gpu], across: Sequence[Gpu], *, places: bool = False
) -> Table:
    columns = [Column(""), *(Column(f"GPU{gpu.index}") for gpu in across)]
    if places:
        columns += [Column("NUMA", right=True), Column("CPUs")]
    found = []
    for gpu in rows:
        cells = [
            f"GPU{gpu.index}",
            *(
                "X" if other is gpu else kinds.get((gpu.index, other.index), UNKNOWN)
                for other in across
            ),
        ]
        if places:
            cells += [COLUMNS["numa_node"].show(gpu), COLUMNS["cpu_affinity"].show(gpu)]
        found.append(Row(cells))
    return Table(columns, found, gap=1)


# ------------------------------------------------------------------------------- processes


def _processes(gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield a table of the processes, or short lines for each where that is too wide."""
    found = [(gpu, process) for gpu in gpus for process in gpu.processes]
    notes = [*_unlisted(gpus), *_foreign(found)]
    if not found:
        silent = any(gpu.state is not GpuState.OK for gpu in gpus)
        nobody = f"No process uses {'the GPUs that answer' if silent else 'these GPUs'}."
        yield from notes or [Line(nobody)]
        return
    table = _process_table(found)
    if excess(table, view) <= 0:
        yield table
    else:
        yield from _process_lines(found, view)
    yield from limited(notes, view)


def _process_table(found: Sequence[tuple[Gpu, GpuProcess]]) -> Table:
    columns = [
        Column("GPU", right=True),
        Column("PID", right=True),
        Column("Type"),
        Column("User"),
        Column("Memory", right=True),
        Column("Command", least=SHORTEST_COMMAND),
    ]
    rows = [[*_facts(gpu, process), _command(process)] for gpu, process in found]
    if any(process.utilization_sm_percent is not None for _, process in found):
        columns.insert(-1, Column("SM", right=True))
        for row, (_, process) in zip(rows, found, strict=True):
            row.insert(-1, f"{_load(process):>{WIDTHS['utilization_gpu_percent']}}")
    return Table(columns, [Row(row) for row in rows], gap=1)


def _facts(gpu: Gpu, process: GpuProcess) -> tuple[str, ...]:
    """Return the cells on location, type, owner and usage."""
    used = process.memory_used_bytes
    user = process.user or ABSENT
    return (
        _place(gpu, process),
        str(process.pid),
        process.type,
        user if len(user) <= LONGEST_USER else f"{user[: LONGEST_USER - 1]}…",
        ABSENT if used is None else binary_bytes(used, digits=0),
    )


def _place(gpu: Gpu, process: GpuProcess) -> str:
    """Return the GPU's index, with the MIG instance's as NVIDIA writes it: "0:1"."""
    for position, instance in enumerate(gpu.mig.instances):
        if instance.uuid is not None and instance.uuid == process.mig_uuid:
            return f"{gpu.index}:{position}"
    return str(gpu.index)


def _load(process: GpuProcess) -> str:
    load = process.utilization_sm_percent
    return ABSENT if load is None else f"{load}%"


def _command(process: GpuProcess) -> str:
    return process.command or process.name or _unknown_command(process.namespace)


def _unknown_command(namespace: str) -> str:
    if namespace == "own":
        return "(not in /proc)"
    return "(in another PID namespace)" if namespace == "other" else "(not known)"


def _process_lines(found: Sequence[tuple[Gpu, GpuProcess]], view: View) -> Iterator[Block]:
    for gpu, process in found:
        place, pid, *facts = _facts(gpu, process)
        known = [f"GPU {place}", f"PID {pid}", *(fact for fact in facts if fact != ABSENT)]
        if process.utilization_sm_percent is not None:
            known.append(f"SM {_load(process)}")
        yield Line(" · ".join(known))
        command, most = _command(process), COMMAND_LINES * (view.width - 2) - 1
        yield Line(command if len(command) <= most else f"{command[:most]}…", indent=2)


def _unlisted(gpus: Sequence[Gpu]) -> Iterator[Line]:
    """Yield a note where processes could not be listed: an empty list would look idle."""
    gaps = [
        (gpu.unavailable["processes"], gpu.index)
        for gpu in gpus
        if "processes" in gpu.unavailable and gpu.state is GpuState.OK
    ]
    for reason, indices in _by_reason(gaps):
        yield Line(f"The processes of {which(indices)} are not all known: {reason}", style="dim")


def _foreign(found: Sequence[tuple[Gpu, GpuProcess]]) -> Iterator[Line]:
    if any(process.namespace == "other" for _, process in found):
        yield Line(
            "Some PIDs belong to another PID namespace (the host's, seen from a container):"
            " only there can you see what they are.",
            style="dim",
        )
