"""Common part of the children that call native libraries: errors, the loaded file, the output.

They start often and run bare, so this needs only the standard library, and little of it.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: The reason of a value that this kind of GPU does not have.
NOT_SUPPORTED = "not supported by this GPU"
#: The reason of a value that pynvml has no function for; the driver was not asked.
BINDING_TOO_OLD = "the installed nvidia-ml-py is too old to ask for it"


def gives_nvml_code(reason: str, *codes: int) -> bool:
    """Return whether a reason names one of these codes of NVML's; older recordings lack "error"."""
    return any(f"({words} {code})" in reason for words in ("NVML error", "NVML") for code in codes)


class DriverError(Exception):
    """A failed call: the function, the library's code (None if never called), and the reason."""

    def __init__(self, function: str, code: int | None, slug: str, text: str) -> None:
        super().__init__(text)
        self.function = function
        self.code = code
        self.slug = slug
        self.text = text

    def document(self) -> dict[str, Any]:
        """Return the error as the JSON object that the parent decodes."""
        return {
            "function": self.function,
            "library_code": self.code,
            "code": self.slug,
            "message": self.text,
        }


def loaded_library(name: str) -> str | None:
    """Return the path of the loaded library `name`; the file's name contains its version."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            paths = (line.split(maxsplit=5)[-1].strip() for line in file)
            return next((path for path in paths if f"/{name}" in path), None)
    except OSError:
        return None


def take_over_output() -> Callable[[dict[str, Any]], None]:
    """Return the writer of answers, one JSON object a line; nothing else can write to stdout."""
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def write_answer(document: dict[str, Any]) -> None:
        out.write(json.dumps(document) + "\n")
        out.flush()

    return write_answer
