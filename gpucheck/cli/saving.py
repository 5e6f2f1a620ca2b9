"""The options about runs that are kept: --save, --baseline, and how often bench repeats itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.cli.shared import split_words
from gpucheck.cli.streams import write_stderr
from gpucheck.models.errors import WrongUseError
from gpucheck.models.saved_run import SavedRun

Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Keep the run for --baseline and compare."),
]
UpdateBaseline = Annotated[
    bool, typer.Option("--update-baseline", help="Let --save replace a file that exists.")
]
AgainstBaseline = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="Hold the run against a saved one."),
]
AllowDifference = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-difference",
        metavar="KEY",
        help="Compare with the baseline although this key differs (driver).",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        metavar="N",
        help="Repeat in N processes for each device [default: 5 with --save or --baseline].",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What to keep of a run, and what to hold it against; the files are known to be usable."""

    save: Path | None = None
    baseline_path: Path | None = None
    baseline: SavedRun | None = None
    allowed: tuple[str, ...] = ()
    processes: int | None = None

    @property
    def repeats(self) -> bool:
        """Return whether the run takes processes of its own."""
        return any(item is not None for item in (self.save, self.baseline, self.processes))

    def keep(self, run: SavedRun | None, *, quiet: bool) -> None:
        """Write the run to the file of --save, if there is one, in one step.

        Raises:
            WrongUseError: the file system refused.
        """
        if self.save is None:
            return
        if run is None:
            write_stderr("gpucheck: warning: nothing was saved: the run is not complete")
            return
        from gpucheck.core.bench.processes.baseline import to_text

        write_file(self.save, to_text(run))
        if not quiet:
            write_stderr(f"Saved. Compare a later run with: gpucheck compare {self.save} LATER")


def open_saving(
    save: Path | None,
    *,
    update: bool,
    baseline: Path | None,
    allow_difference: list[str] | None,
    processes: int | None,
) -> Saving:
    """Return what the options mean; everything that could fail fails before anything is measured.

    Raises:
        WrongUseError: a file exists that may not be replaced, cannot be written or read, or an
            option makes no sense.
    """
    from gpucheck.core.bench.processes.baseline import read_saved_run
    from gpucheck.core.bench.processes.fingerprint import allowed_keys

    if save is not None:
        check_writable(save)
        if save.is_file() and not update:
            raise WrongUseError(
                code="baseline-exists",
                message=f"The file {str(save)!r} exists: a baseline is never replaced by itself.",
                remedy=("Replace it on purpose with --update-baseline, or name another file.",),
            )
    if processes is not None and not 1 <= processes <= 100:
        message = f"--processes takes a number from 1 to 100, not {processes}."
        raise WrongUseError(code="bad-processes", message=message)
    if allow_difference and baseline is None:
        message = "--allow-difference is about the difference to a --baseline: name that too."
        raise WrongUseError(code="difference-without-baseline", message=message)
    return Saving(
        save=save,
        baseline_path=baseline,
        baseline=read_saved_run(baseline) if baseline is not None else None,
        allowed=allowed_keys(split_words(allow_difference)),
        processes=processes,
    )
