"""Which call of a producer gets room before which: the earlier one of a key, with all that it has.

A call that is too long for one request gets room part by part, and others get theirs in between.
Invariant: nobody gets room for an event of a key before every earlier call has got it for all of
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


class Turns:
    """Those that are about to get room, and may have to wait for it more than once."""

    def __init__(self) -> None:
        self._taken: dict[asyncio.Event, frozenset[Line]] = {}
        """What each of them brings, in the order of the calls; the event is set at its end."""

    def __bool__(self) -> bool:
        return bool(self._taken)

    @asynccontextmanager
    async def taken(self, lines: frozenset[Line], deadline_s: float) -> AsyncIterator[None]:
        """In the block it is this one's turn; raises TimeoutError where it doesn't come in time."""
        earlier = [over for over, theirs in self._taken.items() if not lines.isdisjoint(theirs)]
        over = asyncio.Event()
        self._taken[over] = lines
        try:
            if earlier:
                async with asyncio.timeout_at(deadline_s):
                    for one in earlier:
                        await one.wait()
            yield
        finally:
            del self._taken[over]
            over.set()


def lines_of(topic: str, events: Iterable[ProduceEvent]) -> frozenset[Line]:
    return frozenset(
        (topic, event.collection, event.key) for event in events if event.key is not None
    )
