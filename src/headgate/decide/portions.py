"""How much is read or changed in one go where a store gives every call a bounded time.

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
LEAST = 1_000
"""A portion doesn't shrink below this part of the whole: after an outage it is soon whole again."""
GROWTH = 16
"""Per success it grows by this part of itself: a size that failed is tried again after a dozen."""


class Portion:
    """Up to `most`, in bytes or whatever counts, and less for a while after a failure."""

    def __init__(self, most: int) -> None:
        self._most = self._now = self._tried = most

    def fits(self, sizes: Iterable[int]) -> int:
        """How many items of these sizes go into one portion, from the first on; one at least, if
        there is one."""
        count = self._tried = 0
        for size in sizes:
            if count and self._tried + size > self._now:
                break
            count += 1
            self._tried += size
        return count

    def up_to(self, limit: int) -> int:
        """How many go together of things that count one each."""
        self._tried = min(limit, self._now)
        return self._tried

    @contextmanager
    def tried(self) -> Iterator[None]:
        """What was found to fit last is done in here."""
        try:
            yield
        except StorageFailed:
            half = min(self._now, self._tried) // 2
            self._now = max(1, half, self._most // LEAST)
            raise
        self._now = min(self._now + self._now // GROWTH + 1, self._most)


def letter_bytes(delivery: Delivery) -> int:
    names = len(delivery.subscriptions) + len(delivery.left)
    return LETTER_BYTES + memoryview(delivery.document).nbytes + names * NAME_BYTES
