"""What the stand-ins of PyTorch, TensorFlow and JAX share: faults, pretended GPUs, traced calls.

`FAKE_FRAMEWORK` holds words: `gpus=2` pretends so many cards; `import=hang`, `import=exit`,
`import=fail`; `run=hang`, `run=exit`, `run=memory` and `run=wrong` break the first product.
`FAKE_CARD` is the cards' name. `FRAMEWORK_CALLS` names a file that receives a line for each call.
"""

from __future__ import annotations

import os
import signal
import time

_WORDS = dict(
    word.split("=", 1) for word in os.environ.get("FAKE_FRAMEWORK", "").split() if "=" in word
)
_PATH = os.environ.get("FRAMEWORK_CALLS")
_CALLS = os.open(_PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if _PATH else -1
#: Name of every pretended card.
CARD = os.environ.get("FAKE_CARD", "NVIDIA H100 80GB HBM3")


def gpu_count() -> int:
    """Return how many cards are pretended; none where they are hidden."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "-1":
        return 0
    return min(int(_WORDS.get("gpus", "0")), len(visible.split(",")) if visible else 99)


def call(what: str) -> None:
    """Note a call."""
    if _CALLS >= 0:
        os.write(_CALLS, what.encode() + b"\n")


def break_import(module: str) -> None:
    """Hang, end or fail as the words say."""
    fault = _WORDS.get("import")
    if fault == "hang":
        time.sleep(3600)
    if fault == "exit":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "fail":
        message = f"lib{module}.so: cannot open shared object file"
        raise ImportError(message)


def break_run() -> bool:
    """Break a product as the words say; return whether its result is to be wrong."""
    fault = _WORDS.get("run")
    if fault == "hang":
        time.sleep(3600)
    if fault == "exit":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "memory":
        raise MemoryError
    return fault == "wrong"
