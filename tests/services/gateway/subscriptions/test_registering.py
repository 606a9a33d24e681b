"""What the coordinator says to a gateway's subscriptions: taken, full, or not yours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate import errors
from headgate.adapters.memory.control import MemoryControlSession
from headgate.model.control.from_coordinator import (
    AdoptionFloor,
    AskEvidence,
    LetGo,
    PushTopology,
    Registered,
    Welcome,
)
from headgate.model.control.to_coordinator import (
    AckTopology,
    Evidence,
    Hello,
    JoinGroup,
    Recall,
    Register,
    RegistrationComplete,
    ToCoordinator,
)
from headgate.model.subscription import Subscription
from headgate.model.topology import Topology
from headgate.services.gateway.control import Control
from headgate.services.gateway.hearing import Hearing
from headgate.services.gateway.subscriptions import registering
from headgate.services.gateway.subscriptions.registering import Registering
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from headgate.tasks import Crew
from tests.services.gateway.world import WAIT_S, running, until

ANNOUNCED = JoinGroup(topic="flights", group="team", consumer="one", incarnation="1")
FULL = "gateway g has 2 subscriptions, the most it may (subscriptions.max_per_gateway)"


class Nobody:
    """Subscribers and groups that only write down what they hear."""

    def __init__(self, sent: list[ToCoordinator]) -> None:
        self._sent = sent
        self.reasons: dict[str, errors.HeadgateError] = {}
        self.heard_after: list[tuple[object, int]] = []
        """What, and how many messages the coordinator had got before."""

    def apply(self, topology: Topology) -> None:
        self.heard(topology)

    def forgotten(self) -> None:
        self.heard("forgotten")

    def returned(self) -> None:
        self.heard("returned")

    def refused(self, subscription_id: str, reason: errors.HeadgateError) -> None:
        self.reasons[subscription_id] = reason

    def turned_away(self, reason: str) -> None:
        self.heard(reason)

    def announcements(self) -> list[ToCoordinator]:
        return [ANNOUNCED]

    def answer(self, asked: AskEvidence) -> Evidence:
        return Evidence(asked.number)

    def heard(self, what: object) -> None:
        self.heard_after.append((what, len(self._sent)))


class Desk:
    """A gateway's registering and its coordinator, played by the test."""

    def __init__(self) -> None:
        self.sent: list[ToCoordinator] = []
        self.nobody = Nobody(self.sent)
        control = Control()
        self.registering = Registering(control, Crew("gateway"))
        self.hearing = Hearing(control, self.registering, self.nobody, self.nobody, self.nobody)
        hello = Hello(role="gateway", node_id="g", incarnation="1")
        self.session = MemoryControlSession(lambda: hello, self.sent.append)
        self.session.connect()

    @property
    def registers(self) -> list[Register]:
        return [message for message in self.sent if isinstance(message, Register)]

    def welcome(self, *, resumed: bool = True, learning: bool = False) -> None:
        self.sent.clear()
        self.session.push(Welcome("c", 30_000, 1_000, resumed=resumed, learning=learning))

    async def subscribe(self, name: str) -> asyncio.Task[None]:
        before = len(self.registers)
        wanted = Subscription(name, "g", "flights")
        task = asyncio.create_task(self.registering.register(wanted, timeout_s=WAIT_S))
        await until(lambda: len(self.registers) > before)
        return task


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    one = Desk()
    listening = asyncio.create_task(one.hearing.listen(one.session))
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
        await until(lambda: "s1" in one.nobody.reasons)
        assert isinstance(one.nobody.reasons["s1"], errors.Overloaded)


async def test_what_nobody_was_told_of_is_named_as_new_after_a_return_too() -> None:
    async with desk() as one:
        subscribing = await one.subscribe("s1")
        assert one.registers[-1].new == ("s1",)
        one.session.push(Registered(one.registers[-1].request_id, 5))
        one.session.push(AdoptionFloor(5))
        await subscribing
        waiting = await one.subscribe("s2")
        one.welcome()
        await until(lambda: RegistrationComplete() in one.sent)
        [again] = one.registers
        assert [subscription.id for subscription in again.subscriptions] == ["s1", "s2"]
        assert again.new == ("s2",)
        one.session.push(Registered(again.request_id, 9, {"s2": FULL}, ("s2",)))
        with pytest.raises(errors.Overloaded, match="max_per_gateway"):
            await waiting


async def test_all_there_is_comes_back_in_few_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registering, "CHUNK", 4)
    async with desk() as one:
        waiting = [await one.subscribe(f"s{number}") for number in range(10)]
        one.welcome()
        await until(lambda: RegistrationComplete() in one.sent)
        assert [len(message.subscriptions) for message in one.registers] == [4, 4, 2]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_who_is_forgotten_hears_of_it_before_anything_is_registered_again() -> None:
    async with desk() as one:
        subscribing = await one.subscribe("s1")
        one.session.push(Registered(one.registers[-1].request_id, 5))
        one.session.push(AdoptionFloor(5))
        await subscribing
        one.welcome(resumed=False)
        await until(lambda: RegistrationComplete() in one.sent)
        assert one.nobody.heard_after == [("forgotten", 0)]
        kinds = [type(message) for message in one.sent]
        assert kinds == [Register, JoinGroup, RegistrationComplete]


async def test_they_are_back_once_all_of_it_is_adopted_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registering, "CHUNK", 1)
    async with desk() as one:
        for name in ("s1", "s2"):
            subscribing = await one.subscribe(name)
            one.session.push(Registered(one.registers[-1].request_id, 5))
            one.session.push(AdoptionFloor(5))
            await subscribing
        one.welcome(resumed=False)
        await until(lambda: RegistrationComplete() in one.sent)
        first, second = one.registers
        one.nobody.heard_after.clear()
        said = one.session.push
        for message in (
            AdoptionFloor(9),
            Registered(first.request_id, 8),
            Registered(second.request_id, 10),
            AdoptionFloor(9),
        ):
            said(message)
        said(PushTopology(Topology(1)))
        await until(lambda: bool(one.nobody.heard_after))
        assert [what for what, _ in one.nobody.heard_after] == [Topology(1)]
        said(AdoptionFloor(10))
        said(AdoptionFloor(11))
        said(PushTopology(Topology(2)))
        await until(lambda: len(one.nobody.heard_after) > 2)
        heard = [what for what, _ in one.nobody.heard_after]
        assert heard == [Topology(1), "returned", Topology(2)]


async def test_a_topology_is_applied_before_it_is_acknowledged_and_never_an_older_one() -> None:
    async with desk() as one:
        one.sent.clear()
        for generation in (5, 4, 5, 6):
            one.session.push(PushTopology(Topology(generation)))
        await until(lambda: AckTopology(6) in one.sent)
        assert one.sent == [AckTopology(5), AckTopology(5), AckTopology(6)]
        assert one.nobody.heard_after == [(Topology(5), 0), (Topology(5), 1), (Topology(6), 2)]


async def test_a_coordinator_that_learns_is_told_the_topology_first() -> None:
    async with desk() as one:
        one.session.push(PushTopology(Topology(5)))
        one.welcome(learning=True)
        await until(lambda: RegistrationComplete() in one.sent)
        assert one.sent[:2] == [AckTopology(5), Recall(Topology(5))]


async def test_what_concerns_consumers_is_brought_to_them() -> None:
    async with desk() as one:
        one.session.push(LetGo((), settle=True))
        await until(lambda: bool(one.nobody.heard_after))
        assert one.nobody.heard_after[0][0] == LetGo((), settle=True)


async def test_the_time_to_live_of_a_subscription_is_the_configured_one() -> None:
    async with running(bounds=Bounds(subscribe_timeout_s=WAIT_S, ttl_s=30.0)) as world:
        subscriber = await world.websocket()
        await subscriber.next()
        [one] = world.coordinator.registry.values()
        assert one.ttl_ms == 30_000
