"""Connections outlive tokens, not rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from headgate.model.control.from_coordinator import PushTokens
from headgate.services.gateway import identifying
from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.access import bearer, knowing, secret_of, token
from tests.services.gateway.world import World, WsSubscriber, running

SOON_MS = 60_000


@pytest.fixture
async def guarded() -> AsyncIterator[World]:
    def principals(machine):  # type: ignore[no-untyped-def]
        ends_ms = machine.wall_ms() + SOON_MS
        return knowing(
            machine,
            token("ann", "subscribe"),
            token("soon", "subscribe", expires_ms=ends_ms),
            token("bob", "subscribe"),
        )

    async with running(make_principals=principals) as made:
        yield made


async def come_in(world: World, name: str) -> WsSubscriber:
    connection = await world.connection()
    answer = await connection.ask(type="auth", token=secret_of(name))
    assert answer["type"] == "authenticated", answer
    return connection


async def ended(connection: WsSubscriber) -> tuple[str, str, int | None]:
    """The code and the reason of its last error, and its close code."""
    error: dict[str, Any] = {}
    while error.get("type") != "error":
        error = await connection.next()
    await connection.closed()
    details = error["error"]["details"]
    return error["error"]["code"], details.get("reason", ""), connection.close_code


async def test_who_says_nothing_is_nobody(guarded: World) -> None:
    connection = await guarded.connection()
    connection.say(type="subscribe", id="s", topic="flights")
    assert await ended(connection) == ("unauthorized", "", 4401)
    assert not guarded.coordinator.registry


async def test_who_says_nothing_at_all_is_gone_after_a_while(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identifying, "HANDSHAKE_S", 0.05)
    assert await ended(await guarded.connection()) == ("unauthorized", "handshake", 4401)


async def test_nobody_keeps_others_out_by_saying_nothing() -> None:
    """A crowd takes every place there is for those who haven't said who they are, and comes again
    whenever one of them is gone."""
    async with running(
        make_principals=lambda machine: knowing(machine, token("ann", "subscribe")),
        bounds=Bounds(subscribers=3, subscribe_timeout_s=10.0),
    ) as world:
        crowd = [await world.connection() for _ in range(5)]
        for gone in crowd[:2]:
            await gone.closed()
        ann = await come_in(world, "ann")
        assert (await ann.subscribe("s"))["type"] == "subscribed"
        await crowd[2].closed()
        assert crowd[-1].close_code is None


@pytest.mark.parametrize("said", ["hg_wrong", "", "x" * 10_000, "a.b.c", "\u0000"])
async def test_a_wrong_token_ends_the_connection(guarded: World, said: str) -> None:
    connection = await guarded.connection()
    connection.say(type="auth", token=said)
    assert (await ended(connection))[0] == "unauthorized"


async def test_a_question_in_the_address_waits_for_the_token(guarded: World) -> None:
    connection = await guarded.websocket()
    first = await connection.ask(type="auth", token=secret_of("ann"))
    assert (first["type"], first["expires_at_ms"]) == ("authenticated", None)
    assert (await connection.next())["type"] == "subscribed"


async def test_an_expired_token_ends_its_connections_and_no_others(guarded: World) -> None:
    ann, soon = await come_in(guarded, "ann"), await come_in(guarded, "soon")
    await ann.subscribe("s")
    await soon.subscribe("s")
    async with guarded.sse(bearer("soon")) as page:
        assert (await page.next())["event"] == "subscribed"
        guarded.clock.now_s += SOON_MS / 1_000
        assert await ended(soon) == ("unauthorized", "expired", 4401)
        last = await page.next()
        assert (last["event"], last["data"]["error"]["code"]) == ("error", "unauthorized")
        assert await page.ended()
    await guarded.produce({"n": 1})
    assert (await ann.next())["type"] == "event"


async def test_a_revoked_token_ends_its_connections(guarded: World) -> None:
    ann, bob = await come_in(guarded, "ann"), await come_in(guarded, "bob")
    assert guarded.coordinator.session is not None
    guarded.coordinator.session.push(PushTokens((token("bob", "subscribe"),), 2))
    assert await ended(ann) == ("unauthorized", "revoked", 4401)
    await bob.subscribe("s")
    await guarded.produce({"n": 1})
    assert (await bob.next())["type"] == "event"


async def test_older_news_of_tokens_changes_nothing(guarded: World) -> None:
    ann = await come_in(guarded, "ann")
    assert guarded.coordinator.session is not None
    guarded.coordinator.session.push(PushTokens((), 0))
    assert (await ann.subscribe("s"))["type"] == "subscribed"


async def test_who_may_do_less_by_now_is_somebody_else(guarded: World) -> None:
    ann = await come_in(guarded, "ann")
    assert guarded.coordinator.session is not None
    guarded.coordinator.session.push(PushTokens((token("ann", "subscribe on other"),), 2))
    assert (await ended(ann))[1] == "revoked"


async def test_a_token_is_renewed_in_place_by_the_same_principal_alone(guarded: World) -> None:
    soon = await come_in(guarded, "soon")
    await soon.subscribe("s")
    assert (await soon.ask(type="auth", token=secret_of("soon")))["type"] == "authenticated"
    await guarded.produce({"n": 1})
    assert (await soon.next())["type"] == "event"
    soon.say(type="auth", token=secret_of("bob"))
    assert await ended(soon) == ("unauthorized", "changed", 4401)


# --- tickets -------------------------------------------------------------------------------------


async def ticket(world: World, name: str) -> tuple[int, dict[str, object]]:
    url = f"{world.gateway.url}/v1/tickets"
    answer = await world.client.post(url).headers(bearer(name)).build().send()
    return answer.status, await answer.json()


async def status_of(world: World, said: str) -> int:
    url = f"{world.gateway.url}/v1/subscribe?topic=nowhere&ticket={said}"
    return (await world.client.get(url).build().send()).status


async def test_a_ticket_lets_a_page_in_once(guarded: World) -> None:
    status, made = await ticket(guarded, "ann")
    assert status == 201
    async with guarded.sse(ticket=str(made["ticket"])) as page:
        assert (await page.next())["event"] == "subscribed"
        await guarded.produce({"n": 1})
        assert (await page.next())["event"] == "event"
    assert await status_of(guarded, str(made["ticket"])) == 401


async def test_a_ticket_is_good_for_seconds_and_not_for_another_ticket(guarded: World) -> None:
    _, made = await ticket(guarded, "ann")
    url = f"{guarded.gateway.url}/v1/tickets?ticket={made['ticket']}"
    assert (await guarded.client.post(url).build().send()).status == 401
    assert await status_of(guarded, str(made["ticket"])) == 404, "it wasn't used by that"
    _, late = await ticket(guarded, "ann")
    guarded.clock.now_s += 20
    assert await status_of(guarded, str(late["ticket"])) == 401
    assert await status_of(guarded, "made-up") == 401


async def test_a_ticket_ends_with_whoever_asked_for_it(guarded: World) -> None:
    _, made = await ticket(guarded, "ann")
    assert guarded.coordinator.session is not None
    guarded.coordinator.session.push(PushTokens((), 2))
    assert (await ticket(guarded, "ann"))[0] == 401
    assert await status_of(guarded, str(made["ticket"])) == 401


async def test_who_asks_for_many_tickets_takes_nobody_elses(
    guarded: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.services.principals.TICKETS_EACH_MAX", 3)
    monkeypatch.setattr("headgate.services.principals.TICKETS_MAX", 5)
    _, hers = await ticket(guarded, "ann")
    his = [(await ticket(guarded, "bob"))[1] for _ in range(8)]
    statuses = [await status_of(guarded, str(one["ticket"])) for one in his]
    assert statuses == [401] * 5 + [404] * 3
    assert await status_of(guarded, str(hers["ticket"])) == 404
