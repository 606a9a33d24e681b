"""What the coordinator says to a gateway's subscriptions: taken, full, or not yours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate import errors
from headgate.adapters.memory.control import MemoryControlSession
from headgate.model.control import (
    AdoptionFloor,
    Hello,
    Register,
    Registered,
    RegistrationComplete,
    ToCoordinator,
    Welcome,
)
from headgate.model.subscription import Subscription
from headgate.services.gateway import registration
from headgate.services.gateway.registration import Registration
from headgate.services.gateway.subscriptions import Bounds
from headgate.tasks import Crew
from tests.services.gateway.world import WAIT_S, running, until

FULL = "gateway g has 2 subscriptions, the most it may (subscriptions.max_per_gateway)"


class Desk:
    """A registration and its coordinator, played by the test."""

    def __init__(self) -> None:
        self.sent: list[ToCoordinator] = []
        self.refused: dict[str, errors.HeadgateError] = {}
        self.registration = Registration(
            on_topology=lambda _: None,
            on_forgotten=lambda: None,
            on_return=lambda: None,
            on_refused=self.refused.__setitem__,
            crew=Crew("gateway"),
        )
        hello = Hello(role="gateway", node_id="g", incarnation="1")
        self.session = MemoryControlSession(lambda: hello, self.sent.append)
        self.session.connect()

    @property
    def registers(self) -> list[Register]:
        return [message for message in self.sent if isinstance(message, Register)]

    def welcome(self) -> None:
        self.sent.clear()
        self.session.push(Welcome("c", 30_000, 1_000, resumed=True))

    async def subscribe(self, name: str) -> asyncio.Task[None]:
        before = len(self.registers)
        wanted = Subscription(name, "g", "flights")
        task = asyncio.create_task(self.registration.register(wanted, timeout_s=WAIT_S))
        await until(lambda: len(self.registers) > before)
        return task


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    one = Desk()
    listening = asyncio.create_task(one.registration.listen(one.session))
    one.welcome()
    await until(lambda: RegistrationComplete() in one.sent)
    yield one
    await one.session.close()
    await listening


@pytest.mark.parametrize(
    ("over_quota", "kind"),
    [
        pytest.param(("s1",), errors.Overloaded, id="full: later it may fit"),
        pytest.param((), errors.InvalidRequest, id="wrong: it never will"),
    ],
)
async def test_a_refusal_says_whether_to_try_again(
    over_quota: tuple[str, ...], kind: type[errors.HeadgateError]
) -> None:
    async with desk() as one:
        subscribing = await one.subscribe("s1")
        request = one.registers[-1].request_id
        one.session.push(Registered(request, 5, {"s1": FULL}, over_quota))
        with pytest.raises(kind, match="max_per_gateway"):
            await subscribing


async def test_what_is_refused_after_a_return_is_told_to_its_subscriber() -> None:
    async with desk() as one:
        subscribing = await one.subscribe("s1")
        one.session.push(Registered(one.registers[-1].request_id, 5))
        one.session.push(AdoptionFloor(5))
        await subscribing
        one.welcome()
        await until(lambda: RegistrationComplete() in one.sent)
        request = one.registers[-1].request_id
        one.session.push(Registered(request, 9, {"s1": FULL}, ("s1",)))
        await until(lambda: "s1" in one.refused)
        assert isinstance(one.refused["s1"], errors.Overloaded)


async def test_all_there_is_comes_back_in_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "CHUNK", 4)
    async with desk() as one:
        waiting = [await one.subscribe(f"s{number}") for number in range(10)]
        one.welcome()
        await until(lambda: RegistrationComplete() in one.sent)
        assert [len(message.subscriptions) for message in one.registers] == [4, 4, 2]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_the_time_to_live_of_a_subscription_is_the_configured_one() -> None:
    async with running(bounds=Bounds(subscribe_timeout_s=WAIT_S, ttl_s=30.0)) as world:
        subscriber = await world.websocket()
        await subscriber.next()
        [one] = world.coordinator.registry.values()
        assert one.ttl_ms == 30_000
