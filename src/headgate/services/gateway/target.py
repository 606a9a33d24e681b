"""One target of a consumer group, from the moment a consumer here owns it to the moment it doesn't.

A target is an ordinary subscription to its shard, which begins at the positions that the group has
committed. Invariants: positions are claimed under the target's epoch before they are read, and
saved under it, so a former owner moves nothing; never more than `prefetch` items are out without
an acknowledgement, redeliveries included; once `stopped`, nothing more is handed out, nor while
neither the coordinator nor the store has said for a while that the target is ours.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping

from headgate import errors
from headgate.decide.in_hand import InHand
from headgate.decide.subscriber import Item, Resync
from headgate.model.event import Fence
from headgate.model.groups import Group
from headgate.model.position import Tally
from headgate.model.topology import Owner, Topic
from headgate.ports.checkpoints import CheckpointStore
from headgate.services.gateway.subscriber import Subscriber
from headgate.services.gateway.subscriptions import Question, Subscriptions
from headgate.services.gateway.wire import for_target, resync_for_target, target_part


class Target:
    def __init__(
        self,
        group: Group,
        owner: Owner,
        *,
        subscriptions: Subscriptions,
        checkpoints: CheckpointStore,
        prefetch: int,
        unsure_s: float,
    ) -> None:
        self.owner = owner
        self.number = owner.ref.partition
        self.stopped = False
        """Whether it hands out nothing more."""
        self.finished = asyncio.Event()
        """Whether the consumer has nothing of it in hand any more, or says so."""
        self.renewed_s = -math.inf
        """When the consumer last said that it works on what it has of it."""
        self.told_s = -math.inf
        """When the coordinator was last told so."""
        self.starts: dict[int, int] = {}
        self._group = group
        self._fence = Fence(owner.epoch)
        self._subscriptions = subscriptions
        self._checkpoints = checkpoints
        self._prefetch = prefetch
        self._unsure_s = unsure_s
        self._confirmed_s = -math.inf
        self._part = target_part(self.number, owner.epoch)
        self._subscriber: Subscriber | None = None
        self._hand = InHand({}, {})

    # --- life ------------------------------------------------------------------------------------

    async def open(self, *, from_the_end: bool = False) -> None:
        """Claim the positions and subscribe after them.

        Raises Fenced when a higher epoch holds them, and InvalidRequest with the `head` of a log
        that ends before them: it has lost its history. Its owner moves it on behind them as far as
        that is known there; where it isn't, new records have seqs that the group has seen.
        `from_the_end` goes back to where such a log ends, and tells the consumer.
        """
        group = self._group
        topic = await self._subscriptions.topic(group.topic)
        saved = await self._claim(range(topic.partitions))
        starts = {p: max(seq, group.begins_after(p)) for p, seq in saved.items()}
        gone_back = await self._end_of(topic, starts) if from_the_end else {}
        starts |= gone_back
        saved |= gone_back
        subscriber = await self._subscriptions.subscribe(
            Question(
                group.topic,
                group.where,
                {partition: seq + 1 for partition, seq in starts.items()},
                shard=(group.targets, self.number),
            )
        )
        self._subscriber = subscriber
        self.starts = subscriber.starts
        for partition, head in gone_back.items():
            subscriber.feed.resync(partition, 0, head + 1)
        self._hand = subscriber.unprocessed = InHand(starts, saved)

    async def _end_of(self, topic: Topic, starts: Mapping[int, int]) -> dict[int, int]:
        """Put the positions that lie beyond the end of their log there."""
        extents = await self._subscriptions.extents(topic)
        beyond = {p: extents[p].head for p, seq in starts.items() if seq > extents[p].head}
        for partition, head in beyond.items():
            ref = self._group.position_ref(self.number, partition)
            await self._checkpoints.reset(ref, self._fence, head)
        return beyond

    async def _claim(self, partitions: range) -> dict[int, int]:
        refs = {number: self._group.position_ref(self.number, number) for number in partitions}
        claims = (self._checkpoints.claim(ref, self._fence) for ref in refs.values())
        found = await asyncio.gather(*claims)
        self.confirm()
        return {n: position.settled for n, position in zip(refs, found, strict=True)}

    def begin(self, ready: Callable[[], None]) -> None:
        assert self._subscriber is not None, "it is open"
        self._subscriptions.begin(self._subscriber, ready)

    def stop(self) -> None:
        """Hand out nothing more; what is in hand may still be acknowledged."""
        self.stopped = True
        if not self.in_hand:
            self.finished.set()

    async def close(self) -> None:
        """Doing it twice is fine."""
        self.stopped = True
        self.finished.set()
        if self._subscriber is not None:
            await self._subscriptions.unsubscribe(self._subscriber)

    # --- out -------------------------------------------------------------------------------------

    @property
    def in_hand(self) -> int:
        return len(self._hand)

    @property
    def failure(self) -> errors.HeadgateError | None:
        """Why its subscription has ended, if it has."""
        return None if self._subscriber is None else self._subscriber.closing

    def take(self) -> bytes | None:
        """The next message for the consumer, if there is one and it may have it."""
        subscriber = self._subscriber
        if self.stopped or subscriber is None or self.in_hand >= self._prefetch:
            return None
        if not self.is_sure:
            return None
        item = subscriber.take()
        if item is None:
            return None
        if isinstance(item, Resync):
            self._hand.hand_out(item.partition, item.from_seq - 1)
            return resync_for_target(subscriber.topic, item, self._part)
        if isinstance(item, Item):
            self._hand.hand_out(item.partition, item.seq)
        else:
            self._hand.hand_out_again(item.partition, item.seq, item.mark)
        return for_target(item.value, self._part)

    # --- how far it is ---------------------------------------------------------------------------

    def acknowledge(
        self, positions: Mapping[int, int], redelivered: Mapping[int, Collection[int]]
    ) -> None:
        """Raises InvalidRequest for positions that were never handed out."""
        self._hand.acknowledge(positions)
        self._hand.acknowledge_again(redelivered)
        if self.stopped and not self.in_hand:
            self.finished.set()

    def unsaved(self) -> dict[int, int]:
        if self._subscriber is None:
            return {}
        # What waited for a subscriber that has ended is gone from its feed, and was never sent.
        ended = self._subscriber.closing is not None
        return self._hand.unsaved({} if ended else self._subscriber.feed.sent())

    async def save(self) -> None:
        """Make what is processed durable. Raises Fenced, or StorageFailed for some of it."""
        unsaved = self.unsaved()
        outcomes = await asyncio.gather(
            *(self._save(partition, seq) for partition, seq in unsaved.items()),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        if unsaved:
            self.confirm()

    async def _save(self, partition: int, seq: int) -> None:
        ref = self._group.position_ref(self.number, partition)
        await self._checkpoints.save(ref, self._fence, seq, Tally())
        self._hand.saved(partition, seq)

    async def check(self) -> None:
        """Raises Fenced when somebody else has the target by now."""
        await self._claim(range(1))

    @property
    def is_sure(self) -> bool:
        """Whether the coordinator or the store has said lately that it is ours. Without that
        somebody else may be given it, and nothing more is handed out meanwhile."""
        return asyncio.get_running_loop().time() - self._confirmed_s < self._unsure_s

    def confirm(self) -> None:
        self._confirmed_s = asyncio.get_running_loop().time()
