"""Gateways with nothing but subscriptions: they connect, register all they have, and wait.

Each holds a control stream as a gateway does, and says what a gateway says: it acknowledges
topologies, registers in chunks, and knows that it has subscribed when the adoption floor has
reached the revision of its last chunk.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

from headgate.adapters.grpc.control import GrpcControlSession
from headgate.bench.result import Failed
from headgate.decide.filter.plan import compile_filter
from headgate.model.control import from_coordinator, to_coordinator
from headgate.model.subscription import Subscription
from headgate.services.gateway.subscriptions.registering import CHUNK
from headgate.tasks import Crew

TOPIC = "flights"


def subscriptions(gateway_id: str, first: int, count: int) -> Iterator[Subscription]:
    """One aircraft each, above an altitude."""
    cost_us = compile_filter(_where(first)).cost_us
    for number in range(first, first + count):
        where = _where(number)
        yield Subscription(f"{number:024x}", gateway_id, TOPIC, where, cost_us=cost_us)


def _where(number: int) -> str:
    return f"icao == '{number:06x}' && altitude > {number % 40_000}"


class BareGateway:
    def __init__(self, address: str, number: int, count: int) -> None:
        self.node_id = f"bench-gateway-{number:03}"
        self._first, self._count = number * count, count
        self._session = GrpcControlSession(address, self._hello)
        self._welcomed = asyncio.Event()
        self._moved = asyncio.Condition()
        self._floor = 0
        self._answered = 0
        self._revision = 0
        self._refused = ""
        self._crew = Crew("bench")
        self._crew.need("gateway", self._listen(), about=self.node_id)

    def _hello(self) -> to_coordinator.Hello:
        return to_coordinator.Hello(role="gateway", node_id=self.node_id, incarnation=self.node_id)

    async def welcomed(self) -> None:
        await self._welcomed.wait()

    async def register(self) -> None:
        """Returns when every lane matches with all of them."""
        numbers = itertools.count(1)
        wanted = subscriptions(self.node_id, self._first, self._count)
        sent = 0
        while chunk := tuple(itertools.islice(wanted, CHUNK)):
            await self._send(to_coordinator.Register(next(numbers), chunk))
            sent += 1
            await asyncio.sleep(0)
        await self._send(to_coordinator.RegistrationComplete())
        async with self._moved:
            await self._moved.wait_for(
                lambda: (
                    bool(self._refused)
                    or (self._answered == sent and self._revision <= self._floor)
                )
            )
        if self._refused:
            raise Failed(f"{self.node_id} was refused: {self._refused}")

    async def close(self) -> None:
        self._crew.dismiss()
        await self._session.close()
        await self._crew.close()

    async def _send(self, message: to_coordinator.ToCoordinator) -> None:
        if not await self._session.send(message):
            raise Failed(f"{self.node_id} lost its coordinator")

    async def _listen(self) -> None:
        async for message in self._session.messages():
            match message:
                case from_coordinator.Welcome():
                    self._welcomed.set()
                case from_coordinator.PushTopology(topology):
                    await self._session.send(to_coordinator.AckTopology(topology.generation))
                case from_coordinator.Registered(_, revision, errors):
                    self._answered += 1
                    self._revision = max(self._revision, revision)
                    self._refused = next(iter(errors.values()), "")
                    await self._notify()
                case from_coordinator.AdoptionFloor(revision):
                    self._floor = revision
                    await self._notify()
                case _:
                    pass

    async def _notify(self) -> None:
        async with self._moved:
            self._moved.notify_all()
