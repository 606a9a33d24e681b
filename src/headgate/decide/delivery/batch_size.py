"""How many are sent at once: fewer after a batch that was too many, more again when batches arrive.

A gateway, or the way to it, may take only so much at a time, and nobody says how much. Each kind of
batch has a size of its own, which only batches of that kind change. Invariant: the limit is between
one and the most that is allowed.
"""

from __future__ import annotations


class BatchSize:
    """`limit` is the size of the next batch, at most."""

    __slots__ = ("_most", "limit")

    def __init__(self, most: int) -> None:
        self._most = most
        self.limit = most

    def failed(self, count: int) -> None:
        """A batch of so many didn't arrive, or was refused. One alone isn't too many."""
        if count > 1:
            self.limit = min(self.limit, count // 2)

    def fitted(self, count: int) -> None:
        """A batch of so many was answered."""
        if count:
            self.limit = min(self.limit * 2, self._most)
