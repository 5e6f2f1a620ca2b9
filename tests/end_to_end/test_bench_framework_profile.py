"""A profile holds a framework's rows to a saved run, as a CI job does; NumPy is the framework."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.conftest import Ended, Program
from tests.enough_time import with_enough_time

PROFILE = """\
[profile]
schema = 1
name = "numpy-rows"
version = 1

[match]
device = "cpu"

[run]
seconds = SECONDS
processes = 2
max_processes = 2
size = 64

[[check]]
id = "softmax-numpy"
kernel = "softmax"
device = "cpu"
framework = "numpy"
baseline = true
tolerance_percent = 40
"""


def test_another_version_of_a_framework_is_told_and_forbids_the_comparison(
    program: Program, tmp_path: Path
) -> None:
    profile, saved = tmp_path / "profile.toml", tmp_path / "saved.json"

    def run(*words: str) -> tuple[Ended, Any]:
        given = ("bench", "--profile", str(profile), *words, "--json")
        ended = program(*given, env={})
        gates = ended.document("bench")["result"]["gates"]
        return ended, next(gate for gate in gates if gate["id"] == "softmax-numpy")

    def save(seconds: float) -> tuple[Ended, Any]:
        profile.write_text(PROFILE.replace("SECONDS", str(seconds)), encoding="utf-8")
        saved.unlink(missing_ok=True)
        return run("--save", str(saved), "--save-failed")

    def compare(seconds: float) -> tuple[Ended, Any]:
        profile.write_text(PROFILE.replace("SECONDS", str(seconds)), encoding="utf-8")
        return run("--baseline", str(saved))

    ended, first = with_enough_time(save, 0.5, is_whole=lambda _: saved.exists())
    kept = json.loads(saved.read_text("utf-8"))
    (device,) = kept["devices"]
    version, _, rest = device["fingerprint"]["frameworks"]["numpy"].partition(",")
    device["fingerprint"]["frameworks"]["numpy"] = f"1.0,{rest}"
    saved.write_text(json.dumps(kept), encoding="utf-8")
    other, held = with_enough_time(
        compare, 0.5, is_whole=lambda result: "left out" not in result[1]["reason"]
    )

    # Others may have been at work on this machine: then the run says so, and is kept all the same.
    assert (ended.code, first["status"]) in ((0, "skip"), (3, "inconclusive"))
    assert [one["id"] for one in kept["series"]] == ["softmax-numpy"]
    assert (other.code, held["status"]) == (3, "inconclusive")
    assert f"frameworks: numpy 1.0 -> {version}" in held["reason"]


def test_an_interpreter_that_is_none_is_refused_before_anything_is_measured(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "profile.toml").write_text(PROFILE.replace("SECONDS", "1"), encoding="utf-8")
    words = ("bench", "--profile", str(tmp_path / "profile.toml"), "--framework")

    missing = program(*words, "numpy=/no/such/python", "--json", env={})
    foreign = program(*words, "jax", "--json", env={})

    for ended, said in ((missing, "/no/such/python"), (foreign, "measures nothing with jax")):
        assert ended.code == 2
        assert said in ended.document("bench")["error"]["message"]
