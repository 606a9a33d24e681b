"""Finds events that were written before their topic was repartitioned.

A producer that didn't hear the answer sends an event again, and by then its key may belong to
another partition, whose own idempotency keys don't know it. So for as long as keys are kept, what
comes for a partition is looked for in those of the former versions that share keys with it. They
take no such events any more, so what isn't there never will be.

Invariant: an event that may be there is not written: a store that can't tell is no reason to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from headgate import errors
from headgate.decide.log.lineage import is_same_version, lineage_of
from headgate.model.api import ProduceResult
from headgate.model.event import Event, PartitionRef
from headgate.model.topology import Topic
from headgate.ports.log import LogReader
from headgate.services.ingest.produce.outcomes import Outcome

Parts = Mapping[int, Sequence[int]]
"""By partition, which events of a request belong there."""


class FormerKeys:
    """`ttl_s` is how long idempotency keys are kept. This node may have started after the last
    repartition, so it counts from when it first heard of it."""

    def __init__(self, reader: LogReader, *, ttl_s: float) -> None:
        self._reader = reader
        self._ttl_s = ttl_s
        self._heard_s: dict[str, tuple[Topic, float]] = {}
        """Each topic as it was when its version was heard of, and when that was."""

    async def found(
        self, topic: Topic, events: Sequence[Event], parts: Parts, *, timeout_s: float
    ) -> dict[int, Outcome]:
        """Of the events in `parts`, by their index: the places of those that were written before,
        and the errors of those that can't be looked up."""
        lineage = lineage_of(topic)
        if lineage.is_plain or not self._is_recent(topic):
            return {}
        # By former partition, which of its seqs each event may have.
        lasts: dict[int, dict[int, int]] = {}
        for number, part in parts.items():
            for former, last in lineage.before(topic.version, number).items():
                lasts.setdefault(former, {}).update(dict.fromkeys(part, last))
        looks = [
            self._found_at(topic, PartitionRef(topic.name, former), events, wanted)
            for former, wanted in lasts.items()
        ]
        try:
            async with asyncio.timeout(timeout_s):
                answers = await asyncio.gather(*looks)
        except TimeoutError:
            answers = [dict.fromkeys((i for part in parts.values() for i in part), _unsure(topic))]
        outcomes: dict[int, Outcome] = {}
        for answer in answers:
            for index, outcome in answer.items():
                if isinstance(outcome, ProduceResult) or index not in outcomes:
                    outcomes[index] = outcome
        return outcomes

    async def retired(
        self, topic: Topic, events: Sequence[Event], *, timeout_s: float
    ) -> dict[int, dict[str, int]]:
        """The seqs of the events that are in partitions in which nothing is placed any more. One
        that can't tell says nothing."""
        refs = topic.all_refs()[topic.partitions :]
        if not topic.former or not self._is_recent(topic):
            return {}
        return await self.there(refs, events, timeout_s=timeout_s)

    async def there(
        self, refs: Sequence[PartitionRef], events: Sequence[Event], *, timeout_s: float
    ) -> dict[int, dict[str, int]]:
        """The seqs of the events that are in `refs`, here or at other nodes, as far as they are
        committed. A node that can't tell says nothing."""
        if not refs:
            return {}
        ids = [event.event_id for event in events]
        try:
            async with asyncio.timeout(timeout_s):
                found = await asyncio.gather(*(self._there(ref, ids) for ref in refs))
        except TimeoutError:
            return {}
        return {ref.partition: seqs for ref, seqs in zip(refs, found, strict=True)}

    async def _there(self, ref: PartitionRef, event_ids: Sequence[str]) -> dict[str, int]:
        try:
            return await self._reader.find(ref, event_ids)
        except errors.HeadgateError:
            return {}

    async def _found_at(
        self, topic: Topic, former: PartitionRef, events: Sequence[Event], lasts: Mapping[int, int]
    ) -> dict[int, Outcome]:
        try:
            seqs = await self._reader.find(former, [events[i].event_id for i in lasts])
        except errors.HeadgateError:
            return dict.fromkeys(lasts, _unsure(topic))
        return {
            i: ProduceResult(event.event_id, former.partition, seq)
            for i, last in lasts.items()
            if (seq := seqs.get((event := events[i]).event_id)) is not None and seq <= last
        }

    def _is_recent(self, topic: Topic) -> bool:
        now_s = asyncio.get_running_loop().time()
        known, heard_s = self._heard_s.get(topic.name, (None, 0.0))
        if known is None or not is_same_version(known, topic):
            self._heard_s[topic.name] = topic, now_s
            return True
        return now_s - heard_s < self._ttl_s


def _unsure(topic: Topic) -> errors.NotNow:
    return errors.NotNow(
        f"{topic.name} was repartitioned, and the log can't say now whether these events were "
        "written before; nothing was written, try again",
        topic=topic.name,
    )
