"""For how long events are looked for in the partitions that had their keys before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from headgate.model.api import ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import FormerVersion, Topic
from headgate.ports.log import LogReader
from headgate.services.ingest.produce.former_keys import FormerKeys
from tests.virtual_time import run_virtual

TTL_S = 60.0
EVENT = Event("sent-twice", b"{}", "key", "insert", "")
TOPIC = Topic("flights", 2, "keyed", 2, (5, 0), (FormerVersion(1, (0,), (5,)),), original=1)


class Written:
    """A log that has `EVENT` at the end of the former version, however that is called."""

    async def find(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        return {EVENT.event_id: 5} if ref.partition == 0 and EVENT.event_id in event_ids else {}


async def looked(keys: FormerKeys, topic: Topic) -> bool:
    found = await keys.found(topic, [EVENT], {1: [0]}, timeout_s=1.0)
    return found == {0: ProduceResult(EVENT.event_id, 0, 5)}


def test_they_are_looked_for_as_long_as_keys_are_kept() -> None:
    async def scenario() -> None:
        keys = FormerKeys(cast("LogReader", Written()), ttl_s=TTL_S)
        assert await looked(keys, TOPIC)
        await asyncio.sleep(TTL_S - 1.0)
        assert await looked(keys, TOPIC)
        await asyncio.sleep(2.0)
        assert not await looked(keys, TOPIC), "nobody knows these ids any more"

    run_virtual(scenario())


def test_a_topic_that_was_made_again_begins_its_versions_anew() -> None:
    """The same name and the same number, and another repartition."""

    async def scenario() -> None:
        keys = FormerKeys(cast("LogReader", Written()), ttl_s=TTL_S)
        assert await looked(keys, replace(TOPIC, after=(3, 0)))
        await asyncio.sleep(TTL_S + 1.0)
        again = Topic("flights", 1)
        assert await keys.found(again, [EVENT], {0: [0]}, timeout_s=1.0) == {}
        assert await looked(keys, TOPIC)

    run_virtual(scenario())


def test_also_where_it_begins_as_the_former_one_did() -> None:
    """Both were made smaller, and what tells them apart is in the partition that is left out."""

    async def scenario() -> None:
        keys = FormerKeys(cast("LogReader", Written()), ttl_s=TTL_S)
        shrunk = Topic("flights", 1, "keyed", 2, (0,), original=2)
        empty = replace(shrunk, former=(FormerVersion(1, (0, 0), (0, 0)),))
        assert await keys.found(empty, [EVENT], {0: [0]}, timeout_s=1.0) == {}
        assert await keys.retired(empty, [EVENT], timeout_s=1.0)
        await asyncio.sleep(TTL_S + 1.0)
        assert not await keys.retired(empty, [EVENT], timeout_s=1.0)
        again = replace(shrunk, former=(FormerVersion(1, (0, 0), (0, 4)),))
        assert await keys.retired(again, [EVENT], timeout_s=1.0)

    run_virtual(scenario())
