"""Where `bench connector` reads: by a connector into the durable log.

Coordinator, ingest node and gateway as `headgate up` starts them, without Spark. A round has a
topic and a connector of its own; both are deleted after it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.bench.connector.bare import Drained
from headgate.bench.result import Failed, Say
from headgate.client.http import HttpClient
from headgate.demo.stage import demo_config
from headgate.model.api import CreateTopic, TopicInfo
from headgate.model.connectors_api import ConnectorInfo, CreateConnector
from headgate.model.event import PartitionRef
from headgate.wiring.machine import build_supervisor, plan_ports

ROLES = ("coordinator", "ingest", "gateway")
PARTITIONS = 4
CREATE_TIMEOUT_S = 40.0
LOOK_EVERY_S = 0.01
SLOWEST_PER_S = 500
"""A backlog that goes slower than this has got stuck."""
PATIENCE_S = 60.0


@dataclass(slots=True)
class Stage:
    http: HttpClient
    reader: EmbeddedLogReader
    ingest: psutil.Process
    rounds: int = 0

    async def drain(
        self, connector: Callable[[str], Awaitable[CreateConnector]], changes: int
    ) -> Drained:
        """Have a connector, which `connector` makes by its name, read that much into a topic of the
        same name; the clock runs from the first commit in the log to the last."""
        self.rounds += 1
        name = f"round-{self.rounds}"
        refs = [PartitionRef(name, number) for number in range(PARTITIONS)]
        await self._create(name, await connector(name))
        try:
            async with asyncio.timeout(PATIENCE_S + changes / SLOWEST_PER_S):
                return await self._watched(refs, changes)
        except TimeoutError:
            info = await self.http.get(f"/v1/connectors/{name}", ConnectorInfo)
            raise Failed(f"{info.taken:,} of {changes:,} were taken in: {info}") from None
        finally:
            await self.http.delete(f"/v1/connectors/{name}")
            await self.http.delete(f"/v1/topics/{name}")

    async def _create(self, name: str, wanted: CreateConnector) -> None:
        await self.http.post(
            "/v1/topics", CreateTopic(name, PARTITIONS), TopicInfo, timeout_s=CREATE_TIMEOUT_S
        )
        await self.http.post("/v1/connectors", wanted, ConnectorInfo, timeout_s=CREATE_TIMEOUT_S)

    async def _watched(self, refs: list[PartitionRef], changes: int) -> Drained:
        first = await self._until(refs, 1)
        began_s, cpu_s = time.perf_counter(), _cpu_s(self.ingest)
        last = await self._until(refs, changes)
        seconds, cpu_s = time.perf_counter() - began_s, _cpu_s(self.ingest) - cpu_s
        if last != changes:
            raise Failed(f"the log has {last:,} records of {changes:,}")
        return Drained(last - first, seconds, cpu_s)

    async def _until(self, refs: list[PartitionRef], records: int) -> int:
        """How many there are, once there are so many."""
        while True:
            heads = [(await self.reader.extent(ref)).head for ref in refs]
            if sum(heads) >= records:
                return sum(heads)
            await asyncio.sleep(LOOK_EVERY_S)


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


@asynccontextmanager
async def stage(folder: Path, say: Say) -> AsyncIterator[Stage]:
    loaded = demo_config(folder / "data")
    config = plan_ports(loaded.config, loaded.origins)
    data = DataFolder.open(Path(config.data))
    reader = EmbeddedLogReader(data)
    with data.lock():
        supervisor = build_supervisor(config, data, say, ROLES)
        try:
            await supervisor.start(lambda role: say(f"{role} is ready"))
            pid = supervisor.pids["ingest"]
            if pid is None:
                raise Failed("the ingest node has ended")
            async with HttpClient(f"http://{config.public.host}:{config.public.port}") as http:
                yield Stage(http, reader, psutil.Process(pid))
        finally:
            await reader.close()
            await supervisor.stop()
