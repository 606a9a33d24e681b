"""Where events of opportunistic topics are that were written before: their producer sends them
again, as they were or in other company, and they must not be written a second time.

The log keeps the ids of each partition for the idempotency time, and so is the memory of that. It
is looked into where an event may be:

- in partitions that this node found with records when it opened them: by a former owner, or by
  itself before a restart;
- in those of others, for as long as it isn't sure that they have had their owners for all of that
  time, where it takes what another node should have taken, which isn't there, or where the sender
  says that the events come in other company than before, which another id led to another node;
- in those that the topic shrank by;
- and otherwise only for what this node may have written itself, which
decide.produce.perhaps_written tells.

A write of which nobody knows what became of it is remembered by its ids, for the node to wait for
it. Invariant: what is found is there. A partition that can't tell is passed over: refusing
everything because one disk is away would be worse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence

from headgate.decide.produce.doubts import PlacingMemory
from headgate.decide.produce.perhaps_written import PerhapsWritten
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic
from headgate.services.ingest.partitions import Partitions
from headgate.services.ingest.produce.appends import Appends
from headgate.services.ingest.produce.former_keys import FormerKeys
from headgate.services.ingest.produce.homes import Homes

Found = dict[int, dict[str, int]]
"""By partition, the seqs of the events that are there."""


class WrittenBefore:
    """`entries` is how many events whose outcome nobody knows are remembered."""

    def __init__(
        self,
        partitions: Partitions,
        appends: Appends,
        former_keys: FormerKeys,
        homes: Homes,
        *,
        ttl_s: float,
        entries: int,
    ) -> None:
        self._partitions = partitions
        self._appends = appends
        self._former_keys = former_keys
        self._homes = homes
        self._ttl_s = ttl_s
        self._doubts = PlacingMemory(ttl_s=ttl_s, entries=entries)
        self._written = PerhapsWritten(ttl_s=ttl_s)

    # --- what happens here -----------------------------------------------------------------------

    def unknown(self, topic: str, ids: Iterable[str], partition: int) -> None:
        """Nobody knows whether they are in `partition`."""
        self._doubts.remember(_now_s(), topic, ids, partition)

    def surely_not(self, topic: str, ids: Iterable[str], partition: int) -> None:
        self._doubts.forget(topic, ids, partition)

    def written(self, topic: str, ids: Iterable[str]) -> None:
        self._written.add(_now_s(), topic, ids)

    # --- what is asked ---------------------------------------------------------------------------

    def doubts(self, topic: Topic, events: Sequence[Event]) -> frozenset[int]:
        """Partitions that an earlier attempt may have reached, or may still reach."""
        if not len(self._doubts):
            return frozenset()
        places = self._doubts.partitions(_now_s(), topic.name, [one.event_id for one in events])
        return frozenset(number for number in places if number < topic.partitions)

    async def find(
        self,
        topic: Topic,
        events: Sequence[Event],
        *,
        besides: Collection[int],
        everywhere: bool,
        timeout_s: float,
    ) -> Found:
        """Those that are there; not in the partitions `besides`, which are looked into anyway.
        `everywhere`: also in those that others own."""
        own = self._partitions.of_topic(topic)
        since_s = _now_s() - self._ttl_s
        perhaps = {*self._written.of(_now_s(), topic.name, [one.event_id for one in events])}
        perhaps_here = [one for one in events if one.event_id in perhaps] if perhaps else []
        looks = {}
        for number, partition in own.items():
            is_from_before = bool(partition.found_head) and partition.opened_s > since_s
            wanted = events if is_from_before else perhaps_here
            if wanted and number not in besides:
                ref = PartitionRef(topic.name, number)
                looks[number] = self._appends.find(ref, wanted, timeout_s=timeout_s)
        answers = await asyncio.gather(*looks.values()) if looks else []
        found = {number: seqs or {} for number, seqs in zip(looks, answers, strict=True)}
        if everywhere or self._homes.since_s(topic) > since_s:
            others = [ref for ref in topic.refs() if ref.partition not in own]
            found |= await self._former_keys.there(others, events, timeout_s=timeout_s)
        return found | await self._former_keys.retired(topic, events, timeout_s=timeout_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
