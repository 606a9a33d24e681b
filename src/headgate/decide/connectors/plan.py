"""Where a connector's reader goes on, and which partition takes each change it reads.

What every partition has stored says how far the connector is there, by partitioning version. A
change is in the log if the partition that it belonged into, by any version, has come so far. So a
reader begins at the lowest position that it needs, places what it reads by the present version, and
leaves out what a former one has taken already; the present one leaves out what it has by itself.

Invariant: whatever lies behind `resume` and isn't in the log is handed in, and what is in the log
isn't placed into another partition again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from math import gcd

from msgspec.structs import replace

from headgate.decide.connectors.snapshots.places import of_stream
from headgate.decide.connectors.snapshots.snapshotting import SnapshotSteps
from headgate.decide.connectors.whole_collection import concerned
from headgate.decide.produce.placement import partition_of, routing_key
from headgate.model.connector import Connector, ConnectorRoute
from headgate.model.event import WHOLE_COLLECTION, Event, PartitionRef
from headgate.model.intake import IntakePosition
from headgate.model.topology import Topic

Found = Mapping[PartitionRef, Sequence[IntakePosition]]
"""What partitions have stored of one connector, of every version."""
EVERYWHERE = WHOLE_COLLECTION | {"lost"}
"""What stands in every partition where it has no key."""
ROUTED_MAX = 10_000
"""So many names of collections are remembered with where they go: some are there for once only, as
of what MongoDB's `$out` writes."""


def in_turns(events: Sequence[Event]) -> list[Sequence[Event]]:
    """`events` cut behind those that stand in every partition: what follows is handed in when all
    partitions have them.

    A repartition that comes before that repeats such an event in the new version, for the keys
    whose partition lacked it. For the others it must be as if it was said twice in a row, which
    changes nothing: so nothing may stand between but, beside drops, other drops.
    """
    turns, begin = [], 0
    for at, (one, following) in enumerate(pairwise(events), 1):
        if _is_everywhere(one) and not {one.op, following.op} <= {"drop", "truncate"}:
            turns.append(events[begin:at])
            begin = at
    return [*turns, events[begin:]]


def _is_everywhere(event: Event) -> bool:
    return event.key is None and event.op in EVERYWHERE


@dataclass(frozen=True, slots=True)
class FormerIntake:
    """How far the partitions of a former version had come, by their number; `snapshot` is the
    snapshot state that the least advanced of them has stored."""

    partitions: int
    reached: Mapping[int, str]
    snapshot: str = ""

    @property
    def is_complete(self) -> bool:
        """Do all of them say how far they are?"""
        return len(self.reached) == self.partitions

    def has(self, event: Event) -> bool:
        """Is it in the log already, in the partition it belonged into then?"""
        number = partition_of(
            routing_key(event), collection=event.collection, count=self.partitions
        )
        return (event.source or "") <= self.reached.get(number, "")

    def has_everywhere(self, position: str, *, number: int, count: int) -> bool:
        """The same for what stands in every partition: do all have it that share keys with
        partition `number` of `count`?"""
        step = gcd(self.partitions, count)
        shared = range(number % step, self.partitions, step)
        return all(position <= self.reached.get(former, "") for former in shared)


@dataclass(frozen=True, slots=True)
class TopicIntake:
    """One topic that a connector feeds, by its present version."""

    name: str
    version: int
    partitions: int
    former: tuple[FormerIntake, ...] = ()

    def refs(self) -> list[PartitionRef]:
        return [PartitionRef(self.name, number) for number in range(self.partitions)]


@dataclass(slots=True)
class ConnectorPlan:
    """`reached` is what is known to be stored by the present version, per partition; the reader
    keeps it up to date. `resume` is empty where nothing is stored at all."""

    routes: tuple[ConnectorRoute, ...]
    topics: Mapping[str, TopicIntake]
    reached: dict[PartitionRef, str]
    resume: str
    ended: frozenset[PartitionRef] = frozenset()
    """Those that were told that the origin had lost its history."""
    bereft: frozenset[PartitionRef] = frozenset()
    """The partitions that have lost the position which they had."""
    former_reach: str = ""
    """Behind this, nothing is asked of former versions."""
    before: Mapping[str, str] = field(default_factory=dict)
    """By topic, how far all its partitions were when it began anew, here or elsewhere."""
    snapshots: SnapshotSteps = field(default_factory=SnapshotSteps)
    _routed: dict[str, str | None] = field(default_factory=dict)

    @property
    def refs(self) -> list[PartitionRef]:
        return [ref for topic in self.topics.values() for ref in topic.refs()]

    @property
    def stored(self) -> str:
        """Up to where the next reader needs nothing of the origin any more; empty: that can't be
        told."""
        if len(self.reached) < len(self.refs):
            return ""
        least = min(self.reached.values(), default="")
        return of_stream(least)

    @property
    def level(self) -> str:
        """At this position of the stream, or behind it, nobody has anything yet that lies ahead."""
        return of_stream(max([self.former_reach, *self.reached.values()]))

    def unpinned(self) -> list[PartitionRef]:
        """Those that have stored no position yet: each gets that of the beginning before any
        change, so that a batch that goes missing leaves a gap."""
        return [ref for ref in self.refs if ref not in self.reached]

    def lacking(self, position: str, *, compares: bool = False) -> frozenset[PartitionRef]:
        """The partitions that lack changes if they go on from `position`, nobody knows which;
        `compares`: the next snapshot is to find that out, wherever the position is."""
        begun_behind = {name for name, at in self.before.items() if compares or at < position}
        return self.bereft | {ref for ref in self.unpinned() if ref.topic in begun_behind}

    def topic_of(self, collection: str) -> str | None:
        if collection not in self._routed:
            if len(self._routed) >= ROUTED_MAX:
                self._routed.clear()
            self._routed[collection] = next(
                (route.topic for route in self.routes if fnmatchcase(collection, route.pattern)),
                None,
            )
        return self._routed[collection]

    def split(self, events: Iterable[Event]) -> tuple[dict[PartitionRef, list[Event]], int]:
        """By partition, what it is to take in; and how many events no route leads to."""
        parts: dict[str, list[list[Event]]] = {
            name: [[] for _ in range(topic.partitions)] for name, topic in self.topics.items()
        }
        unrouted = 0
        for event in events:
            if _is_everywhere(event):
                unrouted += not self._split_everywhere(event, parts)
            elif (name := self.topic_of(event.collection)) is None:
                unrouted += 1
            else:
                topic = self.topics[name]
                number = self._place(topic, event)
                if not self._is_had(topic, number, event, everywhere=False):
                    parts[name][number].append(event)
        return {
            PartitionRef(name, number): part
            for name, numbered in parts.items()
            for number, part in enumerate(numbered)
            if part
        }, unrouted

    def _split_everywhere(self, event: Event, parts: Mapping[str, list[list[Event]]]) -> bool:
        """The same for what stands in every partition; False: no route leads to any."""
        names: Collection[str] = self.topics if event.op == "lost" else self._topics_of(event)
        for name in names:
            topic = self.topics[name]
            for number in range(topic.partitions):
                if not self._is_had(topic, number, event, everywhere=True):
                    parts[name][number].append(_at(event, number))
        return bool(names)

    def _topics_of(self, event: Event) -> Collection[str]:
        """The topics of all collections that `event` concerns, each once."""
        found = (self.topic_of(one) for one in concerned(event))
        return dict.fromkeys(name for name in found if name is not None)

    def _place(self, topic: TopicIntake, event: Event) -> int:
        return partition_of(routing_key(event), collection=event.collection, count=topic.partitions)

    def _is_had(self, topic: TopicIntake, number: int, event: Event, *, everywhere: bool) -> bool:
        position = event.source or ""
        if not topic.former or position > self.former_reach:
            return False
        if everywhere:
            count = topic.partitions
            return any(
                one.has_everywhere(position, number=number, count=count) for one in topic.former
            )
        return any(one.has(event) for one in topic.former)

    def forgets_below(self, ref: PartitionRef) -> int:
        """The version below which what `ref` has stored isn't needed any more; 0: all of it may
        be."""
        if len(self.reached) < len(self.refs) or min(self.reached.values()) < self.former_reach:
            return 0
        return self.topics[ref.topic].version


def _at(event: Event, number: int) -> Event:
    """The record in partition `number` of what stands in every partition: a record of its own."""
    return replace(event, event_id=f"{event.event_id}/{number}")


def plan(connector: Connector, topics: Sequence[Topic], found: Found) -> ConnectorPlan:
    """What `found` means for a reader that feeds `topics`. Everything there was claimed before."""
    reached: dict[PartitionRef, str] = {}
    ended: set[PartitionRef] = set()
    bereft: set[PartitionRef] = set()
    intakes: dict[str, TopicIntake] = {}
    needed: list[str] = []
    former_reach = ""
    before: dict[str, str] = {}
    snapshots: list[str] = []
    for topic in topics:
        by_version = _by_version(connector, topic, found)
        present = by_version.pop(topic.version, FormerIntake(topic.partitions, {}))
        for number, position in present.reached.items():
            reached[PartitionRef(topic.name, number)] = position
        ended |= {
            ref
            for ref in topic.refs()
            for one in found.get(ref, ())
            if one.ended and (one.version, one.beginning) == (topic.version, connector.beginning)
        }
        former = tuple(by_version[version] for version in sorted(by_version, reverse=True))
        if _all_had_one(connector, present, former):
            bereft |= set(topic.refs()) - reached.keys()
        if left_at := _left_at(connector, topic, found, (present, *former)):
            before[topic.name] = left_at
        intakes[topic.name] = TopicIntake(topic.name, topic.version, topic.partitions, former)
        needed += _needed((present, *former))
        snapshots += [one.snapshot for one in _asked_of((present, *former)) if one.reached]
        former_reach = max([former_reach, *(p for one in former for p in one.reached.values())])
    if before:
        # Who has no position at all can't tell where it was: no better off than the others.
        least = min(before.values())
        before |= {topic.name: least for topic in topics if not _knows_any(topic, found)}
    resume = min(needed, default="")
    return ConnectorPlan(
        connector.routes,
        intakes,
        reached,
        resume,
        frozenset(ended),
        frozenset(bereft),
        former_reach,
        before,
        SnapshotSteps(min(snapshots, default="")),
    )


def _needed(versions: Iterable[FormerIntake]) -> list[str]:
    """What must be gone on from, of versions in turn, the newest first: those up to the first of
    which all partitions say how far they are."""
    return [position for one in _asked_of(versions) for position in one.reached.values()]


def _asked_of(versions: Iterable[FormerIntake]) -> Iterator[FormerIntake]:
    for one in versions:
        yield one
        if one.is_complete:
            return


def _all_had_one(
    connector: Connector, present: FormerIntake, former: Sequence[FormerIntake]
) -> bool:
    """Did every partition of the present version have a position once, or, where it is new, those
    that it follows? None moves on before all have one, all of them the same, which isn't above
    those that are needed of a former version. So from where it began, all of one version have."""
    if connector.begun and not any(one.is_complete for one in (present, *former)):
        return True
    different = set(present.reached.values())
    if len(different) != 1:
        return bool(different)
    before = _needed(former)
    return bool(before) and max(different) > min(before)


def _left_at(
    connector: Connector, topic: Topic, found: Found, versions: Iterable[FormerIntake]
) -> str:
    """How far it was in all partitions of `topic` before it began anew; empty: nowhere, or all of
    them have begun anew since."""
    if any(one.is_complete for one in versions):
        return ""
    ends = []
    for ref in topic.all_refs():
        former = [one for one in found.get(ref, ()) if one.beginning < connector.beginning]
        if reached := max((one.position for one in former), default=""):
            ends.append(reached)
    return min(ends, default="")


def _knows_any(topic: Topic, found: Found) -> bool:
    """Has a partition of `topic` a position, of any beginning?"""
    return any(one.position for ref in topic.all_refs() for one in found.get(ref, ()))


def _by_version(connector: Connector, topic: Topic, found: Found) -> dict[int, FormerIntake]:
    """What is stored of this beginning, by version; what was only claimed says nothing."""
    counts: dict[int, int] = {}
    reached: dict[int, dict[int, str]] = {}
    snapshots: dict[int, list[str]] = {}
    for ref in topic.all_refs():
        for one in found.get(ref, ()):
            if one.beginning == connector.beginning and one.position:
                counts[one.version] = one.partitions
                reached.setdefault(one.version, {})[ref.partition] = one.position
                snapshots.setdefault(one.version, []).append(one.snapshot)
    return {
        version: FormerIntake(count, reached[version], min(snapshots[version]))
        for version, count in counts.items()
        if version <= topic.version
    }
