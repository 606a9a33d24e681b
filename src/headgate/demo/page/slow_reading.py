"""What a subscriber without a filter has read: every seq of a partition, once each.

Invariant: pure; a partition that comes later, by a repartition, begins with its first record.
"""

from __future__ import annotations

from collections.abc import Mapping


class SlowReading:
    """From behind `positions` on, per partition."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        self._at = dict(positions)
        self.count = 0
        self.left_out = 0
        self.again = 0

    def read(self, partition: int, seq: int) -> None:
        self.count += 1
        last = self._at.get(partition, 0)
        if seq <= last:
            self.again += 1
            return
        self.left_out += seq - last - 1
        self._at[partition] = seq

    def has_reached(self, heads: Mapping[int, int]) -> bool:
        return all(self._at.get(partition, 0) >= head for partition, head in heads.items())

    def said(self, heads: Mapping[int, int]) -> str:
        """How far the slow reader came; `heads` is how far it should have come."""
        left_out, again = f"{self.left_out:,} left out", f"{self.again:,} twice"
        level = "it is level" if self.has_reached(heads) else "it isn't level yet"
        return f"{self.count:,} records read late, {left_out}, {again}; {level}"
