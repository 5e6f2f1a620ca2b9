"""Stress test of claims: hundreds of processes ask for one of eight GPUs, and some are killed.

Every process is a whole `gpucheck place --count 1 --wait -- COMMAND` on a pretended machine. The
command also locks a file of its own, as independent proof that nobody else has the card, and
writes down when it was served. Processes that wait or hold are killed with SIGKILL at random.

    python -m benchmarks.claims --processes 200 --rounds 20 --users 2
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.fakes.libraries import build_libraries
from tests.fakes.machine import load_machine

#: What holds a card: it says DOUBLE if another has the card's lock, and how it was served.
HOLDER = (
    'exec 9<"$CARD_LOCKS/$CUDA_VISIBLE_DEVICES"; '
    'flock -n 9 || echo "DOUBLE $CUDA_VISIBLE_DEVICES" >>"$CARD_LOCKS/log"; '
    'echo "$GPUCHECK_CLAIM_IDS $CUDA_VISIBLE_DEVICES" >>"$CARD_LOCKS/log"; '
    "sleep $0"
)
NOBODY = 65534


class Grant(NamedTuple):
    """How one process was served; tickets are numbered in the order in which they came."""

    ticket: int
    granted_ns: int
    pid: int
    uuid: str


class Round(NamedTuple):
    """What one round showed."""

    served: int
    killed: int
    seconds: float
    problems: list[str]


def main(words: Sequence[str]) -> int:
    """Run the rounds and say what went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--users", type=int, choices=(1, 2), default=1)
    parser.add_argument("--kill", type=float, default=0.15, help="share of processes killed")
    parser.add_argument("--hold", type=float, default=0.6, help="longest time a card is held, s")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    if options.users == 2:
        check_that_nobody_can_run_this()
    print(f"{options}", flush=True)
    failed = 0
    for number in range(options.rounds):
        result = play(options, random.Random(options.seed + number))
        verdict = "; ".join(result.problems) or "every card held by one at a time, in order"
        print(
            f"round {number + 1:2}: {result.served} served, {result.killed} killed, "
            f"{result.seconds:.1f} s: {verdict}",
            flush=True,
        )
        failed += bool(result.problems)
    return 1 if failed else 0


def check_that_nobody_can_run_this() -> None:
    """End with a sentence where the second user could do nothing."""
    if os.geteuid() != 0:
        sys.exit("two users need root: half of the processes become nobody")
    try:
        subprocess.run(
            [sys.executable, "-c", "import gpucheck.cli"],
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            capture_output=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        sys.exit("two users need a Python and a checkout that the other one may read")


def play(options: argparse.Namespace, chance: random.Random) -> Round:
    """Let them all ask at once, kill some, and look at what is written down."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        locks = prepare(folder)
        began = time.monotonic()
        pids = start_all(options, chance)
        killed = kill_some(pids, int(options.kill * len(pids)), locks, chance)
        codes = {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids}
        seconds = time.monotonic() - began
        lines = (locks / "log").read_text(encoding="ascii").splitlines()
        grants = sorted(map(grant_of, [x for x in lines if not x.startswith("DOUBLE")]), key=when)
        problems = [line for line in lines if line.startswith("DOUBLE")]
        problems += judge(grants, codes, killed) + left_over()
        return Round(len(grants), len(killed), seconds, problems)


def prepare(folder: Path) -> Path:
    """Pretend a machine with eight idle cards; return the folder of the witnesses."""
    machine = load_machine("h100x8")
    for gpu in machine.gpus:
        machine = machine.with_gpu(gpu.index, processes=())
    libraries = folder / "libraries"
    os.environ.update(build_libraries(machine, libraries))
    for path in (libraries, *libraries.rglob("*")):
        path.chmod(0o755)
    locks = folder / "locks"
    locks.mkdir()
    for name in ("log", *(gpu.uuid for gpu in machine.gpus)):
        (locks / name).touch()
        (locks / name).chmod(0o666)
    os.environ["CARD_LOCKS"] = str(locks)
    os.environ["GPUCHECK_CLAIMS_DIR"] = str(folder / "claims")
    (folder / "claims").mkdir()
    (folder / "claims").chmod(0o1777)
    return locks


def start_all(options: argparse.Namespace, chance: random.Random) -> list[int]:
    """Fork the askers with the program loaded, and let them off together."""
    from gpucheck.cli import main as gpucheck

    gpucheck(["place", "--count", "1", "--quiet", "--output", os.devnull])
    ready, go = os.pipe()
    pids = []
    for number in range(options.processes):
        hold_s = f"{chance.uniform(0.1, options.hold):.2f}"
        pid = os.fork()
        if pid == 0:
            os.close(go)
            code = 70
            try:
                os.umask(chance.choice((0o022, 0o077, 0o000)))
                if options.users == 2 and number % 2:
                    become_nobody()
                os.read(ready, 1)
                os.close(ready)
                ask = ["place", "--count", "1", "--wait", "--quiet", "--", "sh", "-c", HOLDER]
                code = gpucheck([*ask, hold_s])
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(ready)
    os.close(go)
    return pids


def become_nobody() -> None:
    """Become another user."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def kill_some(pids: Sequence[int], count: int, locks: Path, chance: random.Random) -> set[int]:
    """Kill askers and holders at random moments while the queue moves."""
    killed: set[int] = set()
    for pid in chance.sample(list(pids), count):
        time.sleep(chance.uniform(0.0, 0.4))
        lines = (locks / "log").read_text(encoding="ascii").splitlines()
        holders = [grant_of(line).pid for line in lines[-8:] if not line.startswith("DOUBLE")]
        living = [holder for holder in holders if holder not in killed and is_running(holder)]
        victim = chance.choice(living) if living and chance.random() < 0.5 else pid
        if is_running(victim):
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
    return killed


def is_running(pid: int) -> bool:
    """Return whether the process has not ended yet; ours stay as zombies until waited for."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()[0] != "Z"


def grant_of(line: str) -> Grant:
    """Read a line of the log: the claim's id, then the card."""
    identity, uuid = line.split()
    ticket, granted_ns, pid = map(int, identity.split("-"))
    return Grant(ticket, granted_ns, pid, uuid)


def when(grant: Grant) -> int:
    """Return the moment of a grant."""
    return grant.granted_ns


def judge(grants: Sequence[Grant], codes: dict[int, int], killed: set[int]) -> list[str]:
    """Return what is wrong with the order, and who was lost."""
    problems = []
    tickets = [grant.ticket for grant in grants]
    if tickets != sorted(tickets):
        problems.append("not served in the order in which they came")
    served = {grant.pid for grant in grants}
    lost = [pid for pid, code in codes.items() if pid not in killed and (code or pid not in served)]
    if lost:
        problems.append(f"lost: {[(pid, codes[pid]) for pid in lost]}")
    return problems


def left_over() -> list[str]:
    """Return a problem if somebody is still said to hold or to wait."""
    from gpucheck.place.claim_store import list_claims
    from gpucheck.place.claims import open_claims

    # What a killed holder had started ends by itself, on a busy machine late.
    for _ in range(600):
        found = list_claims(open_claims(os.environ))
        if not found.claims and not found.waiting:
            return []
        time.sleep(0.1)
    return [f"still held: {len(found.claims)}, still waiting: {found.waiting}"]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
