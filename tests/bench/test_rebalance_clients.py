"""The clients of `bench rebalance`, against its bare server: real streams, no coordinator."""

from __future__ import annotations

import asyncio

from headgate.bench.rebalance.bare import Heard, Listen, Listening, Push
from headgate.bench.rebalance.clients import Await, Connect, Done
from headgate.bench.rebalance.orders import workers
from headgate.bench.worker import worker
from headgate.model.topology import Topology

TIMEOUT_S = 30.0
BARE, CLIENTS = "headgate.bench.rebalance.bare", "headgate.bench.rebalance.clients"


async def test_every_client_acknowledges_what_is_pushed() -> None:
    async with worker(BARE) as bare, workers(CLIENTS, 2) as crowds:
        listening = await bare.ask(Listen(Topology(1)), Listening)
        order = Connect(listening.address, "routed", 30, TIMEOUT_S)
        await asyncio.gather(*(crowd.ask(order, Done) for crowd in crowds))
        hearing = [asyncio.create_task(c.ask(Await(2, TIMEOUT_S), Done)) for c in crowds]
        heard = await bare.ask(Push(Topology(2), TIMEOUT_S), Heard)
        assert heard.seconds > 0
        for done in await asyncio.gather(*hearing):
            assert (done.lost, done.behind) == ("", 0)


async def test_it_is_said_when_a_generation_does_not_come() -> None:
    async with worker(BARE) as bare, worker(CLIENTS) as crowd:
        listening = await bare.ask(Listen(Topology(1)), Listening)
        await crowd.ask(Connect(listening.address, "routed", 3, TIMEOUT_S), Done)
        assert (await crowd.ask(Await(2, 0.1), Done)).behind == 3


async def test_it_is_said_when_streams_are_lost() -> None:
    async with worker(CLIENTS) as crowd:
        async with worker(BARE) as bare:
            listening = await bare.ask(Listen(Topology(1)), Listening)
            await crowd.ask(Connect(listening.address, "routed", 3, TIMEOUT_S), Done)
        assert (await crowd.ask(Await(2, TIMEOUT_S), Done)).lost
