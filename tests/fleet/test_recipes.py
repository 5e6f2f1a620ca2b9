"""The recipes of configs/fleet: run with stand-ins of their launchers, or read as theirs do."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lightkube.models.batch_v1 import Job

from gpucheck.fleet.model import JudgementRule
from gpucheck.fleet.speeds import read_rule
from tests.architecture.commands import parsed
from tests.architecture.house import ROOT
from tests.end_to_end.test_recipes import unknown_keys
from tests.fleet.documents import detect, write

FOLDER = ROOT / "configs" / "fleet"
CODES = "0 good, 1 a node failed, is slow or is missing, 3 cannot tell"
#: What a launcher does on three hosts: the second is not there, the third has a lost GPU.
LAUNCHER = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import pathlib, shutil, sys
words = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
out = words.get("--output") or words["--outdir"] + "/%N"
pathlib.Path(out).parent.mkdir(parents=True, exist_ok=True)
for host in ("n1", "n3"):
    shutil.copy(f"{documents}/{{host}}", out.replace("%N", host))
pathlib.Path("{documents}/called").write_text(" ".join(sys.argv[1:]))
"""


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["slurm.sbatch", "pssh.sh", "ansible.yml", "kubernetes-jobs.yaml"])
def test_every_recipe_ends_in_the_report_and_says_its_codes(name: str) -> None:
    text = " ".join(text_of(name).replace("\n#", " ").split())

    assert CODES in text
    assert "gpucheck fleet report" in text.replace("- ", "")


@pytest.fixture(name="cluster")
def _cluster(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a cluster whose launchers are stand-ins."""
    documents, commands = tmp_path / "documents", tmp_path / "bin"
    for folder in (documents, commands):
        folder.mkdir()
    (documents / "n1").write_text(json.dumps(detect("n1")))
    (documents / "n3").write_text(json.dumps(detect("n3", failing={"gpu-lost": "xid-79"})))
    launcher = LAUNCHER.format(python=sys.executable, documents=documents)
    for name, text in {
        "srun": launcher,
        "parallel-ssh": launcher,
        "scontrol": "#!/bin/sh\nprintf 'n1\\nn2\\nn3\\n'\n",
        "gpucheck": f'#!/bin/sh\nexec "{sys.executable}" -m gpucheck "$@"\n',
    }.items():
        path = commands / name
        path.write_text(text)
        path.chmod(0o755)
    return {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GPUCHECK_VENV": str(tmp_path / "none"),
        "HOME": str(tmp_path),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-3]",
        "DOCUMENTS": str(documents),
    }


@pytest.mark.parametrize("name", ["slurm.sbatch", "pssh.sh"])
def test_launcher_ends_in_a_report_that_names_the_sick(
    name: str, cluster: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "hosts.txt").write_text("n1 r1\nn2 r1  # a comment\nn3 r2\n")
    words = ["sh", str(FOLDER / name), *(["hosts.txt"] if name == "pssh.sh" else [])]

    done = subprocess.run(
        words, capture_output=True, encoding="utf-8", env=cluster, cwd=tmp_path, check=False
    )

    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert done.returncode == 1, done.stderr
    assert "missing" in lines["n2"]
    assert "gpu-lost" in lines["n3"]
    assert "n1" not in lines
    called = (Path(cluster["DOCUMENTS"]) / "called").read_text().replace("'", "")
    words = shlex.split(called[called.index("gpucheck ") :])
    assert parsed(words[1:]).params["json"]


def test_only_hosts_that_were_asked_are_drained(cluster: dict[str, str], tmp_path: Path) -> None:
    text = text_of("slurm.sbatch")
    loop = text[text.index("# gpucheck fleet report") :].replace("# ", "")
    drained, out = tmp_path / "drained", tmp_path / "out"
    out.mkdir()
    for name in ("ALL", "n1", "n11", "-n"):
        write(out / f"x{name}.json", detect(name, failing={"gpu-lost": "xid-79"}))
    (out / "hosts").write_text("n1\nn2\n")
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$2" >>"{drained}"\n')

    environment = {**cluster, "out": str(out)}
    subprocess.run(["sh", "-c", loop], env=environment, stderr=subprocess.DEVNULL, check=False)

    assert sorted(drained.read_text().split()) == ["nodename=n1", "nodename=n2"]


def test_jobs_are_of_kubernetes_api_and_name_files_after_nodes() -> None:
    (manifest,) = yaml.safe_load_all(text_of("kubernetes-jobs.yaml"))

    msgspec.convert(manifest, Job, strict=True)
    assert unknown_keys(Job, manifest, "job") == []
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    words = shlex.split(container["args"][0])
    assert parsed(words[words.index("gpucheck") + 1 :]).params["json"]
    assert words[-1] == "/documents/$NODE.json"


def test_playbook_asks_each_host_and_reports_once() -> None:
    asking, reporting = yaml.safe_load(text_of("ansible.yml"))

    tasks: list[dict[str, Any]] = [*asking["tasks"], *reporting["tasks"]]
    called = [one["ansible.builtin.command"]["argv"] for one in tasks if "register" in one]
    assert asking["ignore_unreachable"]
    assert [words[words.index("gpucheck") + 1] for words in called] == ["detect", "fleet"]
    for words in called:
        assert parsed(words[words.index("gpucheck") + 1 :]).params
    # A host whose document is empty has no file, and is missing.
    assert any("answer.stdout" in str(one.get("when")) for one in tasks)


def test_rule_has_every_parameter_with_its_default() -> None:
    path = FOLDER / "rule.toml"

    assert read_rule(path)._replace(source=None) == JudgementRule()
    keys = {line.split(" = ")[0] for line in path.read_text().splitlines() if " = " in line}
    assert keys == {*JudgementRule._fields} - {"source"}
