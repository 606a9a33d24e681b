"""What must be true of a run, known from the outside alone: what producers were told, what is in
the log, and what subscribers and consumers got.

It asks none of the product's own accounts. Filters are plain Python. Per subscriber that was told
"subscribed": every record behind that moment which its filter selects arrives once, in the order of
its partition, unless a `Resync` told it that it won't, or it is kept as a dead letter. What is
marked as a redelivery is outside the order. Nothing arrives that isn't in the log, or that the
filter doesn't select.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from headgate.model.client_messages import Event, Item, Left, Resync
from headgate.model.event import Record

Outcome = Literal["unknown", "acknowledged", "failed"]
Place = tuple[str, int, int]
Wanted = Callable[[dict[str, Any]], bool]


@dataclass
class Watch:
    """One subscriber, from the moment it was told "subscribed" on."""

    name: str
    topic: str
    wanted: Wanted
    heads: dict[int, int]
    """Per partition, the last record that it need not get."""
    reached: dict[int, int] = field(default_factory=dict)
    got: set[tuple[int, int]] = field(default_factory=set)
    told: list[Resync] = field(default_factory=list)
    is_over: bool = False
    """It has left, and nothing is owed to it."""

    def is_excused(self, partition: int, seq: int) -> bool:
        return any(
            one.partition == partition and one.after_seq < seq < one.from_seq for one in self.told
        )


@dataclass
class Group:
    """The consumers of one group: of each partition what one of them has processed."""

    name: str
    topic: str
    heads: dict[int, int]
    done: set[tuple[int, int]] = field(default_factory=set)
    begun: set[tuple[int, int]] = field(default_factory=set)
    told: list[Resync] = field(default_factory=list)

    def is_excused(self, partition: int, seq: int) -> bool:
        return any(
            one.partition == partition and one.after_seq < seq < one.from_seq for one in self.told
        )


class Oracle:
    def __init__(self) -> None:
        self.violations: list[str] = []
        self.seen: Counter[str] = Counter()
        self.log: dict[str, dict[int, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
        self._documents: dict[Place, dict[str, Any]] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.watches: dict[str, Watch] = {}
        self.groups: dict[str, Group] = {}
        self.dead: Callable[[], Iterable[Place]] = lambda: ()
        self._ids: dict[str, Place] = {}
        self._last_sent: dict[tuple[str, str], tuple[int, int]] = {}
        self._seqs_of: dict[tuple[str, str], list[int]] = defaultdict(list)

    def violated(self, what: str) -> None:
        self.violations.append(what)

    # --- producers and the log -------------------------------------------------------------------

    def sends(self, event_id: str) -> None:
        self.outcomes[event_id] = "unknown"

    def was_told(self, event_id: str, outcome: Outcome, place: Place | None = None) -> None:
        self.outcomes[event_id] = outcome
        self.seen[outcome] += 1
        if outcome == "acknowledged" and self._ids.get(event_id) != place:
            self.violated(
                f"{event_id} was acknowledged at {place}, and is at {self._ids.get(event_id)}"
            )

    def appended(self, record: Record) -> None:
        place = record.topic, record.partition, record.seq
        if record.event_id in self._ids:
            self.violated(
                f"{record.event_id} is in the log twice: {self._ids[record.event_id]}, {place}"
            )
        self._ids[record.event_id] = place
        kept = self.log[record.topic][record.partition]
        if record.seq in kept:
            self.violated(f"seq {place} was given out twice")
        kept[record.seq] = record
        # One producer has each key, and numbers what it sends: the log has them in that order.
        document = self._documents[place] = msgspec.json.decode(record.document)
        number = document["number"]
        before = self._last_sent.get((record.topic, record.key or ""))
        if before is not None and number <= before[0]:
            self.violated(f"number {number} of {record.key} is behind {before} at {place}")
        self._last_sent[record.topic, record.key or ""] = number, record.seq
        self._seqs_of[record.topic, record.key or ""].append(record.seq)

    def heads(self, topic: str) -> dict[int, int]:
        return {partition: max(kept) for partition, kept in self.log[topic].items() if kept}

    # --- subscribers -----------------------------------------------------------------------------

    def subscribed(self, name: str, topic: str, wanted: Wanted, *, earliest: bool) -> Watch:
        watch = Watch(name, topic, wanted, {} if earliest else self.heads(topic))
        self.watches[name] = watch
        return watch

    def received(self, watch: Watch, item: Item) -> None:
        if isinstance(item, Resync):
            self.seen["resync"] += 1
            watch.told.append(item)
            return
        place = item.partition, item.seq
        record = self.log[watch.topic][item.partition].get(item.seq)
        if not self._is_that(item, record, watch.wanted):
            self.violated(f"{watch.name} got {item}, and the log has {record}")
        if item.redelivery:
            self.seen["redelivery"] += 1
            watch.got.add(place)
            return
        if place in watch.got:
            self.violated(f"{watch.name} got {place} twice")
        if item.seq <= watch.reached.get(item.partition, 0):
            self.violated(f"{watch.name} got {place} behind {watch.reached[item.partition]}")
        watch.reached[item.partition] = item.seq
        watch.got.add(place)

    def _is_that(self, item: Event | Left, record: Record | None, wanted: Wanted) -> bool:
        return (
            record is not None
            and item.event_id == record.event_id
            and bytes(item.raw) == record.document
            and (isinstance(item, Left) or wanted(item.document))
        )

    def owed(self, watch: Watch) -> list[tuple[int, int]]:
        """What it lacks."""
        if watch.is_over:
            return []
        dead = set(self.dead())
        return [
            (partition, seq)
            for partition, kept in self.log[watch.topic].items()
            for seq in kept
            if seq > watch.heads.get(partition, 0)
            and (partition, seq) not in watch.got
            and watch.wanted(self._documents[watch.topic, partition, seq])
            and not watch.is_excused(partition, seq)
            and (watch.topic, partition, seq) not in dead
        ]

    # --- groups ----------------------------------------------------------------------------------

    def group(self, name: str, topic: str) -> Group:
        if name not in self.groups:
            self.groups[name] = Group(name, topic, self.heads(topic))
        return self.groups[name]

    def begins(self, group: Group, consumer: str, item: Item) -> None:
        """A consumer has it in hand."""
        if isinstance(item, Resync):
            group.told.append(item)
            return
        self.seen["consumed"] += 1
        place = item.partition, item.seq
        record = self.log[group.topic][item.partition].get(item.seq)
        if record is None or record.event_id != item.event_id:
            self.violated(f"{consumer} got {item}, and the log has {record}")
        elif not item.redelivery and place not in group.begun:
            missing = [
                seq
                for seq in self._seqs_of[group.topic, item.key or ""]
                if group.heads.get(item.partition, 0) < seq < item.seq
                and (item.partition, seq) not in group.done
                and not group.is_excused(item.partition, seq)
            ]
            if missing:
                self.violated(f"{consumer} works on {place} before {missing[:5]} of {item.key}")
        group.begun.add(place)

    def ends(self, group: Group, item: Item) -> None:
        """It is processed; whether that is acknowledged is another matter."""
        if not isinstance(item, Resync):
            group.done.add((item.partition, item.seq))

    def left_to_do(self, group: Group) -> list[tuple[int, int]]:
        return [
            (partition, seq)
            for partition, kept in self.log[group.topic].items()
            for seq in kept
            if seq > group.heads.get(partition, 0)
            and (partition, seq) not in group.done
            and not group.is_excused(partition, seq)
        ]

    # --- the end ---------------------------------------------------------------------------------

    def owed_to_anybody(self, *, groups: bool) -> str:
        """Empty where nothing is owed; of groups only where somebody consumes."""
        for watch in self.watches.values():
            if owed := self.owed(watch):
                return f"{watch.name} lacks {len(owed)} records: {owed[:10]}"
        for group in self.groups.values():
            if groups and (left := self.left_to_do(group)):
                return f"nobody of {group.name} has processed {len(left)}: {left[:10]}"
        return ""

    def judge_producers(self) -> None:
        for event_id, outcome in self.outcomes.items():
            if outcome == "acknowledged" and event_id not in self._ids:
                self.violated(f"{event_id} was acknowledged, and isn't in the log")
            if outcome == "failed" and event_id in self._ids:
                self.violated(f"{event_id} failed, and is at {self._ids[event_id]}")
