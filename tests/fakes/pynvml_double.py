"""Scripted pynvml: what its functions return or raise is given by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml

#: -5 C as NVML gives it, an unsigned number.
COLD = (1 << 32) - 5


class FakeNvml(SimpleNamespace):
    """A binding whose functions are plain values, errors, or functions of the arguments."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_FUNCTION_NOT_FOUND = pynvml.NVML_ERROR_FUNCTION_NOT_FOUND

    def __init__(self, **answers: Any) -> None:
        super().__init__()
        self.calls: list[str] = []
        for name, answer in answers.items():
            setattr(self, name, self._function(name, answer))

    def _function(self, name: str, answer: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            found = answer(*arguments) if callable(answer) else answer
            if isinstance(found, Exception):
                raise found
            return found

        return call


def error(code: int) -> pynvml.NVMLError:
    return pynvml.NVMLError(code)


class Unsupporting(FakeNvml):
    """A binding whose other functions are not supported by the GPU."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return self._function(name, error(3))
