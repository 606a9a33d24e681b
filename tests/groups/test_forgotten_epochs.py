"""A coordinator that has lost all that it had stored gives an epoch out again that one gateway
alone had heard of, which is cut off and goes on: the store lets nobody else have it.

On virtual time, with the real client, gateways, lanes and decisions (system.py) and the judge of
the hours (oracle.py).
"""

from __future__ import annotations

import asyncio

from headgate.model.groups import group_id
from tests.groups.hour import Hour
from tests.groups.system import PARTITIONS
from tests.groups.test_resets import CALM_S, begun
from tests.virtual_time import run_virtual

GROUP = group_id("flights", "radar")
HEARD_S = 1.0
LEARNT_S = 60.0
"""By then it has learnt, and has given away what belonged to those who haven't come back."""
EVERY_S = 0.1


async def produce_for(hour: Hour, seconds: float) -> None:
    for _ in range(round(seconds / EVERY_S)):
        hour.append(1)
        hour.poison.places.clear()
        await asyncio.sleep(EVERY_S)


async def given_out_twice() -> None:
    hour = await begun()
    coordinator, gateways = hour.system.coordinator, hour.system.gateways
    one, two = (gateways[name] for name in ("gateway-1", "gateway-2"))
    assert hour.links_at("gateway-1")
    assert hour.links_at("gateway-2")
    others = two.session, hour.system.router.session
    for session in others:
        coordinator.cut(session)
    hour.gateway_away(two.node_id, is_away=True)
    coordinator.apply(coordinator.cluster.regroup(GROUP, range(PARTITIONS)))
    await asyncio.sleep(HEARD_S)
    coordinator.cut(one.session)
    hour.gateway_away(one.node_id, is_away=True)
    hour.oracle.tag_links("new term", hour.system.network.links)
    hour.oracle.forgotten()
    coordinator.restart(with_nothing=True)
    for session in others:
        coordinator.let_back(session)
    hour.gateway_away(two.node_id, is_away=False)
    await produce_for(hour, LEARNT_S)
    assert hour.oracle.violations == []
    held = [target for member in one._consumers._table.values() for target in member.owned()]
    assert held == [], "somebody else has them"
    coordinator.let_back(one.session)
    hour.gateway_away(one.node_id, is_away=False)
    await asyncio.sleep(CALM_S)
    assert (hour.left(), hour.oracle.violations) == ("", [])
    await hour.end()


def test_an_epoch_that_only_a_cut_off_gateway_knew_of_is_nobody_elses() -> None:
    run_virtual(given_out_twice())
