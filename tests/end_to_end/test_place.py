"""`gpucheck place` as a whole, on pretended machines."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import scrubbed_environment
from tests.end_to_end.conftest import Pretend, Program
from tests.fakes.machine import load_machine

ROOT = Path(__file__).parents[2]
CASES = ROOT / "configs" / "place"
#: As a shell's word: the checkout may lie anywhere.
PYTHON = shlex.quote(sys.executable)


@pytest.fixture
def claims(tmp_path: Path) -> dict[str, str]:
    """Return the variable for claims of this test's own."""
    return {"GPUCHECK_CLAIMS_DIR": str(tmp_path / "claims")}


@pytest.fixture
def h100s(pretend: Pretend, claims: dict[str, str]) -> dict[str, str]:
    """Return eight H100; five of them are busy without a claim."""
    return pretend("h100x8") | claims


def result(program: Program, *words: str, env: dict[str, str], name: str = "place") -> Any:
    return program("place", *words, "--json", env=env).document(name)["result"]


class TestDevices:
    @pytest.mark.parametrize("spec", ["/gpu:1", "cuda:1", "cuda1", "1", "/device:GPU:1"])
    def test_every_name_is_the_card_that_cuda_counts(
        self, program: Program, pretend: Pretend, spec: str
    ) -> None:
        found = result(program, spec, env=pretend("mixed-order"))

        (device,) = found["devices"]
        assert (device["cuda_index"], device["index"]) == (1, 0)
        assert [op["op"] for op in found["ops"]] == ["Const", "Const", "MatMul"]
        assert found["value"] is None
        assert [(t["what"], t["bytes"]) for t in found["transfers"]] == [("MatMul", 16)]

    def test_no_card_is_touched_without_run(
        self, program: Program, pretend: Pretend, call_log: Path
    ) -> None:
        env = pretend("h100x8") | {"FAKE_CALL_LOG": str(call_log)}

        assert program("place", "/gpu:0", env=env).code == 0
        called = call_log.read_text(encoding="ascii")
        assert "\ncuInit" in called  # which card has the number
        assert not [name for name in ("Ctx", "Mem", "Module", "Launch") if f"\ncu{name}" in called]
        assert "cuDevicePrimaryCtx" not in called

    def test_a_missing_device(self, program: Program, pretend: Pretend) -> None:
        ended = program("place", "/gpu:2", "--json", env=pretend("t4"))

        assert ended.code == 1
        assert ended.document("place")["error"]["code"] == "no-such-device"
        assert "TensorFlow" not in ended.said
        more = program("place", "/gpu:2", "-v", env=pretend("t4"))
        assert "could not satisfy device specification" in more.said

    def test_why_there_is_no_device_at_all(self, program: Program, pretend: Pretend) -> None:
        env = pretend("no-driver")
        ended = program("place", "/gpu:0", env=env)
        soft = program("place", "--soft", "/gpu:0", env=env)
        cpu = program("place", "/cpu:0", "--strict", env=env)

        assert ended.code == 4
        cause = "There is no '/gpu:0' here: libnvidia-ml.so.1 was not found"
        assert ended.said.startswith(f"gpucheck: {cause}")
        assert "Only /cpu:0 exists here" in ended.said
        assert program("place", "/gpu:0", "--", "true", env=env).code == 125
        assert (soft.code, "warning: The GPUs cannot be listed" in soft.said) == (0, True)
        assert (cpu.code, cpu.said) == (0, "")

    def test_without_nvml_the_gpus_of_cuda_are_those_of_every_command(
        self, program: Program, pretend: Pretend
    ) -> None:
        env = pretend(load_machine("t4").with_driver(nvml=False))
        listed = program("list", "--json", env=env).document("list")
        placed = program("place", "/gpu:0", "--json", env=env).document("place")
        limited = program("memlimit", "30%", "--json", env=env).document("memlimit")

        (gpu,), (device,) = listed["result"]["gpus"], placed["result"]["devices"]
        assert device["uuid"] == gpu["uuid"] == limited["result"]["gpus"][0]["uuid"]
        for document in (listed, placed, limited):
            assert (document["exit_code"], document["status"]) == (0, "warn")
            assert document["warnings"][0]["code"] == "nvml-missing"

    def test_a_card_that_takes_no_program_is_a_warning(
        self, program: Program, pretend: Pretend
    ) -> None:
        env = pretend(load_machine("t4").with_gpu(0, compute_mode="prohibited"))

        for words, name in ((("place", "/gpu:0"), "place"), (("memlimit", "30%"), "memlimit")):
            document = program(*words, "--json", env=env).document(name)
            codes = [notice["code"] for notice in document["warnings"]]
            assert "compute-mode-prohibited" in codes

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_a_full_device_is_one_sentence(
        self, program: Program, pretend: Pretend, unbuffered: str
    ) -> None:
        env = pretend("t4") | {"PYTHONUNBUFFERED": unbuffered}
        with Path("/dev/full").open("wb") as full:
            ended = program("place", "/gpu:0", env=env, stdout=full)

        assert ended.code == 2
        assert "No space left on device" in ended.said
        assert "Traceback" not in ended.said

    def test_a_bad_string_asks_nobody(
        self, program: Program, pretend: Pretend, call_log: Path
    ) -> None:
        env = pretend("t4") | {"FAKE_CALL_LOG": str(call_log)}

        assert program("place", "/gpu:x", env=env).code == 2
        assert not call_log.exists()


class TestGraphs:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("single-gpu", [[22, 28], [49, 64]]),
            ("manual-cpu", [[22, 28], [49, 64]]),
            ("one-of-many", [[22, 28], [49, 64]]),
            ("towers", [[44, 56], [98, 128]]),
        ],
    )
    def test_the_tutorials_run(
        self, program: Program, pretend: Pretend, name: str, value: object
    ) -> None:
        found = result(
            program,
            "--graph",
            str(CASES / f"{name}.toml"),
            "--run",
            "--soft",
            env=pretend("no-driver"),
        )

        assert found["value"] == value

    def test_the_log_is_tensorflows(self, program: Program, pretend: Pretend) -> None:
        ended = program("place", "/cpu:0", "--run", env=pretend("no-driver"))

        assert "  MatMul: (MatMul): /job:localhost/replica:0/task:0/device:CPU:0\n" in ended.text
        assert "Value: [[22, 28], [49, 64]]\n" in ended.text

    def test_advice_names_the_line(self, program: Program, pretend: Pretend) -> None:
        found = result(program, "--graph", str(CASES / "manual-cpu.toml"), env=pretend("t4"))

        assert "manual-cpu.toml:5: a on /device:GPU:0" in found["advice"][0]

    def test_a_bad_file(self, program: Program, pretend: Pretend, tmp_path: Path) -> None:
        path = tmp_path / "g.toml"
        path.write_text("[a]\nop = 'nothing'\n", encoding="ascii")
        ended = program("place", "--graph", path, "--json", env=pretend("t4"))

        assert ended.code == 2
        assert "g.toml:2: a: 'nothing' is not a choice for op" in ended.said
        assert ended.document("place")["error"]["code"] == "bad-graph"


class TestChoosing:
    def test_uuids_on_stdout_and_a_line_on_stderr(
        self, program: Program, h100s: dict[str, str]
    ) -> None:
        ended = program("place", "--count", "2", env=h100s)

        assert ended.code == 0
        assert ended.text.count("GPU-") == 2
        assert ended.text.count("\n") == 1
        assert ended.said == (
            "gpucheck: GPUs 5-6: 79.1 GiB free each; not held (add -- CMD to hold while CMD runs)\n"
        )
        each = program("place", "--count", "2", "-v", env=h100s).said
        assert each.count("in use by") == 5
        assert each.count(": chosen: ") == 2

    def test_too_many(self, program: Program, h100s: dict[str, str]) -> None:
        ended = program("place", "--count", "4", "--json", env=h100s)
        document = ended.document("place")

        assert ended.code == 1
        assert document["error"]["code"] == "nothing-fits"
        assert len(document["result"]["candidates"]) == 8

    def test_index_env_and_shell(self, program: Program, h100s: dict[str, str]) -> None:
        by_index = program("place", "--count", "1", "--format", "index", env=h100s).text
        by_env = program("place", "--count", "1", "--format", "env", env=h100s).text
        by_shell = program("place", "--count", "1", "--format", "shell", env=h100s).text

        assert by_index == "5\n"
        assert by_env == "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=5\n"
        assert by_shell.startswith("export CUDA_VISIBLE_DEVICES=GPU-")

    @pytest.mark.parametrize("words", [["--count", "2"], ["/gpu:1", "cuda:6", "/gpu:1", "/cpu:0"]])
    def test_a_shell_gets_just_these(
        self, program: Program, h100s: dict[str, str], words: list[str]
    ) -> None:
        """Each card once, though it is named twice: a second time would empty the whole list."""
        place = f"{PYTHON} -m gpucheck place {' '.join(words)} --quiet --format"
        script = (
            f'(found=$({place} shell) && eval "$found" && echo "$CUDA_VISIBLE_DEVICES"); '
            f"{place} uuid; env $({place} env) sh -c 'echo $CUDA_VISIBLE_DEVICES'; {place} index"
        )
        ended = subprocess.run(
            ["sh", "-c", script],
            env=scrubbed_environment(h100s),
            capture_output=True,
            text=True,
            check=True,
        )

        evaluated, uuids, by_env, indices = ended.stdout.splitlines()
        assert evaluated == uuids
        assert len(uuids.split(",")) == len(set(uuids.split(","))) == 2
        assert by_env == indices == ("5,6" if "--count" in words else "1,6")

    @pytest.mark.parametrize("form", ["uuid", "shell", "index", "env"])
    def test_nothing_is_evaluated_where_nothing_fits(
        self, program: Program, h100s: dict[str, str], form: str
    ) -> None:
        for words in (["--count", "4"], ["/gpu:9"]):
            ended = program("place", *words, "--format", form, env=h100s)
            assert (ended.code, ended.text) == (1, "")

    def test_no_index_beside_a_split_card(self, program: Program, pretend: Pretend) -> None:
        ended = program("place", "/gpu:0", "--format", "index", env=pretend("a100-mig"))

        assert (ended.code, ended.text) == (3, "")
        assert "--format uuid" in ended.said

    def test_strictly_inside_the_inherited_set(
        self, program: Program, h100s: dict[str, str]
    ) -> None:
        order = {"CUDA_VISIBLE_DEVICES": "7,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

        found = result(program, "--count", "1", env=h100s | order)
        assert found["devices"][0]["index"] == 7
        again = found["environment"]
        assert result(program, "--count", "1", env=h100s | again)["environment"] == again
        assert program("place", "--count", "2", env=h100s | order).code == 1

    @pytest.mark.parametrize(
        "words", [["--name", "A100"], ["--min-compute-capability", "10.0"], ["--min-free", "90GiB"]]
    )
    def test_nothing_fits(self, program: Program, h100s: dict[str, str], words: list[str]) -> None:
        assert program("place", "--count", "1", *words, env=h100s).code == 1

    def test_mig_instances(
        self, program: Program, pretend: Pretend, claims: dict[str, str]
    ) -> None:
        env = pretend("a100-mig") | claims
        found = result(program, "--count", "1", "--name", "MIG", "--min-free", "1GiB", env=env)

        assert found["devices"][0]["uuid"].startswith("MIG-")
        assert len(found["candidates"]) == 4
        ended = program("place", "--count", "1", "--format", "index", env=env)
        assert (ended.code, ended.text) == (3, "")

    @pytest.mark.parametrize("name", ["no-driver", "hung"])
    def test_no_machine(
        self, program: Program, pretend: Pretend, claims: dict[str, str], name: str
    ) -> None:
        ended = program("place", "--count", "1", "--json", env=pretend(name) | claims)

        assert ended.code == {"no-driver": 4, "hung": 3}[name]
        assert ended.document("place")["error"]


class TestCommands:
    def test_the_command_holds_what_it_was_given(
        self, program: Program, h100s: dict[str, str]
    ) -> None:
        inside = f"echo $CUDA_VISIBLE_DEVICES; {PYTHON} -m gpucheck place --claims --json"
        ended = program("place", "--count", "1", "--", "sh", "-c", f"{inside}; exit 7", env=h100s)
        uuid, document = ended.text.splitlines()

        assert ended.code == 7
        assert f'"uuid":"{uuid}"' in document
        assert '"command":"sh -c' in document
        assert result(program, "--claims", env=h100s, name="claims")["claims"] == []

    def test_the_devices_are_reported(self, program: Program, h100s: dict[str, str]) -> None:
        chosen = program("place", "--count", "1", "--", "true", env=h100s)
        named = program("place", "/gpu:6", "/cpu:0", "--", "true", env=h100s)

        assert chosen.said == "gpucheck: the command gets GPU 5 (NVIDIA H100 80GB HBM3)\n"
        more = program("place", "--count", "1", "-v", "--", "true", env=h100s)
        assert "gpucheck: the command's GPU 0 is GPU 5 (NVIDIA H100 80GB HBM3, GPU-" in more.said
        assert "gpucheck: /gpu:6 is GPU 6 (NVIDIA H100 80GB HBM3, GPU-" in named.said
        assert "gpucheck: /cpu:0 is the CPU\n" in named.said

    def test_a_bad_end_has_its_cause_in_a_line(
        self, program: Program, h100s: dict[str, str], tmp_path: Path
    ) -> None:
        log = tmp_path / "train.log"
        log.write_text("Killed\n")
        fails = f"echo out; echo err >&2; echo CUDA error 802 >> {log}; kill -9 $$"
        words = ("place", "--count", "1", "--log", log, "--", "sh", "-c")
        ended = program(*words, fails, env=h100s)
        well = program(*words, f"echo CUDA error 802 >> {log}", env=h100s)

        assert (ended.code, ended.text) == (137, "out\n")
        _, err, said = ended.said.splitlines()
        assert err == "err"
        assert said.startswith(
            f"gpucheck: the command ended with 137 (SIGKILL): {log}:2: the fabric"
        )
        assert well.code == 0
        assert "ended with" not in well.said

    def test_quietly_it_becomes_the_command(self, program: Program, h100s: dict[str, str]) -> None:
        show = f"import os; print(os.getpid(), os.getppid() == {os.getpid()}); raise SystemExit(3)"
        words = ("place", "--count", "1", "-q", "--", sys.executable, "-c", show)
        with program.start(*words, env=h100s) as process:
            out, err = process.communicate()

        assert (process.returncode, err) == (3, b"")
        assert out.decode() == f"{process.pid} True\n"

    def test_a_log_is_for_a_command(self, program: Program, h100s: dict[str, str]) -> None:
        ended = program("place", "/gpu:0", "--log", "t.log", env=h100s)

        assert ended.code == 2
        assert "--log reads what a command writes: add one after `--`." in ended.said
        for folder in ("-", "/"):
            ended = program("place", "/gpu:0", "--log", folder, "--", "true", env=h100s)
            assert ended.code == 125
            assert "--log takes the name of a file that the command writes" in ended.said

    def test_who_waits_is_listed(self, program: Program, h100s: dict[str, str]) -> None:
        hold = ("place", "--count", "3", "--", "sleep", "600")
        wait = ("place", "--count", "1", "--wait", "--", "echo", "mine")
        with program.start(*hold, env=h100s) as holder:
            while not result(program, "--claims", env=h100s, name="claims")["claims"]:
                time.sleep(0.05)
            with program.start(*wait, env=h100s) as waiter:
                while not (listed := result(program, "--claims", env=h100s, name="claims"))[
                    "queue"
                ]:
                    time.sleep(0.05)
                ended = program("place", "--claims", env=h100s)
                passing = program("place", "--count", "1", env=h100s)
                os.killpg(holder.pid, signal.SIGKILL)  # the command too
                assert waiter.communicate()[0] == b"mine\n"

        assert [(item["pid"], item["command"]) for item in listed["queue"]] == [
            (waiter.pid, "echo mine")
        ]
        assert {claim["process"] for claim in listed["claims"]} == {"running"}
        assert ", 1 process waits.\n" in ended.text
        assert ": echo, for " in ended.text
        assert passing.code == 1
        assert "GPUs 5-7: held by" in passing.said

    def test_a_command_that_is_gone_and_what_it_started(
        self, program: Program, h100s: dict[str, str]
    ) -> None:
        started = "sleep 600 >/dev/null 2>&1 & echo $!"
        ended = program("place", "--count", "1", "--", "sh", "-c", started, env=h100s)
        try:
            (claim,) = result(program, "--claims", env=h100s, name="claims")["claims"]
            assert claim["process"] == "ended"
            assert (
                "it has ended, but its children run" in program("place", "--claims", env=h100s).text
            )
        finally:
            os.kill(int(ended.text), signal.SIGKILL)

    def test_two_never_get_the_same(self, program: Program, h100s: dict[str, str]) -> None:
        inner = f"{PYTHON} -m gpucheck place --count 1 -q"
        outside = f"unset GPUCHECK_CLAIM_IDS CUDA_VISIBLE_DEVICES; {inner}"
        ended = program(
            "place", "--count", "2", "--", "sh", "-c", f"echo $CUDA_VISIBLE_DEVICES; {outside}",
            env=h100s,
        )  # fmt: skip
        held, other = ended.text.splitlines()

        assert other not in held.split(",")

    def test_a_named_card_that_is_held(self, program: Program, h100s: dict[str, str]) -> None:
        again = f"unset GPUCHECK_CLAIM_IDS CUDA_VISIBLE_DEVICES; {PYTHON} -m gpucheck place"
        ended = program(
            "place", "/gpu:5", "--", "sh", "-c",
            f"{again} /gpu:5 -- true; echo $?; {again} /gpu:5 --no-claim -- true; echo $?",
            env=h100s,
        )  # fmt: skip

        assert ended.text == "125\n0\n"
        assert ": held by " in ended.said

    def test_every_failure_before_it_is_125(self, program: Program, h100s: dict[str, str]) -> None:
        assert program("place", "--count", "9", "--", "true", env=h100s).code == 125
        assert program("place", "--claims", "--", "true", env=h100s).code == 125
        assert program("place", "--count", "1", "--", "/no/such", env=h100s).code == 127

    def test_waiting_ends(self, program: Program, h100s: dict[str, str]) -> None:
        hold = ("place", "--count", "3", "--", "sleep", "600")
        with program.start(*hold, env=h100s) as holder:
            while not result(program, "--claims", env=h100s, name="claims")["claims"]:
                time.sleep(0.05)
            words = ("place", "--count", "1", "--wait", "--timeout", "0.3")
            ended = program(*words, env=h100s)
            assert ended.code == 1
            assert "next in line" in ended.said
            assert "within 0.3 s" in ended.said
            assert program(*words, "--", "true", env=h100s).code == 125
            os.killpg(holder.pid, signal.SIGKILL)  # the command too
            holder.wait()
            ended = program("place", "--count", "1", "--wait", "--", "echo", "mine", env=h100s)
            assert (ended.code, ended.text) == (0, "mine\n")

    def test_strange_files_are_named_with_what_helps(
        self, program: Program, h100s: dict[str, str]
    ) -> None:
        assert program("place", "/gpu:5", "--", "true", env=h100s).code == 0
        folder = Path(h100s["GPUCHECK_CLAIMS_DIR"])
        (lock,) = folder.glob("GPU-*.lock")
        lock.unlink()
        lock.mkdir()
        ended = program("place", "--claims", env=h100s)
        assert ended.code == 0
        assert f"{lock}: it is not a regular file. Until " in ended.said
        folder.chmod(0o755)
        ended = program("place", "--claims", env=h100s)
        assert ended.code == 4
        assert "GPUCHECK_CLAIMS_DIR" in ended.said
        assert "--no-claim" not in ended.said

    def test_inside_an_allocation_nothing_is_claimed(
        self, program: Program, h100s: dict[str, str]
    ) -> None:
        env = h100s | {"SLURM_JOB_ID": "7"}
        ended = program("place", "--count", "1", "--", "true", env=env)

        assert ended.code == 0
        assert "Nothing is claimed, since Slurm" in ended.said
        assert not Path(env["GPUCHECK_CLAIMS_DIR"]).exists()


def test_a_snapshot_can_be_asked_too(
    program: Program, h100s: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "machine.json"
    assert program("snapshot", file, env=h100s).code == 0
    words = ("place", "--count", "1", "--from", file)

    assert program(*words, env=h100s).text.startswith("GPU-")
    assert program(*words, "--", "true", env=h100s).code == 125
