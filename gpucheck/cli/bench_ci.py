"""Benchmarks as CI runs them: profiles, saved runs, several processes, JUnit and GitHub.

GitHub reads its commands from both streams of a step. stdout carries only the report, so they go
to stderr.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpucheck.bench.ci.model import Reference
from gpucheck.bench.request_model import DECIDE, BenchRequest
from gpucheck.cli.options import Shared
from gpucheck.cli.output import deliver, machine
from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.cli.terminal import status_line, write_stderr
from gpucheck.report.envelope import Answer, Failure, Notice
from gpucheck.report.errors import ExitCode, WrongUseError
from gpucheck.report.options import flag, made_of_options, option, words
from gpucheck.report.text import printable

if TYPE_CHECKING:
    from gpucheck.bench.ci.model import SavedRun
    from gpucheck.bench.workers import Workers
    from gpucheck.drivers.interface import Probes

#: Options that a run which compares does not need.
_SAVING = frozenset({"--save", "--baseline", "--update-baseline", "--append", "--save-failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
@made_of_options
class Saving:
    """Where to save a run, and what to compare it with.

    Once `open_saving` knows that the files are usable, `reference` is the run of `baseline`, and
    `extends` means that the run is added to the file of `save`.
    """

    save: Path | None = option(
        "--save FILE", "Save the run for --baseline and compare.", not_with="--burn --peaks"
    )
    baseline: Path | None = option(
        "--baseline FILE", "Compare the run with a saved one.", not_with="--burn --peaks"
    )
    processes: int | None = option(
        "--processes N",
        "Repeat in N processes for each device [default: 5 with --save or --baseline].",
        group="More on saved runs",
        not_with=DECIDE,
    )
    update_baseline: bool = flag("--update-baseline", "Let --save replace an existing file.")
    append: bool = flag("--append", "Let --save add the run to the file as another session.")
    save_failed: bool = flag("--save-failed", "Let --save also keep a run that did not pass.")
    allow_difference: tuple[str, ...] = words(
        "--allow-difference KEY",
        "Compare with the baseline even if this key differs (such as driver).",
    )
    extends: bool = False
    reference: Reference | None = None

    @property
    def repeats(self) -> bool:
        """Return whether the run takes several processes."""
        return any(item is not None for item in (self.save, self.reference, self.processes))

    def keep(
        self, run: SavedRun | None, answer: Answer, shared: Shared
    ) -> tuple[Answer, str | None]:
        """Write the run to the file of --save, in one step; return the answer with its warnings.

        The second is what to say of it below the report, None if nothing was saved.

        A baseline is a run that passed. One that failed or is undecided is saved only with
        --save-failed, and the file says so; an interrupted one is never saved. One that was only
        disturbed is saved with its rows marked, unless it would replace or join another run.

        Raises:
            WrongUseError: the file cannot be written.
        """
        warnings, done = list(answer.warnings), None
        against = self.reference
        if against is not None and against.run.exit_code not in (None, ExitCode.OK):
            how = _how(against.run.exit_code, against.run)
            message = f"the baseline {str(against.path)!r} holds a run that {how}."
            warnings.append(Notice("baseline-failed", message))
        if self.save is not None:
            from gpucheck.bench.ci.baseline import read_saved_run, to_text, with_session

            warned = shared.strict and bool(warnings)
            refusal = self._refusal(run, answer, warned=warned)
            if refusal is not None or run is None:
                warnings.append(Notice("not-saved", f"nothing was saved: {refusal}"))
            else:
                whole = replace(run, exit_code=answer.exit_code)
                try:
                    if self.extends:
                        whole = with_session(read_saved_run(self.save), whole)
                except WrongUseError as error:
                    failure = Failure.of(error)
                    return answer._replace(exit_code=ExitCode.WRONG_USE, error=failure), None
                write_file(self.save, to_text(whole))
                done = self._done(self.save, whole, run, answer)
                if answer.exit_code is not ExitCode.OK:
                    message = f"{str(self.save)!r} holds a run that {_how(answer.exit_code, run)}."
                    warnings.append(Notice("saved-all-the-same", message))
        return answer._replace(warnings=tuple(warnings)), done

    def _refusal(self, run: SavedRun | None, answer: Answer, *, warned: bool) -> str | None:
        """Return why the run is not saved, None if it is."""
        code = answer.exit_code
        if run is None or code not in (ExitCode.OK, ExitCode.BAD, ExitCode.INCONCLUSIVE):
            return "the run is not complete."
        is_new = self.save is not None and not self.save.exists()
        if self.save_failed or (
            not warned and (code is ExitCode.OK or (is_new and _right(answer)))
        ):
            return None
        return (
            f"the run {_how(code, run)}, and a baseline must have passed. "
            "--save-failed keeps it anyway."
        )

    def _done(self, path: Path, whole: SavedRun, run: SavedRun, answer: Answer) -> str:
        """Return where the run went, and the command that compares a later one with it."""
        count = max(len(series.values) for series in run.series)
        runs = "1 run" if count == 1 else f"{count} runs"
        of_each = f" of each of {len(run.devices)} devices" if len(run.devices) > 1 else ""
        right = ", all results right" if _right(answer) else ""
        session = f" as session {1 + len(whole.further_times)}" if self.extends else ""
        file = printable(str(path))
        how = f"Added to {file}{session}" if self.extends else f"Saved to {file}"
        return (
            f"{how}: {runs}{of_each}{right}. Measure again later, and compare, with:\n"
            f"  {printable(later_command(sys.argv[1:], str(path)))}"
        )


def later_command(words: Sequence[str], file: str, option: str = "--baseline") -> str:
    """Return the command line that measures as `words` did and compares with the file.

    With the option `--save` it writes the file.
    """
    kept, skip = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if not skip and name not in _SAVING:
            kept.append(word)
        skip = not skip and name in ("--save", "--baseline") and not equals
    return shlex.join(["gpucheck", *(kept or ["bench"]), option, file])


def _right(answer: Answer) -> bool:
    """Return whether a run passed, or would have if others had not disturbed it."""
    from gpucheck.bench.ci.verdicts import ROWS_DISTURBED

    disturbed = answer.error is not None and answer.error.code == ROWS_DISTURBED
    return disturbed or answer.exit_code is ExitCode.OK


def _how(code: int | None, run: SavedRun | None) -> str:
    if code != ExitCode.INCONCLUSIVE:
        return "failed"
    disturbed = run is not None and any(series.disturbed for series in run.series)
    return "was disturbed" if disturbed else "is undecided"


def open_saving(saving: Saving) -> Saving:
    """Check the options and read the baseline, so that nothing fails after measuring.

    Raises:
        WrongUseError: a file exists that may not be replaced, cannot be written or read, or an
            option makes no sense.
    """
    save, baseline, processes = saving.save, saving.baseline, saving.processes
    if save is not None:
        check_writable(save)
        if save.is_file() and not (saving.update_baseline or saving.append):
            raise WrongUseError(
                code="baseline-exists",
                message=f"The file {str(save)!r} exists: a baseline is replaced only on request.",
                remedy=(
                    "Replace it with --update-baseline, add to it with --append, or "
                    "name another file.",
                ),
            )
    if saving.append and (save is None or saving.update_baseline):
        also = ", and --update-baseline replaces it: choose one."
        message = "--append adds a session to the file of --save"
        message += also if saving.update_baseline else ": name that file."
        raise WrongUseError(code="append-without-save", message=message)
    if processes is not None and not 1 <= processes <= 100:
        message = f"--processes takes a number from 1 to 100, not {processes}."
        raise WrongUseError(code="bad-processes", message=message)
    if saving.allow_difference and baseline is None:
        message = "--allow-difference needs a --baseline to compare with: name that too."
        raise WrongUseError(code="difference-without-baseline", message=message)
    if baseline is None and not saving.append:
        return saving
    from gpucheck.bench.ci.baseline import WRITE_ONE, allowed_keys, read_saved_run

    if saving.append and save is not None and save.is_file():
        read_saved_run(save)
        saving = replace(saving, extends=True)
    if baseline is None:
        return saving
    try:
        run = read_saved_run(baseline)
    except WrongUseError as error:
        # The run that it is held against was measured with the same profile and options.
        write = f"Write one with: {printable(later_command(sys.argv[1:], 'FILE', '--save'))}"
        error.remedy = tuple(write if step == WRITE_ONE else step for step in error.remedy)
        raise
    allowed = allowed_keys(saving.allow_difference)
    return replace(saving, reference=Reference(run=run, path=baseline, allowed=allowed))


def run_with_profile(
    name: str, request: BenchRequest, shared: Shared, saving: Saving, *, require_gpu: bool
) -> int:
    """Measure and judge by a profile, save the figures, and report them to every output.

    Of the request count the devices, and the frameworks as `NAME=PYTHON`: what runs those of the
    profile.

    Raises:
        WrongUseError: the profile cannot be used, or is not for the devices that are named.
    """
    from gpucheck.bench.ci.profile_model import Target
    from gpucheck.bench.ci.profiles import load_profile
    from gpucheck.bench.ci.run import run_profile, wanted_devices
    from gpucheck.bench.frameworks import interpreters_of

    profile = load_profile(name)
    if require_gpu and profile.match.target is Target.CPU:
        message = f"The profile {profile.name} is for the processor: leave --require-gpu out."
        raise WrongUseError(code="other-device", message=message)
    wanted = wanted_devices(profile, request.devices)
    interpreters_of(
        request.frameworks, os.environ
    )  # one that cannot be run is refused before measuring

    def measure(probes: Probes, workers: Workers) -> tuple[Answer, SavedRun | None]:
        return run_profile(
            *(profile, wanted, probes, workers, saving.reference, request.frameworks),
            is_kept=saving.save is not None,
        )

    return _judged(measure, shared, saving)


def run_several(
    request: BenchRequest,
    shared: Shared,
    saving: Saving,
    *,
    corruption_s: float,
    require_gpu: bool,
) -> int:
    """Measure in several processes, save the run if requested, and report it to every output."""
    from gpucheck.bench.ci.run import PROCESSES, run_request
    from gpucheck.bench.frameworks import interpreters_of

    def measure(probes: Probes, workers: Workers) -> tuple[Answer, SavedRun | None]:
        interpreters_of(request.frameworks, os.environ)
        return run_request(
            *(request, probes, workers, saving.reference),
            processes=saving.processes or PROCESSES,
            corruption_s=corruption_s,
            require_gpu=require_gpu,
            is_kept=saving.save is not None,
        )

    return _judged(measure, shared, saving)


def _judged(
    measure: Callable[[Probes, Workers], tuple[Answer, SavedRun | None]],
    shared: Shared,
    saving: Saving,
) -> int:
    """Measure, save the run if requested, and report it with where it was saved."""
    from gpucheck.bench.workers import Workers

    with machine("bench", shared) as probes:
        with status_line(shown=shared.verbosity >= 0) as tell:
            answer, run = measure(probes, Workers(report_progress=tell))
        answer, done = saving.keep(run, answer, shared)
    code = deliver("bench", shared, answer, probes.time())
    if done is not None and shared.verbosity >= 0:
        write_stderr(done)
    return code
