"""What every coordination store promises: ports/coordination.py."""

from __future__ import annotations

import asyncio

from headgate.model.event import PartitionRef
from headgate.model.stored import StoredState
from headgate.model.topology import Owner, Topic
from tests.contracts.stores import Opened

STATE = StoredState(
    boot=3,
    topics=(Topic("flights", 4), Topic("alerts", 1, "opportunistic", 2)),
    deleted=("old",),
    logs=(Owner(PartitionRef("flights", 0), "ingest-1", 7),),
    sources=(Owner(PartitionRef("flights", 0), "", 9),),
    gateways=("gateway-1",),
)


async def test_a_new_cluster_has_an_empty_state(cluster_state: Opened) -> None:
    assert await cluster_state.coordination().load() == StoredState()


async def test_what_was_saved_is_loaded_also_by_the_next_coordinator(cluster_state: Opened) -> None:
    first = cluster_state.coordination()
    await first.save(STATE)
    assert await first.load() == STATE
    await first.close()
    assert await cluster_state.coordination().load() == STATE


async def test_of_saves_asked_for_in_order_the_last_one_stays(cluster_state: Opened) -> None:
    store = cluster_state.coordination()
    await asyncio.gather(*(store.save(StoredState(boot=boot)) for boot in range(1, 30)))
    assert await store.load() == StoredState(boot=29)
