"""Who is owed what of a topic whose partitioning changes, and what everybody has got; as naive as
can be, and apart from the code that it judges.

A record is owed to whoever wants its kind, now or as it was before, and began before it was there.
It is accounted for once it, or the same event at another place, came, was told to be left out, or
lies or lay in a dead letter for one of the subscriptions of whom it is owed to, or an operator
skipped it. What comes unmarked comes in the order in which the records of its key were written,
and once.

To whom a grant applies, what isn't `OURS` isn't there; of what has become so they hear that it has
left, and its key alone.

What is about a whole collection is owed to whoever doesn't exclude that, and is about every key of
its partition. That an origin has lost changes is owed to everybody, as news of what is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from headgate.decide.produce.placement import partition_of
from headgate.model.event import Op
from headgate.model.letters import Letter
from headgate.model.subscription import Priority, Subscription
from headgate.model.topology import Topic
from headgate.services.gateway.subscriptions.live import LiveSubscription

OWNER, OURS = "owner", "us"
"""What grants with a filter ask of a document."""
MARGIN = 50
"""Seqs that are left out where a log has lost its history."""
Place = tuple[int, int]
"""Partition and seq."""
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Written:
    """`about` is the collection that it is about the whole of, or empty: then it says what an
    origin has lost. `keys` are those that may not be told of it out of order."""

    partition: int
    seq: int
    keys: tuple[str, ...]
    document: Document | None
    earlier: Document | None = None
    says: Op | None = None
    about: str = ""
    to: str = ""
    """The new name of a collection that was renamed."""
    event_id: str = ""

    @property
    def is_marker(self) -> bool:
        return self.says == "lost"

    @property
    def place(self) -> Place:
        return self.partition, self.seq

    def kind_for(
        self, kind: str | None, excludes: str = "", *, is_granted: bool = False
    ) -> Literal["event", "left"] | None:
        """What whoever wants this kind (None: all), and nothing of one collection, hears of it;
        `is_granted`: of ours alone."""
        if self.document is None:
            is_excluded = self.about == excludes and self.to in ("", excludes)
            return None if self.is_marker or is_excluded else "event"

        def matches(document: Document | None) -> bool:
            is_there = document is not None and (not is_granted or document[OWNER] == OURS)
            return is_there and document is not None and kind in (None, document["kind"])

        if matches(self.document):
            return "event"
        return "left" if matches(self.earlier) else None

    def shown(self, *, is_granted: bool) -> Document | None:
        """The document that such a reader may see."""
        if self.document is None or not is_granted or self.document[OWNER] == OURS:
            return {"to": self.to} if self.to else self.document
        return None

    def op(self, soft_delete: str) -> str:
        if self.says is not None:
            return self.says
        if self.earlier is None or self.document is None:
            return "insert"
        was, is_now = soft_delete in self.earlier, soft_delete in self.document
        if not soft_delete or was == is_now:
            return "update"
        return "delete" if is_now else "insert"


class Got(NamedTuple):
    """`life` counts the subscriptions, or the owners of a target, that it came through."""

    life: int
    place: Place
    is_marked: bool


@dataclass(eq=False, slots=True)
class Reader:
    """Whoever is owed something. `starts` are the seqs after which that begins."""

    name: str
    kind: str | None = None
    excludes: str = ""
    is_granted: bool = False
    """Does a grant with a filter apply to it?"""
    starts: dict[int, int] | None = None
    lives: int = 0
    ids: set[str] = field(default_factory=set)
    got: list[Got] = field(default_factory=list)
    told: set[Place] = field(default_factory=set)

    def told_missing(self, partition: int, after_seq: int, from_seq: int) -> None:
        self.told.update((partition, seq) for seq in range(after_seq + 1, from_seq))

    def began_before(self, written: Written) -> bool:
        return written.seq > (self.starts or {}).get(written.partition, 0)


@dataclass(eq=False, slots=True)
class Client(Reader):
    """One that subscribes, and comes back with the positions that it knows."""

    priority: Priority = "normal"
    gateway: str = ""
    reads: bool = False
    is_coming: bool = False
    subscriber: LiveSubscription | None = None
    positions: dict[int, int] = field(default_factory=dict)
    """Up to where it has all of each partition that it was told of."""

    @property
    def is_here(self) -> bool:
        return self.subscriber is not None and self.subscriber.closing is None

    def came(self, subscriber: LiveSubscription) -> None:
        self.subscriber = subscriber
        self.lives += 1
        self.ids.add(subscriber.id)
        if self.starts is None:
            self.starts = dict(subscriber.starts)
        self.positions = {**subscriber.feed.sent(), **self.positions}  # as it is told

    def told_missing(self, partition: int, after_seq: int, from_seq: int) -> None:
        Reader.told_missing(self, partition, after_seq, from_seq)
        self.reached(partition, from_seq - 1)

    def reached(self, partition: int, seq: int) -> None:
        self.positions[partition] = max(seq, self.positions.get(partition, 0))


@dataclass(eq=False, slots=True)
class Share(Reader):
    """What one target of the group is owed, whoever owns it."""

    number: int = 0
    is_opening: bool = False
    in_hand: list[tuple[int, int, bool]] = field(default_factory=list)
    """What its owner has and didn't acknowledge: place, and whether it is a redelivery."""

    def opened(self) -> None:
        self.lives += 1
        self.in_hand.clear()

    def acknowledges(self, count: int) -> tuple[dict[int, int], dict[int, list[int]]]:
        """The first so many that are in hand: positions, and redeliveries by themselves."""
        done, self.in_hand = self.in_hand[:count], self.in_hand[count:]
        positions: dict[int, int] = {}
        again: defaultdict[int, list[int]] = defaultdict(list)
        for partition, seq, is_marked in done:
            if is_marked:
                again[partition].append(seq)
            else:
                positions[partition] = max(seq, positions.get(partition, 0))
        return positions, again


class Judge:
    """`found` is what is wrong."""

    def __init__(self, *, soft_delete: str, targets: int) -> None:
        self.soft_delete = soft_delete
        self.clients: list[Client] = []
        self.shares = [Share(f"target {n}", starts={}, number=n) for n in range(targets)]
        self.written: list[Written] = []
        self._dead_news: set[Place] = set()
        """What would have been told to be left out, and lies in a letter."""
        self._numbers: dict[Place, int] = {}
        self._heads: Counter[int] = Counter()
        self.has_moved_on = False
        """Has a partition lost its history?"""
        self._places: defaultdict[str, set[Place]] = defaultdict(set)
        """Where each event is in the log."""
        self.resets: list[Place] = []
        """Partitions, and the seqs behind which all comes again."""
        self.retried: Counter[Place] = Counter()
        self.skipped: set[Place] = set()
        self._dead: defaultdict[str, set[Place]] = defaultdict(set)
        self._clients = 0
        self.found: list[str] = []

    def finds(self, what: str, *about: object) -> None:
        self.found.append(f"{what}: " + " ".join(map(str, about))[:400])

    # --- what happens ----------------------------------------------------------------------------

    def head(self, partition: int) -> int:
        return self._heads[partition]

    def wrote(self, written: Written) -> None:
        self._numbers[written.place] = len(self.written)
        self.written.append(written)
        self._heads[written.partition] = written.seq
        if written.event_id:
            self._places[written.event_id].add(written.place)

    def moves_on(self, partition: int) -> int:
        """The log has lost its history, and nothing up to there is given out again."""
        self.has_moved_on = True
        self._heads[partition] += MARGIN
        return self._heads[partition]

    def new_client(
        self, kind: str | None, priority: Priority, gateway: str, excludes: str = ""
    ) -> Client:
        self._clients += 1
        name = f"client-{self._clients}"
        client = Client(name, kind, excludes, priority=priority, gateway=gateway)
        self.clients.append(client)
        return client

    def registered(self, subscription: Subscription) -> None:
        if subscription.shard is not None:
            self.shares[subscription.shard[1]].ids.add(subscription.id)

    def look_at(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            if letter.state == "dead" and letter.delivery.lost_from:
                gone = range(letter.delivery.lost_from, letter.delivery.seq + 1)
                self._dead_news.update((letter.delivery.partition, seq) for seq in gone)
            elif letter.state == "dead":
                for name in letter.delivery.subscriptions:
                    self._dead[name].add((letter.delivery.partition, letter.delivery.seq))

    def is_of_former(self, partition: int, seq: int, topic: Topic) -> bool:
        return any(partition < len(one.last) and seq <= one.last[partition] for one in topic.former)

    def took(self, client: Client, message: Mapping[str, Any]) -> None:
        got = self._got(client, message)
        if not got.is_marked:
            client.reached(*got.place)

    def told(
        self, reader: Reader, partition: int, after_seq: int, from_seq: int, reason: str
    ) -> None:
        """It hears that something is left out, and a marker in its place; of what is gone from the
        log it may hear before."""
        reader.told_missing(partition, after_seq, from_seq)
        if reason == "origin":
            reader.got.append(Got(reader.lives, (partition, from_seq - 1), is_marked=False))

    def consumed(self, share: Share, message: Mapping[str, Any]) -> None:
        if message["type"] == "resync":
            partition, last = message["partition"], message["from"] - 1
            self.told(share, partition, message["after"], message["from"], message["reason"])
            share.in_hand.append((partition, last, False))
        else:
            got = self._got(share, message)
            share.in_hand.append((*got.place, got.is_marked))

    def _got(self, reader: Reader, message: Mapping[str, Any]) -> Got:
        place = message["partition"], message["seq"]
        got = Got(reader.lives, place, message.get("redelivery", False))
        reader.got.append(got)
        written = self.written[self._numbers[place]]
        if (message["type"], message["op"], message["document"]) != (
            written.kind_for(reader.kind, reader.excludes, is_granted=reader.is_granted),
            written.op(self.soft_delete),
            written.shown(is_granted=reader.is_granted),
        ):
            self.finds("not what was written", reader.name, message, written)
        return got

    # --- what must hold --------------------------------------------------------------------------

    def missing(self, reader: Reader, since: int = 0) -> list[Place]:
        """What it is owed of what was written since then, and isn't accounted for."""
        known = {got.place for got in reader.got} | reader.told | self.skipped | self._dead_news
        known |= {place for name in reader.ids for place in self._dead[name]}
        return [
            one.place
            for one in self.written[since:]
            if known.isdisjoint(self._places[one.event_id] or {one.place})
            and reader.began_before(one)
            and self._wants(reader, one)
        ]

    def _wants(self, reader: Reader, written: Written) -> bool:
        if written.is_marker:
            return True
        if isinstance(reader, Share) and written.says is None:
            count = len(self.shares)
            [told_apart_by] = written.keys or [written.event_id]
            if partition_of(told_apart_by, collection="", count=count) != reader.number:
                return False
        kind = written.kind_for(reader.kind, reader.excludes, is_granted=reader.is_granted)
        return kind is not None

    def probed(self, since: int, readers: Iterable[Reader]) -> None:
        """What was written since then has come to these, whoever else doesn't read."""
        for reader in readers:
            if missing := self.missing(reader, since):
                self.finds("held up", reader.name, missing)

    def judge(self) -> None:
        for reader in (*self.clients, *self.shares):
            if missing := self.missing(reader):
                self.finds("missing", reader.name, missing)
            self._judge_order(reader)
            self._judge_redeliveries(reader)

    def _judge_order(self, reader: Reader) -> None:
        """A target begins anew with each owner, with what the one before didn't acknowledge. What
        was a dead letter for somebody who comes back is read from the log, late rather than never
        (docs/protocol.md, resuming)."""
        last: dict[tuple[int, str], int] = {}
        dead = {place for name in reader.ids for place in self._dead[name]}
        for life, place, is_marked in reader.got:
            if is_marked or place in dead:
                continue
            number = self._numbers[place]
            for key in self.written[number].keys:
                whose = life if isinstance(reader, Share) else 0, key
                if number <= last.get(whose, -1):
                    before = self.written[last[whose]].place
                    self.finds("out of order", reader.name, f"{place} after {before}")
                    return
                last[whose] = number

    def _judge_redeliveries(self, reader: Reader) -> None:
        marked = Counter((life, place) for life, place, is_marked in reader.got if is_marked)
        for (_, place), times in marked.items():
            wanted = sum(place[0] == number and place[1] > to for number, to in self.resets)
            if times > wanted + self.retried[place]:
                self.finds("too often", reader.name, place, times)
                return
