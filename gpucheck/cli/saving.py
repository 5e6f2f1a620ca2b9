"""Options for saved runs: --save, --baseline, and the number of processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from gpucheck.bench.ci.model import SavedRun
from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.cli.shared import Shared, split_words
from gpucheck.cli.terminal import write_stderr
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import ExitCode, WrongUseError

Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Save the run for --baseline and compare."),
]
UpdateBaseline = Annotated[
    bool, typer.Option("--update-baseline", help="Let --save replace an existing file.")
]
Append = Annotated[
    bool, typer.Option("--append", help="Let --save add the run to the file as another session.")
]
SaveFailed = Annotated[
    bool, typer.Option("--save-failed", help="Let --save also keep a run that did not pass.")
]
AgainstBaseline = Annotated[
    Path | None,
    typer.Option("--baseline", metavar="FILE", help="Compare the run with a saved one."),
]
AllowDifference = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-difference",
        metavar="KEY",
        help="Compare with the baseline even if this key differs (such as driver).",
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
    """Where to save a run, and what to compare it with; the files are known to be usable.

    `extends` means that the run is added to the file of `save`.
    """

    save: Path | None = None
    extends: bool = False
    failed: bool = False
    baseline_path: Path | None = None
    baseline: SavedRun | None = None
    allowed: tuple[str, ...] = ()
    processes: int | None = None

    @property
    def repeats(self) -> bool:
        """Return whether the run takes several processes."""
        return any(item is not None for item in (self.save, self.baseline, self.processes))

    def keep(self, run: SavedRun | None, answer: Answer, shared: Shared) -> Answer:
        """Write the run to the file of --save, in one step; return the answer with its warnings.

        A baseline is a run that passed. One that failed or is undecided is saved only with
        --save-failed, and the file says so; an interrupted one is never saved.

        Raises:
            WrongUseError: the file cannot be written.
        """
        warnings = [*answer.warnings, *self._about_the_baseline()]
        if self.save is not None:
            warned = shared.strict and bool(warnings)
            refusal = self._refusal(run, answer.exit_code, warned=warned)
            if refusal is not None or run is None:
                warnings.append(Notice("not-saved", f"nothing was saved: {refusal}"))
            else:
                try:
                    whole = self._whole(self.save, replace(run, exit_code=answer.exit_code))
                except WrongUseError as error:
                    failure = Failure(error.code, error.message, error.remedy)
                    return answer._replace(exit_code=ExitCode.WRONG_USE, error=failure)
                self._write(self.save, whole, shared)
                if answer.exit_code is not ExitCode.OK:
                    message = f"{str(self.save)!r} holds a run that {_how(answer.exit_code)}."
                    warnings.append(Notice("saved-all-the-same", message))
        return answer._replace(warnings=tuple(warnings))

    def _refusal(self, run: SavedRun | None, code: ExitCode, *, warned: bool) -> str | None:
        """Return why the run is not saved, None if it is."""
        if run is None or code not in (ExitCode.OK, ExitCode.BAD, ExitCode.INCONCLUSIVE):
            return "the run is not complete."
        if self.failed or (code is ExitCode.OK and not warned):
            return None
        return (
            f"the run {_how(code)}, and a baseline must have passed. --save-failed keeps it anyway."
        )

    def _whole(self, path: Path, run: SavedRun) -> SavedRun:
        """Return the content of the file: the run, or the saved one with it as another session.

        Raises:
            WrongUseError: the file is of another machine, or can no longer be read.
        """
        from gpucheck.bench.ci.baseline import read_saved_run, with_session

        return with_session(read_saved_run(path), run) if self.extends else run

    def _write(self, path: Path, run: SavedRun, shared: Shared) -> None:
        from gpucheck.bench.ci.baseline import to_text

        write_file(path, to_text(run))
        if shared.verbosity >= 0:
            done = f"Added as session {1 + len(run.further_times)}" if self.extends else "Saved"
            write_stderr(f"{done}. Compare a later run with: gpucheck compare {path} LATER")

    def _about_the_baseline(self) -> list[Notice]:
        """Return warnings about the baseline itself."""
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
    append: bool = False,
    failed: bool = False,
    baseline: Path | None,
    allow_difference: list[str] | None,
    processes: int | None,
) -> Saving:
    """Return the checked options, so that nothing fails after measuring.

    Raises:
        WrongUseError: a file exists that may not be replaced, cannot be written or read, or an
            option makes no sense.
    """
    from gpucheck.bench.ci.baseline import allowed_keys, read_saved_run

    if save is not None:
        check_writable(save)
        if save.is_file() and not (update or append):
            raise WrongUseError(
                code="baseline-exists",
                message=f"The file {str(save)!r} exists: a baseline is replaced only on request.",
                remedy=(
                    "Replace it with --update-baseline, add to it with --append, or "
                    "name another file.",
                ),
            )
    if append and (save is None or update):
        message = "--append adds a session to the file of --save"
        message += (
            ", and --update-baseline replaces it: choose one." if update else ": name that file."
        )
        raise WrongUseError(code="append-without-save", message=message)
    if processes is not None and not 1 <= processes <= 100:
        message = f"--processes takes a number from 1 to 100, not {processes}."
        raise WrongUseError(code="bad-processes", message=message)
    if allow_difference and baseline is None:
        message = "--allow-difference needs a --baseline to compare with: name that too."
        raise WrongUseError(code="difference-without-baseline", message=message)
    extends = append and save is not None and save.is_file()
    if extends and save is not None:
        read_saved_run(save)
    return Saving(
        save=save,
        extends=extends,
        failed=failed,
        baseline_path=baseline,
        baseline=read_saved_run(baseline) if baseline is not None else None,
        allowed=allowed_keys(split_words(allow_difference)),
        processes=processes,
    )
