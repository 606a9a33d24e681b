"""What must be true of a run, known from the outside alone: what producers were told, what is in
the log, and what subscribers and consumers got.

It asks none of the product's own accounts. Filters are plain Python. Per subscriber that was told
"subscribed": every record behind that moment which its filter selects arrives once, in the order of
its partition, unless a `Resync` told it that it won't, or it is kept as a dead letter. What is
marked as a redelivery is outside the order. A dead letter excuses those that it is for. One that an
operator has sent again goes to who is subscribed by then and wants it then, and leaves
(docs/operations.md): whoever wasn't, all the while, or didn't, isn't owed it any more. Of an event
that is in the log twice one of the records is enough: live, a gateway drops the other one for every
subscription that began before the first (docs/protocol.md, Repeats). Nothing arrives that isn't in
the log, or that the filter doesn't select.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from headgate.model.client_messages import Event, Item, Left, Resync
from headgate.model.event import PartitionRef, Record
from headgate.model.groups import group_of
from headgate.model.letters import Letter, NewLetter
from headgate.model.topology import Topic

Outcome = Literal["unknown", "acknowledged", "failed"]
Place = tuple[str, int, int]
Kept = tuple[str, str, int, int]
"""A dead letter: for which group (empty: for subscribers), and the place of its record."""
EVERYBODY: Final = ""
"""Among those that a letter is for: a copy for whom it may concern."""
Wanted = Callable[[dict[str, Any]], bool]


@dataclass
class Watch:
    """One subscriber, from the moment it was told "subscribed" on."""

    name: str
    topic: str
    wanted: Wanted
    heads: dict[int, int]
    """Per partition, the last record that it need not get."""
    before: list[tuple[Wanted, dict[int, int]]] = field(default_factory=list)
    """What it wanted before that, the last one first, and how far."""
    reached: dict[int, int] = field(default_factory=dict)
    got: set[tuple[int, int]] = field(default_factory=set)
    in_turn: set[tuple[int, int]] = field(default_factory=set)
    """Of those, what came in its place: a letter that is sent again may come before that."""
    told: list[Resync] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    """Of each key the last number that came."""
    passed_by: set[tuple[int, int]] = field(default_factory=set)
    """Places of which is known that nothing there is for it, as long as it wants what it wants."""
    sees: Wanted = lambda _: True
    """What the grant of whoever it is shows, whatever it wants."""
    is_over: bool = False
    """It has left, and nothing is owed to it."""
    connection: Callable[[], Hashable] = lambda: "the only one"
    """Which one it has been told that it is subscribed over; None while it isn't."""

    def changes(self, wanted: Wanted, positions: dict[int, int]) -> None:
        """From there on it wants something else. Behind its positions in partitions of former
        versions may be what it didn't want before, older than what it has had of the same keys."""
        self.numbers.clear()
        self.passed_by.clear()
        self.before.insert(0, (self.wanted, positions))
        self.wanted = wanted

    def wants(self, partition: int, seq: int, document: dict[str, Any]) -> bool:
        wanted = self.wanted
        for former, positions in self.before:
            if seq > positions.get(partition, 0):
                break
            wanted = former
        return wanted(document)

    def ever_wanted(self, document: dict[str, Any]) -> bool:
        return any(wanted(document) for wanted in (self.wanted, *(one for one, _ in self.before)))

    def is_excused(self, partition: int, seq: int) -> bool:
        return any(
            one.partition == partition and one.after_seq < seq < one.from_seq for one in self.told
        )


LOOKS: Final = 100
"""Behind the arrival of a letter that was sent again: whoever wasn't there by then, and didn't know
it yet, does."""


@dataclass
class Again:
    """A letter that an operator has sent again: those it is for, over which connection they were
    subscribed then. `looks_left`: it has arrived, wherever it could."""

    kept: Kept
    those: dict[str, Hashable]
    looks_left: int | None = None


@dataclass
class Routing:
    """A producer or an ingest node at a coordinator: since when, when that heard of it last, and by
    which topology it sends what to where. `topics` None: any."""

    role: str
    name: str
    since_s: float
    heard_s: float
    generation: int = 0
    topics: tuple[str, ...] | None = None

    def is_behind(self, topic: str, generation: int) -> bool:
        if self.role == "client":
            routes = self.generation > 0 and (self.topics is None or topic in self.topics)
        else:
            routes = True
        return routes and self.generation < generation


@dataclass
class Group:
    """The consumers of one group: of each partition what one of them has processed."""

    name: str
    topic: str
    heads: dict[int, int]
    sees: Wanted = lambda _: True
    """What the grant of its consumers shows."""
    done: set[tuple[int, int]] = field(default_factory=set)
    begun: set[tuple[int, int]] = field(default_factory=set)
    passed: set[tuple[int, int]] = field(default_factory=set)
    """What retention had taken when something newer of its key was begun, before anybody heard."""
    told: list[Resync] = field(default_factory=list)
    last_begun: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each key what a consumer was handed last, in its turn."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Of each target the highest under which a consumer has begun with something."""
    newest_done: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each key the newest that was processed, in its turn."""

    def is_excused(self, partition: int, seq: int) -> bool:
        return any(
            one.partition == partition and one.after_seq < seq < one.from_seq for one in self.told
        )


def kept_as(letter: Letter | NewLetter) -> Kept:
    one = letter.delivery
    return group_of(letter.gateway_id), one.topic, one.partition, one.seq


def meant_by(letter: Letter | NewLetter) -> set[str]:
    """The subscribers that it is for; an id of a subscription begins with its subscriber's."""
    one = letter.delivery
    names = {name.rpartition(".")[0] for name in one.subscriptions}
    return {EVERYBODY, *names} if one.broadcast or not names else names


def record_number(item: Event | Left) -> int | None:
    """Of what its producer sent with that key, which one it is."""
    number = item.document.get("number") if isinstance(item.document, dict) else None
    return number if isinstance(number, int) else None


class Oracle:
    """`meets` is told of the situations that only it can tell."""

    def __init__(self, meets: Callable[[str], None] = lambda _: None) -> None:
        self._meets = meets
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self.log: dict[str, dict[int, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
        self._documents: dict[Place, dict[str, Any]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.watches: dict[str, Watch] = {}
        self.groups: dict[str, Group] = {}
        self.dead: Callable[[], Iterable[Letter]] = lambda: ()
        """Those that are kept now."""
        self._discarded: list[Letter] = []
        """Those that an operator has deleted."""
        self._ever_dead: defaultdict[Kept, set[str]] = defaultdict(set)
        self._again: dict[int, Again] = {}
        self._missed: set[tuple[Kept, str]] = set()
        """What was sent again while that subscriber wasn't there, or wanted something else."""
        self.routing: dict[object, list[Routing]] = {}
        """By the process of a coordinator, who is there that sends events to partitions."""
        self._skipped: defaultdict[tuple[str, int], list[range]] = defaultdict(list)
        self._owners: dict[tuple[Hashable, ...], object] = {}
        self._fences: dict[tuple[Hashable, ...], tuple[int, ...]] = {}
        self._settled: dict[PartitionRef, int] = {}
        """How far anybody ever said that everything is."""
        self._earliest: dict[tuple[str, int], int] = {}
        self._gone: set[str] = set()
        """What was in a topic that was deleted."""
        self._ids: dict[str, Place] = {}
        self._committed: set[str] = set()
        self._elsewhere: set[tuple[str, Place]] = set()
        """Where events without a key are that were written again."""
        self.nodes_died = False
        """Whether an ingest node ever did: one that isn't there can't say what it has written, and
        docs/produce.md says what that means for events that any partition may take."""
        self._boundaries: dict[tuple[str, int, int], int] = {}
        """Where versions of topics end, per partition, as whoever leads has kept it."""
        self._last_sent: dict[tuple[str, str], tuple[int, int]] = {}
        self._places_of: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """Of each key where its records are, in the order they came."""

    def violated(self, what: str) -> None:
        self.violations.append(what)

    # --- stores ----------------------------------------------------------------------------------

    def owned_by(self, what: tuple[Hashable, ...], owner: object) -> None:
        """Somebody has `what`, an epoch of a partition: nobody else ever does."""
        before = self._owners.setdefault(what, owner)
        if before != owner:
            self.violated(f"{before} has {what}, and {owner} too")

    def admitted(self, what: tuple[Hashable, ...], fence: tuple[int, ...]) -> None:
        """Something was taken under that fence: nothing below it ever is, from then on."""
        highest = self._fences.get(what, fence)
        if fence < highest:
            self.violated(f"{what} took something of {fence} after {highest}")
        self._fences[what] = max(fence, highest)

    def fenced(self, topics: Collection[Topic]) -> None:
        """Their former versions end where it is kept: nothing of one lies behind that. All there
        are: one that isn't there, or is in an earlier version, is made anew."""
        versions = {topic.name: topic.version for topic in topics}
        for known in [one for one in self._boundaries if one[1] >= versions.get(one[0], 0)]:
            del self._boundaries[known]
        for topic in topics:
            for former in topic.former:
                for number, last in enumerate(former.last):
                    place = topic.name, former.version, number
                    if place not in self._boundaries:
                        self._boundaries[place] = last
                        self._nothing_is_behind(place, last)

    def _nothing_is_behind(self, place: tuple[str, int, int], last: int) -> None:
        topic, version, partition = place
        for record in self.log[topic][partition].values():
            if record.version == version and record.seq > last:
                self.violated(f"{place} ends at {last}, and {record.seq} is behind that")

    def settled(self, ref: PartitionRef, seq: int) -> None:
        head = max(self.log[ref.topic][ref.partition], default=0)
        if seq > max(head, self._earliest.get((ref.topic, ref.partition), 1) - 1):
            self.violated(f"{ref} is settled up to {seq}, and ends at {head}")
        self._settled[ref] = max(seq, self._settled.get(ref, 0))

    def retained(self, ref: PartitionRef, earliest: int, *, past_settled: bool) -> None:
        """Nothing before `earliest` is there any more."""
        before = self._earliest.get((ref.topic, ref.partition), 1)
        if earliest <= before:
            return
        self._earliest[ref.topic, ref.partition] = earliest
        self._meets("retention drops records")
        if earliest - 1 > self._settled.get(ref, 0):
            self._meets("retention drops what isn't settled")
            if not past_settled:
                self.violated(f"{ref} is dropped before {earliest}, settled {self._settled}")

    def deleted(self, ref: PartitionRef) -> None:
        """All of it, with its topic; the next one of that name has versions of its own."""
        for known in [one for one in self._boundaries if one[0] == ref.topic]:
            del self._boundaries[known]
        place = ref.topic, ref.partition
        head = max(self.log[ref.topic][ref.partition], default=0)
        self._earliest[place] = max(head + 1, self._earliest.get(place, 1))
        self.log[ref.topic][ref.partition].clear()
        gone = [name for name, at in self._ids.items() if at[:2] == (ref.topic, ref.partition)]
        for name in gone:
            del self._ids[name]
        self._gone.update(gone)
        # What was in it may be sent again, where its producer never heard that it was.
        for one in [one for one in self._last_sent if one[0] == ref.topic]:
            del self._last_sent[one]
        for watch in self.watches.values():
            watch.is_over = watch.is_over or watch.topic == ref.topic

    def skipped(self, ref: PartitionRef, after_seq: int, up_to_seq: int) -> None:
        """An operator wants nobody to get these, and nobody to be told: that settles them."""
        self._settled[ref] = max(up_to_seq, self._settled.get(ref, 0))
        self._skipped[ref.topic, ref.partition].append(range(after_seq + 1, up_to_seq + 1))

    def spoilt(self, ref: PartitionRef, seq: int) -> None:
        """It isn't any more what was appended: nobody is owed it, and whoever gets it all the same
        gets what it was."""
        self._skipped[ref.topic, ref.partition].append(range(seq, seq + 1))

    def _is_skipped(self, topic: str, partition: int, seq: int) -> bool:
        return any(seq in some for some in self._skipped.get((topic, partition), ()))

    def died(self, letter: Letter | NewLetter) -> None:
        """Nobody has to wait for it any more, whatever becomes of it."""
        self._ever_dead[kept_as(letter)] |= meant_by(letter)

    def discarded(self, letter: Letter) -> None:
        self._discarded.append(letter)

    def goes_again(self, letter: Letter) -> None:
        """From now on to who is subscribed, and wants it now."""
        meant, one = meant_by(letter), letter.delivery
        document, kept = (
            self._documents.get((one.topic, one.partition, one.seq), {}),
            kept_as(letter),
        )
        those: dict[str, Hashable] = {}
        for name, watch in self.watches.items():
            if watch.topic == one.topic and not meant.isdisjoint({name, EVERYBODY}):
                if watch.wanted(document):
                    those[name] = watch.connection()
                else:
                    self._missed.add((kept, name))
        self._again[letter.id] = again = Again(kept, those)
        self._look_who_is_there(again)

    def went_again(self, letter: Letter) -> None:
        if letter.id in self._again:
            self._again[letter.id].looks_left = LOOKS

    def stays(self, letter: Letter) -> None:
        """It is dead again."""
        self._again.pop(letter.id, None)

    def look_who_is_there(self) -> None:
        """Ten times a second."""
        for letter_id, again in [*self._again.items()]:
            self._look_who_is_there(again)
            if again.looks_left is not None:
                again.looks_left -= 1
                if again.looks_left <= 0:
                    del self._again[letter_id]

    def _look_who_is_there(self, again: Again) -> None:
        for name, connection in [*again.those.items()]:
            if connection is None or self.watches[name].connection() != connection:
                self._missed.add((again.kept, name))
                del again.those[name]

    def _letters(self) -> dict[Kept, set[str]]:
        """Of each record that has one: for whom."""
        letters: defaultdict[Kept, set[str]] = defaultdict(set)
        for letter in (*self.dead(), *self._discarded):
            letters[kept_as(letter)] |= meant_by(letter)
        return letters

    # --- producers and the log -------------------------------------------------------------------

    def sends(self, event_id: str) -> None:
        self.outcomes[event_id] = "unknown"

    def was_told(self, event_id: str, outcome: Outcome, place: Place | None = None) -> None:
        self.outcomes[event_id] = outcome
        self.seen[outcome] += 1
        is_there = place in self._places_with(event_id) or event_id in self._gone
        if outcome == "acknowledged" and not is_there:
            self.violated(
                f"{event_id} was acknowledged at {place}, and is at {self._ids.get(event_id)}"
            )

    def commits(self, event_id: str) -> None:
        """An origin has it, so sooner or later the log does."""
        self._committed.add(event_id)

    def untold(self) -> set[str]:
        """What an origin has and the log doesn't."""
        return self._committed.difference(self._ids, self._gone)

    def appended(self, record: Record) -> None:
        place = record.topic, record.partition, record.seq
        if (known := self._ids.setdefault(record.event_id, place)) != place:
            self._written_again(record, known, place)
        kept = self.log[record.topic][record.partition]
        if record.seq in kept:
            self.violated(f"seq {place} was given out twice")
        kept[record.seq] = record
        boundary = self._boundaries.get((record.topic, record.version, record.partition))
        if boundary is not None and record.seq > boundary:
            self.violated(f"{place} is of version {record.version}, which ends at {boundary}")
        # One producer has each key, and numbers what it sends: the log has them in that order.
        document = self._documents[place] = msgspec.json.decode(record.document)
        if record.key is None:
            return  # and without one they have no order
        number = document["number"]
        before = self._last_sent.get((record.topic, record.key))
        if before is not None and number <= before[0]:
            self.violated(f"number {number} of {record.key} is behind {before} at {place}")
        self._last_sent[record.topic, record.key] = number, record.seq
        self._places_of[record.topic, record.key].append((record.partition, record.seq))

    def _written_again(self, record: Record, known: Place, place: Place) -> None:
        if record.key is None and self.nodes_died and known[1] != place[1]:
            self._meets("an event without a key is written again elsewhere")
            self._elsewhere.add((record.event_id, place))
        else:
            self.violated(f"{record.event_id} is in the log twice: {known}, {place}")

    def _places_with(self, event_id: str) -> set[Place]:
        """Where the event is, or was written again in a topic that is deleted by now."""
        first = {self._ids[event_id]} if event_id in self._ids else set()
        return first | {at for one, at in self._elsewhere if one == event_id}

    def heads(self, topic: str) -> dict[int, int]:
        return {partition: max(kept) for partition, kept in self.log[topic].items() if kept}

    def _before(self, topic: str) -> dict[int, int]:
        """Per partition, the last record that isn't there any more."""
        return {number: seq - 1 for (of, number), seq in self._earliest.items() if of == topic}

    # --- subscribers -----------------------------------------------------------------------------

    def subscribed(self, name: str, topic: str, wanted: Wanted, *, earliest: bool) -> Watch:
        watch = Watch(name, topic, wanted, self._before(topic) if earliest else self.heads(topic))
        self.watches[name] = watch
        return watch

    def received(self, watch: Watch, item: Item) -> None:
        self._may_be_shown(watch.name, watch.sees, item)
        if watch.is_over:
            return
        if isinstance(item, Resync):
            self.seen["resync"] += 1
            self._meets(f"a subscriber is told to resync: {item.reason}")
            watch.told.append(item)
            return
        place = item.partition, item.seq
        record = self.log[watch.topic][item.partition].get(item.seq)
        if not self._is_that(item, record) or not self._is_wanted(watch, item):
            self.violated(f"{watch.name} got {item}, and the log has {record}")
        if item.redelivery:
            self.seen["redelivery"] += 1
            self._meets("a subscriber gets a redelivery")
            watch.got.add(place)
            return
        if place in watch.in_turn:
            self.violated(f"{watch.name} got {place} twice")
        watch.in_turn.add(place)
        if item.seq <= watch.reached.get(item.partition, 0):
            self.violated(f"{watch.name} got {place} behind {watch.reached[item.partition]}")
        watch.reached[item.partition] = item.seq
        watch.got.add(place)
        self._is_in_order(watch, item)

    def _may_be_shown(self, name: str, sees: Wanted, item: Item) -> None:
        """Nobody is ever shown a record that their grant excludes, on whatever way it comes."""
        shown = None if isinstance(item, Resync) else item.document
        if isinstance(shown, dict) and not sees(shown):
            self.violated(f"{name} was shown {item}, which its grant excludes")

    def _is_in_order(self, watch: Watch, item: Event | Left) -> None:
        """Its key's, whichever partitions the records are in."""
        number = record_number(item)
        if item.key is None or number is None:
            return
        before = watch.numbers.get(item.key, -1)
        if number <= before and not self._comes_late(watch, item):
            self.violated(f"{watch.name} got number {number} of {item.key} behind {before}")
        watch.numbers[item.key] = max(before, number)

    def _comes_late(self, watch: Watch, item: Event | Left) -> bool:
        """Whether it was a dead letter at the end of a version, which whoever resumes gets from the
        log, unmarked (docs/protocol.md, Resuming)."""
        kept = self._ever_dead.get(("", watch.topic, item.partition, item.seq), set())
        record = self.log[watch.topic][item.partition].get(item.seq)
        if record is None or kept.isdisjoint({watch.name, EVERYBODY}):
            return False
        self._meets("a dead letter from the end of a version comes late")
        return (watch.topic, record.version, item.partition) in self._boundaries

    def _is_that(self, item: Event | Left, record: Record | None) -> bool:
        return (
            record is not None
            and item.event_id == record.event_id
            and bytes(item.raw) == record.document
        )

    def _is_wanted(self, watch: Watch, item: Event | Left) -> bool:
        """What comes again is for whoever wants it now."""
        if isinstance(item, Left):
            return True
        if item.redelivery:
            return watch.ever_wanted(item.document)
        return watch.wants(item.partition, item.seq, item.document)

    def owed(self, watch: Watch) -> list[tuple[int, int]]:
        """What it lacks."""
        if watch.is_over:
            return []
        had, passed_by = watch.got, watch.passed_by
        open_ = [
            (partition, seq)
            for partition, kept in self.log[watch.topic].items()
            for seq in kept
            if (partition, seq) not in had
            and (partition, seq) not in passed_by
            and self._is_for(watch, partition, seq)
        ]
        if not open_:
            return []
        letters, whoever = self._letters(), {watch.name, EVERYBODY}
        lacking = {
            (partition, seq)
            for partition, seq in open_
            if not watch.is_excused(partition, seq)
            and not self._is_skipped(watch.topic, partition, seq)
            and not whoever & letters.get(("", watch.topic, partition, seq), set())
            and (("", watch.topic, partition, seq), watch.name) not in self._missed
        }
        return [one for one in open_ if one in lacking and not self._is_repeat(watch, one, lacking)]

    def _is_for(self, watch: Watch, partition: int, seq: int) -> bool:
        """Whether it lies behind the start, and the filter selects it there."""
        document = self._documents[watch.topic, partition, seq]
        is_for = seq > watch.heads.get(partition, 0) and watch.wants(partition, seq, document)
        if not is_for:
            watch.passed_by.add((partition, seq))
        return is_for

    def _is_repeat(
        self, watch: Watch, place: tuple[int, int], lacking: Collection[tuple[int, int]]
    ) -> bool:
        """Whether the same event was for it at another place too, and doesn't lack there: it came,
        or it is known why not. Who began, or began to want it, behind that place is owed this one;
        and where it lacks at both, neither excuses the other."""
        log = self.log[watch.topic]
        event_id = log[place[0]][place[1]].event_id
        return any(
            seq in log[partition]
            and (partition, seq) not in lacking
            and self._is_for(watch, partition, seq)
            for _, partition, seq in self._places_with(event_id)
        )

    # --- groups ----------------------------------------------------------------------------------

    def group(self, name: str, topic: str, sees: Wanted = lambda _: True) -> Group:
        if name not in self.groups:
            self.groups[name] = Group(name, topic, self.heads(topic), sees)
        return self.groups[name]

    def _is_of_group(self, group: Group, partition: int, seq: int) -> bool:
        """Whether it lies behind the start, and the grant shows it."""
        is_behind = seq > group.heads.get(partition, 0)
        return is_behind and group.sees(self._documents[group.topic, partition, seq])

    def begins(
        self, group: Group, consumer: str, item: Item, sees: Wanted = lambda _: True
    ) -> None:
        """A consumer, whose grant shows what it `sees`, has it in hand."""
        if isinstance(item, Resync):
            self._meets(f"a consumer is told to resync: {item.reason}")
            group.told.append(item)
            return
        self.seen["consumed"] += 1
        self._may_be_shown(consumer, sees, item)
        place = item.partition, item.seq
        record = self.log[group.topic][item.partition].get(item.seq)
        if record is None or record.event_id != item.event_id:
            self.violated(f"{consumer} got {item}, and the log has {record}")
        elif not item.redelivery and place not in group.begun:
            missing = [
                (partition, seq)
                for partition, seq in self._before_it(group.topic, item.key or "", place)
                if (partition, seq) not in group.done
                and self._is_of_group(group, partition, seq)
                and not group.is_excused(partition, seq)
                and not self._is_skipped(group.topic, partition, seq)
            ]
            if missing and (missing := self._not_letters(group, missing)):
                gone = {one for one in missing if self._is_gone(group.topic, *one)}
                group.passed |= gone
                if missing := [one for one in missing if one not in gone]:
                    self.violated(f"{consumer} works on {place} before {missing[:5]} of {item.key}")
            if place in group.passed:
                self.violated(f"{consumer} works on {place} behind what came later of {item.key}")
        if place in group.begun:
            self._meets("an event is handed out to a consumer again")
        group.begun.add(place)
        held = group.epochs.get(item.target, 0)
        group.epochs[item.target] = max(held, item.epoch)
        if item.epoch < held:
            self._meets("a former owner of a target hands out an event")
        elif item.key is not None and not item.redelivery:
            group.last_begun[item.key] = place

    def _is_gone(self, topic: str, partition: int, seq: int) -> bool:
        """Whether retention has taken it. What was parked before that may come ahead of the news of
        it (decide/feed/feed.py, `lost`), and nothing that is gone comes behind that."""
        return seq < self._earliest.get((topic, partition), 1)

    def _before_it(self, topic: str, key: str, place: tuple[int, int]) -> list[tuple[int, int]]:
        """Where the records of a key are that came before the one there."""
        places = self._places_of[topic, key]
        return places[: places.index(place)] if place in places else []

    def _not_letters(
        self, group: Group, places: Iterable[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        dead = self._ever_dead
        return [one for one in places if (group.name, group.topic, *one) not in dead]

    def ends(self, group: Group, item: Item) -> None:
        """It is processed; whether that is acknowledged is another matter."""
        if isinstance(item, Resync):
            return
        place = item.partition, item.seq
        group.done.add(place)
        if item.key is None or item.redelivery:
            return
        newest = group.newest_done.get(item.key)
        if newest is None or newest in self._before_it(group.topic, item.key, place):
            group.newest_done[item.key] = place

    def ended_with_older(self, group: Group) -> list[tuple[str, tuple[int, int], tuple[int, int]]]:
        """The keys whose consumers, after they had processed an event, were last handed an older
        one: whoever keeps the last state of a key has a former one. Each with both places. What
        comes again has to come with all that was behind it, unless that isn't there any more; and
        what a former owner of its target still hands out (docs/adr/0013) nobody holds against it:
        how long it may is for checks.py."""
        return [
            (key, last, newest)
            for key, newest in group.newest_done.items()
            if (last := group.last_begun.get(key, newest)) != newest
            and last in self._before_it(group.topic, key, newest)
            and newest[1] in self.log[group.topic][newest[0]]
            and not group.is_excused(*newest)
            and not self._is_skipped(group.topic, *newest)
        ]

    def left_to_do(self, group: Group) -> list[tuple[int, int]]:
        dead = self._letters()
        return [
            (partition, seq)
            for partition, kept in self.log[group.topic].items()
            for seq in kept
            if (partition, seq) not in group.done
            and self._is_of_group(group, partition, seq)
            and not group.is_excused(partition, seq)
            and not self._is_skipped(group.topic, partition, seq)
            and (group.name, group.topic, partition, seq) not in dead
        ]

    # --- the end ---------------------------------------------------------------------------------

    def owed_to_anybody(self, *, groups: bool) -> str:
        """Empty where nothing is owed; of groups only where somebody consumes."""
        if untold := self.untold():
            return f"the log lacks {len(untold)} changes of the origin: {sorted(untold)[:10]}"
        for watch in self.watches.values():
            if owed := self.owed(watch):
                return f"{watch.name} lacks {len(owed)} records: {owed[:10]}"
        for group in self.groups.values():
            if groups and (left := self.left_to_do(group)):
                return f"nobody of {group.name} has processed {len(left)}: {left[:10]}"
            if groups and (older := self.ended_with_older(group)):
                return f"{group.name} ends with an older event of {len(older)} keys: {older[:5]}"
        return ""

    def judge_producers(self) -> None:
        written = {*self._ids, *self._gone}
        for event_id, outcome in self.outcomes.items():
            if outcome == "acknowledged" and event_id not in written:
                self.violated(f"{event_id} was acknowledged, and isn't in the log")
            if outcome == "failed" and event_id in self._ids:
                self.violated(f"{event_id} failed, and is at {self._ids[event_id]}")
