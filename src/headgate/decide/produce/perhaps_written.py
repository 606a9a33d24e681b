"""Which ids perhaps went by within a time, told in a fixed room: it spares the writer a look into
the log, which costs more than everything else about an event, and would nearly always find nothing.

Invariant: what was `add`ed within `ttl_s` is among what `of` returns. So may others be: one id in
a hundred after a million within that time, one in five after five. The room is taken as it fills.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Sequence

SLOTS = 1 << 23
_MASK = SLOTS - 1
_SHIFT = SLOTS.bit_length()

_Tables = tuple[mmap.mmap, mmap.mmap]


def _table() -> mmap.mmap:
    """Memory of nobody else's, and of no file; a bytearray would take all of it at once."""
    return mmap.mmap(-1, SLOTS, flags=mmap.MAP_PRIVATE)


class PerhapsWritten:
    """Two generations of two tables each: an id is there while both slots that it leads to are
    taken in one of them. Time is an argument; it must never go backwards."""

    def __init__(self, *, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._since_s = 0.0
        self._present: _Tables | None = None
        self._former: _Tables | None = None

    def add(self, now_s: float, topic: str, ids: Iterable[str]) -> None:
        self._age(now_s)
        if self._present is None:
            self._present = (_table(), _table())
        one, other = self._present
        begun = hash(topic)
        for mark in map(hash, ids):
            one[(mark ^ begun) & _MASK] = other[(mark ^ begun) >> _SHIFT & _MASK] = 1

    def of(self, now_s: float, topic: str, ids: Sequence[str]) -> list[str]:
        """Those of `ids` that may have been added; the others weren't."""
        self._age(now_s)
        found: list[str] = []
        begun = hash(topic)
        for both in (self._present, self._former):
            if both is not None:
                one, other = both
                # Nearly always that is all there is to do.
                perhaps = [event_id for event_id in ids if one[(hash(event_id) ^ begun) & _MASK]]
                found += [i for i in perhaps if other[(hash(i) ^ begun) >> _SHIFT & _MASK]]
        return found

    def _age(self, now_s: float) -> None:
        age_s = now_s - self._since_s
        if age_s <= self._ttl_s:
            return
        self._former = self._present if age_s <= 2 * self._ttl_s else None
        self._present, self._since_s = None, now_s
