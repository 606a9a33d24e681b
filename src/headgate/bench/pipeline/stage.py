"""What `bench pipeline` runs on: every role as a process, producers, and subscribers.

The router is a process of the benchmark's own, because the baseline shares its Spark session; all
else is as `headgate up` starts it. Everything is in a temporary folder, on free ports, and ends
with the context.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from headgate.adapters.embedded.checkpoints import EmbeddedCheckpointStore
from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.reader import EmbeddedLogReader
from headgate.bench.pipeline.crowd import Count, Counted, Subscribe
from headgate.bench.pipeline.events import SUBSCRIPTIONS, TOPIC
from headgate.bench.pipeline.load import Produce, Produced
from headgate.bench.pipeline.router import Done, Open, Read, Route, Stop
from headgate.bench.result import Failed, Say
from headgate.bench.worker import Worker, worker
from headgate.client.http import HttpClient
from headgate.config import Config, environment_of
from headgate.demo.stage import demo_config
from headgate.model.api import CreateTopic, TopicInfo, TopologyAnswer
from headgate.model.event import PartitionRef
from headgate.services.supervisor import Supervisor
from headgate.tasks import Helpers
from headgate.wiring.machine import build_supervisor, plan_ports

T = TypeVar("T", Counted, Done, Produced)

ROLES = ("coordinator", "ingest", "gateway")
PARTITIONS = 2
"""As many lanes as the smallest machine has cores."""
CONNECTIONS = 10
WINDOW_S = 120.0
CREATE_TIMEOUT_S = 30.0
SUBSCRIBE_TIMEOUT_S = 120.0


class Positions:
    """How far the log goes, and how far it is settled, over all partitions."""

    def __init__(self, folder: DataFolder) -> None:
        self._refs = [PartitionRef(TOPIC, number) for number in range(PARTITIONS)]
        self._reader = EmbeddedLogReader(folder)
        self._checkpoints = EmbeddedCheckpointStore(folder)

    async def head(self) -> int:
        return sum([(await self._reader.extent(ref)).head for ref in self._refs])

    async def settled(self) -> int:
        stored = await self._checkpoints.list()
        return sum(stored[ref].settled for ref in self._refs if ref in stored)

    async def close(self) -> None:
        await self._reader.close()
        await self._checkpoints.close()


@dataclass(frozen=True, slots=True)
class Stage:
    url: str
    ws_url: str
    positions: Positions
    opening: asyncio.Future[Done]
    supervisor: Supervisor
    router: Worker
    load: Worker
    crowd: Worker

    async def spark_opened(self) -> None:
        _checked(await self.opening)

    def cpu_s(self) -> float:
        """What everything but the producers and the benchmark itself has used so far."""
        pids = [pid for pid in self.supervisor.pids.values() if pid is not None]
        router = self.router.pid
        return sum(map(_cpu_s, (*pids, self.crowd.pid, router, *_descendants(router))))

    async def baseline(self) -> float:
        """Seconds that Spark takes to read the log through an identity into the noop sink."""
        return _checked(await self.router.ask(Read(TOPIC), Done)).seconds

    async def route(self) -> None:
        _checked(await self.router.ask(Route(), Done))

    async def stop_routing(self) -> None:
        """Returns when the lanes have saved their positions and Spark is gone."""
        _checked(await self.router.ask(Stop(), Done))

    async def create_topic(self) -> None:
        async with HttpClient(self.url) as client:
            wanted = CreateTopic(TOPIC, partitions=PARTITIONS, placement="keyed")
            await client.post("/v1/topics", wanted, TopicInfo, timeout_s=CREATE_TIMEOUT_S)

    async def subscribe(self) -> None:
        order = Subscribe(
            self.ws_url, CONNECTIONS, SUBSCRIPTIONS // CONNECTIONS, SUBSCRIBE_TIMEOUT_S
        )
        _checked(await self.crowd.ask(order, Counted))

    async def ingest_url(self) -> str:
        """Where a producer sends, too."""
        async with HttpClient(self.url) as client:
            answer = await client.get("/v1/topology", TopologyAnswer)
        [node] = answer.topology.of_role("ingest")
        return node.url

    async def produce(self, order: Produce) -> Produced:
        return _checked(await self.load.ask(order, Produced))

    async def delivered(self, events: int = 0, timeout_s: float = 0.0) -> int:
        """How many events have reached their subscriber: at least `events`, given the time."""
        return _checked(await self.crowd.ask(Count(events, timeout_s), Counted)).events


@asynccontextmanager
async def everything_running(folder: Path, say: Say) -> AsyncIterator[Stage]:
    """Spark begins to start at once, and the context is entered when the other roles serve."""
    config = _config(folder / "data")
    data = DataFolder.open(Path(config.data))
    async with (
        # Before the supervisor, which in the end stops whatever was started after it.
        worker("headgate.bench.pipeline.router") as router,
        worker("headgate.bench.pipeline.load") as load,
        worker("headgate.bench.pipeline.crowd") as crowd,
        _positions(data) as positions,
        Helpers() as helpers,
    ):
        opening = helpers.start(router.ask(_open(config, folder), Done))
        with data.lock():
            supervisor = build_supervisor(config, data, say, ROLES)
            try:
                await supervisor.start(lambda role: say(f"{role} is ready"))
                yield Stage(
                    url=f"http://{config.public.host}:{config.public.port}",
                    ws_url=f"ws://{config.public.host}:{config.public.ws_port}/v1/subscribe",
                    positions=positions,
                    opening=opening,
                    supervisor=supervisor,
                    router=router,
                    load=load,
                    crowd=crowd,
                )
            finally:
                opening.cancel()
                await supervisor.stop()


def _config(data: Path) -> Config:
    loaded = demo_config(data)
    planned = plan_ports(loaded.config, loaded.origins)
    router = planned.router.model_copy(update={"window": WINDOW_S})
    return planned.model_copy(update={"router": router})


def _open(config: Config, folder: Path) -> Open:
    own = config.model_copy(update={"client_id": "router-1"})
    return Open(environment_of(own), str(folder / "spark"), str(folder / "router.log"))


@asynccontextmanager
async def _positions(data: DataFolder) -> AsyncIterator[Positions]:
    positions = Positions(data)
    try:
        yield positions
    finally:
        await positions.close()


def _checked(answer: T) -> T:
    if answer.fault:
        raise Failed(answer.fault)
    return answer


def _cpu_s(pid: int) -> float:
    """What a process has used; nothing when it is gone."""
    try:
        used = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system)


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
