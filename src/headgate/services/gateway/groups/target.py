"""One target of a consumer group, from the moment a consumer here owns it to the moment it doesn't.

A target is an ordinary subscription to its shard, which begins at the positions that the group has
committed. Invariants: positions are claimed under the target's epoch before they are read, and
saved under it, so a former owner moves nothing, nor does anybody else who was given that epoch
(`claimant`; another one for each target that is made); never more than `prefetch` items are out
without an acknowledgement, redeliveries included; once `stopped`, nothing more is handed out, nor
while neither the coordinator nor the store has said for a while that the target is ours.

Where its consumer has a limit (`max_deliveries`), what it failed with so often is given up instead
of being handed out, and what has one delivery left is handed out alone: `failing`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from headgate import errors
from headgate.decide.feed.queue import Item, Resync
from headgate.decide.groups.tries import Place, RecordsTried, TriedInVain
from headgate.decide.groups.unacknowledged import InHand
from headgate.decide.log.lineage import came_later
from headgate.model.access import Principal
from headgate.model.event import Fence, PartitionRef
from headgate.model.event_message import read_part
from headgate.model.groups import Group
from headgate.model.letters import Letter
from headgate.model.position import Position, Tally, Tries
from headgate.model.topology import Owner, Topic
from headgate.ports.checkpoints import CheckpointStore
from headgate.services.gateway.groups.failures import Again, Failing, Handed, Thing
from headgate.services.gateway.groups.letters import GroupLetters
from headgate.services.gateway.subscriptions.live import LiveSubscription
from headgate.services.gateway.subscriptions.subscriptions import SubscribeRequest, Subscriptions
from headgate.services.gateway.wire import (
    for_target,
    given_up_message,
    resync_for_target,
    target_part,
)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Everything up to `positions`, and by themselves the redeliveries and the records beyond those
    that are `processed`; by partition."""

    positions: Mapping[int, int]
    redelivered: Mapping[int, Collection[int]]
    processed: Mapping[int, Collection[int]]


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
        claimant: str,
        principal: Principal | None = None,
        letters: GroupLetters | None = None,
        tried_again: TriedInVain | None = None,
    ) -> None:
        self.owner = owner
        self.number = owner.ref.partition
        self.stopped = False
        """Whether it hands out nothing more."""
        self.finished = asyncio.Event()
        """Whether the consumer says that it is done with the target."""
        self.renewed_s = -math.inf
        """When the consumer last said that it works on items of the target."""
        self.told_s = -math.inf
        """When the coordinator was last told so."""
        self.waits_to_be_sure = False
        """Whether items were asked for before coordinator or store had said that the target is
        ours."""
        self.starts: dict[int, int] = {}
        self._group = group
        self._principal = principal
        self._fence = Fence(owner.epoch, claimant=claimant)
        self._letters_fence = Fence(owner.epoch)
        """They are claimed after the positions, so nobody else has that epoch."""
        self._subscriptions = subscriptions
        self._checkpoints = checkpoints
        self._prefetch = prefetch
        self._unsure_s = unsure_s
        self._confirmed_s = -math.inf
        self._usual = 0, b""
        """What ends most messages: those of this version."""
        self._subscriber: LiveSubscription | None = None
        self._hand = InHand({}, {})
        self._claimed: set[int] = set()
        self._letters = letters
        self._tried_again = tried_again or TriedInVain()
        self.max_deliveries = 0
        """How often its consumer may fail with an item; 0: without limit."""
        self.at_work: Mapping[Place, int] = {}
        """The items of the target that the consumer worked on when it connected, each with the
        number of its delivery: they don't count as lost with the former connection."""
        self.on_given_up: Callable[[Thing], None] = lambda _: None
        """Told what needs a letter: see `bury`."""
        self._failing = self._nothing_failed({})
        self._saving = asyncio.Lock()
        """One save at a time: of two that meet at the store the older one may come last."""

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
        partitions = len(topic.all_refs())
        found = await self._claim(range(partitions))
        if self._letters is not None and (self.max_deliveries or _any_tried(found.values())):
            await self._letters.claim(group, self.number, self._letters_fence, partitions)
        saved = {number: position.settled for number, position in found.items()}
        since = came_later(topic)
        starts = {
            number: self._start(number, position, since) for number, position in found.items()
        }
        # A position that was put back may be lower than the consumer knows, which takes records for
        # those it had, also if others have acknowledged some since.
        gone_back = {n: one.settled for n, one in found.items() if one.is_back}
        # So does one that has processed some ahead of where it stands.
        told = {n: starts[n] for n, one in found.items() if one.ahead_to > starts[n]}
        lost = {n for n, one in found.items() if one.redeliver_to > one.settled}
        skipped = {n: one.skip_to for n, one in found.items() if one.skip_to > starts[n]}
        put_back = await self._end_of(topic, starts) if from_the_end else {}
        gone_back |= put_back
        lost |= put_back.keys()
        starts |= gone_back
        saved |= gone_back
        subscriber = await self._subscriptions.subscribe(
            SubscribeRequest(
                group.topic,
                group.where,
                {partition: seq + 1 for partition, seq in starts.items()},
                shard=(group.targets, self.number),
                principal=self._principal,
                group=group.name,
            )
        )
        self._subscriber = subscriber
        for partition, seq in skipped.items():
            # Its position stays until the consumer has taken in that nothing up to there comes.
            subscriber.feed.goes_back(partition, starts[partition], seq + 1, "gap")
        self.starts = subscriber.starts
        for partition, seq in (told | gone_back).items():
            if partition in lost:
                subscriber.feed.goes_back(partition, 0, seq + 1, "lost_history")
            else:
                subscriber.feed.goes_back(partition, seq, seq + 1, "reset")
        self._hand = subscriber.unprocessed = InHand(starts, saved)
        tried = {n: one.tried for n, one in found.items() if n not in put_back}
        self._failing = self._nothing_failed(tried)
        for place, deliveries in self.at_work.items():
            self._failing.tried.spare(place, deliveries)

    def _nothing_failed(self, tried: Mapping[int, Tries]) -> Failing:
        """Since it was opened."""
        return Failing(
            self.max_deliveries,
            hand=self._hand,
            tried=RecordsTried(tried),
            again=self._tried_again,
            on_given_up=self.on_given_up,
        )

    def _start(self, partition: int, position: Position, since: Mapping[int, int]) -> int:
        """Where the group begins means nothing to one that has a position, or was put back to 0,
        nor where the topic got the partition later: `since` says with which record."""
        if position.settled or position.is_back:
            return position.settled
        if partition >= len(self._group.starts):
            return since.get(partition, 0)
        return self._group.begins_after(partition)

    async def _end_of(self, topic: Topic, starts: Mapping[int, int]) -> dict[int, int]:
        """Put the positions that lie beyond the end of their log there."""
        extents = await self._subscriptions.extents(topic)
        beyond = {p: extents[p].head for p, seq in starts.items() if seq > extents[p].head}
        for partition, head in beyond.items():
            ref = self._group.position_ref(self.number, partition)
            # Where it had been is kept with a position that is put back.
            await self._checkpoints.save(ref, self._fence, starts[partition], Tally())
            await self._checkpoints.reset(ref, self._fence, head)
        return beyond

    async def _claim(self, partitions: Collection[int]) -> dict[int, Position]:
        refs = {number: self._group.position_ref(self.number, number) for number in partitions}
        claims = (self._checkpoints.claim(ref, self._fence) for ref in refs.values())
        asked_s = asyncio.get_running_loop().time()
        # All of them, also where one fails: the next try would meet those that hang.
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        found: dict[int, Position] = {}
        for number, outcome in zip(refs, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found[number] = outcome
        self._claimed.update(partitions)
        self.confirm(asked_s)
        return found

    def begin(self, ready: Callable[[], None]) -> None:
        assert self._subscriber is not None, "it is open"
        self._subscriptions.begin(self._subscriber, ready)

    def stop(self) -> None:
        """Hand out nothing more; what is in hand may still be acknowledged."""
        self.stopped = True

    async def close(self) -> None:
        """Doing it twice is fine."""
        self.stopped = True
        self.finished.set()
        if self._subscriber is not None:
            await self._subscriptions.unsubscribe(self._subscriber)

    # --- out -------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether its positions were read, and something of it may have been handed out."""
        return self._subscriber is not None

    @property
    def subscription_id(self) -> str:
        """Empty before it is open."""
        return "" if self._subscriber is None else self._subscriber.id

    def has_in_hand(self, partition: int, seq: int) -> bool:
        """Whether its consumer was handed this record and hasn't acknowledged it."""
        return self._hand.holds(partition, seq)

    def processed(self, partition: int) -> int:
        """Up to where everything of the partition that concerns it is processed."""
        if self._subscriber is None:
            return 0
        return self._hand.positions(self._subscriber.feed.sent()).get(partition, 0)

    @property
    def in_hand(self) -> int:
        return len(self._hand)

    @property
    def out(self) -> int:
        """How much of what is in hand its consumer has."""
        return len(self._hand) - self._failing.kept_back

    @property
    def out_bytes(self) -> int:
        """What the documents take that are in hand."""
        return self._hand.size_bytes

    @property
    def worked_on(self) -> int:
        """How much of that it may work on: not what it said to want later, or to hold back."""
        return self.out - self._failing.idle

    @property
    def wants_alone(self) -> bool:
        """Whether its consumer is to be handed nothing of any other target for now."""
        return not self.stopped and self._failing.wants_alone

    @property
    def failure(self) -> errors.HeadgateError | None:
        """Why its subscription has ended, if it has."""
        return None if self._subscriber is None else self._subscriber.closing

    def take(self, *, alone: bool) -> bytes | None:
        """The next message for the consumer, if there is one and it may have it; `alone`: the
        consumer has nothing in hand, of any target."""
        subscriber = self._subscriber
        if self.stopped or subscriber is None:
            return None
        if not self.is_sure:
            self.waits_to_be_sure = True
            return None
        if self._failing.is_giving_up:
            return None
        if not self._failing.wants_alone:
            if self.in_hand >= self._prefetch or (item := subscriber.take()) is None:
                return None
            if isinstance(item, Resync):
                self._hand.hand_out(item.partition, item.from_seq - 1)
                part = self._part(subscriber.version_of(item.partition, item.reaches))
                return resync_for_target(subscriber.topic, item, part)
            size_bytes = len(item.value)
            if isinstance(item, Item):
                self._hand.hand_out(item.partition, item.seq, size_bytes)
            else:
                self._hand.hand_out_again(item.partition, item.seq, item.mark, size_bytes)
            if self._failing.handed(item) is not None:
                return self._message(item, subscriber)
        last = self._failing.take_last() if alone else None
        return None if last is None else self._message(last, subscriber)

    def _message(self, item: Handed, subscriber: LiveSubscription) -> bytes:
        version = subscriber.version_of(item.partition, item.seq)
        return for_target(item.value, self._part(version, self._failing.deliveries(item)))

    def _part(self, version: int, deliveries: int = 1) -> bytes:
        if deliveries > 1:
            return target_part(
                self.number, self.owner.epoch, version=version, deliveries=deliveries
            )
        if self._usual[0] != version:
            self._usual = version, target_part(self.number, self.owner.epoch, version=version)
        return self._usual[1]

    # --- what its consumer fails with ------------------------------------------------------------

    def nacked(self, place: Place, deliveries: int, *, redelivery: bool) -> None:
        """The consumer failed with it, for the time number `deliveries`."""
        self._failing.nacked(place, deliveries, redelivery=redelivery)

    def holds_back(self, items: Iterable[Again]) -> None:
        """The consumer's program hasn't got these, and has all else that is out."""
        self._failing.holds_back(items)

    def lost(self, *, certain: bool) -> None:
        """The consumer is gone, or has had its time; `certain`: it had one thing in hand in all."""
        self._failing.lost(certain=certain)

    async def bury(self, thing: Thing) -> None:
        """Make a dead letter of what is given up. Raises Fenced, and StorageFailed."""
        assert self._letters is not None, "nothing is given up without letters"
        assert self._subscriber is not None, "it is open"
        fence = self._letters_fence
        await self._failing.bury(thing, self._letters, self._subscriber, self._group, fence)

    def buried(self, thing: Thing) -> bytes | None:
        """The item's letter is written; returns what the consumer has to be told, if it has the
        item in hand."""
        if not self._failing.buried(thing):
            return None
        epoch, again = self.owner.epoch, thing.mark is not None
        return given_up_message(self.number, epoch, *thing.place, redelivery=again)

    async def may_see(self, letter: Letter) -> bool:
        """Whether the consumer may be handed the letter, which isn't matched anew. A record that
        has left the filter is told by its key, if it was shown before, which the log says. Raises
        what reading raises."""
        subscriber, event = self._subscriber, letter.delivery
        if subscriber is None or subscriber.may_see(event):
            return True
        if not event.left:
            return False
        catch_up = self._subscriptions.catch_up
        found = await catch_up.message_of(subscriber, event.partition, event.seq)
        return found is not None and read_part(found).event_id == event.event_id

    def send_again(self, letter: Letter) -> None:
        """An operator wants the group to get this letter."""
        subscriber = self._subscriber
        if not self.stopped and subscriber is not None and subscriber.closing is None:
            self._failing.send_again(letter, subscriber)

    async def bury_again(self, letter: Letter, error: str) -> None:
        """A letter that nobody can be handed is dead again, and says why."""
        assert self._letters is not None, "it was found there"
        await self._letters.bury(letter, self._letters_fence, attempts=0, error=error)

    # --- how far it is ---------------------------------------------------------------------------

    def acknowledge(self, acks: Acknowledged) -> None:
        """Raises InvalidRequest for positions that were never handed out."""
        self._hand.acknowledge(acks.positions)
        for partition, seqs in acks.processed.items():
            for seq in seqs:
                self._hand.settle(partition, seq)
        self._failing.acknowledged(self._hand.acknowledge_again(acks.redelivered))

    @property
    def is_saved(self) -> bool:
        """Whether the stores know all there is to know."""
        failing = self._failing
        return not (self.unsaved() or failing.processed or failing.tried.unsaved())

    def unsaved(self) -> dict[int, int]:
        if self._subscriber is None:
            return {}
        # What waited for a subscriber that has ended is gone from its feed, and was never sent.
        feed, ended = self._subscriber.feed, self._subscriber.closing is not None
        return self._hand.unsaved({} if ended else feed.sent(), feed.lineage)

    async def save(self) -> None:
        """Make what is processed durable. Raises Fenced, or StorageFailed for some of it."""
        async with self._saving:
            await self._save_all()

    async def _save_all(self) -> None:
        """Of a partitioning version after the other, as far as what there was of each goes."""
        for _ in range(self._versions()):
            if not (unsaved := self.unsaved()):
                break
            asked_s = asyncio.get_running_loop().time()
            outcomes = await asyncio.gather(
                *(self._save(partition, seq) for partition, seq in unsaved.items()),
                return_exceptions=True,
            )
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome
            self.confirm(asked_s)
        await self._save_failures()

    def _versions(self) -> int:
        lineage = None if self._subscriber is None else self._subscriber.feed.lineage
        return 1 if lineage is None else 1 + len(lineage.topic.former)

    async def _save_failures(self) -> None:
        failing = self._failing
        for partition, tries in failing.tried.unsaved().items():
            ref = await self._claimed_ref(partition)
            await self._checkpoints.note_tries(ref, self._fence, tries)
            failing.tried.saved(partition, tries)
        if failing.processed and self._letters is not None:
            processed = tuple(failing.processed)
            await self._letters.remove(processed, self._letters_fence)
            failing.removed(processed)

    async def _save(self, partition: int, seq: int) -> None:
        ref = await self._claimed_ref(partition)
        await self._checkpoints.save(ref, self._fence, seq, Tally())
        self._hand.saved(partition, seq)

    async def _claimed_ref(self, partition: int) -> PartitionRef:
        """Where its position is kept, which may have come to the topic since this was opened."""
        if partition not in self._claimed:
            await self._claim([partition])
        return self._group.position_ref(self.number, partition)

    async def check(self) -> None:
        """Raises Fenced when somebody else has the target by now."""
        await self._take_again(range(1))

    async def take_again(self) -> None:
        """The store has lost what it had, or an older state is back: what it lacks is saved anew.
        Raises Fenced when somebody else has the target by now."""
        await self._take_again(sorted(self._claimed))

    async def _take_again(self, partitions: Collection[int]) -> None:
        for number, position in (await self._claim(partitions)).items():
            self._hand.store_has(number, position.settled)

    @property
    def is_sure(self) -> bool:
        """Whether the coordinator or the store has said lately that it is ours. Without that
        somebody else may be given it, and nothing more is handed out meanwhile."""
        return asyncio.get_running_loop().time() - self._confirmed_s < self._unsure_s

    def confirm(self, at_s: float) -> None:
        """It was ours then. An answer that was long under way says nothing of the time since it was
        asked for."""
        self._confirmed_s = max(at_s, self._confirmed_s)


def _any_tried(positions: Iterable[Position]) -> bool:
    return any(position.tried for position in positions)
