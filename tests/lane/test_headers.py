"""Headers of a record go with every delivery of it, and into its letters."""

from __future__ import annotations

import msgspec

from headgate.errors import InvalidRequest
from tests.lane.world import LaneWorld, everything, on_virtual_time, settle_down


@on_virtual_time
async def test_a_delivery_has_the_headers_of_its_record() -> None:
    world = LaneWorld()
    world.log.append({"n": 1}, headers={"trace": "7f"})
    world.log.append({"n": 2})
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(2)
    came = [one.headers for one in world.gateways.accepted["gateway-1"]]
    assert came == [msgspec.Raw(b'{"trace":"7f"}'), msgspec.UNSET]


@on_virtual_time
async def test_a_letter_keeps_them() -> None:
    world = LaneWorld()
    world.gateways.scripts["gateway-1"] = [InvalidRequest("never")]
    world.log.append({"n": 1}, headers={"trace": "7f"})
    world.start()
    await world.subscribed(everything("s1"))
    await settle_down(10)
    [letter] = world.letters.letters
    assert letter.delivery.headers == msgspec.Raw(b'{"trace":"7f"}')
