"""Names for what PostgreSQL tells: the position of a change, and the event's id.

A position is `SYSTEM-TIMELINE-LSN-INDEX`, hexadecimal and of fixed widths, so that positions sort
like the stream. SYSTEM is the database system's identifier, whose first half is when it was made;
TIMELINE the one on which the LSN was written: a promoted standby begins a new one, so a change that
it lacks has a position that nobody takes for one of its own. A change has the LSN of its
transaction's commit and its index within it, from 1 on; index 0 stands behind everything before the
LSN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from headgate.errors import OriginRefused

ID_BYTES = 12
INDEX_MOST = 2**32 - 1

_POSITION = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})-([0-9a-f]{16})-([0-9a-f]{8})").fullmatch
_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})").fullmatch


class Position(msgspec.Struct, frozen=True, order=True):
    system: int
    timeline: int
    lsn: int
    index: int = 0

    @property
    def reach(self) -> int:
        """Who has this position has the WAL up to there, at least: of a change, its commit, too."""
        return self.lsn + (self.index > 0)

    def __str__(self) -> str:
        return f"{prefix_of(self.system, self.timeline, self.lsn)}{self.index:08x}"


def prefix_of(system: int, timeline: int, lsn: int) -> str:
    """What the positions of a transaction's changes begin with."""
    return f"{system:016x}-{timeline:08x}-{lsn:016x}-"


def position_from(text: str) -> Position:
    """Raises OriginRefused for a text that is no position of PostgreSQL."""
    if found := _POSITION(text):
        return Position(*(int(part, 16) for part in found.groups()))
    raise OriginRefused(
        f"{text[:200]!r} is no position of a PostgreSQL stream: take the `source` of a record, an "
        "LSN such as 0/16B3748, or begin at `now`",
        position=text[:200],
    )


def lsn_from(text: str) -> int | None:
    """Of what PostgreSQL writes as `16/B374D848`."""
    found = _LSN(text)
    return None if found is None else int(found[1], 16) << 32 | int(found[2], 16)


def written(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class Timelines(msgspec.Struct, frozen=True):
    """The history of one database system: `ended` has the timelines before the `current` one, each
    with the LSN at which the next began."""

    system: int
    current: int
    ended: Sequence[tuple[int, int]] = ()

    def of_change(self, lsn: int) -> int:
        """On which one a commit at `lsn` was written."""
        return next((number for number, end in self.ended if lsn < end), self.current)

    def of_end(self, lsn: int) -> int:
        """On which one everything before `lsn` was."""
        return next((number for number, end in self.ended if lsn <= end), self.current)

    def at(self, lsn: int) -> Position:
        return Position(self.system, self.of_end(lsn), lsn)

    def has(self, position: Position) -> bool:
        """Is `position` one of this history? On an ended timeline, up to its end."""
        if position.system != self.system:
            return False
        if position.timeline == self.current:
            return True
        return any(
            number == position.timeline and position.reach <= end for number, end in self.ended
        )


def timelines_from(system: int, current: int, history: str) -> Timelines:
    """`history` is PostgreSQL's timeline history file; empty: there is none."""
    ended = []
    for line in history.splitlines():
        parts = line.split()
        if len(parts) >= 2 and parts[0].isdigit() and (end := lsn_from(parts[1])) is not None:
            ended.append((int(parts[0]), end))
    return Timelines(system, current, tuple(ended))


def event_id_of(backend: str, collection: str, key: str | None, position: str) -> str:
    """Begins with the LSN, so that ids grow with time as the index over them wants."""
    identity = f"{backend}\0{collection}\0{key}\0{position}".encode()
    return f"{position[26:42]}-{blake2b(identity, digest_size=ID_BYTES).hexdigest()}"
