"""When a loop that computes has had the event loop to itself for long enough.

Counting what it did doesn't tell: a record costs a microsecond or, with filters and documents made
for it, a hundred milliseconds. Invariant: a task that asks after each piece of work, and lets
others go first where told so, holds them up by TURN_S and one piece of work, at most.
"""

from __future__ import annotations

from collections.abc import Callable

TURN_S = 0.005


class Pace:
    """`now_s` is a clock that never goes back; a turn begins with `begin`."""

    __slots__ = ("_now_s", "_until_s")

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._until_s = 0.0

    def begin(self) -> None:
        self._until_s = self._now_s() + TURN_S

    def is_over(self) -> bool:
        return self._now_s() >= self._until_s
