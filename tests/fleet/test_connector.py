"""`gpucheck fleet run` on a real Dask cluster: a scheduler and three workers, each a process.

Every worker is a node with a name of its own, and its PATH leads to a `gpucheck` of the test's.
What goes wrong there goes wrong by an event of that program, never by time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli import main
from gpucheck.fleet import connector
from tests.conftest import Finished, scrubbed_environment
from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine
from tests.fleet.documents import detect

pytest.importorskip("distributed", reason="the extra `fleet` is not installed")
trustme = pytest.importorskip("trustme", reason="trustme is not installed")

pytestmark = pytest.mark.slow

Command = Callable[..., Finished]
NODE = Path(__file__).parent / "dask_node.py"


class Cluster:
    """A scheduler and workers on loopback, with certificates of an authority made on the spot."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.authority = trustme.CA()
        self.variables = self.certificates("cluster", self.authority)
        self.scheduler, self.address = self._start("scheduler", environment={})
        self.workers: dict[str, subprocess.Popen[str]] = {}

    def certificates(self, name: str, authority: Any) -> dict[str, str]:
        """Write the files of one identity; return Dask's variables that name them."""
        folder = self._folder / f"{name}-certificates"
        folder.mkdir()
        identity = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(folder / "ca.pem")
        identity.private_key_and_cert_chain_pem.write_to_path(folder / "own.pem")
        own = str(folder / "own.pem")
        return {
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(folder / "ca.pem"),
            **{
                f"DASK_DISTRIBUTED__COMM__TLS__{who}__{what}": own
                for who in ("CLIENT", "SCHEDULER", "WORKER")
                for what in ("CERT", "KEY")
            },
        }

    def add(self, name: str, program: str | None, *version: str, **variables: str) -> None:
        """Start a worker whose `gpucheck` is this shell program; without one there is none."""
        folder = self._folder / name
        folder.mkdir()
        if program is not None:
            script = folder / "gpucheck"
            script.write_text(f"#!/bin/sh\n{program}\n", encoding="utf-8")
            script.chmod(0o755)
        environment = {"PATH": f"{folder}:{os.defpath}", **variables}
        arguments = ("worker", self.address, name, *version)
        self.workers[name], _ = self._start(*arguments, environment=environment)

    def _start(
        self, *arguments: str, environment: Mapping[str, str]
    ) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, str(NODE), *arguments],
            env={**os.environ, **self.variables, **environment},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def prints(host: str, folder: Path, **changes: Any) -> str:
    """Return a program that prints a document and ends with its code."""
    document = detect(host, **changes)
    path = folder / f"{host}.document"
    path.write_text(json.dumps(document), encoding="utf-8")
    return f"cat {path}; exit {document['exit_code']}"


def run(
    command: Command, cluster: Cluster, *words: object, cwd: Path | None = None, **variables: str
) -> Finished:
    scheduler = ("--scheduler", cluster.address)
    environment = {**cluster.variables, **variables}
    return command("fleet", "run", "--json", *scheduler, *words, env=environment, cwd=cwd)


def outcomes(finished: Finished) -> dict[str, str]:
    return {node["host"]: node["outcome"] for node in finished.document["result"]["nodes"]}


def lines(path: Path) -> dict[str, Any]:
    return {line["host"]: line for line in map(json.loads, path.read_text().splitlines())}


def test_what_a_node_does_becomes_its_outcome(
    gpucheck_command: Command, cluster: Cluster, tmp_path: Path
) -> None:
    results = tmp_path / "results.jsonl"
    cluster.add("good", prints("good", tmp_path))
    cluster.add("sick", prints("sick", tmp_path, failing={"gpu-lost": "xid-79"}))
    cluster.add("bare", None)

    first = run(
        *(gpucheck_command, cluster, "detect", "--results", results),
        *("--expect", "good,sick,bare,absent"),
    )

    assert first.code == 1
    assert outcomes(first) == {
        "good": "ok",
        "sick": "failed",
        "bare": "not-installed",
        "absent": "missing",
    }
    written = lines(results)
    assert {host: line["exit_code"] for host, line in written.items()} == {
        "good": 0,
        "sick": 1,
        "bare": 127,
    }
    assert "gpucheck" in written["bare"]["reason"]

    # Only the node without an answer is asked again, and what it says now counts.
    script = tmp_path / "bare" / "gpucheck"
    script.write_text(f"#!/bin/sh\n{prints('bare', tmp_path)}\n", encoding="utf-8")
    script.chmod(0o755)
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "json.py").write_text("raise SystemExit('taken from here')\n", encoding="utf-8")
    again = run(
        *(gpucheck_command, cluster, "detect", "--resume", results, "--expect", "good,sick,bare"),
        cwd=planted,
        PYTHONPATH=":",
    )

    assert outcomes(again) == {"good": "ok", "sick": "failed", "bare": "ok"}
    asked_again = results.read_text().splitlines()[3:]
    assert [json.loads(line)["host"] for line in asked_again] == ["bare"]


def test_a_node_that_dies_or_freezes_costs_no_other_its_answer(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    results = tmp_path / "results.jsonl"
    cluster.add("good", prints("good", tmp_path))
    # The parent of a command is its worker.
    cluster.add("dead", "kill -KILL $PPID")
    cluster.add("frozen", "kill -STOP $PPID")
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)

    def now_s() -> float:
        """Let the deadline pass once the others have answered: nothing more will come."""
        is_late = results.exists() and len(lines(results)) == 2
        return time.monotonic() + 600.0 * is_late

    monkeypatch.setattr(connector, "_now", now_s)
    words = ("fleet", "run", "detect", "--json", "--scheduler", cluster.address)
    code = main([*words, "--results", str(results), "--deadline", "600"])

    finished = Finished(code=code, stdout=capfd.readouterr().out, stderr="")
    assert finished.code == 1
    assert outcomes(finished) == {"dead": "lost", "frozen": "no-answer", "good": "ok"}
    assert cluster.workers["frozen"].poll() is None


def test_a_command_without_end_an_old_engine_and_garbage_are_told_apart(
    gpucheck_command: Command, cluster: Cluster, tmp_path: Path
) -> None:
    forever = tmp_path / "forever.pid"
    slow = f"echo $$ >{forever}; exec sleep infinity"
    cluster.add("slow", slow, TIME_IS_UP=str(forever))
    cluster.add("old", prints("old", tmp_path), "2024.5.0")
    cluster.add("chatty", "echo no document; exit 3")

    finished = run(gpucheck_command, cluster, "detect", "--node-timeout", "600")

    assert outcomes(finished) == {"chatty": "unreadable", "old": "incompatible", "slow": "timeout"}
    reasons = {node["host"]: node["reasons"] for node in finished.document["result"]["nodes"]}
    assert "distributed 2024.5.0" in reasons["old"][0]
    with pytest.raises(ProcessLookupError):
        os.kill(int(forever.read_text()), 0)


def test_a_benchmark_runs_as_a_task_with_all_gpus_of_its_worker(
    gpucheck_command: Command, cluster: Cluster, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    for name in ("one", "two"):
        told = f'echo "$@" "[$OMP_NUM_THREADS]" >>{seen}; {prints(name, tmp_path)}'
        cluster.add(name, told)

    finished = run(gpucheck_command, cluster, "bench", "--wave", "1", "--", "--quick")

    assert finished.code == 0
    assert seen.read_text().splitlines() == ["bench --json --samples summary --quick []"] * 2


def test_the_end_of_the_scheduler_ends_the_run_with_what_came(
    gpucheck_command: Command, cluster: Cluster, tmp_path: Path
) -> None:
    results = tmp_path / "results.jsonl"
    cluster.add("good", prints("good", tmp_path))
    # Once the other's answer is on the disk, and then for ever.
    waits = f"until grep -q good {results}; do sleep 0.1; done"
    cluster.add("last", f"{waits}; kill -KILL {cluster.scheduler.pid}; exec sleep infinity")

    finished = run(gpucheck_command, cluster, "detect", "--results", results)

    assert finished.code == 1
    assert outcomes(finished) == {"good": "ok", "last": "no-answer"}
    assert "scheduler" in lines(results)["last"]["reason"]


def test_a_certificate_of_another_authority_is_refused_in_one_sentence(
    gpucheck_command: Command, cluster: Cluster
) -> None:
    stranger = cluster.certificates("stranger", trustme.CA())

    finished = run(gpucheck_command, cluster, "detect", **stranger)

    assert finished.code == 4
    assert finished.document["error"]["code"] == "scheduler-unreachable"
    assert "Traceback" not in finished.stderr


def test_without_certificates_a_secure_scheduler_is_not_asked(
    gpucheck_command: Command, cluster: Cluster
) -> None:
    bare = dict.fromkeys(cluster.variables, "")

    finished = run(gpucheck_command, cluster, "detect", **bare)

    assert finished.code == 4
    assert finished.document["error"]["code"] == "no-certificates"


def test_ctrl_c_reports_what_has_come(cluster: Cluster, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    cluster.add("good", prints("good", tmp_path))
    cluster.add("slow", "exec sleep infinity")
    words = ("fleet", "run", "detect", "--scheduler", cluster.address, "--results", str(results))

    with subprocess.Popen(
        [sys.executable, "-m", "gpucheck", *words, "--json"],
        env=scrubbed_environment(cluster.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while not (results.exists() and results.read_text().endswith("\n")):
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()

    assert process.returncode == 130
    document = json.loads(out)
    assert [node["host"] for node in document["result"]["nodes"]] == ["good"]


def test_a_driver_that_hangs_here_hangs_the_node_and_not_the_engine(
    gpucheck_command: Command, tmp_path: Path
) -> None:
    """Dask itself asks NVML unless told not to."""
    hung = build_libraries(load_machine("h100x8").broken(hang=["nvmlInit"]), tmp_path)

    finished = gpucheck_command(
        "fleet", "run", "list", "--json", "--local", "1", "--", "--deadline", "1", env=hung
    )

    assert outcomes(finished) == {"local-1": "inconclusive"}
