"""Architectures in the code of real wheels, read without installing or importing them.

    python -m tests.wheel_contents onnxruntime_gpu-1.31.1-cp312-cp312-manylinux_2_28_x86_64.whl

prints one line for each wheel, as tests/data/wheels.jsonl holds them. PyTorch and TensorFlow name
their architectures in one of their files, which detect reads in the same way; of the other
packages, the headers of the GPU code in their libraries are read: nobody lists it there.
"""

from __future__ import annotations

import json
import re
import struct
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from gpucheck.drivers.python import frameworks_child

#: First word of a container of GPU code, and the entries that it holds: PTX, or code for one GPU.
MAGIC = struct.pack("<I", 0xBA55ED50)
KINDS = {1: "compute", 2: "sm"}
CONTAINER = struct.Struct("<IHHQ")
ENTRY = struct.Struct("<HHIQIIHHI")
SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")


def architectures_of(content: bytes) -> set[tuple[int, str]]:
    """Return the architectures of the GPU code in a library, as (90, "sm")."""
    found: set[tuple[int, str]] = set()
    at = content.find(MAGIC)
    while at != -1 and at + CONTAINER.size <= len(content):
        _, version, header, size = CONTAINER.unpack_from(content, at)
        end = min(at + header + size, len(content))
        entry = at + header
        while version == 1 and header == CONTAINER.size and entry + ENTRY.size <= end:
            kind, _, length, padded, *_, architecture = ENTRY.unpack_from(content, entry)
            if kind not in KINDS or length < ENTRY.size:
                break
            found.add((architecture, KINDS[kind]))
            entry += length + padded
        at = content.find(MAGIC, at + len(MAGIC))
    return found


def shown(architectures: set[tuple[int, str]]) -> list[str]:
    """Return the architectures as the frameworks write them, PTX last."""
    ordered = sorted(architectures, key=lambda each: (each[1] == "compute", each[0]))
    return [f"{kind}_{number}" for number, kind in ordered]


def contents(wheel: Path) -> dict[str, Any]:
    """Return what a wheel holds: its CUDA, and the architectures that all of its GPU code has."""
    name, version, *_ = wheel.name.split("-")
    found: dict[str, Any] = {"wheel": wheel.name, "package": name.replace("_", "-")}
    found |= {"version": version, "cuda": None, "architectures": [], "read": []}
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        listed = archive.namelist()

        def assignments(member: str) -> dict[str, Any]:
            return frameworks_child.assignments(archive.extract(member, folder))

        if "torch/version.py" in listed:
            found["cuda"] = assignments("torch/version.py").get("cuda")
            library = archive.extract("torch/lib/libtorch_python.so", folder)
            found["architectures"] = frameworks_child.compiled_architectures(library)
            found["read"] = ["torch/lib/libtorch_python.so"]
        elif "tensorflow/python/platform/build_info.py" in listed:
            said = dict(assignments("tensorflow/python/platform/build_info.py")["build_info"])
            found["cuda"] = said.get("cuda_version")
            found["architectures"] = list(said.get("cuda_compute_capabilities", ()))
            found["read"] = ["tensorflow/python/platform/build_info.py"]
        else:
            if "onnxruntime/capi/build_and_package_info.py" in listed:
                said = assignments("onnxruntime/capi/build_and_package_info.py")
                found["cuda"] = said.get("cuda_version")
            numbered = re.search(r"cuda_?(1\d)", name)
            if numbered:
                found["cuda"] = numbered[1]
            every = {
                member: architectures_of(archive.read(member))
                for member in listed
                if SHARED_OBJECT.search(member)
            }
            code = {member: each for member, each in every.items() if each}
            found["read"] = sorted(code)
            if code:
                found["architectures"] = shown(set.intersection(*code.values()))
    return found


if __name__ == "__main__":
    for path in sys.argv[1:]:
        sys.stdout.write(json.dumps(contents(Path(path))) + "\n")
        sys.stdout.flush()
