"""Start-up module that `site` runs in each interpreter below `gpucheck memlimit … -- CMD`.

It installs the import hook, restores the user's module search path, and then lets the user's own
`sitecustomize`, if any, take this file's place. Any Python may read this file.
"""

import sys

_FOLDER = __file__.rpartition("/")[0]

if sys.version_info >= (3, 7):  # noqa: UP036
    try:
        import gpucheck_limit_hook  # type: ignore[import-not-found]

        gpucheck_limit_hook.install_from_environment()
    except Exception as error:
        sys.stderr.write("gpucheck: warning: no memory limit by import hook: %r\n" % (error,))  # noqa: UP031

sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
# As if this file were not there: without the user's own, the import fails as usual.
sys.modules.pop("sitecustomize", None)
import sitecustomize  # type: ignore[import-not-found] # noqa: E402, F401
