"""cupy.cuda.compiler."""

from .._pretended.errors import CompileException

__all__ = ["CompileException"]
CompileException.__module__ = __name__
