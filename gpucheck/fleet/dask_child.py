"""Client of a Dask scheduler: has a command run once on each node, and tells what came of it.

Run by path as a child process, since the engine's own calls block for ever on a worker that is
frozen, and since its answers are unpickled: whatever happens here, the parent has a deadline and
reads nothing but JSON. Needs the standard library and `distributed`.

What travels is the standard library's `subprocess.run`, so that nothing of gpucheck has to be
importable on a scheduler or worker. `asyncio.to_thread` keeps it out of the worker's event loop: a
worker that sends no heartbeats while it runs would be thrown out.

The request is one line on standard input; each answer is a line with its `part`: `nodes` (all that
there are), `begun`, `answer`, at the end `end`, or instead of all `failure`. To `nodes` the parent
says in a second line which of them to ask, and how many at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress

TYPE_CHECKING = False  # the name that type checkers know, without the import of typing
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from typing import Any

#: A scheduler that accepts no client in this time is not there.
CONNECT_S = 20.0
#: A worker that does not say its name in this time is frozen, or its event loop is.
HELLO_S = 15.0
#: The node-side timeout kills the command; its answer takes this long at most.
GRACE_S = 10.0
#: Seconds between two questions whether the workers are still there; so many without an answer, and
#: the scheduler counts as gone.
WATCH_S, MOST_UNANSWERED = 1.0, 5
#: Longest output and message that are passed on.
MOST_OUTPUT_BYTES, MOST_MESSAGE_CHARS = 8 << 20, 2000
#: Dask's nanny sets them to 1 in its workers; a benchmark would run on one core.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
#: Packages of which worker and scheduler must have the same version: a task for a worker of an
#: older one hangs without a word.
ENGINE = ("distributed", "dask")
#: The resource that a worker offers where a benchmark may run.
GPU = "GPU"


def tell(part: str, **facts: object) -> None:
    """Write one line for the parent."""
    OUTPUT.write(json.dumps({"part": part, **facts}) + "\n")
    OUTPUT.flush()


class Node:
    """One host, and the worker on it that is asked."""

    def __init__(self, address: str, facts: dict[str, Any]) -> None:
        self.address = address
        self.ip = str(facts.get("host"))
        self.worker_name = str(facts.get("name"))
        self.seen_s = float(facts.get("last_seen") or 0.0)
        self.gpus = float((facts.get("resources") or {}).get(GPU) or 0)
        self.busy = len((facts.get("metrics") or {}).get("executing") or ())
        #: What the node calls itself; None if it did not say in time.
        self.host: str | None = None
        self.versions: dict[str, str] = {}
        self.problem: str | None = None
        self.gone = asyncio.Event()

    @property
    def silent_for_s(self) -> float:
        """Return how long ago the scheduler had heard of the worker."""
        return max(0.0, time.time() - self.seen_s)

    def tell(self, part: str, **facts: object) -> None:
        """Write one line about this node."""
        tell(part, address=self.address, **facts)


class Engine:
    """The command on all nodes, through one client."""

    def __init__(self, client: Any, request: dict[str, Any]) -> None:
        self.client = client
        self.request = request
        self.nodes: list[Node] = []
        self.scheduler_gone = asyncio.Event()
        command = [word for name in THREAD_VARIABLES for word in ("-u", name)]
        self.command = ["env", *command, *request["command"]]
        self.limit_s = float(request["node_timeout_s"]) + GRACE_S

    async def run(self) -> None:
        """Find the nodes, ask each once, and tell everything."""
        await self.find_nodes()
        tell(
            "nodes",
            nodes=[
                {
                    "address": node.address,
                    "host": node.host,
                    "worker": node.worker_name,
                    "ip": node.ip,
                    "last_seen_s": node.silent_for_s,
                }
                for node in self.nodes
            ],
            limit_s=self.limit_s,
        )
        chosen = json.loads(await asyncio.to_thread(sys.stdin.readline))
        addresses = frozenset(chosen["addresses"])
        nodes = [node for node in self.nodes if node.address in addresses]
        watch = asyncio.create_task(self.watch())
        slots = asyncio.Semaphore(chosen["at_once"])
        await asyncio.gather(*(self.ask(node, slots) for node in nodes))
        watch.cancel()
        tell("end")

    # ---------------------------------------------------------------------- which nodes

    async def find_nodes(self) -> None:
        """Choose one worker on each host: one that answers, offers GPUs and has nothing to do."""
        identity = await self.client.scheduler.identity(n_workers=-1)
        workers = [Node(address, facts) for address, facts in identity["workers"].items()]
        await self.check_versions(workers)
        slots = asyncio.Semaphore(self.request["most_at_once"])
        await asyncio.gather(*(self.greet(node, slots) for node in workers))
        if self.request["each_worker"]:
            for node in workers:
                node.host = node.worker_name
            self.nodes = workers
            return
        self.nodes = one_per_machine(workers)

    async def check_versions(self, workers: Iterable[Node]) -> None:
        """Compare the engine here and on the scheduler, before anything is sent.

        Raises:
            EngineError: they differ.
        """
        from distributed.versions import get_versions

        ours = packages(get_versions())
        theirs = packages(await asyncio.wait_for(self.client.scheduler.versions(), HELLO_S))
        differing = difference(ours, theirs)
        if differing is not None:
            message = f"here {differing[0]}, on the scheduler {differing[1]}"
            raise EngineError(code="engine-version", message=message)
        for node in workers:
            node.versions = theirs

    async def greet(self, node: Node, slots: asyncio.Semaphore) -> None:
        """Ask a worker for its host's name and for the versions of its engine."""
        async with slots:
            with suppress(Exception):
                await asyncio.wait_for(self._greet(node), HELLO_S)

    async def _greet(self, node: Node) -> None:
        told = await self.client.scheduler.broadcast(
            msg={"op": "versions"}, workers=[node.address], on_error="ignore"
        )
        differing = difference(packages(told.get(node.address) or {}), node.versions)
        if differing is not None:
            node.problem = f"it has {differing[0]}, the scheduler {differing[1]}"
        name = await self.client.run(asyncio.to_thread, platform.node, workers=[node.address])
        node.host = str(name[node.address])

    # ------------------------------------------------------------------------ one node

    async def ask(self, node: Node, slots: asyncio.Semaphore) -> None:
        """Run the command on one node, and tell its end or why there is none."""
        if node.host is None:
            node.tell("answer", how="silent", last_seen_s=node.silent_for_s, limit_s=HELLO_S)
            return
        if node.problem is not None:
            node.tell("answer", how="incompatible", message=node.problem)
            return
        if self.request["queued"] and not node.gpus:
            offers = f"its worker offers no resource {GPU} (dask worker --resources {GPU}=1)"
            node.tell("answer", how="incompatible", message=offers)
            return
        async with slots:
            if self.scheduler_gone.is_set():
                node.tell("answer", how="scheduler-gone")
                return
            node.tell("begun")
            begun_s = time.monotonic()
            answer = await self._answer(node)
            node.tell("answer", seconds=round(time.monotonic() - begun_s, 3), **answer)

    async def _answer(self, node: Node) -> dict[str, Any]:
        future = self._submitted(node) if self.request["queued"] else None
        sent = asyncio.ensure_future(self._sent(node) if future is None else self._result(future))
        ends = [asyncio.ensure_future(event.wait()) for event in (node.gone, self.scheduler_gone)]
        try:
            await asyncio.wait(
                [sent, *ends], timeout=self.limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not sent.done() and not self.scheduler_gone.is_set() and node.gone.is_set():
                # Its last answer may have overtaken the news that it has gone.
                await asyncio.wait([sent], timeout=WATCH_S)
            if sent.done():
                return described(sent)
            if self.scheduler_gone.is_set():
                return {"how": "scheduler-gone"}
            if node.gone.is_set():
                return {"how": "gone"}
            return await self._silence(node, future)
        finally:
            for task in (sent, *ends):
                task.cancel()
            if future is not None and not self.scheduler_gone.is_set():
                with suppress(Exception):
                    await asyncio.wait_for(future.cancel(force=True), WATCH_S)

    async def _sent(self, node: Node) -> Any:
        """Run the command beside the worker's tasks: it takes a moment, and no GPU."""
        ended = await self.client.run(
            asyncio.to_thread,
            subprocess.run,  # noqa: TID251 - on the node, where a worker waits for it
            self.command,
            workers=[node.address],
            on_error="return",
            **self._options(),
        )
        return ended[node.address]

    def _submitted(self, node: Node) -> Any:
        """Queue the command as a task that takes all GPUs of the worker."""
        return self.client.submit(
            subprocess.run,  # noqa: TID251 - on the node, where a worker waits for it
            self.command,
            workers=[node.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
            resources={GPU: node.gpus},
            **self._options(),
        )

    def _options(self) -> dict[str, Any]:
        return {
            "stdin": subprocess.DEVNULL,
            "capture_output": True,
            "timeout": self.request["node_timeout_s"],
        }

    @staticmethod
    async def _result(future: Any) -> Any:
        try:
            return await future
        except Exception as error:  # the node's, or the engine's own
            return error

    async def _silence(self, node: Node, future: Any) -> dict[str, Any]:
        """Tell a node that works on the command, or is stuck, from one that never came to it."""
        if future is not None:
            with suppress(Exception):
                request = self.client.scheduler.call_stack(keys=[future.key])
                stacks = await asyncio.wait_for(request, HELLO_S)
                if not any(future.key in stack for stack in stacks.values()):
                    return {"how": "queued", "limit_s": self.limit_s}
        with suppress(Exception):
            request = self.client.scheduler.identity(n_workers=-1)
            workers = (await asyncio.wait_for(request, HELLO_S))["workers"]
            node.seen_s = float(workers[node.address]["last_seen"])
        return {"how": "silent", "last_seen_s": node.silent_for_s, "limit_s": self.limit_s}

    async def watch(self) -> None:
        """Note each worker that goes, and the scheduler if it does not answer any more."""
        unanswered = 0
        while not self.scheduler_gone.is_set():
            await asyncio.sleep(WATCH_S)
            try:
                request = self.client.scheduler.ncores()
                present = await asyncio.wait_for(request, WATCH_S * MOST_UNANSWERED)
            except (TimeoutError, OSError):
                unanswered += 1
                if unanswered >= MOST_UNANSWERED or self.client.status not in ("running",):
                    self.scheduler_gone.set()
                continue
            unanswered = 0
            for node in self.nodes:
                if node.address not in present:
                    node.gone.set()


class EngineError(Exception):
    """The engine cannot be used at all; `code` names the reason."""

    def __init__(self, *, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def preference(node: Node) -> tuple[bool, bool, int, str]:
    """Return the sort key of the workers of a host, the best first."""
    return (node.problem is not None, not node.gpus, node.busy, node.address)


def one_per_machine(workers: list[Node]) -> list[Node]:
    """Return the worker to ask on each machine.

    Machines that were copied have the same name. So a machine is a name at an address: whoever
    bears the name of another is asked beside it, not in its place.
    """
    named: dict[tuple[str, str], list[Node]] = {}
    for node in workers:
        if node.host is not None:
            named.setdefault((node.host, node.ip), []).append(node)
    chosen = [min(nodes, key=preference) for nodes in named.values()]
    # A silent worker stands for its machine unless another one there answered.
    answered = {ip for _, ip in named}
    silent = {node.ip: node for node in workers if node.host is None and node.ip not in answered}
    return [*chosen, *silent.values()]


def packages(versions: dict[str, Any]) -> dict[str, str]:
    """Return the versions of the engine's own packages."""
    versions_by_name = versions.get("packages") or {}
    return {name: str(versions_by_name[name]) for name in ENGINE if versions_by_name.get(name)}


def difference(ours: dict[str, str], theirs: dict[str, str]) -> tuple[str, str] | None:
    """Return the first package of which the versions differ, with each of them; None if none."""
    for name in ENGINE:
        if name in ours and name in theirs and ours[name] != theirs[name]:
            return f"{name} {ours[name]}", f"{name} {theirs[name]}"
    return None


def described(sent: asyncio.Future[Any]) -> dict[str, Any]:
    """Return the result of the node's `subprocess.run`: an end, or its exception."""
    failure = sent.exception()
    result = failure if failure is not None else sent.result()
    if isinstance(result, subprocess.CompletedProcess):
        output = result.stdout or b""
        if len(output) > MOST_OUTPUT_BYTES:
            return {"how": "too-much", "bytes": len(output), "exit_code": result.returncode}
        return {
            "how": "ended",
            "exit_code": result.returncode,
            "stdout": output.decode("utf-8", "replace"),
            "stderr": (result.stderr or b"").decode("utf-8", "replace")[-MOST_MESSAGE_CHARS:],
        }
    if isinstance(result, subprocess.TimeoutExpired):
        return {"how": "timeout"}
    message = f"{type(result).__name__}: {result}"[:MOST_MESSAGE_CHARS]
    if isinstance(result, FileNotFoundError):
        return {"how": "not-found", "message": message}
    names = {kind.__name__ for kind in type(result).__mro__}
    lost_scheduler = getattr(result, "reason", None) == "scheduler-connection-lost"
    if lost_scheduler or (failure is not None and isinstance(failure, OSError)):
        # What the engine itself raises is about the way to the scheduler.
        return {"how": "scheduler-gone", "message": message}
    if names & {"CommClosedError", "KilledWorker", "NoValidWorkerError", "CancelledError"}:
        return {"how": "gone", "message": message}
    return {"how": "error", "message": message}


@asynccontextmanager
async def connected(request: dict[str, Any]) -> AsyncIterator[Any]:
    """Yield a client of the scheduler, or of a cluster on this machine's loopback.

    Raises:
        EngineError: nobody answers there, or not to us.
    """
    from distributed import Client

    options = {"asynchronous": True, "set_as_default": False, "timeout": CONNECT_S}
    if request["local"]:
        async with (
            local_cluster(request["local"], request["folder"]) as cluster,
            Client(cluster, **options) as client,
        ):
            yield client
        return
    address = request["scheduler"]
    security = client_security() if address.startswith("tls://") else None
    limit = 2 * request["most_at_once"]
    client = Client(address, security=security, connection_limit=limit, **options)
    try:
        await asyncio.wait_for(client, 2 * CONNECT_S)
    except ImportError as error:
        raise EngineError(code="engine-version", message=str(error)) from None
    except (TimeoutError, OSError, ValueError) as error:
        cause = error.__cause__ or error
        message = " ".join(str(cause).split()) or f"nothing in {CONNECT_S:g} s"
        raise EngineError(code="scheduler-unreachable", message=message) from None
    try:
        yield client
    finally:
        with suppress(Exception):
            await asyncio.wait_for(client.close(fast=True), WATCH_S)


def client_security() -> Any:
    """Return the certificates of Dask's own configuration.

    Raises:
        EngineError: there are none, or they cannot be loaded.
    """
    from distributed.security import Security

    security = Security(require_encryption=True)
    fields = ("tls_ca_file", "tls_client_cert", "tls_client_key")
    missing = [name for name in fields[:2] if not getattr(security, name)]
    if missing:
        keys = ", ".join(name.removeprefix("tls_").replace("_", ".", 1) for name in missing)
        raise EngineError(code="no-certificates", message=f"Dask's configuration has no {keys}")
    try:
        security.get_connection_args("client")
    except (OSError, ValueError) as error:
        raise EngineError(code="no-certificates", message=f"{error}") from None
    return security


@asynccontextmanager
async def local_cluster(count: int, folder: str) -> AsyncIterator[Any]:
    """Start a scheduler and so many workers on this machine's loopback, a process each."""
    from distributed import Nanny, Scheduler, SpecCluster

    nodes = {
        f"local-{number}": {
            "cls": Nanny,
            "options": {
                "nthreads": 1,
                "name": f"local-{number}",
                "host": "127.0.0.1",
                "resources": {GPU: 1},
                "memory_limit": 0,
                "local_directory": folder,
                "dashboard": False,
            },
        }
        for number in range(1, count + 1)
    }
    scheduler = {
        "cls": Scheduler,
        "options": {"host": "127.0.0.1", "port": 0, "dashboard": False},
    }
    async with SpecCluster(workers=nodes, scheduler=scheduler, asynchronous=True) as cluster:
        await cluster.scheduler_comm.identity()
        yield cluster


async def serve(request: dict[str, Any]) -> None:
    """Answer the request."""
    try:
        async with connected(request) as client:
            await Engine(client, request).run()
    except EngineError as error:
        tell("failure", code=error.code, message=str(error))
    except (TimeoutError, OSError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        tell("failure", code="scheduler-unreachable", message=message)


def main() -> None:
    """Read the request, and answer it."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    request = json.loads(sys.stdin.readline())
    # The engine and its local workers would ask the driver, which may be what hangs.
    os.environ.setdefault("DASK_DISTRIBUTED__DIAGNOSTICS__NVML", "False")
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        tell("failure", code="no-engine", message=str(error))
        return
    asyncio.run(serve(request))
    # Threads of the engine may wait for what never comes.
    os._exit(0)


if __name__ == "__main__":
    # Whatever a library prints must not meet the protocol.
    OUTPUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    main()
