"""`gpucheck profile`: profiles for `bench --profile` listed, checked, explained and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpucheck.bench.ci.profile_model import Limit, ProfileAction, ProfileFile, ProfileResult
from gpucheck.cli.options import with_shared_options
from gpucheck.cli.output import Shared, deliver, machine
from gpucheck.cli.report_file import check_writable, write_file
from gpucheck.report.envelope import Answer, Failure
from gpucheck.report.errors import ExitCode, GpucheckError, WrongUseError


@with_shared_options
def command(
    *,
    action: Annotated[
        ProfileAction,
        typer.Argument(metavar="ACTION", help="list, lint, explain or record.", show_default=False),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROFILE...]",
            help="Names or files; for record, the file to write and then saved runs.",
        ),
    ] = None,
    board: Annotated[
        str | None,
        typer.Option("--board", metavar="NAME", help="Explain for this board only (such as H100)."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="PROFILE",
            help="The profile that the runs to record were measured with.",
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Let record replace an existing file.")
    ] = False,
    shared: Shared,
) -> int:
    """List, check, explain and record profiles for bench --profile."""
    given = tuple(names or ())
    _check(action, given, board=board, base=base, replace=replace)
    if shared.recording is not None:
        message = "profile reads profiles, not a machine: leave --from out."
        raise WrongUseError(code="profile-from-snapshot", message=message)

    with machine("profile", shared) as probes:
        answer = _answer(action, given, board=board, base=base, replace=replace)
        answer = answer._replace(host=probes.host())
    return deliver("profile", shared, answer, probes.time())


def _check(
    action: ProfileAction,
    names: Sequence[str],
    *,
    board: str | None,
    base: str | None,
    replace: bool,
) -> None:
    """Refuse arguments that the action does not take."""
    wrong = None
    if action is ProfileAction.LIST and names:
        wrong = "list shows the built-in profiles and takes no names."
    elif action in (ProfileAction.LINT, ProfileAction.EXPLAIN) and not names:
        wrong = f"{action} needs a profile: a name or a file."
    elif action is ProfileAction.RECORD and (len(names) < 2 or base is None):
        wrong = "record needs the file to write, saved runs, and --base PROFILE."
    elif board is not None and action is not ProfileAction.EXPLAIN:
        wrong = "--board works only with explain."
    elif (base is not None or replace) and action is not ProfileAction.RECORD:
        wrong = "--base and --replace work only with record."
    if wrong is not None:
        example = "gpucheck bench --profile default --save run.json"
        raise WrongUseError(
            code="usage",
            message=wrong,
            remedy=(
                "See: gpucheck profile --help",
                *((f"Save a run first: {example}",) if action is ProfileAction.RECORD else ()),
            ),
        )


def _answer(
    action: ProfileAction,
    names: Sequence[str],
    *,
    board: str | None,
    base: str | None,
    replace: bool,
) -> Answer:
    match action:
        case ProfileAction.LIST:
            return _list()
        case ProfileAction.LINT:
            return _lint(names)
        case ProfileAction.EXPLAIN:
            return _explain(names, board)
        case ProfileAction.RECORD:
            return _record(Path(names[0]), [Path(name) for name in names[1:]], base or "", replace)


def _list() -> Answer:
    from gpucheck.bench.ci.profiles import describe, shipped

    files = tuple(describe(path) for path in shipped().values())
    return Answer(result=ProfileResult(action=ProfileAction.LIST, files=files))


def _lint(names: Sequence[str]) -> Answer:
    """Check every file, even if one before it cannot be read."""
    from gpucheck.bench.ci.profiles import describe, find_profile, mistakes, unreadable

    files: list[ProfileFile] = []
    for name in names:
        path = find_profile(name)
        try:
            files.append(describe(path))
        except GpucheckError as error:
            files.append(unreadable(path, error))
    result = ProfileResult(action=ProfileAction.LINT, files=tuple(files))
    bad = [one for one in files if mistakes(one.problems)]
    if not bad:
        return Answer(result=result)
    count = sum(len(mistakes(one.problems)) for one in bad)
    said = f"{count} {'mistake' if count == 1 else 'mistakes'} in {bad[0].path}"
    more = f" and {len(bad) - 1} other files" if len(bad) > 1 else ""
    there = "There is" if count == 1 else "There are"
    failure = Failure(code="bad-profile", message=f"{there} {said}{more}.")
    return Answer(result=result, exit_code=ExitCode.BAD, error=failure)


def _explain(names: Sequence[str], board: str | None) -> Answer:
    from gpucheck.bench.ci.limits import explain
    from gpucheck.bench.ci.profiles import describe, find_profile, load_profile

    files: list[ProfileFile] = []
    limits: list[Limit] = []
    for name in names:
        profile = load_profile(name)
        files.append(describe(find_profile(name)))
        limits.extend(explain(profile, board))
    return Answer(
        result=ProfileResult(action=ProfileAction.EXPLAIN, files=tuple(files), limits=tuple(limits))
    )


def _record(path: Path, runs: Sequence[Path], base: str, replace: bool) -> Answer:
    from gpucheck.bench.ci.baseline import read_saved_run
    from gpucheck.bench.ci.limits import explain
    from gpucheck.bench.ci.profile_lint import lint_text
    from gpucheck.bench.ci.profile_record import record_profile
    from gpucheck.bench.ci.profiles import describe, load_profile

    check_writable(path)
    if path.exists() and not replace:
        raise WrongUseError(
            code="profile-exists",
            message=f"The file {str(path)!r} exists: a profile is replaced only on request.",
            remedy=("Replace it with --replace, or name another file.",),
        )
    saved = [(run, read_saved_run(run)) for run in runs]
    text = record_profile(load_profile(base), saved, name=path.stem)
    findings = lint_text(text, str(path))
    if findings.profile is None:
        first = findings.problems[0]
        raise WrongUseError(
            code="bad-record",
            message=f"These runs do not make a usable profile: {first.where}: {first.message}.",
            remedy=(first.mend, "Record on a machine that is known to be good."),
        )
    write_file(path, text)
    return Answer(
        result=ProfileResult(
            action=ProfileAction.RECORD,
            files=(describe(path),),
            limits=tuple(explain(findings.profile, None)),
            saved=str(path),
        )
    )
