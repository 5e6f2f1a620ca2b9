"""Our parsers against TensorFlow's DeviceSpec and PyTorch's parser of CUDA_VISIBLE_DEVICES.

What they answer to seeded texts is kept in tests/data/parsers, so that ours are held against it
always. Where a library can be imported, here or by the interpreter that GPUCHECK_TENSORFLOW_PYTHON
or GPUCHECK_TORCH_PYTHON names, the file is held against the library; with UPDATE_SNAPSHOTS=1 too it
is written anew.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpucheck.inventory.visibility import apply_rules
from gpucheck.place.device_strings import parse_device, parse_tensorflow
from gpucheck.report.errors import WrongUseError
from tests.fakes.probes import gpu_reading

TENSORFLOW = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from tensorflow.python.framework.device_spec import DeviceSpecV2
def read(text):
    try:
        return DeviceSpecV2.from_string(text).to_string()
    except ValueError as error:
        return {"error": str(error)}
import tensorflow
json.dump([tensorflow.__version__, [read(text) for text in json.load(sys.stdin)]], sys.stdout)
"""

#: The same count and the same list as its functions give for a machine with these UUIDs.
TORCH = """
import json, os, sys
import torch
cuda = torch.cuda
uuids, texts = json.load(sys.stdin)
cuda._raw_device_count_nvml = lambda: len(uuids)
cuda._raw_device_uuid_nvml = lambda: uuids
def read(text):
    os.environ["CUDA_VISIBLE_DEVICES"] = text
    try:
        count = cuda._device_count_nvml()
        entries = cuda._parse_visible_devices()
        if entries and isinstance(entries[0], str):
            if count < 0:
                return {"error": "left to the runtime"}
            entries = cuda._transform_uuid_to_ordinals(entries, uuids)
        return entries[:count]
    except (ValueError, RuntimeError) as error:
        return {"error": repr(error)}
json.dump([torch.__version__, [read(text) for text in texts]], sys.stdout)
"""


DATA = Path(__file__).resolve().parent.parent / "data" / "parsers"


def kept_answers(library: str, texts: list[str]) -> list[Any]:
    """Return what the library answered to the texts, from the file."""
    document = json.loads((DATA / f"{library}.json").read_text(encoding="utf-8"))
    assert list(document["answers"]) == texts, "the texts have changed: write the file anew"
    return list(document["answers"].values())


def written(version: str, answers: dict[str, Any]) -> str:
    """Return the text of a file of answers: a line for each, so that a change is one line."""
    lines = (f"{json.dumps(text)}: {json.dumps(answer)}" for text, answer in answers.items())
    return f'{{"version": {json.dumps(version)}, "answers": {{\n' + ",\n".join(lines) + "\n}}\n"


def live_answers(library: str, program: str, question: object) -> Any:
    """Ask the library in its interpreter for its version and answers, or skip."""
    named = os.environ.get(f"GPUCHECK_{library.upper()}_PYTHON")
    # Not find_spec: tests of other files may have put the pretended torch on the path.
    if named is None and library not in importlib.metadata.packages_distributions():
        pytest.skip(f"{library} is not installed, and GPUCHECK_{library.upper()}_PYTHON not set")
    finished = subprocess.run(
        [named or sys.executable, "-c", program],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(finished.stdout)


def mixed(pieces: list[str], count: int, seed: int, longest: int) -> list[str]:
    """Return texts made of pieces, the same ones at every run."""
    chance = random.Random(seed)
    short = ["".join(pair) for pair in itertools.product(pieces, repeat=2)]
    made = ["".join(chance.choices(pieces, k=chance.randint(1, longest))) for _ in range(count)]
    return list(dict.fromkeys([*pieces, *short, *made]))


# ---------------------------------------------------------------------------------- TensorFlow

DEVICE_PIECES = [
    "/", ":", "gpu", "GPU", "cpu", "device", "Device", "job", "replica", "task", "0", "1", "*",
    "-1", "+1", "01", " ", "x", "localhost", "tpu", "/gpu:0", "/job:worker", "/task:1", "/cpu:0",
    "/device:GPU:1", "/device:NPU:0",
]  # fmt: skip


def device_texts() -> list[str]:
    return mixed(DEVICE_PIECES, 1000, seed=1, longest=8)


def is_foreign(text: str) -> bool:
    """Return whether another library's grammar takes this text, which TensorFlow refuses.

    Known difference 1: `cuda:0`, `cuda0`, `gpu0`, `gpu,0` and `0` are PyTorch's, Theano's and
    CuPy's names; people use them, and TensorFlow has no other meaning for them.
    """
    return is_taken(parse_device, text) and not is_taken(parse_tensorflow, text)


def is_taken(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except WrongUseError:
        return False
    return True


def test_device_strings_mean_what_they_mean_to_tensorflow() -> None:
    """Known difference 2: after TensorFlow's words we add which text a bad number stands in.

    And what begins as UUIDs do (`gpu-1`) is refused as one, in words of our own.
    """
    texts = device_texts()
    theirs = kept_answers("tensorflow", texts)

    differing = []
    for text, said in zip(texts, theirs, strict=True):
        try:
            ours: object = parse_device(text).canonical
        except WrongUseError as error:
            ours = {"error": error.message}
        if is_foreign(text):
            assert isinstance(said, dict), text
        elif isinstance(said, dict) and isinstance(ours, dict):
            if text.lower().startswith("gpu-") and "UUID" in str(ours["error"]):
                continue
            if not str(ours["error"]).startswith(said["error"].rstrip(".")[:60]):
                differing.append((text, said, ours))
        elif ours != said:
            differing.append((text, said, ours))
    assert differing == []


# ---------------------------------------------------------------------------------- PyTorch

UUIDS = [
    "GPU-9942190a-aa31-4ff1-4aa9-c388d80f85f1",
    "GPU-9e8d35e3-a134-0fdd-0e01-23811fdbd293",
    "GPU-e429a63e-c61c-4795-b757-5132caeb8e70",
]
VISIBLE_PIECES = [
    "0", "1", "2", "3", "9", "-1", "+1", "-0", " 1", "1 ", "a", "2x", "none", "GPU-9", "GPU-99",
    "GPU-e4", "GPU-7", UUIDS[0], UUIDS[1], "MIG-1", ":1", "-2",
]  # fmt: skip


def visible_texts() -> list[str]:
    lists = [",".join(item) for item in itertools.product(VISIBLE_PIECES, repeat=2)]
    chance = random.Random(2)
    lists += [",".join(chance.choices(VISIBLE_PIECES, k=chance.randint(3, 5))) for _ in range(1000)]
    return list(dict.fromkeys([*VISIBLE_PIECES, *lists]))


def known_difference(text: str, theirs: object) -> bool:
    """Return whether PyTorch is known to differ from the driver, or leaves it to the runtime.

    3. A lone or a double sign raises in PyTorch's parser; C's strtol reads no number there, so the
       entry is invalid and ends the list.
    4. PyTorch looks for duplicates before it looks whether a number exists (`0,9,0` is nothing);
       the driver's order of the two is not documented, and our rules leave it open.
    5. Lists that begin with a MIG instance are left to the runtime.
    """
    return isinstance(theirs, dict)


def test_visible_devices_are_those_of_pytorch() -> None:
    texts = visible_texts()
    theirs = kept_answers("torch", texts)
    gpus = [gpu_reading(index, uuid=uuid) for index, uuid in enumerate(UUIDS)]

    differing, compared = [], 0
    for text, said in zip(texts, theirs, strict=True):
        found = apply_rules(text, "PCI_BUS_ID", gpus)
        if found.open_question or known_difference(text, said):
            continue
        compared += 1
        ours = [UUIDS.index(uuid) for uuid in found.visible or ()]
        if ours != said:
            differing.append((text, said, ours))
    assert differing == []
    assert compared > len(texts) / 4


# ------------------------------------------------------------------------------- the file is true


@pytest.mark.slow
@pytest.mark.parametrize("library", ["tensorflow", "torch"])
def test_what_is_kept_is_what_the_library_answers(library: str) -> None:
    of_torch = library == "torch"
    texts = visible_texts() if of_torch else device_texts()
    question: object = [UUIDS, texts] if of_torch else texts
    version, answers = live_answers(library, TORCH if of_torch else TENSORFLOW, question)
    kept = DATA / f"{library}.json"

    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        given = dict(zip(texts, answers, strict=True))
        kept.write_text(written(version, given), encoding="utf-8")
    assert kept_answers(library, texts) == answers
