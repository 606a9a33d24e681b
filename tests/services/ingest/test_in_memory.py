"""Ingest nodes, a gateway's forwarder and a producer without a socket: their HTTP is in memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate import errors
from headgate.adapters.memory.http import MemoryHttpListener, MemoryWeb
from headgate.adapters.memory.log import MemoryLog
from headgate.adapters.memory.log_reader import MemoryLogReader
from headgate.adapters.memory.machine import ScriptedMachine
from headgate.adapters.memory.origin import no_origin
from headgate.answering import HttpApp
from headgate.client.http import HttpClient
from headgate.client.producer import Producer
from headgate.client.producing.pending import ProducerOptions
from headgate.decide.produce.room import Room
from headgate.model.api import Health
from headgate.model.control.to_coordinator import AckTopology
from headgate.model.http import Request, Response, Route
from headgate.model.topology import Topic
from headgate.services.gateway.public.forwarding import Forwarder
from headgate.services.ingest.node import Ingest, IngestOptions
from tests.services.ingest.doubles import (
    FaultyLogWriter,
    ScriptedCoordinator,
    nothing_settled,
    shared_topology,
)
from tests.virtual_time import run_virtual

FLIGHTS = Topic("flights", 4)
ONE, TWO = "ingest-1", "ingest-2"
EVENTS = 200


class Stage:
    """Two nodes that share a log of four partitions, and a public address that leads to one."""

    def __init__(self) -> None:
        self.web, self.log, self.machine = MemoryWeb(), MemoryLog(), ScriptedMachine()
        self.nodes: dict[str, Ingest] = {}
        self.public = ""

    async def start(self) -> None:
        coordinators = {name: ScriptedCoordinator() for name in (ONE, TWO)}
        for name, coordinator in coordinators.items():
            self.nodes[name] = Ingest(
                IngestOptions(name, "start"),
                writer=FaultyLogWriter(self.log),
                reader=MemoryLogReader(self.log),
                open_session=coordinator.open,
                settled=nothing_settled,
                http=MemoryHttpListener(self.web),
                calls=self.web.open_calls(),
                open_origin=no_origin,
                machine=self.machine,
            )
        urls = {name: await node.start() for name, node in self.nodes.items()}
        for coordinator in coordinators.values():
            coordinator.push(shared_topology(1, FLIGHTS, [ONE, TWO, ONE, TWO], urls))
            await coordinator.heard(AckTopology(1))
        forwarder = Forwarder(
            self.web.open_calls(), body_limit_bytes=1_000_000, room=Room(10_000_000, setting="here")
        )

        async def pass_on(request: Request) -> Response:
            return await forwarder.forward(request, urls[ONE], to="ingest", timeout_s=60.0)

        routes = [Route("POST", "/v1/topics/{name}/produce", pass_on)]
        port = await MemoryHttpListener(self.web).start(HttpApp(routes), "gateway", 0)
        self.public = f"http://gateway:{port}"

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.stop()


def on_a_stage(scenario: Callable[[Stage], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    async def staged() -> None:
        stage = Stage()
        await stage.start()
        try:
            await scenario(stage)
        finally:
            await stage.stop()

    def test() -> None:
        run_virtual(staged())

    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    return test


@on_a_stage
async def test_events_reach_their_owners_through_the_forwarder_and_a_peer(stage: Stage) -> None:
    options = ProducerOptions(linger_s=0.0)
    async with Producer(
        stage.public, options, machine=stage.machine, open_calls=stage.web.open_calls
    ) as producer:
        for number in range(EVENTS):
            await producer.send("flights", {"n": number}, key=f"k{number % 50}")
    written = {
        ref.partition: len(partition.records) for ref, partition in stage.log.partitions.items()
    }
    assert sorted(written) == [0, 1, 2, 3]
    assert sum(written.values()) == EVENTS
    assert all(written.values())


@on_a_stage
async def test_a_node_is_asked_how_it_fares(stage: Stage) -> None:
    url = stage.nodes[ONE].url
    async with HttpClient(url, open_calls=stage.web.open_calls) as client:
        assert (await client.get("/health", Health)).role == "ingest"
        await stage.nodes[ONE].stop()
        with pytest.raises(errors.PeerUnreachable, match="nothing answers at"):
            await client.get("/health", Health)


@on_a_stage
async def test_a_peer_that_has_gone_is_said_not_to_have_been_written_to(stage: Stage) -> None:
    await stage.nodes[TWO].stop()
    options = ProducerOptions(deadline_s=5.0)
    async with Producer(
        stage.public, options, machine=stage.machine, open_calls=stage.web.open_calls
    ) as producer:
        outcomes = [await _sent(producer, {"n": number}, key=f"k{number}") for number in range(20)]
    failures = [one for one in outcomes if isinstance(one, errors.HeadgateError)]
    assert 0 < len(failures) < len(outcomes)
    assert not any(isinstance(one, errors.OutcomeUnknown) for one in failures)


async def _sent(producer: Producer, document: dict[str, int], *, key: str) -> object:
    try:
        return await producer.send("flights", document, key=key)
    except errors.HeadgateError as error:
        return error
