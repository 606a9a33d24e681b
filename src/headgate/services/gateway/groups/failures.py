"""What of a target its consumers fail with: counted, handed out alone for the last time, given up
as a dead letter of the group, and sent again when an operator wants it.

Invariants: whatever is given up stays in hand until its letter is durable, so that no position
passes it, and nothing behind it is handed out before that. A letter that is sent again stays until
a consumer has acknowledged it, or it is given up anew. Without a limit nothing is counted and
nothing is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass

from headgate.decide.feed.queue import Item
from headgate.decide.feed.redeliveries import Redelivery
from headgate.decide.groups.tries import Chance, Place, RecordsTried, TriedInVain
from headgate.decide.groups.unacknowledged import InHand
from headgate.model.event import Fence
from headgate.model.groups import Group
from headgate.model.letters import Letter
from headgate.services.gateway.groups.letters import (
    GroupLetters,
    as_message,
    mark_of,
)
from headgate.services.gateway.subscriptions.live import LiveSubscription

OVER_MAX = 1_000
"""Letters that are remembered as done: more than are looked at while some are removed."""

Handed = Item[bytes] | Redelivery[bytes]
Again = tuple[int, int, bool]
"""Partition and seq of something in hand, and whether it is a redelivery."""


@dataclass(frozen=True, slots=True)
class Thing:
    """Something in hand: a record or, with a `mark`, a redelivery of it."""

    partition: int
    seq: int
    mark: Hashable = None

    @property
    def place(self) -> Place:
        return self.partition, self.seq

    @property
    def key(self) -> Hashable:
        return self.place if self.mark is None else self.mark


def thing_of(item: Handed) -> Thing:
    return Thing(item.partition, item.seq, item.mark if isinstance(item, Redelivery) else None)


class Failing:
    """`limit` deliveries may fail (0: any number). `again` counts those of redeliveries, which
    outlive the target; `on_given_up` is told what needs a letter."""

    def __init__(
        self,
        limit: int,
        *,
        hand: InHand,
        tried: RecordsTried,
        again: TriedInVain,
        on_given_up: Callable[[Thing], None],
    ) -> None:
        self.limit = limit
        self.tried = tried
        self._hand = hand
        self._again = again
        self._on_given_up = on_given_up
        self._last: Handed | None = None
        """The item that has one delivery left, and waits until it can be alone."""
        self._last_out: set[Hashable] = set()
        """The items that were handed out alone."""
        self._giving_up: set[Hashable] = set()
        """The items that wait for their letters, and that no consumer has any more."""
        self._blamed: set[Hashable] = set()
        """The items in hand whose failure is counted already."""
        self._nacked: set[Hashable] = set()
        """The ones among them that the consumer said itself to have failed with."""
        self._held: set[Hashable] = set()
        """The items that the consumer holds back, as it said itself."""
        self._messages: dict[Hashable, bytes] = {}
        """Of redeliveries in hand: the log may not have them any more."""
        self._letters: dict[Hashable, Letter] = {}
        """The letters that are sent again, by their marks."""
        self._over: dict[Hashable, None] = {}
        """The marks of those that need not be sent any more, though the store may still say so."""
        self.processed: list[Letter] = []
        """The letters that are processed, and are to be removed."""

    # --- handing out -----------------------------------------------------------------------------

    @property
    def kept_back(self) -> int:
        """How much of what is in hand no consumer has."""
        return len(self._giving_up) + (self._last is not None)

    @property
    def is_giving_up(self) -> bool:
        """Whether something waits for its letter: what is behind it waits too, because the next
        owner of the target may not give it up."""
        return bool(self._giving_up)

    @property
    def idle(self) -> int:
        """How much of what the consumer has it doesn't work on, as it said itself."""
        if self._blamed:
            self._blamed &= self._in_hand()
            self._nacked &= self._blamed
        if self._held:
            self._held &= self._in_hand()
        return len(self._nacked | self._held)

    @property
    def wants_alone(self) -> bool:
        """Whether the consumer is to be handed nothing else, until what waits for that, or what it
        was handed so, is over."""
        if self._last_out:
            self._last_out &= self._in_hand()
        return self._last is not None or not self._last_out <= self._held

    def handed(self, item: Handed) -> Handed | None:
        """What becomes of an item that was just put in hand: handed out as it is, or None: it is
        given up, or waits to be alone (`take_last`)."""
        if not self.limit:
            return item
        thing = thing_of(item)
        if isinstance(item, Redelivery):
            self._messages[thing.key] = item.value
        match self._counts(thing).chance(thing.key, self.limit):
            case Chance.NONE:
                self._giving_up.add(thing.key)
                self._hand.keep_back(thing.key)
                self._on_given_up(thing)
                return None
            case Chance.LAST:
                self._last = item
                self._hand.keep_back(thing.key)
                return None
            case Chance.SOME:
                return item

    def take_last(self) -> Handed | None:
        """What waited to be alone, if anything did: now it is."""
        item, self._last = self._last, None
        if item is not None:
            key = thing_of(item).key
            self._last_out.add(key)
            self._hand.hand_over(key)
        return item

    def deliveries(self, item: Handed) -> int:
        """Which delivery of it this is; 1 where nobody counts."""
        thing = thing_of(item)
        return self._counts(thing).count(thing.key) + 1 if self.limit else 1

    # --- failures --------------------------------------------------------------------------------

    def nacked(self, place: Place, deliveries: int, *, redelivery: bool) -> None:
        """The consumer failed with the item at `place`, for the time number `deliveries`. An item
        that is given up for that stays in its hands until it hears so; nothing happens for an item
        that it doesn't have."""
        if not self.limit:
            return
        things = [Thing(*place)] if self._hand.holds(*place) else []
        if redelivery:
            things = [Thing(*place, mark) for mark in self._hand.marks(*place)]
        for thing in things:
            if self._hand.is_kept_back(thing.key):
                continue
            counts = self._counts(thing)
            counts.failed(thing.key, deliveries)
            self._blamed.add(thing.key)
            self._nacked.add(thing.key)
            if counts.chance(thing.key, self.limit) is Chance.NONE:
                self._on_given_up(thing)

    def holds_back(self, items: Iterable[Again]) -> None:
        """The consumer keeps these items from its program; nothing happens for items that it
        doesn't have."""
        self._held = {
            thing
            for partition, seq, again in items
            for thing in (self._hand.marks(partition, seq) if again else [(partition, seq)])
            if not self._hand.is_kept_back(thing)
        } & self._in_hand()

    def lost(self, *, certain: bool) -> None:
        """The consumer is gone with what it had in hand, or took too long; `certain`: it had one
        item, and nothing else of any target."""
        if not self.limit:
            return
        kept = self._giving_up | self._blamed
        if self._last is not None:
            kept.add(thing_of(self._last).key)
        places = [place for place in self._hand.places() if place not in kept]
        marks = [mark for mark in self._hand.again() if mark not in kept]
        self.tried.lost(places, certain=certain)
        self._again.lost(marks, certain=certain)
        self._blamed.update(places, marks)

    async def bury(
        self,
        thing: Thing,
        letters: GroupLetters,
        subscriber: LiveSubscription,
        group: Group,
        fence: Fence,
    ) -> None:
        """Make a dead letter of it, durably. Raises Fenced, and StorageFailed."""
        attempts = self._counts(thing).count(thing.key)
        error = f"consumers of group {group.name} failed with it"
        letter = self._letters.get(thing.mark)
        if letter is not None:
            await letters.bury(letter, fence, attempts=attempts, error=error)
            return
        shard = subscriber.subscription.shard
        assert shard is not None, "it is a target's"
        await letters.write(
            group,
            shard[1],
            fence,
            subscriber,
            thing.place,
            message=self._messages.get(thing.mark),
            attempts=attempts,
            error=error,
        )

    def buried(self, thing: Thing) -> bool:
        """Its letter is written; whether a consumer has to hear of it, and acknowledges it then."""
        was_out = thing.key not in self._giving_up
        self._giving_up.discard(thing.key)
        if thing.mark is not None:
            self._forget(thing.mark)
            self._hand.settle_again(thing.mark)
        elif not was_out:
            self._hand.settle(*thing.place)
        return was_out

    # --- letters that an operator wants sent again -----------------------------------------------

    def send_again(self, letter: Letter, subscriber: LiveSubscription) -> None:
        """Hand the letter out beside new items, unless it is on its way or there is no room for
        it."""
        mark = mark_of(letter)
        if mark in self._over or subscriber.awaits(mark):
            return
        if not subscriber.feed.takes_redeliveries:
            return
        self._letters[mark] = letter
        subscriber.redeliver(letter.ref.partition, letter.delivery.seq, as_message(letter), mark)
        subscriber.ready()

    # --- acknowledgements ------------------------------------------------------------------------

    def acknowledged(self, marks: Collection[Hashable]) -> None:
        """Redeliveries with these marks, and some records."""
        if self.limit:
            self.tried.settled(self._hand.positions({}))
        for mark in marks:
            letter = self._forget(mark)
            if letter is not None:
                self.processed.append(letter)

    def removed(self, letters: Collection[Letter]) -> None:
        """The store doesn't have them any more."""
        self.processed = [letter for letter in self.processed if letter not in letters]

    def _forget(self, mark: Hashable) -> Letter | None:
        self._messages.pop(mark, None)
        self._again.forget(mark)
        letter = self._letters.pop(mark, None)
        if letter is not None:
            self._over[mark] = None
            if len(self._over) > OVER_MAX:
                del self._over[next(iter(self._over))]
        return letter

    def _counts(self, thing: Thing) -> TriedInVain:
        return self.tried if thing.mark is None else self._again

    def _in_hand(self) -> set[Hashable]:
        return {*self._hand.places(), *self._hand.again()}
