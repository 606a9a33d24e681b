"""`bench failover`: every role is killed under load while another of its kind is there.

Events go into every partition of a keyed topic at a steady rate, and one subscriber gets them all.
A figure is the time from the kill until an event of every partition that was sent after it is
acknowledged and delivered: that of the partition that waits longest. A run in which an
acknowledged event is missing, or one comes before an earlier one of its key, counts them.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from headgate.bench.conditions import machine, spark
from headgate.bench.failover.stage import Cluster, Document, cluster
from headgate.bench.rebalance.traffic import keys_of
from headgate.bench.result import Benchmark, Failed, Result, Say
from headgate.client import Event, Producer, Subscriber
from headgate.client.http import HttpClient
from headgate.client.producer import ProducerOptions
from headgate.config import load_config
from headgate.demo.stage import data_folder
from headgate.model.api import CreateTopic, TopicInfo
from headgate.tasks import Crew

TOPIC = "flights"
PARTITIONS = 8
PER_S = 200.0
WARM_S = 2.0
PATIENCE_S = 120.0
URLS = ("gateway-1", "gateway-2")


@dataclass(slots=True)
class Traffic:
    """The events that were sent and when, what became of each, and what is wrong with that."""

    keys: list[str]
    sent_s: list[float] = field(default_factory=list)
    acknowledged_s: dict[int, float] = field(default_factory=dict)
    received_s: dict[int, float] = field(default_factory=dict)
    out_of_order: int = 0
    duplicates: int = 0
    stopping: bool = False
    _newest: dict[int, int] = field(default_factory=dict)

    async def send(self, producer: Producer) -> None:
        async with asyncio.TaskGroup() as sending:
            for number in itertools.count():
                if self.stopping:
                    return
                self.sent_s.append(time.monotonic())
                sending.create_task(self._one(producer, number))
                await asyncio.sleep(1 / PER_S)

    async def _one(self, producer: Producer, number: int) -> None:
        document = msgspec.json.encode(Document(number))
        await producer.send(TOPIC, document, key=self.keys[number % len(self.keys)])
        self.acknowledged_s[number] = time.monotonic()

    async def receive(self, subscriber: Subscriber) -> None:
        decode = msgspec.json.Decoder(Document).decode
        async for item in subscriber:
            if isinstance(item, Event):
                number = decode(item.raw).number
                key, now_s = number % len(self.keys), time.monotonic()
                if number in self.received_s:
                    self.duplicates += 1
                    continue
                self.out_of_order += number < self._newest.get(key, -1)
                self._newest[key] = max(number, self._newest.get(key, -1))
                self.received_s[number] = now_s

    async def back(self, killed_s: float) -> float:
        """How long it took until every partition was written and delivered again."""
        first = next(n for n, sent_s in enumerate(self.sent_s) if sent_s > killed_s)
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            ends = [self._first(table, first) for table in (self.acknowledged_s, self.received_s)]
            if all(len(found) == len(self.keys) for found in ends):
                return max(max(found.values()) for found in ends) - killed_s
            await asyncio.sleep(0.01)
        raise Failed(f"events don't flow {PATIENCE_S:g} s after a node was killed")

    def _first(self, table: dict[int, float], first: int) -> dict[int, float]:
        """By key, when the first event behind `first` got there."""
        found: dict[int, float] = {}
        for number, at_s in table.items():
            key = number % len(self.keys)
            if number >= first:
                found[key] = min(at_s, found.get(key, at_s))
        return found

    async def finish(self) -> int:
        """How many of the acknowledged events never came."""
        self.stopping = True
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            done = len(self.acknowledged_s) == len(self.sent_s)
            if done and self.acknowledged_s.keys() <= self.received_s.keys():
                return 0
            await asyncio.sleep(0.05)
        return len(self.acknowledged_s.keys() - self.received_s.keys())


async def run(quick: bool, say: Say) -> Result:
    config = load_config().config
    postgres = config.log.dsn if config.log.backend == "postgresql" else ""
    conditions = {
        **machine(),
        "partitions": PARTITIONS,
        "events_per_s": PER_S,
        "log": "PostgreSQL" if postgres else "embedded, shared by all nodes of this machine",
        "positions": "etcd" if postgres else "embedded",
        "coordinator_store": "etcd",
    }
    if quick:
        conditions["spark"] = "none: the routers run their lanes without it"
    else:
        conditions |= spark()
    with data_folder() as folder:
        async with cluster(Path(folder), without_spark=quick, postgres=postgres) as nodes:
            figures = await _measured(nodes, say)
    return Result("failover", conditions, figures, {})


async def _measured(nodes: Cluster, say: Say) -> dict[str, float]:
    urls = [nodes.url(one) for one in URLS]
    async with HttpClient(urls[1], timeout_s=60.0, patience_s=10.0) as http:
        await http.post("/v1/topics", CreateTopic(TOPIC, PARTITIONS), TopicInfo)
    flow = Traffic(keys_of(PARTITIONS))
    figures: dict[str, float] = {}
    async with (
        Subscriber(urls, TOPIC) as subscriber,
        Producer(urls[1], ProducerOptions(deadline_s=PATIENCE_S)) as producer,
        Crew("bench") as crew,
    ):
        crew.need("receiving", flow.receive(subscriber))
        crew.start("sending", flow.send(producer))
        await nodes.whole(TOPIC)
        for role in ("ingest", "router", "gateway", "coordinator"):
            node_id = await _victim(nodes, role)
            figures[f"{role}_s"] = await _killed(nodes, flow, node_id, say)
            await nodes.start(node_id)
            await nodes.whole(TOPIC)
        await nodes.stop("router-2")
        await nodes.whole(TOPIC)
        say("killing router-1, the only one")
        killed_s = time.monotonic()
        await nodes.kill("router-1")
        await nodes.begin("router-1")
        figures["lone_router_s"] = round(await flow.back(killed_s), 3)
        lost = await flow.finish()
    figures |= {
        "events": len(flow.acknowledged_s),
        "lost": lost,
        "out_of_order": flow.out_of_order,
        "duplicates": flow.duplicates,
    }
    return figures


async def _killed(nodes: Cluster, flow: Traffic, node_id: str, say: Say) -> float:
    await asyncio.sleep(WARM_S)
    say(f"killing {node_id}")
    killed_s = time.monotonic()
    await nodes.kill(node_id)
    return round(await flow.back(killed_s), 3)


async def _victim(nodes: Cluster, role: str) -> str:
    """The one that hurts: the leader, and the gateway where the subscriber is."""
    status = await nodes.status()
    if status is None:
        raise Failed("no gateway answers")
    if role == "coordinator":
        return status.leader
    if role == "gateway":
        return next(one.id for one in status.gateways if one.subscribers)
    return f"{role}-1"


FAILOVER = Benchmark(
    "failover", "kill -9 of each role under load: how long until everything flows again", run
)
