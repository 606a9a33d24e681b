"""Which records of a topic come before which, across its partitioning versions.

A key is in one partition under each version: `hash mod count`. So two partitions of two versions
share keys where some hash has both remainders, which is where the remainders are equal modulo the
greatest common divisor of the two counts. To keep the order of every key, a lane or a feed passes a
record on only once it has passed all records of the former versions that may have the same key.

A key may have had no record at all under the version before, so it isn't enough to look one version
back: every former one counts.

Invariant: what `before` asks for is of former versions alone, so each record waits for older
versions only, and nothing waits in a circle. Topics whose records have no order (opportunistic
ones) never wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from math import gcd, inf
from types import MappingProxyType

from headgate.model.event import PartitionRef
from headgate.model.topology import FormerVersion, Topic

NOTHING: Mapping[int, int] = MappingProxyType({})


class Lineage:
    """The versions of one topic. A value: two of the same topic say the same."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self._former = topic.former if topic.placement == "keyed" else ()
        self._before = cache(self._found_before)

    @property
    def is_plain(self) -> bool:
        """Has it been one version all along, or is there no order to keep?"""
        return not self._former

    def before(self, version: int, partition: int) -> Mapping[int, int]:
        """Of other partitions, the seqs up to which all is to be passed before the first record of
        `version` in `partition`."""
        return NOTHING if self.is_plain else self._before(version, partition)

    def _found_before(self, version: int, partition: int) -> Mapping[int, int]:
        count = self.count(version)
        wanted: dict[int, int] = {}
        for former in self._former:
            if former.version >= version:
                break
            step = gcd(len(former.last), count)
            for number in range(partition % step, len(former.last), step):
                if number != partition and former.last[number] > former.after[number]:
                    wanted[number] = former.last[number]
        return MappingProxyType(wanted)

    def version_of(self, partition: int, seq: int) -> int:
        """The version that the record with this seq is of."""
        for version, last in self._lasts(partition):
            if seq <= last:
                return version
        return self.topic.version

    def end_of(self, partition: int, seq: int) -> int | None:
        """The last seq of the version that the record with this seq is of; None: it has no end."""
        return next((last for _, last in self._lasts(partition) if seq <= last), None)

    def is_before(self, partition: int, seq: int, reached: Mapping[int, int]) -> bool:
        """Whether the record with this seq was to be passed before something that has been, where
        other partitions have been passed up to the seqs `reached`."""
        for number, last in reached.items():
            version = self.version_of(number, last)
            has_begun = last > self._begin(version, number)
            if has_begun and seq <= self.before(version, number).get(partition, 0):
                return True
        return False

    def behind(self, partition: int, seq: int) -> dict[int, int]:
        """By other partition, the seq behind which all records have to come again when those behind
        `seq` do: newer records of its keys, of later versions, and newer ones of what comes again
        with those."""
        found: dict[int, int] = {}
        again = {partition: seq}
        while again:
            one, after = again.popitem()
            for number in range(len(self.topic.all_refs())):
                for version, begin in self.begins(number):
                    comes_again = self.before(version, number).get(one, 0) > after
                    if comes_again and number != partition and begin < found.get(number, inf):
                        found[number] = again[number] = begin
        return found

    def count(self, version: int) -> int:
        """How many partitions that version has."""
        former = self._former_one(version)
        return self.topic.partitions if former is None else len(former.last)

    def _begin(self, version: int, partition: int) -> int:
        """The seq behind which that version begins in a partition that it has."""
        former = self._former_one(version)
        after = self.topic.after if former is None else former.after
        return after[partition] if partition < len(after) else 0

    def begins(self, partition: int) -> Iterator[tuple[int, int]]:
        """The versions that have it, the oldest first, and behind which seq each begins there."""
        for former in self._former:
            if partition < len(former.last):
                yield former.version, former.after[partition]
        if partition < self.topic.partitions:
            yield self.topic.version, self._begin(self.topic.version, partition)

    def _former_one(self, version: int) -> FormerVersion | None:
        at = bisect_left(self._former, version, key=lambda former: former.version)
        if at < len(self._former) and self._former[at].version == version:
            return self._former[at]
        return None

    def _lasts(self, partition: int) -> Iterator[tuple[int, int]]:
        for former in self._former:
            if partition < len(former.last):
                yield former.version, former.last[partition]


def is_same_version(one: Topic, other: Topic) -> bool:
    """Whether two topics of one name are under the same version: one that was deleted and made
    again may have the numbers of the former one, and end and begin at other seqs."""
    mine, others = one.former[-1:], other.former[-1:]
    return (one.version, one.after) == (other.version, other.after) and mine == others


@lru_cache(maxsize=1_024)
def lineage_of(topic: Topic) -> Lineage:
    return Lineage(topic)


def begins_after(topic: Topic, known_version: int) -> dict[int, int]:
    """Of the partitions that have come since `known_version`, the seq behind which the first
    version begins that has them: a subscriber that knew the topic by then has had nothing of
    them."""
    versions = [*((one.version, one.after) for one in topic.former), (topic.version, topic.after)]
    found: dict[int, int] = {}
    known = 0
    for version, after in reversed(versions):
        if version <= known_version:
            known = max(known, len(after))
        else:
            found |= dict(enumerate(after))
    return {number: seq for number, seq in found.items() if number >= known}


def came_later(topic: Topic) -> dict[int, int]:
    """Of the partitions that the topic hasn't had all along, the seq behind which each begins:
    where it first came, or first came back in a version that is kept."""
    found = dict(enumerate(topic.begins, start=topic.original))
    gone: set[int] = set()
    for after in (*(former.after for former in topic.former), topic.after):
        for number in range(topic.original):
            if number >= len(after):
                gone.add(number)
            elif number in gone:
                found.setdefault(number, after[number])
    return found


def boundaries(topic: Topic) -> dict[PartitionRef, int]:
    """Of each partition the last seq of the newest former version that has it."""
    lasts: dict[int, int] = {}
    for former in topic.former:
        lasts |= dict(enumerate(former.last))
    return {PartitionRef(topic.name, number): last for number, last in lasts.items()}


def contradictions(topic: Topic) -> Iterator[str]:
    """Why the versions of `topic` can't have followed each other, a phrase each."""
    if not (topic.former or topic.after or topic.original):
        return  # it has had one only
    known = [*topic.former, FormerVersion(topic.version, topic.after, topic.after)]
    for before, after in pairwise(known):
        if after.version <= before.version:
            yield f"{topic.name} has version {after.version} after {before.version}"
    ends: dict[int, int] = {}
    for one in known:
        if len(one.after) != len(one.last) or (not one.last and topic.former):
            yield f"version {one.version} of {topic.name} has no partitions, or no two counts"
        if any(not 0 <= after <= last for after, last in zip(one.after, one.last, strict=False)):
            yield f"version {one.version} of {topic.name} ends before it begins"
        if any(ends.get(number, 0) > after for number, after in enumerate(one.after)):
            yield f"version {one.version} of {topic.name} begins before another has ended"
        ends |= dict(enumerate(one.last))
    if topic.original and max(len(one.last) for one in known) > topic.original + len(topic.begins):
        yield f"{topic.name} has had partitions that came from nowhere"
    if topic.former and len(topic.after) != topic.partitions:
        yield f"version {topic.version} of {topic.name} doesn't say where it begins"
