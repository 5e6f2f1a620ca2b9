"""The codes of what can become of a worker process, beside the errors of its own document."""

from __future__ import annotations

DIED = "worker-died"
SILENT = "worker-silent"
LATE = "worker-late"
NO_DOCUMENT = "worker-no-document"
INTERRUPTED = "worker-interrupted"
