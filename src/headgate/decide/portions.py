"""How much is changed in one go where a store gives every change a bounded time.

Invariant: whatever is larger than a portion goes alone, so everything gets its turn; what fails is
tried with half of it the next time, and what goes well with a little more, so a store that is slow
takes all of it in the end, and one that is away isn't asked for ever for what it can't do at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headgate.errors import StorageFailed
from headgate.model.delivery import Delivery

LETTER_BYTES = 8 * 1024
"""What a letter costs a store besides its document."""
NAME_BYTES = 40
"""A subscription's name in it."""
LEAST_BYTES = 4 * 1024
GROWTH = 16
"""Per success it grows by this part of itself: a size that failed is tried again after a dozen."""


class Portion:
    """Up to `most_bytes`, and less for a while after a failure."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = self._bytes = most_bytes
        self._tried_bytes = most_bytes

    def fits(self, sizes: Iterable[int]) -> int:
        """How many of these go together, from the first on; one at least, if there is one."""
        count = taken_bytes = 0
        for size_bytes in sizes:
            if count and taken_bytes + size_bytes > self._bytes:
                break
            count += 1
            taken_bytes += size_bytes
        self._tried_bytes = taken_bytes
        return count

    @contextmanager
    def tried(self) -> Iterator[None]:
        """What was found to fit last is changed in here."""
        try:
            yield
        except StorageFailed:
            half_bytes = min(self._bytes, self._tried_bytes) // 2
            self._bytes = max(half_bytes, min(LEAST_BYTES, self._most_bytes))
            raise
        self._bytes = min(self._bytes + self._bytes // GROWTH, self._most_bytes)


def letter_bytes(delivery: Delivery) -> int:
    names = len(delivery.subscriptions) + len(delivery.left)
    return LETTER_BYTES + memoryview(delivery.document).nbytes + names * NAME_BYTES
