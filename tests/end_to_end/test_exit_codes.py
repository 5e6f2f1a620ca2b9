"""The same situation has the same exit code in every command; detect's answer is about it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.machine import load_machine

#: Every way to need a GPU.
NEEDS_A_GPU = {
    "list": ("list",),
    "list --watch": ("list", "--watch", "0.1"),
    "list --topology": ("list", "--topology", "--processes"),
    "place DEVICE": ("place", "/gpu:0"),
    "place --count": ("place", "--count", "1"),
    "memlimit": ("memlimit", "30%"),
    "memlimit --code": ("memlimit", "30%", "--code", "pytorch"),
    "bench --require-gpu": ("bench", "matmul", "--require-gpu", "--budget", "1", "--size", "64"),
    "bench --device gpu": ("bench", "matmul", "--device", "gpu", "--budget", "1", "--size", "64"),
}
#: Situation -> its machine, detect's code, and everybody else's.
SITUATIONS = {
    "no driver": ("no-driver", 1, 4),
    "the driver's module is not loaded": ("driver-not-loaded", 1, 4),
    "library and module differ": ("version-mismatch", 1, 4),
    "a container without GPUs": ("container-without-gpus", 1, 4),
    "a driver that hangs": ("hung", 3, 3),
}


#: A watch goes on while the driver does not answer: it may answer yet.
ASKED = [
    (situation, way)
    for situation in SITUATIONS
    for way in NEEDS_A_GPU
    if (situation, way) != ("a driver that hangs", "list --watch")
]


@pytest.mark.parametrize(("situation", "way"), ASKED)
def test_without_a_gpu(situation: str, way: str, pretend: Pretend, program: Program) -> None:
    machine, _, code = SITUATIONS[situation]

    ended = program(*NEEDS_A_GPU[way], "--json", env=pretend(machine))

    assert ended.code == code
    assert ended.document(way.split()[0])["exit_code"] == code


@pytest.mark.parametrize("situation", SITUATIONS)
def test_detect_answers_it(situation: str, pretend: Pretend, program: Program) -> None:
    machine, code, _ = SITUATIONS[situation]

    ended = program("detect", "--json", env=pretend(machine))

    assert ended.code == ended.document("detect")["exit_code"] == code


@pytest.mark.parametrize("way", NEEDS_A_GPU)
def test_a_driver_without_gpus(way: str, pretend: Pretend, program: Program) -> None:
    machine = dataclasses.replace(load_machine("t4"), gpus=(), faults=())

    ended = program(*NEEDS_A_GPU[way], "--json", env=pretend(machine))

    assert ended.code == ended.document(way.split()[0])["exit_code"] == 4


@pytest.mark.parametrize("way", ["place DEVICE", "place --count", "memlimit"])
def test_with_a_command_every_failure_before_it_is_125(
    way: str, pretend: Pretend, program: Program
) -> None:
    env = pretend("no-driver")

    assert program(*NEEDS_A_GPU[way], "--", "true", env=env).code == 125
    assert program(*NEEDS_A_GPU[way], "--no-such-option", "--", "true", env=env).code == 125


#: A GPU that does not exist beside those that do is a bad answer.
NO_SUCH_GPU = {
    "list": ("list", "--gpu", "9"),
    "place": ("place", "/gpu:9"),
    "place --count": ("place", "--count", "9"),
    "memlimit": ("memlimit", "30%", "--gpu", "/gpu:9"),
}


@pytest.mark.parametrize("way", NO_SUCH_GPU)
def test_no_such_gpu(way: str, pretend: Pretend, program: Program) -> None:
    ended = program(*NO_SUCH_GPU[way], "--json", env=pretend("t4"))

    assert ended.code == ended.document(way.split()[0])["exit_code"] == 1


#: One GPU, named where it is not to be had.
ONE_GPU = {"place": ("place",), "memlimit": ("memlimit", "30%", "--gpu")}


@pytest.mark.parametrize("way", ONE_GPU)
@pytest.mark.parametrize(
    ("machine", "spec", "hidden", "code"),
    [
        ("gpu-lost", "/gpu:2", False, 1),
        ("t4", "/gpu:0", True, 1),
        ("t4", "GPU-25551a6f", True, 1),
        ("t4", "GPU-ffff", False, 1),
        ("no-driver", "GPU-ffff", False, 4),
        ("t4", "/gpu:x", True, 2),
        ("no-driver", "/gpu:x", False, 2),
        ("hung", "/gpu:x", False, 2),
    ],
)
def test_one_gpu_that_is_not_to_be_had(
    way: str,
    machine: str,
    spec: str,
    hidden: bool,
    code: int,
    pretend: Pretend,
    program: Program,
) -> None:
    env = pretend(machine) | ({"CUDA_VISIBLE_DEVICES": "-1"} if hidden else {})
    ended = program(*ONE_GPU[way], spec, "--json", env=env)

    assert ended.code == ended.document(way)["exit_code"] == code
    assert program(*ONE_GPU[way], spec, "--", "true", env=env).code == 125


#: What needs CuPy, where there is none.
NEEDS_CUPY = {
    "place --run": ("place", "/gpu:0", "--run"),
    "memlimit --verify": ("memlimit", "30%", "--verify"),
    "bench --require-gpu": NEEDS_A_GPU["bench --require-gpu"],
}


@pytest.mark.parametrize("way", NEEDS_CUPY)
def test_without_cupy(way: str, pretend: Pretend, program: Program) -> None:
    ended = program(*NEEDS_CUPY[way], "--json", env=pretend("t4"))

    assert ended.code == ended.document(way.split()[0])["exit_code"] == 4


def test_a_wait_without_success(pretend: Pretend, program: Program, tmp_path: Path) -> None:
    env = pretend("busy") | {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims")}
    wait = ("place", "--count", "1", "--wait", "--timeout", "0")
    ended = program(*wait, "--json", env=env)

    assert ended.code == ended.document("place")["exit_code"] == 1
    assert program(*wait, "--", "true", env=env).code == 125


@pytest.mark.parametrize("way", [("place", "/gpu:0"), ("memlimit", "30%")])
def test_the_commands_own_code(
    way: tuple[str, ...], pretend: Pretend, program: Program, tmp_path: Path
) -> None:
    env = pretend("t4") | {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims")}
    plain = tmp_path / "plain"
    plain.touch()
    codes = {
        ("sh", "-c", "exit 7"): 7,
        (str(plain),): 126,
        ("/no/such/command",): 127,
    }

    assert {words: program(*way, "--", *words, env=env).code for words in codes} == codes
