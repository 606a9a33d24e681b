"""Which call of a producer gets room before which: the earlier one of a key, with all its events.

A call that is too long for one request gets room part by part, and others get theirs in between.
Invariant: no call gets room for an event of a key before every earlier call has got it for all of
its events of that key, or was refused. Calls that share no key don't wait for each other here.
Events without a key have no order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from headgate.model.api import ProduceEvent

Line = tuple[str, str, str]
"""Topic, collection and key: what keeps its order."""


class _Turn:
    """`behind` is how many of its lines others stand first in; `has_come` is set at none."""

    __slots__ = ("behind", "has_come")

    def __init__(self) -> None:
        self.behind = 0
        self.has_come = asyncio.Event()


class Turns:
    """Calls that are about to get room, and may have to wait for it more than once. The cost of a
    call depends on its own lines, not on how many other calls there are."""

    def __init__(self) -> None:
        self._queues: dict[Line, list[_Turn]] = {}
        """Who brings something for a line, in the order of the calls: it is the first one's turn,
        and until that is over nobody else's."""
        self._open = 0

    def __bool__(self) -> bool:
        return bool(self._open)

    @asynccontextmanager
    async def taken(self, lines: frozenset[Line], deadline_s: float) -> AsyncIterator[None]:
        """In the block it is this one's turn; raises TimeoutError where it doesn't come in time."""
        turn = self._queued(lines)
        try:
            if turn.behind:
                async with asyncio.timeout_at(deadline_s):
                    await turn.has_come.wait()
            yield
        finally:
            self._over(turn, lines)

    def _queued(self, lines: frozenset[Line]) -> _Turn:
        turn = _Turn()
        self._open += 1
        for line in lines:
            queue = self._queues.setdefault(line, [])
            turn.behind += bool(queue)
            queue.append(turn)
        return turn

    def _over(self, turn: _Turn, lines: frozenset[Line]) -> None:
        """Also of one that was never first."""
        self._open -= 1
        for line in lines:
            queue = self._queues[line]
            was_first = queue[0] is turn
            queue.remove(turn)
            if not queue:
                del self._queues[line]
            elif was_first:
                queue[0].behind -= 1
                if not queue[0].behind:
                    queue[0].has_come.set()


def lines_of(topic: str, events: Iterable[ProduceEvent]) -> frozenset[Line]:
    return frozenset(
        (topic, event.collection, event.key) for event in events if event.key is not None
    )
