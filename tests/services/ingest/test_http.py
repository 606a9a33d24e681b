"""What a client may do to an ingest node over HTTP: bad bodies, going away, coming in masses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import no_origin
from headgate.client.http import HttpClient
from headgate.decide.produce.admission import ProduceLimits
from headgate.errors import NotNow, OutcomeUnknown, Overloaded, Sealed, StorageFailed
from headgate.model.api import ProduceAnswer
from headgate.model.control.to_coordinator import AckTopology
from headgate.model.topology import Topic
from headgate.services.ingest.node import Ingest, IngestOptions
from headgate.services.ingest.produce.appends import WriteBounds
from headgate.services.ingest.produce.writing import WritingOptions
from tests.services.ingest.doubles import (
    NODE,
    FaultyLogWriter,
    ScriptedCoordinator,
    nothing_settled,
    topology,
)

FLIGHTS = Topic("flights", 1)
JOBS = Topic("jobs", 2, "opportunistic")
WAIT_S = 30.0
LIMITS = ProduceLimits(
    body_bytes=400_000,
    document_bytes=2_000,
    document_depth=8,
    key_bytes=16,
    event_id_bytes=16,
    collection_bytes=16,
)


class Served:
    def __init__(self, node: Ingest, client: HttpClient, writer: FaultyLogWriter) -> None:
        self.node = node
        self.client = client
        self.writer = writer

    async def raw(self, topic: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and body of a produce, over a plain socket."""
        host, _, port = self.node.url.removeprefix("http://").partition(":")
        reader, out = await asyncio.open_connection(host, int(port))
        out.write(produce_head(topic, len(body)) + body)
        await out.drain()
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        out.close()
        head, _, content = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(content)

    async def produce(self, topic: str, *events: dict[str, Any], **rest: Any) -> ProduceAnswer:
        body = {"events": list(events), **rest}
        return await self.client.post(f"/v1/topics/{topic}/produce", body, ProduceAnswer)


def produce_head(topic: str, length: int) -> bytes:
    return (
        f"POST /v1/topics/{topic}/produce HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(stop_timeout_s: float = 2 * WAIT_S, **writing: Any) -> Served:
            coordinator, writer = ScriptedCoordinator(), FaultyLogWriter()
            options = WritingOptions(**{"limits": LIMITS, **writing})
            node = Ingest(
                IngestOptions(NODE, "start", stop_timeout_s=stop_timeout_s, writing=options),
                writer=writer,
                reader=MemoryLogReader(writer.stored),
                open_session=coordinator.open,
                settled=nothing_settled,
                http=Http1Server(),
                calls=PooledCalls(),
                open_origin=no_origin,
                machine=ScriptedMachine(begins_ms=0),
            )
            client = await stack.enter_async_context(HttpClient(await node.start()))
            stack.push_async_callback(node.stop)
            coordinator.push(topology(1, FLIGHTS, JOBS))
            await coordinator.heard(AckTopology(1))
            return Served(node, client, writer)

        yield start


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for _ in range(levels - 1):
        document = {"a": document}
    return document


BAD: list[Any] = [
    pytest.param("flights", b"", 400, "not a produce request", id="empty-body"),
    pytest.param("flights", b'{"events":[{"docu', 400, "not a produce request", id="cut-off"),
    pytest.param("flights", b"\xff\xfe{}", 400, "not valid UTF-8", id="not-utf-8"),
    pytest.param("flights", {"events": []}, 400, "has no events", id="no-events"),
    pytest.param("flights", {"events": [{}]}, 400, "document", id="no-document"),
    pytest.param("flights", {"event": []}, 400, "unknown field", id="unknown-field"),
    pytest.param("flights", {"events": [{"document": []}]}, 400, "JSON object", id="array"),
    pytest.param(
        "flights", {"events": [{"document": {}}] * 1_001}, 413, "limit is 1000", id="1001-events"
    ),
    pytest.param(
        "flights", {"events": [{"document": {"a": "x" * 2_000}}]}, 413, "limit is 2000", id="long"
    ),
    pytest.param("flights", {"events": [{"document": nested(9)}]}, 400, "deeper than 8", id="deep"),
    pytest.param(
        "flights", {"events": [{"document": {}, "key": "k" * 17}]}, 400, "16 bytes", id="key"
    ),
    pytest.param(
        "flights", {"events": [{"document": {}, "event_id": "é" * 9}]}, 400, "16 bytes", id="id"
    ),
    pytest.param(
        "flights", {"events": [{"document": {}, "event_id": ""}]}, 400, "empty", id="empty-id"
    ),
    pytest.param(
        "flights", {"events": [{"document": {}, "collection": "c" * 17}]}, 400, "16", id="coll"
    ),
    pytest.param(
        "flights",
        {"events": [{"document": {}, "event_id": "a"}] * 2},
        400,
        "repeats the event_id 'a'",
        id="same-id-twice",
    ),
    pytest.param("flights", {"events": [{"document": {}, "op": "upsert"}]}, 400, "upsert", id="op"),
    pytest.param(
        "jobs", {"events": [{"document": {}, "key": "k"}]}, 400, "opportunistic", id="key-on-jobs"
    ),
    pytest.param(
        "flights",
        {"events": [{"document": {}}], "request_timeout": "10ms"},
        400,
        "more than 10ms",
        id="timeout-too-short",
    ),
    pytest.param(
        "flights",
        {"events": [{"document": {}}], "request_timeout": "16m"},
        400,
        "at most 15m",
        id="timeout-too-long",
    ),
    pytest.param(
        "flights", {"events": [{"document": {}}], "version": "1"}, 400, "version", id="version"
    ),
    pytest.param("nope", {"events": [{"document": {}}]}, 404, "no topic nope", id="unknown-topic"),
    pytest.param("n%20o", {"events": [{"document": {}}]}, 404, "no topic", id="impossible-topic"),
    pytest.param("flights", b"x" * 400_001, 413, "larger than 400000", id="oversize-body"),
]


@pytest.mark.parametrize(("topic", "body", "status", "sentence"), BAD)
async def test_a_bad_request_is_one_sentence_and_writes_nothing(
    serve: Serve, topic: str, body: Any, status: int, sentence: str
) -> None:
    served = await serve()
    encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
    answered, content = await served.raw(topic, encoded)
    assert (answered, sentence in content["error"]["message"]) == (status, True), content
    assert content["error"]["code"]
    assert not any(served.writer.records.values())


async def test_a_request_at_every_limit_is_taken(serve: Serve) -> None:
    served = await serve()
    document = nested(8)
    document["b"] = "x" * (2_000 - len(json.dumps({**document, "b": ""}, separators=(",", ":"))))
    full = {"document": document, "key": "k" * 16, "event_id": "i" * 16, "collection": "c" * 16}
    rest: list[dict[str, Any]] = [{"document": {}}] * 999
    answer = await served.produce("flights", full, *rest)
    assert [result.seq for result in answer.events] == list(range(1, 1_001))


async def leaving_client(served: Served, topic: str) -> None:
    """Sends a whole request, waits until the node works on it, and hangs up."""
    host, _, port = served.node.url.removeprefix("http://").partition(":")
    reader, out = await asyncio.open_connection(host, int(port))
    events = {"events": [{"document": {}, "event_id": "left"}], "request_timeout": "60s"}
    body = json.dumps(events).encode()
    out.write(produce_head(topic, len(body)) + body)
    await out.drain()
    await served.writer.until(lambda: bool(served.writer.attempts))
    out.close()
    await out.wait_closed()
    del reader


async def test_a_client_that_leaves_while_it_waits_is_not_written_for(serve: Serve) -> None:
    served = await serve(bounds=WriteBounds(requests=1))
    served.writer.failures = dict.fromkeys(JOBS.refs(), StorageFailed("the disk is full"))
    await leaving_client(served, "jobs")

    async def place_is_free() -> bool:
        try:
            await served.produce("jobs", {"document": {}}, request_timeout="20ms")
        except Overloaded:
            return False
        except NotNow:
            return True
        return False

    async with asyncio.timeout(WAIT_S):
        while not await place_is_free():
            pass  # The node takes a moment to notice.
    served.writer.failures = {}
    answer = await served.produce("jobs", {"document": {}, "event_id": "other"})
    assert answer.events[0].seq == 1
    written = [one.event_id for ref in JOBS.refs() for one in served.writer.records[ref]]
    assert written == ["other"]


@pytest.mark.parametrize("topic", [FLIGHTS, JOBS], ids=["keyed", "opportunistic"])
async def test_a_client_that_leaves_while_it_is_written_finds_its_events_later(
    serve: Serve, topic: Topic
) -> None:
    served = await serve()
    ref = topic.refs()[0]
    served.writer.gates[ref] = asyncio.Event()
    await leaving_client(served, topic.name)
    served.writer.gates[ref].set()
    await served.writer.until(lambda: len(served.writer.records[ref]) == 1)
    again = await served.produce(topic.name, {"document": {}, "event_id": "left"})
    assert (again.events[0].partition, again.events[0].seq) == (0, 1)
    assert sum(len(records) for records in served.writer.records.values()) == 1


async def test_a_stop_answers_requests_that_wait(serve: Serve) -> None:
    served = await serve()
    served.writer.failures = dict.fromkeys(JOBS.refs(), StorageFailed("the disk is full"))
    waiting = [
        asyncio.create_task(served.produce("jobs", {"document": {}}, request_timeout="60s"))
        for _ in range(5)
    ]
    await served.writer.until(lambda: len(served.writer.attempts) >= 2)
    await asyncio.wait_for(served.node.stop(), WAIT_S)
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(ended, NotNow)
    assert not any(served.writer.records.values())


async def test_a_stop_answers_requests_that_are_held_back(serve: Serve) -> None:
    served = await serve()
    await served.writer.seal(FLIGHTS.refs()[0])
    held = asyncio.create_task(served.produce("flights", {"document": {}}, request_timeout="60s"))
    ahead = asyncio.create_task(
        served.produce("flights", {"document": {}}, request_timeout="60s", version=9)
    )
    await served.writer.until(lambda: len(served.writer.attempts) >= 2)
    await asyncio.wait_for(served.node.stop(), WAIT_S)
    ended = await asyncio.gather(held, ahead, return_exceptions=True)
    assert [type(one) for one in ended] == [Sealed, NotNow]


@pytest.mark.parametrize("topic", [FLIGHTS, JOBS], ids=["keyed", "opportunistic"])
async def test_a_stop_tells_those_whose_writes_dont_end(serve: Serve, topic: Topic) -> None:
    served = await serve(stop_timeout_s=0.2)
    ref = topic.refs()[0]
    served.writer.gates[ref] = asyncio.Event()
    caller = asyncio.create_task(
        served.produce(topic.name, {"document": {}}, request_timeout="60s")
    )
    await served.writer.until(lambda: bool(served.writer.attempts))
    await asyncio.wait_for(served.node.stop(), WAIT_S)
    with pytest.raises(OutcomeUnknown):
        await caller
    served.writer.gates[ref].set()


async def test_too_many_requests_are_told_when_to_come_back(serve: Serve) -> None:
    served = await serve(bounds=WriteBounds(requests=2))
    ref = FLIGHTS.refs()[0]
    served.writer.gates[ref] = asyncio.Event()
    waiting = [asyncio.create_task(served.produce("flights", {"document": {}})) for _ in range(2)]
    await served.writer.until(lambda: len(served.writer.attempts) == 2)
    with pytest.raises(Overloaded, match="nothing was written"):
        await served.produce("flights", {"document": {}})
    served.writer.gates[ref].set()
    assert [answer.events[0].error for answer in await asyncio.gather(*waiting)] == [None, None]
