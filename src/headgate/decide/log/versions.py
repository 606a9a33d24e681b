"""How one who knows nothing of a topic but its records keeps keys in order across a repartition.

All partitions of a version are sealed before the next one has a record, and every record says of
which version it is. So the records of a key are in one partition within a version, those of a lower
version come before those of a higher one, and what is looked up after a record of a version was
seen is all that former versions will ever have.

Invariants: what `complete` tells has, with a record of a version, all records of former ones; a
batch that ends where `same_version` says has records of one version alone, the lowest that is
unread. So no batch has a record of a key before one that was appended earlier.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from math import inf
from typing import NamedTuple, Protocol

from headgate.decide.feed.start_positions import Stretch

FIRST_VERSION = 1


class TopicLog(Protocol):
    """What is there of a topic, looked up anew with every call."""

    def extents(self) -> Mapping[int, Stretch]: ...

    def version_at(self, partition: int, seq: int) -> int | None:
        """Of the first record from `seq` on; None: there is none."""


class CompleteStretch(NamedTuple):
    """A Stretch; `head` may be before that of the partition."""

    earliest: int
    head: int


class Versions:
    """Of the records of one topic, found with few looks at them: they only grow with `seq`. Seqs
    that were left out at the end of a partition count as later than any version."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._newest = 0.0
        """The highest version when it was last looked."""
        self._lasts: dict[int, tuple[int, float]] = {}
        """Per partition its head then, and the version of its last record."""

    def complete(self) -> dict[int, CompleteStretch]:
        """All that is there now, but for versions that have begun since."""
        found = self._log.extents()
        newest = max((self._last(one, there) for one, there in found.items()), default=0)
        if newest != self._newest:
            # A former version may have got something in one partition after that was looked up, and
            # before the first record of this one came to another.
            found = self._log.extents()
            self._newest = newest
        return {one: self._up_to(newest, one, there) for one, there in found.items()}

    def same_version(self, begin: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
        """Up to where a batch goes that begins at the positions `begin`, at most to `end`."""
        firsts = {
            partition: self._version(partition, seq)
            for partition, seq in begin.items()
            if seq < end.get(partition, seq)
        }
        lowest = min(firsts.values(), default=inf)
        return dict(begin) | {
            partition: self._end(lowest, partition, begin[partition], end[partition])
            for partition, first in firsts.items()
            if first == lowest
        }

    def since(self, saved: Mapping[int, int], found: Mapping[int, Stretch]) -> dict[int, int]:
        """Of the partitions that came after the positions `saved` were, which can't name them, the
        first seq since then.

        Positions are of the version of what was read last. Where that isn't there any more, they
        may be of any version, and more partitions may have come since.
        """
        version = min(
            (seq > found[one].earliest and self._log.version_at(one, seq - 1)) or FIRST_VERSION
            for one, seq in saved.items()
        )
        begins: dict[int, int] = {}
        for one, there in found.items():
            begin = self._end(version, one, there.earliest, there.head + 1)
            had = begin > there.earliest and self._version(one, begin - 1) == version
            if one not in saved and begin <= there.head and not had:
                begins[one] = begin
        return begins

    def _up_to(self, version: float, partition: int, there: Stretch) -> CompleteStretch:
        earliest, head = there.earliest, there.head
        if self._last(partition, there) > version:
            head = self._end(version, partition, earliest, head + 1) - 1
        return CompleteStretch(earliest, head)

    def _end(self, version: float, partition: int, first: int, end: int) -> int:
        """Where, between `first` and `end`, the records end that are of no higher version."""
        if first >= end or self._version(partition, end - 1) <= version:
            return end
        seqs = range(first, end)
        return first + bisect_right(seqs, version, key=lambda seq: self._version(partition, seq))

    def _last(self, partition: int, there: Stretch) -> float:
        if there.earliest > there.head:
            return 0
        head, version = self._lasts.get(partition, (0, inf))
        if head != there.head:
            version = self._version(partition, there.head)
            if version == inf:
                seqs = range(there.earliest, there.head)
                left_out = bisect_left(seqs, inf, key=lambda seq: self._version(partition, seq))
                version = self._version(partition, seqs[left_out - 1]) if left_out else 0
            self._lasts[partition] = (there.head, version)
        return version

    def _version(self, partition: int, seq: int) -> float:
        found = self._log.version_at(partition, seq)
        return inf if found is None else found
