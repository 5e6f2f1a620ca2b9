"""Report file of --output: written whole, or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO, TypeVar

from gpucheck.cli.terminal import unwritable

T = TypeVar("T")

#: The mode of a file with secrets: only its owner can read it.
PRIVATE = 0o600
#: The mode of a file that another user's program reads.
PUBLIC = 0o644
#: As many links as the kernel follows; and as many tries for a free name.
_MOST_LINKS = _MOST_DRAWS = 40


def check_writable(path: Path) -> None:
    """Refuse an unwritable output file before anything is measured.

    Raises:
        WrongUseError: it is a directory, or its directory is missing or not writable.
    """
    directory = path.parent
    problem = None
    try:
        if path.is_dir():
            problem = "it is a directory"
        elif not directory.is_dir():
            problem = f"there is no directory {str(directory)!r}"
        elif not _is_special(path) and not os.access(directory, os.W_OK | os.X_OK):
            problem = f"the directory {str(directory)!r} is not writable"
        else:
            _followed(path)
            os.lstat(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        problem = _why(error)
    if problem is not None:
        raise unwritable(repr(str(path)), problem)


def _is_special(path: Path) -> bool:
    """Return whether it is a device or pipe, which must be written to and never replaced."""
    return path.exists() and not path.is_file()


def write_file(path: Path, text: str | bytes, *, mode: int | None = None) -> None:
    """Write the report in one step: the file is the old one or the new one, never half of it.

    It has `mode`, or that of the file it replaces, or what the umask leaves.

    Raises:
        WrongUseError: the file system refused.
    """
    content = text.encode() if isinstance(text, str) else text
    try:
        # A link stays one: the file it leads to is replaced.
        target = _followed(path)
        if _is_special(target):
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_NOCTTY), "wb") as file:
                file.write(content)
            return
        if mode is None and target.exists():
            mode = stat.S_IMODE(target.stat().st_mode)
        _replace(target, content, mode)
    except (OSError, ValueError) as error:
        raise unwritable(repr(str(path)), _why(error)) from None


def write_folder(folder: Path, files: Mapping[str, bytes], *, mode: int | None = None) -> None:
    """Write a new folder with these files in one step; an empty one, or one to replace, goes.

    `mode` is that of the files; the folder has it too, with the right to enter.

    Raises:
        WrongUseError: the file system refused.
    """
    import shutil

    try:
        draft, _ = _drawn(folder.parent, lambda name: name.mkdir(0o777 if mode is None else 0o700))
        try:
            for name, content in files.items():
                _replace(draft / name, content, mode)
            _put_in_place(draft, folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except (OSError, ValueError) as error:
        raise unwritable(repr(str(folder)), _why(error)) from None


def _put_in_place(draft: Path, folder: Path) -> None:
    """Give a folder its name; the one of that name is removed after that."""
    import shutil

    if not folder.exists() or not any(folder.iterdir()):
        draft.rename(folder)
        return
    old, _ = _drawn(folder.parent, lambda name: folder.rename(name))
    try:
        draft.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old)


def _why(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _followed(path: Path) -> Path:
    """Return the file that links lead to, as the kernel follows them with protected_symlinks.

    Where everybody may write but nobody may remove another's (/tmp), only our own links and those
    of the directory's owner count: through another link, its owner would choose what we replace.

    Raises:
        OSError: such a link, or a chain of links without an end.
    """
    for _ in range(_MOST_LINKS):
        try:
            leads_to = path.readlink()
        except OSError:  # no link, or nothing at all
            return path
        inside = path.parent.resolve()
        folder, owner = inside.stat(), path.lstat().st_uid
        for_all = folder.st_mode & stat.S_ISVTX and folder.st_mode & stat.S_IWOTH
        if for_all and owner not in (os.geteuid(), folder.st_uid):
            raise OSError(errno.EACCES, f"{str(path)!r} is another user's link")
        following = inside / leads_to
        if path.exists() and not os.path.lexists(following):
            return path  # one of /proc/self/fd, whose text is no path
        path = following
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _replace(target: Path, content: bytes, mode: int | None) -> None:
    """Replace the target by a complete file; a kill at any moment leaves the old one."""
    directory = target.parent
    try:
        draft = _written_without_name(directory, content, mode)
    except OSError:  # not every file system can do that
        draft = _written(directory, content, mode)
    try:
        draft.replace(target)  # in the same directory, and so in the same file system
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _written_without_name(directory: Path, content: bytes, mode: int | None) -> Path:
    """Return a complete file, written without a name: a kill leaves nothing behind."""
    flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
    with os.fdopen(os.open(directory, flags, 0o666), "wb") as file:
        _fill(file, content, mode)
        number = file.fileno()
        nameless = f"/proc/self/fd/{number}"
        # Python follows that link only if a descriptor is named; for a whole path it means nothing.
        return _drawn(directory, lambda name: os.link(nameless, name, src_dir_fd=number))[0]


def _written(directory: Path, content: bytes, mode: int | None) -> Path:
    """Return a complete file under a name that nobody can predict."""
    # O_EXCL follows no link.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    draft, descriptor = _drawn(directory, lambda name: os.open(name, flags, 0o666))
    try:
        with os.fdopen(descriptor, "wb") as file:
            _fill(file, content, mode)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _fill(file: BinaryIO, content: bytes, mode: int | None) -> None:
    if mode is not None:
        os.fchmod(file.fileno(), mode)
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _drawn(directory: Path, create: Callable[[Path], T]) -> tuple[Path, T]:
    """Return a free name, and the result of `create` for it."""
    for _ in range(_MOST_DRAWS):
        name = directory / f".gpucheck-{os.urandom(8).hex()}.tmp"
        try:
            return name, create(name)
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
