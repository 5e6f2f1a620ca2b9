"""View of `gpucheck list`: a row for each GPU, or their topology; and the processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from gpucheck.drivers.host.processes import program_of
from gpucheck.inventory.columns import COLUMNS, CSV_COLUMNS, link_now
from gpucheck.inventory.condition import troubles
from gpucheck.inventory.memory import capped_sentences, caps_of, is_much
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
from gpucheck.report.blocks import (
    Block,
    Column,
    Command,
    Fitting,
    Gap,
    Headline,
    Inline,
    Line,
    Row,
    Span,
    Table,
    head,
    limited,
)
from gpucheck.report.envelope import CheckStatus, Report, Status
from gpucheck.report.errors import ExitCode
from gpucheck.report.text import (
    ABSENT,
    View,
    binary_bytes,
    count_of,
    elapsed,
    gibibytes,
    group_by,
    name_gpus,
)

NARROW = (
    *("index", "cuda_index", "name", "memory"),
    *("utilization_gpu_percent", "temperature_c", "power_w", "pcie"),
)
MEDIUM = (*NARROW, "clock_sm_mhz", "numa_node")
WIDE = (*MEDIUM, "performance_state", "processes", "pci_bus_id")
#: Columns of the short form: who uses a card stands behind its state.
BRIEF = ("index", "name", "memory", "utilization_gpu_percent", "temperature_c", "users")
#: How far a column may be cut where a table is too wide.
SHORTEST = {"name": 8, "users": 8}
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
    ("clock_sm_max_mhz", "SM clock at most"),
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

#: All cards have the maker's name, and a row has no room for it.
MAKER = "NVIDIA "
#: From this share of memory in use on, what else is allocated there may fail; less is normal use.
NEARLY_FULL = 0.90
#: Less load than this is idle, in percent.
IDLE_PERCENT = 5
#: From this share of its power limit on a card runs at the limit.
AT_POWER_LIMIT = 0.98

#: Of each user so many programs are named.
MOST_PROGRAMS = 2
#: So many processes that hold a card are named.
MOST_HOLDERS = 3
#: A command is cut to fit the rest, but never below this, and it is never longer than that.
SHORTEST_COMMAND, LONGEST_COMMAND = 16, 200

UNKNOWN = "?"
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


def shown_codes(report: Report) -> Collection[str]:
    """Return the codes of the messages that the table shows; a topology has no rows of GPUs."""
    inventory = report.result
    return () if isinstance(inventory, Inventory) and inventory.topology is not None else IN_ROWS


def blocks(report: Report, view: View) -> Iterator[Block]:
    """Yield the blocks of a list of GPUs."""
    inventory = report.result_as(Inventory)
    gpus = inventory.gpus
    if view.header and view.verbosity >= 0:
        yield head(report, *_counts(report, gpus))
    if not gpus:
        return
    yield from (Line(text, CheckStatus.WARN) for text in capped_sentences(caps_of(gpus)))
    if inventory.topology is not None:
        yield from _topology(inventory.topology, gpus)
        return
    yield _all_fields(gpus, view) if view.columns is None else _chosen_fields(gpus, view.columns)
    yield from list_troubles(gpus, view)
    yield from unowned(gpus)
    yield from limited([*_hidden(gpus), *_shared(gpus)], view)
    if view.processes:
        yield Gap()
        yield from _processes(gpus, view)


def headline(report: Report) -> Headline:
    """Return how many GPUs there are, and the first warning about them."""
    word, *counts = _counts(report, report.result_as(Inventory).gpus)
    statuses = {Status.OK: CheckStatus.OK, Status.WARN: CheckStatus.WARN}
    status = statuses.get(report.status, CheckStatus.FAIL)
    text = "; ".join([*counts, *(notice.message for notice in report.warnings[:1])])
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


def _counts(report: Report, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Return how many GPUs there are, and how many of them CUDA sees."""
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
    return (count_of(len(gpus)), visible)


# ---------------------------------------------------------------------------------- the table


def _all_fields(gpus: Sequence[Gpu], view: View) -> Fitting:
    """Return the rows of the GPUs and MIG instances, with as many columns as fit."""
    wide, medium, narrow = (_table(gpus, names, view) for names in (WIDE, MEDIUM, NARROW))
    return Fitting((wide, medium, narrow, _table(gpus, NARROW, view, cut="name", gap=1)))


def _chosen_fields(gpus: Sequence[Gpu], names: Sequence[str]) -> Table:
    """Return the requested columns, uncut."""
    columns = [Column(COLUMNS[name].heading, right=COLUMNS[name].right) for name in names]
    rows = [Row([COLUMNS[name].show(gpu) for name in names], _style(gpu)) for gpu in gpus]
    return Table(columns, rows, gap=1)


def brief(gpus: Sequence[Gpu], view: View) -> Block:
    """Return a row for each GPU: name, memory, load, temperature and who uses it."""
    if view.verbosity > 0:
        return _all_fields(gpus, view)
    return _table(gpus, BRIEF, view, cut="users")


def _table(
    gpus: Sequence[Gpu], names: Sequence[str], view: View, *, cut: str = "", gap: int = 2
) -> Table:
    """Return a row for each GPU and its instances; only the column `cut` may be cut."""
    rows: list[Row] = []
    for gpu in gpus:
        below = tuple(_details(gpu, names)) if view.verbosity > 0 else ()
        rows.append(Row([_cell(name, gpu) for name in names], _style(gpu), below))
        for position, instance in enumerate(_instances(gpu)):
            cells = _instance_cells(gpu, position, instance)
            rows.append(Row([cells.get(name, "") for name in names]))
    columns = [_column(name, SHORTEST[name] if name == cut else None) for name in names]
    return Table(columns, rows, gap=gap, names=names.index("name") + 1)


def _instances(gpu: Gpu) -> tuple[MigInstance, ...]:
    return gpu.mig.instances if gpu.state is GpuState.OK else ()


def _column(name: str, least: int | None) -> Column:
    if name not in COLUMNS:
        return Column("Memory", right=True) if name == "memory" else Column("Used by", least=least)
    return Column(COLUMNS[name].heading, right=COLUMNS[name].right, least=least)


def _style(gpu: Gpu) -> str:
    if gpu.state is not GpuState.OK:
        return "red"
    return "dim" if gpu.visible is False else ""


def _cell(name: str, gpu: Gpu) -> Inline:
    """Return a cell with room for its usual values, coloured where the value means something."""
    if name in CELLS:
        return CELLS[name](gpu)
    room = WIDTHS.get(name, 0)
    if name == "power_w" and gpu.power_limit_w is not None:
        room = len(f"{gpu.power_limit_w:.0f}/{gpu.power_limit_w:.0f} W")
    text = f"{COLUMNS[name].show(gpu):>{room}}"
    color = _color(name, gpu)
    return (Span(text, color),) if color else text


def _index(gpu: Gpu) -> Inline:
    """Return a card's index, marked if the card is unhealthy."""
    wrong = _troubles(gpu)
    if not wrong:
        return str(gpu.index)
    color = "red" if wrong[0].status is CheckStatus.FAIL else "yellow"
    return (Span(f"!{gpu.index}", f"bold {color}"),)


def _name(gpu: Gpu) -> str:
    name = (gpu.name or "").removeprefix(MAKER)
    return name if gpu.state is GpuState.OK else f"{gpu.state.value.upper()} {name}".rstrip()


def _memory(device: Gpu | MigInstance) -> Inline:
    """Return the figures, coloured where the memory is nearly full."""
    used, total = device.memory_used_bytes, device.memory_total_bytes
    if total is None:
        return ABSENT
    whole = gibibytes(total)
    text = f"{UNKNOWN if used is None else gibibytes(used):>{len(whole)}}/{whole} GiB"
    share = (used or 0) / total if total else 0.0
    return (Span(text, "yellow"),) if share >= NEARLY_FULL else text


def _link(gpu: Gpu) -> str:
    return f"{link_now(gpu) or ABSENT:>{WIDTHS['pcie']}}"


def _users(gpu: Gpu) -> str:
    """Return who uses a GPU itself, and not one of its instances, which have rows of their own."""
    if "processes" in gpu.unavailable and not gpu.processes:
        return UNKNOWN
    instances = {instance.uuid for instance in _instances(gpu) if instance.uuid is not None}
    return _programs_by_user(
        process for process in gpu.processes if process.mig_uuid not in instances
    )


def _programs_by_user(processes: Iterable[GpuProcess]) -> str:
    """Return who uses a device and with what: "alice: python, jupyter; bob: blender"."""
    users = group_by(processes, lambda process: process.user or "unknown user")
    return "; ".join(f"{user}: {_programs(alike)}" for user, alike in users.items())


def _programs(processes: Sequence[GpuProcess]) -> str:
    names = dict.fromkeys(
        program_of(process.command) or process.name or f"PID {process.pid}" for process in processes
    )
    more = f" +{len(names) - MOST_PROGRAMS}" if len(names) > MOST_PROGRAMS else ""
    return ", ".join([*names][:MOST_PROGRAMS]) + more


#: Cells that are not simply what their column shows.
CELLS: dict[str, Callable[[Gpu], Inline]] = {
    "index": _index,
    "name": _name,
    "memory": _memory,
    "pcie": _link,
    "users": _users,
}


def _color(name: str, gpu: Gpu) -> str:
    """Return the style of a reading: green in use, yellow at its limit, red beyond it."""
    if name == "utilization_gpu_percent" and gpu.utilization_gpu_percent is not None:
        return "green" if gpu.utilization_gpu_percent >= IDLE_PERCENT else "dim"
    if name == "temperature_c":
        hot = next(
            (trouble.status for trouble in _troubles(gpu) if trouble.cause == "gpu-hot"),
            CheckStatus.OK,
        )
        return {CheckStatus.WARN: "yellow", CheckStatus.FAIL: "red"}.get(hot, "")
    if name == "power_w" and gpu.power_w is not None and gpu.power_limit_w:
        return "yellow" if gpu.power_w >= AT_POWER_LIMIT * gpu.power_limit_w else ""
    return ""


def _instance_cells(gpu: Gpu, position: int, instance: MigInstance) -> dict[str, Inline]:
    """Return an instance's cells; its index is written as NVIDIA writes it: "0:1"."""
    # What tells instances apart: "3g.20gb" of "NVIDIA A100 MIG 3g.20gb".
    profile = (instance.name or instance.uuid or UNKNOWN).rpartition("MIG ")[2]
    own = [
        process
        for process in gpu.processes
        if process.mig_uuid and process.mig_uuid == instance.uuid
    ]
    return {
        "index": f"{gpu.index}:{position}",
        "cuda_index": ABSENT if instance.cuda_index is None else str(instance.cuda_index),
        "name": (Span(f"└ MIG {profile}", "dim"),),
        "memory": _memory(instance),
        "users": _programs_by_user(own),
    }


def _details(gpu: Gpu, shown: Sequence[str]) -> Iterator[Line]:
    """Yield the line of further facts that -v adds."""
    facts = [
        f"{word} {text}".strip()
        for name, word in DETAILS
        if name not in shown and (text := COLUMNS[name].show(gpu)) != ABSENT
    ]
    if facts:
        yield Line(" · ".join(facts), indent=4, style="dim")


# ---------------------------------------------------------------------------- below the table


def _troubles(gpu: Gpu) -> Sequence[GpuTrouble]:
    """Return a card's troubles, by its row alone where its health was not asked for."""
    return troubles(gpu, None) if gpu.troubles is None else gpu.troubles


def list_troubles(gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield a line for each cause that makes cards unhealthy, the gravest first."""
    pairs = [(gpu, trouble) for gpu in gpus for trouble in _troubles(gpu)]
    causes = group_by(pairs, lambda pair: pair[1].cause or pair[1].summary).values()
    for concerned in sorted(causes, key=lambda pair: pair[0][1].status is not CheckStatus.FAIL):
        yield Line(_join_concerned(concerned), CheckStatus.WARN)
    # An error says itself what to run.
    failed = any(gpu.state is GpuState.ERROR for gpu, _ in pairs)
    if pairs and not failed and view.verbosity >= 0:
        yield Line("what to do: gpucheck detect", indent=2, style="dim")


def _join_concerned(concerned: Sequence[tuple[Gpu, GpuTrouble]]) -> str:
    """Return a trouble of several cards; where their values differ, with those of the first."""
    (summary, same), *unlike = group_by(concerned, lambda pair: pair[1].summary).items()
    others = [gpu.index for _, pairs in unlike for gpu, _ in pairs]
    more = f"; {name_gpus(others)} alike" if others else ""
    return f"{name_gpus(gpu.index for gpu, _ in same)}: {summary}{more}"


def unowned(gpus: Sequence[Gpu]) -> Iterator[Block]:
    """Yield a line for each explanation of memory without an owner: who holds it."""
    alike = group_by(
        filter(is_much, gpus),
        lambda gpu: (
            tuple(holder.pid for holder in gpu.holders or ()),
            gpu.unavailable.get("holders"),
        ),
    )
    for group in alike.values():
        amount = binary_bytes(sum(gpu.memory_unaccounted_bytes or 0 for gpu in group))
        which = name_gpus(gpu.index for gpu in group)
        explained, command = _explained(group[0])
        fact = f"{which}: {amount} in use belong to no listed process; {explained}"
        yield Line(fact, CheckStatus.WARN)
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


def _hidden(gpus: Sequence[Gpu]) -> Iterator[Line]:
    """Yield a line for each reason, with the GPUs that it hides."""
    hidden = (
        gpu
        for gpu in gpus
        if gpu.visible is False and gpu.hidden_reason and gpu.state is GpuState.OK
    )
    for reason, alike in group_by(hidden, lambda gpu: gpu.hidden_reason).items():
        verb = "are" if len(alike) > 1 else "is"
        which = name_gpus(gpu.index for gpu in alike)
        yield Line(f"{which} {verb} hidden from CUDA: {reason}", style="dim")


def _shared(gpus: Sequence[Gpu]) -> Iterator[Line]:
    """Yield a note on the GPUs that share the CPU's memory."""
    shared = [gpu.index for gpu in gpus if gpu.memory_source == "system"]
    if shared:
        verb = "share" if len(shared) > 1 else "shares"
        text = f"{verb} the CPU's memory; the figures are those of the whole system"
        yield Line(f"{name_gpus(shared)} {text}", style="dim")


# -------------------------------------------------------------------------------- topology


def _topology(topology: Topology, gpus: Sequence[Gpu]) -> Iterator[Block]:
    """Yield the matrix, with the location of each GPU, and its legend."""
    kinds: dict[tuple[int, int], str] = {}
    for link in topology.links:
        kinds[link.from_, link.to] = kinds[link.to, link.from_] = link.kind or UNKNOWN
    columns = [Column(""), *(Column(f"GPU{gpu.index}") for gpu in gpus)]
    columns += [Column("NUMA", right=True), Column("CPUs")]
    rows = []
    for gpu in gpus:
        cells = [kinds.get((gpu.index, other.index), UNKNOWN) for other in gpus]
        cells[gpus.index(gpu)] = "X"
        place = (COLUMNS[name].show(gpu) for name in ("numa_node", "cpu_affinity"))
        rows.append(Row([f"GPU{gpu.index}", *cells, *place]))
    yield Table(columns, rows, gap=1)
    gaps = [link.unavailable for link in topology.links if link.kind is None and link.unavailable]
    for reason in dict.fromkeys(gaps):
        yield Line(f"{UNKNOWN}: {reason}", style="dim")
    legend = ", ".join(f"{kind} {word}" for kind, word in WORDS.items())
    yield Line(f"{legend}. Nearest first.", style="dim")


# ------------------------------------------------------------------------------- processes


def _processes(gpus: Sequence[Gpu], view: View) -> Iterator[Block]:
    """Yield a row for each process, and what is not known of them."""
    pairs = [(gpu, process) for gpu in gpus for process in gpu.processes]
    notes = [*_unlisted(gpus), *_foreign(pairs)]
    if pairs:
        yield _process_table(pairs)
        yield from _sums([process for _, process in pairs])
    elif not notes:
        silent = any(gpu.state is not GpuState.OK for gpu in gpus)
        yield Line(f"No process uses {'the GPUs that answer' if silent else 'these GPUs'}.")
    yield from limited(notes, view)


def _sums(processes: Sequence[GpuProcess]) -> Iterator[Line]:
    """Yield the sum of each user's memory, if a user has several processes."""
    by_user = group_by(processes, lambda process: process.user)
    known = {user: alike for user, alike in by_user.items() if user is not None}
    if all(len(alike) == 1 for alike in known.values()):
        return
    sums = (
        f"{user} {_sum(process.memory_used_bytes for process in alike)} in"
        f" {count_of(len({process.pid for process in alike}), 'process')}"
        for user, alike in known.items()
    )
    yield Line(f"By user: {', '.join(sums)}.", style="dim")


def _sum(sizes: Iterable[int | None]) -> str:
    """Return the sum of the sizes that are known, and whether it may be more."""
    known = list(sizes)
    least = "at least " if None in known else ""
    return f"{least}{binary_bytes(sum(filter(None, known)))}"


def _process_table(pairs: Sequence[tuple[Gpu, GpuProcess]]) -> Table:
    loads = any(process.utilization_sm_percent is not None for _, process in pairs)
    shown = [column for column in PROCESS_COLUMNS if loads or column[0].text != "SM"]
    rows = [Row([cell(gpu, process) for _, cell in shown]) for gpu, process in pairs]
    return Table([column for column, _ in shown], rows, gap=1, names=2)


def _place(gpu: Gpu, process: GpuProcess) -> str:
    """Return the GPU's index, with the MIG instance's as NVIDIA writes it: "0:1"."""
    for position, instance in enumerate(gpu.mig.instances):
        if instance.uuid is not None and instance.uuid == process.mig_uuid:
            return f"{gpu.index}:{position}"
    return str(gpu.index)


def _age(gpu: Gpu, process: GpuProcess) -> str:
    return ABSENT if process.age_s is None else elapsed(process.age_s)


def _used(gpu: Gpu, process: GpuProcess) -> str:
    used = process.memory_used_bytes
    return ABSENT if used is None else binary_bytes(used, digits=0)


def _load(gpu: Gpu, process: GpuProcess) -> str:
    load = process.utilization_sm_percent
    return f"{ABSENT if load is None else f'{load}%':>{WIDTHS['utilization_gpu_percent']}}"


def _command(gpu: Gpu, process: GpuProcess) -> str:
    unknown = {"own": "(not in /proc)", "other": "(in another PID namespace)"}
    known = process.command or process.name or unknown.get(process.namespace, "(not known)")
    return known if len(known) <= LONGEST_COMMAND else f"{known[:LONGEST_COMMAND]}…"


#: Column of each process, and its cell there; the load only where the driver gives one.
PROCESS_COLUMNS: tuple[tuple[Column, Callable[[Gpu, GpuProcess], str]], ...] = (
    (Column("GPU", right=True), _place),
    (Column("PID", right=True), lambda gpu, process: str(process.pid)),
    (Column("Type"), lambda gpu, process: process.type),
    (Column("User"), lambda gpu, process: process.user or ABSENT),
    (Column("Age", right=True), _age),
    (Column("Memory", right=True), _used),
    (Column("SM", right=True), _load),
    (Column("Command", least=SHORTEST_COMMAND), _command),
)


def _unlisted(gpus: Sequence[Gpu]) -> Iterator[Line]:
    """Yield a note where processes could not be listed: an empty list would look idle."""
    unread = (g for g in gpus if "processes" in g.unavailable and g.state is GpuState.OK)
    for reason, alike in group_by(unread, lambda gpu: gpu.unavailable["processes"]).items():
        which = name_gpus(gpu.index for gpu in alike)
        yield Line(f"The processes of {which} are not all known: {reason}", style="dim")


def _foreign(pairs: Sequence[tuple[Gpu, GpuProcess]]) -> Iterator[Line]:
    if any(process.namespace == "other" for _, process in pairs):
        yield Line(
            "Some PIDs belong to another PID namespace (the host's, seen from a container):"
            " only there can you see what they are.",
            style="dim",
        )
