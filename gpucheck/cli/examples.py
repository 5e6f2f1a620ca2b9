"""Example recordings that come with the program: what `--from example:NAME` answers from.

Each is the document of `gpucheck snapshot` on a simulated machine; tests/fakes/examples.py makes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from gpucheck.drivers.interface import Probes
from gpucheck.report.errors import WrongUseError
from gpucheck.report.text import did_you_mean, shown

PREFIX = "example:"
FOLDER = Path(__file__).parent.parent / "data" / "examples"

#: Name -> what it shows. A file NAME.json of the folder has the recording.
EXAMPLES = MappingProxyType(
    {
        "h100x8": "healthy node: eight H100, five of them in use",
        "geforce": "healthy desktop: one GeForce RTX 4090 with a display",
        "mig": "healthy node: an A100 in three MIG devices, and a whole one",
        "lost-gpu": "one of four A100 fell off the bus",
        "nouveau": "no usable GPU: nouveau holds it instead of the NVIDIA driver",
        "version-mismatch": "no usable GPU: the driver was upgraded, the old module still runs",
    }
)


def find_recording(text: str) -> Path:
    """Return the file that a value of --from names.

    Raises:
        WrongUseError: there is no example of that name.
    """
    if not text.startswith(PREFIX):
        return Path(text)
    name = text.removeprefix(PREFIX)
    if name in EXAMPLES:
        return FOLDER / f"{name}.json"
    suggestion = did_you_mean(name, EXAMPLES)
    fact = f"There is no example {name[:40]!r}." if name else f"{PREFIX} needs a name."
    raise WrongUseError(
        code="unknown-example",
        message=f"{fact} {suggestion}".strip(),
        remedy=(
            *(f"{PREFIX}{known}: {shows}" for known, shows in EXAMPLES.items()),
            f"For a file of that name write ./{PREFIX}{name[:40]}",
        ),
    )


def open_recording(source: str, variables: Mapping[str, str]) -> tuple[Probes, str | None]:
    """Open what --from names; return it, and a sentence where a variable here says otherwise.

    An example is nobody's machine, so that the caller's CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
    decide what CUDA shows of it; any other recording keeps its own.
    """
    from gpucheck.drivers.recorded import RecordedProbes, read_snapshot

    snapshot = read_snapshot(find_recording(source))
    others = {
        name: variables[name]
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
        if name in variables and variables[name] != snapshot.environment.get(name)
    }
    if not others:
        return RecordedProbes(snapshot), None
    set_here = " and ".join(f"{name}={shown(text, 80)}" for name, text in others.items())
    if not source.startswith(PREFIX):
        theirs = " and ".join(
            f"{name}={shown(snapshot.environment[name], 80)}"
            if name in snapshot.environment
            else f"{name} unset"
            for name in others
        )
        return RecordedProbes(snapshot), f"{set_here}: not counted, the recording has {theirs}."
    from gpucheck.inventory.snapshot import see_through

    return RecordedProbes(
        see_through(snapshot, others)
    ), f"{set_here}: counted, as if the example were this machine."


def list_examples() -> str:
    """Return the examples as lines of text, and what to do with them."""
    width = max(map(len, EXAMPLES))
    lines = (f"  {PREFIX}{name:{width}}  {shows}" for name, shows in EXAMPLES.items())
    first = next(iter(EXAMPLES))
    return "\n".join(
        (
            "Examples for --from, recorded on simulated machines, to try gpucheck without a GPU:",
            *lines,
            "For instance:",
            f"  gpucheck list --from {PREFIX}{first}",
            f"  gpucheck detect --from {PREFIX}lost-gpu",
            "",
        )
    )
