"""Roles as an operator starts them one by one: processes that share a data folder and no `up`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

import psutil

from tests.servers.process import free_port
from tests.system.harness import (
    HEADGATE,
    READY_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Command,
    environment,
    until,
)
from tests.system.recorder import RecordingGateway

PLAIN_ROUTER = (sys.executable, "-m", "tests.system.plain_router")
"""For clusters in which it doesn't matter that lanes run on Spark."""


def own_port() -> dict[str, str]:
    """For a gateway that is to come back where it was: a port that nobody takes meanwhile."""
    return {"HEADGATE_PUBLIC__PORT": str(free_port())}


def same_port(url: str) -> dict[str, str]:
    """The setting that lets a gateway be reached where it was before."""
    return {"HEADGATE_PUBLIC__PORT": url.rpartition(":")[2]}


SQLITE_WRITER = "120"
"""The byte that SQLite locks while it writes, in the shared memory beside a database."""


def _writes(pid: int) -> bool:
    """Whether it is in the middle of a write to a database."""
    held = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    writers = [lock[4] for lock in held if lock[1] == "POSIX" and lock[-2] == SQLITE_WRITER]
    return str(pid) in writers


class Cluster:
    """A coordinator, a gateway, ingest nodes and routers; use it as a context manager.

    The ports of the coordinator are decided here, because the others have to know them. An ingest
    node takes any free one, so a restarted node has another address than before.
    """

    def __init__(
        self,
        data: Path,
        *,
        coordinators: int = 1,
        ingest_nodes: int = 1,
        routers: int = 0,
        recording: bool = False,
        settings: Mapping[str, str] | None = None,
        router_program: Sequence[str] = HEADGATE,
    ) -> None:
        self.data = data
        self.url = ""
        self.gateway: RecordingGateway | None = None
        self._recording = recording
        self._router_program = router_program
        self.router_ids = [f"router-{number + 1}" for number in range(routers)]
        self.ingest_ids = [f"ingest-{number + 1}" for number in range(ingest_nodes)]
        self._coordinators = {
            f"coordinator-{number + 1}": (free_port(), free_port(), free_port())
            for number in range(coordinators)
        }
        router_ports = ",".join(f"127.0.0.1:{own[0]}" for own in self._coordinators.values())
        consumer_ports = ",".join(f"127.0.0.1:{own[1]}" for own in self._coordinators.values())
        first = self._coordinators["coordinator-1"]
        self.settings = {
            "HEADGATE_DATA": str(data),
            "HEADGATE_COORDINATOR__HTTP_PORT": str(first[2]),
            "HEADGATE_INGEST__PORT": "0",
            "HEADGATE_INGEST__SERVER_ADDRESS": router_ports,
            "HEADGATE_GATEWAY__CLIENT_PORT": "0",
            "HEADGATE_GATEWAY__SERVER_ADDRESS": consumer_ports,
            "HEADGATE_ROUTER__SERVER_ADDRESS": router_ports,
            "HEADGATE_ROUTER__MASTER": "local[4,4]",
            "HEADGATE_ROUTER__SLOTS": "2",
            "HEADGATE_ROUTER__DRIVER_MEMORY": "700m",
            **(settings or {}),
        }
        self._running: dict[str, Command] = {}

    def __enter__(self) -> Self:
        try:
            for node_id in self._coordinators:  # one after the other: the first one leads
                self.start("coordinator", node_id)
            for node_id in self.ingest_ids:
                self.begin("ingest", node_id)
            for node_id in self.router_ids:
                self.begin("router", node_id)
            self.url = self._start_gateway()
            for node_id in (*self.ingest_ids, *self.router_ids):
                self.await_ready(node_id)
            until(self._all_are_known, "all nodes are known")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.gateway is not None:
            self.gateway.stop()
        self._stop_together([one for one in self._running if one not in self._coordinators])
        self._stop_together(list(self._running))

    def _stop_together(self, node_ids: Sequence[str]) -> None:
        commands = [self._running.pop(node_id) for node_id in node_ids]
        for command in commands:
            command.process.terminate()
        for command in commands:
            command.wait(STOP_TIMEOUT_S)

    def _start_gateway(self) -> str:
        if not self._recording:
            return self.start("gateway", "gateway-1")
        settings = environment({**self.settings, "HEADGATE_CLIENT_ID": "gateway-1"})
        self.gateway = RecordingGateway(settings, self.data.parent)
        return self.gateway.start()

    def _all_are_known(self) -> bool:
        with contextlib.suppress(OSError):  # The gateway says 503 until it knows the coordinator.
            return len(self.nodes()) == len(self.ingest_ids) + len(self.router_ids) + 1
        return False

    def start(self, role: str, node_id: str, settings: Mapping[str, str] | None = None) -> str:
        """Start a role under an id, and return its address once it serves."""
        self.begin(role, node_id, settings)
        return self.await_ready(node_id)

    def begin(
        self,
        role: str,
        node_id: str,
        settings: Mapping[str, str] | None = None,
        *,
        program: Sequence[str] = (),
    ) -> Command:
        own = {**self.settings, "HEADGATE_CLIENT_ID": node_id, **(settings or {})}
        if role == "coordinator":
            names = ("ROUTER_PORT", "CONSUMER_PORT", "HTTP_PORT")
            ports = self._coordinators[node_id]
            own |= {f"HEADGATE_COORDINATOR__{n}": str(p) for n, p in zip(names, ports, strict=True)}
        usual = self._router_program if role == "router" else HEADGATE
        is_fresh = bool(program) or (role == "router" and usual != PLAIN_ROUTER)
        self._running[node_id] = Command(
            [role], environment(own), program=program or usual, fresh=is_fresh
        )
        return self._running[node_id]

    def await_ready(self, node_id: str) -> str:
        started = self._running[node_id]

        def ready() -> bool:
            if started.process.poll() is not None:
                raise AssertionError(f"{node_id} ended: {started.err.finish()[-5:]}")
            return bool(started.out.lines)

        until(ready, f"{node_id} is ready", READY_TIMEOUT_S)
        return started.out.lines[0].removeprefix("ready ")

    def stop(self, node_id: str) -> int:
        command = self._running.pop(node_id)
        command.process.terminate()
        return command.wait(STOP_TIMEOUT_S)

    def kill(self, node_id: str) -> None:
        self._running.pop(node_id).kill()

    def command(self, *arguments: str, settings: Mapping[str, str] | None = None) -> Command:
        environ = environment({**self.settings, **(settings or {})})
        return Command(arguments, {**environ, "HEADGATE_URL": self.url})

    def subscribe(self, *arguments: str, url: str = "") -> Command:
        """A subscriber that has been told that it misses nothing from now on."""
        command = self.command("subscribe", *arguments, "--url", url or self.url)
        command.until_said("subscribed", 60.0)
        return command

    def runs(self, node_id: str) -> bool:
        return node_id in self._running

    def pid(self, node_id: str) -> int:
        return self._running[node_id].process.pid

    @contextlib.contextmanager
    def paused(self, node_id: str) -> Iterator[None]:
        """Stop a process and all it has started, and let them go on afterwards.

        Not in the middle of a write to an embedded log: nobody can take the lock of a process that
        is there, and docs/operations.md says so."""
        parent = psutil.Process(self.pid(node_id))
        family = [parent, *parent.children(recursive=True)]

        def stopped() -> bool:
            for process in family:
                process.suspend()
            if not _writes(parent.pid):
                return True
            for process in family:
                process.resume()
            return False

        until(stopped, f"{node_id} is stopped between two writes")
        try:
            yield
        finally:
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def replaced(self, node_id: str) -> Command:
        """Makes room for another process of this id, which doesn't end the one that runs."""
        return self._running.pop(node_id)

    def put_back(self, node_id: str, command: Command) -> None:
        self._running[node_id] = command

    def said(self) -> dict[str, list[str]]:
        """What each node that runs has written to its standard error."""
        return {node_id: list(one.err.lines) for node_id, one in self._running.items()}

    # --- what the coordinator says ---------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        return self._status_at(self.url)

    def status_without_gateways(self) -> dict[str, Any]:
        """As the first coordinator itself tells it."""
        return self._status_at(self.coordinator_url("coordinator-1"))

    def _status_at(self, url: str) -> dict[str, Any]:
        with urlopen(f"{url}/v1/status", timeout=10) as response:
            status: dict[str, Any] = json.load(response)
            return status

    def coordinator_url(self, node_id: str) -> str:
        return f"http://127.0.0.1:{self._coordinators[node_id][2]}"

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The members other than the coordinator, by id."""
        nodes = self.status()["nodes"]
        return {node["id"]: node for node in nodes if node["role"] != "coordinator"}

    def address(self, node_id: str) -> str:
        address: str = self.nodes()[node_id]["url"]
        return address

    def owners(self, topic: str) -> dict[int, str]:
        """The ingest node of each partition."""
        return {part["partition"]: part["owner"] for part in self.partitions(topic)}

    def routers(self, topic: str) -> dict[int, str]:
        """The router of each partition."""
        return {part["partition"]: part["router"] for part in self.partitions(topic)}

    def partitions(self, topic: str) -> list[dict[str, Any]]:
        [found] = [one for one in self.status()["topics"] if one["name"] == topic]
        details: list[dict[str, Any]] = found["details"]
        return details
