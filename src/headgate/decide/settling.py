"""How far a source partition is settled.

A record is taken in `seq` order with the number of gateways that must still answer for it, and is
settled when none is left. The position is the highest seq with everything up to it settled, so it
never passes a record that somebody still waits for.
"""

from __future__ import annotations

from collections import deque


class SettleTracker:
    """Bounded by its caller: `unsettled` is how many records it remembers."""

    __slots__ = ("_order", "_pending", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self._order: deque[tuple[int, int]] = deque()
        self._pending: dict[int, int] = {}

    @property
    def unsettled(self) -> int:
        return len(self._order)

    @property
    def oldest_unsettled_ms(self) -> int:
        """The record time of the oldest unsettled record, 0 when there is none."""
        return self._order[0][1] if self._order else 0

    def take(self, seq: int, *, pending: int, time_ms: int) -> None:
        """Remember the next record; without anybody pending it is settled already."""
        if pending:
            self._pending[seq] = pending
            self._order.append((seq, time_ms))
        elif self._order:
            self._order.append((seq, time_ms))
        else:
            self.position = seq

    def settle(self, seq: int) -> None:
        """One of those pending for `seq` has answered, or is released from answering."""
        left = self._pending[seq] - 1
        if left:
            self._pending[seq] = left
            return
        del self._pending[seq]
        order = self._order
        while order and order[0][0] not in self._pending:
            self.position = order.popleft()[0]
