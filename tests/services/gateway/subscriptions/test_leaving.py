"""A record that stops matching is told as `left`, live and from the log alike."""

from __future__ import annotations

import msgspec

from headgate.services.gateway.subscriptions.subscriptions import Bounds
from tests.services.gateway.world import World, running


async def test_left_and_event_of_one_record_are_two_messages(world: World) -> None:
    client = await world.connection()
    await client.subscribe("low", where="alt < 100")
    await client.subscribe("all")
    ids = {one.where: one.id for one in world.coordinator.registry.values()}
    record = world.log.append({"alt": 500}, op="update", earlier={"alt": 5})
    delivery = world.lanes.delivery(record, (ids["alt < 100"], ids[None]))
    left = msgspec.structs.replace(delivery, left=(ids["alt < 100"],))
    assert (await world.lanes.deliver([left])).verdicts == ("accepted",)
    got = [await client.next() for _ in range(2)]
    assert {(one["type"], one["seq"], tuple(one["subscriptions"])) for one in got} == {
        ("left", 1, ("low",)),
        ("event", 1, ("all",)),
    }
    assert [one["document"] for one in got] == [{"alt": 500}] * 2


async def test_the_log_tells_of_leaving_as_the_lanes_do(world: World) -> None:
    world.log.append({"alt": 5})
    world.log.append({"alt": 500}, op="update", earlier={"alt": 5})
    world.log.append({"alt": 600}, op="update", earlier={"alt": 500})
    world.log.append({"alt": 7}, op="update", earlier={"alt": 600})
    client = await world.connection()
    await client.subscribe("low", where="alt < 100", from_="earliest")
    got = [await client.next() for _ in range(3)]
    assert [(one["type"], one["seq"]) for one in got] == [("event", 1), ("left", 2), ("event", 4)]


async def test_left_has_its_own_name_among_server_sent_events(world: World) -> None:
    world.log.append({"alt": 500}, op="update", earlier={"alt": 5})
    async with world.sse(where="alt < 100", from_="earliest") as stream:
        assert (await stream.next())["event"] == "subscribed"
        assert (await stream.next())["event"] == "left"


async def test_a_mark_in_a_record_that_is_replayed_deletes_it() -> None:
    async with running(bounds=Bounds(soft_delete="deleted")) as world:
        world.log.append({"deleted": True}, op="update")
        world.log.append({"deleted": False}, op="update", earlier={"deleted": True})
        client = await world.connection()
        await client.subscribe("all", from_="earliest")
        assert [(await client.next())["op"] for _ in range(2)] == ["delete", "insert"]
