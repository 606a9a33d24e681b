"""The records of several partitions as one sequence by time, read in pieces, forward or backward.

The reader asks `next_read`, hands over what that brought, and takes records with `pop` for as long
as there are some to take. Invariants: a partition's records come in its own order, and a record
comes only once the next one of every partition in play is known; `at` passes exactly what was
popped, so that a reader that goes on there misses nothing and sees nothing twice; what waits here
is bounded by the reader (`buffered_bytes`), which can leave partitions out of play for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from headgate.decide.browsing.cursor import Direction
from headgate.model.browse_api import MissingRecords
from headgate.model.event import Record

READ_MOST = 200
READ_LEAST = 8

Item = Record | MissingRecords


@dataclass(frozen=True, slots=True)
class BrowseRead:
    """Wanted of a partition: up to `limit` records behind `after_seq`; none from `before_seq` on
    is."""

    partition: int
    after_seq: int
    limit: int
    before_seq: int


@dataclass(slots=True)
class _Part:
    """`at` as in BrowseCursor; `end` is the head going forward, the earliest seq going backward.
    Of a backward read, `piece` is what has been read of what lies before `at`, up to `covered`."""

    partition: int
    at: int
    end: int
    size: int
    last_ms: float
    """The time of the record before: by that a hole takes its turn."""
    waiting: deque[tuple[float, Item]] = field(default_factory=deque)
    covered: int | None = None
    piece: list[Item] = field(default_factory=list)


class Merge:
    """`at` is where each partition goes on, `ends` where it ends, which is its head going forward
    and the first seq that it has going backward. Partitions are read in their order, from `turn`
    on."""

    def __init__(
        self, at: Mapping[int, int], ends: Mapping[int, int], direction: Direction, *, turn: int = 0
    ) -> None:
        self._forward = direction == "forward"
        size = max(READ_LEAST, READ_MOST // max(1, len(at)))
        before_all = -inf if self._forward else inf
        order = [*(p for p in sorted(at) if p >= turn), *(p for p in sorted(at) if p < turn)]
        self._parts = {p: _Part(p, at[p], ends[p], size, before_all) for p in order}
        self._to_read = {p: part for p, part in self._parts.items() if not self._is_done(part)}
        self._ready: list[tuple[float, int]] = []
        self._left_out: list[int] = []
        self.buffered_bytes = 0

    @property
    def at(self) -> dict[int, int]:
        return {part.partition: part.at for part in self._parts.values()}

    @property
    def turn(self) -> int:
        """The first partition that was left out of play; 0 where none was."""
        return self._left_out[0] if self._left_out else 0

    @property
    def has_more(self) -> bool:
        return bool(self._ready or self._to_read or self._left_out)

    def next_read(self) -> BrowseRead | None:
        """What has to be read before something can be popped; None where nothing has."""
        for part in self._to_read.values():
            if self._forward:
                return BrowseRead(part.partition, part.at, part.size, part.end + 1)
            first = max(part.end, part.at - part.size) - 1
            if part.covered is not None:
                first = part.covered
            return BrowseRead(part.partition, first, part.at - 1 - first, part.at)
        return None

    def leave_out(self) -> bool:
        """Go on without the partitions that are yet to be read, if that leaves any."""
        if self._ready:
            self._left_out += self._to_read
            self._to_read = {}
        return bool(self._ready)

    def pop(self) -> Item | None:
        """The next in the sequence; None at the end of all that is in play. Nothing may be left to
        be read."""
        if not self._ready:
            return None
        _, number = heappop(self._ready)
        part = self._parts[number]
        _, item = part.waiting.popleft()
        if isinstance(item, MissingRecords):
            part.at = item.last if self._forward else item.first
        else:
            part.at = item.seq
            self.buffered_bytes -= size_bytes(item)
        self._queue(part)
        return item

    # --- what reading brought --------------------------------------------------------------------

    def brought(self, read: BrowseRead, records: Sequence[Record]) -> None:
        """The records that `read` brought: fewer than were wanted, where they are large."""
        part = self._parts[read.partition]
        wanted = [one for one in records if one.seq < read.before_seq]
        found = [*_with_holes(part.partition, read.after_seq, wanted)]
        last = wanted[-1].seq if wanted else read.after_seq
        ends = len(wanted) < len(records) or not records or last == read.before_seq - 1
        if ends:
            found += _hole(part.partition, last + 1, read.before_seq - 1)
        if self._forward:
            self._take(part, found)
        elif ends:
            self._turn_round(part, [*part.piece, *found])
        else:
            # It stopped early, because the documents are large. What lies behind comes first.
            part.covered, part.piece = last, found
            part.size = max(1, len(wanted))

    def corrupt(self, read: BrowseRead, seq: int) -> None:
        """The next record that `read` would bring is there, and can't be shown."""
        if seq >= read.before_seq:
            self.brought(read, ())
            return
        part = self._parts[read.partition]
        found = _hole(part.partition, read.after_seq + 1, seq - 1)
        found.append(MissingRecords(part.partition, seq, seq, "corrupt"))
        if self._forward:
            self._take(part, found)
        elif seq == read.before_seq - 1:
            self._turn_round(part, [*part.piece, *found])
        else:
            part.piece += found
            part.covered = seq

    # --- the parts -------------------------------------------------------------------------------

    def _is_done(self, part: _Part) -> bool:
        return part.at >= part.end if self._forward else part.at <= part.end

    def _turn_round(self, part: _Part, piece: Sequence[Item]) -> None:
        """All of a piece that lies before `at` is there: its last record comes first."""
        part.piece, part.covered = [], None
        self._take(part, reversed(piece))

    def _take(self, part: _Part, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Record):
                part.last_ms = item.time_ms
                self.buffered_bytes += size_bytes(item)
            part.waiting.append((part.last_ms, item))
        part.size = min(READ_MOST, 2 * part.size)
        self._queue(part)

    def _queue(self, part: _Part) -> None:
        """To where it belongs now."""
        self._to_read.pop(part.partition, None)
        if part.waiting:
            time_ms = part.waiting[0][0]
            heappush(self._ready, (time_ms if self._forward else -time_ms, part.partition))
        elif not self._is_done(part):
            self._to_read[part.partition] = part


def _with_holes(partition: int, after_seq: int, records: Sequence[Record]) -> Iterator[Item]:
    for record in records:
        yield from _hole(partition, after_seq + 1, record.seq - 1)
        yield record
        after_seq = record.seq


def _hole(partition: int, first: int, last: int) -> list[Item]:
    return [MissingRecords(partition, first, last, "gone")] if first <= last else []


def size_bytes(record: Record) -> int:
    """What a record counts for, in what waits and in what a request may bring."""
    rest = (record.earlier, record.headers)
    return 200 + len(record.document) + sum(len(one) for one in rest if one is not None)
