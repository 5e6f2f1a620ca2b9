"""Example recordings: `--from example:NAME` answers on any machine, and says that it is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gpucheck.cli.examples import EXAMPLES, FOLDER
from tests.fakes.examples import SOURCES, record
from tests.fakes.libraries import compiler

#: What a stranger tries, with the code on each example.
QUESTIONS = {
    ("detect",): {"lost-gpu": 1, "nouveau": 1, "version-mismatch": 1},
    ("list",): {"nouveau": 4, "version-mismatch": 4},
    ("place", "/gpu:0"): {"nouveau": 4, "version-mismatch": 4},
    ("place", "--count", "1"): {"geforce": 1, "nouveau": 4, "version-mismatch": 4},
    ("memlimit", "30%"): {"nouveau": 4, "version-mismatch": 4},
}
MARK = "recorded example, not this machine"


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_file_is_what_the_program_records(name: str, tmp_path: Path) -> None:
    kept = (FOLDER / f"{name}.json").read_text(encoding="utf-8")

    assert json.loads(record(name, tmp_path)) == json.loads(kept), (
        "after a change of the snapshot: python -m tests.fakes.examples"
    )


def test_there_is_a_file_for_each_name() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(EXAMPLES) == set(SOURCES)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 150_000


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("question", QUESTIONS, ids=" ".join)
def test_every_command_answers_and_marks_its_answer(
    name: str, question: tuple[str, ...], gpucheck_command: Callable
) -> None:
    code = QUESTIONS[question].get(name, 0)

    shown = gpucheck_command(*question, "--from", f"example:{name}")
    document = gpucheck_command(*question, "--json", "--from", f"example:{name}").document

    assert shown.code == document["exit_code"] == code
    if shown.stdout and "--count" not in question:
        assert shown.stdout.splitlines()[0] == f"{name}: {MARK}"
    else:
        assert f"gpucheck: {name}: {MARK}" in shown.stderr
    assert document["host"]["recorded"] is True
    if document["result"] is not None:
        assert document["time"] == "2026-01-02T03:04:05Z"


def test_text_for_programs_stays_clean_and_stderr_says_it(gpucheck_command: Callable) -> None:
    shown = gpucheck_command("list", "--format", "csv", "--from", "example:h100x8")

    assert MARK not in shown.stdout
    assert f"h100x8: {MARK}" in shown.stderr


def test_answers_of_this_machine_are_not_marked(gpucheck_command: Callable) -> None:
    assert gpucheck_command("list", "--json").document["host"]["recorded"] is False


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "example: needs a name."),
        ("h100", "There is no example 'h100'. Did you mean 'h100x8'?"),
        ("lostgpu", "There is no example 'lostgpu'. Did you mean 'lost-gpu'?"),
        ("zzz", "There is no example 'zzz'."),
    ],
)
def test_an_unknown_name_shows_the_examples(
    name: str, says: str, gpucheck_command: Callable
) -> None:
    ended = gpucheck_command("list", "--json", "--from", f"example:{name}")

    assert (ended.code, ended.document["error"]["code"]) == (2, "unknown-example")
    assert ended.document["error"]["message"] == says
    assert all(f"example:{known}: " in ended.stderr for known in EXAMPLES)


def test_a_file_of_that_name_is_reached_by_its_path(
    gpucheck_command: Callable, tmp_path: Path
) -> None:
    kept = json.loads((FOLDER / "lost-gpu.json").read_text(encoding="utf-8"))
    kept["result"]["host"]["name"] = "mine"
    (tmp_path / "example:h100x8").write_text(json.dumps(kept), encoding="utf-8")

    ended = gpucheck_command("list", "--json", "--from", f"{tmp_path}/example:h100x8")

    assert ended.document["host"]["name"] == "mine"


def test_a_monitors_line_comes_alone(gpucheck_command: Callable) -> None:
    ended = gpucheck_command("detect", "--format", "line", "--from", "example:lost-gpu")

    assert ended.stdout.startswith("FAIL ")
    assert "GPU 2 (0000:2a:00.0) fell off the bus" in ended.stdout
    assert ended.stderr == "gpucheck: lost-gpu: recorded example, not this machine\n"


@pytest.mark.parametrize("command", [("place", "/gpu:0"), ("memlimit", "30%")], ids=" ".join)
def test_a_command_cannot_run_on_an_example(
    command: tuple[str, ...], gpucheck_command: Callable
) -> None:
    ended = gpucheck_command(*command, "--from", "example:h100x8", "--", "true")

    assert ended.code == 125
    assert "no command can run on one" in ended.stderr


def test_the_examples_are_listed(gpucheck_command: Callable) -> None:
    shown = gpucheck_command("--list-examples")

    assert shown.code == 0
    for name, shows in EXAMPLES.items():
        assert f"example:{name} " in shown.stdout
        assert shows in shown.stdout


class TestVariablesOfTheCaller:
    """Whoever tries an example without a GPU sees what CUDA_VISIBLE_DEVICES does."""

    HIDING = {"CUDA_VISIBLE_DEVICES": "2"}  # noqa: RUF012
    NAMED = "CUDA_VISIBLE_DEVICES=2: counted, as if the example were this machine."

    def test_a_hidden_gpu_is_refused(self, gpucheck_command: Callable) -> None:
        words = ("place", "/gpu:2", "--from", "example:h100x8")

        refused = gpucheck_command(*words, env=self.HIDING)

        assert refused.code == 1
        assert self.NAMED in refused.stderr
        assert "There is no '/gpu:2' here." in refused.stderr
        assert gpucheck_command(*words).code == 0

    def test_soft_placement_and_the_only_gpu(self, gpucheck_command: Callable) -> None:
        document = gpucheck_command(
            "place", "/gpu:0", "/gpu:2", "--soft", "--json", "--from", "example:h100x8",
            env=self.HIDING,
        ).document  # fmt: skip

        first, second = document["result"]["devices"]
        assert (first["index"], first["cuda_index"], first["soft"]) == (2, 0, False)
        assert (second["index"], second["soft"]) == (2, True)

    @pytest.mark.parametrize("text", ["", "9", "GPU-0"])
    def test_nothing_is_visible(self, text: str, gpucheck_command: Callable) -> None:
        detected = gpucheck_command(
            "detect", "--json", "--from", "example:h100x8", env={"CUDA_VISIBLE_DEVICES": text}
        ).document

        assert (detected["exit_code"], detected["result"]["first_failure"]) == (1, "visibility")

    def test_another_recording_keeps_its_own(
        self, gpucheck_command: Callable, tmp_path: Path
    ) -> None:
        file = tmp_path / "node.json"
        file.write_bytes((FOLDER / "h100x8.json").read_bytes())
        words = ("place", "/gpu:2", "--from", str(file))

        placed = gpucheck_command(*words, env=self.HIDING)

        assert placed.code == 0
        assert (
            "CUDA_VISIBLE_DEVICES=2: not counted, the recording has CUDA_VISIBLE_DEVICES unset."
        ) in placed.stderr
        assert "counted" not in gpucheck_command(*words, "-q", env=self.HIDING).stderr
        assert "counted" not in gpucheck_command(*words).stderr

    def test_the_rules_leave_split_cards_open(self, gpucheck_command: Callable) -> None:
        placed = gpucheck_command(
            "place", "/gpu:0", "--json", "--from", "example:mig",
            env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ).document  # fmt: skip

        assert (placed["exit_code"], placed["error"]["code"]) == (3, "cuda-order-unknown")
