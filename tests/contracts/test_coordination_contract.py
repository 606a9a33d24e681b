"""What every coordination store promises: ports/coordination.py."""

from __future__ import annotations

import asyncio
import contextlib
import random

import msgspec
import pytest

from headgate.adapters.memory.coordination import MemoryCoordination, MemoryCoordinationStore
from headgate.errors import Fenced
from headgate.model.access import ApiToken, Grant
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredReset, StoredState
from headgate.model.topology import Node, Owner, Topic
from tests.contracts.stores import COORDINATION, Opened, durable
from tests.forks import forked

STATE = StoredState(
    boot=3,
    topics=(Topic("alerts", 1, "opportunistic", 2), Topic("flights", 4)),
    deleted=("old",),
    logs=(Owner(PartitionRef("flights", 0), "ingest-1", 7),),
    sources=(Owner(PartitionRef("flights", 0), "", 9),),
    gateways=("gateway-1",),
    nodes=(Node("gateway-1", "gateway", "http://127.0.0.1:1", pid=7),),
    resets=(StoredReset(PartitionRef("flights", 0), 4, resync=True),),
    tokens=(
        ApiToken("ann", "0" * 64, (Grant("subscribe", where='a == "/"'),), "t", expires_ms=5),
        ApiToken("bob", "1" * 64, (Grant("read", "topics", ("a.*",)),)),
    ),
    tokens_revision=3,
)


def owners(count: int, node_id: str, epoch: int) -> tuple[Owner, ...]:
    return tuple(Owner(PartitionRef("flights", n), node_id, epoch) for n in range(count))


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


async def test_what_is_no_longer_in_the_state_is_gone(cluster_state: Opened) -> None:
    store = cluster_state.coordination()
    await store.save(STATE)
    fewer = StoredState(boot=4, topics=STATE.topics[1:], nodes=STATE.nodes)
    await store.save(fewer)
    assert await store.load() == fewer
    await store.save(StoredState(boot=4))
    assert await cluster_state.coordination().load() == StoredState(boot=4)


async def test_a_large_state_is_kept_whole(cluster_state: Opened) -> None:
    """More partitions than one transaction of any store takes, all of them changed at once."""
    store = cluster_state.coordination()
    for epoch, node_id in enumerate(["ingest-1", "ingest-2"], start=1):
        all_owners = owners(1_000, node_id, epoch)
        state = msgspec.structs.replace(STATE, logs=all_owners, sources=all_owners)
        await store.save(state)
        assert await cluster_state.coordination().load() == state


async def test_any_sequence_of_states_ends_with_the_last(cluster_state: Opened) -> None:
    chance = random.Random(4)
    store = cluster_state.coordination()
    for boot in range(1, 30):
        state = StoredState(
            boot=boot,
            topics=tuple(
                Topic(name, chance.randint(1, 3)) for name in "abc" if chance.random() < 0.5
            ),
            logs=tuple(
                o for o in owners(4, "ingest-1", chance.randint(1, 2)) if chance.random() < 0.7
            ),
            gateways=tuple(name for name in ("g%1", "g-2", "g/3") if chance.random() < 0.5),
        )
        await store.save(state)
        if chance.random() < 0.5:
            store = cluster_state.coordination()
        assert await store.load() == state


async def test_a_save_that_was_given_up_leaves_the_store_usable(cluster_state: Opened) -> None:
    store = cluster_state.coordination()
    for boot in range(1, 10):
        call = asyncio.create_task(store.save(StoredState(boot=boot)))
        for _ in range(boot):
            await asyncio.sleep(0)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    await store.save(STATE)
    assert await store.load() == STATE


async def test_in_memory_whoever_was_overtaken_is_refused() -> None:
    kept = MemoryCoordination()
    former, present = MemoryCoordinationStore(kept, 1), MemoryCoordinationStore(kept, 2)
    await former.save(StoredState(boot=1))
    await present.save(StoredState(boot=2))
    with pytest.raises(Fenced):
        await former.save(StoredState(boot=3))
    assert await former.load() == StoredState(boot=2)


SAVER = """
import asyncio, sys
from headgate.model.event import PartitionRef
from headgate.model.stored import StoredState
from headgate.model.topology import Owner
from tests.contracts.stores import COORDINATION

async def main(adapter, location):
    store = COORDINATION[adapter](location)
    boot = (await store.load()).boot
    while True:
        boot += 1
        refs = (PartitionRef("flights", number) for number in range(600))
        await store.save(StoredState(boot=boot, logs=tuple(Owner(r, "n", boot) for r in refs)))
        print(boot, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.parametrize("cluster_state", durable(COORDINATION), indirect=True)
async def test_a_coordinator_killed_in_a_save_leaves_a_state_for_the_next(
    cluster_state: Opened,
) -> None:
    """Each save takes a while, so most kills come in the middle of one."""
    for turn in range(3):
        command = ("-c", SAVER, cluster_state.adapter, cluster_state.location)
        process = await forked(command, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(2 + turn):
            saved = int(await process.stdout.readline())
        process.kill()
        await process.communicate()
        found = await cluster_state.coordination().load()
        # Saves may have ended after the last one that was told, so boot counts from below.
        assert found.boot >= saved
        assert [owner.ref.partition for owner in found.logs] == list(range(600))
        # An epoch may be of the save before, never lost and never of a save that wasn't begun.
        assert {owner.epoch for owner in found.logs} <= {found.boot - 1, found.boot}
