"""Every public call of a Subscriber and of a Consumer, cancelled at each of its awaits in turn,
while connections are lost, refused, redirected and slow: the next call goes on, nothing is lost,
nothing comes twice that was acknowledged, and in the end nothing is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import pytest

from headgate import errors
from headgate.client import Consumer, Event, Subscriber, identified_link
from tests.client.cancelling import Cancelled, Cancelling, cancel_everywhere
from tests.client.served_gateway import served_gateway
from tests.client.virtual_gateway import LATENCY_S, VirtualGateway, options
from tests.virtual_time import run_virtual
from tests.waiting import until

Acks = Literal["auto", "manual"]
AnyClient = TypeVar("AnyClient", Subscriber, Consumer)
Seen = tuple[str, int]
NOT_NOW = {"code": "unavailable", "message": "not now", "details": {}}
SOON_S = 0.1
"""By then the other end of what was let go has heard of it."""
INVALID = {"code": "invalid", "message": "no", "details": {}}


async def entered(
    cancelling: Cancelling, gateway: VirtualGateway, make: Callable[[], AnyClient]
) -> AnyClient:
    """A client that was cancelled while it was entered is closed: the next one is a new one."""
    while True:
        client = make()
        try:
            await cancelling.call("enter", client.__aenter__())
        except Cancelled:
            assert gateway.is_left()
            continue
        return client


async def closed(cancelling: Cancelling, client: Subscriber | Consumer) -> None:
    try:
        await cancelling.call("close", client.close())
    except Cancelled:
        await client.close()
    await client.close()
    assert await anext(client, None) is None


class Books:
    """What a user has seen and acknowledged."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.acknowledged: set[Seen] = set()
        self.nacked: set[Seen] = set()

    def saw(self, item: Event) -> None:
        place = (item.topic, item.seq)
        assert place not in self.acknowledged, f"{place} came again"
        self.seen.append(place)

    def check(self, heads: dict[str, int], acks: Acks) -> None:
        for topic, head in heads.items():
            seqs = [seq for of, seq in self.seen if of == topic]
            firsts = list(dict.fromkeys(seqs))
            assert firsts == list(range(1, head + 1)), (topic, seqs)
            if acks == "auto":
                again = {seq for of, seq in self.nacked if of == topic}
                assert [one for one in seqs if one not in again] == [
                    one for one in firsts if one not in again
                ], (topic, seqs)


def trouble(gateway: VirtualGateway, step: int, names: tuple[str, ...]) -> None:
    """Something goes wrong at every step, and something new happens."""
    gateway.silent.clear()
    gateway.refused.clear()
    gateway.unreachable.clear()
    match step:
        case 1:
            gateway.drop_all()
        case 2:
            gateway.silent.add(names[-1])
            gateway.drop_all()
            asyncio.get_running_loop().call_later(0.2, gateway.answer, names[-1])
        case 3:
            gateway.refused[names[-1]] = NOT_NOW
            gateway.drop_all()
            asyncio.get_running_loop().call_later(0.2, gateway.refused.clear)
        case 4:
            away = {"type": "redirect", "url": "ws://other", "gateway": "g2", "id": "me"}
            gateway.redirect.append(away)
            gateway.unreachable.add("ws://first")
            gateway.drop_all()
        case 5:
            gateway.drop_all()
            asyncio.get_running_loop().call_later(0.02, gateway.drop_all)
        case 6:
            gateway.refused[names[-1]] = INVALID
            gateway.drop_all()
        case 7:
            gateway.cut_off = 3
            gateway.drop_all()
        case 8 if gateway.asks_who:
            gateway.tokens_end()


def happens(gateway: VirtualGateway, *topics: str) -> None:
    """The first is there at once, the others come one by one, whatever goes on meanwhile."""
    gateway.append(topics[0])
    for number, topic in enumerate(topics[1:], 1):
        asyncio.get_running_loop().call_later(0.008 * number, gateway.append, topic)


async def follow(acks: Acks, cancelling: Cancelling, *, asks_who: bool = False) -> None:
    gateway, books = VirtualGateway(asks_who=asks_who), Books()

    def make() -> Subscriber:
        subscriber = Subscriber(acks=acks, buffer=4, **options())
        subscriber.add("a", id="sa", start="earliest")
        subscriber.add("b", id="sb", start="earliest")
        return gateway.served(subscriber)

    subscriber = await entered(cancelling, gateway, make)
    for step in range(9):
        trouble(gateway, step, ("sa", "sb"))
        happens(gateway, "a", "b", "a", "a", "b")
        while len(set(books.seen)) < 5 * (step + 1):
            await take(subscriber, acks, books, cancelling)
            gateway.refused.pop("sb", None) if step == 6 else None
    await closed(cancelling, subscriber)
    books.check(gateway.logs, acks)
    assert gateway.is_left()
    assert not gateway.mistakes
    assert bool(gateway.renewals) is asks_who


async def take(
    client: Subscriber | Consumer, acks: Acks, books: Books, cancelling: Cancelling
) -> None:
    try:
        item = await cancelling.call("anext", client.__anext__())
    except Cancelled:
        return
    except errors.InvalidRequest:
        return
    assert isinstance(item, Event)
    books.saw(item)
    if isinstance(client, Consumer) and not len(books.seen) % 7:
        await cancelling.call("nack", client.nack(item, 0.01))
        books.nacked.add((item.topic, item.seq))
    elif acks == "manual" and len(books.seen) % 3:
        await acknowledge(client, item, cancelling)
        books.acknowledged.add((item.topic, item.seq))
        if isinstance(client, Subscriber):
            earlier = [place for place in books.seen if place[0] == item.topic]
            books.acknowledged |= {place for place in earlier if place[1] <= item.seq}


async def acknowledge(client: Subscriber | Consumer, item: Event, cancelling: Cancelling) -> None:
    if isinstance(client, Subscriber):
        client.ack(item)
    else:
        await cancelling.call("acknowledge", client.acknowledge(item))


async def consume(acks: Acks, cancelling: Cancelling, *, asks_who: bool = False) -> None:
    gateway, books = VirtualGateway(asks_who=asks_who), Books()

    def make() -> Consumer:
        return gateway.served(Consumer(topic="a", group="g", consumer="c", acks=acks, **options()))

    consumer = await entered(cancelling, gateway, make)
    for step in range(9):
        trouble(gateway, step, ("c",))
        if step == 8:
            revoke(gateway)
        happens(gateway, "a", "a", "a")
        while len(set(books.seen)) < 3 * (step + 1):
            await take(consumer, acks, books, cancelling)
            gateway.refused.pop("c", None) if step == 6 else None
    assert books.nacked
    await cancelling.call("failing", consumer.failing())
    await closed(cancelling, consumer)
    books.check(gateway.logs, acks)
    assert gateway.is_left()
    assert not gateway.mistakes
    assert bool(gateway.renewals) is asks_who
    if acks == "auto":
        assert gateway.groups["g"].settled >= gateway.logs["a"] - 1, "all but the one in hand"


def revoke(gateway: VirtualGateway) -> None:
    """The target is asked for; when it is free, or the consumer had its time, it is given again
    under the next epoch."""
    [session] = [one for one in gateway.sessions if one.group is not None]
    session.revoke()

    def again(tries: int) -> None:
        if session.group is not None and (session.group.owner is None or not tries):
            revoked = {"type": "revoked", "target": 0, "epoch": session.group.epoch}
            session.wire.send(revoked)
            session.assign()
        else:
            asyncio.get_running_loop().call_later(0.1, again, tries - 1)

    again(3)


@pytest.mark.parametrize("acks", ["auto", "manual"])
@pytest.mark.parametrize(("scenario", "least"), [(follow, 80), (consume, 50)])
def test_a_call_may_be_cancelled_at_any_await(scenario: Any, least: int, acks: Acks) -> None:
    assert cancel_everywhere(partial(scenario, acks)) > least


@pytest.mark.parametrize(("scenario", "least"), [(follow, 80), (consume, 50)])
def test_so_it_may_while_tokens_are_said_renewed_and_over(
    scenario: Any, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identified_link, "RENEW_PAUSE_S", 0.01)
    assert cancel_everywhere(partial(scenario, "auto", asks_who=True)) > least


async def given_up(make: Callable[..., AnyClient], after_s: float, *, asks_who: bool) -> None:
    gateway = VirtualGateway(asks_who=asks_who)
    client = gateway.served(make(topic="a", **options()))
    try:
        async with asyncio.timeout(after_s):
            await client.__aenter__()
    except TimeoutError:
        pass
    else:
        await client.close()
    await asyncio.sleep(SOON_S)
    assert gateway.is_left(), after_s
    assert not asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("asks_who", [False, True])
@pytest.mark.parametrize("make", [Subscriber, partial(Consumer, group="g")], ids=("S", "C"))
def test_it_may_be_given_up_at_any_moment_of_its_opening(make: Any, asks_who: bool) -> None:
    """Which one task of its own goes about, and not the call that waits for it."""
    for step in range(48):
        run_virtual(given_up(make, step * LATENCY_S / 4, asks_who=asks_who))


async def refused(make: Callable[..., AnyClient], cancelling: Cancelling) -> None:
    gateway = VirtualGateway()
    gateway.refused |= {"s": INVALID, "c": INVALID}
    client = gateway.served(make())
    with pytest.raises((Cancelled, errors.InvalidRequest)):
        await cancelling.call("enter", client.__aenter__())
    await asyncio.sleep(SOON_S)
    assert gateway.is_left()


def subscriber_of_a() -> Subscriber:
    subscriber = Subscriber(**options())
    subscriber.add("a", id="s")
    return subscriber


@pytest.mark.parametrize(
    "make",
    [subscriber_of_a, partial(Consumer, topic="a", group="g", consumer="c", **options())],
    ids=("S", "C"),
)
def test_one_that_is_refused_may_be_cancelled_at_any_await_and_leaves_nothing(make: Any) -> None:
    assert cancel_everywhere(partial(refused, make)) > 2


# --- over real sockets ---------------------------------------------------------------------------


async def over_sockets(kind: type[Subscriber | Consumer], cancelling: Cancelling) -> None:
    async with served_gateway() as gateway:

        def make() -> Any:
            given = options(retry_first_s=0.001)
            if kind is Subscriber:
                return Subscriber(gateway.url, "a", start="earliest", **given)
            return Consumer(gateway.url, "a", "g", consumer="c", **given)

        gateway.append("a", 2)
        books = Books()
        while True:
            client = make()
            try:
                await cancelling.call("enter", client.__aenter__())
            except Cancelled:
                await until(lambda: not gateway.sessions)
                continue
            break
        for wanted in (1, 3):
            while len(set(books.seen)) < wanted:
                await take(client, "auto", books, cancelling)
            gateway.drop_all()
            gateway.append("a")
        await closed(cancelling, client)
        await until(lambda: not gateway.sessions)
        assert books.seen[:3] == [("a", 1), ("a", 2), ("a", 3)]
        assert not gateway.mistakes


@pytest.mark.parametrize("kind", [Subscriber, Consumer])
def test_a_call_may_be_cancelled_at_any_await_over_sockets_too(kind: Any) -> None:
    assert cancel_everywhere(partial(over_sockets, kind), asyncio.run) >= 4
