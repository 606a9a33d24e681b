"""Headers of a record reach whoever gets it, on every way: live, from the log, in a letter."""

from __future__ import annotations

import pytest

from tests.services.gateway.groups.test_consumers import TARGETS
from tests.services.gateway.groups.test_giving_up import limited, nack
from tests.services.gateway.test_whole_collections import subscribed
from tests.services.gateway.world import World

HEADERS = {"trace": "7f", "note": "Zoë"}


@pytest.mark.parametrize("way", ["live", "log"])
@pytest.mark.parametrize("where", [None, "n > 0"])
async def test_a_subscriber_gets_them_with_the_record(
    world: World, way: str, where: str | None
) -> None:
    if way == "live":
        socket = await subscribed(world, where)
    world.log.append({"n": 1}, headers=HEADERS)
    world.log.append({"n": 2})
    if way == "live":
        await world.lanes.run()
    else:
        socket = await subscribed(world, where, from_="earliest")
    assert (await socket.next())["headers"] == HEADERS
    assert "headers" not in await socket.next()


async def test_a_letter_of_a_group_keeps_them_and_brings_them_again() -> None:
    async with limited() as group:
        socket = await group.consumer(*range(TARGETS), limit=2)
        group.world.log.append({"n": 1}, headers=HEADERS)
        await group.world.lanes.run()
        message = await socket.next()
        assert message["headers"] == HEADERS
        nack(socket, message, 2)
        assert (await socket.next())["type"] == "given_up"
        letter = await group.has_letter()
        await group.letters.revive([letter.id], now_ms=5)
        again = await socket.next()
        assert (again["redelivery"], again["headers"]) == (True, HEADERS)
