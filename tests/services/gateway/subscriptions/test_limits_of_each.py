"""What one principal, or one address, may have at a gateway, and what they are told beyond it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from headgate.decide.filter.plan import compile_filter
from headgate.decide.limits.holdings import Most
from headgate.model.access import Limits
from headgate.model.audit import AuditLine
from headgate.services.gateway import identifying
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from headgate.services.principals import KnownPrincipals
from tests.services.gateway.access import bearer, knowing, secret_of, token
from tests.services.gateway.doubles import FakeCoordinator
from tests.services.gateway.world import WAIT_S, World, WsSubscriber, running, until

COSTLY = "name.matches('(a|b)+') && name.matches('(c|d)+')"


def bounds(**each: int) -> Bounds:
    return Bounds(subscribe_timeout_s=WAIT_S, topic_grace_s=0.05, each=Most(**each))


def tokens(machine: Any) -> KnownPrincipals:
    return knowing(
        machine,
        token("ann", "subscribe", "consume", "read:nodes"),
        token("bob", "subscribe"),
        token("own", "subscribe", limits=Limits(subscriptions=3)),
    )


@pytest.fixture
async def open_to_all() -> AsyncIterator[World]:
    async with running(bounds=bounds(connections=2, subscriptions=2)) as made:
        yield made


@pytest.fixture
async def guarded() -> AsyncIterator[World]:
    limits = bounds(connections=2, subscriptions=2)
    async with running(bounds=limits, make_principals=tokens) as made:
        yield made


async def come_in(world: World, name: str) -> WsSubscriber:
    connection = await world.connection()
    answer = await connection.ask(type="auth", token=secret_of(name))
    assert answer["type"] == "authenticated", answer
    return connection


async def refused(connection: WsSubscriber) -> tuple[str, int | None]:
    """The code of the error that it ends with, and its close code."""
    message = await connection.next()
    while message["type"] != "error":
        message = await connection.next()
    await connection.closed()
    assert "try again later" in message["error"]["message"]
    return message["error"]["code"], connection.close_code


async def sse_status(world: World, headers: dict[str, str], path: str) -> tuple[int, str | None]:
    answer = await world.client.get(f"{world.gateway.url}{path}").headers(headers).build().send()
    return answer.status, answer.headers.get("retry-after")


# --- connections ---------------------------------------------------------------------------------


async def test_an_address_has_so_many_connections_of_whatever_kind(open_to_all: World) -> None:
    world = open_to_all
    first = await world.connection()
    async with world.sse() as page:
        assert (await page.next())["event"] == "subscribed"
        assert await refused(await world.connection()) == ("too_many", 1013)
        assert await refused(await world.consumer_connection()) == ("too_many", 1013)
        status = await sse_status(world, {}, "/v1/subscribe?topic=flights")
        assert status == (429, "1")
        assert (await sse_status(world, {}, "/v1/overview/stream"))[0] == 429
    first.leave()
    await first.closed()
    await until(lambda: not len(world.gateway.holdings))
    again = await world.connection()
    assert (await again.subscribe("s"))["type"] == "subscribed"


async def test_a_principal_has_so_many_connections_and_others_have_theirs(guarded: World) -> None:
    await come_in(guarded, "ann")
    async with guarded.sse(bearer("ann")) as page:
        assert (await page.next())["event"] == "subscribed"
        third = await guarded.connection()
        third.say(type="auth", token=secret_of("ann"))
        assert await refused(third) == ("too_many", 1013)
        status = await sse_status(guarded, bearer("ann"), "/v1/subscribe?topic=flights")
        assert status == (429, "1")
        assert (await sse_status(guarded, bearer("ann"), "/v1/overview/stream"))[0] == 429
        await come_in(guarded, "bob")
    await until(lambda: guarded.gateway.holdings.of("token ann").connections == 1)
    await come_in(guarded, "ann")


async def test_who_has_not_said_who_they_are_counts_for_their_address(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identifying, "HANDSHAKE_S", 60.0)
    waiting = [await guarded.connection() for _ in range(2)]
    assert await refused(await guarded.connection()) == ("too_many", 1013)
    answer = await waiting[0].ask(type="auth", token=secret_of("ann"))
    assert answer["type"] == "authenticated"
    await come_in(guarded, "bob")  # the place is free: ann's connection is ann's


async def test_a_page_that_nobody_reads_gives_its_place_back(open_to_all: World) -> None:
    async with AsyncExitStack() as pages:
        for _ in range(2):
            await pages.enter_async_context(open_to_all.sse())
        assert (await sse_status(open_to_all, {}, "/v1/subscribe?topic=flights"))[0] == 429
    await until(lambda: not len(open_to_all.gateway.holdings))


async def test_a_refused_subscription_gives_its_place_back(open_to_all: World) -> None:
    for _ in range(3):
        assert (await sse_status(open_to_all, {}, "/v1/subscribe?topic=nowhere"))[0] == 404
    assert not len(open_to_all.gateway.holdings)


# --- subscriptions -------------------------------------------------------------------------------


async def test_one_has_so_many_subscriptions_over_all_their_connections(guarded: World) -> None:
    first, second = await come_in(guarded, "ann"), await come_in(guarded, "ann")
    await first.subscribe("a")
    await second.subscribe("b")
    answer = await second.subscribe("c")
    assert (answer["type"], answer["error"]["code"]) == ("error", "too_many")
    assert answer["error"]["details"] == {"limit": 2}
    assert "token ann has 2 subscriptions" in answer["error"]["message"]
    assert (await first.ask(type="unsubscribe", subscription="a"))["type"] == "unsubscribed"
    await until(lambda: guarded.gateway.holdings.of("token ann").subscriptions == 1)
    assert (await second.subscribe("c"))["type"] == "subscribed"


async def test_a_tokens_own_limit_counts_first(guarded: World) -> None:
    connection = await come_in(guarded, "own")
    for name in ("a", "b", "c"):
        assert (await connection.subscribe(name))["type"] == "subscribed"
    assert (await connection.subscribe("d"))["error"]["code"] == "too_many"


async def test_what_could_not_begin_does_not_count(guarded: World) -> None:
    connection = await come_in(guarded, "ann")
    for _ in range(3):
        answer = await connection.ask(type="subscribe", id="s", topic="nowhere")
        assert answer["error"]["code"] == "unknown_topic"
    assert (await connection.subscribe("s"))["type"] == "subscribed"


async def test_a_consumer_is_one_subscription_until_its_connection_is_over() -> None:
    coordinator = FakeCoordinator()
    async with running(
        bounds=bounds(subscriptions=1), coordinator=coordinator, make_principals=tokens
    ) as world:
        consumer = await world.consumer_connection()
        await consumer.ask(type="auth", token=secret_of("ann"))
        consumer.say(type="join", topic="flights", group="g", consumer="c", incarnation="1")
        await until(lambda: world.gateway.holdings.of("token ann").subscriptions == 1)
        connection = await come_in(world, "ann")
        assert (await connection.subscribe("s"))["error"]["code"] == "too_many"
        consumer.leave()
        await consumer.closed()
        await until(lambda: not len(world.gateway.holdings))
        assert (await connection.subscribe("s"))["type"] == "subscribed"


# --- what filters cost ---------------------------------------------------------------------------


async def test_filters_cost_so_much_together() -> None:
    cost_us = compile_filter(COSTLY).cost_us
    async with running(bounds=bounds(filter_cost_us=3 * cost_us)) as world:
        connection = await world.connection()
        for number in range(3):
            assert (await connection.subscribe(str(number), where=COSTLY))["type"] == "subscribed"
        assert (await connection.subscribe("3", where=COSTLY))["error"]["code"] == "too_many"
        assert (await connection.subscribe("cheap"))["type"] == "subscribed"


async def test_a_filter_that_can_never_fit_is_the_callers_fault() -> None:
    async with running(bounds=bounds(filter_cost_us=1)) as world:
        answer = await (await world.connection()).subscribe("s", where=COSTLY)
        assert answer["error"]["code"] == "invalid_filter"
        assert "make it simpler" in answer["error"]["message"]


# --- what is written down ------------------------------------------------------------------------


class Noted:
    """Implements ports.audit.AuditTrail."""

    def __init__(self) -> None:
        self.lines: list[AuditLine] = []

    def note(self, line: AuditLine) -> None:
        self.lines.append(line)


async def test_whoever_is_refused_over_a_connection_is_written_down() -> None:
    audit = Noted()
    limits = bounds(connections=1, subscriptions=1)
    async with running(bounds=limits, make_principals=tokens, audit=audit) as world:
        ann = await come_in(world, "ann")
        await ann.subscribe("s")
        assert (await ann.subscribe("t"))["error"]["code"] == "too_many"
        another = await world.connection()
        another.say(type="auth", token=secret_of("ann"))
        await refused(another)
        bob = await world.consumer_connection()
        bob.say(type="auth", token=secret_of("bob"))
        bob.say(type="join", topic="flights", group="g", consumer="c", incarnation="1")
        await bob.closed()
        wrong = await world.connection()
        wrong.say(type="auth", token="hg_wrong")
        await wrong.closed()
    noted = [(one.who, one.kind, one.what, one.code, one.from_) for one in audit.lines]
    assert noted == [
        ("ann", "token", "WebSocket /v1/subscribe", "too_many", "127.0.0.1"),
        ("ann", "token", "WebSocket /v1/subscribe", "too_many", "127.0.0.1"),
        ("bob", "token", "WebSocket /v1/consume", "forbidden", "127.0.0.1"),
        ("nobody", "", "WebSocket /v1/subscribe", "unauthorized", "127.0.0.1"),
    ]
