"""How many parked letters are read from their store with one call; they are sent page by page, and
removed together.

Letters are written by the hundred per call. Were they read, sent and removed a page at a time, they
would leave the store more slowly than they come where its calls take long, and pile up although
their gateway is well; above all those that nobody wants any more, which needn't be sent at all,
while pages are small because the gateway was away. Invariant: one page while anything is wrong, and
no more than fit `BYTES` by the largest letter of the last ones; twice as many after all of them
went well, up to what the store has the time for. Time is an argument.
"""

from __future__ import annotations

from headgate.decide.delivery.batch_size import BatchSize
from headgate.decide.delivery.steps import Redrive
from headgate.decide.portions import LETTER_BYTES

LETTERS_MAX = 500
BYTES = 8 * 1024 * 1024


class LettersAtOnce:
    def __init__(self) -> None:
        self._count = 0
        self._page = 0
        """How many there are in one of the step's."""
        self._in_time = BatchSize(LETTERS_MAX)
        self._largest_bytes = LETTER_BYTES

    def each(self, step: Redrive) -> int:
        """How many are read now of every partition, whole pages; one where a subscriber at the
        gateway is slow."""
        self._page = len(step.refs) * step.each
        pages = min(self._count, BYTES // self._largest_bytes) // self._page
        pages = 1 if step.after_seqs else max(1, pages)
        self._count = pages * self._page
        return pages * step.each

    def done(self, largest_bytes: int, *, whole: bool, now_s: float) -> None:
        """They were read, and went as a `whole`."""
        count, in_time = self._count, self._in_time
        in_time.fitted(count, full=2 * count > in_time.limit, now_s=now_s)
        self._largest_bytes = largest_bytes
        self._count = min(2 * count, in_time.limit) if whole else 0

    def failed(self, now_s: float) -> bool:
        """The store failed; True when it was asked for more than a page, so that one may not be
        too much."""
        were_many = self._count > self._page
        if were_many:
            self._in_time.failed(self._count, now_s=now_s)
        self._count = 0
        return were_many
