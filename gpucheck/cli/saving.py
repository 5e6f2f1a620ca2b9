"""The options about runs that are kept: --save, --baseline, and how often bench repeats itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.cli.shared import Shared, split_words
from gpucheck.cli.streams import write_stderr
from gpucheck.models.errors import ExitCode, WrongUseError
from gpucheck.models.report import Answer, Notice
from gpucheck.models.saved_run import SavedRun

Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Keep the run for --baseline and compare."),
]
UpdateBaseline = Annotated[
    bool, typer.Option("--update-baseline", help="Let --save replace a file that exists.")
]
SaveFailed = Annotated[
    bool, typer.Option("--save-failed", help="Let --save keep a run that did not pass, too.")
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
    failed: bool = False
    baseline_path: Path | None = None
    baseline: SavedRun | None = None
    allowed: tuple[str, ...] = ()
    processes: int | None = None

    @property
    def repeats(self) -> bool:
        """Return whether the run takes processes of its own."""
        return any(item is not None for item in (self.save, self.baseline, self.processes))

    def keep(self, run: SavedRun | None, answer: Answer, shared: Shared) -> Answer:
        """Write the run to the file of --save, in one step; return the answer with what to know.

        A baseline is a run that passed. One that failed or is undecided is kept only with
        --save-failed, and says so in the file; one that was interrupted is never kept.

        Raises:
            WrongUseError: the file system refused.
        """
        warnings = [*answer.warnings, *self._about_the_baseline()]
        if self.save is not None:
            warned = shared.strict and bool(warnings)
            refusal = self._refusal(run, answer.exit_code, warned=warned)
            if refusal is not None or run is None:
                warnings.append(Notice("not-saved", f"nothing was saved: {refusal}"))
            else:
                self._write(self.save, replace(run, exit_code=answer.exit_code), shared)
                if answer.exit_code is not ExitCode.OK:
                    message = f"{str(self.save)!r} holds a run that {_how(answer.exit_code)}."
                    warnings.append(Notice("saved-all-the-same", message))
        return answer._replace(warnings=tuple(warnings))

    def _refusal(self, run: SavedRun | None, code: ExitCode, *, warned: bool) -> str | None:
        """Return why the run is not kept, None if it is."""
        if run is None or code not in (ExitCode.OK, ExitCode.BAD, ExitCode.INCONCLUSIVE):
            return "the run is not complete."
        if self.failed or (code is ExitCode.OK and not warned):
            return None
        return f"the run {_how(code)}, and a baseline is a run that passed. --save-failed keeps it."

    def _write(self, path: Path, run: SavedRun, shared: Shared) -> None:
        from gpucheck.core.bench.processes.baseline import to_text

        write_file(path, to_text(run))
        if shared.verbosity >= 0:
            write_stderr(f"Saved. Compare a later run with: gpucheck compare {path} LATER")

    def _about_the_baseline(self) -> list[Notice]:
        """Return what speaks against the baseline itself."""
        code = None if self.baseline is None else self.baseline.exit_code
        if code in (None, ExitCode.OK):
            return []
        message = f"the baseline {str(self.baseline_path)!r} holds a run that {_how(code)}."
        return [Notice("baseline-failed", message)]


def _how(code: int | None) -> str:
    return "is undecided" if code == ExitCode.INCONCLUSIVE else "failed"


def open_saving(
    save: Path | None,
    *,
    update: bool,
    failed: bool = False,
    baseline: Path | None,
    allow_difference: list[str] | None,
    processes: int | None,
) -> Saving:
    """Return what the options mean; everything that could fail fails before anything is measured.

    Raises:
        WrongUseError: a file exists that may not be replaced, cannot be written or read, or an
            option makes no sense.
    """
    from gpucheck.core.bench.processes.fingerprint import allowed_keys
    from gpucheck.core.bench.processes.run_file import read_saved_run

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
        failed=failed,
        baseline_path=baseline,
        baseline=read_saved_run(baseline) if baseline is not None else None,
        allowed=allowed_keys(split_words(allow_difference)),
        processes=processes,
    )
