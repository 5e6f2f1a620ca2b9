"""The start of a child that does not end with its parent: one that is stuck in the kernel.

`python untied_child.py PARENT SCRIPT [ARGUMENTS]`, as gpucheck/drivers/start_child.py.
"""

from __future__ import annotations

import runpy
import sys

sys.argv[:] = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
