"""The index by time of a partition: marks, a second or more apart, of where that time begins.

A mark (time, seq) says that all records before `seq` were appended before that time, and that the
record there was not. Clocks go back, and differ between owners: then there is no mark until they
have passed the newest one again, so marks always lie one behind the other.

Invariant: no record before a mark is of its time or later. So a search for the first record since a
time begins at the newest mark up to that time, and has passed over none.
"""

from __future__ import annotations

from collections.abc import Iterable

APART_MS = 1_000
LOOK_AT_ONCE = 5_000
"""Records between two looks at the event loop, where nobody has marked anything: those from before
there were marks."""

Mark = tuple[int, int]
"""A time in milliseconds, and the first seq that was appended then."""


def new_marks(newest_ms: int | None, appended: Iterable[Mark]) -> list[Mark]:
    """Those of `appended` (times and first seqs, in the order of the log) that become marks where
    the newest one so far is `newest_ms` (None: there is none)."""
    marks: list[Mark] = []
    for time_ms, seq in appended:
        if newest_ms is None or time_ms >= newest_ms + APART_MS:
            marks.append((time_ms, seq))
            newest_ms = time_ms
    return marks
