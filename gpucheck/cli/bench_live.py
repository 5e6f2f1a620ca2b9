"""Live table of `gpucheck bench` on stderr: running medians, what is measured now, the time left.

It is drawn between two slices only, a few times per second, and disappears at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpucheck.cli.terminal import is_watched, open_console, progress_bar, time_left, writes_unicode
from gpucheck.drivers.host.clock import monotonic_s
from gpucheck.report.text import duration, printable, rate

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

    from gpucheck.bench.model import RowClock
    from gpucheck.bench.sampler import CaseState
    from gpucheck.bench.scheduler import Progress

#: Below this width there is one line, and no table.
_LEAST_WIDTH = 60
#: Lines of the terminal that stay free: the title, the headings, the cursor's.
_OTHER_LINES = 4
#: Seconds between two drawings, at least.
_PERIOD_S = 0.5

Watch = Callable[[Sequence["CaseState"]], None]


@contextmanager
def live_rows(*, shown: bool) -> Iterator[tuple[Progress, Watch | None]]:
    """Show the rows while the block runs; a line on a narrow terminal, nothing without one.

    Yield what takes the run's progress, and what takes its rows before measuring begins.
    """
    if shown and is_watched():
        console = open_console()
        if console.width >= _LEAST_WIDTH:
            view = _LiveRows(console)
            try:
                yield view.report, view.watch
            finally:
                view.close()
            return
    with progress_bar(shown=shown) as progress:
        yield progress, None


class _LiveRows:
    """The table, and the rounds' figures that it has computed already."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._unicode = writes_unicode(console.encoding)
        self._states: Sequence[CaseState] = ()
        self._figures: dict[tuple[int, RowClock], list[float]] = {}
        self._drawn_s: float | None = None
        self._live = Live(
            self._line("preparing"), console=console, auto_refresh=False, transient=True
        )
        self._live.start(refresh=True)

    def watch(self, states: Sequence[CaseState]) -> None:
        """Take the rows that will be measured."""
        self._states = [state for state in states if not state.limit]

    def report(self, label: str, fraction: float, seconds_left: float) -> None:
        """Draw the table if the last drawing is old enough."""
        if self._drawn_s is not None and monotonic_s() - self._drawn_s < _PERIOD_S:
            return
        self._live.update(self._drawn(label, seconds_left), refresh=True)
        self._drawn_s = monotonic_s()

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()

    def _drawn(self, label: str, seconds_left: float) -> Group:
        from rich.console import Group

        begun = [state for state in self._states if state.rounds and state.error is None]
        title = f"{len(begun)} of {len(self._states)} rows, {time_left(seconds_left)}: {label}"
        return Group(self._line(title), self._table(begun, label))

    def _table(self, begun: Sequence[CaseState], label: str) -> Table:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("SO FAR", no_wrap=True, overflow="ellipsis")
        for heading in ("TIME", "SPEED", "ROUNDS"):
            table.add_column(heading, justify="right", no_wrap=True)
        rows = _group_rows(begun)
        marked = [any(state.case.label.text == label for state in row) for row in rows]
        now = marked.index(True) if True in marked else None
        for at in self._window(len(rows), now):
            table.add_row(*self._cells(rows[at]), style="bold" if marked[at] else "")
        return table

    def _window(self, count: int, now: int | None) -> range:
        """Return as many rows as the terminal has lines for, the present one among them."""
        lines = max(1, self._console.height - _OTHER_LINES)
        last = count if now is None else max(lines, now + 1)
        first = max(0, min(last, count) - lines)
        return range(first, min(count, first + lines))

    def _cells(self, row: Sequence[CaseState]) -> list[str]:
        """Return the cells of a row: of several GPUs the middle one and the fewest rounds."""
        from gpucheck.bench import stats
        from gpucheck.bench.rows_view import devices_text, row_name

        known = [figures for state in row if (figures := self._round_figures(state))]
        if not known:
            return []
        time_of = row[0].estimator.figure
        label, work = row[0].case.label, row[0].case.work
        where = devices_text([state.case.label.device for state in row])
        every = (state.case.label for state in self._states)
        sizes = len({one.shape for one in every if one.kernel == label.kernel}) > 1
        name = f"{label.kernel} {label.dtype.format} {row_name(label, where, sizes=sizes)}"
        seconds = stats.median([time_of(figures) for figures in known])
        speed = "" if label.kernel == "launch" else rate(work.amount / seconds, work.unit)
        cells = (name, duration(seconds), speed, str(min(map(len, known))))
        return [self._text(cell) for cell in cells]

    def _round_figures(self, state: CaseState) -> Sequence[float]:
        rounds, time_of = state.rounds_s, state.estimator.figure
        figures = self._figures.setdefault((id(state), state.clock), [])
        # The last round may still grow: it is computed anew.
        del figures[max(0, len(rounds) - 1) :]
        figures.extend(time_of(samples) for samples in rounds[len(figures) :] if samples)
        return figures

    def _line(self, text: str) -> Text:
        from rich.text import Text

        return Text(self._text(text), no_wrap=True, overflow="ellipsis")

    def _text(self, text: str) -> str:
        return printable(text, unicode=self._unicode)


def _group_rows(begun: Sequence[CaseState]) -> list[list[CaseState]]:
    """Return the rows to show: GPUs that do the same are one."""
    rows: dict[object, list[CaseState]] = {}
    for state in begun:
        label = state.case.label
        kind = label.device.partition(":")[0]
        rows.setdefault((label.id, label.threads, kind), []).append(state)
    return list(rows.values())
