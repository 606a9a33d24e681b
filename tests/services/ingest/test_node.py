"""An ingest node from outside: HTTP in front, the real log behind, a scripted coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.log_writer import MemoryLogWriter
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import no_origin
from headgate.client.http import HttpClient
from headgate.decide.produce.admission import ProduceLimits
from headgate.decide.produce.placement import partition_of
from headgate.errors import (
    InvalidRequest,
    NotNow,
    OutcomeUnknown,
    StorageFailed,
    TooLarge,
    UnknownTopic,
)
from headgate.model.api import Health, ProduceAnswer
from headgate.model.control.from_coordinator import Refused, Restart, Welcome
from headgate.model.control.reports import IngestReport
from headgate.model.control.to_coordinator import AckTopology, EpochTooLow, Goodbye, Hello
from headgate.model.event import PartitionRef
from headgate.model.position import Position
from headgate.model.topology import Owner, Topic, Topology
from headgate.ports.log import LogWriter
from headgate.services.ingest.node import Ingest, IngestOptions
from headgate.services.ingest.produce.writing import WritingOptions
from tests.services.ingest.doubles import NODE, FaultyLogWriter, ScriptedCoordinator, topology
from tests.waiting import until

FLIGHTS = Topic("flights", 4)
JOBS = Topic("jobs", 4, "opportunistic")
NOW_MS = 1_700_000_000_000


class Served:
    """A node that serves, with an HTTP client and the coordinator's end of its session."""

    def __init__(self, node: Ingest, client: HttpClient, coordinator: ScriptedCoordinator) -> None:
        self.node = node
        self.client = client
        self.coordinator = coordinator

    async def adopt(self, pushed: Topology) -> None:
        self.coordinator.push(pushed)
        await self.coordinator.heard(AckTopology(pushed.generation))

    async def produce(self, topic: str, *events: dict[str, Any], **rest: Any) -> ProduceAnswer:
        body = {"events": list(events), **rest}
        return await self.client.post(f"/v1/topics/{topic}/produce", body, ProduceAnswer)


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(
            writer: LogWriter,
            *,
            settled: dict[PartitionRef, Position] | None = None,
            **options: Any,
        ) -> Served:
            async def settled_positions() -> dict[PartitionRef, Position]:
                return settled or {}

            coordinator = ScriptedCoordinator()
            node = Ingest(
                IngestOptions(
                    NODE, "start-1", **{"report_every_s": 0.05, "stop_timeout_s": 5.0, **options}
                ),
                writer=writer,
                reader=MemoryLogReader(getattr(writer, "stored", None)),
                open_session=coordinator.open,
                settled=settled_positions,
                http=Http1Server(),
                calls=PooledCalls(),
                open_origin=no_origin,
                machine=ScriptedMachine(begins_ms=NOW_MS),
            )
            client = await stack.enter_async_context(HttpClient(await node.start()))
            stack.push_async_callback(node.stop)
            return Served(node, client, coordinator)

        yield start


def embedded(path: Path) -> EmbeddedLogWriter:
    return EmbeddedLogWriter(DataFolder.open(path / "data"))


# --- producing -----------------------------------------------------------------------------------


async def test_keyed_events_land_by_their_keys_and_are_answered_in_order(
    serve: Serve, tmp_path: Path
) -> None:
    served = await serve(embedded(tmp_path))
    await served.adopt(topology(1, FLIGHTS))
    events = [
        {"key": f"k{n % 7}", "document": {"n": n}, "event_id": f"e{n}", "collection": "c"}
        for n in range(50)
    ]
    answer = await served.produce("flights", *events)
    assert [result.event_id for result in answer.events] == [f"e{n}" for n in range(50)]
    seqs = [0] * 4
    for event, result in zip(events, answer.events, strict=True):
        partition = partition_of(str(event["key"]), collection="c", count=4)
        seqs[partition] += 1
        assert (result.partition, result.seq, result.error) == (partition, seqs[partition], None)


async def test_the_same_ids_again_get_the_same_places(serve: Serve, tmp_path: Path) -> None:
    served = await serve(embedded(tmp_path))
    await served.adopt(topology(1, FLIGHTS))
    events = [{"document": {}, "event_id": f"e{n}"} for n in range(9)]
    first = await served.produce("flights", *events)
    assert await served.produce("flights", *reversed(events)) == ProduceAnswer(first.events[::-1])


async def test_opportunistic_requests_go_whole_to_the_partition_with_the_fewest_waiting(
    serve: Serve, tmp_path: Path
) -> None:
    served = await serve(embedded(tmp_path))
    await served.adopt(topology(1, JOBS))
    chosen = []
    for size in (50, 30, 100, 20, 100, 100, 1):
        answer = await served.produce("jobs", *[{"document": {}}] * size)
        partitions = {result.partition for result in answer.events}
        assert len(partitions) == 1
        chosen.append(partitions.pop())
    assert chosen == [0, 1, 2, 3, 3, 1, 0]


async def test_what_is_settled_no_longer_waits(serve: Serve, tmp_path: Path) -> None:
    settled: dict[PartitionRef, Position] = {}
    served = await serve(embedded(tmp_path), settled=settled)
    await served.adopt(topology(1, JOBS))
    for _ in range(4):
        await served.produce("jobs", *[{"document": {}}] * 10)
    settled[PartitionRef("jobs", 2)] = Position(10)
    answer = await served.produce("jobs", {"document": {}})
    assert answer.events[0].partition == 2


@pytest.mark.parametrize(
    ("topic", "events", "kind", "sentence"),
    [
        pytest.param(
            "flughts",
            [{"document": {}}],
            UnknownTopic,
            "no topic flughts; did you mean flights?",
            id="unknown-topic",
        ),
        pytest.param(
            "flights", [{"document": 1}], InvalidRequest, "JSON object", id="bad-document"
        ),
        pytest.param(
            "flights",
            [{"document": {"a": "x" * 3_000}}],
            TooLarge,
            "body is larger",
            id="too-large",
        ),
        pytest.param(
            "jobs", [{"document": {}, "key": "k"}], InvalidRequest, "is opportunistic", id="key"
        ),
    ],
)
async def test_a_callers_mistake_is_one_sentence_and_writes_nothing(
    serve: Serve, topic: str, events: list[Any], kind: type[Exception], sentence: str
) -> None:
    writer = FaultyLogWriter()
    served = await serve(writer, writing=WritingOptions(limits=ProduceLimits(body_bytes=2_000)))
    await served.adopt(topology(1, FLIGHTS, JOBS))
    with pytest.raises(kind, match=sentence):
        await served.produce(topic, *events)
    assert not any(writer.records.values())


# --- the coordinator -----------------------------------------------------------------------------


async def test_a_node_says_who_it_is_and_what_it_has(serve: Serve) -> None:
    served = await serve(FaultyLogWriter())
    await served.adopt(topology(3, FLIGHTS))
    hello = served.coordinator.session.hello()
    assert hello == Hello(
        role="ingest",
        node_id=NODE,
        incarnation="start-1",
        url=served.node.url,
        pid=hello.pid,
        owns=tuple(Owner(ref, NODE, 1) for ref in FLIGHTS.refs()),
        generation=3,
    )


async def test_a_topology_is_acknowledged_only_when_its_partitions_are_open(serve: Serve) -> None:
    writer = FaultyLogWriter()
    writer.open_failures[PartitionRef("flights", 2)] = NotNow("the disk is away")
    served = await serve(writer)
    served.coordinator.push(topology(1, FLIGHTS))
    await served.coordinator.heard(IngestReport(tuple((FLIGHTS.refs()[n], 0) for n in (0, 1, 3))))
    assert AckTopology(1) not in served.coordinator.sent
    writer.open_failures.clear()
    await served.coordinator.heard(AckTopology(1))


async def test_heads_are_reported_while_they_grow_and_after_a_reconnect(serve: Serve) -> None:
    served = await serve(FaultyLogWriter(), report_every_s=0.01)
    single = Topic("single", 1)
    await served.adopt(topology(1, single))
    await served.produce("single", {"document": {}}, {"document": {}})
    await served.coordinator.heard(IngestReport(((PartitionRef("single", 0), 2),)))
    served.coordinator.sent.clear()
    served.coordinator.say(Welcome("coordinator", 30_000, 5_000))
    await served.coordinator.heard(IngestReport(((PartitionRef("single", 0), 2),)))


async def test_a_deleted_topic_is_emptied_and_its_sequence_goes_on(
    serve: Serve, tmp_path: Path
) -> None:
    served = await serve(embedded(tmp_path))
    single = Topic("single", 1)
    await served.adopt(topology(1, single))
    first = await served.produce("single", {"document": {}, "event_id": "a"})
    await served.adopt(topology(2, deleted=(single,)))
    with pytest.raises(UnknownTopic):
        await served.produce("single", {"document": {}})
    recreated = Topology(3, (single,), logs=(Owner(PartitionRef("single", 0), NODE, 3),))
    await served.adopt(recreated)
    again = await served.produce("single", {"document": {}, "event_id": "a"})
    assert (first.events[0].seq, again.events[0].seq) == (1, 2)


async def test_who_routes_by_a_topology_that_is_yet_to_come_is_not_told_no_such_topic(
    serve: Serve, tmp_path: Path
) -> None:
    served = await serve(embedded(tmp_path))
    old, new = Topic("old", 1), Topic("new", 1)
    await served.adopt(topology(1, old))
    with pytest.raises(UnknownTopic):
        await served.produce("new", {"document": {}})
    routed = asyncio.create_task(served.produce("new", {"document": {}}, version=1))
    await until(lambda: served.node._writing.appends.room.taken_bytes > 0)
    await served.adopt(topology(2, old, new))
    assert (await routed).events[0].seq == 1
    await served.adopt(topology(3, old, deleted=(new,)))
    with pytest.raises(UnknownTopic):
        await served.produce("new", {"document": {}}, version=1)


async def test_a_deletion_is_acknowledged_when_its_records_are_dropped(serve: Serve) -> None:
    writer = FaultyLogWriter()
    served, [gone] = await serve(writer), Topic("gone", 1).refs()
    writer.drop_failures[gone] = StorageFailed("the disk is away")
    served.coordinator.push(topology(1, Topic("kept", 1), deleted=(Topic("gone", 1),)))
    await served.coordinator.heard(AckTopology(1, undropped=("gone",)))
    assert AckTopology(1) not in served.coordinator.sent
    writer.drop_failures.clear()
    await served.coordinator.heard(AckTopology(1))


async def test_one_that_cannot_be_opened_keeps_no_other_from_being_given_anew(serve: Serve) -> None:
    writer, [damaged, low] = FaultyLogWriter(), Topic("two", 2).refs()
    await writer.open(low, epoch=9)
    writer.open_failures[damaged] = StorageFailed("the file is damaged")
    served = await serve(writer)
    served.coordinator.push(topology(1, Topic("two", 2)))
    await served.coordinator.heard(EpochTooLow(low, 9))
    await served.coordinator.heard(AckTopology(1, unopened=(damaged,)))
    assert AckTopology(1) not in served.coordinator.sent


async def test_one_that_is_fenced_while_it_writes_asks_for_a_higher_epoch(serve: Serve) -> None:
    """A coordinator that has lost its memory may believe it, and know of nobody newer."""
    writer, single = FaultyLogWriter(), Topic("single", 1)
    [ref] = single.refs()
    served = await serve(writer)
    await served.adopt(Topology(1, (single,), logs=(Owner(ref, NODE, 1),)))
    await MemoryLogWriter(writer.stored).open(ref, epoch=2)
    with pytest.raises(NotNow, match="no owner here yet"):  # it asks until its time is over
        await served.produce("single", {"document": {}, "event_id": "a"}, request_timeout="500ms")
    await served.coordinator.heard(EpochTooLow(ref, 2))
    await served.adopt(Topology(2, (single,), logs=(Owner(ref, NODE, 3),)))
    assert (await served.produce("single", {"document": {}, "event_id": "a"})).events[0].seq == 1


async def test_the_coordinator_hears_that_a_topic_was_opened_after_its_deletion(
    serve: Serve,
) -> None:
    writer, [back] = FaultyLogWriter(), Topic("back", 1).refs()
    await writer.open(back, epoch=5)
    served = await serve(writer)
    await served.adopt(topology(1, deleted=(Topic("back", 1),)))
    assert served.coordinator.sent.index(EpochTooLow(back, 5)) < served.coordinator.sent.index(
        AckTopology(1)
    ), "before it takes the deletion for done"


async def test_a_topic_that_is_merely_absent_keeps_its_records(serve: Serve) -> None:
    writer = FaultyLogWriter()
    served = await serve(writer)
    await served.adopt(topology(1, FLIGHTS))
    await served.adopt(topology(2))
    assert writer.dropped == []


async def test_partitions_of_another_node_are_not_served(serve: Serve) -> None:
    served = await serve(FaultyLogWriter())
    ref = PartitionRef("single", 0)
    pushed = Topology(1, (Topic("single", 1),), logs=(Owner(ref, "ingest-2", 1),))
    await served.adopt(pushed)
    with pytest.raises(NotNow, match="partition 0 of single has no owner here yet"):
        await served.produce("single", {"document": {}}, request_timeout="500ms")


async def test_a_refusal_of_the_coordinator_is_not_the_end(serve: Serve) -> None:
    """Whoever has our name may be a ghost of ourselves; the session tries again."""
    served = await serve(FaultyLogWriter())
    served.coordinator.say(Refused("another node has this id"))
    await asyncio.sleep(0)  # it is heard before there is another connection
    served.coordinator.connect()
    ref = PartitionRef("single", 0)
    await served.adopt(Topology(1, (Topic("single", 1),), logs=(Owner(ref, "ingest-1", 1),)))
    assert (await served.produce("single", {"document": {}})).events[0].seq == 1


# --- the end -------------------------------------------------------------------------------------


async def test_a_stop_finishes_what_was_accepted_and_refuses_what_is_new(serve: Serve) -> None:
    writer = FaultyLogWriter()
    served = await serve(writer)
    await served.adopt(topology(1, Topic("single", 1)))
    ref = PartitionRef("single", 0)
    writer.gates[ref] = asyncio.Event()
    accepted = asyncio.create_task(served.produce("single", {"document": {}}))
    await asyncio.wait_for(writer.started[ref].wait(), 30)
    stopping = asyncio.create_task(served.node.stop())
    with pytest.raises(NotNow, match="stopping"):
        await served.produce("single", {"document": {}})
    writer.gates[ref].set()
    assert (await accepted).events[0].seq == 1
    await asyncio.wait_for(stopping, 30)
    assert (writer.closed, served.coordinator.session.closed) == (True, True)
    with pytest.raises(NotNow):
        await served.produce("single", {"document": {}})


async def test_a_node_that_is_to_begin_anew_says_that_it_returns(serve: Serve) -> None:
    served = await serve(FaultyLogWriter())
    served.coordinator.say(Restart())
    await asyncio.wait_for(served.node.failed(), 30)
    assert served.node.is_to_restart
    await served.node.stop(returns=True)
    assert served.coordinator.sent[-1] == Goodbye(returns=True)


async def test_a_stop_waits_for_writes_that_outlived_their_request(serve: Serve) -> None:
    writer = FaultyLogWriter()
    served = await serve(writer)
    await served.adopt(topology(1, Topic("single", 1)))
    ref = PartitionRef("single", 0)
    writer.gates[ref] = asyncio.Event()
    with pytest.raises(OutcomeUnknown):
        await served.produce("single", {"document": {}}, request_timeout="20ms")
    stopping = asyncio.create_task(served.node.stop())
    with pytest.raises(NotNow, match="stopping"):
        await served.produce("single", {"document": {}})
    ended, _ = await asyncio.wait({stopping}, timeout=0.3)
    assert not ended
    writer.gates[ref].set()
    await asyncio.wait_for(stopping, 30)
    assert (writer.closed, len(writer.records[ref])) == (True, 1)


async def test_health_and_metrics_are_served(serve: Serve) -> None:
    served = await serve(FaultyLogWriter())
    await served.adopt(topology(1, FLIGHTS))
    await served.produce("flights", {"document": {}}, {"document": {}})
    with pytest.raises(UnknownTopic):
        await served.produce("nope", {"document": {}})
    health = await served.client.get("/health", Health)
    assert (health.status, health.role) == ("healthy", "ingest")
    served.coordinator.session.cut()
    assert (await served.client.get("/health", Health)).status == "degraded"
    metrics = (await served.client.call("GET", "/metrics")).decode()
    assert 'headgate_appends_total{topic="flights"} 2.0' in metrics
    assert "headgate_produce_seconds_count 2.0" in metrics


async def test_a_partition_that_cannot_be_opened_is_said_to_have_failed(serve: Serve) -> None:
    writer = FaultyLogWriter()
    broken = FLIGHTS.refs()[2]
    writer.open_failures[broken] = StorageFailed("the disk is gone")
    served = await serve(writer)
    served.coordinator.push(topology(1, FLIGHTS))
    await until(lambda: broken in served.node._partitions.mine())
    health = await served.client.get("/health", Health)
    assert health.status == "degraded"
    assert {one.id: one.status for one in health.partitions if one.status != "healthy"} == {
        2: "failed"
    }
    assert any("flights:2 is failed" in reason for reason in health.reasons)
    del writer.open_failures[broken]
    await served.coordinator.heard(AckTopology(1))
    assert (await served.client.get("/health", Health)).status == "healthy"
