"""Keyed produces among several nodes and versions: redirects, handing on, holding back, fences."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headgate.adapters.embedded.folder import DataFolder
from headgate.adapters.embedded.log.writer import EmbeddedLogWriter
from headgate.adapters.http.calls import PooledCalls
from headgate.adapters.http.http1_server import Http1Server
from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import no_origin
from headgate.client.http import HttpClient
from headgate.decide.produce.placement import partition_of
from headgate.decide.produce.placing import PlacingRules
from headgate.errors import (
    NotNow,
    OutcomeUnknown,
    PeerUnreachable,
    Sealed,
    StaleVersion,
    StorageFailed,
)
from headgate.model.api import ProduceAnswer, ProduceEvent, ProduceRequest, ProduceResult
from headgate.model.control.to_coordinator import AckTopology
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Owner, Topic, Topology
from headgate.ports.log import LogWriter
from headgate.services.ingest.node import Ingest, IngestOptions
from headgate.services.ingest.produce.peers import ProducePeers
from tests.services.ingest.doubles import (
    FaultyLogWriter,
    NoPeers,
    ScriptedCoordinator,
    World,
    disk_failed_late,
    nothing_settled,
    shared_topology,
    topology,
)
from tests.virtual_time import run_virtual

FLIGHTS = Topic("flights", 4)
ONE, TWO = "ingest-1", "ingest-2"
URLS = {ONE: "http://one:1", TWO: "http://two:2"}


def keyed(count: int, *, partitions: int = 4) -> list[Event]:
    """One event for each of the first `count` partitions, in order."""
    keys = [f"k{n}" for n in range(1_000)]
    return [
        Event(f"e{number}", b"{}", next(k for k in keys if _number(k, partitions) == number))
        for number in range(count)
    ]


def _number(key: str, count: int) -> int:
    return partition_of(key, collection="", count=count)


def codes(results: list[ProduceResult]) -> list[str | None]:
    return [result.error.code if result.error else None for result in results]


# --- versions ------------------------------------------------------------------------------------


def test_a_stale_version_is_redirected_and_writes_nothing() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        now = msgspec.structs.replace(FLIGHTS, version=3)
        await world.adopt(shared_topology(1, now, [ONE, TWO, ONE, TWO], URLS))
        with pytest.raises(StaleVersion, match="place them anew") as caught:
            await world.write(FLIGHTS, keyed(4), timeout_s=5, version=2)
        assert caught.value.details == {
            "version": 3,
            "partitions": 4,
            "owners": {"0": URLS[ONE], "1": URLS[TWO], "2": URLS[ONE], "3": URLS[TWO]},
        }
        assert writer.attempts == []

    run_virtual(scenario())


def test_a_newer_version_than_known_waits_for_the_topology() -> None:
    async def scenario() -> None:
        world = World(FaultyLogWriter())
        await world.adopt(topology(1, FLIGHTS))
        grown = Topic("flights", 8, version=2)
        writing = asyncio.create_task(
            world.write(FLIGHTS, keyed(8, partitions=8), timeout_s=60, version=2)
        )
        await asyncio.sleep(3)
        assert not writing.done()
        assert await world.adopt(topology(2, grown))
        results = await writing
        assert [result.partition for result in results] == list(range(8))
        with pytest.raises(NotNow, match="not heard of version 9 of flights yet"):
            await world.write(FLIGHTS, keyed(1), timeout_s=60, version=9)
        assert asyncio.get_running_loop().time() == pytest.approx(8)

    run_virtual(scenario())


def test_the_owner_hashes_for_itself() -> None:
    async def scenario() -> None:
        world = World(FaultyLogWriter())
        await world.adopt(topology(1, FLIGHTS))
        results = await world.write(FLIGHTS, keyed(4), timeout_s=5, version=1)
        assert [result.partition for result in results] == [0, 1, 2, 3]

    run_virtual(scenario())


# --- other owners --------------------------------------------------------------------------------


def test_events_of_another_owner_are_redirected_for_a_sender_that_routes() -> None:
    async def scenario() -> None:
        peers = NoPeers()
        world = World(FaultyLogWriter(), peers=peers)
        await world.adopt(shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], URLS))
        results = await world.write(FLIGHTS, keyed(4), timeout_s=5, version=1)
        assert codes(results) == [None, "stale_version", None, "stale_version"]
        assert results[1].error is not None
        assert results[1].error.details["owners"]["1"] == URLS[TWO]
        assert peers.asked == []

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("hops", "asked", "expected"),
    [
        pytest.param(0, 2, "unreachable", id="first"),
        pytest.param(1, 2, "unreachable", id="second"),
        pytest.param(2, 0, "unavailable", id="enough"),
    ],
)
def test_events_of_another_owner_are_handed_on_a_bounded_number_of_times(
    hops: int, asked: int, expected: str
) -> None:
    async def scenario() -> None:
        peers = NoPeers()
        world = World(FaultyLogWriter(), peers=peers)
        await world.adopt(shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], URLS))
        results = await world.write(FLIGHTS, keyed(4), timeout_s=5, hops=hops)
        assert codes(results) == [None, expected, None, expected]
        assert set(peers.asked) == {(URLS[TWO], hops + 1)} if asked else not peers.asked
        # The node that the request came to asks again until the request's time is up.
        assert (len(peers.asked) > asked) == (hops == 0)

    run_virtual(scenario())


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(PeerUnreachable("nothing answers"), id="it isn't there"),
        pytest.param(OutcomeUnknown("no answer", url=URLS[TWO]), id="it gave no answer"),
        pytest.param(NotNow("this ingest node is stopping"), id="it stops"),
    ],
)
@pytest.mark.parametrize("routes", [False, True], ids=["left to us", "a sender that routes"])
def test_what_a_node_that_is_gone_owned_is_written_by_whoever_has_it_next(
    first: NotNow, routes: bool
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        writer = FaultyLogWriter()
        world = World(writer, peers=NoPeers(first))
        await world.adopt(shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], URLS))
        version = 1 if routes else None
        writing = asyncio.ensure_future(
            world.write(FLIGHTS, keyed(4), timeout_s=5, version=version)
        )
        await asyncio.sleep(2)
        assert writing.done() == routes
        await world.adopt(shared_topology(2, FLIGHTS, [ONE] * 4, URLS))
        results = await writing
        assert (codes(results) == [None] * 4) != routes
        assert loop.time() < 3
        written = {record.event_id for records in writer.records.values() for record in records}
        assert written == ({"e0", "e2"} if routes else {"e0", "e1", "e2", "e3"})

    run_virtual(scenario())


def test_what_may_be_written_is_never_told_as_not_written() -> None:
    async def scenario() -> None:
        peers = NoPeers(OutcomeUnknown("no answer", url=URLS[TWO]))
        world = World(FaultyLogWriter(), peers=peers)
        await world.adopt(shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], URLS))
        writing = asyncio.ensure_future(world.write(FLIGHTS, keyed(4), timeout_s=2))
        await asyncio.sleep(0.1)
        peers.error = PeerUnreachable("nothing answers")
        results = await writing
        assert codes(results) == [None, "outcome_unknown", None, "outcome_unknown"]

    run_virtual(scenario())


def test_an_owner_that_gives_no_answer_leaves_an_unknown_outcome() -> None:
    async def scenario() -> None:
        world = World(FaultyLogWriter(), peers=NoPeers(OutcomeUnknown("no answer")))
        await world.adopt(shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], URLS))
        results = await world.write(FLIGHTS, keyed(2), timeout_s=5)
        assert codes(results) == [None, "outcome_unknown"]
        assert results[1].error is not None
        assert results[1].error.details == {"partition": 1}

    run_virtual(scenario())


# --- what the store holds back -------------------------------------------------------------------


def test_a_sealed_partition_holds_its_events_until_it_is_open_again() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, FLIGHTS))
        await writer.seal(PartitionRef("flights", 1))
        writing = asyncio.create_task(world.write(FLIGHTS, keyed(3), timeout_s=30))
        await asyncio.sleep(2)
        assert not writing.done()
        assert len(writer.records[PartitionRef("flights", 2)]) == 1
        await writer.seal(PartitionRef("flights", 1), sealed=False)
        assert codes(await writing) == [None, None, None]
        assert asyncio.get_running_loop().time() < 2.1

    run_virtual(scenario())


def test_a_seal_that_lasts_is_told_at_the_deadline() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, FLIGHTS))
        await writer.seal(PartitionRef("flights", 0))
        with pytest.raises(Sealed):
            await world.write(FLIGHTS, keyed(1), timeout_s=3)
        assert asyncio.get_running_loop().time() == pytest.approx(3)

    run_virtual(scenario())


@pytest.mark.parametrize("routes", [False, True], ids=["plain", "routing"])
def test_events_held_through_a_repartition_go_by_the_new_version(routes: bool) -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, FLIGHTS))
        await writer.seal(PartitionRef("flights", 1))
        writing = asyncio.create_task(
            world.write(FLIGHTS, keyed(3)[1:2], timeout_s=30, version=1 if routes else None)
        )
        await asyncio.sleep(1)
        grown = Topic("flights", 7, version=2)
        assert await world.adopt(topology(2, grown))
        if routes:
            with pytest.raises(StaleVersion):
                await writing
        else:
            [result] = await writing
            assert result.partition == _number(keyed(3)[1].key or "", 7)

    run_virtual(scenario())


@pytest.mark.parametrize("really", ["written", "not-written"])
def test_a_keyed_write_of_unknown_outcome_is_read_back(really: str) -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, FLIGHTS))
        ref = PartitionRef("flights", 0)
        kind = writer.lost_answers if really == "written" else writer.failures
        kind[ref] = disk_failed_late()
        writer.find_failures[ref] = StorageFailed("not now")
        writing = asyncio.create_task(world.write(FLIGHTS, keyed(2), timeout_s=5))
        await asyncio.sleep(0.4)
        assert not writing.done()
        writer.find_failures.clear()
        expected = [None if really == "written" else "storage_failed", None]
        assert codes(await writing) == expected

    run_virtual(scenario())


def test_a_keyed_write_that_cant_be_read_back_stays_unknown() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, FLIGHTS))
        ref = PartitionRef("flights", 0)
        writer.lost_answers[ref] = disk_failed_late()
        writer.find_failures[ref] = StorageFailed("not now")
        with pytest.raises(OutcomeUnknown):
            await world.write(FLIGHTS, keyed(1), timeout_s=5)

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("mute", "delay_s", "code", "ends_s"),
    [
        pytest.param(None, 5, None, 5, id="a-late-answer"),
        pytest.param(True, 0, None, 3, id="written-without-an-answer"),
        pytest.param(False, 0, "storage_failed", 3, id="lost-without-an-answer"),
    ],
)
def test_a_keyed_write_without_an_answer_in_time_is_read_back(
    mute: bool | None, delay_s: float, code: str | None, ends_s: float
) -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, FLIGHTS))
        [slow, fine, *_] = FLIGHTS.refs()
        writer.mute = {} if mute is None else {slow: mute}
        writer.delays_s[slow] = delay_s
        writing = asyncio.create_task(world.write(FLIGHTS, keyed(2), timeout_s=15))
        await asyncio.sleep(2.9)
        assert (writer.finds, len(writer.records[fine])) == ([], 1)
        results = await writing
        assert codes(results) == [code, None]
        assert asyncio.get_running_loop().time() == pytest.approx(ends_s)
        assert writer.finds == [slow]
        assert dict(world.partitions.heads())[slow] == len(writer.records[slow])

    run_virtual(scenario())


def test_a_late_answer_counts_where_nothing_can_be_read_back() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer)
        await world.adopt(topology(1, FLIGHTS))
        [slow, *_] = FLIGHTS.refs()
        writer.delays_s[slow] = 5
        writer.failures[slow] = StorageFailed("the disk is full")
        writer.find_failures[slow] = StorageFailed("not now")
        with pytest.raises(StorageFailed, match="the disk is full"):
            await world.write(FLIGHTS, keyed(1), timeout_s=15)
        assert asyncio.get_running_loop().time() == pytest.approx(5)

    run_virtual(scenario())


def test_a_keyed_write_without_an_answer_holds_no_other_partition_and_is_written_once() -> None:
    async def scenario() -> None:
        writer = FaultyLogWriter()
        world = World(writer, placing=PlacingRules(write_timeout_s=1))
        await world.adopt(topology(1, FLIGHTS))
        [slow, *_] = FLIGHTS.refs()
        writer.delays_s[slow] = 20
        writing = asyncio.create_task(world.write(FLIGHTS, keyed(2), timeout_s=6))
        await asyncio.sleep(5)
        assert writer.finds.count(slow) > 1
        assert codes(await world.write(FLIGHTS, keyed(3)[1:], timeout_s=0.1)) == [None, None]
        assert asyncio.get_running_loop().time() == pytest.approx(5)
        [unknown, placed] = await writing
        assert asyncio.get_running_loop().time() == pytest.approx(6)
        assert unknown.error is not None
        assert (unknown.error.code, unknown.error.details) == ("outcome_unknown", {"partition": 0})
        assert placed.seq == 1
        writer.delays_s.clear()
        assert codes(await world.write(FLIGHTS, keyed(2), timeout_s=5)) == [None, None]
        assert await world.drain(timeout_s=30)
        assert [len(writer.records[ref]) for ref in FLIGHTS.refs()] == [1, 1, 1, 0]

    run_virtual(scenario())


# --- two real nodes ------------------------------------------------------------------------------

Start = Callable[[str, LogWriter], Awaitable[tuple[Ingest, ScriptedCoordinator, HttpClient]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    machine = ScriptedMachine()
    async with AsyncExitStack() as stack:

        async def started(
            node_id: str, writer: LogWriter
        ) -> tuple[Ingest, ScriptedCoordinator, HttpClient]:
            coordinator = ScriptedCoordinator()
            node = Ingest(
                IngestOptions(node_id, "start", stop_timeout_s=5.0),
                writer=writer,
                reader=MemoryLogReader(getattr(writer, "stored", None)),
                open_session=coordinator.open,
                settled=nothing_settled,
                http=Http1Server(),
                calls=PooledCalls(),
                open_origin=no_origin,
                machine=machine,
            )
            client = await stack.enter_async_context(HttpClient(await node.start()))
            stack.push_async_callback(node.stop)
            return node, coordinator, client

        yield started


async def give(coordinator: ScriptedCoordinator, pushed: Topology) -> None:
    coordinator.push(pushed)
    await coordinator.heard(AckTopology(pushed.generation))


def body(count: int) -> dict[str, Any]:
    events = [
        {"event_id": one.event_id, "key": one.key, "document": {"n": n}}
        for n, one in enumerate(keyed(count))
    ]
    return {"events": events}


async def test_a_plain_request_is_written_by_all_the_owners_it_needs(start: Start) -> None:
    log = MemoryLog()
    one, first, client = await start(ONE, FaultyLogWriter(log))
    two, second, _ = await start(TWO, FaultyLogWriter(log))
    shared = shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], {ONE: one.url, TWO: two.url})
    await give(first, shared)
    await give(second, shared)
    answer = await client.post("/v1/topics/flights/produce", body(4), ProduceAnswer)
    assert [(r.event_id, r.partition, r.seq) for r in answer.events] == [
        ("e0", 0, 1),
        ("e1", 1, 1),
        ("e2", 2, 1),
        ("e3", 3, 1),
    ]
    assert [len(log.partition(ref).records) for ref in FLIGHTS.refs()] == [1, 1, 1, 1]


async def test_the_document_before_the_change_is_stored_also_where_it_is_handed_on(
    start: Start,
) -> None:
    log = MemoryLog()
    one, first, client = await start(ONE, FaultyLogWriter(log))
    two, second, _ = await start(TWO, FaultyLogWriter(log))
    shared = shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], {ONE: one.url, TWO: two.url})
    await give(first, shared)
    await give(second, shared)
    sent = body(3)
    sent["events"][0]["earlier"] = {"n": -1}
    sent["events"][1]["earlier"] = {"n": -2}
    await client.post("/v1/topics/flights/produce", sent, ProduceAnswer)
    stored = [log.partition(ref).records[0].earlier for ref in FLIGHTS.refs()[:3]]
    assert stored == [b'{"n":-1}', b'{"n":-2}', None]


async def test_an_opportunistic_request_is_handed_on_whole_by_a_node_without_partitions(
    start: Start,
) -> None:
    jobs = Topic("jobs", 2, "opportunistic")
    log = MemoryLog()
    one, first, client = await start(ONE, FaultyLogWriter(log))
    two, second, _ = await start(TWO, FaultyLogWriter(log))
    shared = shared_topology(1, jobs, [TWO, TWO], {ONE: one.url, TWO: two.url})
    await give(first, shared)
    await give(second, shared)
    events: dict[str, Any] = {"events": [{"document": {}}] * 3}
    answer = await client.post("/v1/topics/jobs/produce", events, ProduceAnswer)
    assert [result.partition for result in answer.events] == [0, 0, 0]


async def test_nodes_that_each_believe_the_other_is_the_owner_stop_asking(start: Start) -> None:
    one, first, client = await start(ONE, FaultyLogWriter())
    two, second, _ = await start(TWO, FaultyLogWriter())
    urls = {ONE: one.url, TWO: two.url}
    single = Topic("flights", 1)
    await give(first, shared_topology(1, single, [TWO], urls))
    await give(second, shared_topology(1, single, [ONE], urls))
    with pytest.raises(NotNow, match="has no owner here yet"):
        await client.post(
            "/v1/topics/flights/produce", {**body(1), "request_timeout": "1s"}, ProduceAnswer
        )


async def test_a_revived_former_owner_cant_append(start: Start, tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "data")
    single = Topic("flights", 1)
    ref = PartitionRef("flights", 0)
    _, first, old = await start(ONE, EmbeddedLogWriter(folder))
    _, second, new = await start(TWO, EmbeddedLogWriter(folder))
    await give(first, Topology(1, (single,), logs=(Owner(ref, ONE, 1),)))
    path = "/v1/topics/flights/produce"
    before = await old.post(path, {"events": [{"document": {}}]}, ProduceAnswer)
    # The first node hears nothing of the move: it is cut off, or was stopped for a while.
    await give(second, Topology(2, (single,), logs=(Owner(ref, TWO, 2),)))
    with pytest.raises(NotNow, match=r"moved to another node|has no owner here yet"):
        await old.post(
            path, {"events": [{"document": {}}], "request_timeout": "500ms"}, ProduceAnswer
        )
    after = await new.post(path, {"events": [{"document": {}}]}, ProduceAnswer)
    assert (before.events[0].seq, after.events[0].seq) == (1, 2)


async def test_a_peer_that_isnt_there_was_not_written_to(unused_tcp_port: int) -> None:
    calls = PooledCalls()
    peers = ProducePeers(calls)
    request = ProduceRequest([ProduceEvent(msgspec.Raw(b"{}"))])
    with pytest.raises(NotNow, match="nothing was written there") as caught:
        await peers.produce(
            f"http://127.0.0.1:{unused_tcp_port}", "t", request, hops=1, timeout_s=5
        )
    assert not isinstance(caught.value, OutcomeUnknown)
    await calls.close()
