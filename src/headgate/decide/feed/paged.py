"""How far one subscriber is with records that lanes send page by page, because of some of them it
isn't known yet that everybody has them.

A lane that redrives goes on behind what waits for a slow subscriber, so that the others get what is
newer; and it comes back to that later. Each page has all that is parked of its partition from a seq
on. So a subscriber that has no room somewhere has to be left out of every page that begins behind
that place, and gets the rest from the page that has it.

Invariant: of each partition nothing newer than what was put off is due before that. A redelivery is
due once per wish: per partition and wish they are taken in the order of their seqs, so the last one
says it of all before it. Few numbers per partition, whatever was sent: one per wish of which
something is parked, since a later reset leaves what lies before it as it was.
"""

from __future__ import annotations

WISHES_MAX = 128
"""Wishes of a partition of which is known how far they were taken; the one that was met longest ago
is forgotten. Were one forgotten of which something is still parked, for a subscriber that doesn't
read, everybody else would get that again with every look at it, and nothing newer."""


class Paged:
    """`put_off` has, per partition, the first seq that was put off."""

    __slots__ = ("_had", "put_off")

    def __init__(self) -> None:
        self.put_off: dict[int, int] = {}
        self._had: dict[int, dict[int, int]] = {}

    def is_held(self, partition: int, from_seq: int) -> bool:
        """Was something put off that lies before a page, which begins at `from_seq`?"""
        seq = self.put_off.get(partition)
        return seq is not None and seq < from_seq

    def has_had(self, partition: int, wish: int, seq: int) -> bool:
        return seq <= self._had.get(partition, {}).get(wish, 0)

    def had(self, partition: int, wish: int, seq: int) -> None:
        """It has this redelivery, and all before it of the same wish."""
        by_wish = self._had.setdefault(partition, {})
        by_wish[wish] = max(seq, by_wish.pop(wish, 0))  # the last one, from now on
        if len(by_wish) > WISHES_MAX:
            del by_wish[next(iter(by_wish))]

    def paged(
        self, partition: int, *, from_seq: int, last_seq: int, reached_seq: int, put_off: int | None
    ) -> None:
        """A page was offered, in which `put_off` is the first one that was put off. Pages up to
        `reached_seq` were offered before."""
        known = self.put_off.get(partition)
        if known is not None and known < from_seq:
            return
        if put_off is not None:
            self.put_off[partition] = put_off
        elif known is not None and known <= last_seq:
            if last_seq < reached_seq:
                self.put_off[partition] = last_seq + 1
            else:
                del self.put_off[partition]
