"""The examples for other systems: run on simulated machines, or read by their consumers' tools."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lightkube.models.batch_v1 import Job
from prometheus_client.parser import text_string_to_metric_families

from tests.architecture.commands import parsed
from tests.architecture.house import ROOT
from tests.end_to_end.conftest import Ended, Pretend, Program

FOLDER = ROOT / "configs" / "monitoring"
#: Where the examples say that the program is, and where node-exporter reads.
INSTALLED = "/usr/local/bin/gpucheck"
COLLECTED = "/var/lib/prometheus/node-exporter"


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name", sorted(path.name for path in FOLDER.iterdir() if path.suffix not in (".json", ".timer"))
)
def test_the_codes_are_the_programs(name: str) -> None:
    if name != "gpucheck.cron":
        assert "0 good, 1 bad, 2 wrong use, 3 cannot tell, 4 something is missing" in " ".join(
            text_of(name).replace("\n#", " ").split()
        )


def run_line(line: str, program: Program, machine: Mapping[str, str], folder: Path) -> Ended:
    """Run a line of an example, with its paths replaced by ours."""
    command, *words = shlex.split(line.replace(COLLECTED, str(folder)))
    assert command == INSTALLED
    return program(*words, env=machine)


# ------------------------------------------------------------------------------ systemd and cron


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    # It looks for the program too.
    for name in ("gpucheck.service", "gpucheck.timer"):
        text = text_of(name).replace(INSTALLED, f'"{sys.executable}"')
        (tmp_path / name).write_text(text, encoding="utf-8")

    done = subprocess.run(
        [tool, "verify", "--man=no", *tmp_path.iterdir()], capture_output=True, encoding="utf-8"
    )

    assert (done.returncode, done.stderr) == (0, "")
    # A wrong one is refused, so the line above says something.
    bad = tmp_path / "gpucheck.service"
    bad.write_text(bad.read_text(encoding="utf-8") + "MemoryMaximum=1\n", encoding="utf-8")
    again = subprocess.run([tool, "verify", "--man=no", bad], capture_output=True, encoding="utf-8")
    assert "'MemoryMaximum'" in again.stderr


@pytest.mark.parametrize(("machine", "code"), [("h100x8", 0), ("gpu-lost", 1)])
def test_the_units_command_writes_what_prometheus_reads(
    program: Program, pretend: Pretend, tmp_path: Path, machine: str, code: int
) -> None:
    (line,) = re.findall(r"^ExecStart=(.*)$", text_of("gpucheck.service"), re.MULTILINE)

    ended = run_line(line, program, pretend(machine), tmp_path)

    assert ended.code == code
    (file,) = tmp_path.iterdir()
    assert file.suffix == ".prom"
    found = {
        one.name: one.value
        for family in text_string_to_metric_families(file.read_text(encoding="utf-8"))
        for one in family.samples
    }
    assert found["gpucheck_run_exit_code"] == code


def test_what_the_unit_hides_is_nothing_that_is_looked_at() -> None:
    text = text_of("gpucheck.service")

    hidden = re.findall(r"^(Private\w+|Protect\w+|InaccessiblePaths)=(?!no$)", text, re.MULTILINE)
    assert set(hidden) == {"ProtectSystem", "ProtectHome", "PrivateTmp"}
    assert f"ReadWritePaths={COLLECTED}" in text
    assert "SuccessExitStatus=3" in text


def test_the_line_of_cron_is_one_of_crontab(
    program: Program, pretend: Pretend, tmp_path: Path
) -> None:
    text = text_of("gpucheck.cron")
    (line,) = [each for each in text.splitlines() if each and not each.startswith("#")]
    # crontab(5): five fields, in /etc/cron.d a user, then the command to the end of the line, in
    # which a % is a newline; the last line ends with one.
    *times, user, command = line.split(maxsplit=6)

    assert len(times) == 5
    assert all(re.fullmatch(r"(\*|\d+(-\d+)?)(/\d+)?", each) for each in times)
    assert user == "root"
    assert "%" not in command
    assert text.endswith("\n")
    command, _, target = command.partition(" >")
    assert target == "/dev/null"
    ended = run_line(command, program, pretend("h100x8"), tmp_path)
    assert (ended.code, ended.stderr) == (0, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["gpucheck-detect.prom"]


# ------------------------------------------------------------------------------- Prometheus

#: A metric of ours, and the labels it is asked for.
ASKED = re.compile(r"(gpucheck_[a-z0-9_]+)(?:\{(.*?)\})?")


def test_alerts_ask_for_metrics_and_labels_that_are_written(
    program: Program, pretend: Pretend
) -> None:
    (group,) = yaml.safe_load(text_of("prometheus-alerts.yml"))["groups"]
    written = program("detect", "--quick", "--format", "prometheus", env=pretend("gpu-lost"))
    found = [
        one
        for family in text_string_to_metric_families(written.stdout.decode())
        for one in family.samples
    ]

    assert len(group["rules"]) == 3
    for rule in group["rules"]:
        # The fields of Prometheus' rule files.
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        (asked,) = ASKED.findall(rule["expr"])
        wanted = dict(re.findall(r'(\w+)="(\w+)"', asked[1]))
        alike = [
            one for one in found if one.name == asked[0] and wanted.items() <= one.labels.items()
        ]
        assert alike, rule["expr"]
        for text in rule["annotations"].values():
            names = set(re.findall(r"\$labels\.(\w+)", text))
            # A finding on the whole node has no UUID.
            assert any(names - {"UUID"} <= set(one.labels) for one in alike)


def test_documented_metrics_are_the_programs() -> None:
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "gpucheck").rglob("*.py"))
    source = "\n".join(text for text in texts if "gauge(" in text)
    written = set(re.findall(r'"(gpucheck_[a-z0-9_]+)"', source))
    guides = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")}
    asked = re.compile(r"`(gpucheck_[a-z0-9_]+)")

    assert set(asked.findall(guides["monitoring.md"])) - written == set()
    named = {name for text in guides.values() for name in asked.findall(text)}
    # Those of `list` are named by kind.
    assert {name for name in written - named if not name.startswith("gpucheck_gpu_")} == set()


# ------------------------------------------------------------------------------------- Slurm


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """How a script of Slurm's ended, and what it asked of scontrol and logger."""

    code: int
    calls: list[list[str]]
    stdout: str


RunScript = Callable[..., Script]


@pytest.fixture
def run_script(pretend: Pretend, tmp_path: Path) -> RunScript:
    """Run a script as slurmd does: no search path, and its own variables."""
    calls = tmp_path / "calls"
    tools = tmp_path / "tools"
    tools.mkdir()

    def tool(name: str, *lines: str) -> None:
        path = tools / name
        path.write_text("\n".join((f"#!{shutil.which('bash')}", *lines, "")), encoding="utf-8")
        path.chmod(0o755)

    def run(name: str, machine: str, *, state: str = "IDLE", missing: bool = False) -> Script:
        record = f'printf "%s\\0" "${{0##*/}}" "$@" >> {calls}; echo >> {calls}'
        shown = f"NodeName=node17 Arch=x86_64 State={state} ThreadsPerCore=1 Partitions=DRAINS"
        tool("scontrol", record, f'[ "$1" = update ] || echo "{shown}"')
        tool("logger", record)
        tool("gpucheck", f'exec "{sys.executable}" -m gpucheck "$@"')
        done = subprocess.run(
            [FOLDER / name],
            capture_output=True,
            encoding="utf-8",
            cwd="/",
            env={
                **pretend(machine),
                "PATH": str(tools),
                "PYTHONPATH": str(ROOT),
                "GPUCHECK": str(tools / ("nothing" if missing else "gpucheck")),
                "SLURMD_NODENAME": "node17",
            },
        )
        text = calls.read_text(encoding="utf-8") if calls.exists() else ""
        calls.unlink(missing_ok=True)
        found = [line.split("\0")[:-1] for line in text.splitlines()]
        return Script(code=done.returncode, calls=found, stdout=done.stdout)

    return run


LOST = "gpucheck: FAIL NVML only: GPU 2 (0000:2a:00.0) fell off the bus"
DRAINED = ["scontrol", "update", "nodename=node17", "state=drain", f"reason={LOST}"]


def test_slurms_health_check_drains_a_broken_node_alone(run_script: RunScript) -> None:
    name = "slurm-health-check.sh"

    assert run_script(name, "h100x8") == Script(code=0, calls=[], stdout="")
    broken = run_script(name, "gpu-lost")
    assert (broken.code, broken.calls[-1]) == (0, DRAINED)
    # An operator's reason stays.
    drained = run_script(name, "gpu-lost", state="IDLE+DRAIN")
    assert drained.code == 0
    assert [call[1] for call in drained.calls] == ["--oneliner"]


def test_slurms_health_check_only_notes_what_it_cannot_tell(run_script: RunScript) -> None:
    name = "slurm-health-check.sh"

    silent = run_script(name, "hung")
    absent = run_script(name, "h100x8", missing=True)

    assert (silent.code, absent.code) == (0, 0)
    assert [call[0] for call in silent.calls + absent.calls] == ["logger", "logger"]
    assert silent.calls[0][-1].startswith("code 3, node left as it is: UNKNOWN NVML only: ")
    assert absent.calls[0][-1] == "code 127, node left as it is: no answer"


def test_slurms_prolog_refuses_a_job_on_a_broken_node_alone(run_script: RunScript) -> None:
    name = "slurm-prolog.sh"

    assert run_script(name, "h100x8") == Script(code=0, calls=[], stdout="")
    assert run_script(name, "gpu-lost") == Script(code=1, calls=[DRAINED], stdout="")
    assert run_script(name, "h100x8", missing=True) == Script(code=0, calls=[], stdout="")


def test_slurms_scripts_can_be_executed() -> None:
    for path in FOLDER.glob("*.sh"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o111 == 0o111
        subprocess.run(["bash", "-n", path], check=True)


# -------------------------------------------------------------------------------- Kubernetes


#: The fields of node-problem-detector's structs: CustomPluginConfig, pluginGlobalConfig, CustomRule
#: (pkg/custompluginmonitor/types) and Condition (pkg/types).
PLUGIN = {"plugin", "pluginConfig", "source", "conditions", "rules", "metricsReporting"}
GLOBAL = {
    *("invoke_interval", "timeout", "max_output_length", "concurrency"),
    *("enable_message_change_based_condition_update", "skip_initial_status"),
}
RULE = {"type", "condition", "reason", "path", "args", "timeout", "invoke_interval"}
CONDITION = {"type", "status", "transition", "reason", "message"}
SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> int:
    """Return a Go duration of one unit in seconds."""
    return int(text[:-1]) * SECONDS[text[-1]]


def test_the_plugin_of_node_problem_detector_is_valid() -> None:
    config = json.loads(text_of("node-problem-detector.json"))
    ours = config["pluginConfig"]

    assert set(config) <= PLUGIN
    assert config["plugin"] == "custom"
    assert set(ours) <= GLOBAL
    assert seconds(ours["timeout"]) < seconds(ours["invoke_interval"])
    kinds = [each["type"] for each in config["conditions"]]
    for each in config["conditions"]:
        assert set(each) <= CONDITION
    for rule in config["rules"]:
        # Validate(): a timeout of at most the global one, and a condition with a default.
        assert set(rule) <= RULE
        assert rule["type"] in ("permanent", "temporary")
        assert seconds(rule["timeout"]) <= seconds(ours["timeout"])
        assert rule["condition"] in kinds
        assert re.fullmatch(r"[A-Za-z]+", rule["reason"])


@pytest.mark.parametrize(
    ("machine", "status"), [("h100x8", "OK"), ("gpu-lost", "NonOK"), ("hung", "Unknown")]
)
def test_node_problem_detector_gets_its_codes_and_a_whole_message(
    program: Program, pretend: Pretend, machine: str, status: str
) -> None:
    config = json.loads(text_of("node-problem-detector.json"))
    (rule,) = config["rules"]

    ended = program(*rule["args"], env=pretend(machine))

    # plugin.go: 0 is OK, 1 NonOK, anything else Unknown; the message is cut to so many bytes.
    assert rule["path"] == INSTALLED
    assert {0: "OK", 1: "NonOK"}.get(ended.code, "Unknown") == status
    message = ended.stdout.strip()
    assert 0 < len(message) <= config["pluginConfig"]["max_output_length"]
    assert message.isascii()


def unknown_keys(kind: Any, value: object, where: str) -> list[str]:
    """Return the keys of a manifest that its type in Kubernetes' API does not have."""
    arms = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Union:
        return unknown_keys(arms[0], value, where)
    if isinstance(value, list) and arms:
        items = enumerate(value)
        return [key for n, item in items for key in unknown_keys(arms[0], item, f"{where}[{n}]")]
    if not (
        isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    ):
        return []
    hints = {each.encode_name: each.type for each in msgspec.structs.fields(kind)}
    return [f"{where}.{key}" for key in value if key not in hints] + [
        one
        for key in value
        if key in hints
        for one in unknown_keys(hints[key], value[key], f"{where}.{key}")
    ]


def job() -> dict[str, Any]:
    (manifest,) = yaml.safe_load_all(text_of("kubernetes-job.yaml"))
    assert isinstance(manifest, dict)
    return manifest


def test_the_job_is_one_of_kubernetes_api() -> None:
    manifest = job()

    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    # Types, and what must be there.
    msgspec.convert(manifest, Job, strict=True)
    assert unknown_keys(Job, manifest, "job") == []
    # Both do find mistakes.
    pod = manifest["spec"]["template"]["spec"]
    pod["restartsPolicy"] = pod.pop("restartPolicy")
    assert unknown_keys(Job, manifest, "job") == ["job.spec.template.spec.restartsPolicy"]
    del pod["containers"][0]["name"]
    with pytest.raises(msgspec.ValidationError, match=r"`name`.*containers\[0\]"):
        msgspec.convert(manifest, Job, strict=True)


@pytest.mark.parametrize(("machine", "code"), [("h100x8", 0), ("gpu-lost", 1)])
def test_the_jobs_script_says_how_it_ended(
    pretend: Pretend, tmp_path: Path, machine: str, code: int
) -> None:
    (container,) = job()["spec"]["template"]["spec"]["containers"]
    message = tmp_path / "termination-log"
    (script,) = container["args"]
    calls = tmp_path / "calls"
    # pip has nothing to install from here, and detect alone is run: a benchmark takes seconds.
    for name, line in {
        "python3": f'echo "python3 $*" >> {calls}',
        "gpucheck": f'echo "gpucheck $*" >> {calls}\n[ "$1" != bench ] || exit 0\n'
        f'exec "{sys.executable}" -m gpucheck "$@" --quick',
    }.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
        path.chmod(0o755)
    variables = {each["name"]: each["value"] for each in container["env"]}

    done = subprocess.run(
        [*container["command"], script.replace("/dev/termination-log", str(message))],
        capture_output=True,
        encoding="utf-8",
        env={
            **pretend(machine),
            **variables,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
    )

    assert done.returncode == code
    text = message.read_text(encoding="utf-8")
    assert text.startswith("FAIL " if code else "OK ")
    assert len(text) <= 4096  # a termination message
    assert done.stdout == ""
    asked = calls.read_text(encoding="utf-8").splitlines()
    assert asked[0] == (
        f"python3 -m pip install --quiet gpucheck-cli[cuda12] @ {variables['GPUCHECK_SOURCE']}"
    )
    assert asked[1] == "gpucheck detect --format line --expect-gpus 8"
    measured = ["gpucheck bench --quick --device gpu --samples summary --json"]
    assert asked[2:] == ([] if code else measured)


def test_the_jobs_documents_can_be_gathered_by_the_thousand() -> None:
    (container,) = job()["spec"]["template"]["spec"]["containers"]
    (line,) = re.findall(r"^gpucheck (bench .*)$", container["args"][0], re.MULTILINE)

    # The program's own parser refuses what it does not know; nothing is run.
    options = parsed(shlex.split(line)).params

    assert options["samples"] == "summary"
    assert options["json"]


# ------------------------------------------------------------------------------- CI systems


@pytest.mark.parametrize(
    ("schema", "name"),
    [("vendor.github-workflows", "github-actions.yml"), ("vendor.gitlab-ci", "gitlab-ci.yml")],
)
def test_the_ci_example_is_valid_by_its_systems_schema(
    schema: str, name: str, tmp_path: Path
) -> None:
    file = ROOT / "configs" / "ci" / name
    wrong = tmp_path / name
    text = file.read_text(encoding="utf-8")
    wrong.write_text(re.sub(r"^( +)(runs-on|script):", r"\1\2s:", text, flags=re.M), "utf-8")

    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, file, wrong],
        capture_output=True,
        encoding="utf-8",
    )

    assert done.returncode == 1
    assert str(wrong) in done.stdout
    assert str(file) not in done.stdout
