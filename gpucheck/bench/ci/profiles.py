"""Profiles by name or file: the built-in ones and your own."""

from __future__ import annotations

from pathlib import Path

from gpucheck.bench.ci.profile_file import read_profile
from gpucheck.bench.ci.profile_lint import lint
from gpucheck.bench.ci.profile_model import Problem, Profile, ProfileFile
from gpucheck.drivers.host.toml_file import nearest
from gpucheck.report.errors import GpucheckError, WrongUseError

#: The error code of a file that is not TOML.
NOT_TOML = "bad-profile"
_PACKAGE = Path(__file__).resolve().parents[2]
#: An installation has the examples in the package, a checkout next to it.
_FOLDERS = (_PACKAGE / "configs" / "bench", _PACKAGE.parent / "configs" / "bench")


def shipped() -> dict[str, Path]:
    """Return the built-in profiles by name."""
    found = (sorted(folder.glob("*.toml")) for folder in _FOLDERS)
    return {path.stem: path for path in next(filter(None, found), ())}


def find_profile(text: str) -> Path:
    """Return the file of a name or a path; a path has a slash or ends in .toml.

    Raises:
        WrongUseError: there is no such profile.
    """
    if "/" in text or text.endswith(".toml"):
        return Path(text)
    known = shipped()
    if text in known:
        return known[text]
    raise WrongUseError(
        code="no-such-profile",
        message=f"There is no profile called {text[:100]!a}.",
        remedy=(
            nearest(text, known),
            "For a file of your own, give its path.",
        ),
    )


def option_of(profile: Profile) -> str | None:
    """Return what `--profile` calls it, a name or a file; None for a run without a profile."""
    if not profile.path:
        return None
    return profile.name if shipped().get(profile.name) == Path(profile.path) else profile.path


def load_profile(text: str) -> Profile:
    """Return a usable profile, by name or path.

    Raises:
        WrongUseError: there is none, or it has mistakes: the first of them, with file and line.
    """
    path = find_profile(text)
    profile, reading = read_profile(path)
    problems = lint(profile, reading)
    if problems:
        first, *more = problems
        others = [f"see {len(more)} more with: gpucheck profile lint {str(path)!r}"] * bool(more)
        where = str(path) if first.line is None else f"{path}:{first.line}"
        raise WrongUseError(
            code="bad-profile",
            message=f"{where}: {first.where}: {first.message}.",
            remedy=(first.mend, *others),
        )
    return profile


def describe(path: Path) -> ProfileFile:
    """Return what a file is and what is wrong with it.

    Raises:
        WrongUseError: it cannot be read, or is not TOML.
    """
    profile, reading = read_profile(path)
    problems = lint(profile, reading)
    found = None if problems else profile
    return ProfileFile(
        path=str(path),
        name=found.name if found else None,
        version=found.version if found else None,
        description=found.description if found else None,
        seconds=found.run.processes * (found.run.seconds + found.run.corruption_s)
        if found
        else None,
        problems=problems,
    )


def unreadable(path: Path, error: GpucheckError) -> ProfileFile:
    """Return an unreadable file, as one mistake at the line that the error names."""
    place, _, text = error.message.partition(": ")
    line = place.removeprefix(f"{path}:")
    known = line != place and line.isdecimal()
    problem = Problem(
        line=int(line) if known else None,
        where="",
        code=error.code,
        message=(text if known else error.message).rstrip("."),
        mend="write it as TOML" if error.code == NOT_TOML else "name a file that can be read",
    )
    return ProfileFile(
        path=str(path), name=None, version=None, description=None, problems=(problem,)
    )
