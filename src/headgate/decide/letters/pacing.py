"""How fast a partition may be read while its parked letters are sent, where all that is read of it
is parked behind them.

A machine that has more to do than it can parks faster than it sends: the one is a write per
hundreds of records, the other a delivery per hundred and two calls of the store. So for two letters
that leave the store one record may be read, and `AHEAD` at first: letters become fewer, whatever
comes, and what isn't read yet is in the log. Whether others want the records at once is for the
lane to say. Invariant: a partition that has no letters left begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping

from headgate.model.event import PartitionRef

AHEAD = 1_000
PER_RECORD = 2


class Pacing:
    def __init__(self) -> None:
        self._left: dict[PartitionRef, float] = {}
        """How many records may be parked of each, of those of which some are; below zero where
        more were: some hundred are read in one go, or nothing could be sent for a while."""

    def parked(self, ref: PartitionRef) -> None:
        self._left[ref] = max(-AHEAD, self._left.get(ref, AHEAD) - 1)

    def removed(self, counts: Mapping[PartitionRef, int]) -> None:
        """So many letters have left the store."""
        for ref, count in counts.items():
            if ref in self._left:
                self._left[ref] = min(AHEAD, self._left[ref] + count / PER_RECORD)

    def is_ahead(self, ref: PartitionRef) -> bool:
        """Were as many parked as may be?"""
        return self._left.get(ref, AHEAD) <= 0

    def forget(self, ref: PartitionRef) -> None:
        self._left.pop(ref, None)
