"""Gateways as lanes see them, modelled naively: positions, fences, queues, and what goes wrong.

A record at or below a subscriber's position counts as a repeat, unless it is marked `redelivery`;
what is marked moves no position. A subscriber that a lane has read past without knowing of it reads
the log. A gateway puts a suffix of a batch off, never something in its middle, but for redeliveries
without room. It refuses a batch as a whole for as long as the cause is there, or one event of it,
behind which it takes nothing of that partition. A notice of a gap that isn't known
yet tells of the whole gap, also where letters of its middle came first. Of what comes page by page
each subscriber has room or not by itself: what it hasn't is noted seq by seq, and it gets nothing
newer, unless the page should have had that and doesn't.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from headgate.decide.feed.redelivered import Sending, sending_of
from headgate.errors import InvalidRequest, NotFound, PeerUnreachable
from headgate.model.delivery import Delivery, DeliveryAnswer, DeliveryBatch, GoOn, Verdict
from headgate.model.event import Fence, PartitionRef
from tests.lane.ledger import Ledger, Place

Mood = Literal["well", "away", "hanging", "losing", "slow", "late", "soft", "hard"]
"""`away` refuses connections, `hanging` doesn't answer, `losing` takes a batch and loses the
answer, `slow` takes its time, `late` puts a part of each batch off; `soft` and `hard` say that
their queues are as full."""
MOODS: tuple[Mood, ...] = (
    *("away", "hanging", "losing", "slow", "late", "late"),
    *("soft", "soft", "hard"),
)
FILLS: dict[Mood, float] = {"soft": 0.75, "hard": 0.95}
LOG = Callable[[int, int], bool]
"""Does the log still have the record of a partition and seq?"""


@dataclass(slots=True)
class Subscriber:
    positions: dict[int, int] = field(default_factory=dict)
    """Where it is, once every lane knows of it."""
    held: bool = True
    """Not every lane knows of it yet, so it reads the log when they do."""
    when_slow: Literal["park", "drop_oldest"] = "park"


@dataclass(slots=True)
class ModelledGateway:
    """One incarnation of a gateway; another one has another address, and no memory."""

    id: str
    url: str
    ledger: Ledger
    in_log: LOG
    random: random.Random
    subscribers: dict[str, Subscriber] = field(default_factory=dict)
    fences: dict[PartitionRef, Fence] = field(default_factory=dict)
    mood: Mood = "well"
    poison: dict[Place, Literal["event", "batch"]] = field(default_factory=dict)
    """What it refuses: the event alone, or every batch with it."""
    slow_readers: set[str] = field(default_factory=set)
    """Those who have no room for redeliveries."""
    redelivered: set[tuple[Sending, tuple[str, ...]]] = field(default_factory=set)
    had: set[tuple[Sending, str]] = field(default_factory=set)
    missing: dict[tuple[int, str], set[int]] = field(default_factory=dict)
    """Per partition and subscriber what was put off, of what came page by page."""

    async def deliver(self, batch: DeliveryBatch) -> DeliveryAnswer:
        mood = self.mood
        places = [(one.partition, one.seq) for one in batch.deliveries]
        if mood == "away":
            self.ledger.tag("unreachable", *places)
            raise PeerUnreachable("nobody listens")
        if mood == "hanging":
            self.ledger.tag("unanswered", *places)
            await asyncio.Event().wait()
        if mood == "slow":
            await asyncio.sleep(self.random.uniform(0.1, 0.8))
        if batch.gateway_id != self.id:
            raise NotFound("this is another gateway")
        if any(self.poison.get(place) == "batch" for place in places):
            self.ledger.tag("refused", *(place for place in places if place in self.poison))
            raise InvalidRequest("one of these can't be read")
        verdicts = self.verdicts(batch)
        if mood == "losing" and self.random.random() < 0.7:
            self.ledger.tag("answer lost", *places)
            await asyncio.Event().wait()
        go_on = () if mood == "late" else self.go_on(batch, verdicts)
        return DeliveryAnswer(tuple(verdicts), fill=FILLS.get(mood, 0.0), go_on=go_on)

    def verdicts(self, batch: DeliveryBatch) -> list[Verdict]:
        size = len(batch.deliveries)
        taken = self.random.randint(0, size) if self.mood == "late" else size
        found: list[Verdict] = []
        refused: set[PartitionRef] = set()
        """Of these nothing newer is taken."""
        self.turn_pages(batch)
        for at, one in enumerate(batch.deliveries):
            ref = PartitionRef(one.topic, one.partition)
            place = one.partition, one.seq
            if self.is_stale(batch, one):
                self.ledger.tag("stale fence", place)
                found.append("stale_fence")
                continue
            self.fences[ref] = Fence(one.epoch, batch.window, batch.attempt)
            if one.lost_from == 0 and one.event_id != f"{ref}-{one.seq}":
                self.ledger.violations.append(f"what came as {place} is another record: {one}")
            if len(one.subscriptions) > 1:
                self.ledger.tag("several", place)
            if at >= taken or ref in refused:
                self.ledger.tag("retry", place)
                found.append("retry")
            elif place in self.poison:
                self.ledger.tag("rejected", place)
                refused.add(ref)
                found.append("rejected")
            elif one.from_seq:
                found.append(self.paged(one))
            elif one.lost_from:
                found.append(self.lost(one, self.subscribers))
            elif one.redelivery:
                found.append(self.again(one, self.addressed(one)))
            else:
                found.append(self.take(one, self.addressed(one)))
        return found

    def is_stale(self, batch: DeliveryBatch, one: Delivery) -> bool:
        fence = Fence(one.epoch, batch.window, batch.attempt)
        return fence < self.fences.get(PartitionRef(one.topic, one.partition), fence)

    def addressed(self, one: Delivery) -> dict[str, int]:
        """For whom it is, with how far the lane had read without them."""
        sinces = one.since or (0,) * len(one.subscriptions)
        found = dict(zip(one.subscriptions, sinces, strict=True))
        if one.broadcast:
            self.ledger.tag("broadcast", (one.partition, one.seq))
            for name in self.subscribers:
                if self.ledger.wants(name, one.partition, one.seq):
                    found.setdefault(name, one.seq - 1)
        return found

    def take(self, one: Delivery, addressed: dict[str, int]) -> Verdict:
        verdict: Verdict = "no_subscriber"
        for name, since in addressed.items():
            subscriber = self.subscribers.get(name)
            if subscriber is None:
                continue
            if subscriber.held:
                verdict = "accepted"
                continue
            position = subscriber.positions[one.partition]
            if one.seq <= position:
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
                continue
            verdict = "accepted"
            if since > position:
                self.ledger.tag("late", (one.partition, one.seq))
                self.read_log(name, subscriber, one.partition, one.seq)
                continue
            subscriber.positions[one.partition] = one.seq
            if subscriber.when_slow == "drop_oldest" and self.random.random() < 0.1:
                self.ledger.told.add((one.partition, one.seq, name))
                self.ledger.tag("dropped", (one.partition, one.seq))
            else:
                self.ledger.delivered.add((one.partition, one.seq, name))
        return verdict

    def again(self, one: Delivery, addressed: dict[str, int], *, paged: bool = False) -> Verdict:
        place = one.partition, one.seq
        self.ledger.tag("marked", place)
        here = [name for name in addressed if name in self.subscribers]
        if not here:
            return "no_subscriber"
        known = (sending_of(one), tuple(addressed) if paged else one.subscriptions)
        if known in self.redelivered:
            return "duplicate"
        if self.slow_readers.intersection(here) and not paged:
            self.ledger.tag("no room", place)
            return "retry"
        self.redelivered.add(known)
        self.ledger.taken_again.add(place)
        self.ledger.delivered |= {(*place, name) for name in here}
        return "accepted"

    def turn_pages(self, batch: DeliveryBatch) -> None:
        """What a page should have, and hasn't, comes no more; a page of a lane that was overtaken
        says nothing."""
        said = [one for one in batch.deliveries if not self.is_stale(batch, one)]
        last_seqs = {one.partition: one.seq for one in said}
        begins = {one.partition: one.from_seq for one in said if one.from_seq}
        for (partition, _), seqs in self.missing.items():
            if partition in begins:
                seqs -= set(range(begins[partition], last_seqs[partition] + 1))

    def paged(self, one: Delivery) -> Verdict:
        """For those who need not wait for something older, and for nobody else yet."""
        place, sending = (one.partition, one.seq), sending_of(one)
        addressed = self.addressed(one)
        names = self.subscribers if one.lost_from else addressed
        here = [name for name in names if name in self.subscribers]
        going = {name: addressed.get(name, 0) for name in here if not self.waits(one, name)}
        verdict: Verdict = "accepted"
        if one.lost_from:
            verdict = self.lost(one, going)
        elif not one.redelivery:
            verdict = self.take(one, going)
        elif going:
            self.ledger.tag("marked", place)
            verdict = self.again(one, going, paged=True)
        self.had |= {(sending, name) for name in going}
        for name in here:
            if name not in going:
                self.ledger.tag("paged past", place)
                self.missing.setdefault((one.partition, name), set()).add(one.seq)
        if len(going) < len(here):
            return "retry"
        return verdict if here else "no_subscriber"

    def waits(self, one: Delivery, name: str) -> bool:
        if any(seq < one.seq for seq in self.missing.get((one.partition, name), ())):
            return True
        has_had = (sending_of(one), name) in self.had
        return one.redelivery and name in self.slow_readers and not has_had

    def go_on(self, batch: DeliveryBatch, verdicts: list[Verdict]) -> tuple[GoOn, ...]:
        pages = {(one.topic, one.partition) for one in batch.deliveries if one.from_seq}
        for one, verdict in zip(batch.deliveries, verdicts, strict=True):
            if verdict == "rejected":
                pages.discard((one.topic, one.partition))
        return tuple([GoOn(*page, self.wanted_seq(page[1])) for page in sorted(pages)])

    def wanted_seq(self, partition: int) -> int:
        seqs = [
            min(some)
            for (number, name), some in self.missing.items()
            if number == partition and some and name in self.subscribers.keys() - self.slow_readers
        ]
        return min(seqs, default=0)

    def lost(self, one: Delivery, names: Iterable[str]) -> Verdict:
        verdict: Verdict = "no_subscriber"
        for name in names:
            subscriber = self.subscribers[name]
            if subscriber.held:
                verdict = "accepted"
                continue
            if one.seq <= subscriber.positions[one.partition]:
                verdict = "duplicate" if verdict == "no_subscriber" else verdict
                continue
            verdict = "accepted"
            for seq in range(one.lost_from, one.seq + 1):
                self.ledger.told.add((one.partition, seq, name))
                self.ledger.tag("gap", (one.partition, seq))
            subscriber.positions[one.partition] = one.seq
        return verdict

    def read_log(self, name: str, subscriber: Subscriber, partition: int, to_seq: int) -> None:
        """What a subscriber does that lanes didn't know of: read, and say what is missing."""
        for seq in range(subscriber.positions[partition] + 1, to_seq + 1):
            if not self.in_log(partition, seq):
                self.ledger.told.add((partition, seq, name))
            elif self.ledger.wants(name, partition, seq):
                self.ledger.delivered.add((partition, seq, name))
        subscriber.positions[partition] = max(to_seq, subscriber.positions[partition])

    def release(self, name: str, heads: dict[int, int]) -> None:
        """Every lane knows of it: what came before `heads` it reads in the log."""
        self.subscribers[name].held = False
        self.subscribers[name].positions = dict(heads)
        standing = self.ledger.standing[name]
        standing.held, standing.starts = False, dict(heads)
