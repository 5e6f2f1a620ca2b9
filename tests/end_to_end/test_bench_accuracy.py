"""Training on MNIST files ends at the same accuracy in gpucheck and in every framework."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpucheck.bench.framework_conclusions import ACCURACY_POINTS
from tests.end_to_end.conftest import Program
from tests.enough_time import has_every_row, with_enough_time

#: Variables that name real MNIST's file, as --data takes it, and Pythons that have frameworks.
MNIST, PYTHONS = "GPUCHECK_TEST_MNIST", "GPUCHECK_FRAMEWORK_PYTHONS"
MODULES = {"pytorch": "torch", "tensorflow": "tensorflow", "jax": "jax"}


def write_digits(path: Path) -> None:
    """Write an NPZ in MNIST's form: ten noisy figures, of which a tenth have a wrong label."""
    random = np.random.default_rng(0)
    figures = random.integers(0, 256, (10, 28, 28))
    labels = random.integers(0, 10, 3000)
    noise = random.normal(0, 180, (3000, 28, 28))
    images = np.clip(figures[labels] + noise, 0, 255).astype(np.uint8)
    shown = np.where(random.random(3000) < 0.1, random.integers(0, 10, 3000), labels)
    parts = {"x_train": images[:2000], "y_train": shown[:2000]}
    np.savez(path, **parts, x_test=images[2000:], y_test=shown[2000:])


def accuracies(result: Any) -> dict[str, float]:
    """Return what each maker reached."""
    return {
        row["framework"]["name"] if row["framework"] else "gpucheck": row["facts"]["accuracy"]
        for row in result["measurements"]
    }


def train(program: Program, file: str, frameworks: list[str], seconds: float) -> Any:
    named = [word for one in frameworks for word in ("--framework", one)]
    words = ("bench", "train", "--device", "cpu", "--quick", "--data", file, *named, "--json")
    found = with_enough_time(
        lambda budget_s: program(*words, "--budget", str(budget_s), env={}).document("bench"),
        seconds,
        is_whole=has_every_row,
    )
    assert found["exit_code"] == 0
    return found["result"]


def test_numpy_as_a_framework_learns_what_gpucheck_learns(program: Program, tmp_path: Path) -> None:
    write_digits(tmp_path / "digits.npz")

    result = train(program, str(tmp_path / "digits.npz"), ["numpy"], 4)

    found = accuracies(result)
    assert set(found) == {"gpucheck", "numpy"}
    assert 0.5 < found["gpucheck"] < 0.98, "the files must be neither hopeless nor trivial"
    assert 100 * abs(found["numpy"] - found["gpucheck"]) <= ACCURACY_POINTS
    assert "same-accuracy" in {one["code"] for one in result["conclusions"]}
    doubts = {doubt["code"] for row in result["measurements"] for doubt in row["doubts"]}
    assert "accuracy-differs" not in doubts


def installed() -> list[str]:
    """Return the frameworks of the Pythons that are named, as --framework takes them."""
    found: dict[str, str] = {}
    for python in filter(None, os.environ.get(PYTHONS, "").split(":")):
        names = [*MODULES.values()]
        code = f"import importlib.util as u; print(*(bool(u.find_spec(name)) for name in {names}))"
        done = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, check=True
        )
        for name, there in zip(MODULES, done.stdout.split(), strict=True):
            if there == "True":
                found.setdefault(name, python)
    return [f"{name}={python}" for name, python in found.items()]


def test_real_mnist_ends_alike_in_all_frameworks(program: Program) -> None:
    file, frameworks = os.environ.get(MNIST), installed()
    if file is None or not frameworks:
        pytest.skip(f"{MNIST} names no MNIST file, or {PYTHONS} no Python with a framework")

    result = train(program, file, frameworks, 60)

    found = accuracies(result)
    assert set(found) == {"gpucheck", *(one.partition("=")[0] for one in frameworks)}
    assert 100 * (max(found.values()) - min(found.values())) <= ACCURACY_POINTS, found
