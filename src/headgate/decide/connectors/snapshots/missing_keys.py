"""Which keys the log has of a connector although its origin lacks them.

Asked when all rows of a snapshot are in the log, of a connector that began anew: every row that
there is has a record behind the one with which the connector began in that partition (its marker).
So a key whose last record stands before the markers, and isn't its end, is one that the origin has
lost in the meantime, and nobody told.

The log is read three times over: first for the markers (`Divide`), then what stands before them
(`before`), then what stands behind (`since`). Keys are looked at in shares, by their hash, so that
no more of them are in memory than one share has.

Invariant: a key that is named has no record of the connector behind the markers, as far as the
records went that were shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

from headgate.decide.connectors.whole_collection import concerned
from headgate.model.event import WHOLE_COLLECTION, Event, PartitionRef, Record

KEYS_MOST = 500_000
"""So many records, at most, a share is expected to have before the markers."""

Key = tuple[str, str]
"""Collection and key."""


class Divide:
    """What stands before a connector began anew, and what behind it. A partition has a marker, with
    which that begins. One that has none has either ended before its turn came, or was begun since;
    there the position decides, which is that of the markers."""

    def __init__(self, marker_prefix: str) -> None:
        self._prefix = marker_prefix
        self._markers: dict[PartitionRef, int] = {}
        self._began = ""
        self._records = 0

    def look(self, records: Iterable[Record]) -> None:
        for record in records:
            self._records += 1
            if record.op == "lost" and record.event_id.startswith(self._prefix):
                self._markers.setdefault(PartitionRef(record.topic, record.partition), record.seq)
                source = record.source or ""
                self._began = min(self._began or source, source)

    @property
    def shares(self) -> int:
        return 1 + self._records // KEYS_MOST

    def bounds(self, ref: PartitionRef, head: int, *, is_since: bool) -> tuple[int, int]:
        """Behind which seq, and up to which, such records of `ref` may be."""
        marker = self._markers.get(ref)
        if marker is None:
            return 0, head
        return (marker, head) if is_since else (0, marker)

    def is_since(self, record: Record) -> bool:
        marker = self._markers.get(PartitionRef(record.topic, record.partition))
        if marker is None:
            return (record.source or "") > self._began
        return record.seq > marker


@dataclass(frozen=True, slots=True)
class Last:
    """Where the last record of a key stands before the markers."""

    version: int
    ref: PartitionRef
    seq: int
    is_end: bool


class MissingKeys:
    """Of one share. `is_own` knows the connector's records, `is_asked` says of which collections
    keys are looked for."""

    def __init__(
        self,
        share: int,
        shares: int,
        *,
        is_own: Callable[[Record], bool],
        is_asked: Callable[[str], bool],
    ) -> None:
        self._share = share
        self._shares = shares
        self._is_own = is_own
        self._is_asked = is_asked
        self._last: dict[Key, Last] = {}
        self._emptied: dict[tuple[str, str], int] = {}
        """By collection and topic, the newest version that has been emptied."""
        self._emptied_in: dict[tuple[str, int, PartitionRef], int] = {}
        """By collection, version and partition, where it was last."""

    def before(self, records: Iterable[Record]) -> None:
        """What stands before the marker of a partition, in its order."""
        for record in records:
            if record.op in WHOLE_COLLECTION:
                for name in concerned(record):
                    self._note_emptied(name, _place_of(record))
            elif record.key is not None and self._is_of_it(record.collection, record.key):
                key = (record.collection, record.key)
                had = self._last.get(key)
                if (had is None or had.version <= record.version) and self._is_own(record):
                    self._last[key] = _place_of(record)

    def since(self, records: Iterable[Record | Event]) -> None:
        """What stands behind the markers, or comes to stand there."""
        for record in records:
            if record.op in WHOLE_COLLECTION:
                for name in concerned(record):
                    self._last = {key: at for key, at in self._last.items() if key[0] != name}
            elif record.key is not None:
                self._last.pop((record.collection, record.key), None)

    def found(self) -> Iterator[tuple[Key, Last]]:
        """The keys that are missing, as far as what was shown says."""
        for key, last in self._last.items():
            if not last.is_end and not self._is_emptied(key[0], last):
                yield key, last

    def has(self, key: Key) -> bool:
        """Has nothing shown since that it isn't missing?"""
        return key in self._last

    def _note_emptied(self, name: str, whole: Last) -> None:
        had = self._emptied.get((name, whole.ref.topic))
        self._emptied[name, whole.ref.topic] = max(had or 0, whole.version)
        at = name, whole.version, whole.ref
        self._emptied_in[at] = max(self._emptied_in.get(at, 0), whole.seq)

    def _is_emptied(self, name: str, last: Last) -> bool:
        """Whether the collection was emptied after `last`: a record about a whole collection stands
        in every partition of its version, so it is about all keys of former versions."""
        newest = self._emptied.get((name, last.ref.topic))
        if newest is not None and newest > last.version:
            return True
        return self._emptied_in.get((name, last.version, last.ref), 0) > last.seq

    def _is_of_it(self, collection: str, key: str) -> bool:
        if not self._is_asked(collection):
            return False
        return crc32(f"{collection}/{key}".encode()) % self._shares == self._share


def _place_of(record: Record) -> Last:
    ref = PartitionRef(record.topic, record.partition)
    return Last(record.version, ref, record.seq, record.op == "delete")
