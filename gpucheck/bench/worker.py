"""Error codes of a failed worker process, beyond the errors in its own document."""

from __future__ import annotations

DIED = "worker-died"
SILENT = "worker-silent"
LATE = "worker-late"
NO_DOCUMENT = "worker-no-document"
INTERRUPTED = "worker-interrupted"
