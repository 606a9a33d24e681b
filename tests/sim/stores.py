"""Stores that misbehave: what any process sees of the log's readers, positions, letters and the
coordinator's state while their server does.

    well      answers
    failing   does nothing and says so
    losing    does what it was asked, and says that it failed
    slow      does it after a while
    shaky     one of these, call by call
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable
from typing import Any, Final, Literal

from headgate.errors import StorageFailed

Mood = Literal["well", "failing", "losing", "slow", "shaky"]
BAD: Final[tuple[Mood, ...]] = ("failing", "losing", "slow", "shaky")
SLOW_S: Final = 2.0


class Weather:
    """How one store is, for everybody who uses it."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name = name
        self.mood: Mood = "well"
        self._chance = chance

    async def call(self, work: Callable[[], Any]) -> Any:
        mood = self.mood
        if mood == "shaky":
            mood = self._chance.choice(("well", "well", *BAD[:-1]))
        if mood == "slow":
            await asyncio.sleep(self._chance.uniform(0.0, SLOW_S))
        if mood == "failing":
            await asyncio.sleep(0.001)
            raise self._failed()
        result = await work()
        if mood == "losing":
            raise self._failed()
        return result

    def _failed(self) -> StorageFailed:
        return StorageFailed(f"{self.name} can't be reached; start it")


class Moody:
    """A store in such weather: what it does asynchronously may go wrong, the rest is as it is."""

    def __init__(self, store: Any, weather: Weather) -> None:
        self._store = store
        self._weather = weather

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name == "close" or not inspect.iscoroutinefunction(method):
            return method

        async def moody(*args: Any, **options: Any) -> Any:
            return await self._weather.call(lambda: method(*args, **options))

        return moody
