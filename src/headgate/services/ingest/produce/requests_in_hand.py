"""The requests that may come again while they are still under way: a producer that got no answer
sends the same events once more. Invariant: no event is in hand for two requests at the same
time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Hold:
    topic: str
    ids: Sequence[str]
    over: asyncio.Event = field(default_factory=asyncio.Event)


class InHand:
    def __init__(self) -> None:
        self._holds: dict[str, dict[str, Hold]] = {}
        """By topic and id."""

    async def take(self, topic: str, ids: Sequence[str]) -> Hold:
        """Wait until nobody has any of `ids`, and have them until `let_go`."""
        while (hold := self.take_now(topic, ids)) is None:
            if earlier := self._earlier(topic, ids):
                await earlier.over.wait()
        return hold

    def take_now(self, topic: str, ids: Sequence[str]) -> Hold | None:
        """The same, if nobody has any of them."""
        if self._earlier(topic, ids) is not None:
            return None
        hold = Hold(topic, ids)
        self._holds.setdefault(topic, {}).update(dict.fromkeys(ids, hold))
        return hold

    def let_go(self, hold: Hold) -> None:
        if hold.over.is_set():
            return
        hold.over.set()
        held = self._holds[hold.topic]
        if len(held) == len(hold.ids):
            del self._holds[hold.topic]
            return
        for one in hold.ids:
            del held[one]

    def _earlier(self, topic: str, ids: Sequence[str]) -> Hold | None:
        held = self._holds.get(topic)
        if held is None or held.keys().isdisjoint(ids):
            return None
        return next(found for one in ids if (found := held.get(one)) is not None)
