"""Nobody ever receives a record that their grant excludes, on whatever path it comes.

The oracle is naive: each document says whose it is, and whatever a principal of a tenant hears or
is shown is searched for another's.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headgate.adapters.memory.letters import MemoryLetterStore
from headgate.errors import StorageFailed
from headgate.model.control.from_coordinator import AssignTargets
from headgate.model.control.to_coordinator import JoinGroup
from headgate.model.delivery import Delivery
from headgate.model.event import Fence, Op, PartitionRef
from headgate.model.groups import Group, group_id
from headgate.model.letters import NewLetter
from headgate.model.topology import Owner
from tests.services.gateway.access import bearer, knowing, secret_of, token
from tests.services.gateway.world import World, WsSubscriber, running, until
from tests.written_log import TOPIC

MINE, THEIRS = {"tenant": "mine"}, {"tenant": "theirs"}
BY_TENANT = "where tenant == claims.tenant"
OF_SHOP = "_collection == 'shop' && tenant == 'mine'"
TOKENS = (
    token("mine", f"subscribe {BY_TENANT}", f"consume {BY_TENANT}", tenant="mine"),
    token("theirs", f"subscribe {BY_TENANT}", f"consume {BY_TENANT}", tenant="theirs"),
    token("all", "subscribe", "consume", "read:topics"),
    token("other", "subscribe on other"),
    token(
        "shop",
        f"consume where {OF_SHOP}",
        f"subscribe where {OF_SHOP}",
        "read:topics",
    ),
)
REF = PartitionRef(TOPIC, 0)


@pytest.fixture
async def guarded() -> AsyncIterator[World]:
    async with running(
        make_principals=lambda machine: knowing(machine, *TOKENS), letters=MemoryLetterStore()
    ) as made:
        yield made


async def come_in(world: World, name: str, query: str = "?v=1") -> WsSubscriber:
    connection = await world.connection(query)
    answer = await connection.ask(type="auth", token=secret_of(name))
    assert (answer["type"], answer["principal"]) == ("authenticated", name)
    return connection


async def heard(connection: WsSubscriber, count: int) -> list[Any]:
    """The documents of the next messages, whatever they are."""
    found: list[Any] = []
    while len(found) < count:
        message = await connection.next()
        assert message["type"] in ("event", "left", "subscribed", "joined", "assigned"), message
        if message["type"] in ("event", "left"):
            found.append(message["document"])
    return found


async def test_live(guarded: World) -> None:
    mine = await come_in(guarded, "mine")
    assert (await mine.subscribe("s"))["type"] == "subscribed"
    everything = await come_in(guarded, "all")
    await everything.subscribe("s")
    await guarded.produce(THEIRS, MINE, {}, {"tenant": 5}, THEIRS, MINE)
    assert await heard(mine, 2) == [MINE, MINE]
    assert await heard(everything, 6) == [THEIRS, MINE, {}, {"tenant": 5}, THEIRS, MINE]


@pytest.mark.parametrize("start", ["earliest", {"0": 1, "1": 1}], ids=["replay", "resume"])
@pytest.mark.parametrize("where", [None, "true || tenant == 'theirs'"], ids=["all", "any"])
async def test_from_the_log(guarded: World, start: Any, where: str | None) -> None:
    for document in (THEIRS, MINE, THEIRS, MINE):
        guarded.log.append(document)
    mine = await come_in(guarded, "mine")
    asked = {} if where is None else {"where": where}
    await mine.subscribe("s", from_=start, **asked)
    guarded.log.append(THEIRS)
    await guarded.produce(MINE)
    assert await heard(mine, 3) == [MINE, MINE, MINE]


async def test_over_server_sent_events_and_after_a_last_event_id(guarded: World) -> None:
    for document in (THEIRS, MINE, THEIRS, MINE):
        guarded.log.append(document)
    for headers in (bearer("mine"), {**bearer("mine"), "last-event-id": "0:1,1:0"}):
        async with guarded.sse(headers, from_="earliest") as mine:
            found: list[Any] = []
            while len(found) < 2:
                message = await mine.next()
                if message.get("event") == "event":
                    found.append(message["data"]["document"])
            assert found == [MINE, MINE]


async def test_broadcast(guarded: World) -> None:
    mine = await come_in(guarded, "mine")
    await mine.subscribe("s")
    for number in range(2):  # the first builds the index, the second brings it up to date
        records = [guarded.log.append(one) for one in (THEIRS, MINE)]
        made = [guarded.lanes.delivery(record, ()) for record in records]
        await guarded.lanes.deliver([msgspec.structs.replace(one, broadcast=True) for one in made])
        assert await heard(mine, 1) == [MINE], number


async def test_redelivery_to_whom_it_may_concern(guarded: World) -> None:
    mine = await come_in(guarded, "mine")
    await mine.subscribe("s")
    records = [guarded.log.append(one) for one in (THEIRS, MINE)]
    again = [guarded.lanes.match(record) for record in records]
    assert again[0] is None, "what a lane matches with has the grant's filter in it"
    made = [guarded.lanes.delivery(record, ()) for record in records]
    await guarded.lanes.deliver(
        [msgspec.structs.replace(one, broadcast=True, redelivery=True) for one in made]
    )
    assert await heard(mine, 1) == [MINE]


@pytest.mark.parametrize(
    ("document", "earlier", "where", "expected"),
    [
        (THEIRS, MINE, None, [("left", None)]),
        ({**MINE, "x": 1}, {**MINE, "x": 0}, "x == 0", [("left", {**MINE, "x": 1})]),
        (MINE, THEIRS, None, [("event", MINE)]),
        (THEIRS, THEIRS, None, []),
        ({**MINE, "x": 1}, {**THEIRS, "x": 0}, "x == 0", []),
        ({**THEIRS, "x": 1}, {**MINE, "x": 0}, "x == 0", [("left", None)]),
    ],
)
@pytest.mark.parametrize("path", ["live", "replay", "redelivery"])
async def test_a_record_that_leaves(
    guarded: World,
    path: str,
    document: dict[str, Any],
    earlier: dict[str, Any],
    where: str | None,
    expected: list[tuple[str, Any]],
) -> None:
    mine = await come_in(guarded, "mine")
    asked = {} if where is None else {"where": where}
    if path == "replay":
        guarded.log.append(document, op="update", earlier=earlier, headers={"h": "s3cret"})
        guarded.log.append({**MINE, "x": 0})
    start = "earliest" if path == "replay" else "now"
    await mine.subscribe("s", from_=start, **asked)
    name = next(iter(guarded.coordinator.registry))
    if path != "replay":
        record = guarded.log.append(document, op="update", earlier=earlier, headers={"h": "s3cret"})
        made = guarded.lanes.delivery(record, (name,))
        if expected:
            left = (name,) if expected[0][0] == "left" else ()
            again = path == "redelivery"
            await guarded.lanes.deliver(
                [msgspec.structs.replace(made, left=left, redelivery=again)]
            )
        await guarded.lanes.deliver(
            [guarded.lanes.delivery(guarded.log.append({**MINE, "x": 0}), (name,))]
        )
    found: list[tuple[str, Any]] = []
    while (message := await mine.next())["seq"] != 2:
        found.append((message["type"], message["document"]))
        if message["document"] is None:
            assert "headers" not in message
            assert "theirs" not in json.dumps(message)
    assert found == expected


async def test_the_message_browser(guarded: World) -> None:
    records = [
        (THEIRS, None),
        (MINE, None),
        (MINE, THEIRS),
        (THEIRS, MINE),
        ({**MINE, "n": 1}, {**MINE, "n": 0}),
    ]
    for document, earlier in records:
        guarded.log.append(document, earlier=earlier)
    shown = await _records(guarded, "mine", "limit=50")
    assert [one["document"] for one in shown["records"]] == [{**MINE, "n": 1}, MINE, MINE]
    assert [one.get("earlier") for one in shown["records"]] == [{**MINE, "n": 0}, None, None]
    assert "theirs" not in json.dumps(shown)
    assert len((await _records(guarded, "all", "limit=50"))["records"]) == 5


async def test_the_browser_shows_what_is_about_whole_collections_of_the_grant(
    guarded: World,
) -> None:
    about: list[tuple[Op, str, Any]] = [
        ("drop", "shop", None),
        ("drop", "theirs", None),
        ("rename", "theirs", {"to": "theirs-too"}),
        ("rename", "theirs", {"to": "shop"}),
        ("lost", "", None),
    ]
    for op, collection, document in about:
        guarded.log.append(document, op=op, collection=collection)
    shown = await _records(guarded, "shop", "limit=50")
    assert [one["seq"] for one in shown["records"]] == [5, 4, 1]
    assert "theirs-too" not in json.dumps(shown)


async def test_no_filter_fails_on_what_the_browser_hides(guarded: World) -> None:
    for document in ({**THEIRS, "n": "a"}, {**MINE, "n": 1}):
        guarded.log.append(document)
    shown = await _records(guarded, "mine", "where=int(n)%20%3E%200")
    assert (len(shown["records"]), shown["filter_errors"]) == (1, 0)
    assert (await _records(guarded, "all", "where=int(n)%20%3E%200"))["filter_errors"] == 1


async def _records(world: World, name: str, query: str) -> Any:
    url = f"{world.gateway.url}/v1/topics/{TOPIC}/records?{query}"
    answer = await world.client.get(url).headers(bearer(name)).build().send()
    assert answer.status == 200, await answer.text()
    return await answer.json()


async def test_who_may_not_subscribe_hears_the_same_of_topics_that_there_are_and_are_not(
    guarded: World,
) -> None:
    other = await come_in(guarded, "other")
    said = []
    for name in (TOPIC, "flight", "secret"):
        answer = await other.ask(type="subscribe", id="s", topic=name)
        assert answer["error"]["code"] == "forbidden"
        said.append(answer["error"]["message"].replace(name, "…"))
    assert len(set(said)) == 1
    unknown = await other.ask(type="subscribe", id="s", topic="other")
    assert unknown["error"]["code"] == "unknown_topic"
    assert TOPIC not in json.dumps(unknown)


async def test_the_tenant_is_the_principals(guarded: World) -> None:
    mine = await come_in(guarded, "mine")
    refused = await mine.subscribe("s", tenant="theirs")
    assert refused["error"]["code"] == "forbidden"
    assert (await mine.subscribe("s"))["type"] == "subscribed"
    assert [one.tenant for one in guarded.coordinator.registry.values()] == ["mine"]


# --- groups --------------------------------------------------------------------------------------

GROUP = group_id(TOPIC, "g")


async def _joined(world: World, name: str, **more: Any) -> WsSubscriber:
    connection = await world.consumer_connection()
    await connection.ask(type="auth", token=secret_of(name))
    connection.say(
        type="join", topic=TOPIC, group="g", consumer=name, incarnation="1", keys=1, **more
    )
    return connection


async def test_the_filter_of_a_group_has_the_grants_part_in_it(guarded: World) -> None:
    for name in ("mine", "theirs", "all"):
        await _joined(guarded, name, where="x == 1")

    def joins() -> list[JoinGroup]:
        return [one for one in guarded.coordinator.received if isinstance(one, JoinGroup)]

    await until(lambda: len(joins()) == 3)
    by_name = {one.consumer: one.where for one in joins()}
    assert by_name == {
        "mine": 'tenant == "mine" && x == 1',
        "theirs": 'tenant == "theirs" && x == 1',
        "all": "x == 1",
    }


async def _assigned(
    world: World, name: str, where: str | None, starts: tuple[int, ...] = ()
) -> WsSubscriber:
    """The consumer owns the only target of a group with that filter."""
    connection = await _joined(world, name, max_deliveries=3)
    group = Group(GROUP, TOPIC, "g", 1, where, starts)
    owner = Owner(PartitionRef(GROUP, 0), name, 1)
    received = world.coordinator.received
    await until(lambda: any(getattr(one, "consumer", "") == name for one in received))
    assert world.coordinator.session is not None
    world.coordinator.session.push(AssignTargets(group, name, "1", (owner,)))
    for kind in ("joined", "assigned"):
        assert (await connection.next())["type"] == kind
    return connection


async def test_a_target_sees_what_its_consumers_grant_shows_whatever_the_group_says(
    guarded: World,
) -> None:
    mine = await _assigned(guarded, "mine", None)
    await guarded.produce(THEIRS, MINE, THEIRS, MINE)
    assert await heard(mine, 2) == [MINE, MINE]


async def test_nobody_else_takes_a_consumers_place_by_its_name(guarded: World) -> None:
    mine = await _assigned(guarded, "mine", None)
    stranger = await guarded.consumer_connection()
    await stranger.ask(type="auth", token=secret_of("theirs"))
    stranger.say(type="join", topic=TOPIC, group="g", consumer="mine", incarnation="1", keys=1)
    error = (await stranger.next())["error"]
    assert (error["code"], "another principal" in error["message"]) == ("unavailable", True)
    await guarded.produce(MINE)
    assert await heard(mine, 1) == [MINE]
    again = await _joined(guarded, "mine")
    await mine.closed()
    again.leave()


async def test_a_letter_of_a_former_group_of_that_name_is_not_sent_to_who_may_not_see_it() -> None:
    letters = MemoryLetterStore()
    async with running(
        make_principals=lambda machine: knowing(machine, *TOKENS), letters=letters
    ) as world:
        target = Group(GROUP, TOPIC, "g", 1).target_name(0)
        for seq, document in enumerate((THEIRS, MINE), start=1):
            delivery = Delivery(
                TOPIC, 0, seq, f"e{seq}", None, "", "insert",
                msgspec.Raw(msgspec.json.encode(document)), (target,), 1,
            )  # fmt: skip
            fenced = NewLetter(target, "dead", "failed", delivery)
            await letters.put([fenced], {fenced.fenced_by: Fence(1)}, now_ms=1)
        await letters.revive([1, 2], now_ms=2)
        mine = await _assigned(world, "mine", 'tenant == "mine"')
        assert await heard(mine, 1) == [MINE]
        await until(lambda: letters_of(letters)[0].state == "dead")
        assert "exclude it" in letters_of(letters)[0].error


async def test_a_letter_of_what_has_left_tells_only_who_was_shown_it_before() -> None:
    letters = MemoryLetterStore()
    async with running(
        make_principals=lambda machine: knowing(machine, *TOKENS), letters=letters
    ) as world:
        target = Group(GROUP, TOPIC, "g", 1).target_name(0)
        for earlier in (THEIRS, MINE):
            record = world.log.append({**THEIRS, "n": 1}, op="update", earlier=earlier)
            made = msgspec.structs.replace(
                world.lanes.delivery(record, (target,)), left=(target,), epoch=1
            )
            fenced = NewLetter(target, "dead", "failed", made)
            await letters.put([fenced], {fenced.fenced_by: Fence(1)}, now_ms=1)
        await letters.revive([1, 2], now_ms=2)
        mine = await _assigned(world, "mine", 'tenant == "mine"', starts=(2,))
        told = await mine.next()
        assert (told["type"], told["seq"], told["document"]) == ("left", 2, None)
        await until(lambda: letters_of(letters)[0].state == "dead")
        assert "exclude it" in letters_of(letters)[0].error


async def test_a_letter_that_the_log_must_be_asked_about_holds_no_other_while_it_is_away() -> None:
    letters = MemoryLetterStore()
    async with running(
        make_principals=lambda machine: knowing(machine, *TOKENS), letters=letters
    ) as world:
        target = Group(GROUP, TOPIC, "g", 1).target_name(0)
        has_left = world.log.append({**THEIRS, "n": 1}, op="update", earlier=MINE)
        other = world.log.append(MINE, partition=1)
        mine = await _assigned(world, "mine", 'tenant == "mine"', starts=(1, 1))
        world.log.damaged[REF] = StorageFailed("reading flights:0 failed: the disk is away")
        for record, left in ((has_left, (target,)), (other, ())):
            made = world.lanes.delivery(record, (target,))
            one = NewLetter(
                target, "dead", "failed", msgspec.structs.replace(made, left=left, epoch=1)
            )
            await letters.put([one], {one.fenced_by: Fence(1)}, now_ms=1)
        await letters.revive([1, 2], now_ms=2)
        assert await heard(mine, 1) == [MINE]
        del world.log.damaged[REF]
        told = await mine.next()
        assert (told["type"], told["partition"], told["document"]) == ("left", 0, None)


async def test_a_letter_about_a_whole_collection_is_sent_again_unless_the_grant_excludes_that() -> (
    None
):
    letters = MemoryLetterStore()
    async with running(
        make_principals=lambda machine: knowing(machine, *TOKENS), letters=letters
    ) as world:
        target = Group(GROUP, TOPIC, "g", 1).target_name(0)
        for collection in ("theirs", "shop"):
            record = world.log.append(None, op="drop", collection=collection)
            made = msgspec.structs.replace(world.lanes.delivery(record, (target,)), epoch=1)
            one = NewLetter(target, "dead", "failed", made)
            await letters.put([one], {one.fenced_by: Fence(1)}, now_ms=1)
        await letters.revive([1, 2], now_ms=2)
        shop = await _assigned(world, "shop", None, starts=(2,))
        told = await shop.next()
        assert (told["type"], told["op"], told["seq"]) == ("event", "drop", 2)
        await until(lambda: letters_of(letters)[0].state == "dead")
        assert "exclude it" in letters_of(letters)[0].error


async def test_a_letter_without_its_document_says_that_and_not_that_grants_exclude_it() -> None:
    letters = MemoryLetterStore()
    async with running(
        make_principals=lambda machine: knowing(machine, *TOKENS), letters=letters
    ) as world:
        target = Group(GROUP, TOPIC, "g", 1).target_name(0)
        lost = Delivery(
            TOPIC, 0, 1, "", None, "", "update", msgspec.Raw(b"null"), (target,), 1
        )  # fmt: skip
        one = NewLetter(target, "dead", "failed", lost)
        await letters.put([one], {one.fenced_by: Fence(1)}, now_ms=1)
        await letters.revive([1], now_ms=2)
        await _assigned(world, "mine", None)
        await until(lambda: letters_of(letters)[0].state == "dead")
        assert "document is lost" in letters_of(letters)[0].error


def letters_of(store: MemoryLetterStore) -> list[Any]:
    return sorted(store.stored.letters.values(), key=lambda one: one.id)
