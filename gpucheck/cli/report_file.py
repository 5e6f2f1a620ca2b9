"""Writing a report to the file of --output: whole, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gpucheck.cli.streams import unwritable


def check_writable(path: Path) -> None:
    """Refuse an output file that cannot be written before anything is measured.

    Raises:
        WrongUseError: it is a directory, or its directory is missing or not writable.
    """
    directory = path.parent
    problem = None
    if path.is_dir():
        problem = "it is a directory"
    elif not directory.is_dir():
        problem = f"there is no directory {str(directory)!r}"
    elif not _is_special(path) and not os.access(directory, os.W_OK | os.X_OK):
        problem = f"the directory {str(directory)!r} is not writable"
    if problem is not None:
        raise unwritable(repr(str(path)), problem)


def _is_special(path: Path) -> bool:
    """Return whether it is a device or pipe, which must be written to and never be replaced."""
    return path.exists() and not path.is_file()


def write_file(path: Path, text: str) -> None:
    """Write the report in one step: the file is the old one or the new one, never half of it.

    Raises:
        WrongUseError: the file system refused.
    """
    try:
        if _is_special(path):
            path.write_text(text, encoding="utf-8")
            return
        # A link stays one: the file it leads to is replaced.
        target = path.resolve()
        # Beside the file, so that the rename stays in one file system; O_EXCL follows no link.
        draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                if target.exists():
                    os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise unwritable(repr(str(path)), error.strerror or str(error)) from None
